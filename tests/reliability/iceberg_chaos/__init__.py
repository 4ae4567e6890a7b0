# SPDX-License-Identifier: Apache-2.0
"""Chaos from outside on Iceberg tables."""

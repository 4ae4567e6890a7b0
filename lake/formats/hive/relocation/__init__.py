# SPDX-License-Identifier: Apache-2.0
"""Partitions that commits have relocated: late files, changes, records."""

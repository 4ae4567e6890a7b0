# SPDX-License-Identifier: Apache-2.0
"""Catalogs: their settings, their tables, and the metadata file of each table."""

# SPDX-License-Identifier: Apache-2.0
"""Relocated partitions: the record of each, the evidence found, and what to do about late files."""

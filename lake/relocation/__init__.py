# SPDX-License-Identifier: Apache-2.0
"""Relocated partitions: the record of each, the evidence found, and the decision on late files."""

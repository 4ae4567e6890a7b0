# SPDX-License-Identifier: Apache-2.0
"""Observability: metrics, log lines, traces and lineage."""

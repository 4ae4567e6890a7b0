# SPDX-License-Identifier: Apache-2.0
"""What others see of lakefold at work: metrics, log lines, traces and lineage."""

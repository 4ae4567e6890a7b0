# SPDX-License-Identifier: Apache-2.0
"""Planning in the service: requests, the scan that stores plans, refusals, adopted actions, decision summaries."""

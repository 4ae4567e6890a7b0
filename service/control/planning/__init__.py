# SPDX-License-Identifier: Apache-2.0
"""Planning in the service: requests, the scan that stores plans, and what is refused, adopted and accounted for."""

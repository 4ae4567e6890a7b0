# SPDX-License-Identifier: Apache-2.0
"""From a table's files to stored plans: requests, the scan, and what of it is refused, adopted and accounted for."""

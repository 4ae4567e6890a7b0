# SPDX-License-Identifier: Apache-2.0
"""The sweep of relocated partitions' previous locations."""

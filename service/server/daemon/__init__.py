# SPDX-License-Identifier: Apache-2.0
"""``lakefold serve``: one process, its loops, and the work of each."""

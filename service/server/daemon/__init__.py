# SPDX-License-Identifier: Apache-2.0
"""The daemon of ``lakefold serve``: one process, its loops, and the work of each loop."""

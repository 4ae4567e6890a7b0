# SPDX-License-Identifier: Apache-2.0
"""The promise of ``lake/ports.py``, asked of every format by a suite that knows none of them."""

# SPDX-License-Identifier: Apache-2.0
"""The contract of ``lake/ports.py``: one suite for every format, which contains nothing specific to one of them."""

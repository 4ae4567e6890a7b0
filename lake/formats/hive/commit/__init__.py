# SPDX-License-Identifier: Apache-2.0
"""How a rewrite is committed: its version, the files in it, the document beside it, the metastore's call."""

# SPDX-License-Identifier: Apache-2.0
"""The content of ``.hoodie``: active and archived instants, metadata table, schema history."""

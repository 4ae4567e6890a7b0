# SPDX-License-Identifier: Apache-2.0
"""Files of a table, read and written by path, and what their names say."""

# SPDX-License-Identifier: Apache-2.0
"""Table maintenance besides rewrites: deletion of replaced files, the table's own services, repairs."""

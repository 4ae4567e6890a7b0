# SPDX-License-Identifier: Apache-2.0
"""What a table needs besides rewrites: replaced files deleted, its own services, repairs."""

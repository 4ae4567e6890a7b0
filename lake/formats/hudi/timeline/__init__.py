# SPDX-License-Identifier: Apache-2.0
"""What a table says of itself in ``.hoodie``: instants, archived ones too, metadata table, schemas."""

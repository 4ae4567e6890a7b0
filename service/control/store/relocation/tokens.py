# SPDX-License-Identifier: Apache-2.0
"""The tokens of rows in the journal of relocations that record a location without a relocation."""

RECREATED_PREFIX = "again-"
"""The prefix of the token of a row that records a location without a relocation.

There are three cases: a writer has recreated a location whose record was pruned, a relocation to the location was
begun and discarded (see ``DISCARDED_PREFIX``), or the location is released (see ``RELEASED_PREFIX``).
"""

DISCARDED_PREFIX = f"{RECREATED_PREFIX}discarded-"
"""The prefix of the token of a discarded relocation, which the catalog may still apply."""

RELEASED_PREFIX = f"{RECREATED_PREFIX}released-"
"""The prefix of the token of a row which records that the files in a location are not the partition's.

The token of the last relocation that left the location follows, see ``PreviousLocation.is_released``.
"""


def is_recreated(token: str) -> bool:
    """True if the row of ``token`` records a location, not a relocation; see ``RECREATED_PREFIX``."""
    return token.startswith(RECREATED_PREFIX)

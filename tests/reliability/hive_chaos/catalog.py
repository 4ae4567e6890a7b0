# SPDX-License-Identifier: Apache-2.0
"""What the metastore says while it is stopped, killed and started, and tables are renamed in it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hive_race import readers
from hive_race.ledger import Read

from lake.errors import LakefoldError

_SECONDS = 120.0
_Found = TypeVar("_Found")


def places(uri: str, table: str) -> dict[str, Path]:
    """Where each partition is, by its value; asked again until the metastore answers."""
    return _until_answered(lambda: readers.places(uri, table))


def read_table(uri: str, table: Callable[[], str], *, loaded: str = "") -> list[Read]:
    """What is in every partition of the table, whose name may change meanwhile; see ``readers.read_table``."""
    return _until_answered(lambda: readers.read_table(uri, table(), loaded=loaded))


def _until_answered(ask: Callable[[], _Found]) -> _Found:
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            return ask()
        except LakefoldError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)

# SPDX-License-Identifier: Apache-2.0
"""What the metastore says while it is stopped, killed and started, and tables are renamed in it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hive_race import readers
from hive_race.ledger import Read
from waiting import wait_for

from lake.errors import LakefoldError
from lake.metastore import MetastoreClient

#: the folder of the directories to which the owner moves partitions
ELSEWHERE = "elsewhere"
_SECONDS = 120.0
_Found = TypeVar("_Found")


def places(uri: str, table: str) -> dict[str, Path]:
    """Where each partition is, by its value; asked again until the metastore answers."""
    return _until_answered(lambda: readers.places(uri, table))


def directory_of(uri: str, table: Callable[[], str]) -> Path:
    """The table's own directory. The table, whose name may change meanwhile, is asked for until it is found."""

    def found() -> Path | None:
        with MetastoreClient(uri) as metastore:
            there = metastore.table(*table().split("."))
        return None if there is None else Path(there.storage.location.removeprefix("file:"))

    return wait_for(lambda: _until_answered(found), "the table is not there", _SECONDS, every=0.2)


def read_table(uri: str, table: Callable[[], str], *, loaded: str = "") -> list[Read]:
    """What is in every partition of the table, whose name may change meanwhile; see ``readers.read_table``.

    The table is read again if its owner has moved a partition meanwhile: the owner empties the directory that it left.
    """
    while True:
        reads = _until_answered(lambda: readers.read_table(uri, table(), loaded=loaded))
        now = places(uri, table())
        if not any(_is_moved_by_owner(read, now.get(read.partition)) for read in reads):
            return reads


def _is_moved_by_owner(read: Read, place: Path | None) -> bool:
    return place is not None and place != read.place and place.parent.name == ELSEWHERE


def _until_answered(ask: Callable[[], _Found]) -> _Found:
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            return ask()
        except LakefoldError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)

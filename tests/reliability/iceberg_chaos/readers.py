# SPDX-License-Identifier: Apache-2.0
"""The rows of a snapshot as Spark and PyIceberg read them, with the names of the added columns."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from pyiceberg.table import StaticTable

_CORE = ("id", "write", "value", "dt")

Found = tuple[Counter[tuple[Any, ...]], list[str]]
"""Rows, each with the core columns first, and the names of the other columns."""

Reader = Callable[[str, int], Found]
"""Reads a snapshot of the table whose metadata is at a location."""


def by_pyiceberg(location: str, snapshot: int) -> Found:
    """As PyIceberg reads it, which has its own code for deletes."""
    rows = StaticTable.from_metadata(location).scan(snapshot_id=snapshot).to_arrow()
    return _counted(rows.column_names, list(zip(*(column.to_pylist() for column in rows.columns), strict=True)))


def by_spark(session: Any, table: str) -> Reader:
    """As Spark reads it by its catalog."""

    def read(location: str, snapshot: int) -> Found:
        frame = session.read.option("snapshot-id", str(snapshot)).table(table)
        return _counted(frame.columns, [tuple(row) for row in frame.collect()])

    return read


def lineage(session: Any, table: str, snapshot: int) -> Counter[tuple[int, int, int]]:
    """Each row's id, and its ``_row_id`` and ``_last_updated_sequence_number`` in a table of version 3."""
    frame = session.read.option("snapshot-id", str(snapshot)).table(table)
    return Counter(tuple(row) for row in frame.select("id", "_row_id", "_last_updated_sequence_number").collect())


def _counted(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> Found:
    others = [name for name in names if name not in _CORE]
    order = [list(names).index(name) for name in (*_CORE, *others)]
    return Counter(tuple(row[index] for index in order) for row in rows), others

# SPDX-License-Identifier: Apache-2.0
"""The actions that the suite needs from a format under test."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hdfs_paths import AnyPath

from lake.engines import RewriteEngine
from lake.model import TableRef
from lake.ports import Capability, TableFormat


class Case(Protocol):
    """A format under test, with the actions of others on its tables: writers, a reader, a listing of the storage.

    No method may use the format's own adapter: the suite would compare the adapter with itself.
    """

    format: TableFormat
    #: the engines for its writers; empty if the format has its own
    engines: Sequence[RewriteEngine]
    #: declared capabilities that the installed library of the format refuses, each with the text of the refusal
    lacks: Mapping[Capability, str]
    #: the partitions of the tables: ``dt=0`` and ``dt=1``, or only '' for tables without partitions
    parts: Sequence[str]

    def spark(self) -> Any:
        """The Spark session, if the format needs one."""

    def create(self, location: AnyPath, *, name: str) -> TableRef:
        """Create a table of six small files, divided equally among its ``parts``, with distinct ids."""

    def append(self, table: TableRef, partition: str, low: int, high: int) -> bool:
        """Commit a file with the ids ``low`` ≤ id < ``high``, as a writer. Returns False if a plan excluded it."""

    def update(self, table: TableRef, partition: str) -> bool:
        """Commit a changed value in every file of the partition, as a writer. Returns False if a plan excluded it."""

    def delete(self, table: TableRef, partition: str) -> bool:
        """Commit the deletion of a row of every file of the partition. Returns False if a plan excluded it."""

    def forget(self, table: TableRef) -> bool:
        """Expire all commits except the newest state as an owner does, and delete the files that only these had.

        Saved states stay. Returns False if the format keeps commits for ever; the case then explains how.
        """

    def rows(self, table: TableRef) -> Sequence[str]:
        """Return every row that a reader of the table sees now, sorted, without columns that a rewrite may change."""

    def stored(self, table: TableRef) -> Mapping[str, int]:
        """Return every data file in storage with its bytes, for any writer; paths are those of slices."""

    def commits(self, table: TableRef) -> Sequence[tuple[str, int | None]]:
        """Return the plan and the epoch of every commit that names a plan."""

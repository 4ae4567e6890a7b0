# SPDX-License-Identifier: Apache-2.0
"""What a format brings to be put under the suite."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hdfs_paths import AnyPath

from lake.engines import RewriteEngine
from lake.model import TableRef
from lake.ports import Capability, TableFormat


class Case(Protocol):
    """A format under test, and what is done to its tables by others: its writers, a reader, who looks into storage.

    Nothing here may go through the format's own adapter, or the suite would compare that with itself.
    """

    format: TableFormat
    #: handed to its writers; none where the format brings its own
    engines: Sequence[RewriteEngine]
    #: what the format declares and the library that is installed here refuses, each with the words of its refusal
    lacks: Mapping[Capability, str]
    #: what the tables are in: ``dt=0`` and ``dt=1``, or of tables without partitions '' alone
    parts: Sequence[str]

    def spark(self) -> Any:
        """The Spark session, where the format needs one."""

    def create(self, location: AnyPath, *, name: str) -> TableRef:
        """A new table of six small files, as many in each of its ``parts``, all ids distinct."""

    def append(self, table: TableRef, partition: str, low: int, high: int) -> bool:
        """A writer's commit that adds a file with the ids ``low`` ≤ id < ``high``; False where a plan kept it away."""

    def update(self, table: TableRef, partition: str) -> bool:
        """A writer's commit that changes a value in every file of the partition; False where a plan kept it away."""

    def delete(self, table: TableRef, partition: str) -> bool:
        """A writer's commit that deletes a row of every file of the partition; False where a plan kept it away."""

    def forget(self, table: TableRef) -> bool:
        """The owner has the table forget all its commits but its newest state, and delete what only these had.

        What the owner has saved stays. False where the format keeps commits for ever: the case says how.
        """

    def rows(self, table: TableRef) -> Sequence[str]:
        """Every row as a reader of the table sees it now, sorted, without what a rewrite may change."""

    def stored(self, table: TableRef) -> Mapping[str, int]:
        """Every data file in storage, whoever wrote it, with its bytes; paths as slices have them."""

    def commits(self, table: TableRef) -> Sequence[tuple[str, int | None]]:
        """Plan and epoch of every commit that names a plan of lakefold's."""

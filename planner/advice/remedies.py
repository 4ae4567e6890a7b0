# SPDX-License-Identifier: Apache-2.0
"""The remedies for a writer that creates too many files. Each remedy changes one setting of the writer."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lake.units import MIB
from planner.writers.model import Operation
from planner.writers.simulation import WriterKind

#: Hudi's default; the remedy restores it for a writer with another value
_SMALL_FILE_LIMIT = 100 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One setting of a writer to change; the other settings stay.

    ``settings`` are the model's own. ``tasks`` is the number of tasks of a bulk insert or of a write to a Hive
    partition, None for as many as before. ``inserts_instead_of_bulk`` replaces bulk inserts by inserts.
    """

    setting: str
    value: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    tasks: int | None = None
    inserts_instead_of_bulk: bool = False

    def effective_operation(self, configured: Operation) -> Operation:
        """Return the operation that replaces ``configured``."""
        return Operation.INSERT if self.inserts_instead_of_bulk and configured is Operation.BULK_INSERT else configured


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePattern:
    """The pattern of a table's writes: average bytes and new files that one commit adds to one partition.

    ``is_bulk`` is True if bulk inserts write most of the small files.
    """

    bytes: float
    files: float
    is_bulk: bool


def candidate_remedies(kind: WriterKind, pattern: WritePattern) -> Iterator[Remedy]:
    """Yield the remedies that may help a writer with this pattern; a simulation has to show whether they do."""
    if kind is WriterKind.HIVE:
        if (tasks := _task_count(pattern, 128 * MIB)) < pattern.files:
            yield Remedy(setting="spark.sql.shuffle.partitions", value=str(tasks), tasks=tasks)
        return
    own = {"hoodie.compact.inline": False} if kind is WriterKind.HUDI_MOR else {}
    if pattern.is_bulk:
        if (tasks := _task_count(pattern, 120 * MIB)) < pattern.files:
            key = "hoodie.bulkinsert.shuffle.parallelism"
            yield Remedy(setting=key, value=str(tasks), settings=own, tasks=tasks)
        yield Remedy(
            setting="hoodie.datasource.write.operation", value="insert", settings=own, inserts_instead_of_bulk=True
        )
        return
    key = "hoodie.parquet.small.file.limit"
    yield Remedy(setting=key, value=str(_SMALL_FILE_LIMIT), settings=own | {key: _SMALL_FILE_LIMIT})
    if kind is WriterKind.HUDI_MOR:
        key = "hoodie.merge.small.file.group.candidates.limit"
        yield Remedy(setting=key, value="10", settings=own | {key: 10})


def _task_count(pattern: WritePattern, target_bytes: int) -> int:
    return max(1, math.ceil(pattern.bytes / target_bytes))

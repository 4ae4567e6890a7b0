# SPDX-License-Identifier: Apache-2.0
"""What can be changed at a writer so that it makes fewer files: one setting each, and what its model is given."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lake.units import MIB
from planner.writers.model import Operation
from planner.writers.simulation import WriterKind

#: a setting that Hudi leaves at its default is told with that, since something has set it otherwise
_SMALL_FILE_LIMIT = 100 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One setting to change at a writer; the others stay as they are.

    ``settings`` are the model's own. ``tasks`` write a bulk insert or a Hive partition, None for as many as before;
    ``fills`` says that what was written as bulk inserts is inserted instead.
    """

    setting: str
    value: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    tasks: int | None = None
    inserts_instead_of_bulk: bool = False

    def effective_operation(self, configured: Operation) -> Operation:
        """What the writer does instead of ``was``."""
        return Operation.INSERT if self.inserts_instead_of_bulk and configured is Operation.BULK_INSERT else configured


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePattern:
    """How a table is written: bytes of one commit to one partition, on average, and the new files that it makes there.

    ``bulk`` says that most of these files are of bulk inserts.
    """

    bytes: float
    files: float
    is_bulk: bool


def candidate_remedies(kind: WriterKind, pattern: WritePattern) -> Iterator[Remedy]:
    """What may help a writer with such a habit; whether it does the model has to say."""
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

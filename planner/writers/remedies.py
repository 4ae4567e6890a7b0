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
    fills: bool = False

    def operation(self, was: Operation) -> Operation:
        """What the writer does instead of ``was``."""
        return Operation.INSERT if self.fills and was is Operation.BULK_INSERT else was


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """How a table is written: bytes of one commit to one partition, on average, and the new files that it makes there.

    ``bulk`` says that most of these files are of bulk inserts.
    """

    bytes: float
    files: float
    bulk: bool


def remedies(kind: WriterKind, habit: Habit) -> Iterator[Remedy]:
    """What may help a writer with such a habit; whether it does the model has to say."""
    if kind is WriterKind.HIVE:
        if (tasks := _tasks(habit, 128 * MIB)) < habit.files:
            yield Remedy(setting="spark.sql.shuffle.partitions", value=str(tasks), tasks=tasks)
        return
    own = {"hoodie.compact.inline": False} if kind is WriterKind.HUDI_MOR else {}
    if habit.bulk:
        if (tasks := _tasks(habit, 120 * MIB)) < habit.files:
            key = "hoodie.bulkinsert.shuffle.parallelism"
            yield Remedy(setting=key, value=str(tasks), settings=own, tasks=tasks)
        yield Remedy(setting="hoodie.datasource.write.operation", value="insert", settings=own, fills=True)
        return
    key = "hoodie.parquet.small.file.limit"
    yield Remedy(setting=key, value=str(_SMALL_FILE_LIMIT), settings=own | {key: _SMALL_FILE_LIMIT})
    if kind is WriterKind.HUDI_MOR:
        key = "hoodie.merge.small.file.group.candidates.limit"
        yield Remedy(setting=key, value="10", settings=own | {key: 10})


def _tasks(habit: Habit, target_bytes: int) -> int:
    return max(1, math.ceil(habit.bytes / target_bytes))

# SPDX-License-Identifier: Apache-2.0
"""Engines rewrite files that a format names. They are independent of tables, and formats are independent of engines.

Engines are passed in from above (``TableFormat.writer``), since they live with the executors. The format determines
the input and output files; each group gets the first engine that can rewrite it, or the one that is set, and the
reason is noted. Data files are read whole: an engine would retain rows that a deletion vector or a log removes or
changes. A format whose slices have such deltas rewrites these slices itself, or has no task made of them.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lake.errors import Conflict, Rejected
from lake.model import TableRef
from lake.plan import AUTO, ClusteringGroup, RewriteOptions, RewriteProgress, SkippedGroup
from lake.storage.locations import resolve_path


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteTask:
    """One group of a plan as an engine sees it: full paths of its inputs and outputs, both in the order of the rows.

    The ``outputs`` do not exist yet. ``bytes`` is the size of the inputs. ``schema`` are the columns that data files of
    the table have, as Spark's JSON; None if the format does not have it. Partition columns are included if the files
    have them as well. If the table's readers match columns by field ids, the schema has these as ``parquet.field.id``
    in a field's metadata: an engine that matches by names compares them with the files' ids and writes them to new
    files.
    """

    group: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    bytes: int
    schema: str | None = None


def build_task(
    table: TableRef, index: int, group: ClusteringGroup, outputs: Sequence[str], *, schema: str | None = None
) -> RewriteTask:
    """Return the task of the ``index``-th group of its plan. Raises Rejected if a slice of it is not one data file."""
    for item in group.slices:
        which = f"{table.name}: slice {item.file_id} of partition {item.partition!r}"
        if item.log_files:
            raise Rejected(f"{which} has deltas ({', '.join(item.log_files)}), which engines do not read")
        if item.path is None:
            raise Rejected(f"{which} has no data file, which is all that engines read")
    return RewriteTask(
        group=index,
        inputs=tuple(resolve_path(table.location, str(item.path)) for item in group.slices),
        outputs=tuple(outputs),
        bytes=group.bytes,
        schema=schema,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOutput:
    """A file that an engine wrote for a group."""

    group: int
    path: str
    bytes: int
    rows: int


class RewriteEngine(Protocol):
    """A way to rewrite data files. All engines write the same rows and types."""

    #: the name in the setting ``engine``
    name: str

    def unsupported_reason(self, task: RewriteTask, options: RewriteOptions) -> str | None:
        """Return why this engine can't rewrite the group, such as schemas that differ; None if it can."""

    def rewrite(
        self,
        tasks: Sequence[RewriteTask],
        options: RewriteOptions,
        report: Callable[[RewriteProgress], None],
        cancelled: threading.Event,
    ) -> Iterator[EngineOutput]:
        """Write every output of ``tasks``. Raises the errors of ``TableWriter.rewrite``. Stops once ``cancelled``.

        A Conflict for an input that can't be read has ``SkippedGroup`` groups as well, with paths as the tasks have
        them. The format replaces these paths by its own names, which the planner uses.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenEngine:
    """The engine of one group, and why it was chosen."""

    engine: RewriteEngine
    reason: str


def choose_engines(
    tasks: Sequence[RewriteTask], engines: Sequence[RewriteEngine], options: RewriteOptions, table: str
) -> dict[int, ChosenEngine]:
    """Return the engine of each group: the one that ``options`` names, or the first of ``engines`` that can rewrite it.

    Raises Rejected if the setting names an unknown engine, or one that can't rewrite a group. Raises Conflict with the
    groups that no engine can rewrite, and with their inputs for quarantine, as ``RewriteEngine.rewrite`` does.
    """
    if options.engine == AUTO:
        return _choose_automatically(tasks, engines, options, table)
    named = next((engine for engine in engines if engine.name == options.engine), None)
    if named is None:
        known = ", ".join([AUTO, *(engine.name for engine in engines)])
        raise Rejected(
            f"{table}: engine = {options.engine} is not available for this table; set engine to one of {known}"
        )
    for task in tasks:
        if (obstacle := named.unsupported_reason(task, options)) is not None:
            raise Rejected(
                f"{table}: engine = {named.name} can't rewrite this plan: {obstacle}; or set engine = {AUTO}"
            )
    return {task.group: ChosenEngine(engine=named, reason="as set") for task in tasks}


def _choose_automatically(
    tasks: Sequence[RewriteTask], engines: Sequence[RewriteEngine], options: RewriteOptions, table: str
) -> dict[int, ChosenEngine]:
    if not engines:
        raise Rejected(f"{table}: there is no engine to rewrite its files")
    chosen, left_out = {}, []
    for task in tasks:
        obstacles: list[str] = []
        for engine in engines:
            obstacle = engine.unsupported_reason(task, options)
            if obstacle is None:
                chosen[task.group] = ChosenEngine(
                    engine=engine, reason="; ".join(obstacles) or "the fastest engine available"
                )
                break
            obstacles.append(f"{engine.name} can't: {obstacle}")
        else:
            reason = f"no engine can rewrite its files ({'; '.join(obstacles)})"
            left_out.append(SkippedGroup(group=task.group, reason=reason, quarantine=task.inputs))
    if left_out:
        raise Conflict(f"{table}: {left_out[0].reason}", tuple(left_out))
    return chosen


def engine_notes(choices: Mapping[int, ChosenEngine]) -> tuple[str, ...]:
    """Return one line for each engine and reason, with the number of groups, the most frequent first."""
    counted = Counter((choice.engine.name, choice.reason) for choice in choices.values())
    return tuple(
        f"engine {name} ({count} {'group' if count == 1 else 'groups'}): {reason}"
        for (name, reason), count in sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    )

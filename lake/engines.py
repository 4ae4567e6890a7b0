# SPDX-License-Identifier: Apache-2.0
"""Engines rewrite files that a format names; they know no table, and a format knows none of them by name.

Engines are handed in from above (``TableFormat.writer``), since they live with the executors. The format says which
files become which; each group gets the first engine that can do it, or the one that is set, and the reason is noted.
Data files are read whole: rows that a deletion vector or a log takes out of them, or changes, an engine would keep as
they are. A format whose slices have such deltas rewrites these itself, or has no task made of them.
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
    """One group of a plan as an engine sees it: full paths of what to read and of what to write, in that order of rows.

    Nothing is at ``outputs`` yet. ``bytes`` is what is read. ``schema`` are the columns that data files of the table
    hold, as Spark's JSON; None where the format does not tell. Columns of its partitions are among them where files
    hold these, too. Where the table's readers go by field ids the schema names them, as ``parquet.field.id`` in a
    field's metadata: an engine that goes by names compares them with those of the files, and gives them to new files.
    """

    group: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    bytes: int
    schema: str | None = None


def build_task(
    table: TableRef, index: int, group: ClusteringGroup, outputs: Sequence[str], *, schema: str | None = None
) -> RewriteTask:
    """The task of a group, the ``number``-th of its plan. Raises Rejected where a slice of it is not one data file."""
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

    #: as the setting ``engine`` names it
    name: str

    def unsupported_reason(self, task: RewriteTask, options: RewriteOptions) -> str | None:
        """Why this engine can't rewrite the group, such as schemas that differ; None where it can."""

    def rewrite(
        self,
        tasks: Sequence[RewriteTask],
        options: RewriteOptions,
        report: Callable[[RewriteProgress], None],
        cancelled: threading.Event,
    ) -> Iterator[EngineOutput]:
        """Write every output of ``tasks``; raises what a ``TableWriter.rewrite`` does. Stops once ``cancelled``.

        A Conflict for an input that can't be read has ``SkippedGroup`` groups too, with paths as the tasks have them: the
        format puts the names of its own in their place, which are what the planner knows.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenEngine:
    """The engine of one group, and why it was taken."""

    engine: RewriteEngine
    reason: str


def choose_engines(
    tasks: Sequence[RewriteTask], engines: Sequence[RewriteEngine], options: RewriteOptions, table: str
) -> dict[int, ChosenEngine]:
    """The engine of each group: the one that ``options`` names, or of ``engines`` the first that can rewrite it.

    Raises Rejected where the setting names none of them, or one that can't; Conflict with the groups left out that no
    engine can rewrite, and with their inputs to be left alone, as ``Engine.rewrite`` does.
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
                    engine=engine, reason="; ".join(obstacles) or "the fastest that there is"
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
    """One line for each engine and reason, with the number of groups, the most frequent first."""
    counted = Counter((choice.engine.name, choice.reason) for choice in choices.values())
    return tuple(
        f"engine {name} ({count} {'group' if count == 1 else 'groups'}): {reason}"
        for (name, reason), count in sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    )

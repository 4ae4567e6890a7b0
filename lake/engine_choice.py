# SPDX-License-Identifier: Apache-2.0
"""The choice of an engine for each group of a plan, and the rewriting of the groups by their engines.

A group gets the configured engine or, with ``auto``, the first engine that can rewrite it. The reason is recorded.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from lake.engines import (
    NO_OMISSIONS,
    NO_ROW_COLUMNS,
    AddsRowColumns,
    ChecksManyTasks,
    OmitsRows,
    RewriteEngine,
    RewriteTask,
    slice_paths_in_conflicts,
)
from lake.errors import Conflict, Rejected, Transient
from lake.model import TableRef
from lake.plan import AUTO, OutputFile, Plan, RewriteOptions, RewriteProgress, SkippedGroup, sum_if_known
from lake.storage.locations import relative_path


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenEngine:
    """The engine of one group, and why it was chosen."""

    engine: RewriteEngine
    reason: str


def choose_engines(
    tasks: Sequence[RewriteTask], engines: Sequence[RewriteEngine], options: RewriteOptions, table: str
) -> dict[int, ChosenEngine]:
    """Return the engine of each group: the one that ``options`` names, or the first of ``engines`` that can rewrite it.

    Raises Rejected if the setting names an unknown engine, or one that can't rewrite a group, or if no engine can sort
    a group by ``sort_columns``. Raises Conflict with the groups that no engine can rewrite, and with their inputs for
    quarantine, as ``RewriteEngine.rewrite`` does.
    """
    if options.engine == AUTO:
        return _choose_automatically(tasks, engines, options, table)
    named = [engine for engine in engines if engine.name == options.engine]
    if not named:
        known = ", ".join(dict.fromkeys([AUTO, *(engine.name for engine in engines)]))
        raise Rejected(
            f"{table}: engine = {options.engine} is not available for this table; set engine to one of {known}"
        )
    chosen = {}
    for task, (engine, obstacles) in zip(tasks, _first_able(tasks, named, options), strict=True):
        if engine is None:
            raise Rejected(
                f"{table}: engine = {options.engine} can't rewrite this plan: {'; '.join(obstacles)}; or set "
                f"engine = {AUTO}"
            )
        chosen[task.group] = ChosenEngine(engine=engine, reason="as set")
    return chosen


def split_by_engine(
    tasks: Sequence[RewriteTask], engines: Sequence[RewriteEngine], options: RewriteOptions
) -> tuple[dict[int, ChosenEngine], dict[int, str]]:
    """Return the engine of each group that one of ``engines`` can rewrite, and why none can rewrite each other group.

    The setting ``engine`` restricts the choice. For formats that can rewrite a group without an engine.
    """
    is_auto = options.engine == AUTO
    allowed = [engine for engine in engines if is_auto or engine.name == options.engine]
    chosen: dict[int, ChosenEngine] = {}
    refused: dict[int, str] = {}
    for task, (engine, obstacles) in zip(tasks, _first_able(tasks, allowed, options), strict=True):
        before = _describe_obstacles(allowed, obstacles)
        if engine is None:
            refused[task.group] = before or f"engine = {options.engine} is not available"
        else:
            chosen[task.group] = ChosenEngine(
                engine=engine, reason=(before or "the fastest engine available") if is_auto else "as set"
            )
    return chosen, refused


def _describe_obstacles(engines: Sequence[RewriteEngine], obstacles: Sequence[str]) -> str:
    return "; ".join(f"{one.name} can't: {why}" for one, why in zip(engines, obstacles, strict=False))


def _first_able(
    tasks: Sequence[RewriteTask], engines: Sequence[RewriteEngine], options: RewriteOptions
) -> list[tuple[RewriteEngine | None, list[str]]]:
    """Return for each group the first engine that can rewrite it, and why each engine before it can't."""
    found: list[tuple[RewriteEngine | None, list[str]]] = [(None, []) for _ in tasks]
    left = list(range(len(tasks)))
    for engine in engines:
        reasons = _unsupported_reasons(engine, [tasks[index] for index in left], options)
        for index, reason in zip(left, reasons, strict=True):
            if reason is None:
                found[index] = engine, found[index][1]
            else:
                found[index][1].append(reason)
        left = [index for index, reason in zip(left, reasons, strict=True) if reason is not None]
    return found


def _unsupported_reasons(
    engine: RewriteEngine, tasks: Sequence[RewriteTask], options: RewriteOptions
) -> Sequence[str | None]:
    lacking = [_lacking_ability(engine, task) for task in tasks]
    asked = [task for task, reason in zip(tasks, lacking, strict=True) if reason is None]
    if isinstance(engine, ChecksManyTasks):
        reasons = iter(engine.unsupported_reasons(asked, options))
    else:
        reasons = (engine.unsupported_reason(task, options) for task in asked)
    return [next(reasons) if reason is None else reason for reason in lacking]


def _lacking_ability(engine: RewriteEngine, task: RewriteTask) -> str | None:
    """Return why an engine never gets such a task, whatever its files are; None if it may get the task.

    An engine that does not know of omissions would return deleted rows to the table. An engine that does not know of
    row columns would lose the ids of rows.
    """
    if task.omissions is not None and not isinstance(engine, OmitsRows):
        return NO_OMISSIONS
    if task.row_columns and not isinstance(engine, AddsRowColumns):
        return NO_ROW_COLUMNS
    return None


def _choose_automatically(
    tasks: Sequence[RewriteTask], engines: Sequence[RewriteEngine], options: RewriteOptions, table: str
) -> dict[int, ChosenEngine]:
    if not engines:
        raise Rejected(f"{table}: there is no engine to rewrite its files")
    chosen, left_out = {}, []
    for task, (engine, obstacles) in zip(tasks, _first_able(tasks, engines, options), strict=True):
        before = _describe_obstacles(engines, obstacles)
        if engine is not None:
            chosen[task.group] = ChosenEngine(engine=engine, reason=before or "the fastest engine available")
        elif options.sort_columns and _first_able([task], engines, replace(options, sort_columns=()))[0][0] is not None:
            # The setting is the obstacle, and not the files.
            raise Rejected(
                f"{table}: no engine can sort group {task.group} by {', '.join(options.sort_columns)} ({before}); "
                "unset sort_columns"
            )
        else:
            reason = f"no engine can rewrite its files ({before})"
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


def rewrite_groups(
    table: TableRef,
    plan: Plan,
    tasks: Sequence[RewriteTask],
    choices: Mapping[int, ChosenEngine],
    report: Callable[[RewriteProgress], None],
    cancelled: threading.Event,
) -> tuple[OutputFile, ...]:
    """Let the chosen engines write the outputs of ``tasks``. Returns the outputs, with paths as the table has them.

    Raises the errors of ``TableWriter.rewrite``.
    """
    by_engine: dict[str, list[RewriteTask]] = defaultdict(list)
    for task in tasks:
        by_engine[choices[task.group].engine.name].append(task)
    outputs, done, total = [], 0, plan.bytes
    cpu: dict[str, float | None] = {}
    for part in by_engine.values():
        engine = choices[part[0].group].engine
        cpu[engine.name] = None

        def report_all(progress: RewriteProgress, before: int = done, name: str = engine.name) -> None:
            cpu[name] = progress.cpu_seconds
            used = sum_if_known(cpu.values())
            report(replace(progress, bytes_done=before + progress.bytes_done, bytes_total=total, cpu_seconds=used))

        with slice_paths_in_conflicts(table, plan, part):
            for file in engine.rewrite(part, plan.options, report_all, cancelled):
                partition, path = plan.groups[file.group].partition, relative_path(table.location, file.path)
                outputs.append(OutputFile(partition=partition, path=path, bytes=file.bytes, rows=file.rows))
        done += sum(task.bytes for task in part)
    if cancelled.is_set():
        raise Transient("the rewrite was cancelled")
    return tuple(outputs)

# SPDX-License-Identifier: Apache-2.0
"""Cleans of a timeline, planned by the writer's cleaner and by lakefold's, and run by whichever process comes next."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from simulation.shapes.timeline.table import Instant, TableLock, TimelineTable
from simulation.table import File

if TYPE_CHECKING:
    from simulation.world import World


def run_pending_cleans(
    world: "World", table: TimelineTable, may_run: Callable[[Instant], bool], *locks: TableLock
) -> None:
    """Go on with those cleans of killed processes that ``may_run``; call it under ``locks``."""
    for instant in [i for i in table.pending() if i.action == "clean"]:
        if may_run(instant):
            run_clean(world, table, instant, table.read_index(), *locks)


def run_clean(
    world: "World", table: TimelineTable, clean: Instant, index: frozenset[str] | None, *locks: TableLock
) -> int:
    """Delete what a clean names and complete it; bytes freed. Call it under ``locks``; Transient where one expired."""
    freed = 0
    for path in clean.victims:
        world.before("delete file", lake=True)
        table.confirm(*locks)
        world.watch.removing(table, path)
        freed += table.remove(path)
    table.complete(clean, index)
    return freed


def is_of_today(table: TimelineTable, clean: Instant) -> bool:
    """Whether what a pending clean names is not needed, and was not the table's again since it was planned.

    What a rollback made live and another commit replaced once more is kept from that commit on.
    """
    victims = set(clean.victims)
    since = [i for i in table.timeline.values() if i.time > clean.time and (i.completed or i.plan_id is not None)]
    again = {path for i in since for base, logs in i.inputs for path in (base, *logs)}
    return victims.isdisjoint(table.live_paths() | table.saved_paths() | again)


def policy_victims(table: TimelineTable, commits: int) -> tuple[tuple[str, ...], str]:
    """What ``KEEP_LATEST_COMMITS`` deletes that keeps ``commits``, and from where on it retains; no saved file."""
    done = sorted(i.time for i in table.timeline.values() if i.completed and i.action != "clean")
    pending = [i.time for i in table.pending() if i.action != "clean"]
    if len(done) <= commits:
        return (), ""
    earliest = min([done[-commits], *pending])
    replaced = {group for i in table.timeline.values() if i.completed and i.time < earliest for _, group in i.replaces}
    victims = [file.path for file in table.files.values() if file.group in replaced]
    newest: dict[str, str] = {}
    bases = [f for f in table.files.values() if not f.log and f.instant < earliest and _is_done(table, f)]
    for file in bases:
        newest[file.group] = max(newest.get(file.group, ""), file.instant)
    victims += [
        file.path
        for file in table.files.values()
        if file.group not in replaced
        and file.group not in table.damaged
        and file.instant < newest.get(file.group, "")
        and _is_done(table, file)
    ]
    saved = table.saved_paths()
    return tuple(path for path in victims if path not in saved), earliest


def _is_done(table: TimelineTable, file: File) -> bool:
    instant = table.find(file.instant)
    return instant is not None and instant.completed

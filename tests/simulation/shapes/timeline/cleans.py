# SPDX-License-Identifier: Apache-2.0
"""Cleans of a timeline, planned by the writer's cleaner and by lakefold's, and run by whoever comes next."""

from typing import TYPE_CHECKING

from simulation.shapes.timeline.table import Instant, TimelineTable

if TYPE_CHECKING:
    from simulation.world import World


def run_pending_cleans(world: "World", table: TimelineTable) -> None:
    """Go on with what a killed process began to clean; call it under the lock."""
    for instant in [i for i in table.pending() if i.action == "clean"]:
        run_clean(world, table, instant)


def run_clean(world: "World", table: TimelineTable, clean: Instant) -> int:
    """Delete what a clean names and complete it; bytes freed. Call it under the lock."""
    index, freed = table.read_index(), 0
    for path in clean.victims:
        world.before("delete file", lake=True)
        world.watch.removing(table, path)
        freed += table.remove(path)
    table.complete(clean, index)
    return freed

# SPDX-License-Identifier: Apache-2.0
"""The tables' own writers, each one process: the common part of all shapes."""

from random import Random
from typing import TYPE_CHECKING, Any

from lake.errors import LakefoldError
from simulation.clock import Process
from simulation.script import Act
from simulation.table import Table

if TYPE_CHECKING:
    from simulation.world import World


class Aborted(Exception):
    """Another process was faster; the writer undoes its work."""


class Writes:
    """The writes of one process to one table, as the table's shape has them."""

    def __init__(self, world: "World", process: Process, table: Any) -> None:
        self.world, self.process, self.table = world, process, table

    def fill(self, random: Random) -> None:
        """Create the initial files of the table: a few small files in each partition."""
        raise NotImplementedError

    def do(self, what: str, random: Random) -> None:
        """Perform one act of a script. Raises Aborted, or the errors of a lock."""
        raise NotImplementedError

    def restore(self, random: Random) -> None:
        """Restore an earlier state of the table, if that is possible."""
        raise NotImplementedError

    def roll_back(self, random: Random) -> None:
        """Roll back a commit of lakefold, if the table supports it."""

    def switch_index(self) -> None:
        """Delete or build the table's index of files, if it can have one."""

    def share(self, random: Random) -> None:
        """Let another table share a directory of this one, if tables have directories."""

    def new_rows(self, random: Random) -> dict[int, int]:
        """Return a few rows with new keys."""
        return {self.world.new_key(): random.randrange(1000) for _ in range(random.randrange(3, 9))}


def write(world: "World", process: Process, acts: list[Act]) -> None:
    """Perform ``acts`` in order as ``process``, none before its time, and remove them from the list."""
    while acts:
        act = acts[0]
        world.scheduler.sleep(max(0.0, act.at - world.scheduler.now))
        del acts[0]
        table = world.known_as(act.table)
        if table.name in world.without_writers:
            continue
        try:
            world.writes(process, table).do(act.what, Random(act.number))
        except (Aborted, LakefoldError) as error:
            world.tell(f"{act.what}: {error}")


def damage(table: Table, what: str, random: Random) -> str | None:
    """Lose or cut a live file, and remove its rows from the ledger. Returns its group; None if there is no file."""
    if table.owed:
        return None  # the live files will soon be replaced
    live = table.live()
    whole = [group for group in sorted(live) if live[group].base.bytes > 0 or live[group].base.written == 0]
    groups = [group for group in whole if group not in table.damaged]
    if not groups:
        return None
    group = random.choice(groups)
    file = random.choice((live[group].base, *live[group].logs))
    table.unreadable[group] = tuple(live[group].rows())
    for key in table.unreadable[group]:
        table.book(key, None)
    if what == "lose a file":
        table.remove(file.path)
    else:
        table.cut(file)
    table.damaged[group] = table.scheduler.now
    table.touch()
    return group

# SPDX-License-Identifier: Apache-2.0
"""The tables' own writers, each one process, and what they have in common whatever a table's shape is."""

from random import Random
from typing import TYPE_CHECKING, Any

from lake.errors import LakefoldError
from simulation.clock import Process
from simulation.script import Act
from simulation.table import Table

if TYPE_CHECKING:
    from simulation.world import World


class Aborted(Exception):
    """Somebody was faster; the writer takes its work back."""


class Writes:
    """What one process does to one table, in the manner of the table's shape."""

    def __init__(self, world: "World", process: Process, table: Any) -> None:
        self.world, self.process, self.table = world, process, table

    def fill(self, random: Random) -> None:
        """What the table holds at first: a few small files in each partition."""
        raise NotImplementedError

    def do(self, what: str, random: Random) -> None:
        """One act of a script. Raises Aborted, or what a lock does."""
        raise NotImplementedError

    def restore(self, random: Random) -> None:
        """Go back to what the table was earlier, where that can be done."""
        raise NotImplementedError

    def roll_back(self, random: Random) -> None:
        """Take back a commit of lakefold's, where a table knows how to."""

    def switch_index(self) -> None:
        """Delete the table's index of files or have it built, where it can have one."""

    def share(self, random: Random) -> None:
        """Let another table have a directory of this one, where tables have directories."""

    def new_rows(self, random: Random) -> dict[int, int]:
        """A few rows with new keys."""
        return {self.world.new_key(): random.randrange(1000) for _ in range(random.randrange(3, 9))}


def write(world: "World", process: Process, acts: list[Act]) -> None:
    """Do ``acts`` in their order as ``process``, each not before its time, taking them off the list."""
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
    """Lose or cut a file that is live; its group, None where there is nothing to damage. Its rows leave the ledger."""
    if table.owed:
        return None  # what is live now is not the table's for long
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

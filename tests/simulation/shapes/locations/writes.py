# SPDX-License-Identifier: Apache-2.0
"""Hive's writers: they append to a partition's present directory, or overwrite it.

They read the location at the end of their work, take no lock and compare nothing, not even with lakefold's plans.
"""

from random import Random

from simulation.script import PARTITIONS
from simulation.shapes.locations.table import LocationsTable
from simulation.table import File
from simulation.writers import Aborted, Writes


class LocationsWrites(Writes):
    """One process that writes to one such table."""

    table: LocationsTable

    def fill(self, random: Random) -> None:
        """See ``Writes``."""
        for partition in PARTITIONS:
            self.table.locations[partition] = partition
            for number in range(random.randrange(1, 4)):
                rows = self.new_rows(random)
                self.table.write(f"{partition}/first-{number}", partition, "first", rows)
                self.table.enter(partition, rows)
        self.table.touch()

    def do(self, what: str, random: Random) -> None:
        """See ``Writes``; there are no savepoints and no cleaning."""
        if what not in ("savepoint", "tidy"):
            getattr(self, f"_{what.replace(' ', '_')}")(random.choice(PARTITIONS), random)

    def _insert(self, partition: str, random: Random) -> None:
        rows = self.new_rows(random)
        self.world.before("write")
        self.world.before("write commit")
        name = self.table.new_name("w")
        self.table.write(f"{self.table.locations[partition]}/{name}", partition, name, rows)
        self.table.enter(partition, rows)
        self.table.touch()
        self.world.after("write commit")

    def _upsert(self, partition: str, random: Random) -> None:
        rows = self._read(partition)
        keys = random.sample(sorted(rows), min(len(rows), 3))
        self._put(partition, rows | {key: random.randrange(1000) for key in keys}, random)

    def _delete(self, partition: str, random: Random) -> None:
        rows = self._read(partition)
        gone = random.sample(sorted(rows), min(len(rows), 3))
        self._put(partition, {key: value for key, value in rows.items() if key not in gone}, random)

    def _cluster(self, partition: str, random: Random) -> None:
        """``ALTER TABLE … CONCATENATE``, which skips files that changed meanwhile."""
        seen = self.table.look((partition,))
        self._put(partition, self._read(partition), random, only_if=lambda: self.table.look((partition,)) == seen)

    def _overwrite(self, partition: str, random: Random) -> None:
        self._put(partition, self.new_rows(random) if random.random() < 0.7 else {}, random)

    def _read(self, partition: str) -> dict[int, int]:
        files = self.table.listing(partition).values()
        if any(file.group in self.table.damaged for file in files) or self.table.unfinished(partition):
            raise Aborted("a file can't be read")
        return {key: value for file in files for key, value in file.rows.items() if value is not None}

    def _put(self, partition: str, rows: dict[int, int], random: Random, only_if=lambda: True) -> None:  # type: ignore[no-untyped-def]
        """Replace all present files of a partition by ``rows``, in its directory or in another one."""
        self.world.before("write")
        self.world.before("write commit")
        if not only_if():
            raise Aborted("the partition was changed meanwhile")
        if partition in self.table.owed:
            raise Aborted("the partition is not where its writers take it to be")
        table, old = self.table, list(self.table.listing(partition).values())
        name = table.new_name("w")
        if random.random() < 0.5:
            table.locations[partition] = f"{name}/{partition}"
            self._write_all(partition, name, rows)
            self.world.after("write commit")
            self._drop(old)
        else:
            for file in old:
                table.remove(file.path)
            self._write_all(partition, name, rows)
            self.world.after("write commit")

    def _write_all(self, partition: str, name: str, rows: dict[int, int]) -> None:
        """Write one file. In the same directory its path was used before: Hive counts from ``000000_0`` each time."""
        table = self.table
        if rows:
            path = f"{table.locations[partition]}/000000_0"
            table.write(path, partition, name, rows)
        table.enter(partition, rows, anew=True)
        table.touch()
        self.world.tell(f"{table.name}: {partition} is {table.locations[partition]} with {len(rows)} rows now")

    def _drop(self, files: list[File]) -> None:
        """Remove a partition's previous files, unless the partition was put back to them."""
        for file in files:
            self.world.before("write clean")
            if file.path not in self.table.live_paths():
                self.table.remove(file.path)

    def _load(self, partition: str, random: Random) -> None:
        """``LOAD DATA`` or ``hdfs put``: a file has its name before it is complete."""
        table, rows, began = self.table, self.new_rows(random), self.world.scheduler.now
        directory, name = table.locations[partition], table.new_name("w")
        file = table.write(f"{directory}/{name}", partition, name, {})
        file.written = len(rows)
        table.touch()
        self.world.before("write")
        self.world.scheduler.sleep(random.choice((1.0, 10.0, 30.0)) * random.random())
        if file.path not in table.files:
            raise Aborted("another writer was faster")
        file.rows, file.bytes, file.at = dict(rows), len(rows), self.world.scheduler.now
        table.forget_sum(file)
        moves = [one for one in table.earlier if (one.partition, one.location) == (partition, directory)]
        # Changes between a plan's last check and its call are lost. A writer's own move is not.
        is_there = directory in (table.locations[partition], partition in table.owed and table.own_location(partition))
        is_lost = any(file.path in one.paths for one in moves)
        if (is_there and not is_lost) or (moves and moves[-1].looked_at >= began):
            table.enter(partition, rows)
        table.touch()

    def _point_back(self, partition: str, random: Random) -> None:
        """Flink's sink: writes to the directory that it knows, and sets the partition's location to it."""
        table = self.table
        earlier = [one.location for one in table.earlier if one.partition == partition]
        own = table.own_location(partition)
        if not earlier or own is None or table.locations[partition] != own or partition in table.owed or table.damaged:
            raise Aborted("the partition is where this writer takes it to be")
        if earlier[-1] in table.locations.values():
            raise Aborted("another partition is there")
        rows = self.new_rows(random)
        self.world.before("write")
        if table.own_location(partition) != own or table.locations[partition] != own:
            raise Aborted("the partition was moved meanwhile")
        name = table.new_name("w")
        table.write(f"{earlier[-1]}/{name}", partition, name, rows)
        table.enter(partition, rows)
        table.locations[partition], table.owed[partition] = earlier[-1], self.world.scheduler.now
        self.world.tell(f"{table.name}: {partition} is pointed back to {earlier[-1]}")
        table.touch()

    def restore(self, random: Random) -> None:
        """Move a partition back to its location before a plan, if all files there still exist.

        The owner also removes the plan's token; otherwise the move would be taken for a writer's mistake.
        """
        table = self.table
        whole = [
            one for one in table.earlier if one.paths and one.paths == table.directories.get(one.location, {}).keys()
        ]
        if not whole or table.damaged:
            return
        chosen = random.choice(whole)
        partition, location = chosen.partition, chosen.location
        if location in table.locations.values() or partition in table.owed:
            return
        table.earlier.remove(chosen)
        old = list(table.listing(partition).values())
        table.locations[partition] = location
        rows = {key: value for file in table.listing(partition).values() for key, value in file.rows.items()}
        self.world.tell(f"{table.name}: {partition} is moved back to {location}")
        self.world.watch.undone(table, (), [file.group for file in table.listing(partition).values()])
        table.enter(partition, {key: value for key, value in rows.items() if value is not None}, anew=True)
        for file in old:
            table.remove(file.path)
        _, commit = table.parameters.pop(partition, (None, None))
        if commit is not None and commit.plan_id not in {one.plan_id for _, one in table.parameters.values()}:
            self.world.watch.forgotten(table, [commit.plan_id])
        table.touch()

    def share(self, random: Random) -> None:
        """Zero-copy publishing: a partition of another table gets the directory of one of this table."""
        location = self.table.locations[random.choice(PARTITIONS)]
        self.table.shared[location] = frozenset(self.table.directories.get(location, {}))

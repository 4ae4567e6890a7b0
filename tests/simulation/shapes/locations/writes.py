# SPDX-License-Identifier: Apache-2.0
"""How Hive's writers write: into the directory that is a partition's now, or over all of it.

They look the location up at the end of their work, keep nobody away and compare nothing, lakefold's plans included.
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
        """See ``Writes``; they have no savepoints, and nothing to tidy."""
        if what not in ("savepoint", "tidy"):
            getattr(self, f"_{what}")(random.choice(PARTITIONS), random)

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
        """``ALTER TABLE … CONCATENATE``, which leaves alone what changed meanwhile."""
        seen = self.table.look((partition,))
        self._put(partition, self._read(partition), random, only_if=lambda: self.table.look((partition,)) == seen)

    def _overwrite(self, partition: str, random: Random) -> None:
        self._put(partition, self.new_rows(random) if random.random() < 0.7 else {}, random)

    def _read(self, partition: str) -> dict[int, int]:
        files = self.table.listing(partition).values()
        if any(file.group in self.table.damaged for file in files):
            raise Aborted("a file can't be read")
        return {key: value for file in files for key, value in file.rows.items() if value is not None}

    def _put(self, partition: str, rows: dict[int, int], random: Random, only_if=lambda: True) -> None:  # type: ignore[no-untyped-def]
        """Put ``rows`` in the place of all that is in a partition by then, in its directory or in another one."""
        self.world.before("write")
        self.world.before("write commit")
        if not only_if():
            raise Aborted("the partition was changed meanwhile")
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
        """One file, whose path was used before where the directory was: Hive counts from ``000000_0`` each time."""
        table = self.table
        if rows:
            path = f"{table.locations[partition]}/000000_0"
            table.write(path, partition, name, rows)
        table.enter(partition, rows, anew=True)
        table.touch()
        self.world.tell(f"{table.name}: {partition} is {table.locations[partition]} with {len(rows)} rows now")

    def _drop(self, files: list[File]) -> None:
        """Remove what a partition was before, unless somebody has put it back."""
        for file in files:
            self.world.before("write clean")
            if file.path not in self.table.live_paths():
                self.table.remove(file.path)

    def restore(self, random: Random) -> None:
        """Move a partition back to where it was before a plan of lakefold's, while all of that is there."""
        table = self.table
        whole = [one for one in table.earlier if one[2] and one[2] == table.directories.get(one[1], {}).keys()]
        if not whole or table.damaged:
            return
        place = random.choice(whole)
        partition, location, _ = place
        if location in table.locations.values():
            return
        table.earlier.remove(place)
        old = list(table.listing(partition).values())
        table.locations[partition] = location
        rows = {key: value for file in table.listing(partition).values() for key, value in file.rows.items()}
        self.world.tell(f"{table.name}: {partition} is moved back to {location}")
        self.world.watch.undone(table, (), [file.group for file in table.listing(partition).values()])
        table.enter(partition, {key: value for key, value in rows.items() if value is not None}, anew=True)
        for file in old:
            table.remove(file.path)
        table.touch()

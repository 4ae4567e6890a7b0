# SPDX-License-Identifier: Apache-2.0
"""A table in memory whose partitions are what lies in the directories that a catalog names for them.

Whoever calls the catalog changes locations whatever they were before. A partition's parameters name the plan that
moved it last. Where a partition was before is noted beside its files, whatever the table is called since.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from lake.plan import Commit, StagedWork, SupersededVersion
from simulation.shapes.staged import StagedTable
from simulation.table import File, Rows, Slice

Evidence = Mapping[str, tuple[str, Mapping[str, tuple[int, float]]]]
"""For each partition its location and the files in it, each with size and modification time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """A location that a commit moved a partition away from, what was there at its last look, and the table's name."""

    partition: str
    location: str
    paths: frozenset[str]
    looked_at: float
    table: str


@dataclass(slots=True, eq=False)
class LocationsTable(StagedTable):
    """One such table."""

    shape = "locations"

    #: partition → its location, and its parameters: token and commit of the plan that moved it last
    locations: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, tuple[str, Commit]] = field(default_factory=dict)
    directories: dict[str, dict[str, File]] = field(default_factory=dict)
    earlier: list["Earlier"] = field(default_factory=list)
    #: directories that partitions of another table have, too, with what they read there
    shared: dict[str, frozenset[str]] = field(default_factory=dict)
    #: key → the partition that it was written to
    partition_of: dict[int, str] = field(default_factory=dict)

    def view(self) -> dict[str, Slice]:
        """See ``Table``."""
        return {
            file.group: self.alone(file)
            for location in self.locations.values()
            for file in self.directories.get(location, {}).values()
        }

    def put(self, file: File) -> File:
        """See ``Table``."""
        self.directories.setdefault(_directory(file.path), {})[file.path] = file
        self._sums.pop((file.path, ()), None)  # paths are used again
        return StagedTable.put(self, file)

    def remove(self, path: str) -> int:
        """See ``Table``."""
        self.directories.get(_directory(path), {}).pop(path, None)
        return StagedTable.remove(self, path)

    def create(self, path: str, rows: Rows) -> None:
        """See ``StagedTable``."""
        _, token, partition, _ = path.split("/")
        self.write(path, partition, token, rows)

    def under(self, staged: StagedWork) -> list[str]:
        """See ``StagedTable``: a whole directory."""
        return [path for path in self.files if path.startswith(staged.paths)]

    def holds_damage(self, group: str) -> bool:
        """See ``Table``. No commit says what there should be: what is cut is noticed by whoever reads it."""
        return group not in self.live()

    def is_undone(self, version: SupersededVersion) -> bool:
        """See ``Table``, as far as can be told: nothing tells what a partition was in between."""
        return version.path in self.live_paths() and version.partition not in self.owed

    def own_location(self, partition: str) -> str | None:
        """Where the last plan moved a partition to, as its parameters say."""
        found = self.parameters.get(partition)
        return f"new/{found[0]}/{partition}" if found is not None else None

    def unfinished(self, partition: str) -> list[File]:
        """Files that are still being written, under the names that readers see."""
        return [file for file in self.listing(partition).values() if file.bytes == 0 < file.written]

    def end_sharing(self) -> None:
        """See ``Table``."""
        self.shared.clear()

    def of_other_tables(self) -> set[str]:
        """The files that other tables read."""
        return {path for paths in self.shared.values() for path in paths}

    # What changes it.

    def look(self, partitions: Collection[str]) -> Evidence:
        """What the catalog and the directories say of partitions now."""
        return {
            name: (self.locations[name], {path: (f.bytes, f.at) for path, f in self.listing(name).items()})
            for name in partitions
        }

    def listing(self, partition: str) -> dict[str, File]:
        """The files of a partition."""
        return self.directories.get(self.locations[partition], {})

    def booked(self, partitions: Collection[str]) -> dict[int, int]:
        """What the ledger says of partitions."""
        return {key: value for key, value in self.ledger.items() if self.partition_of[key] in partitions}

    def enter(self, partition: str, rows: Mapping[int, int], *, anew: bool = False) -> None:
        """Take down what a writer's commit makes of a partition; ``anew`` replaces what it had."""
        for key in self.booked((partition,)) if anew else ():
            self.book(key, None)
        for key, value in rows.items():
            self.partition_of[key] = partition
            self.book(key, value)

    def link(self, file: File, path: str, token: str) -> None:
        """A second name for a file."""
        one = File(path, file.partition, file.group, token, file.rows, False, file.at, file.bytes, file.written)
        self.put(one)

    def cut(self, file: File) -> None:
        """See ``Table``: under all of its names."""
        for one in [one for one in self.files.values() if one.group == file.group]:
            StagedTable.cut(self, one)

    def put_back(self, partition: str, location: str) -> None:
        """Point a partition at ``location`` again, with the files that came into its directory of today."""
        known = {path for one in self.earlier if one.partition == partition for path in one.paths}
        for path, file in list(self.listing(partition).items()):
            if path not in known:
                name = path.rpartition("/")[2]
                self.link(file, f"{location}/back-{name}", file.instant)
                self.remove(path)  # or it would come along again
        self.locations[partition] = location
        self.owed.pop(partition, None)
        self.touch()

    def forget_sum(self, file: File) -> None:
        """The content of a file has changed."""
        self._sums.pop((file.path, ()), None)

    def rename(self, name: str) -> None:
        """``ALTER TABLE … RENAME``: all of the table stays, and it is another one for all who go by names."""
        self.setup, self._ref = replace(self.setup, name=name), None
        self.tokens = {token: one for token, one in self.tokens.items() if one.completed}

    def move(self, token: str, commit: Commit, looked: Mapping[int, int], evidence: Evidence, looked_at: float) -> None:
        """The catalog's call of a plan's commit. ``looked`` is what the ledger said at the plan's last look.

        What writers did since then is lost: nothing compares here, so nobody can promise more. A file that was lost
        since then is back, if it had been rewritten or had its second name by then.
        """
        for partition in evidence:
            before = self.locations[partition]
            paths = frozenset(self.listing(partition))
            self.earlier.append(
                Earlier(partition=partition, location=before, paths=paths, looked_at=looked_at, table=self.name)
            )
            self.owed.pop(partition, None)
            self.locations[partition] = f"new/{token}/{partition}"
            self.parameters[partition] = token, commit
        if token in self.tokens:
            self.tokens[token].completed = True
        self._live = None
        for key in self.booked(evidence).keys() - looked.keys():
            self.book(key, None)
        for key, value in looked.items():
            self.book(key, value)
        moved = [piece.base for piece in self.live().values() if piece.base.partition in evidence]
        for file in [file for file in moved if file.group in self.damaged]:
            if file.bytes == file.written:
                del self.damaged[file.group]
                continue
            for key in self.unreadable[file.group]:
                self.book(key, None)
        self.touch()


def _directory(path: str) -> str:
    return path.rpartition("/")[0]

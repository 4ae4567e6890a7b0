# SPDX-License-Identifier: Apache-2.0
"""A table in memory whose partitions are the contents of the directories that a catalog names.

A call of the catalog changes locations without comparing them. A partition's parameters name the plan that moved it
last. Previous locations are recorded beside the partition's files, independent of the table's name.
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
    """A previous location of a partition, its files at the commit's last check, and the table's name."""

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
    #: directories shared with partitions of another table, with the rows that these read there
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
        """See ``Table``. No commit records the expected files, so only a reader notices a cut file."""
        return group not in self.live()

    def is_undone(self, version: SupersededVersion) -> bool:
        """See ``Table``; states of a partition between two commits are unknown."""
        return version.path in self.live_paths() and version.partition not in self.owed

    def own_location(self, partition: str) -> str | None:
        """Return the location to which the last plan moved a partition, by its parameters."""
        found = self.parameters.get(partition)
        return f"new/{found[0]}/{partition}" if found is not None else None

    def unfinished(self, partition: str) -> list[File]:
        """Return files that are still being written under their visible names."""
        return [file for file in self.listing(partition).values() if file.bytes == 0 < file.written]

    def end_sharing(self) -> None:
        """See ``Table``."""
        self.shared.clear()

    def of_other_tables(self) -> set[str]:
        """Return the files that other tables read."""
        return {path for paths in self.shared.values() for path in paths}

    # Changes.

    def look(self, partitions: Collection[str]) -> Evidence:
        """Return the present state of partitions in the catalog and in their directories."""
        return {
            name: (self.locations[name], {path: (f.bytes, f.at) for path, f in self.listing(name).items()})
            for name in partitions
        }

    def listing(self, partition: str) -> dict[str, File]:
        """Return the files of a partition."""
        return self.directories.get(self.locations[partition], {})

    def booked(self, partitions: Collection[str]) -> dict[int, int]:
        """Return the ledger's rows of partitions."""
        return {key: value for key, value in self.ledger.items() if self.partition_of[key] in partitions}

    def enter(self, partition: str, rows: Mapping[int, int], *, anew: bool = False) -> None:
        """Record a writer's commit to a partition in the ledger; with ``anew`` it replaces all rows."""
        for key in self.booked((partition,)) if anew else ():
            self.book(key, None)
        for key, value in rows.items():
            self.partition_of[key] = partition
            self.book(key, value)

    def link(self, file: File, path: str, token: str) -> None:
        """Create a hard link to a file."""
        one = File(path, file.partition, file.group, token, file.rows, False, file.at, file.bytes, file.written)
        self.put(one)

    def cut(self, file: File) -> None:
        """See ``Table``; the file changes under all its names."""
        for one in [one for one in self.files.values() if one.group == file.group]:
            StagedTable.cut(self, one)

    def put_back(self, partition: str, location: str) -> None:
        """Move a partition to ``location`` again, with the files that were added to its present directory."""
        known = {path for one in self.earlier if one.partition == partition for path in one.paths}
        for path, file in list(self.listing(partition).items()):
            if path not in known:
                name = path.rpartition("/")[2]
                self.link(file, f"{location}/back-{name}", file.instant)
                self.remove(path)  # otherwise it would be linked again
        self.locations[partition] = location
        self.owed.pop(partition, None)
        self.touch()

    def forget_sum(self, file: File) -> None:
        """Note that the content of a file has changed."""
        self._sums.pop((file.path, ()), None)

    def rename(self, name: str) -> None:
        """``ALTER TABLE … RENAME``: everything stays, but programs that use names see another table."""
        self.setup, self._ref = replace(self.setup, name=name), None
        self.tokens = {token: one for token, one in self.tokens.items() if one.completed}

    def move(self, token: str, commit: Commit, looked: Mapping[int, int], evidence: Evidence, looked_at: float) -> None:
        """The call of the catalog by a plan's commit. ``looked`` are the ledger's rows at the plan's last check.

        Writers' changes since then are lost, since the catalog compares nothing. A file that was lost since then is
        restored if it was already rewritten or linked.
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

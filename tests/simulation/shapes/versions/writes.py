# SPDX-License-Identifier: Apache-2.0
"""Writers of versions: they create the next version, unless their inputs are missing in the newest one.

Their cleaner expires the oldest versions by a separate version, then deletes the files that only these listed.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from random import Random

from simulation.script import PARTITIONS
from simulation.shapes.versions.table import Version, VersionsTable, create_version, without
from simulation.table import File, Slice
from simulation.writers import Aborted, Writes


class VersionsWrites(Writes):
    """One process that writes to one such table."""

    table: VersionsTable

    def fill(self, random: Random) -> None:
        """See ``Writes``."""
        table = self.table
        for number, partition in enumerate(PARTITIONS):
            files = [self._new(partition, self.new_rows(random)) for _ in range(random.randrange(1, 4))]
            rows = {key: value for file in files for key, value in file.rows.items()}
            paths = without(table.newest.files, (), [file.path for file in files])
            table.append(Version(number=number + 1, files=paths, changed=rows), 0.0)

    def _new(self, partition: str, rows: Mapping[int, int]) -> File:
        name = self.table.new_name("w")
        return self.table.write(f"{partition}/{name}", partition, name, rows)

    def do(self, what: str, random: Random) -> None:
        """See ``Writes``."""
        getattr(self, f"_{what}")(random)

    def _free(self) -> dict[str, Slice]:
        return {group: piece for group, piece in self.table.live().items() if group not in self.table.damaged}

    # The kinds of writes.

    def _insert(self, random: Random) -> None:
        rows = self.new_rows(random)
        self.world.before("write")
        self._commit([self._new(random.choice(PARTITIONS), rows)], {}, {**rows})

    def _upsert(self, random: Random) -> None:
        self._change(random, lambda: random.randrange(1000))

    def _delete(self, random: Random) -> None:
        self._change(random, lambda: None)

    def _change(self, random: Random, value) -> None:  # type: ignore[no-untyped-def]
        free, files, changed = self._free(), [], {}
        groups = random.sample(sorted(free), min(len(free), random.randrange(1, 3)))
        for group in groups:
            self.world.before("write")
            rows = free[group].rows()
            if not rows:
                continue
            mine = {key: value() for key in random.sample(sorted(rows), random.randrange(1, min(len(rows), 3) + 1))}
            changed |= mine
            whole = {key: new for key, new in (rows | mine).items() if new is not None}
            files.append(self._new(free[group].base.partition, whole))
        if not files:
            raise Aborted("nothing to change")
        self._commit(files, {group: free[group] for group in groups}, changed)

    def _cluster(self, random: Random) -> None:
        partition = random.choice(PARTITIONS)
        mine = {group: piece for group, piece in self._free().items() if piece.base.partition == partition}
        if len(mine) < 2:
            raise Aborted("nothing to cluster")
        self.world.before("write")
        rows = {key: value for piece in mine.values() for key, value in piece.rows().items()}
        self._commit([self._new(partition, rows)], mine, {})

    def _overwrite(self, random: Random) -> None:
        """``REPLACE WHERE`` a partition: it replaces all files it has read, and fails if files were added."""
        partition = random.choice(PARTITIONS)
        seen = {group: piece for group, piece in self.table.live().items() if piece.base.partition == partition}
        if not seen or not seen.keys() <= self._free().keys():
            raise Aborted("nothing to replace, or it can't be read")
        changed: dict[int, int | None] = {key: None for piece in seen.values() for key in piece.rows()}
        files: list[File] = []
        self.world.before("write")
        if random.random() < 0.7:
            rows = self.new_rows(random)
            files.append(self._new(partition, rows))
            changed |= rows
        self._commit(files, seen, changed)

    def _savepoint(self, random: Random) -> None:
        """A tag, which keeps the live files until it is released."""
        if not self.table.damaged:
            self.table.saved[str(self.table.newest.number)] = frozenset(self.table.live_paths())

    def _commit(self, files: Collection[File], read: Mapping[str, Slice], changed: Mapping[int, int | None]) -> None:
        gone, new = [piece.base.path for piece in read.values()], [file.path for file in files]

        def change(now: Version) -> Version:
            for group, piece in read.items():
                if piece.base.path not in now.files or group in self.table.damaged:
                    raise Aborted(f"{group} was changed meanwhile")
            return Version(
                number=0, files=without(now.files, gone, new), changed=changed, first=now.first, told=now.told
            )

        try:
            version = create_version(self.world, self.table, change, site="write commit")
        except Aborted:
            for path in new:
                self.table.remove(path)
            raise
        self.world.tell(f"version {version.number} of {self.table.name}: {', '.join(new)}")

    # Cleaning.

    def _tidy(self, random: Random) -> None:
        """Expire old versions, and delete the files that only these listed."""
        table, keep = self.table, self.world.setup.clean_commits

        def expire(now: Version) -> Version:
            first = max(now.first, now.number + 1 - keep)
            told = first if keep == 1 else 0
            return replace(now, commit=None, token=None, withdrawn=frozenset(), changed={}, first=first, told=told)

        first = create_version(self.world, table, expire, site="write commit").first
        kept = {path for version in table.log[first:] for path in version.files} | table.saved_paths()
        old = {path for version in table.log[:first] for path in version.files}
        for path in sorted(old - kept):
            self.world.before("write clean")
            if path in table.files:
                self.world.watch.removing(table, path)
                table.remove(path)

    def restore(self, random: Random) -> None:
        """Create a version with the files of an earlier one, all of which must exist."""
        table = self.table
        there = [one for one in table.log[table.newest.first : -1] if one.files <= table.files.keys()]
        if not there or table.damaged:
            return
        to = random.choice(there[-4:])
        self.world.tell(f"{table.name} is restored to version {to.number}")
        rows, now = table.booked_at(to.number), table.ledger
        changed: dict[int, int | None] = dict.fromkeys(now.keys() - rows.keys())
        changed |= {key: value for key, value in rows.items() if now.get(key) != value}
        self.world.watch.undone(table, (), [table.files[path].group for path in to.files])
        newest = table.newest
        restored = Version(
            number=newest.number + 1, files=to.files, changed=changed, first=newest.first, told=newest.told
        )
        table.append(restored, self.world.scheduler.now)

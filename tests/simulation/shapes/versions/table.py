# SPDX-License-Identifier: Apache-2.0
"""A table in memory that is a log of numbered versions, each of which lists its files.

The process that creates a version first has made that commit. A version has the plan that made it and its token, or the
tokens that it withdraws. The model keeps the whole log. Readers of the table see the versions from ``told`` on; if the
owner keeps only one version, all earlier ones have expired.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lake.errors import Conflict, Transient
from lake.plan import Commit, StagedWork, SupersededVersion
from simulation.shapes.staged import StagedTable
from simulation.table import Rows, Slice

if TYPE_CHECKING:
    from simulation.world import World

_TRIES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version. ``changed`` has the rows that it changed, ``first`` is the oldest version whose files are kept.

    ``told`` is the oldest version that has not expired.
    """

    number: int
    files: frozenset[str]
    changed: Mapping[int, int | None] = field(default_factory=dict)
    first: int = 0
    told: int = 0
    commit: Commit | None = None
    token: str | None = None
    withdrawn: frozenset[str] = frozenset()


@dataclass(slots=True, eq=False)
class VersionsTable(StagedTable):
    """One such table."""

    shape = "versions"

    log: list[Version] = field(default_factory=lambda: [Version(number=0, files=frozenset())])

    @property
    def newest(self) -> Version:
        """The last version."""
        return self.log[-1]

    @property
    def told(self) -> list[Version]:
        """Return the versions that have not expired, the newest included."""
        return self.log[self.newest.told :]

    def since(self, number: int) -> list[Version]:
        """Return all versions after this one. Raises Conflict if one of them has expired."""
        if self.newest.told > number + 1:
            raise Conflict(f"version {number + 1} is forgotten, which may have been a withdrawal")
        return self.log[number + 1 :]

    def needed(self) -> set[str]:
        """See ``StagedTable``: the files of all versions that have not expired."""
        return StagedTable.needed(self) | {path for version in self.told for path in version.files}

    def view(self) -> dict[str, Slice]:
        """See ``Table``: the files of the newest version that are in storage."""
        files = self.files
        return {files[path].group: self.alone(files[path]) for path in sorted(self.newest.files) if path in files}

    def create(self, path: str, rows: Rows) -> None:
        """See ``StagedTable``."""
        partition, _, name = path.partition("/")
        self.write(path, partition, name.partition("-")[0], rows)

    def under(self, staged: StagedWork) -> list[str]:
        """See ``StagedTable``: files by their paths."""
        return [path for path in staged.paths if path in self.files]

    def holds_damage(self, group: str) -> bool:
        """See ``Table``."""
        piece = self.live().get(group)
        return piece is None or piece.base.bytes != piece.base.written

    def is_undone(self, version: SupersededVersion) -> bool:
        """See ``Table``: the log shows it, even if another database's plan replaced the file again."""
        return any(version.path in later.files for later in self.log[int(version.instant) + 1 :])

    # Changes.

    def append(self, version: Version, looked_at: float) -> None:
        """Make a version the newest. ``looked_at`` is the time at which its author read the previous one."""
        rewritten = self.newest.files - version.files
        spoilt = [
            group for group, at in self.damaged.items() if at > looked_at and group.partition("@")[0] in rewritten
        ]
        self.log.append(version)
        if version.token is not None and version.token in self.tokens:
            self.tokens[version.token].completed = True
        for key, value in version.changed.items():
            self.book(key, value)
        if spoilt:  # damage after the rows were read is repaired by the commit
            for path in version.files:
                for key, value in self.files[path].rows.items() if path in self.files else ():
                    if self.files[path].group not in self.damaged:
                        self.book(key, value)
        self.touch()

    def booked_at(self, number: int) -> dict[int, int]:
        """Return the rows of a version, by the writers' changes up to it."""
        rows: dict[int, int] = {}
        for version in self.log[: number + 1]:
            for key, value in version.changed.items():
                rows.pop(key, None)
                if value is not None:
                    rows[key] = value
        return rows

    def is_taken(self, number: int) -> bool:
        """Return True if a version of this number exists."""
        return number <= self.newest.number


def create_version(
    world: "World",
    table: VersionsTable,
    change: Callable[[Version], Version],
    *,
    site: str,
    landed: Callable[[Version, float], None] = lambda version, looked_at: None,
) -> Version:
    """Create the version that ``change`` makes of the newest one; repeated as long as another process is faster.

    ``landed`` is called in the same moment.
    """
    for _ in range(_TRIES):
        looked_at, number = world.scheduler.now, table.newest.number + 1
        version = replace(change(table.newest), number=number)
        world.before(site, lake=site == "create version")
        if not table.is_taken(number):
            landed(version, looked_at)
            gone = table.log[table.newest.told : version.told]
            table.append(version, looked_at)
            world.watch.forgotten(table, [one.commit.plan_id for one in gone if one.commit is not None])
            world.after(site, lake=site == "create version")
            return version
    raise Transient(f"others were faster {_TRIES} times")


def without(files: Collection[str], gone: Collection[str], new: Collection[str] = ()) -> frozenset[str]:
    """Return the files of a version after a commit."""
    return frozenset(files) - frozenset(gone) | frozenset(new)

# SPDX-License-Identifier: Apache-2.0
"""Partitions that commits have relocated: the record of each, and the observed state of its locations."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType

from lake.model import TableRef
from lake.plan import Commit, LocatedFile, Relocation
from lake.relocation.owner_moves import find_owner_moves, is_in_version, partition_of_version_directory


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousLocation:
    """A location that a partition has left; ``token`` is the last relocation that left it.

    ``expected_files`` are recorded files that must still be there; ``possible_files`` are recorded files that may be
    there or not. ``deleting_files`` are the possible files whose deletion has begun and is not recorded as ended.
    ``shared_files`` are those that another partition, of this or of another table, has replaced since: it was read from
    the same directory, and they await their deletion under its plan. ``shared_with`` are the relocations under which
    they do, each as the location of its table, its token and its partition. ``files_of_other_tables`` are the shared
    files that a partition of another table has replaced.
    ``is_cleaning_begun``: lakefold has begun to delete some of them. ``plan_id`` is the plan under which the files
    there await their deletion. ``partition_created_at`` is the time at which the catalog created the
    partition that left the location, in seconds.

    ``owner_moved_ms`` is the time, in milliseconds, by which the table's owner had moved the partition to another
    directory after this relocation. The owner may have given this location to another partition, table or program
    since. ``owner_moved_ms`` is None if the owner has not moved the partition. ``is_released``: lakefold has recorded
    that files which arrived in this location before that time are not the partition's either.
    """

    location: str
    expected_files: tuple[LocatedFile, ...]
    possible_files: tuple[LocatedFile, ...] = ()
    deleting_files: tuple[LocatedFile, ...] = ()
    shared_files: frozenset[LocatedFile] = frozenset()
    shared_with: frozenset[tuple[str, str, str]] = frozenset()
    files_of_other_tables: frozenset[LocatedFile] = frozenset()
    is_cleaning_begun: bool = False
    token: str = ""
    plan_id: str = ""
    partition_created_at: int | None = None
    owner_moved_ms: int | None = None
    is_released: bool = False

    @property
    def is_before_owner_move(self) -> bool:
        """True if the owner has moved the partition away since."""
        return self.owner_moved_ms is not None

    @property
    def files_in_place(self) -> tuple[LocatedFile, ...]:
        """The expected files except those that lakefold has moved out of the location, which await their deletion."""
        return tuple(file for file in self.expected_files if file.directory == self.location)


@dataclass(frozen=True, slots=True, kw_only=True)
class LateCopy:
    """A late file of a previous location, to be copied to ``target``; ``is_done`` once the catalog counts it there.

    ``arrived_ms`` is the time at which the file got its name, recorded before lakefold gave it a second name: a file
    system may report the time of the second name as the arrival. None if the time was not recorded.
    """

    row_id: int
    partition: str
    source: LocatedFile
    target: str
    is_done: bool = False
    arrived_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RelocatedPartition:
    """The database's record of one relocated partition: its latest relocation and its previous locations.

    ``begun_relocations`` are later relocations of which it is unknown whether the catalog was called.
    ``plan_id`` is the plan under which files of the latest location await their deletion once the partition leaves it.
    ``is_waiting``: the last decision was to wait.
    """

    latest: Relocation
    previous_locations: tuple[PreviousLocation, ...]
    late_copies: tuple[LateCopy, ...] = ()
    begun_relocations: tuple[Relocation, ...] = ()
    plan_id: str = ""
    is_waiting: bool = False
    #: the partition's own directory before lakefold first relocated it
    original_location: str = ""
    #: the directory that the table's owner set last, as far as a relocation from it shows
    owner_location: str = ""
    #: the time since its latest relocation
    since_relocation: timedelta = timedelta()
    #: its locations before the latest relocation, each with the token that the catalog's entry had there
    earlier_locations: frozenset[tuple[str, str | None]] = frozenset()
    #: the identity that the table had then, see ``TableRef``
    table_identity: str | None = None
    #: the other names under which lakefold has moved the partition between two of its relocations
    other_names: frozenset[str] = frozenset()

    @property
    def partition(self) -> str:
        """The partition's name."""
        return self.latest.partition

    @property
    def owner_locations(self) -> frozenset[str]:
        """The locations that the table's owner set: the partition's own directory, and others since then."""
        return frozenset({self.original_location, *(place for place, token in self.earlier_locations if token is None)})

    @property
    def locations(self) -> Collection[str]:
        """All directories whose content matters for the partition."""
        previous_locations = {previous.location for previous in self.previous_locations}
        return {
            self.latest.location,
            *previous_locations,
            *(relocation.location for relocation in self.begun_relocations),
            *filter(None, (self.original_location, self.owner_location)),
        }

    @property
    def former_names(self) -> Collection[str]:
        """Other names under which lakefold has moved the partition, as far as its previous locations show them."""
        names = {partition_of_version_directory(previous.location) for previous in self.previous_locations}
        return {name for name in names if name not in (None, self.partition)} | self.other_names

    @property
    def recorded_files(self) -> Iterator[LocatedFile]:
        """All recorded files, in any location."""
        yield from self.latest.files
        for previous in self.previous_locations:
            yield from previous.expected_files
            yield from previous.possible_files
        yield from (late_copy.source for late_copy in self.late_copies)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRelocation:
    """The relocation that a partition names as its last one in the catalog, and where the partition is now.

    A partition that was renamed since then names a relocation that lakefold made under the former name.
    """

    token: str
    location: str
    #: the time at which the catalog's partition was created, in seconds
    partition_created_at: int

    @property
    def former_name(self) -> str | None:
        """The name that the partition had at the relocation; None if its location does not show the name."""
        return partition_of_version_directory(self.location)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanElsewhere:
    """A plan of another table whose commit may not be recorded yet.

    ``is_inflight``: its commit may be made at any time. ``is_watched``: it has ended, but work of an attempt is watched
    for, since the executor may have been suspended right before the call of the catalog.
    """

    plan_id: str
    table: TableRef
    is_inflight: bool = False
    is_watched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VacatedLocation:
    """A location that a partition has left; ``relocation_id`` is the relocation's id in the database."""

    relocation_id: int
    partition: str
    location: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRelocation:
    """A relocation that was made or discarded; ``relocation_id`` is its id in the database.

    ``is_cleaned_up``: it was made long ago, and all files that it and its predecessors replaced were deleted long ago.
    ``is_by_plan``: a plan made it. If no plan made a relocation, only the relocations before and after it show in the
    table that it was made.
    """

    relocation_id: int
    token: str
    previous_location: str
    location: str
    is_cleaned_up: bool
    is_by_plan: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RelocationHistory:
    """All relocations of a partition, from the first to the last.

    ``discarded`` are relocations that were begun and not made. Their ``previous_location`` is the location to which
    they would have led, since the sweep checks it like a previous location. They are ``is_cleaned_up`` if they were
    discarded long ago.
    """

    partition: str
    relocations: tuple[PastRelocation, ...]
    discarded: tuple[PastRelocation, ...] = ()

    def prunable(self, missing_locations: Collection[str]) -> Sequence[PastRelocation]:
        """Return the relocations that nothing depends on, given the locations that no longer exist.

        A discarded relocation may be pruned if it is cleaned up and its location is missing, or was left by another
        relocation. The first relocation that was made stays, since it shows which directory was the partition's own;
        the last two stay as well. Any other relocation may be pruned if it is cleaned up and its previous location is
        missing, or if that location is the own directory, or another one to which the owner had moved the partition,
        and an earlier and a later relocation left it as well. Of consecutive prunable relocations the last one stays
        and stands for the earlier ones. A relocation before which the owner had moved the partition stays, since only
        it shows that locations were given up, see ``find_owner_moves``. A relocation to a location in no version stays
        if the next one did not leave that location: only it shows that lakefold, and not the owner, had moved the
        partition there, if the partition was renamed afterwards. If a relocation that no plan made stays, the
        relocations before and after it stay as well, because only they show in a table that it was made.
        """
        relocations, original = self.relocations, self.relocations[0].previous_location
        last_left = {relocation.previous_location: index for index, relocation in enumerate(relocations)}
        first_left = self._first_left_owner_locations()
        may_go = [
            relocation.is_cleaned_up
            and 0 < index < len(relocations) - 2
            and (
                (relocation.previous_location in missing_locations and relocation.previous_location != original)
                or first_left.get(relocation.previous_location, index) < index < last_left[relocation.previous_location]
            )
            for index, relocation in enumerate(relocations)
        ]
        goes = {index for index in range(len(relocations) - 1) if may_go[index] and may_go[index + 1]}
        goes -= set(find_owner_moves([(one.previous_location, one.location) for one in relocations]).moves)
        goes = {
            index
            for index in goes
            if is_in_version(relocations[index].location)
            or relocations[index].location == relocations[index + 1].previous_location
        }
        # From the last to the first: a relocation that stays because of a later one may need its predecessors.
        for index in range(len(relocations) - 1, 0, -1):
            if index not in goes and not relocations[index].is_by_plan:
                goes.discard(index - 1)
                # The first relocation shows that the own directory was left.
                if relocations[index].location != original:
                    goes -= _indexes_until_plan(relocations, index + 1)
        return [*(relocations[index] for index in sorted(goes)), *self._prunable_discarded(missing_locations)]

    def _first_left_owner_locations(self) -> Mapping[str, int]:
        """Return the first relocation that left each location in no version, by its index: its owner had set it."""
        found: dict[str, int] = {}
        for index, relocation in enumerate(self.relocations):
            if not is_in_version(relocation.previous_location):
                found.setdefault(relocation.previous_location, index)
        return found

    def _prunable_discarded(self, missing_locations: Collection[str]) -> Iterator[PastRelocation]:
        watched = {relocation.previous_location for relocation in self.relocations}
        for one in self.discarded:
            if one.is_cleaned_up and (one.previous_location in watched or one.previous_location in missing_locations):
                yield one


def _indexes_until_plan(relocations: Sequence[PastRelocation], start: int) -> set[int]:
    """Return the indexes from ``start`` to the first relocation that a plan made or that led to the own directory."""
    indexes = set()
    for index in range(start, len(relocations)):
        indexes.add(index)
        if relocations[index].is_by_plan or relocations[index].location == relocations[0].previous_location:
            break
    return indexes


class UnreadyReason(StrEnum):
    """Why an unrecorded file must not be copied yet; the next sweep checks it again."""

    DIRECTORY = "is a directory"
    WRITING = "is being written"
    RECENT = "was written a moment ago"
    STALLED = "is incomplete, and its writer has written nothing to it for an hour"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModifiedFile:
    """A file that a writer extended or rewrote under its name: its record, and the ``current`` file.

    ``copy_path`` is the path at which readers of the partition read the copy of ``recorded``.
    """

    recorded: LocatedFile
    current: LocatedFile
    copy_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrecordedLateCopy:
    """A late file of a previous location that was copied to ``target``, and whose copy the database has not recorded.

    ``token`` is the relocation that left the location.
    """

    partition: str
    source: LocatedFile
    target: str
    token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRelocations:
    """Relocations that a table records and a database does not, in the form of one commit.

    ``deleted_paths`` are the replaced files that lakefold has deleted, or begun to delete. ``removed_paths`` are those
    that a writer had removed before the partition's last commit. For a relocation that no plan made, the commit has the
    relocation's token as its instant and no epoch. ``is_recorded``: the database has the relocations, but may lack the
    ``late_copies`` and ``removed_paths``, since it was restored to an earlier state.
    """

    commit: Commit
    deleted_paths: frozenset[str] = frozenset()
    removed_paths: frozenset[str] = frozenset()
    late_copies: tuple[UnrecordedLateCopy, ...] = ()
    is_recorded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryResult:
    """The result of a search for commits that only the table had recorded. ``commits`` is the number recorded now.

    ``left_to_executors`` are the instants of commits that live plans made under another name of the table; their
    executors record them. Commits with a partition that is locked under another name of the table are among them until
    the lock has ended. ``left_to_plans`` are the instants of commits of inflight plans under this name: the plan's run,
    or its take-over, records them. In both cases the files that the commit has replaced are unknown until then.
    """

    commits: int = 0
    left_to_executors: tuple[str, ...] = ()
    left_to_plans: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LocationState:
    """The content of a directory: each file with the time, in milliseconds, at which it got its name.

    ``unready`` has, by path, the reason why an unrecorded file must not be copied yet. If a file system does not record
    when a file got its name, the time is that of the file's last write. Then ``directory_changed_ms`` is the time at
    which the directory last got or lost a file, and the file arrived between the two times. ``is_missing``: the
    directory does not exist. ``is_tree_removed``: lakefold's own data beside the directory are gone as well, since an
    overwrite removed a directory above both.
    """

    files: Mapping[LocatedFile, int] = field(default_factory=lambda: MappingProxyType({}))
    unready: Mapping[str, UnreadyReason] = field(default_factory=lambda: MappingProxyType({}))
    directory_changed_ms: int | None = None
    is_missing: bool = False
    is_tree_removed: bool = False
    #: paths of copies that readers do not see
    hidden_copies: tuple[str, ...] = ()
    #: the table records that lakefold has begun to delete there; a restored database may lack this
    is_cleaning_begun: bool = False
    #: if no file is in the partition's location: when a file was last added or removed there, in milliseconds
    emptied_ms: int | None = None
    #: the last such time that the table records: late files have arrived since then, and stand for the files before
    recorded_emptied_ms: int | None = None
    #: the other table or partition that is read from it, in words; checked only for the own directory of a partition
    #: that was dropped, or dropped and added again, with replaced files in it, for a location with late files that the
    #: owner had moved the partition away from, and for the directory to which a partition would return, and the one
    #: that it would then leave
    read_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """The partition's location and relocation token in the catalog, and the state of its locations.

    ``location`` is None if the catalog does not have the partition, ``token`` if it names no relocation.
    """

    location: str | None
    token: str | None
    locations: Mapping[str, LocationState]
    #: the time at which the catalog's partition was created, in seconds
    created_at: int = 0
    #: False if a program has written the entry without the creation time; ``created_at`` is that of the write, or 0
    has_creation_time: bool = True
    #: the name under which the catalog has the partition now; only looked up while it has late files, or replaced
    #: files in its own directory
    renamed_to: str | None = None
    #: the name under which a later relocation has moved the renamed partition from ``location``, which is one of its
    #: own previous locations now; None if the partition is there
    relocated_as: str | None = None
    #: the partition that has the name now was relocated under another name, and then renamed; no late file concerns it
    is_other_partition: bool = False

    @property
    def has_left_location(self) -> bool:
        """True if the renamed partition has left ``location``."""
        return self.relocated_as is not None

    def is_created_with(self, relocation: Relocation) -> bool:
        """True if the catalog's partition is the one that was relocated, judged by its creation time."""
        created_at = relocation.partition_created_at
        # Earlier releases recorded 0 for an entry without the time.
        return self.created_at == created_at or (created_at == 0 and not self.has_creation_time)

    @property
    def arrived_ms(self) -> Mapping[LocatedFile, int]:
        """When each file in its locations arrived, in milliseconds."""
        return {file: arrived_ms for there in self.locations.values() for file, arrived_ms in there.files.items()}

# SPDX-License-Identifier: Apache-2.0
"""The Hudi adapter: everything that looks at tables without changing them."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from pyarrow import fs as pafs

from lake.engines import Engine
from lake.errors import Rejected, Transient
from lake.formats.hudi.audit.damage import first_of_each_group, look
from lake.formats.hudi.audit.verify import verify_table
from lake.formats.hudi.files.storage import PROPERTIES, Storage, table_properties
from lake.formats.hudi.pending.late_files import find_late
from lake.formats.hudi.pending.unfinished import unfinished
from lake.formats.hudi.read.commits import find_commit, landed, pending_plan_ids, reasons_to_close, reasons_to_keep
from lake.formats.hudi.read.describe import describe_table
from lake.formats.hudi.read.live_writes import holds_nothing
from lake.formats.hudi.read.lost_writes import refuse_lost_writes
from lake.formats.hudi.read.overlaps import overlaps
from lake.formats.hudi.read.past import past
from lake.formats.hudi.read.refusals import check_table
from lake.formats.hudi.read.slices import busy_groups, delta_commits, slices_table
from lake.formats.hudi.session import SESSION
from lake.formats.hudi.timeline.timeline import Timeline
from lake.history import Check, History, go_on
from lake.locations import canonical_location
from lake.model import Snapshot, TableRef, Unsearched
from lake.optional import Resurrected, Unfinished
from lake.plan import Commit, SupersededVersion
from lake.ports import Capability, SparkProvider, TableWriter, Verification

log = logging.getLogger(__name__)
_Result = TypeVar("_Result")

#: what ext file systems have at their root for fsck, readable by root alone
_LOST_FILES = "lost+found"

SEARCH_DEPTH = 4
"""How many directory levels below a location are searched for tables."""


class HudiFormat:
    """Apache Hudi tables of version 6, 8 and 9 on local file systems and S3.

    Implements ``lake.ports.TableFormat``, ``FindsResurrected``, ``FindsLateFiles`` and ``KeepsHistory``.
    """

    name = "hudi"
    # A clean plan of ours names each file, and only a lock keeps writers apart.
    capabilities = frozenset(Capability) - {Capability.OWN_EXPIRY, Capability.OPTIMISTIC_COMMITS}
    services = ("clean", "archive", "rollback")
    session = SESSION

    def discover(self, location: str) -> Iterator[TableRef | Unsearched]:
        """See ``TableFormat``. Searches four levels, never inside a table.

        ``Unsearched`` are directories that can't be read, or that have lost their ``hoodie.properties``.
        """
        top = Storage(location)
        if top.info("").type != pafs.FileType.Directory:
            raise Rejected(f"{location}: no such directory; give a Hudi table or a directory that holds some")
        location = location.rstrip("/") if location.startswith("file:") else canonical_location(location)
        seen = [_look_at(location)]
        everything = [found for found, _ in seen]
        for _ in range(SEARCH_DEPTH):
            seen = top.each(_look_below, [child for _, children in seen for child in children])
            everything += [found for found, _ in seen]
        yield from sorted((found for found in everything if found is not None), key=lambda found: found.location)

    def check(self, table: TableRef) -> None:
        """See ``TableFormat``."""
        _twice(table, lambda: check_table(table))

    def snapshot(self, table: TableRef, partitions: Collection[str] | None = None) -> Snapshot:
        """See ``TableFormat``."""
        return _twice(table, lambda: _snapshot(table, partitions))

    def committed(self, table: TableRef, plan_id: str) -> Commit | None:
        """See ``TableFormat``."""

        def look_up() -> Commit | None:
            storage = Storage(table.location)
            timeline = Timeline(storage)
            found = find_commit(storage, timeline, plan_id)
            if found is not None:
                refuse_lost_writes(table.name, timeline, found.instant)
            return found

        return _twice(table, look_up)

    def landed(self, table: TableRef, plan_ids: Collection[str]) -> Mapping[str, Commit]:
        """See ``TableFormat``."""

        def look_up() -> Mapping[str, Commit]:
            storage = Storage(table.location)
            timeline = Timeline(storage)
            found = landed(storage, timeline, plan_ids)
            for commit in found.values():
                refuse_lost_writes(table.name, timeline, commit.instant)
            return found

        return _twice(table, look_up)

    def pending(self, table: TableRef) -> Mapping[str, str]:
        """See ``TableFormat``."""
        return _twice(table, lambda: pending_plan_ids(Timeline(Storage(table.location))))

    def unfinished(self, table: TableRef) -> Sequence[Unfinished]:
        """See ``TableFormat``."""

        def look() -> Sequence[Unfinished]:
            storage = Storage(table.location)
            return unfinished(table, storage, Timeline(storage))

        return _twice(table, look)

    def superseded_deletable(self, table: TableRef, versions: Sequence[SupersededVersion]) -> Mapping[str, str | None]:
        """See ``TableFormat``."""

        def ask() -> Mapping[str, str | None]:
            storage = Storage(table.location)
            return reasons_to_keep(storage, Timeline(storage), versions, table.write_options)

        return _twice(table, ask)

    def superseded_closed(self, table: TableRef, versions: Sequence[SupersededVersion]) -> Mapping[int, str]:
        """See ``TableFormat``."""

        def ask() -> Mapping[int, str]:
            storage = Storage(table.location)
            return reasons_to_close(storage, Timeline(storage), versions)

        return _twice(table, ask)

    def verify(self, table: TableRef, superseded: Sequence[SupersededVersion], *, rows: bool) -> Verification:
        """See ``TableFormat``. Rejected when ``rows`` is asked of a table with slices of logs only."""
        return _twice(table, lambda: verify_table(Storage(table.location), superseded, rows=rows))

    def resurrected(self, table: TableRef) -> Sequence[Resurrected]:
        """See ``FindsResurrected``."""
        from lake.formats.hudi.audit.resurrected import find_resurrected

        def look() -> Sequence[Resurrected]:
            storage = Storage(table.location)
            return find_resurrected(storage, Timeline(storage))

        return _twice(table, look)

    def late_files(self, table: TableRef) -> Collection[str]:
        """See ``FindsLateFiles``."""

        def look() -> Collection[str]:
            storage = Storage(table.location)
            return find_late(storage, Timeline(storage))

        return _twice(table, look)

    def history(
        self,
        table: TableRef,
        since: datetime,
        until: datetime,
        superseded: Sequence[SupersededVersion],
        check: Check = go_on,
    ) -> History:
        """See ``KeepsHistory``."""

        def look() -> History:
            storage = Storage(table.location)
            return past(Timeline(storage), since, until, check)

        return _twice(table, look)

    def describe(self, table: TableRef) -> Mapping[str, str]:
        """See ``TableFormat``."""
        return _twice(table, lambda: describe_table(table))

    def writer(self, table: TableRef, spark: SparkProvider, engines: Sequence[Engine] = ()) -> TableWriter:
        """See ``TableFormat``. Hudi's own client rewrites, so that keys, meta columns and indexes stay Hudi's."""
        from lake.formats.hudi.writer import HudiWriter

        return HudiWriter(table, spark)


def _look_below(location: str) -> tuple[TableRef | Unsearched | None, list[str]]:
    """``_look_at``, with an error as what was found there."""
    try:
        return _look_at(location)
    except (Rejected, Transient) as error:
        return Unsearched(location=location, reason=str(error)), []
    except FileNotFoundError:  # removed meanwhile
        return None, []


def _look_at(location: str) -> tuple[TableRef | Unsearched | None, list[str]]:
    """The table at ``location``, or without one the directories there that may hold some."""
    storage = Storage(location)
    if storage.is_file(PROPERTIES):
        return _table_at(storage, location), []
    names = sorted(info.base_name for info in storage.children("") if info.type == pafs.FileType.Directory)
    if ".hoodie" in names and storage.is_file(PROPERTIES + ".backup"):
        return _table_at(storage, location), []
    if ".hoodie" in names:
        raise Rejected(
            f"{location} has a directory .hoodie and no {PROPERTIES}, so that nobody can read it as a Hudi table; put "
            "that file back from a backup, or remove what is left of the table"
        )
    return None, [f"{location}/{name}" for name in names if not name.startswith((".", "_")) and name != _LOST_FILES]


def _table_at(storage: Storage, location: str) -> TableRef:
    properties = table_properties(storage)
    name = properties.get("hoodie.table.name") or location.rpartition("/")[2]
    database = properties.get("hoodie.database.name")
    return TableRef(name=f"{database}.{name}" if database else name, format="hudi", location=location)


def _snapshot(table: TableRef, partitions: Collection[str] | None) -> Snapshot:
    storage = Storage(table.location)
    found = look(storage, partitions)
    timeline = found.timeline
    busy = busy_groups(timeline, lambda instant: holds_nothing(table, storage, timeline, instant))
    return Snapshot(
        table=table,
        instant=timeline.newest,
        taken_at=found.taken_at,
        slices=slices_table([*found.slices, *found.unseen], timeline, busy),
        uncompacted_commits=delta_commits(timeline),
        damaged=first_of_each_group(found.damage),
        overlaps=overlaps(timeline),
        foreign_files=found.on_disk.foreign,
    )


def _twice(table: TableRef, look: Callable[[], _Result]) -> _Result:
    """``look``, once more when a file vanished under it: writers, cleaners and archivers go on meanwhile."""
    try:
        return look()
    except (FileNotFoundError, Transient) as error:
        log.debug("%s: looking again after %s", table.name, error)
    try:
        return look()
    except FileNotFoundError as error:
        raise Transient(f"{table.name}: a file vanished twice while the table was read ({error.filename})") from error

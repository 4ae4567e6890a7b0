# SPDX-License-Identifier: Apache-2.0
"""The adapter of Hive tables: everything that looks at them."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from posixpath import dirname

from lake.engines import Engine
from lake.errors import Rejected
from lake.formats.hive import commits, forgetting, likely, neighbours, refusals
from lake.formats.hive.catalog import Place, found_in, identity_of, open_metastore, places_of, table_of
from lake.formats.hive.changes import HiveChanges
from lake.formats.hive.counts import rows_of
from lake.formats.hive.found import found as found_moves
from lake.formats.hive.neighbours import readers, shared, shared_places, unread
from lake.formats.hive.past import past
from lake.formats.hive.refusals import FileKind
from lake.formats.hive.slices import File, list_places, slices_of
from lake.formats.hive.standing import standing
from lake.formats.hive.superseded import directories_of, in_use, live_again, read_from
from lake.formats.hive.writer import HiveWriter
from lake.history import Check, History, go_on
from lake.locations import file_at
from lake.metastore import Table
from lake.model import Snapshot, TableRef, Unsearched
from lake.moved import FoundMoves, Moved, PartitionSeen
from lake.optional import LikelyWriter
from lake.plan import Commit, Staged, SupersededVersion
from lake.ports import Capability, SessionNeeds, SparkProvider, TableWriter, Verification


class HiveFormat:
    """Tables of a Hive metastore with Parquet or ORC files, partitioned or not.

    Implements ``lake.ports.TableFormat``, ``FoundInMetastore``, ``FindsStaged``, ``HasIdentity``,
    ``SeenThroughCatalog``, ``TellsWriters``, ``LeavesPlaces``, ``TellsMoves``, ``ForgetsMoves`` and ``KeepsHistory``.
    """

    name = "hive"
    capabilities: frozenset[Capability] = frozenset()
    services: tuple[str, ...] = ()
    session = SessionNeeds()
    only_in_metastore = True
    unseen_by_path = (
        "a rewrite moves partitions in the metastore: who reads one by its path goes on with the old files until they "
        "are deleted, and what is written there is not the table's; so does a table of another metastore that shares "
        "the directory. And an INSERT OVERWRITE … SELECT from the same partition loses what a job that began before a "
        "rewrite has appended to it seconds earlier"
    )

    def discover(self, location: str) -> Iterator[TableRef | Unsearched]:
        """See ``TableFormat``. None: no directory says that it is a table's."""
        return iter(())

    def in_metastore(self, uri: str, databases: str, tables: str) -> Iterator[TableRef | Unsearched]:
        """See ``FoundInMetastore``."""
        return found_in(uri, databases, tables)

    def check(self, table: TableRef) -> None:
        """See ``TableFormat``."""
        with open_metastore(table) as metastore:
            found = table_of(metastore, table)
            refusals.check(table.name, found)
            if (why := shared(metastore, found)) is not None:
                raise Rejected(f"{table.name}: {why}")

    def identity(self, table: TableRef) -> str:
        """See ``HasIdentity``."""
        with open_metastore(table) as metastore:
            return identity_of(table_of(metastore, table))

    def snapshot(self, table: TableRef, partitions: Collection[str] | None = None) -> Snapshot:
        """See ``TableFormat``."""
        with open_metastore(table) as metastore:
            found = table_of(metastore, table)
            places = list(places_of(metastore, found, partitions))
            alone = dict(shared_places(metastore, found, places))
        taken_at = datetime.now(UTC)
        listings = list_places(table.name, places)
        if not table.sessions_refresh:
            alone |= refusals.cached(found)
        slices = slices_of(table.location, listings, {**alone, **refusals.left_alone(found, places)})
        return Snapshot(table=table, instant="", taken_at=taken_at, slices=slices)

    def committed(self, table: TableRef, plan_id: str) -> Commit | None:
        """See ``TableFormat``."""
        return self.landed(table, [plan_id]).get(plan_id)

    def landed(self, table: TableRef, plan_ids: Collection[str]) -> Mapping[str, Commit]:
        """See ``TableFormat``."""
        with open_metastore(table) as metastore:
            found = table_of(metastore, table)
            every = cache(lambda: tuple(places_of(metastore, found)))
            made = {plan_id: commits.find(metastore, found, table, plan_id, every) for plan_id in plan_ids}
        return {plan_id: commit for plan_id, commit in made.items() if commit is not None}

    def left_of(self, table: TableRef, staged: Collection[Staged]) -> Collection[str]:
        """See ``FindsStaged``."""
        with open_metastore(table) as metastore:
            return commits.withdrawable(metastore, table, [one.token for one in staged], time.time())

    def standing(self, table: TableRef, moved: Sequence[Moved]) -> Mapping[str, PartitionSeen]:
        """See ``LeavesPlaces``."""
        _, places = _look(table, [one.partition for one in moved])

        def others(directories: Collection[str]) -> Mapping[str, str]:
            with open_metastore(table) as metastore:
                found = table_of(metastore, table)
                own = read_from(table, directories, list(places_of(metastore, found)))
                return {**readers(metastore, found, directories, age=neighbours.DELETION_AGE), **own}

        return standing(table, moved, places, others, time.time())

    def changes(self, table: TableRef) -> HiveChanges:
        """See ``TellsChanges``."""
        return HiveChanges(table)

    def made(self, table: TableRef, staged: Collection[Staged]) -> Sequence[Commit]:
        """See ``LeavesPlaces``."""
        with open_metastore(table) as metastore:
            return commits.made(metastore, table_of(metastore, table), table, [one.token for one in staged])

    def moves_told(self, table: TableRef, known: Collection[str]) -> Sequence[FoundMoves]:
        """See ``TellsMoves``."""
        with open_metastore(table) as metastore:
            return found_moves(metastore, table_of(metastore, table), table, known)

    def gone(self, table: TableRef, places: Collection[str]) -> Collection[str]:
        """See ``ForgetsMoves``."""
        return forgetting.gone(table, places)

    def forget_moves(self, table: TableRef, tokens: Collection[str]) -> Collection[str]:
        """See ``ForgetsMoves``."""
        with open_metastore(table) as metastore:
            return forgetting.forget(metastore, table_of(metastore, table), table, tokens)

    def superseded_deletable(self, table: TableRef, versions: Sequence[SupersededVersion]) -> Mapping[str, str | None]:
        """See ``TableFormat``."""
        with open_metastore(table) as metastore:
            found = table_of(metastore, table)
            why = shared(metastore, found) or unread(metastore)
            others = readers(metastore, found, directories_of(table, versions))
            places = list(places_of(metastore, found))
        used = in_use(table, versions, places)
        for version in versions:
            if (who := others.get(dirname(file_at(table.location, version.path)))) is not None:
                used.setdefault(version.path, f"{version.path}: {who}")
        return {version.path: used.get(version.path, why) for version in versions}

    def superseded_closed(self, table: TableRef, versions: Sequence[SupersededVersion]) -> Mapping[int, str]:
        """See ``TableFormat``."""
        _, places = _look(table)
        return live_again(table, versions, places)

    def verify(self, table: TableRef, superseded: Sequence[SupersededVersion], *, rows: bool) -> Verification:
        """See ``TableFormat``. A metastore records no files: what is in a partition's directory is what it holds."""
        found, places = _look(table)
        files = [file for listing in list_places(table.name, places) for file in listing.files]
        paths = {file.path for file in files}
        replaced = {version.path for version in superseded if file_at(table.location, version.path) in paths}
        return Verification(
            files=len(files),
            bytes=sum(file.bytes for file in files),
            resurrected=tuple(sorted(replaced)),
            rows=_rows(found, files) if rows else None,
        )

    def history(
        self,
        table: TableRef,
        since: datetime,
        until: datetime,
        superseded: Sequence[SupersededVersion],
        check: Check = go_on,
    ) -> History:
        """See ``KeepsHistory``."""
        _, places = _look(table)
        return past(table.location, list_places(table.name, places), superseded, since, until, check)

    def describe(self, table: TableRef) -> Mapping[str, str]:
        """See ``TableFormat``."""
        with open_metastore(table) as metastore:
            found = table_of(metastore, table)
            partitions = len(metastore.partition_names(found.database, found.name)) if found.partition_columns else 0
        columns = ", ".join(f"{name} {kind}" for name, kind in found.partition_columns)
        return {
            "type": found.kind.removesuffix("_TABLE").lower(),
            "made by": "Spark (USING)" if "spark.sql.sources.provider" in found.parameters else "Hive (STORED AS)",
            "files": str(refusals.kind_of(found) or found.storage.serde),
            "partitioned by": columns or "nothing",
            "partitions": str(partitions),
            "made at": datetime.fromtimestamp(found.made_at, UTC).isoformat(),
            "metastore": table.catalog.name if table.catalog else "",
            "writers": likely.in_words(likely.of_table(found)),
        }

    def likely_writers(self, snapshot: Snapshot) -> Sequence[LikelyWriter]:
        """See ``TellsWriters``."""
        return likely.of_snapshot(snapshot)

    def writer(self, table: TableRef, spark: SparkProvider, engines: Sequence[Engine] = ()) -> TableWriter:
        """See ``TableFormat``."""
        return HiveWriter(table, engines)


def _look(ref: TableRef, partitions: Collection[str] | None = None) -> tuple[Table, Sequence[Place]]:
    """The table and its partitions, or those of these names, as the metastore has them now."""
    with open_metastore(ref) as metastore:
        found = table_of(metastore, ref)
        return found, list(places_of(metastore, found, partitions))


def _rows(table: Table, files: Sequence[File]) -> int:
    kind = refusals.kind_of(table)
    if kind is None:
        raise Rejected(f"{table.name}: rows can be counted in {' and '.join(FileKind)} files only")
    return rows_of([file.path for file in files if file.bytes], kind)

# SPDX-License-Identifier: Apache-2.0
"""The table service that rewrites many small manifests as few: what readers see stays, and they open fewer files."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import iceberg_case
import pytest
from contract.attempts import attempt
from contract.plans import plan_all
from iceberg_case import IcebergCase, NewCase
from iceberg_readers import live_paths, rows_of_all_readers
from iceberg_writers import add_again, equality_delete, merge_on_read_delete
from pyiceberg.avro.file import AvroFile, AvroOutputFile
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import DATA_FILE_TYPE, MANIFEST_LIST_FILE_SCHEMAS, ManifestEntryStatus, clear_manifest_cache
from pyiceberg.table import StaticTable
from pyiceberg.typedef import Record

from lake.errors import Conflict, Integrity, Rejected, Transient
from lake.formats.iceberg import writer as iceberg_writer
from lake.formats.iceberg.catalog import settings as catalog_settings
from lake.formats.iceberg.catalog.tables import load_table
from lake.formats.iceberg.jvm import exact_commit
from lake.formats.iceberg.read import manifests, row_ids
from lake.formats.iceberg.read.live_files import snapshot_of
from lake.model import TableRef

pytestmark = pytest.mark.spark
#: what is the same in every version of the format
in_one_version = pytest.mark.paired("case")

#: appends add a manifest each, and four are too many
PROPERTIES = {"commit.manifest-merge.enabled": "false", "commit.manifest.min-count-to-merge": "4"}
ENTRIES = (
    "SELECT status, snapshot_id, sequence_number, file_sequence_number, data_file.file_path AS path, "
    "data_file.partition AS part, data_file.record_count AS rows, data_file.lower_bounds AS low, "
    "data_file.upper_bounds AS high, data_file.null_value_counts AS nulls, data_file.split_offsets AS splits"
)


@pytest.fixture(params=[1, 2, 3])
def case(new_case: NewCase, request: pytest.FixtureRequest) -> IcebergCase:
    return new_case("hadoop", version=request.param, merge_on_read=request.param > 1, properties=PROPERTIES)


def maintain(case: IcebergCase, table: TableRef) -> Sequence[str]:
    with case.format.writer(table, case.spark, case.engines) as writer:
        return list(writer.maintain(["manifests"], ()))


def entries(case: IcebergCase, table: TableRef) -> list[str]:
    """Return the metadata's entry of each live file, except whether the newest snapshot added the file."""
    found = case.sql(f"{ENTRIES} FROM {case.name(table)}.entries WHERE status < 2").collect()
    return sorted(repr({key: value for key, value in row.asDict(True).items() if key != "status"}) for row in found)


def lineage(case: IcebergCase, table: TableRef) -> list[tuple[int, ...]]:
    query = f"SELECT id, _row_id, _last_updated_sequence_number FROM {case.name(table)}"
    return sorted(tuple(row) for row in case.sql(query).collect())


def opened_manifests(case: IcebergCase, table: TableRef, dt: str) -> int:
    """How many manifests of data files PyIceberg reads for one value of ``dt``."""
    scan = StaticTable.from_metadata(load_table(case.format._settings, table).metadata_location).scan(EqualTo("dt", dt))
    snapshot = scan.snapshot()
    assert snapshot is not None
    evaluators: Any = scan.partition_filters
    from pyiceberg.expressions.visitors import manifest_evaluator

    found = [one for one in snapshot.manifests(scan.io) if one.content == 0]
    return sum(
        manifest_evaluator(
            scan.table_metadata.specs()[one.partition_spec_id],
            scan.table_metadata.schema(),
            evaluators[one.partition_spec_id],
        )(one)
        for one in found
    )


def manifest_count(case: IcebergCase, table: TableRef) -> int:
    return int(case.sql(f"SELECT * FROM {case.name(table)}.manifests WHERE content = 0").count())


def manifest_files(table: TableRef) -> list[str]:
    """The names of the manifests in storage, also of those that belong to no snapshot."""
    return sorted(path.name for path in Path(table.location, "metadata").glob("*-m*.avro"))


def snapshots(case: IcebergCase, table: TableRef) -> list[int]:
    found = case.sql(f"SELECT snapshot_id FROM {case.name(table)}.snapshots ORDER BY committed_at").collect()
    return [row["snapshot_id"] for row in found]


def rows_at(case: IcebergCase, table: TableRef, snapshot: int) -> list[str]:
    found = case.session.read.option("snapshot-id", snapshot).table(case.name(table)).collect()
    return sorted(repr(row.asDict(recursive=True)) for row in found)


def test_many_small_manifests_become_few_and_each_entry_and_row_stays(case: IcebergCase, table: TableRef):
    before, rows, history = entries(case, table), rows_of_all_readers(case, table), snapshots(case, table)
    past, ids = [rows_at(case, table, one) for one in history], lineage(case, table) if case.version > 2 else []
    assert manifest_count(case, table) == 6
    assert maintain(case, table) == ["rewrote 6 manifests as 1: readers find 1 instead of 6"]
    assert manifest_count(case, table) == 1
    assert entries(case, table) == before
    assert rows_of_all_readers(case, table) == rows
    assert ids == (lineage(case, table) if case.version > 2 else [])
    assert [rows_at(case, table, one) for one in history] == past
    newest = case.java_table(table).currentSnapshot()
    assert (newest.operation(), newest.summary().get("lakefold.service")) == ("replace", "manifests")
    assert maintain(case, table) == [], "one manifest is not too many"
    assert snapshots(case, table) == [*history, newest.snapshotId()]


def test_new_manifests_list_the_files_in_the_order_of_their_partitions(new_case: NewCase, tmp_path: Path):
    case = new_case("hadoop", properties=PROPERTIES)
    table = case.create(tmp_path / "lake" / "t", name="t")
    for number in range(60):
        case.append(table, f"dt={number % 4}", 1000 + number, 1001 + number)
    sizes = [row["length"] for row in case.sql(f"SELECT length FROM {case.name(table)}.manifests").collect()]
    target = sum(sizes) // 4 + 1
    case.sql(f"ALTER TABLE {case.name(table)} SET TBLPROPERTIES ('commit.manifest.target-size-bytes' = '{target}')")
    assert opened_manifests(case, table, "2") > 14
    (line,) = maintain(case, table)
    assert line == "rewrote 66 manifests as 4: readers find 4 instead of 66"
    assert opened_manifests(case, table, "2") <= 2


def test_a_table_with_few_or_large_manifests_is_left_alone(new_case: NewCase, tmp_path: Path):
    case = new_case("hadoop", properties={"commit.manifest-merge.enabled": "false"})
    table = case.create(tmp_path / "lake" / "t", name="t")
    history = snapshots(case, table)
    assert maintain(case, table) == [], "Iceberg's own appends merge from 100 on"
    case.sql(
        f"ALTER TABLE {case.name(table)} SET TBLPROPERTIES "
        "('commit.manifest.min-count-to-merge' = '2', 'commit.manifest.target-size-bytes' = '1000')"
    )
    assert maintain(case, table) == [], "all are larger than wanted"
    with case.format.writer(table, case.spark, case.engines) as writer:
        assert list(writer.maintain([], ())) == []
    assert snapshots(case, table) == history


@in_one_version
def test_one_rewrite_reads_a_limited_number_of_files_and_begins_with_the_oldest(
    case: IcebergCase, table: TableRef, monkeypatch: pytest.MonkeyPatch
):
    select = manifests.select_manifests
    monkeypatch.setattr(manifests, "select_manifests", lambda *args: select(*args, max_files=4))
    rows, before = case.rows(table), entries(case, table)
    assert maintain(case, table) == ["rewrote 4 manifests as 1: readers find 3 instead of 6"]
    files = case.sql(f"SELECT data_file.file_path AS path, snapshot_id FROM {case.name(table)}.entries").collect()
    merged = case.sql(f"SELECT path FROM {case.name(table)}.manifests WHERE existing_data_files_count = 4").collect()
    assert (len(files), len(merged)) == (6, 1)
    first = {row["snapshot_id"] for row in files} & set(snapshots(case, table)[:4])
    kept = case.sql(f"SELECT added_snapshot_id FROM {case.name(table)}.manifests WHERE added_data_files_count = 1")
    assert len(first) == 4
    assert first.isdisjoint(row["added_snapshot_id"] for row in kept.collect())
    assert (case.rows(table), entries(case, table)) == (rows, before)
    assert maintain(case, table) == [], "three are not too many"


def test_deletes_still_apply_after_manifests_were_rewritten(new_case: NewCase, tmp_path: Path):
    for version in (2, 3):
        case = new_case("hadoop", version=version, merge_on_read=True, properties=PROPERTIES)
        table = case.create(tmp_path / f"lake{version}" / "t", name=f"t{version}")
        merge_on_read_delete(case, table, "id = 7")
        equality_delete(case, table, 12)
        case.append(table, "dt=0", 12, 13)
        rows, before = case.rows(table), entries(case, table)
        assert len(rows) == 299, "the equality delete came before the last append"
        assert maintain(case, table) == ["rewrote 7 manifests as 1: readers find 3 instead of 9"]
        assert (case.rows(table), entries(case, table)) == (rows, before)


def _append(case: IcebergCase, table: TableRef) -> None:
    case.append(table, "dt=0", 900, 950)


def _delete_files(case: IcebergCase, table: TableRef) -> None:
    case.sql(f"DELETE FROM {case.name(table)} WHERE dt = '1'")


def _delete_everything(case: IcebergCase, table: TableRef) -> None:
    case.sql(f"DELETE FROM {case.name(table)}")


def _roll_back(case: IcebergCase, table: TableRef) -> None:
    java = case.java_table(table)
    java.manageSnapshots().rollbackTo(java.currentSnapshot().parentId()).commit()


def _rewrite_manifests(case: IcebergCase, table: TableRef) -> None:
    actions = case.session._jvm.org.apache.iceberg.spark.actions.SparkActions.get(case.session._jsparkSession)
    actions.rewriteManifests(case.java_table(table)).execute()


def _expire(case: IcebergCase, table: TableRef) -> None:
    case.forget(table)


@in_one_version
@pytest.mark.parametrize(
    "meanwhile", [_append, _delete_files, _delete_everything, _roll_back, _rewrite_manifests, _expire]
)
@pytest.mark.parametrize("moment", ["after the selection", "in the commit"])
def test_commits_of_writers_during_a_rewrite_of_manifests_stay(
    case: IcebergCase, table: TableRef, monkeypatch: pytest.MonkeyPatch, moment: str, meanwhile: Callable[..., None]
):
    done = list[tuple[list[str], list[str]]]()

    def act(*_: object) -> None:
        if not done:
            meanwhile(case, table)
            done.append((list(case.rows(table)), entries(case, table)))

    if moment == "in the commit":
        monkeypatch.setattr(exact_commit, "failpoint", act)
    else:
        new_update = iceberg_writer.manifest_rewrite.new_update
        monkeypatch.setattr(iceberg_writer.manifest_rewrite, "new_update", lambda *args: act() or new_update(*args))
    maintain(case, table)
    assert [(list(case.rows(table)), entries(case, table))] == done
    assert sorted(live_paths(case, table)) == sorted(set(live_paths(case, table)))
    case.append(table, "dt=1", 2000, 2010)
    assert len(case.rows(table)) == len(done[0][0]) + 10


@in_one_version
def test_a_plan_commits_although_the_manifests_of_its_files_were_rewritten_meanwhile(
    case: IcebergCase, table: TableRef
):
    rows = case.rows(table)
    with attempt(case, plan_all(case.format, table, "p")) as one:
        rewrite = one.rewritten()
        assert maintain(case, table) == ["rewrote 6 manifests as 1: readers find 1 instead of 6"]
        commit = one.writer.commit(rewrite)
    assert live_paths(case, table) == sorted(output.path for output in commit.outputs)
    for _ in range(3):
        case.append(table, "dt=0", 600, 601)
    assert len(maintain(case, table)) == 1
    found = case.format.find_commit(table, "p")
    assert found is not None
    assert (sorted(map(str, found.superseded)), found.instant) == (
        sorted(map(str, commit.superseded)),
        commit.instant,
    )
    assert [row for row in case.rows(table) if "'id': 600" not in row] == rows
    with case.format.writer(table, case.spark, case.engines) as writer:
        deletion = writer.delete(commit.superseded)
    assert dict(deletion.retained) == {}
    assert set(live_paths(case, table)) == set(case.stored(table))


def test_manifests_of_a_spec_whose_column_was_dropped_stay_as_they_are(new_case: NewCase, tmp_path: Path):
    """Iceberg 1.10 writes null for the partition values of such files."""
    case = new_case("hadoop", properties=PROPERTIES)
    table = case.create(tmp_path / "lake" / "t", name="t")
    name = case.name(table)
    case.java_table(table).updateSpec().removeField("dt").commit()
    case.sql(f"REFRESH TABLE {name}")
    case.sql(f"ALTER TABLE {name} DROP COLUMN dt")
    for number in range(5):
        case.session.range(500 + number, 501 + number, 1, 1).selectExpr(
            "id", "id AS value", "'x' AS tip", "CAST(NULL AS struct<lat: double, names: array<string>>) AS stop"
        ).writeTo(name).append()
    rows, loaded = case.rows(table), load_table(case.format._settings, table)
    selected = manifests.select_manifests(loaded, snapshot_of(loaded))
    assert selected is not None
    assert len(selected.manifests) == 5
    assert maintain(case, table) == ["rewrote 5 manifests as 1: readers find 7 instead of 11"]
    assert case.rows(table) == rows
    after = load_table(case.format._settings, table)
    of_first_spec = [one for one in snapshot_of(after).manifests(after.io) if one.partition_spec_id == 0]
    values = {repr(entry.data_file.partition) for one in of_first_spec for entry in one.fetch_manifest_entry(after.io)}
    assert len(of_first_spec) == 6
    assert len(values) == 2


def _set(entry: Any, field: str, value: Any) -> None:
    entry.data_file[[one.name for one in DATA_FILE_TYPE[2].fields].index(field)] = value


def _without_bounds(entry: Any) -> None:
    _set(entry, "lower_bounds", None)


def _with_another_bound(entry: Any) -> None:
    bounds = dict(entry.data_file.upper_bounds)
    _set(entry, "upper_bounds", {**bounds, 1: bytes(len(bounds[1]))})


def _without_nulls(entry: Any) -> None:
    _set(entry, "null_value_counts", dict.fromkeys(entry.data_file.null_value_counts, 0))


def _added(entry: Any) -> None:
    entry.status = ManifestEntryStatus.ADDED


def _in_another_partition(entry: Any) -> None:
    entry.data_file.partition[0] = "another"


def _of_another_commit(entry: Any) -> None:
    entry.snapshot_id += 1


@pytest.mark.parametrize(
    "change",
    [None, _without_bounds, _with_another_bound, _without_nulls, _added, _in_another_partition, _of_another_commit],
)
def test_manifests_that_would_list_a_file_differently_are_not_committed_and_do_not_stay_in_storage(
    new_case: NewCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None] | None
):
    case = new_case("hadoop", properties=PROPERTIES)
    table = case.create(tmp_path / "lake" / "t", name="t")
    read, history, stored = manifests.entries_of, snapshots(case, table), manifest_files(table)

    def changed(loaded: Any, manifest: Any) -> list[Any]:
        entries = list(read(loaded, manifest))
        if Path(manifest.manifest_path).name not in stored:
            if change is None:
                return entries[1:]
            change(entries[0])
        return entries

    monkeypatch.setattr(manifests, "entries_of", changed)
    with pytest.raises(Integrity, match="would list 1 files differently"):
        maintain(case, table)
    assert snapshots(case, table) == history
    assert manifest_files(table) == stored


@in_one_version
def test_a_repeated_commit_does_not_read_the_same_manifests_again(
    case: IcebergCase, table: TableRef, monkeypatch: pytest.MonkeyPatch
):
    """Otherwise a writer that commits more often than the manifests are read would never let the rewrite commit."""
    appends, reads, entries_of, ids_of = list[int](), list[str](), manifests.entries_of, row_ids._first_row_ids

    def append(*_: object) -> None:
        if len(appends) < 5:
            appends.append(1)
            case.append(table, "dt=0", 900 + len(appends), 901 + len(appends))

    def entries_are_read(loaded: Any, manifest: Any) -> Any:
        reads.append("entries")
        return entries_of(loaded, manifest)

    def ids_are_read(loaded: Any, manifests: Mapping[str, Any], *rest: Any) -> Any:
        reads.extend(["ids"] * len(manifests))
        return ids_of(loaded, manifests, *rest)

    monkeypatch.setattr(exact_commit, "failpoint", append)
    monkeypatch.setattr(manifests, "entries_of", entries_are_read)
    monkeypatch.setattr(row_ids, "_first_row_ids", ids_are_read)
    assert maintain(case, table) == ["rewrote 6 manifests as 1: readers find 6 instead of 11"]
    assert (len(appends), reads.count("entries")) == (5, 6 + 6 + 1), "to select them, to compare them and the new one"
    assert reads.count("ids") == (7 if case.version > 2 else 0)
    assert len(case.rows(table)) == 305


def _deletion(case: IcebergCase, table: TableRef) -> Any:
    """Iceberg's update that deletes a file."""
    java = case.java_table(table)
    return java.newDelete().deleteFile(java.newScan().planFiles().iterator().next().file())


@in_one_version
def test_writers_that_always_replace_the_manifests_end_the_rewrite(
    case: IcebergCase, table: TableRef, monkeypatch: pytest.MonkeyPatch
):
    history, rows = snapshots(case, table), len(case.rows(table))
    monkeypatch.setattr(exact_commit, "failpoint", lambda _: _deletion(case, table).commit())
    with pytest.raises(Transient, match="t: writers replaced manifests during 3 rewrites of them"):
        maintain(case, table)
    assert len(snapshots(case, table)) == len(history) + 3
    assert len(case.rows(table)) == rows - 150


@in_one_version
def test_manifests_that_another_installation_has_rewritten_are_not_rewritten_again(
    case: IcebergCase, table: TableRef, monkeypatch: pytest.MonkeyPatch
):
    new_update, done = iceberg_writer.manifest_rewrite.new_update, list[Sequence[str]]()

    def meanwhile(*args: Any) -> Any:
        monkeypatch.setattr(iceberg_writer.manifest_rewrite, "new_update", new_update)
        done.append(maintain(case, table))
        return new_update(*args)

    history = snapshots(case, table)
    monkeypatch.setattr(iceberg_writer.manifest_rewrite, "new_update", meanwhile)
    assert maintain(case, table) == []
    assert done == [["rewrote 6 manifests as 1: readers find 1 instead of 6"]]
    assert len(snapshots(case, table)) == len(history) + 1


def _stage(case: IcebergCase, table: TableRef) -> Callable[[], None]:
    _deletion(case, table).stageOnly().commit()
    java = case.java_table(table)
    staged = max(java.snapshots(), key=lambda one: one.timestampMillis())
    return lambda: case.java_table(table).manageSnapshots().cherrypick(staged.snapshotId()).commit()


def _begin_branch(case: IcebergCase, table: TableRef) -> Callable[[], None]:
    case.java_table(table).manageSnapshots().createBranch("audit").commit()

    def publish() -> None:
        _deletion(case, table).toBranch("audit").commit()
        case.java_table(table).manageSnapshots().fastForwardBranch("main", "audit").commit()
        case.java_table(table).manageSnapshots().removeBranch("audit").commit()

    return publish


@pytest.mark.parametrize("begin", [_stage, _begin_branch])
@pytest.mark.parametrize("moment", ["before", "in the commit"])
def test_a_change_that_was_staged_from_the_newest_snapshot_can_still_be_published(
    new_case: NewCase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    begin: Callable[[IcebergCase, TableRef], Callable[[], None]],
):
    case = new_case("hadoop", properties=PROPERTIES)
    table = case.create(tmp_path / "lake" / "t", name="t")
    publish = list[Callable[[], None]]()

    def act(*_: object) -> None:
        if not publish:
            publish.append(begin(case, table))

    if moment == "before":
        act()
    with monkeypatch.context() as patches:
        patches.setattr(exact_commit, "failpoint", act)
        assert maintain(case, table) == []
    publish[0]()
    assert len(case.rows(table)) == 250
    assert len(maintain(case, table)) == 1
    assert len(case.rows(table)) == 250


@pytest.mark.parametrize("moment", ["before", "meanwhile"])
def test_manifests_are_selected_again_if_the_format_version_or_row_ids_came_meanwhile(
    new_case: NewCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
):
    """Iceberg would reuse manifests that it has written without row ids, and the rows would get new ones."""
    case = new_case("hadoop", version=2, properties=PROPERTIES)
    table = case.create(tmp_path / "lake" / "t", name="t")
    upgrade = f"ALTER TABLE {case.name(table)} SET TBLPROPERTIES ('format-version' = '3')"
    done = list[list[tuple[int, ...]]]()

    def act(*_: object) -> None:
        if not done:
            if moment == "meanwhile":
                case.sql(upgrade)
            case.append(table, "dt=0", 900, 901)
            done.append(lineage(case, table))

    if moment == "before":
        case.sql(upgrade)
    with monkeypatch.context() as patches:
        patches.setattr(exact_commit, "failpoint", act)
        expected = {
            "before": "the rows of its files got their row ids since manifests were selected",
            "meanwhile": "the table has format version 3 now, and had 2 when manifests were selected",
        }
        with pytest.raises(Conflict, match=expected[moment]):
            maintain(case, table)
    assert [lineage(case, table)] == done
    assert maintain(case, table) == ["rewrote 7 manifests as 1: readers find 1 instead of 7"]
    assert [lineage(case, table)] == done


@in_one_version
def test_files_that_are_listed_twice_stay_listed_twice(case: IcebergCase, table: TableRef):
    path = min(case.stored(table))
    for _ in range(2):
        add_again(case, table, path)
    rows, before = case.rows(table), entries(case, table)
    assert len(rows) == 400
    assert maintain(case, table) == ["rewrote 8 manifests as 1: readers find 1 instead of 8"]
    assert (case.rows(table), entries(case, table)) == (rows, before)


EXOTIC = (
    "(1, 1, float('nan'), double('nan'), 1.50, X'00ff', 'abc', timestamp'2020-01-01 01:02:03', date'2020-01-01', true)",
    "(2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    "(3, 2, float('-inf'), -0.0D, -1.50, X'', '', timestamp'1960-01-01 01:02:03', date'1960-01-01', false)",
    "(4, 3, float('0.1'), 0.0D, 9999.99, X'ff', 'äß', timestamp'2020-01-01 01:02:03', date'2020-01-01', false)",
)


CONDITIONS = (
    "i = 3",
    "i IS NULL",
    "f < 0",
    "isnan(f)",
    "f = float('0.1')",
    "d = 0",
    "isnan(d)",
    "dec = -1.50",
    "b = X''",
    "renamed LIKE 'ab%'",
    "renamed = 'äß'",
    "id = 4",
    "ts < timestamp'1970-01-01'",
    "dd = date'2020-01-01'",
    "NOT flag",
)


@in_one_version
def test_partition_values_of_all_kinds_and_of_earlier_types_and_specs_stay(case: IcebergCase, table: TableRef):
    name = f"{case.name(table)}x"
    assert table.catalog is not None
    catalog = replace(table.catalog, table=f"{table.catalog.table}x")
    exotic = replace(table, name="tx", location=f"{table.location}x", catalog=catalog)
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in {**PROPERTIES, "format-version": case.version}.items())
    case.sql(
        f"CREATE TABLE {name} (id bigint, i int, f float, d double, dec decimal(6, 2), b binary, s string, "
        "ts timestamp, dd date, flag boolean) USING iceberg PARTITIONED BY "
        "(i, f, d, dec, b, flag, truncate(2, s), bucket(4, id), days(ts), dd) "
        f"TBLPROPERTIES ('write.distribution-mode' = 'none', {listed})"
    )

    def insert() -> None:
        for row in EXOTIC:
            case.sql(f"INSERT INTO {name} VALUES {row}")

    def found() -> list[list[int]]:
        queries = [f"SELECT id FROM {name} WHERE {one} ORDER BY id" for one in CONDITIONS]
        return [[row["id"] for row in case.sql(query).collect()] for query in queries]

    def check(result: str) -> None:
        rows, before, of_conditions = case.rows(exotic), entries(case, exotic), found()
        assert [] not in of_conditions
        assert maintain(case, exotic) == [result]
        assert (case.rows(exotic), entries(case, exotic), found()) == (rows, before, of_conditions)

    insert()
    for column, kind in (("i", "bigint"), ("f", "double"), ("dec", "decimal(20, 2)")):
        case.sql(f"ALTER TABLE {name} ALTER COLUMN {column} TYPE {kind}")
    case.sql(f"ALTER TABLE {name} RENAME COLUMN s TO renamed")
    insert()
    check("rewrote 8 manifests as 1: readers find 1 instead of 8")
    case.java_table(exotic).updateSpec().removeField("dec").removeField("f").commit()
    case.sql(f"REFRESH TABLE {name}")
    insert()
    check("rewrote 4 manifests as 1: readers find 2 instead of 5")


def test_large_manifests_at_the_end_of_the_list_do_not_keep_the_others_from_a_rewrite(
    new_case: NewCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    case = new_case("hadoop", properties=PROPERTIES)
    table = case.create(tmp_path / "lake" / "t", name="t")
    assert maintain(case, table) == ["rewrote 6 manifests as 1: readers find 1 instead of 6"]
    for number in range(5):
        case.append(table, "dt=0", 900 + number, 901 + number)
    select = manifests.select_manifests
    monkeypatch.setattr(manifests, "select_manifests", lambda *args: select(*args, max_files=4))
    assert maintain(case, table) == ["rewrote 4 manifests as 1: readers find 3 instead of 6"]


def test_manifests_without_counts_of_their_files_stay_as_they_are(new_case: NewCase, tmp_path: Path):
    """Format version 1 allows it. Iceberg 1.10 can't rewrite them."""
    case = new_case("hadoop", version=1, properties=PROPERTIES)
    table = case.create(tmp_path / "lake" / "t", name="t")
    _remove_counts(case, table)
    rows, stored = case.rows(table), manifest_files(table)
    assert maintain(case, table) == []
    for number in range(4):
        case.append(table, "dt=0", 900 + number, 901 + number)
    assert maintain(case, table) == ["rewrote 4 manifests as 1: readers find 7 instead of 10"]
    assert len(case.rows(table)) == len(rows) + 4
    assert len(manifest_files(table)) == len(stored) + 5


def _remove_counts(case: IcebergCase, table: TableRef) -> None:
    loaded = load_table(case.format._settings, table)
    snapshot = snapshot_of(loaded)
    assert snapshot is not None
    listed, schema = snapshot.manifest_list, MANIFEST_LIST_FILE_SCHEMAS[1]
    with AvroFile[Record](loaded.io.new_input(listed), schema) as opened:
        found = list(opened)
    for position, field in enumerate(schema.fields):
        for one in found if field.name.endswith("_count") else ():
            one[position] = None
    path = Path(listed.removeprefix("file:"))
    os.remove(path)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    with AvroOutputFile[Record](
        output_file=loaded.io.new_output(listed),
        file_schema=schema,
        record_schema=schema,
        schema_name="manifest_file",
        metadata={"format-version": "1"},
    ) as output:
        output.write_block(found)
    clear_manifest_cache()


@pytest.mark.parametrize("key", ["commit.manifest.target-size-bytes", "commit.manifest.min-count-to-merge"])
def test_a_property_that_is_no_number_is_named(new_case: NewCase, tmp_path: Path, key: str):
    case = new_case("hadoop")
    table = case.create(tmp_path / "lake" / "t", name="t")
    case.sql(f"ALTER TABLE {case.name(table)} SET TBLPROPERTIES ('{key}' = '8MB')")
    with pytest.raises(Rejected, match=rf"^t: the table property {key} = '8MB' is not a whole number$"):
        maintain(case, table)


def test_manifests_in_a_catalog_where_commits_can_replace_each_other_are_not_rewritten(
    new_case: NewCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    case = new_case("hadoop", properties=PROPERTIES)
    table = case.create(tmp_path / "lake" / "t", name="t")
    monkeypatch.setattr(catalog_settings, "_unsafe_reason", iceberg_case._unsafe_reason)
    history = snapshots(case, table)
    with pytest.raises(Rejected, match="t: its manifests are not rewritten: in a Hadoop catalog on a local or mounted"):
        maintain(case, table)
    assert snapshots(case, table) == history


def test_a_table_that_is_not_served_is_refused(new_case: NewCase, tmp_path: Path):
    case = new_case("hadoop", properties={**PROPERTIES, "encryption.key-id": "k"})
    table = case.create(tmp_path / "lake" / "t", name="t")
    with pytest.raises(Rejected, match="encrypt"):
        maintain(case, table)

# SPDX-License-Identifier: Apache-2.0
"""Orphan files are found and deleted, and no file that a snapshot, the metadata, a plan or another table has."""

import os
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from contract.attempts import attempt, run
from contract.plans import plan_all
from iceberg_case import COLUMNS, IcebergCase, NewCase
from iceberg_readers import rows_of_all_readers

from lake.capabilities import OrphanFile, OrphanSearch
from lake.errors import Rejected, Transient
from lake.formats.iceberg.catalog.tables import load_table
from lake.formats.iceberg.jvm.java_table import JavaTable
from lake.formats.iceberg.jvm.orphan_removal import remove as remove_by_iceberg
from lake.formats.iceberg.read import storage_clock
from lake.model import TableRef
from lake.plan import StagedWork

pytestmark = [pytest.mark.spark, pytest.mark.paired("case")]

DAY = 86_400


def make_old(*paths: Path, days: float = 4) -> None:
    """Set the modification time of files, and of all files below directories."""
    at = time.time() - days * DAY
    for path in paths:
        for file in path.rglob("*") if path.is_dir() else [path]:
            if file.is_file():
                os.utime(file, (at, at))


def limits(*tracked: str, days: float = 3, others: Collection[TableRef] = ()) -> OrphanSearch:
    return OrphanSearch(older_than=timedelta(days=days), tracked=lambda: tracked, other_tables=others)


def find(case: IcebergCase, table: TableRef, search: OrphanSearch | None = None) -> set[str]:
    return {one.path for one in case.format.find_orphans(table, search or limits())}


def remove(
    case: IcebergCase, table: TableRef, found: Sequence[OrphanFile], search: OrphanSearch | None = None
) -> set[str]:
    with case.format.writer(table, case.spark, case.engines) as writer:
        return {one.path for one in writer.remove_orphans(found, search or limits())}  # type: ignore[attr-defined]


def find_and_remove(case: IcebergCase, table: TableRef, search: OrphanSearch | None = None) -> set[str]:
    found = case.format.find_orphans(table, search or limits())
    deleted = remove(case, table, found, search)
    assert deleted == {one.path for one in found}
    assert not any(map(os.path.exists, deleted))
    return deleted


def left_by_a_killed_writer(table: TableRef, name: str) -> Path:
    live = next(Path(table.location).rglob("*.parquet"))
    return Path(shutil.copy(live, live.with_name(f"{name}.parquet")))


def paths_of(staged: Sequence[StagedWork]) -> tuple[str, ...]:
    return tuple(path for one in staged for path in one.paths)


def test_files_of_killed_writers_go_once_they_are_old_enough_and_no_other_file(case: IcebergCase, table: TableRef):
    run(case, plan_all(case.format, table, "p"))
    case.append(table, "dt=0", 1000, 1010)
    rows, metadata = rows_of_all_readers(case, table), Path(table.location) / "metadata"
    old, young, edge = (left_by_a_killed_writer(table, name) for name in ("old", "young", "edge"))
    manifest = Path(shutil.copy(next(metadata.glob("*-m0.avro")), metadata / "11111111-m0.avro"))
    cut_off = metadata / "99999-11111111.metadata.json"
    cut_off.write_text('{"format-version": 2, "table-u')
    notes, hidden = Path(table.location) / "notes.csv", old.with_name("_hidden.parquet")
    for file in (notes, hidden):
        file.write_text("of the owner")
    make_old(Path(table.location), days=300)
    make_old(young, days=0)
    make_old(edge, days=2)
    assert find(case, table) == {str(old), str(manifest)}
    assert find(case, table, limits(days=1)) == {str(old), str(manifest), str(edge)}
    assert set(case.format.verify(table, (), rows=False).unowned) == {str(old), str(young), str(edge)}
    sizes = {one.path: one.bytes for one in case.format.find_orphans(table, limits())}
    assert sizes[str(old)] == old.stat().st_size
    assert find_and_remove(case, table) == {str(old), str(manifest)}
    assert all(file.exists() for file in (young, edge, cut_off, notes, hidden))
    assert find_and_remove(case, table, limits(days=1)) == {str(edge)}
    assert rows_of_all_readers(case, table) == rows
    for row in case.sql(f"SELECT snapshot_id FROM {case.name(table)}.snapshots").collect():
        case.session.read.option("snapshot-id", str(row["snapshot_id"])).table(case.name(table)).collect()


@pytest.mark.parametrize("version", [2, 3])
def test_files_of_an_unfinished_plan_and_files_listed_before_the_deletion_stay(
    new_case: NewCase, tmp_path: Path, version: int
):
    """In version 3 Iceberg writes the files, in a directory of the attempt."""
    case = new_case("jdbc", version=version)
    table = case.create(tmp_path / "lake" / "t", name="t")
    with attempt(case, plan_all(case.format, table, "p")) as one:
        rewrite = one.rewritten()
        make_old(Path(table.location))
        outputs, tracked = {output.path for output in rewrite.outputs}, paths_of(one.journal)
        assert find(case, table, limits(*tracked)) == set()
        found = case.format.find_orphans(table, limits())
        assert {file.path for file in found} == outputs, "they would be found without the journal"
        assert remove(case, table, found, limits(*tracked)) == set()
        one.writer.commit(rewrite)
    assert remove(case, table, found) == set(), "a snapshot lists them now"
    assert all(map(os.path.exists, outputs))


def test_iceberg_itself_deletes_no_file_that_it_lists(case: IcebergCase, table: TableRef):
    make_old(Path(table.location))
    files = [
        OrphanFile(path=str(path), bytes=path.stat().st_size, modified_at=load_time)
        for path in Path(table.location).rglob("*")
        if path.suffix in (".parquet", ".avro", ".json")
        for load_time in [storage_clock.datetime.fromtimestamp(path.stat().st_mtime, storage_clock.UTC)]
    ]
    orphan = left_by_a_killed_writer(table, "orphan")
    files.append(replace(files[0], path=str(orphan)))
    assert [one.path for one in remove_by_iceberg(JavaTable(case.spark(), table), files)] == [str(orphan)]
    assert len(case.rows(table)) > 0


def test_a_file_that_was_written_again_since_the_search_stays(case: IcebergCase, table: TableRef):
    orphan = left_by_a_killed_writer(table, "orphan")
    make_old(orphan)
    found = case.format.find_orphans(table, limits())
    assert [one.path for one in found] == [str(orphan)]
    make_old(orphan, days=5)
    assert remove(case, table, found) == set()
    assert orphan.exists()


def test_files_of_branches_and_staged_snapshots_and_statistics_stay(case: IcebergCase, table: TableRef):
    set_property(case, table, "write.wap.enabled", "true")
    case.session.conf.set("spark.wap.id", "staged")
    try:
        case.append(table, "dt=0", 2000, 2010)
    finally:
        case.session.conf.unset("spark.wap.id")
    case.java_table(table).manageSnapshots().createBranch("audit").commit()
    frame = case.session.range(5000, 5010, 1, 1).selectExpr(
        "id", "id AS value", "'' AS tip", "named_struct('lat', 1.0D, 'names', array('n')) AS stop", "'0' AS dt"
    )
    frame.writeTo(f"{case.name(table)}.branch_audit").append()
    case.append(table, "dt=0", 1000, 1010)
    actions = case.session._jvm.org.apache.iceberg.spark.actions.SparkActions.get(case.session._jsparkSession)
    actions.computeTableStats(case.java_table(table)).execute()
    metadata = load_table(case.format._settings, table).metadata
    assert len(metadata.statistics) == 1
    make_old(Path(table.location))
    assert find(case, table) == set()
    (staged,) = [one for one in metadata.snapshots if "wap.id" in one.summary.additional_properties]
    assert case.session.read.option("snapshot-id", str(staged.snapshot_id)).table(case.name(table)).count() > 0
    of_branch = case.session.read.option("branch", "audit").table(case.name(table))
    assert of_branch.where("id >= 5000").count() == 10


def test_files_of_an_expiry_that_kept_them_go_unless_they_wait_for_the_cleaner(case: IcebergCase, table: TableRef):
    commit = run(case, plan_all(case.format, table, "p"))
    expiry = case.java_table(table).expireSnapshots().expireOlderThan(time.time_ns() // 1_000_000 + 60_000)
    expiry.retainLast(1).cleanExpiredFiles(False).commit()
    rows, replaced = rows_of_all_readers(case, table), {version.path for version in commit.superseded}
    make_old(Path(table.location))
    waiting = limits(*replaced)
    assert find(case, table) >= replaced
    assert find(case, table, waiting) == find(case, table) - replaced
    assert all(path.endswith(".avro") for path in find_and_remove(case, table, waiting))
    assert find_and_remove(case, table) == replaced
    assert find(case, table) == set()
    assert case.format.verify(table, (), rows=False).unowned == ()
    assert rows_of_all_readers(case, table) == rows


@pytest.mark.parametrize("kind", ["hadoop", "jdbc"])
def test_metadata_files_that_the_log_names_stay_and_those_of_a_hadoop_catalog_always(
    new_case: NewCase, tmp_path: Path, kind: str
):
    case = new_case(kind, properties={"write.metadata.previous-versions-max": "2"})
    table = case.create(tmp_path / "lake" / "t", name="t")
    make_old(Path(table.location))
    metadata = load_table(case.format._settings, table).metadata
    assert len(metadata.metadata_log) == 2
    found = find(case, table)
    assert len(found) == (0 if kind == "hadoop" else 4)
    assert all(path.endswith(".metadata.json") for path in found)
    rows = case.rows(table)
    assert find_and_remove(case, table) == found
    case.append(table, "dt=0", 1000, 1010)
    assert len(case.rows(table)) == len(rows) + 10


def set_property(case: IcebergCase, table: TableRef, key: str, value: str) -> None:
    case.java_table(table).updateProperties().set(key, value).commit()


def test_the_owner_s_settings_a_short_age_and_a_wrong_clock_are_refused(
    case: IcebergCase, table: TableRef, monkeypatch: pytest.MonkeyPatch
):
    orphan = left_by_a_killed_writer(table, "orphan")
    make_old(orphan)
    found = case.format.find_orphans(table, limits())
    with pytest.raises(Rejected, match="must be older than 24 h, not only 23 h"):
        find(case, table, limits(days=23 / 24))
    set_property(case, table, "gc.enabled", "false")
    for call in (lambda: find(case, table), lambda: remove(case, table, found)):
        with pytest.raises(Rejected, match=r"its property gc\.enabled is false, so no file may be deleted"):
            call()
    with pytest.raises(Rejected, match=r"t: Iceberg deletes no orphan files .*GC is disabled"):
        remove_by_iceberg(JavaTable(case.spark(), table), found)
    set_property(case, table, "gc.enabled", "true")
    right = storage_clock.time.time_ns
    monkeypatch.setattr(storage_clock, "_now_ns", lambda: right() + DAY * 1_000_000_000)
    with pytest.raises(Transient, match="the search for orphan files waits: the clock of this host"):
        find(case, table)
    assert orphan.exists()


def rename(case: IcebergCase, table: TableRef) -> str:
    assert table.catalog is not None
    iceberg = case.session._jvm.org.apache.iceberg
    catalog = iceberg.spark.Spark3Util.loadIcebergCatalog(case.session._jsparkSession, table.catalog.name)
    parse = iceberg.catalog.TableIdentifier.parse
    catalog.renameTable(parse(table.catalog.table), parse(f"{table.catalog.table}_before"))
    return f"{case.name(table)}_before"


def drop_from_catalog(case: IcebergCase, table: TableRef) -> None:
    assert table.catalog is not None
    iceberg = case.session._jvm.org.apache.iceberg
    catalog = iceberg.spark.Spark3Util.loadIcebergCatalog(case.session._jsparkSession, table.catalog.name)
    catalog.dropTable(iceberg.catalog.TableIdentifier.parse(table.catalog.table), False)


@pytest.mark.parametrize("kind", ["jdbc", "hive"])
@pytest.mark.parametrize(
    ("before", "words"),
    [(rename, r"table n?\w*\.t_before has files in"), (drop_from_catalog, "is the metadata of another table")],
)
def test_a_location_with_files_of_an_earlier_table_is_refused(
    new_case: NewCase, tmp_path: Path, kind: str, before: Callable[[IcebergCase, TableRef], object], words: str
):
    case = new_case(kind)
    table = case.create(tmp_path / "lake" / "t", name="t")
    stored = case.stored(table)
    before(case, table)
    case.sql(f"CREATE TABLE {case.name(table)} ({COLUMNS}) USING iceberg LOCATION 'file:{table.location}'")
    make_old(Path(table.location))
    with pytest.raises(Rejected, match=words):
        find(case, table)
    assert case.stored(table) == stored


def test_a_location_with_another_table_is_refused_by_any_name_of_the_directory(
    case: IcebergCase, table: TableRef, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
):
    link = tmp_path_factory.mktemp("outside_of_the_warehouse") / "link"
    link.symlink_to(tmp_path / "lake")
    inside = f"{table.location}/data/dt=0/archive"
    for location in (table.location, inside, f"{link}/t", f"{link}/t/x"):
        other = TableRef(name="other", format="hive", location=location)
        with pytest.raises(Rejected, match=f"t: table other has files in {location}, which is not outside of"):
            find(case, table, limits(others=[other]))
    beside = [TableRef(name="other", format="hive", location=f"{table.location}{end}") for end in ("2", "/../u")]
    assert find(case, table, limits(others=beside)) == set()
    assert find(case, table, limits(others=[replace(table, name="an_earlier_name")])) == set()


def test_files_that_the_metadata_names_by_a_link_are_known(new_case: NewCase, tmp_path: Path):
    (tmp_path / "real" / "lake").mkdir(parents=True)
    (tmp_path / "lake").symlink_to(tmp_path / "real" / "lake")
    case = new_case("jdbc")
    table = case.create(tmp_path / "lake" / "t", name="t")
    set_property(case, table, "write.data.path", f"file:{tmp_path}/real/lake/t/data")
    case.append(table, "dt=0", 1000, 1010)
    orphan = left_by_a_killed_writer(table, "orphan")
    make_old(Path(table.location))
    rows = case.rows(table)
    assert find_and_remove(case, table) == {str(orphan)}
    assert case.rows(table) == rows

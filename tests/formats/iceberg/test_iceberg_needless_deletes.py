# SPDX-License-Identifier: Apache-2.0
"""Delete files that a commit removes since no data file needs them, and what happens meanwhile."""

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from contract.attempts import attempt, run
from contract.plans import plan_all
from iceberg_case import IcebergCase, NewCase
from iceberg_readers import live_paths
from iceberg_writers import equality_delete, merge_on_read_delete

from lake.errors import Conflict
from lake.formats.iceberg import writer as iceberg_writer
from lake.formats.iceberg.jvm import exact_commit
from lake.model import TableRef
from lake.plan import Plan, PlanKind
from lake.storage.locations import canonical_location

pytestmark = pytest.mark.spark


@pytest.fixture(params=[2, 3])
def case(new_case: NewCase, request: pytest.FixtureRequest) -> IcebergCase:
    return new_case("hadoop", version=request.param, merge_on_read=True)


def without_files(case: IcebergCase, table: TableRef, wanted: Callable[[str], bool]) -> None:
    """Remove whole data files from the table, as a DELETE by metadata does."""
    java = case.java_table(table)
    update, tasks = java.newDelete(), java.newScan().planFiles().iterator()
    while tasks.hasNext():
        file = tasks.next().file()
        if wanted(canonical_location(str(file.location()))):
            update.deleteFile(file)
    update.commit()


def rolled_back(case: IcebergCase, table: TableRef) -> None:
    java = case.java_table(table)
    java.manageSnapshots().rollbackTo(java.currentSnapshot().parentId()).commit()


def plan_of_first_file(case: IcebergCase, table: TableRef) -> Plan:
    """A plan over the one file that has the rows 0 to 49."""
    plan = plan_all(case.format, table, "p", partitions=["dt=0"])
    first = min(plan.groups[0].slices, key=lambda one: Path(str(one.path)).stat().st_mtime_ns)
    return replace(plan, kind=PlanKind.COMPACTION, groups=(replace(plan.groups[0], slices=(first,)),))


@pytest.mark.parametrize("moment", ["before the commit", "between two tries"])
def test_a_rollback_to_a_state_that_needs_a_delete_file_restores_no_deleted_row(
    case: IcebergCase, table: TableRef, monkeypatch: pytest.MonkeyPatch, moment: str
):
    case.append(table, "dt=0", 7, 8)
    equality_delete(case, table, 7)
    rows = case.rows(table)
    assert len(rows) == 299, "both rows with the id 7 are deleted"
    plan = plan_of_first_file(case, table)
    kept = canonical_location(str(plan.groups[0].slices[0].path))
    acts: list[Callable[[], Any]] = [
        lambda: without_files(case, table, lambda path: "/dt=0/" in path and path != kept),
        lambda: rolled_back(case, table),
    ]
    needless = iceberg_writer.needless_deletes

    def read(*arguments: Any) -> Collection[Any]:
        found = needless(*arguments)
        acts.pop(0)()
        return found

    with attempt(case, plan) as one:
        rewrite = one.rewritten()
        if moment == "before the commit":
            acts.pop(0)()
        else:
            monkeypatch.setattr(exact_commit, "failpoint", lambda name: acts.pop(0)() if acts else None)
        monkeypatch.setattr(iceberg_writer, "needless_deletes", read)
        with pytest.raises(Conflict, match=r"rolled back while the plan was committed|Cannot determine history"):
            one.writer.commit(rewrite)
        one.discarded(None)
    assert acts == []
    assert case.rows(table) == rows


@pytest.fixture
def by_double(new_case: NewCase, tmp_path: Path) -> tuple[IcebergCase, TableRef]:
    """A table with two files in the partition ``x=1.0`` and one in ``x=NaN``, which Iceberg's JSON can't express."""
    case = new_case("hadoop", version=2, merge_on_read=True)
    table = case.create(tmp_path / "lake" / "t", name="t")
    name = case.name(table)
    case.sql(f"DROP TABLE {name} PURGE")
    case.sql(
        f"CREATE TABLE {name} (id bigint, x double) USING iceberg PARTITIONED BY (x) TBLPROPERTIES "
        "('format-version' = '2', 'write.distribution-mode' = 'none', 'write.delete.mode' = 'merge-on-read')"
    )
    for low, value in ((0, "1.0D"), (10, "1.0D"), (20, "double('NaN')")):
        append(case, table, low, value)
    return case, table


def append(case: IcebergCase, table: TableRef, low: int, value: str) -> None:
    rows = case.session.range(low, low + 10, 1, 1).selectExpr("id", f"{value} AS x")
    rows.writeTo(case.name(table)).append()


def test_a_needless_delete_file_whose_partition_iceberg_can_t_read_stays_and_plans_commit(
    by_double: tuple[IcebergCase, TableRef],
):
    case, table = by_double
    merge_on_read_delete(case, table, "id = 25")
    without_files(case, table, lambda path: "NaN" in path)
    (delete,) = case.sql(f"SELECT file_path FROM {case.name(table)}.delete_files").collect()
    assert "NaN" in delete["file_path"]
    run(case, plan_all(case.format, table, "p"))
    assert len(live_paths(case, table)) == 1
    assert case.sql(f"SELECT id FROM {case.name(table)}").count() == 20


def delete_by_value_in_nan(case: IcebergCase, table: TableRef) -> None:
    """Commit an equality delete in the partition ``x=NaN``."""
    java, jvm = case.java_table(table), case.session._jvm
    tasks = java.newScan().planFiles().iterator()
    while "NaN" not in str((file := tasks.next().file()).location()):
        pass
    path = Path(table.location) / "data" / "eq-nan.parquet"
    schema = pa.schema([pa.field("id", pa.int64(), metadata={b"PARQUET:field_id": b"1"})])
    pq.write_table(pa.table({"id": [25]}, schema=schema), path)
    ids = case.session.sparkContext._gateway.new_array(jvm.int, 1)
    ids[0] = 1
    builder = jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(java.spec()).ofEqualityDeletes(ids)
    builder.withPath(str(path)).withFileSizeInBytes(path.stat().st_size).withRecordCount(1).withFormat("PARQUET")
    java.newRowDelta().addDeletes(builder.withPartition(file.partition()).build()).commit()


def test_a_needless_equality_delete_that_iceberg_drops_by_its_age_is_no_conflict(
    by_double: tuple[IcebergCase, TableRef],
):
    """lakefold can't name it to Iceberg, and each plan with an append meanwhile would be cancelled."""
    case, table = by_double
    delete_by_value_in_nan(case, table)
    without_files(case, table, lambda path: "NaN" in path)
    deletes = f"SELECT file_path FROM {case.name(table)}.delete_files"
    assert case.sql(deletes).count() == 1
    with attempt(case, plan_all(case.format, table, "p")) as one:
        rewrite = one.rewritten()
        append(case, table, 30, "1.0D")
        rows = case.rows(table)
        one.writer.commit(rewrite)
    assert (case.rows(table), case.sql(deletes).count()) == (rows, 0)
    assert len(live_paths(case, table)) == 2

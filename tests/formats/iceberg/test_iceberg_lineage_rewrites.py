# SPDX-License-Identifier: Apache-2.0
"""Files of format version 3 that ``arrow`` rewrites: every reader finds the same rows with the same lineage."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from contract.attempts import attempt
from contract.plans import plan_all
from iceberg_case import IcebergCase, NewCase
from iceberg_readers import live_paths, rows_of_all_readers
from iceberg_writers import add_file, merge_on_read_delete
from pyiceberg.table import StaticTable

from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from executors.engines.spark_tasks import SparkTasks
from executors.verification import verify_rewrite
from lake.formats.iceberg.catalog.tables import load_table
from lake.formats.iceberg.read.lineage import FIELD_IDS, LAST_UPDATED, ROW_ID
from lake.model import TableRef
from lake.plan import Commit, Plan
from lake.storage.locations import canonical_location

pytestmark = pytest.mark.spark

LINEAGE = ("id", "value", "tip", "_row_id", "_last_updated_sequence_number")


@pytest.fixture
def case(new_case: NewCase) -> IcebergCase:
    return new_case("hadoop", version=3, merge_on_read=True)


def lineage(case: IcebergCase, table: TableRef, snapshot: int | None = None) -> Sequence[tuple[Any, ...]]:
    """Some values of every row with its lineage, by two of Iceberg's readers in Spark, in a snapshot."""
    options = {} if snapshot is None else {"snapshot-id": str(snapshot)}
    found = []
    for vectorized in ("true", "false"):
        case.session.conf.set("spark.sql.iceberg.vectorization.enabled", vectorized)
        rows = case.session.read.options(**options).table(case.name(table)).select(*LINEAGE).collect()
        found.append(sorted((tuple(row) for row in rows), key=repr))
    case.session.conf.unset("spark.sql.iceberg.vectorization.enabled")
    assert found[0] == found[1]
    return found[0]


def by_arrow(case: IcebergCase, plan: Plan, engine: str = "arrow") -> Commit:
    """All groups of a plan, rewritten by an engine, verified and committed."""
    with attempt(case, plan) as one:
        prepared = one.prepared()
        assert [note.split(" (")[0] for note in prepared.notes] == [f"engine {engine}"], prepared.notes
        rewrite = one.writer.rewrite(prepared, lambda progress: None)
        verify_rewrite(rewrite, writer=one.writer)
        return one.writer.commit(rewrite)


def stores_all(paths: Sequence[str]) -> bool:
    """True if the files store the lineage of every row, in columns that readers find by their ids."""
    for path in paths:
        schema, rows = pq.read_schema(path), pq.ParquetFile(path).read(columns=list(FIELD_IDS))
        ids = {name: schema.field(name).metadata[b"PARQUET:field_id"] for name in FIELD_IDS}
        if ids != {name: str(number).encode() for name, number in FIELD_IDS.items()}:
            return False
        if any(rows[name].null_count for name in FIELD_IDS):
            return False
    return True


def read_alike(case: IcebergCase, table: TableRef, rows: Sequence[str], count: int) -> None:
    """Spark reads these rows, and PyIceberg and DuckDB as many, which are alike."""
    by_spark, by_python, by_duckdb = rows_of_all_readers(case, table)
    assert by_spark == rows
    assert by_python == by_duckdb
    assert len(by_python) == count


def snapshot_of(case: IcebergCase, table: TableRef) -> int:
    return int(case.java_table(table).currentSnapshot().snapshotId())


@pytest.mark.parametrize("where", ["this process", "tasks of Spark"])
@pytest.mark.parametrize("deletes", [False, True], ids=["without deletes", "deletion vectors"])
def test_rows_keep_their_lineage_in_every_reader_through_compactions_deletes_and_updates(
    new_case: NewCase, spark: Any, tmp_path: Path, deletes: bool, where: str
):
    backend = InProcessBackend() if where == "this process" else SparkTasks(lambda: spark)
    properties = {"write.merge.mode": "merge-on-read"}
    case = new_case("hadoop", version=3, merge_on_read=True, properties=properties, engines=(ArrowEngine(backend),))
    table = case.create(tmp_path / "lake" / "t", name="t")
    if deletes:
        merge_on_read_delete(case, table, "id IN (7, 60, 61, 299) OR id % 11 = 0")
    rows, was, before = case.rows(table), lineage(case, table), snapshot_of(case, table)
    commit = by_arrow(case, plan_all(case.format, table, "p"))
    assert len(commit.outputs) == 2
    assert stores_all([output.path for output in commit.outputs])
    read_alike(case, table, rows, len(rows))
    assert lineage(case, table) == was
    assert lineage(case, table, before) == was, "the state before is still readable"
    # New files beside the compacted ones, vectors and updates over the compacted ones.
    case.append(table, "dt=0", 1000, 1010)
    merge_on_read_delete(case, table, "id IN (8, 120, 1003)")
    case.sql(f"UPDATE {case.name(table)} SET value = -1 WHERE id IN (20, 200)")
    case.sql(
        f"MERGE INTO {case.name(table)} t USING (SELECT id, dt FROM {case.name(table)} WHERE id IN (30, 31, 250)) s "
        "ON t.id = s.id AND t.dt = s.dt WHEN MATCHED AND t.id = 30 THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET t.tip = 'merged'"
    )
    rows, was = case.rows(table), lineage(case, table)
    assert {"merged"} == {row[2] for row in was if row[0] in (31, 250)}
    for turn in ("q", "r"):
        commit = by_arrow(case, plan_all(case.format, table, turn))
        assert stores_all([output.path for output in commit.outputs])
        read_alike(case, table, rows, len(rows))
        assert lineage(case, table) == was
    found = case.format.verify(table, (), rows=True)
    assert (found.missing, found.wrong_size, found.rows, found.rows_expected) == ((), (), len(rows), len(rows))


def as_updated(case: IcebergCase, table: TableRef, path: str, changed: int) -> pa.Table:
    """The rows of a file as a writer rewrites them that keeps ids: the number of the changed row is null."""
    rows = pq.ParquetFile(path).read()
    by_id = {row[0]: row[3:] for row in lineage(case, table)}
    kept = [by_id[one] for one in rows["id"].to_pylist()]
    columns = {
        ROW_ID: [one for one, _ in kept],
        LAST_UPDATED: [None if row == changed else number for row, (_, number) in enumerate(kept)],
    }
    for name, values in columns.items():
        field = pa.field(name, pa.int64(), metadata={b"PARQUET:field_id": str(FIELD_IDS[name]).encode()})
        rows = rows.append_column(field, pa.array(values, pa.int64()))
    return rows


def test_files_of_appends_updates_and_compactions_are_merged_in_one_group(case: IcebergCase, tmp_path: Path):
    table = case.create(tmp_path / "lake" / "t", name="t")
    source = next(path for path in live_paths(case, table) if "dt=0" in path)
    updated = Path(source).with_name("updated.parquet")
    pq.write_table(as_updated(case, table, source, 5), updated)
    # An update as Iceberg's extension of Spark makes it: the file with the ids replaces the one whose rows it has.
    case.sql(f"DELETE FROM {case.name(table)} WHERE id IN ({', '.join(map(str, ids_of(source)))})")
    add_file(case, table, updated, "0")
    assert len({row[4] for row in lineage(case, table) if row[0] in ids_of(source)}) == 2
    plan = plan_all(case.format, table, "p", partitions=["dt=0"])
    two = tuple(one for one in plan.groups[0].slices if not str(one.path).endswith("updated.parquet"))
    rows, was = case.rows(table), lineage(case, table)
    by_arrow(case, replace(plan, groups=(replace(plan.groups[0], slices=two),)))
    case.append(table, "dt=0", 1000, 1010)
    rows, was = case.rows(table), lineage(case, table)
    plan = plan_all(case.format, table, "q", partitions=["dt=0"])
    stored = {tuple(sorted(set(FIELD_IDS) & set(pq.read_schema(str(one.path)).names))) for one in plan.groups[0].slices}
    assert (len(plan.groups[0].slices), len(stored)) == (3, 2), "only the new file has no columns of the lineage"
    commit = by_arrow(case, plan)
    assert stores_all([output.path for output in commit.outputs])
    assert (case.rows(table), lineage(case, table)) == (rows, was)


def ids_of(path: str) -> list[int]:
    found: list[int] = pq.ParquetFile(path).read()["id"].to_pylist()
    return found


@pytest.mark.parametrize("vectors", [False, True], ids=["position deletes", "and vectors"])
def test_position_deletes_from_before_the_upgrade_are_applied(new_case: NewCase, tmp_path: Path, vectors: bool):
    properties = {"write.delete.granularity": "partition"}
    case = new_case("hadoop", version=2, merge_on_read=True, properties=properties)
    table = case.create(tmp_path / "lake" / "t", name="t")
    merge_on_read_delete(case, table, "id IN (7, 8, 160)")
    case.sql(f"ALTER TABLE {case.name(table)} SET TBLPROPERTIES ('format-version' = '3')")
    case.append(table, "dt=0", 1000, 1010)
    if vectors:
        merge_on_read_delete(case, table, "id IN (9, 299, 1003)")
    kinds = case.sql(f"SELECT DISTINCT file_format FROM {case.name(table)}.delete_files").collect()
    assert {row["file_format"] for row in kinds} == ({"PARQUET", "PUFFIN"} if vectors else {"PARQUET"})
    rows, was = case.rows(table), lineage(case, table)
    assert len({row[3] for row in was} - {None}) == len(was)
    commit = by_arrow(case, plan_all(case.format, table, "p"))
    assert stores_all([output.path for output in commit.outputs])
    read_alike(case, table, rows, len(was))
    assert lineage(case, table) == was
    assert case.sql(f"SELECT * FROM {case.name(table)}.delete_files").count() == 0


@pytest.mark.parametrize(("by", "layout"), [(("value", "id"), "linear"), (("value", "id"), "zorder")])
def test_rows_keep_their_lineage_when_they_are_sorted(
    case: IcebergCase, tmp_path: Path, by: tuple[str, ...], layout: str
):
    table = case.create(tmp_path / "lake" / "t", name="t")
    merge_on_read_delete(case, table, "id IN (7, 60)")
    rows, was = case.rows(table), lineage(case, table)
    commit = by_arrow(case, plan_all(case.format, table, "p", sort_columns=by, layout=layout))
    first = pq.ParquetFile(commit.outputs[0].path).read().to_pylist()
    assert first != sorted(first, key=lambda row: row["id"]), "the order has changed"
    assert (case.rows(table), lineage(case, table)) == (rows, was)


def test_rows_of_large_files_keep_their_lineage(case: IcebergCase, tmp_path: Path):
    """Inputs with hundreds of row groups, some of which are deleted; new files with several pages."""
    table = case.create(tmp_path / "lake" / "t", name="t")
    case.append(table, "dt=0", 1000, 61_000)
    merge_on_read_delete(case, table, "id % 7 = 0 OR id BETWEEN 5000 AND 9000 OR id > 60500")
    commit = by_arrow(case, plan_all(case.format, table, "p"))
    case.append(table, "dt=0", 100_000, 130_000)
    merge_on_read_delete(case, table, "id % 11 = 0 OR id BETWEEN 20000 AND 25000")
    rows, was = case.rows(table), lineage(case, table)
    assert len(was) > 60_000
    assert sum(output.rows for output in commit.outputs) > 40_000
    by_arrow(case, plan_all(case.format, table, "q"))
    assert (case.rows(table), lineage(case, table)) == (rows, was)


def metrics(case: IcebergCase, table: TableRef) -> list[Mapping[str, Any]]:
    """What the manifests state of the columns of the lineage, for each file; the sizes depend on the writer."""
    names = ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds", "column_sizes")
    found = []
    for row in case.sql(f"SELECT partition.dt, {', '.join(names)} FROM {case.name(table)}.files ORDER BY 1").collect():
        one = {}
        for name in names:
            values = {key: value for key, value in (row[name] or {}).items() if key in FIELD_IDS.values()}
            one[name] = set(values) if name == "column_sizes" else {key: _plain(value) for key, value in values.items()}
        found.append(one)
    return found


def _plain(value: Any) -> Any:
    return bytes(value).hex() if isinstance(value, bytes | bytearray) else value


@pytest.mark.parametrize(
    "properties",
    [{}, {"write.metadata.metrics.default": "full"}, {"write.metadata.metrics.default": "counts"}],
    ids=["truncated", "full", "counts"],
)
def test_the_metrics_of_the_columns_are_those_that_iceberg_records(
    new_case: NewCase, tmp_path: Path, properties: Mapping[str, str]
):
    found = {}
    for engine in ("arrow", "iceberg"):
        case = new_case("hadoop", version=3, properties=properties)
        table = case.create(tmp_path / engine / "lake" / "t", name="t")
        engines = case.engines if engine == "arrow" else ()
        by_arrow(replace(case, engines=engines), plan_all(case.format, table, "p"), engine)
        found[engine] = metrics(case, table)
        described = pq.read_metadata(live_paths(case, table)[0]).metadata[b"iceberg.schema"].decode()
        assert all(f'"{name}"' in described for name in FIELD_IDS)
    assert found["arrow"] == found["iceberg"]
    assert found["arrow"][0]["value_counts"].keys() == set(FIELD_IDS.values())


def test_the_rows_that_changed_since_a_sequence_number_are_the_same(case: IcebergCase, tmp_path: Path):
    """Readers that follow changes by the number of the last change skip files by the bounds of that column."""
    table = case.create(tmp_path / "lake" / "t", name="t")
    queries = [f"SELECT id FROM {case.name(table)} WHERE {LAST_UPDATED} > {number}" for number in range(8)]
    queries += [f"SELECT id FROM {case.name(table)} WHERE {ROW_ID} BETWEEN 40 AND {number}" for number in (44, 260)]

    def answers() -> list[list[int]]:
        return [sorted(row["id"] for row in case.sql(query).collect()) for query in queries]

    before = answers()
    assert len({len(one) for one in before}) > 5
    by_arrow(case, plan_all(case.format, table, "p"))
    assert answers() == before


def test_pyiceberg_plans_and_reads_the_new_files_with_their_vectors(case: IcebergCase, tmp_path: Path):
    table = case.create(tmp_path / "lake" / "t", name="t")
    by_arrow(case, plan_all(case.format, table, "p"))
    merge_on_read_delete(case, table, "id IN (7, 60, 61, 299)")
    static = StaticTable.from_metadata(load_table(case.format._settings, table).metadata_location)
    found = static.scan().to_arrow()
    assert sorted(found["id"].to_pylist()) == [one for one in range(300) if one not in (7, 60, 61, 299)]
    assert not set(FIELD_IDS) & set(found.column_names)
    assert all(canonical_location(task.file.file_path) for task in static.scan().plan_files())

# SPDX-License-Identifier: Apache-2.0
"""What writers do to an Iceberg table between a plan's preparation and its commit, and what must not be committed."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from contract.attempts import attempt, run
from contract.plans import plan_all
from iceberg_case import VALUES, IcebergCase
from iceberg_writers import equality_delete, merge_on_read_delete
from pyiceberg.table import StaticTable
from toys.engine import CopyRows

from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from executors.engines.stitch.engine import ParquetStitchEngine
from lake.errors import Conflict, LakefoldError, Rejected
from lake.formats.iceberg import writer as iceberg_writer
from lake.formats.iceberg.catalog.tables import load_table
from lake.formats.iceberg.jvm import exact_commit
from lake.formats.iceberg.jvm.java_table import JavaTable
from lake.model import TableRef

pytestmark = [pytest.mark.spark, pytest.mark.paired("case")]


def as_others_read(case: IcebergCase, table: TableRef) -> tuple[list[int], list[int]]:
    """The ids of all rows as PyIceberg reads the table, and as DuckDB reads its live files."""
    loaded = load_table(case.format._settings, table)
    static = StaticTable.from_metadata(loaded.metadata_location)
    by_pyiceberg = sorted(static.scan().to_arrow()["id"].to_pylist())
    paths = [task.file.file_path.removeprefix("file:") for task in static.scan().plan_files()]
    found = duckdb.sql(f"SELECT id FROM read_parquet({paths}, hive_partitioning = false)").fetchall() if paths else []
    return by_pyiceberg, sorted(row[0] for row in found)


def ids(case: IcebergCase, table: TableRef) -> list[int]:
    return sorted(row["id"] for row in case.session.table(case.name(table)).select("id").collect())


def operations(case: IcebergCase, table: TableRef) -> list[str]:
    """The operations of the table's snapshots, oldest first."""
    rows = case.sql(f"SELECT operation FROM {case.name(table)}.snapshots ORDER BY committed_at").collect()
    return [row["operation"] for row in rows]


def test_a_plan_is_one_replace_snapshot_and_every_reader_reads_the_same_rows(case: IcebergCase, table: TableRef):
    rows, before = case.rows(table), as_others_read(case, table)
    commit = run(case, plan_all(case.format, table, "p"))
    assert operations(case, table) == ["append"] * 6 + ["replace"]
    assert case.rows(table) == rows
    assert as_others_read(case, table) == before
    assert before[0] == before[1] == ids(case, table)
    summary = case.sql(f"SELECT summary FROM {case.name(table)}.snapshots WHERE operation = 'replace'").collect()[0][0]
    assert (summary["added-records"], summary["deleted-records"], summary["total-records"]) == ("300", "300", "300")
    assert (summary["lakefold.plan-id"], summary["lakefold.epoch"]) == ("p", "1")
    assert commit.instant == str(case.java_table(table).currentSnapshot().snapshotId())


def test_new_files_have_the_names_places_and_metrics_of_iceberg_s_writer(case: IcebergCase, tmp_path: Path):
    case.properties = {
        "write.metadata.metrics.column.tip": "truncate(4)",
        "write.metadata.metrics.column.value": "none",
    }
    table = case.create(tmp_path / "lake" / "t", name="t")
    metrics = "value_counts, null_value_counts, lower_bounds, upper_bounds, partition, spec_id, sort_order_id"
    files = f"SELECT {metrics}, file_path, split_offsets, record_count FROM {case.name(table)}.files"

    def merged(rows: Sequence[Any]) -> dict[str, Any]:
        """What a file of all rows has, of one partition."""
        keys = {key for row in rows for key in row["lower_bounds"]}
        return {
            "tip": min(bytes(row["lower_bounds"][3]) for row in rows),
            "keys": keys - {6},
            "values": {key: sum(row["value_counts"][key] for row in rows) for key in rows[0]["value_counts"]},
            "nulls": {key: sum(row["null_value_counts"][key] for row in rows) for key in rows[0]["null_value_counts"]},
            "partition": {row["partition"]["dt"] for row in rows},
            "spec": {(row["spec_id"], row["sort_order_id"]) for row in rows},
        }

    wanted = merged(case.sql(f"{files} WHERE partition.dt = '0'").collect())
    run(case, plan_all(case.format, table, "p"))
    (new,) = case.sql(f"{files} WHERE partition.dt = '0'").collect()
    assert merged([new]) == wanted
    assert 2 not in wanted["keys"]
    assert 6 not in new["lower_bounds"], "bounds of floating points leave NaN out"
    assert bytes(new["lower_bounds"][3]) == b"tip "
    where, _, name = new["file_path"].rpartition("/")
    assert where.endswith("/data/dt=0")
    assert name.startswith("00000-1-")
    assert name.endswith("-00001.parquet")


BETWEEN: dict[str, tuple[Callable[[IcebergCase, TableRef], object], bool]] = {
    "append": (lambda case, table: case.append(table, "dt=0", 10_000, 10_010), True),
    "two appends": (lambda case, table: [case.append(table, "dt=1", n, n + 1) for n in (10_000, 10_001)], True),
    "new column": (lambda case, table: case.sql(f"ALTER TABLE {case.name(table)} ADD COLUMN extra int"), True),
    "renamed column": (lambda case, table: case.sql(f"ALTER TABLE {case.name(table)} RENAME COLUMN tip TO note"), True),
    "dropped column": (lambda case, table: case.sql(f"ALTER TABLE {case.name(table)} DROP COLUMN tip"), True),
    "new partition field": (
        lambda case, table: case.java_table(table).updateSpec().addField("id").commit(),
        True,
    ),
    "copy-on-write delete": (lambda case, table: case.delete(table, "dt=0"), False),
    "copy-on-write update": (lambda case, table: case.update(table, "dt=1"), False),
    "partition delete": (lambda case, table: case.sql(f"DELETE FROM {case.name(table)} WHERE dt = '0'"), False),
    "overwrite": (
        lambda case, table: case.sql(f"INSERT OVERWRITE {case.name(table)} SELECT * FROM {case.name(table)} LIMIT 9"),
        False,
    ),
    "row-level delete of an input": (lambda case, table: merge_on_read_delete(case, table, "id = 7"), False),
    "compaction by another program": (lambda case, table: compacted_by_iceberg(case, table), False),
    "rollback": (lambda case, table: rolled_back(case, table), False),
    "appends that expire": (lambda case, table: appended_and_expired(case, table), False),
    "base snapshot that expires": (lambda case, table: base_expired(case, table), True),
    "another plan": (lambda case, table: run(case, plan_all(case.format, table, "other")), False),
    "main forwarded to a branch": (lambda case, table: main_replaced(case, table, "head"), True),
    "main replaced by a branch of an earlier state": (lambda case, table: main_replaced(case, table, "parent"), False),
}


def compacted_by_iceberg(case: IcebergCase, table: TableRef) -> None:
    actions = case.session._jvm.org.apache.iceberg.spark.actions.SparkActions.get()
    actions.rewriteDataFiles(case.java_table(table)).option("rewrite-all", "true").execute()


def rolled_back(case: IcebergCase, table: TableRef) -> None:
    java = case.java_table(table)
    java.manageSnapshots().rollbackTo(java.currentSnapshot().parentId()).commit()


def appended_and_expired(case: IcebergCase, table: TableRef) -> None:
    case.append(table, "dt=0", 10_000, 10_010)
    case.append(table, "dt=0", 10_010, 10_020)
    case.forget(table)


def base_expired(case: IcebergCase, table: TableRef) -> None:
    """The snapshot expires on which the plan was prepared, and the one after it is kept."""
    case.append(table, "dt=0", 10_000, 10_010)
    case.forget(table)


def main_replaced(case: IcebergCase, table: TableRef, start: str) -> None:
    """A branch from the ``head`` or its ``parent`` gets a commit and becomes ``main``."""
    current = case.java_table(table).currentSnapshot()
    of = current.snapshotId() if start == "head" else current.parentId()
    case.java_table(table).manageSnapshots().createBranch("audit", of).commit()
    dt = case.session.range(10_000, 10_010, 1, 1).selectExpr(*VALUES, "'0' AS dt")
    dt.writeTo(f"{case.name(table)}.branch_audit").append()
    java = case.java_table(table)
    java.manageSnapshots().replaceBranch("main", java.refs()["audit"].snapshotId()).commit()


@pytest.mark.parametrize("what", BETWEEN)
def test_writes_during_a_plan_lose_and_double_no_row(case: IcebergCase, table: TableRef, what: str):
    act, commits = BETWEEN[what]
    with attempt(case, plan_all(case.format, table, "p")) as one:
        rewrite = one.rewritten()
        act(case, table)
        rows = case.rows(table)
        if commits:
            one.writer.commit(rewrite)
        else:
            one.refused(rewrite)
    assert case.rows(table) == rows
    assert as_others_read(case, table)[0] == ids(case, table)
    found = case.format.verify(table, (), rows=False)
    assert (found.missing, found.wrong_size) == ((), ())


def test_an_equality_delete_that_is_committed_meanwhile_applies_to_the_new_files(case: IcebergCase, table: TableRef):
    with attempt(case, plan_all(case.format, table, "p")) as one:
        rewrite = one.rewritten()
        equality_delete(case, table, 7)
        rows = case.rows(table)
        assert len(rows) == 299
        one.writer.commit(rewrite)
    assert case.rows(table) == rows
    listed = case.format.snapshot(table).slices.to_pylist()
    assert {row["partition"] for row in listed if row["log_files"]} == {"dt=0"}


def test_a_table_that_is_dropped_and_created_again_gets_no_commit(case: IcebergCase, table: TableRef):
    with attempt(case, plan_all(case.format, table, "p")) as one:
        rewrite = one.rewritten()
        outputs = {Path(output.path): Path(output.path).read_bytes() for output in rewrite.outputs}
        case.sql(f"DROP TABLE {case.name(table)} PURGE")
        case.create(Path(table.location), name="t")
        for path, content in outputs.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        rows = case.rows(table)
        with pytest.raises(LakefoldError):
            one.writer.commit(rewrite)
    assert (case.rows(table), case.commits(table)) == (rows, [])


class WithoutIds(CopyRows):
    """An engine with the defect that its files lose their field ids, as ``pyarrow``'s ``cast`` does."""

    @staticmethod
    def write(rows: pa.Table, sink: Any) -> None:
        plain = pa.schema([pa.field(one.name, one.type) for one in rows.schema]).remove_metadata()
        pq.write_table(pa.Table.from_arrays([column.combine_chunks() for column in rows.columns], schema=plain), sink)


def test_files_that_lost_their_field_ids_are_not_committed(case: IcebergCase, table: TableRef):
    case.engines = (WithoutIds(),)
    rows = case.rows(table)
    with attempt(case, plan_all(case.format, table, "p")) as one:
        rewrite = one.rewritten()
        with pytest.raises(Rejected, match="without field ids"):
            one.writer.commit(rewrite)
        assert one.discarded(None) == 1
    assert (case.rows(table), case.commits(table)) == (rows, [])


def test_files_from_before_a_column_was_dropped_are_left_alone_and_named(case: IcebergCase, table: TableRef):
    case.sql(f"ALTER TABLE {case.name(table)} DROP COLUMN tip")
    rows = case.rows(table)
    with attempt(case, plan_all(case.format, table, "p")) as one:
        with pytest.raises(Conflict, match=r"another schema than the table's: tip \(id 3\)") as caught:
            one.prepared()
        assert len(caught.value.args[1][0].quarantine) == 3
    assert case.rows(table) == rows


@pytest.fixture
def committing(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What happens between the last check and the call that replaces the metadata, once each."""
    meanwhile: list[Callable[[], object]] = []

    def disturbed(name: str) -> None:
        if name == "in_commit" and meanwhile:
            meanwhile.pop(0)()

    monkeypatch.setattr(exact_commit, "failpoint", disturbed)
    return meanwhile


def test_a_commit_between_the_last_check_and_the_call_is_seen_and_lost_by_neither(
    case: IcebergCase, table: TableRef, committing: list[Callable[[], object]]
):
    rows = len(case.rows(table))
    with attempt(case, plan_all(case.format, table, "p")) as one:
        rewrite = one.rewritten()
        committing += [
            lambda: case.append(table, "dt=0", 10_000, 10_010),
            lambda: case.append(table, "dt=1", 10_010, 10_020),
        ]
        one.writer.commit(rewrite)
    assert committing == []
    assert len(case.rows(table)) == rows + 20
    assert len(case.format.snapshot(table).slices) == 4


def test_a_withdrawal_between_the_last_check_and_the_call_prevents_the_commit(
    case: IcebergCase, table: TableRef, committing: list[Callable[[], object]]
):
    rows = case.rows(table)
    plan = plan_all(case.format, table, "p")
    with attempt(case, plan) as sleeper, attempt(case, plan, 2) as second:
        rewrite = sleeper.rewritten()
        second.journal = sleeper.journal
        committing.append(lambda: second.discarded(None))
        with pytest.raises(Conflict, match="withdrawn"):
            sleeper.writer.commit(rewrite)
    assert (case.rows(table), case.commits(table)) == (rows, [])


@pytest.mark.crossed(2, first="rest")
def test_a_withdrawal_that_is_rolled_back_before_the_call_prevents_the_commit_too(
    case: IcebergCase, table: TableRef, committing: list[Callable[[], object]]
):
    """The table's newest snapshot is then the one that was checked, and the files of the commit are gone."""
    rows = case.rows(table)
    plan = plan_all(case.format, table, "p")
    with attempt(case, plan) as sleeper, attempt(case, plan, 2) as second:
        rewrite = sleeper.rewritten()
        second.journal = sleeper.journal
        committing.append(lambda: (second.discarded(None), rolled_back(case, table)))
        with pytest.raises(LakefoldError):
            sleeper.writer.commit(rewrite)
    assert committing == []
    assert operations(case, table).count("replace") == 0
    assert (case.rows(table), case.commits(table)) == (rows, [])


def test_a_plan_of_a_database_that_was_restored_is_found_by_its_id_and_not_made_twice(
    case: IcebergCase, table: TableRef
):
    plan = plan_all(case.format, table, "p")
    with attempt(case, plan) as one, attempt(case, plan, 2) as again:
        first, second = one.rewritten(), again.rewritten()
        commit = one.writer.commit(first)
        with pytest.raises(Conflict):
            again.writer.commit(second)
        found = case.format.find_commit(table, "p")
        assert found is not None
        assert (found.instant, found.epoch) == (commit.instant, 1)
        assert again.discarded(None) == 1
    assert case.commits(table) == [("p", 1)]
    assert len(case.rows(table)) == 300


def test_expiry_keeps_snapshots_that_the_retention_the_table_s_age_or_a_tag_keeps(case: IcebergCase, table: TableRef):
    from datetime import timedelta

    name = case.name(table)
    commit = run(case, plan_all(case.format, table, "p"))
    with case.format.writer(table, case.spark, case.engines) as writer:
        writer.retention = timedelta(hours=1)  # type: ignore[attr-defined]
        assert len(writer.delete(commit.superseded).retained) == 6
        writer.retention = timedelta()  # type: ignore[attr-defined]
        case.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('history.expire.max-snapshot-age-ms' = '3600000')")
        kept = writer.delete(commit.superseded).retained
        assert set(kept.values()) == {
            "left to the table's own expiry (history.expire.max-snapshot-age-ms = 3600000, "
            "history.expire.min-snapshots-to-keep = 1, branches and tags)"
        }
        case.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('history.expire.max-snapshot-age-ms' = '1')")
        java = case.java_table(table)
        java.manageSnapshots().createTag("audit", java.currentSnapshot().parentId()).commit()
        with pytest.raises(Conflict, match="'audit' keeps it"):
            writer.delete(commit.superseded)
        java.manageSnapshots().removeTag("audit").commit()
        time.sleep(0.01)
        result = writer.delete(commit.superseded)
    assert (result.retained, result.bytes_freed) == ({}, sum(version.bytes for version in commit.superseded))
    assert len(case.rows(table)) == 300


def test_a_streaming_reader_sees_each_row_once_through_compactions_and_withdrawals(
    case: IcebergCase, table: TableRef, tmp_path: Path
):
    def read_on() -> list[int]:
        stream = case.session.readStream.format("iceberg").load(case.name(table)).writeStream.format("parquet")
        query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query.start(str(tmp_path / "sink")).awaitTermination()
        return sorted(row["id"] for row in case.session.read.parquet(str(tmp_path / "sink")).select("id").collect())

    assert read_on() == ids(case, table)
    for turn in range(3):
        run(case, plan_all(case.format, table, f"p{turn}"))
        case.append(table, "dt=0", 1000 + turn, 1001 + turn)
        with attempt(case, plan_all(case.format, table, f"w{turn}")) as one:
            one.rewritten()
            assert one.discarded(None) == 1
        assert read_on() == ids(case, table)
    assert operations(case, table).count("replace") == 3


def test_partitions_of_every_transform_and_type_keep_their_values(spark: Any, tmp_path: Path):
    case = IcebergCase(session=spark)
    table = case.create(tmp_path / "lake" / "seed", name="seed")
    catalog = case.name(table).partition(".")[0]
    name = f"{catalog}.lake.every"
    case.sql(
        f"CREATE TABLE {name} (id bigint, s string, d date, ts timestamp, n timestamp_ntz, dec decimal(9,2), b binary, "
        "f boolean, i int) USING iceberg PARTITIONED BY (bucket(4, id), truncate(2, s), years(d), months(ts), days(n), "
        "dec, b, f, i) TBLPROPERTIES ('write.distribution-mode' = 'none', 'write.object-storage.enabled' = 'true')"
    )
    values = (
        "id, IF(id % 2 = 0, NULL, concat('a/ b', id)) AS s, date_add(DATE'1969-12-30', CAST(id AS int)) AS d, "
        "TIMESTAMP'1969-11-30 23:30:00' AS ts, TIMESTAMP_NTZ'2026-11-27 05:00:00' AS n, "
        "CAST(-1.5 AS decimal(9,2)) AS dec, CAST('x=y' AS binary) AS b, true AS f, 2147483647 AS i"
    )
    for _ in range(2):
        spark.range(0, 6, 1, 1).selectExpr(*_split(values)).sortWithinPartitions("id").writeTo(name).option(
            "fanout-enabled", "true"
        ).append()
    assert table.catalog is not None
    ref = replace(table, location=str(tmp_path / "lake" / "every"), catalog=replace(table.catalog, table="lake.every"))
    partitions = f"SELECT DISTINCT partition FROM {name}.files"
    rows, before = case.rows(ref), {repr(row) for row in case.sql(partitions).collect()}
    listed = case.format.snapshot(ref).slices.to_pylist()
    commit = run(case, plan_all(case.format, ref, "p"))
    assert len(commit.outputs) == len(listed) // 2 == len(before)
    assert case.rows(ref) == rows
    assert {repr(row) for row in case.sql(partitions).collect()} == before
    found = case.format.find_commit(ref, "p")
    assert found is not None
    assert set(found.outputs) == set(commit.outputs)
    assert spark.table(name).where("i = 2147483647 AND d = DATE'1969-12-30'").count() == 2


def _split(values: str) -> list[str]:
    """The expressions of a list, whose commas may be inside parentheses."""
    parts, depth = [""], 0
    for character in values:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


@pytest.mark.parametrize("engine", [ArrowEngine, ParquetStitchEngine])
def test_a_delete_by_metadata_keeps_the_rows_that_bounds_leave_out(
    case: IcebergCase, tmp_path: Path, engine: type[ArrowEngine | ParquetStitchEngine]
):
    """Spark removes whole files of which the bounds say that all rows fit the condition."""
    case.engines = (engine(InProcessBackend()),)
    table = case.create(tmp_path / "lake" / "t", name="t")
    name = case.name(table)
    full = "TBLPROPERTIES ('format-version' = '2', 'write.metadata.metrics.default' = 'full')"
    case.sql(f"CREATE OR REPLACE TABLE {name} (id bigint, x double, s string) USING iceberg {full}")
    for key, values in enumerate((("1000.0D", "'b'"), ("double('NaN')", "repeat('z', 5000)"), ("5.0D", "'a'"))):
        # Nullable, since Spark writes columns of constants as required, and `stitch` does not merge these with others.
        columns = (f"IF(id < 0, NULL, {value}) AS {column}" for column, value in zip("xs", values, strict=True))
        case.session.range(key, key + 1, 1, 1).selectExpr("id", *columns).writeTo(name).append()
    run(case, plan_all(case.format, table, "p", engine=engine.name))
    assert [row["id"] for row in case.sql(f"SELECT id FROM {name} WHERE s > 'zz'").collect()] == [1]
    case.sql(f"DELETE FROM {name} WHERE x < 1000000.0D")
    assert [row["id"] for row in case.sql(f"SELECT id FROM {name}").collect()] == [1]


@pytest.mark.parametrize("error", ["refusal", "interrupt"])
def test_a_commit_that_took_effect_keeps_its_files_after_any_answer_of_the_catalog(
    case: IcebergCase, tmp_path: Path, error: str, monkeypatch: pytest.MonkeyPatch
):
    table = case.create(tmp_path / "lake" / "t", name="t")
    rows_before, opened = case.rows(table), JavaTable.__init__

    class Operations:
        def __init__(self, java: Any) -> None:
            self.java, self.current, self.refresh = java, java.current, java.refresh

        def commit(self, base: Any, changed: Any) -> None:
            self.java.commit(base, changed)
            if error == "interrupt":
                raise KeyboardInterrupt
            self.java.commit(base, changed)  # refused, since the first call took effect

    def open_table(self: JavaTable, spark: Any, ref: TableRef) -> None:
        opened(self, spark, ref)
        self.operations = Operations(self.operations)

    monkeypatch.setattr(JavaTable, "__init__", open_table)
    if error == "interrupt":
        with pytest.raises(KeyboardInterrupt):
            run(case, plan_all(case.format, table, "p"))
    else:
        assert run(case, plan_all(case.format, table, "p")).plan_id == "p"
    case.sql(f"REFRESH TABLE {case.name(table)}")
    assert case.rows(table) == rows_before
    assert case.format.find_commit(table, "p") is not None


def test_a_late_commit_that_is_rolled_back_during_the_withdrawal_keeps_its_files(
    case: IcebergCase, table: TableRef, monkeypatch: pytest.MonkeyPatch
):
    """The table still has the snapshot, and reads of this state need the files."""
    rows, first = case.rows(table), case.java_table(table).currentSnapshot().snapshotId()
    asked = iceberg_writer.require_storage_clock
    made: list[str] = []
    with attempt(case, plan_all(case.format, table, "p")) as one:
        rewrite = one.rewritten()

        def late(loaded: Any, doing: str) -> int:
            if doing == "withdrawing an attempt" and not made:
                made.append(one.writer.commit(rewrite).instant)
                case.java_table(table).manageSnapshots().rollbackTo(first).commit()
            return asked(loaded, doing)

        monkeypatch.setattr(iceberg_writer, "require_storage_clock", late)
        assert one.discarded(None) == 0
    state = case.session.read.option("snapshot-id", made[0]).table(case.name(table)).collect()
    assert sorted(repr(row.asDict(recursive=True)) for row in state) == rows
    assert case.rows(table) == rows

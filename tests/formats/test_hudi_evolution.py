# SPDX-License-Identifier: Apache-2.0
"""Tables whose columns changed since their files were written: rewritten with a proof at either level."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hudi_tables import copy, write
from hudi_writing import FORMAT, Table, ignore
from kept_tables import kept

from executors.verification import verify_rewrite
from lake.errors import Integrity, Rejected, Transient
from lake.plan import VerificationLevel

pytestmark = pytest.mark.spark

EVOLUTIONS: Mapping[str, tuple[str, str]] = {
    "int to bigint": ("cast(id as int)", "cast(id as bigint)"),
    "int to float": ("cast(id as int)", "cast(id / 4 as float)"),
    "int to double": ("cast(id as int)", "cast(id / 4 as double)"),
    "int to string": ("cast(id as int)", "concat('s', id)"),
    "bigint to double": ("id", "cast(id / 4 as double)"),
    "float to double": ("cast(id / 4 as float)", "cast(id / 3 as double)"),
    "double to string": ("cast(id * 1e9 / 3 as double)", "concat('s', id)"),
    "decimal of more places": ("cast(id as decimal(8, 2))", "cast(id / 8 as decimal(12, 4))"),
    "string to binary": ("cast(id as string)", "cast(cast(id as string) as binary)"),
    "in a struct": (
        "named_struct('a', cast(id as int), 'b', id)",
        "named_struct('a', cast(id as bigint), 'b', id, 'c', cast(if(id > 0, id, null) as string))",
    ),
    "in an array": ("array(cast(id as int))", "array(cast(id as bigint))"),
}
"""The column ``x`` before and after."""


def _frame(spark: Any, low: int, high: int, version: int, x: str | None) -> Any:
    columns = ["id", f"cast({version} as bigint) as ts", "'2026-01-01' as dt", "concat('v', id) as name"]
    if x is not None:
        columns.append(f"if(id % 5 <> 0, {x}, null) as x")
    return spark.range(low, high).selectExpr(*columns).coalesce(1)


def _copied(spark: Any, tmp_path: Path, kind: str, build: Callable[[Path], object], **options: str) -> Table:
    """A copy of the kept table of a kind."""
    return Table(spark, copy(kept(f"evolution {kind}", "trips", build, __file__), tmp_path / "trips"), options)


@pytest.mark.parametrize("evolution", EVOLUTIONS)
@pytest.mark.crossed
def test_files_from_before_a_column_took_another_type_are_clustered_with_a_proof_of_either_level(
    spark: Any, tmp_path: Path, evolution: str
) -> None:
    old, new = EVOLUTIONS[evolution]

    def build(base: Path) -> None:
        write(_frame(spark, 0, 20, 1, old), base)
        write(_frame(spark, 20, 40, 2, new), base)

    trips = _copied(spark, tmp_path, evolution, build)
    # Spark's own reader of columns knows no nested type but one.
    spark.conf.set("spark.sql.parquet.enableVectorizedReader", "false")
    try:
        _rewritten_at_both_levels(trips)
    finally:
        spark.conf.unset("spark.sql.parquet.enableVectorizedReader")


def _rewritten_at_both_levels(trips: Table) -> None:
    before = trips.rows()
    assert len(before) == 40
    for level in (VerificationLevel.FOOTER, VerificationLevel.HASH):
        plan = trips.plan(f"0198-{level}", receipt=level)
        with trips.writer() as writer:
            rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
            verify_rewrite(rewrite, writer=writer)
            if level is VerificationLevel.HASH:
                writer.commit(rewrite)
            else:
                writer.withdraw(plan.plan_id, None)
    assert trips.rows() == before
    assert sum(trips.other_rows()[1].values()) == 40


def _added(spark: Any, base: Path) -> None:
    write(_frame(spark, 0, 20, 1, None), base)
    write(_frame(spark, 20, 40, 2, "id"), base)


def _dropped(spark: Any, base: Path) -> None:
    allowed = {
        "hoodie.datasource.write.schema.allow.auto.evolution.column.drop": "true",
        "hoodie.avro.schema.validate": "false",
    }
    write(_frame(spark, 0, 20, 1, "id"), base)
    write(_frame(spark, 20, 40, 2, None), base, options=allowed)


@pytest.mark.parametrize("level", list(VerificationLevel))
@pytest.mark.parametrize("build", [_added, _dropped])
@pytest.mark.crossed
def test_files_from_before_an_added_or_dropped_column_are_clustered_with_a_proof(
    spark: Any, tmp_path: Path, build: Callable[[Any, Path], None], level: VerificationLevel
) -> None:
    trips = _copied(spark, tmp_path, build.__name__, partial(build, spark))
    before = trips.rows()
    trips.proved(trips.plan(receipt=level))
    assert trips.rows() == before
    assert sum(trips.other_rows()[1].values()) == 40


def _alter(trips: Table, change: str) -> None:
    """A change of the schema as Spark SQL makes it where schemas have a history."""
    jvm = trips.spark._jvm
    kinds = jvm.org.apache.hudi.common.schema.HoodieSchemaType
    create = jvm.org.apache.hudi.common.schema.HoodieSchema.create

    def drop(column: str) -> None:
        names = trips.spark.sparkContext._gateway.new_array(jvm.java.lang.String, 1)
        names[0] = column
        with trips.writer() as writer:
            writer._open().write_client.deleteColumns(names)

    def add(column: str, kind: Any) -> None:
        with trips.writer() as writer:
            writer._open().write_client.addColumn(column, create(kind))

    if change == "rename":
        with trips.writer() as writer:
            writer._open().write_client.renameColumn("x", "y")
    elif change == "add":
        add("y", kinds.INT)
    elif change == "drop":
        drop("x")
    elif change == "drop and add":
        drop("name")
        add("name", kinds.STRING)
    else:
        assert change == "drop and add the last"
        drop("x")
        add("x", kinds.INT)


HISTORY = {"hoodie.schema.on.read.enable": "true"}


def _with_a_history(spark: Any, tmp_path: Path, change: str) -> Table:
    def build(base: Path) -> None:
        write(_frame(spark, 0, 20, 1, "cast(id as int)"), base)
        _alter(Table(spark, base, HISTORY), change)
        frame = _frame(spark, 20, 40, 2, None if change == "drop" else "cast(id as int)")
        if change == "rename":
            frame = frame.withColumnRenamed("x", "y")
        if change == "add":
            frame = frame.selectExpr("*", "cast(if(id > 20, id, null) as int) as y")
        write(frame, base, options=HISTORY)

    return _copied(spark, tmp_path, f"with a history, {change}", build, **HISTORY)


def _read(trips: Table) -> list[tuple[object, ...]]:
    trips.spark.catalog.clearCache()
    frame = trips.spark.read.format("hudi").options(**trips.options).load(str(trips.base)).drop("_hoodie_file_name")
    return sorted((tuple(row) for row in frame.collect()), key=repr)


@pytest.mark.parametrize("level", list(VerificationLevel))
@pytest.mark.parametrize("change", ["add", "drop", "drop and add the last"])
@pytest.mark.crossed
def test_a_table_whose_schema_has_a_history_is_clustered_with_a_proof(
    spark: Any, tmp_path: Path, change: str, level: VerificationLevel
) -> None:
    trips = _with_a_history(spark, tmp_path, change)
    FORMAT.check(trips.ref)
    before = _read(trips)
    assert len(before) == 40
    trips.proved(trips.plan(receipt=level))
    assert _read(trips) == before


@pytest.mark.parametrize(
    ("change", "reason"),
    [("rename", "column x was renamed to y"), ("drop and add", "column name was dropped and added again")],
)
def test_a_table_in_which_a_name_is_not_always_the_same_column_is_refused(
    spark: Any, tmp_path: Path, change: str, reason: str
) -> None:
    trips = _with_a_history(spark, tmp_path, change)
    with pytest.raises(Rejected, match=rf"{reason} \(hoodie.schema.on.read.enable, .*; recreate the table"):
        FORMAT.check(trips.ref)


@pytest.mark.parametrize("log_format", ["avro", "parquet"])
@pytest.mark.parametrize("evolution", ["int to bigint", "int to string", "double to string", "in a struct"])
@pytest.mark.crossed
def test_slices_with_logs_from_before_a_widening_are_clustered_and_compacted_with_a_proof(
    spark: Any, tmp_path: Path, evolution: str, log_format: str
) -> None:
    old, new = EVOLUTIONS[evolution]

    def build(base: Path) -> None:
        for low, high, version, operation, x in (
            (0, 20, 1, "bulk_insert", old),
            (20, 40, 1, "bulk_insert", old),
            (15, 30, 2, "upsert", old),
            (0, 3, 3, "delete", old),
            (18, 22, 4, "upsert", new),
            (40, 50, 4, "bulk_insert", new),
        ):
            options = {"hoodie.logfile.data.block.format": log_format}
            write(_frame(spark, low, high, version, x), base, operation, merge_on_read=True, options=options)

    trips = _copied(spark, tmp_path, f"{evolution}, logs of {log_format}", build)
    before = trips.rows()
    assert len(before) == 47
    trips.proved(trips.compaction(most=1))
    assert trips.rows() == before
    trips.proved(trips.plan())
    assert trips.rows() == before
    result = FORMAT.verify(trips.ref, (), rows=True)
    assert result.rows == result.rows_expected == 47


def test_a_failed_validator_of_the_writers_is_not_an_unknown_commit(spark: Any, tmp_path: Path) -> None:
    validators = {
        "hoodie.precommit.validators": "org.apache.hudi.client.validator.SqlQueryEqualityPreCommitValidator",
        "hoodie.precommit.validators.equality.sql.queries": "select raise_error('of its own') from <TABLE_NAME>",
    }
    trips = _copied(spark, tmp_path, _added.__name__, partial(_added, spark), **validators)
    with trips.writer() as writer:
        plan = trips.plan()
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        with pytest.raises((Transient, Integrity), match="of its own"):
            writer.commit(rewrite)
        assert writer.withdraw(plan.plan_id, None) == 1

# SPDX-License-Identifier: Apache-2.0
"""Tables whose partition paths a key generator makes of time stamps in a column of numbers."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hudi_tables import copy, write
from hudi_writing import FORMAT, Table
from kept_tables import kept

from lake.errors import Rejected
from lake.plan import Commit, VerificationLevel

pytestmark = pytest.mark.spark

TIMES = {
    "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.TimestampBasedKeyGenerator",
    "hoodie.keygen.timebased.timestamp.type": "EPOCHMILLISECONDS",
    "hoodie.keygen.timebased.output.dateformat": "yyyy-MM-dd",
}
FIRST, SECOND = "dt=2026-01-01", "dt=2026-01-02"


def _frame(spark: Any, low: int, high: int, version: int = 1) -> Any:
    dt = "1767225600000 + id % 2 * 86400000 + id as dt"
    return spark.range(low, high).selectExpr("id", f"{version}L as ts", dt, "concat('v', id) as name").coalesce(1)


def _table(spark: Any, base: Path, *, merge_on_read: bool = False) -> Table:
    """Two commits to each of two days."""

    def build(base: Path) -> None:
        for low in (0, 10):
            write(_frame(spark, low, low + 10), base, merge_on_read=merge_on_read, options=TIMES)

    kind = f"key generators {'mor' if merge_on_read else 'cow'}"
    return Table(spark, copy(kept(kind, "trips", build, __file__), base))


def _updated_by_sql(trips: Table) -> None:
    """One row of the second day, by ``UPDATE`` in Spark SQL: Hudi takes the column for text there."""
    name = f"updated_{abs(hash(str(trips.base)))}"
    trips.spark.sql(f"create table {name} using hudi location '{trips.base}'")
    try:
        trips.spark.sql(f"update {name} set name = 'changed' where id = 1")
    finally:
        trips.spark.sql(f"drop table {name}")


def _types(trips: Table, commit: Commit) -> set[pa.DataType]:
    return {pq.read_schema(Path(trips.base) / output.path).field("dt").type for output in commit.outputs}


@pytest.mark.parametrize(
    "options",
    [{"engine": "spark"}, {"sort_columns": ("name",)}, {"engine": "stitch"}, {"receipt": VerificationLevel.HASH}],
    ids=["in batches", "by Hudi's reader", "copied", "hash"],
)
@pytest.mark.crossed(2)
def test_a_column_of_time_stamps_keeps_its_type_and_values(spark: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    trips = _table(spark, tmp_path / "trips")
    before, other = trips.rows(), trips.other_rows()
    assert len(before) == other[1].total() == 20
    assert _types(trips, trips.proved(trips.plan(**options))) == {pa.int64()}
    assert trips.rows() == before
    assert trips.other_rows() == other


def test_numbers_that_an_update_left_where_the_schema_has_text_are_copied_or_refused(
    spark: Any, tmp_path: Path
) -> None:
    trips = _table(spark, tmp_path / "trips")
    _updated_by_sql(trips)
    before = trips.rows()
    assert len(before) == 20
    untouched = r"/\S+ has numbers in partition column dt, which is text in the table's schema, and only a copy"
    for options, partition, obstacle in (
        ({"engine": "spark"}, FIRST, "engine = spark is set; set engine = auto"),
        ({"sort_columns": ("name",)}, FIRST, "a copy can't sort by name; unset sort_columns"),
        ({}, SECOND, r"has another schema than"),
    ):
        with (
            trips.writer() as writer,
            pytest.raises(Rejected, match=rf"{partition}{untouched}.*{obstacle}.*; otherwise recreate"),
        ):
            writer.prepare(trips.plan(partitions=[partition], **options), 1)
    assert trips.timeline().pending == ()
    commit = trips.proved(trips.plan(partitions=[FIRST]))
    assert _types(trips, commit) == {pa.int64()}
    assert trips.rows() == before
    result = FORMAT.verify(trips.ref, (), rows=True)
    assert result.rows == result.rows_expected == 20


@pytest.mark.shown_by(
    "tests/formats/test_hudi_key_generators.py::test_numbers_that_an_update_left_where_the_schema_has_text_are_copied_or_refused"
)
def test_numbers_in_a_merge_on_read_table_that_an_update_made_text_are_not_converted(
    spark: Any, tmp_path: Path
) -> None:
    trips = _table(spark, tmp_path / "trips", merge_on_read=True)
    _updated_by_sql(trips)
    for plan, obstacle in (
        (trips.plan(partitions=[FIRST]), "copy-on-write tables only"),
        (trips.compaction(), "logs are merged row by row"),
    ):
        with trips.writer() as writer, pytest.raises(Rejected, match=f"has numbers in partition column dt.*{obstacle}"):
            writer.prepare(plan, 1)
    assert trips.timeline().pending == ()

# SPDX-License-Identifier: Apache-2.0
"""Column statistics of columns that a table's writers chose: after a rewrite readers find by them what they found."""

import json
from pathlib import Path
from typing import Any

import pytest
from hudi_tables import STATISTICS, copy, write
from hudi_writing import Table
from kept_tables import kept

from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from lake.errors import Transient

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("nothing_unseen")]
LISTED = "hoodie.metadata.index.column.stats.column.list"
OF_WRITER = STATISTICS | {LISTED: "c39,place.x", "hoodie.metadata.index.column.stats.file.group.count": "1"}
CONDITIONS = ("c39 = 5", "c39 = 64", "c39 = 1005", "c39 < 10", "place.x = 7", "c0 = 5", "c38 < 3")


def write_wide(spark: Any, base: Path | str, low: int, operation: str = "insert", *, merge_on_read: bool) -> None:
    """60 rows with more columns than Hudi has statistics of where nothing is said."""
    columns = [f"cast(id as int) c{number}" for number in range(40)]
    dt = "concat('2026-01-0', cast(id % 2 + 1 as string)) dt"
    frame = spark.range(low, low + 60).selectExpr("id", "0L ts", dt, *columns, "named_struct('x', id) place")
    write(frame.coalesce(1), base, operation, merge_on_read=merge_on_read, options=OF_WRITER)


def wide(spark: Any, base: Path, *, merge_on_read: bool = False) -> Table:
    def build(base: Path) -> None:
        for low in (0, 60, 120):
            write_wide(spark, base, low, merge_on_read=merge_on_read)
        if merge_on_read:
            write_wide(spark, base, 30, "upsert", merge_on_read=True)

    kind = "merge-on-read" if merge_on_read else "copy-on-write"
    return Table(spark, copy(kept(f"wide, {kind}", "trips", build, __file__), base))


def counts(trips: Table) -> list[int]:
    """The rows that Spark finds where it skips files and partitions by statistics."""
    trips.spark.catalog.clearCache()
    frame = trips.spark.read.format("hudi").options(**STATISTICS, **{"hoodie.enable.data.skipping": "true"})
    rows = frame.load(str(trips.base))
    return [rows.where(condition).count() for condition in CONDITIONS]


@pytest.mark.parametrize("how", ["spark", "arrow", "compaction"])
@pytest.mark.crossed(2, first="spark")
def test_rows_are_found_by_statistics_of_the_columns_that_the_writers_listed(
    spark: Any, tmp_path: Path, how: str
) -> None:
    trips = wide(spark, tmp_path / "trips", merge_on_read=how == "compaction")
    trips.engines = (ArrowEngine(InProcessBackend()),)
    assert counts(trips) == [1, 1, 0, 10, 1, 1, 3]
    trips.run(trips.compaction() if how == "compaction" else trips.plan(engine=how))
    assert counts(trips) == [1, 1, 0, 10, 1, 1, 3]
    write_wide(spark, trips.base, 1000, merge_on_read=how == "compaction")
    assert counts(trips) == [1, 1, 1, 10, 1, 1, 3]


def test_columns_whose_definition_changes_while_a_plan_runs_are_those_of_its_commit(spark: Any, tmp_path: Path) -> None:
    trips = wide(spark, tmp_path / "trips")
    definitions = Path(trips.base) / trips.timeline().properties["hoodie.table.index.defs.path"]
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(trips.plan(), 1), lambda progress: None)
        content = json.loads(definitions.read_text())
        content["indexDefinitions"]["column_stats"]["sourceFields"].append("c38")
        definitions.write_text(json.dumps(content))
        definitions.with_name(f".{definitions.name}.crc").unlink()
        writer.commit(rewrite)
        options = writer._open()._fixed_options()
    assert set(options[LISTED].split(",")) == {"c39", "place.x", "c38"}


def test_definitions_of_indexes_that_cannot_be_read_are_no_reason_to_guess(spark: Any, tmp_path: Path) -> None:
    trips = wide(spark, tmp_path / "trips")
    plan = trips.plan()
    definitions = Path(trips.base) / trips.timeline().properties["hoodie.table.index.defs.path"]
    definitions.write_text("[]")
    with trips.writer() as writer, pytest.raises(Transient, match=r"index\.json: not the definitions of a table's"):
        writer.prepare(plan, 1)

# SPDX-License-Identifier: Apache-2.0
"""Files that do not lie below their table: what Hudi names elsewhere is refused, what is behind a link is served."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from hudi_tables import rows
from hudi_templates import ref
from hudi_writing import FORMAT, NewTable, delete

from lake.errors import Rejected

pytestmark = pytest.mark.spark
ONE = "dt=2026-01-01"


def test_a_table_that_was_bootstrapped_on_files_of_another_directory_is_refused_with_that_directory(
    spark: Any, tmp_path: Path
) -> None:
    source, base = tmp_path / "parquet", tmp_path / "t"
    # Hudi reads no timestamps of Spark's default kind in files that it did not write.
    rows(spark, 0, 20).drop("at").coalesce(1).write.partitionBy("dt").parquet(str(source))
    options = {
        "hoodie.table.name": "t",
        "hoodie.datasource.write.operation": "bootstrap",
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.partitionpath.field": "dt",
        "hoodie.datasource.write.hive_style_partitioning": "true",
        "hoodie.bootstrap.base.path": str(source),
        "hoodie.bootstrap.keygen.class": "org.apache.hudi.keygen.SimpleKeyGenerator",
        "hoodie.bootstrap.parallelism": "1",
        "hoodie.metadata.index.column.stats.enable": "false",  # Hudi does without for such tables
    }
    nothing = spark.read.parquet(str(source)).limit(0)
    nothing.write.format("hudi").options(**options).mode("overwrite").save(str(base))
    assert spark.read.format("hudi").load(str(base)).count() == 20, "its readers find them"
    with pytest.raises(
        Rejected, match=rf"bootstrap table \(hoodie.bootstrap.base.path = .*{source}\): its rows lie in "
    ):
        FORMAT.check(ref(base))


def test_a_partition_that_was_moved_behind_a_link_is_rewritten_and_cleaned_like_the_others(
    table: NewTable, tmp_path: Path
) -> None:
    trips = table()
    away = tmp_path / "another disk" / ONE
    shutil.move(Path(trips.base) / ONE, away)
    (Path(trips.base) / ONE).symlink_to(away)
    before = trips.rows()
    commit = trips.run(trips.plan())
    assert trips.rows() == before
    found = FORMAT.verify(trips.ref, commit.superseded, rows=True)
    assert (found.missing, found.wrong_size, found.unowned, found.rows) == ((), (), (), len(before))
    delete(trips, commit)
    new = {output.path for output in commit.outputs}
    assert {path.name for path in away.glob("*.parquet")} == {Path(path).name for path in new if path.startswith(ONE)}
    assert set(trips.data_files()) == new
    assert trips.rows() == before

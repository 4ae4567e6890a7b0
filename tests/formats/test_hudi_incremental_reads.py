# SPDX-License-Identifier: Apache-2.0
"""What Hudi's own incremental reads leave out, without lakefold: a control for what docs/hudi.md says of them."""

from pathlib import Path
from typing import Any

import pytest
from hudi_tables import COMPACT_NOW, rows, run_service, write

from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.timeline.timeline import Timeline

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("version", ["6", "9"])
def test_hudi_leaves_rows_out_of_incremental_reads_beside_a_pending_compaction_up_to_table_version_6(
    spark: Any, tmp_path: Path, version: str
) -> None:
    base = tmp_path / "trips"
    as_it_is = {"hoodie.write.table.version": version, "hoodie.write.auto.upgrade": "false"}

    def send(low: int, high: int, operation: str, ts: int) -> None:
        frame = rows(spark, low, high, version=ts, partitions=1)
        write(frame, base, operation, merge_on_read=True, options=as_it_is)

    def changed_since(begin: str) -> list[int]:
        options = {"hoodie.datasource.query.type": "incremental", "hoodie.datasource.read.begin.instanttime": begin}
        frame = spark.read.format("hudi").options(**options).load(str(base))
        return sorted(row.id for row in frame.select("id").collect())

    send(0, 10, "bulk_insert", 1)
    send(0, 2, "upsert", 2)
    run_service(spark, "run_compaction", base, "schedule", **COMPACT_NOW, **as_it_is)
    send(10, 20, "bulk_insert", 3)
    newest = Timeline(TableStorage(str(base))).commits[-1]
    begin = newest.time if version == "6" else newest.completed_at
    assert begin is not None
    send(10, 12, "upsert", 4)
    send(2, 4, "upsert", 5)
    # The first upsert's log is of a file group whose base file is younger than the compaction's request.
    assert changed_since(begin) == ([2, 3] if version == "6" else [2, 3, 10, 11])
    run_service(spark, "run_compaction", base, "run", **COMPACT_NOW, **as_it_is)
    assert changed_since(begin) == [2, 3, 10, 11]

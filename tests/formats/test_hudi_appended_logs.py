# SPDX-License-Identifier: Apache-2.0
"""Logs that grow under their names: writers before Hudi 1.0 append to them where the storage can, as HDFS."""

import json
from pathlib import Path
from typing import Any

import pytest
from hudi_tables import rows, write
from hudi_templates import replace
from hudi_writing import Table, ignore

from lake.errors import Conflict
from lake.formats.hudi.files.names import parse_file_name

pytestmark = [pytest.mark.spark, pytest.mark.slow]
SIX = {"hoodie.write.table.version": "6", "hoodie.write.auto.upgrade": "false"}
ALLOW = {
    "hoodie.clustering.updates.strategy": "org.apache.hudi.client.clustering.update.strategy.SparkAllowUpdateStrategy"
}


def append_to_earlier_logs(trips: Table) -> None:
    """Put the blocks of the newest commit at the ends of its slices' earlier logs, as Hudi 0.15 writes them to HDFS."""
    base, newest = Path(trips.base), trips.timeline().commits[-1]
    completed = base / trips.timeline().directory / (newest.completed_file or "")
    metadata = json.loads(completed.read_text())
    stats = [stat for found in metadata["partitionToWriteStats"].values() for stat in found]
    for stat in stats:
        new = base / stat["path"]
        file = parse_file_name(stat["path"])
        assert file is not None
        assert file.is_log
        (earlier,) = (path for path in new.parent.glob(f".{file.file_id}_{file.instant}.log.*") if path != new)
        offset = earlier.stat().st_size
        replace(earlier, earlier.read_bytes() + new.read_bytes())
        new.unlink()
        new.with_name(f".{new.name}.crc").unlink(missing_ok=True)
        stat |= {"path": f"{stat['partitionPath']}/{earlier.name}", "logOffset": offset, "logFiles": [earlier.name]}
    assert stats
    replace(completed, json.dumps(metadata).encode())


def test_an_update_that_is_appended_to_a_log_of_a_clustering_is_kept(spark: Any, tmp_path: Path) -> None:
    trips = Table(spark, tmp_path / "trips")
    write(rows(spark, 0, 60).coalesce(1), trips.base, merge_on_read=True, options=SIX)
    trips.upsert(0, 60, 1, "id % 3 = 0", **SIX)
    before = trips.rows()
    plan = trips.plan()
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        trips.upsert(0, 60, 2, "id % 5 = 0", **SIX, **ALLOW)
        append_to_earlier_logs(trips)
        updated = trips.rows()
        assert updated != before
        with pytest.raises(Conflict, match=r"a writer appended to dt=\S+\.log\.\S+ while the plan ran"):
            writer.commit(rewrite)
        writer.withdraw(plan.plan_id, None)
    assert trips.rows() == updated
    trips.run(trips.plan("0198-after"))
    assert trips.rows() == updated

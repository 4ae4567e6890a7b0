# SPDX-License-Identifier: Apache-2.0
"""Logs that grow under their names: writers before Hudi 1.0 append to them where the storage can, as HDFS."""

import json
from pathlib import Path
from typing import Any

import pytest
from hudi_tables import rows, write
from hudi_templates import replace
from hudi_writing import FORMAT, LOCK, SIX, Table, ignore
from test_hudi_adopt import adopted

from executors.verification import verify_rewrite
from lake.errors import Conflict
from lake.formats.hudi.files.names import parse_file_name
from lake.plan import Plan, PlanKind

pytestmark = [pytest.mark.spark, pytest.mark.slow]
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
        (earlier,) = (path for path in new.parent.glob(f".{file.file_id}_*.log.*") if path != new)
        offset = earlier.stat().st_size
        replace(earlier, earlier.read_bytes() + new.read_bytes())
        new.unlink()
        new.with_name(f".{new.name}.crc").unlink(missing_ok=True)
        stat |= {"path": f"{stat['partitionPath']}/{earlier.name}", "logOffset": offset, "logFiles": [earlier.name]}
    assert stats
    replace(completed, json.dumps(metadata).encode())


def six(spark: Any, tmp_path: Path, **options: str) -> Table:
    trips = Table(spark, tmp_path / "trips", SIX | options)
    write(rows(spark, 0, 60).coalesce(1), trips.base, merge_on_read=True, options=trips.options)
    trips.upsert(0, 60, 1, "id % 3 = 0")
    return trips


def test_an_update_that_is_appended_to_a_log_of_a_clustering_is_kept(spark: Any, tmp_path: Path) -> None:
    trips = six(spark, tmp_path)
    before = trips.rows()
    plan = trips.plan()
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        trips.upsert(0, 60, 2, "id % 5 = 0", **ALLOW)
        append_to_earlier_logs(trips)
        updated = trips.rows()
        assert updated != before
        with pytest.raises(Conflict, match=r"a writer appended to dt=\S+\.log\.\S+ while the plan ran"):
            writer.commit(rewrite)
        writer.withdraw(plan.plan_id, None)
    assert trips.rows() == updated
    trips.run(trips.plan("0198-after"))
    assert trips.rows() == updated


def planned(trips: Table, kind: PlanKind, plan_id: str = "0198-plan") -> Plan:
    return trips.plan(plan_id) if kind is PlanKind.CLUSTERING else trips.compaction(plan_id)


@pytest.mark.parametrize("kind", PlanKind)
def test_no_rewrite_is_committed_with_updates_that_an_owner_has_rolled_back(
    spark: Any, tmp_path: Path, kind: PlanKind
) -> None:
    """Hudi leaves the logs in place and adds one with a block that rolls their records back.

    The slices of a clustering have another number of logs then, and those of a compaction may have more.
    """
    trips = six(spark, tmp_path, **LOCK)
    before = trips.rows()
    trips.upsert(0, 60, 2, "id % 5 = 0")
    undone = trips.timeline().commits[-1].time
    plan = planned(trips, kind)
    with trips.writer() as writer, trips.writer() as owner:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        owner._open().write_client.rollback(undone)
        assert trips.rows() == before
        changed = r"a commit that wrote to dt=\S+\.log\.\S+ was rolled back while the plan ran"
        if kind is PlanKind.CLUSTERING:
            changed = "has 3 log files, the plan names 2"
        with pytest.raises(Conflict, match=changed):
            verify_rewrite(rewrite, writer=writer)
        with pytest.raises(Conflict, match=changed):
            writer.commit(rewrite)
        writer.withdraw(plan.plan_id, None)
    assert trips.rows() == before
    trips.run(planned(trips, kind, "0198-after"))
    assert trips.rows() == before


@pytest.mark.parametrize("kind", PlanKind)
def test_no_rewrite_is_committed_with_updates_in_an_appended_log_that_an_owner_has_rolled_back(
    spark: Any, tmp_path: Path, kind: PlanKind
) -> None:
    """The commits name the log with a smaller size afterwards."""
    trips = six(spark, tmp_path)
    trips.upsert(0, 60, 2, "id % 5 = 0")
    append_to_earlier_logs(trips)
    undone = trips.timeline().commits[-1]
    plan = planned(trips, kind)
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        for file in (Path(trips.base) / ".hoodie").glob(f"{undone.time}.*"):  # Hudi 0.15 appends its block to the log
            file.unlink()
        with pytest.raises(
            Conflict, match=r"a commit that wrote to dt=\S+\.log\.\S+ was rolled back while the plan ran"
        ):
            writer.commit(rewrite)
        writer.withdraw(plan.plan_id, None)


def test_no_compaction_is_committed_without_an_update_that_is_appended_to_its_log(spark: Any, tmp_path: Path) -> None:
    """The writer began before the compaction was published, so it does not name its log after the compaction."""
    trips = six(spark, tmp_path)
    plan = trips.compaction()
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        trips.upsert(0, 60, 2, "id % 5 = 0")
        append_to_earlier_logs(trips)
        updated = trips.rows()
        with pytest.raises(Conflict, match=r"a writer appended to dt=\S+\.log\.\S+ while the plan ran"):
            writer.commit(rewrite)
        writer.withdraw(plan.plan_id, None)
    assert trips.rows() == updated
    trips.run(trips.compaction("0198-after"))
    assert trips.rows() == updated


def test_a_plan_of_another_process_is_refused_if_a_writer_has_appended_to_its_log_since(
    spark: Any, tmp_path: Path
) -> None:
    trips = six(spark, tmp_path)
    with trips.writer() as other:
        client = other._open()
        assert client.write_client.scheduleClustering(client.empty_option).isPresent()
    (entry,) = FORMAT.pending_actions(trips.ref)
    plan = adopted(trips)
    trips.upsert(0, 60, 2, "id % 5 = 0", **ALLOW)
    append_to_earlier_logs(trips)
    updated = trips.rows()
    with (
        trips.writer() as writer,
        pytest.raises(Conflict, match=rf"deltacommit \d+ wrote to dt=\S+\.log\.\S+ after {entry.instant}"),
    ):
        writer.prepare(plan, 1)
    assert trips.rows() == updated
    assert [entry.instant for entry in FORMAT.pending_actions(trips.ref)] == [plan.adopted_instant]

# SPDX-License-Identifier: Apache-2.0
"""The events of Spark's Hive auto-merge: the same line for the same merge, and none where nothing was committed."""

import json
from datetime import UTC, datetime
from pathlib import Path

from executors.outcome import RunOutcome, RunResult
from lake.model import TableRef
from lake.plan import Claim, PartitionFigures, Plan, PlanKind, RewriteOptions, partition_milliseconds
from service.server.observability.merge_events import MergeEventsObserver

#: from the page on which its authors describe it
SHOWN = (
    '{"Event":"org.apache.spark.sql.hive.execution.AutoMergeSmallFileEvent","table":"user_profile.dwd_user_profile_di",'
    '"part":"second=visit/third=visit_7d","totalLenInByte":233,"numBefore":3,"numAfter":1,"diff":2,"costInMillSec":164}'
)


def claimed() -> Claim:
    plan = Plan(
        plan_id="01a206be-2901-74df-a6cb-001d5cddc329",
        table=TableRef(name="user_profile.dwd_user_profile_di", format="hive", location="/lake/t"),
        kind=PlanKind.CLUSTERING,
        groups=(),
        options=RewriteOptions(target_file_max_bytes=1 << 20),
        snapshot_instant="",
    )
    return Claim(plan=plan, epoch=1, attempt=1, executor="one", lease_until=datetime.now(UTC))


def merged(partition: str, files: int, bytes_: int) -> PartitionFigures:
    return PartitionFigures(
        partition=partition, files_before=files, bytes_before=bytes_, files_after=1, bytes_after=bytes_
    )


def test_a_completed_plan_adds_the_line_that_spark_with_auto_merge_would_have_written(tmp_path: Path):
    path = tmp_path / "merges.jsonl"
    path.write_text("what was there before\n")
    figures = (merged("second=visit/third=visit_7d", 3, 233), merged("second=visit/third=é", 5, 466))
    outcome = RunOutcome(result=RunResult.COMPLETED, figures=figures, milliseconds={"rewrite": 400, "commit": 92})
    MergeEventsObserver(path).plan_finished(claimed(), outcome)
    before, first, second = path.read_text(encoding="utf-8").splitlines()
    assert (before, first) == ("what was there before", SHOWN)
    told = json.loads(second)
    assert [told[name] for name in ("part", "numBefore", "numAfter", "diff", "costInMillSec")] == [
        "second=visit/third=é",
        5,
        1,
        4,
        328,
    ]


def test_the_parts_of_partitions_add_up_to_the_whole_time():
    parts = partition_milliseconds([merged(name, 1, 1) for name in "abc"], 100)
    assert (parts, sum(parts)) == ([33, 34, 33], 100)


def test_a_plan_that_committed_nothing_is_no_event(tmp_path: Path):
    observer = MergeEventsObserver(tmp_path / "merges.jsonl")
    for result in set(RunResult) - {RunResult.COMPLETED}:
        observer.plan_finished(claimed(), RunOutcome(result=result))
    assert not (tmp_path / "merges.jsonl").exists()


def test_a_partition_took_its_share_of_the_bytes_and_of_nothing_read_no_time():
    assert partition_milliseconds([merged("a", 1, 30), merged("b", 1, 10)], 120) == [90, 30]
    assert partition_milliseconds([merged("a", 1, 0)], 100) == [0]

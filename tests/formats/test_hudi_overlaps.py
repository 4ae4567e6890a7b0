# SPDX-License-Identifier: Apache-2.0
"""Commits of others that were under way while a plan of lakefold's was, as the timeline tells."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hudi_by_hand import PROPERTIES, T1, T2, T3, T4, T5, ByHand
from hudi_tables import rows, write
from hudi_writing import QUICK_LOCK, ignore, make_table

from lake.formats.hudi import FORMAT
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.read.commits import find_overlaps
from lake.formats.hudi.timeline.timeline import PLAN_KEY, Timeline, instant_datetime

FIRST, SECOND = "dt=2026-01-01", "dt=2026-01-02"


def met(table: Any) -> list[tuple[str, str, str]]:
    return [(o.action, o.instant, o.plan_id) for o in FORMAT.snapshot(table.ref).overlaps]


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["cow", "mor"])
@pytest.mark.crossed
def test_only_another_writers_commit_between_the_steps_of_a_plan_is_reported(
    spark: Any, tmp_path: Path, kind: str
) -> None:
    trips = make_table(spark, tmp_path, kind)
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(trips.plan("0198-first", partitions=[FIRST]), 1), ignore)
        assert met(trips) == [], "nothing was committed yet"
        write(rows(spark, 5000, 5002).coalesce(1), trips.base, "bulk_insert", merge_on_read=kind == "mor")
        between = trips.timeline().newest_commit_time
        writer.commit(rewrite)
    write(rows(spark, 6000, 6002).coalesce(1), trips.base, "bulk_insert", merge_on_read=kind == "mor")
    trips.run(trips.plan("0198-second", partitions=[SECOND]))
    action = "commit" if kind == "cow" else "deltacommit"
    assert met(trips) == [(action, between, "0198-first")]
    (overlap,) = FORMAT.snapshot(trips.ref).overlaps
    assert timedelta() < datetime.now(UTC) - overlap.completed_at < timedelta(minutes=5)


@pytest.mark.spark
@pytest.mark.shown_by(
    "tests/formats/test_hudi_overlaps.py::test_only_another_writers_commit_between_the_steps_of_a_plan_is_reported"
)
def test_plans_of_two_processes_of_lakefold_at_once_are_no_other_writers_commits(
    spark: Any, tmp_path: Path, other: Any
) -> None:
    trips = make_table(spark, tmp_path, "cow", QUICK_LOCK)
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(trips.plan("0198-here", partitions=[FIRST]), 1), ignore)
        other.run_plan(trips.base, "0198-there", [SECOND], QUICK_LOCK)
        assert other.answer() == "done"
        writer.commit(rewrite)
    assert met(trips) == []


class ByHandTimeline:
    """The timeline alone of a table made by hand, of layout 1 or 2."""

    def __init__(self, base: Path, layout: int) -> None:
        two = {"hoodie.table.version": "8", "hoodie.timeline.layout.version": "2"}
        self._base, self._layout = ByHand(base, PROPERTIES | (two if layout == 2 else {})).base, layout
        self._folder = self._base / (".hoodie" if layout == 1 else ".hoodie/timeline")
        self._folder.mkdir(exist_ok=True)

    def ours(self, begin: str, end: str, *, scheduled_by_us: bool = True) -> None:
        """A clustering that lakefold executed."""
        requested = {"clusteringPlan": {}, "extraMetadata": {PLAN_KEY: "0198-plan"} if scheduled_by_us else {}}
        kind = "replacecommit" if self._layout == 1 else "clustering"
        self._file(f"{begin}.{kind}.requested", requested, begin)
        self._complete(begin, "replacecommit", end, {"extraMetadata": {PLAN_KEY: "0198-plan"}})

    def theirs(self, begin: str, end: str) -> None:
        """A commit of another process."""
        self._file(f"{begin}.commit.requested", {}, begin)
        self._complete(begin, "commit", end, {"extraMetadata": {}})

    def copied(self) -> None:
        """Copy it without the times of its files."""
        for path in self._folder.iterdir():
            os.utime(path)

    def found(self) -> list[str]:
        return [overlap.instant for overlap in find_overlaps(Timeline(TableStorage(str(self._base))))]

    def _complete(self, begin: str, action: str, end: str, record: dict[str, Any]) -> None:
        self._file(f"{begin}.{action}" if self._layout == 1 else f"{begin}_{end}.{action}", record, end)

    def _file(self, name: str, record: dict[str, Any], at: str) -> None:
        (self._folder / name).write_text(json.dumps(record))
        os.utime(self._folder / name, (instant_datetime(at, "UTC").timestamp(),) * 2)


@pytest.fixture(params=[1, 2], ids=["layout 1", "layout 2"])
def timeline(request: pytest.FixtureRequest, tmp_path: Path) -> ByHandTimeline:
    return ByHandTimeline(tmp_path / "t", request.param)


def test_a_commit_begun_before_a_plan_and_ended_in_it_counts_and_one_that_only_touches_it_does_not(
    timeline: ByHandTimeline,
) -> None:
    timeline.ours(T2, T4)
    timeline.theirs(T1, T2)
    timeline.theirs(T5, T5)
    assert timeline.found() == []
    before, inside = T1[:-3] + "500", T3
    timeline.theirs(before, T3)
    timeline.theirs(inside, T5)
    assert timeline.found() == [before, inside]


def test_a_plan_that_another_process_scheduled_has_no_known_start(timeline: ByHandTimeline) -> None:
    timeline.ours(T1, T4, scheduled_by_us=False)
    timeline.theirs(T2, T3)
    assert timeline.found() == []


def test_layout_one_takes_completions_from_files_times_unless_the_files_were_copied(
    tmp_path: Path,
) -> None:
    timeline = ByHandTimeline(tmp_path / "t", 1)
    timeline.ours(T2, T3)
    timeline.theirs(T4, T5)
    timeline.copied()
    assert timeline.found() == []

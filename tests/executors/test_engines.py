# SPDX-License-Identifier: Apache-2.0
"""Engines that a format is handed: which group gets which, and why."""

import re
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from contract.plans import plan_all
from databases import sqlite_at
from hdfs_paths import place
from toys import versions
from toys.bench import Bench, raising
from toys.cases import VersionsCase
from toys.engine import CopyRows

from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from executors.outcome import RunResult
from lake.engine_choice import choose_engines, engine_notes
from lake.engines import EngineOutput, RewriteTask, build_task
from lake.errors import Conflict, Rejected, Transient
from lake.model import FileSlice, TableRef
from lake.plan import ClusteringGroup, RewriteOptions, RewriteProgress, Step
from service.control.store.views import StoreSettings

OPTIONS = RewriteOptions(target_file_max_bytes=1 << 30)
TASKS = [
    RewriteTask(group=n, inputs=(f"/lake/{n}.parquet",), outputs=(f"/lake/new{n}.parquet",), bytes=1) for n in range(3)
]
STITCH = CopyRows("stitch", refuses=["1.parquet"])


def test_each_group_gets_the_first_engine_that_can_and_the_others_obstacles_are_its_reason():
    choices = choose_engines(TASKS, [STITCH, CopyRows("arrow")], OPTIONS, "t")
    assert {group: choice.engine.name for group, choice in choices.items()} == {0: "stitch", 1: "arrow", 2: "stitch"}
    assert engine_notes(choices) == (
        "engine stitch (2 groups): the fastest engine available",
        "engine arrow (1 group): stitch can't: /lake/1.parquet is not for it",
    )


def test_an_engine_that_is_set_rewrites_all_or_the_plan_is_refused():
    engines = [STITCH, CopyRows("arrow")]
    chosen = choose_engines(TASKS, engines, replace(OPTIONS, engine="arrow"), "t")
    assert engine_notes(chosen) == ("engine arrow (3 groups): as set",)
    with pytest.raises(Rejected, match=r"t: engine = stitch can't rewrite this plan: .*; or set engine = auto"):
        choose_engines(TASKS, engines, replace(OPTIONS, engine="stitch"), "t")
    answer = "engine = spark is not available for this table; set engine to one of auto, stitch"
    with pytest.raises(Rejected, match=answer):
        choose_engines(TASKS, engines, replace(OPTIONS, engine="spark"), "t")


def test_groups_that_no_engine_can_rewrite_are_left_out_together_and_their_files_left_alone():
    with pytest.raises(
        Conflict, match=r"t: no engine can rewrite its files \(stitch can't: .* is not for it\)"
    ) as raised:
        choose_engines(TASKS, [CopyRows("stitch", refuses=["1.parquet", "2.parquet"])], OPTIONS, "t")
    assert [(one.group, one.quarantine) for one in raised.value.args[1]] == [
        (1, ("/lake/1.parquet",)),
        (2, ("/lake/2.parquet",)),
    ]


def test_a_group_that_no_engine_can_sort_fails_the_plan_and_quarantines_nothing():
    by_id = replace(OPTIONS, sort_columns=("id",))
    with pytest.raises(Rejected) as raised:
        choose_engines(TASKS, [CopyRows("stitch")], by_id, "t")
    assert str(raised.value) == (
        "t: no engine can sort group 0 by id (stitch can't: it can't sort by id); unset sort_columns"
    )


def test_a_slice_with_deltas_is_no_task_for_an_engine():
    table = TableRef(name="t", format="toy", location="/lake/t")
    whole = FileSlice(partition="p", file_id="1", path="p/1.parquet", bytes=1)
    elsewhere = replace(whole, file_id="2", path="/other/2.parquet")
    groups = [
        ClusteringGroup(partition="p", slices=slices, output_files=1)
        for slices in ((whole, elsewhere), (whole, replace(whole, log_files=("1.log",))), (replace(whole, path=None),))
    ]
    task = build_task(table, 0, groups[0], ["/lake/t/new"], schema="{}")
    inputs = ("/lake/t/p/1.parquet", "/other/2.parquet")
    assert task == RewriteTask(group=0, inputs=inputs, outputs=("/lake/t/new",), bytes=2, schema="{}")
    with pytest.raises(
        Rejected, match=r"^t: slice 1 of partition 'p' has deltas \(1.log\), which engines do not read$"
    ):
        build_task(table, 1, groups[1], ["/lake/t/new"])
    with pytest.raises(Rejected, match=r"^t: slice 1 of partition 'p' has no data file"):
        build_task(table, 2, groups[2], ["/lake/t/new"])


def test_without_any_engine_a_plan_is_refused():
    with pytest.raises(Rejected, match="t: there is no engine to rewrite its files"):
        choose_engines(TASKS, [], OPTIONS, "t")


def test_a_plan_runs_with_its_executors_engines(tmp_path: Path):
    bench = Bench(tmp_path, sqlite_at(tmp_path), StoreSettings(), VersionsCase())
    before, plan = bench.rows(), bench.request()
    first = versions.newest(bench.table)["files"][0]["path"]
    assert bench.run(engines=[CopyRows("stitch", refuses=[first]), CopyRows("arrow")]).result is RunResult.COMPLETED
    assert bench.rows() == before
    told = [event.reason for event in bench.store.plan_events(plan.plan_id)]
    assert "engine stitch (1 group): the fastest engine available" in told
    assert any(line.startswith("engine arrow (1 group): stitch can't: ") for line in told)
    bench.store.close()


class Counting(CopyRows):
    """Counts five seconds for each group."""

    def rewrite(self, tasks, options, report, cancelled):
        report(RewriteProgress(bytes_done=0, bytes_total=1, cpu_seconds=5.0 * len(tasks)))
        yield from super().rewrite(tasks, options, report, cancelled)


def test_a_failed_rewrite_leaves_its_time_and_its_counted_cpu(tmp_path: Path):
    bench = Bench(tmp_path, sqlite_at(tmp_path), StoreSettings(), VersionsCase())
    plan = bench.request()
    bench.format.hooks["rewritten"] = raising(Transient("a node went away"))
    assert bench.run(engines=[Counting()], heartbeat=timedelta(hours=1)).result is RunResult.REQUEUED
    view = bench.store.plan(plan.plan_id)
    assert view.milliseconds.keys() >= {Step.PREPARE, Step.REWRITE}
    assert view.cpu_measured
    bench.store.close()


def test_a_rewrite_repeated_without_some_groups_adds_to_the_counted_cpu(tmp_path: Path):
    bench = Bench(tmp_path, sqlite_at(tmp_path), StoreSettings(), VersionsCase())
    plan = bench.request()
    broken = place(f"{bench.table.location}/{plan.groups[1].slices[0].path}")
    broken.write_bytes(broken.read_bytes()[:-100])
    assert bench.run(engines=[Counting()]).result is RunResult.COMPLETED
    view = bench.store.plan(plan.plan_id)
    assert [group.number for group in view.left_out] == [1]
    others = sum(took for step, took in view.milliseconds.items() if step not in (Step.START, Step.REWRITE))
    assert 1000 * view.used_cpu_seconds - others == pytest.approx(10_000), "the group that is left, twice"
    bench.store.close()


@pytest.mark.parametrize("counts", [True, False], ids=["arrow", "an engine that counts nothing"])
def test_the_cpu_time_that_an_engine_counts_ends_up_with_its_plan(tmp_path: Path, counts: bool):
    bench = Bench(tmp_path, sqlite_at(tmp_path), StoreSettings(cores_per_plan=2.0), VersionsCase())
    plan = bench.request(partitions=["dt=0"])
    began = time.process_time()
    assert (
        bench.run(engines=(ArrowEngine(InProcessBackend(1)) if counts else CopyRows(),)).result is RunResult.COMPLETED
    )
    used, view = time.process_time() - began, bench.store.plan(plan.plan_id)
    others = 2 * sum(took for step, took in view.milliseconds.items() if step not in (Step.START, Step.REWRITE))
    rewriting = 1000 * view.used_cpu_seconds - others
    assert view.cpu_measured is counts
    if counts:
        assert 0 < rewriting <= 1000 * used, "no more than this process took"
    else:
        assert rewriting == pytest.approx(2 * view.milliseconds[Step.REWRITE]), "two cores for as long as it took"
    bench.store.close()


class Undivided(CopyRows):
    """Writes all rows into the first output."""

    def rewrite(self, tasks, options, report, cancelled):
        for task in tasks:
            (whole,) = super().rewrite([replace(task, outputs=task.outputs[:1])], options, report, cancelled)
            yield whole
            nothing = self.rows_of(Path(whole.path)).slice(0, 0)
            for path in task.outputs[1:]:
                self.put(nothing, Path(path))
                yield EngineOutput(group=task.group, path=path, bytes=Path(path).stat().st_size, rows=0)


def test_a_file_that_cant_be_split_fails_its_plan_instead_of_being_split_for_ever(tmp_path: Path):
    bench = Bench(tmp_path, sqlite_at(tmp_path), StoreSettings(), VersionsCase())
    before = bench.rows()
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    merged = plan_all(bench.format, bench.table, "0198-split")
    split = tuple(replace(group, output_files=2) for group in merged.groups)
    bench.requested(replace(merged, groups=split))
    outcome = bench.run(engines=[Undivided()])
    assert outcome.result is RunResult.FAILED
    assert re.fullmatch(
        r"partition '\S+': \S+ has \S+ KiB and can't be split: a new file has \S+ KiB; raise split_file_limit",
        outcome.error,
    )
    assert bench.rows() == before
    bench.store.close()

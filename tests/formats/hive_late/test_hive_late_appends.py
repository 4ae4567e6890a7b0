# SPDX-License-Identifier: Apache-2.0
"""Late appends to a partition that was moved, and writers beside a plan: rules 2 and 5."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from late_writing import (
    PARTITION,
    counted,
    data_files,
    deletion_begun,
    halted,
    here,
    home,
    in_partition,
    overwrite,
    swept,
    true_counts,
    write,
)
from toys.bench import Background, Bench
from waiting import wait_for

from executors.observer import Observer
from executors.outcome import RunResult
from executors.relocation.partition_sweep import SweepReport
from lake.errors import Integrity
from lake.formats.hive.writer import HiveWriter
from lake.metastore import MetastoreClient
from lake.plan import Claim, LockOwner, LockOwnerKind, PlanState, Step

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]


class AtStep(Observer):
    """Does something when a step of a plan has ended."""

    def __init__(self, step: Step, action: Callable[[], object]) -> None:
        self._step, self._action = step, action

    def step_finished(self, claim: Claim, step: Step, seconds: float) -> None:
        if step is self._step:
            self._action()


def test_rule_2_a_late_append_is_copied_once_and_counted_and_its_file_waits_for_its_deletion(bench: Bench):
    before, place = in_partition(bench), here(bench)
    late = write(home(bench), 900, 910)
    assert swept(bench).copied == 1
    assert (in_partition(bench), here(bench)) == (sorted(before + late), place)
    assert counted(bench) == true_counts(bench) == (2, sum(path.stat().st_size for path in place.glob("*.parquet")))
    assert [swept(bench).copied for _ in range(2)] == [0, 0]
    waiting = {due.version.path for due in bench.store.awaiting_deletion(bench.table)}
    assert f"{PARTITION}/part-late.parquet" in waiting
    bench.clean()
    assert (list(home(bench).glob("*.parquet")), in_partition(bench)) == ([], sorted(before + late))


@pytest.mark.parametrize("letter", ["x", "ü"])
def test_rule_2_a_late_file_with_a_long_name_is_copied_and_replaced_like_the_others(bench: Bench, letter: str):
    """The name of its copy was too long for the file system: no late file of the partition was copied any more."""
    before, name = in_partition(bench), f"topic.{letter * (240 // len(letter.encode()))}.parquet"
    late = write(home(bench), 900, 910, name) + write(home(bench), 910, 920)
    assert (swept(bench).copied, in_partition(bench)) == (2, sorted(before + late))
    late = write(home(bench), 900, 930, name) + write(home(bench), 910, 920)
    swept(bench)
    assert (halted(bench), in_partition(bench)) == (None, sorted(before + late))
    bench.clean()
    assert (data_files(home(bench)), in_partition(bench)) == ([], sorted(before + late))


def test_rule_2_a_half_written_file_is_copied_when_it_is_complete(bench: Bench):
    before = in_partition(bench)
    late = write(home(bench), 900, 910)
    path, whole = half_written(home(bench))
    report = swept(bench)
    assert (report.copied, report.waiting, in_partition(bench)) == (0, 1, before)
    path.write_bytes(whole)
    assert (swept(bench).copied, in_partition(bench)) == (1, sorted(before + late))


def half_written(place: Path) -> tuple[Path, bytes]:
    """The file of ``write`` without its end, and the whole of it."""
    path = place / "part-late.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:-4])
    return path, whole


def test_rule_5_nothing_is_committed_or_deleted_where_a_late_file_is_being_written(bench: Bench):
    before, place = in_partition(bench), here(bench)
    plan = bench.request()
    late = write(home(bench), 900, 910)
    path, whole = half_written(home(bench))
    outcome = bench.run()
    assert outcome.result is RunResult.COMPLETED, "the other partition's group is as it was"
    assert [bench.store.plan(plan.plan_id).groups[0].left_out is None, here(bench) == place] == [False, True]
    assert PARTITION not in {one.partition for one in bench.clean().deleted}
    path.write_bytes(whole)
    assert (swept(bench).copied, in_partition(bench)) == (1, sorted(before + late))
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    assert (in_partition(bench), swept(bench)) == (sorted(before + late), SweepReport())


@pytest.mark.crossed
@pytest.mark.parametrize("runs", [True, False])
def test_rule_5_a_late_file_is_copied_while_a_plan_holds_its_partition_and_is_in_its_commit(bench: Bench, runs: bool):
    before, plan, place = in_partition(bench), bench.request(partitions=[PARTITION]), here(bench)
    claim = bench.claim() if runs else None
    late = write(home(bench), 900, 910)
    assert (swept(bench).copied, in_partition(bench)) == (1, sorted(before + late))
    assert bench.state(plan) == ("inflight" if runs else "requested")
    assert bench.run(claim).result is RunResult.COMPLETED
    assert (in_partition(bench), here(bench) != place, swept(bench)) == (sorted(before + late), True, SweepReport())


@pytest.mark.crossed
@pytest.mark.parametrize("step", [Step.PREPARE, Step.REWRITE, Step.VERIFY])
def test_rule_5_an_append_while_a_plan_runs_is_part_of_its_commit(bench: Bench, step: Step):
    before, written, place = in_partition(bench), list[str](), here(bench)
    bench.request(partitions=[PARTITION])
    late = AtStep(step, lambda: written.extend(write(home(bench), 900, 910)))
    assert bench.run(observer=late).result is RunResult.COMPLETED
    assert (in_partition(bench), here(bench) != place) == (sorted(before + written), True)
    assert swept(bench) == SweepReport()


def test_rule_5_an_append_right_before_the_move_is_copied_right_after_it(bench: Bench):
    before, written = in_partition(bench), list[str]()
    bench.request(partitions=[PARTITION])
    place, metastore = here(bench), MetastoreClient.alter_partitions

    def altered(*arguments: Any) -> None:
        if not written:
            written.extend(write(place, 900, 910))
        metastore(*arguments)

    with mock.patch.object(MetastoreClient, "alter_partitions", altered):
        assert bench.run().result is RunResult.COMPLETED
    assert (in_partition(bench), swept(bench)) == (sorted(before + written), SweepReport())


def test_rule_5_an_overwrite_that_ends_while_a_plan_runs_takes_the_partition_back_and_cancels_the_plan(bench: Bench):
    anew = list[str]()
    plan = bench.request(partitions=[PARTITION])
    late = AtStep(Step.REWRITE, lambda: anew.extend(overwrite(home(bench), 500, 520)))
    assert bench.run(observer=late).result is RunResult.CANCELLED
    assert (here(bench), in_partition(bench), bench.state(plan)) == (home(bench), sorted(anew), "cancelled")
    assert swept(bench) == SweepReport()


def test_rule_5_a_plan_does_not_commit_while_a_round_is_in_its_partition_nor_is_one_let_in_at_its_commit(bench: Bench):
    keeper = LockOwner(kind=LockOwnerKind.SWEEP, name="a round")
    before, place = in_partition(bench), here(bench)
    bench.request(partitions=[PARTITION])
    assert bench.store.lock_partitions(bench.table, [PARTITION], keeper, alongside_plans=True) == {PARTITION}
    running = Background(bench.run)
    wait_for(lambda: inflight(bench) == Step.VERIFY, "the plan came to its commit")
    time.sleep(0.5)
    assert (here(bench), in_partition(bench)) == (place, before)
    refused = list[int]()
    with mock.patch.object(HiveWriter, "commit", holding(bench, keeper, refused)):
        bench.store.release_partitions(keeper)
        assert running.join().result is RunResult.COMPLETED
    assert refused == [0]
    assert in_partition(bench) == before


def inflight(bench: Bench) -> str | None:
    return next((plan.step for plan in bench.store.plans(state=PlanState.INFLIGHT)), None)


def holding(bench: Bench, keeper: LockOwner, held: list[int]) -> Any:
    commit = HiveWriter.commit

    def committed(writer: HiveWriter, rewrite: Any) -> Any:
        held.append(len(bench.store.lock_partitions(bench.table, [PARTITION], keeper, alongside_plans=True)))
        return commit(writer, rewrite)

    return committed


@pytest.mark.parametrize(
    "duty", ["record_discovered_relocations", "record_unrecorded_commits", "_withdraw_orphaned_stagings"]
)
def test_late_files_are_copied_although_another_duty_of_the_sweep_fails(bench: Bench, duty: str):
    """A document that can't be read would leave them out for as long as it is there."""
    rows = [*bench.rows(), *write(home(bench), 900, 910)]
    failing = mock.patch(f"executors.sweep.{duty}", side_effect=Integrity("it can't be understood"))
    with failing, pytest.raises(Integrity, match="understood"):
        bench.sweep()
    assert sorted(bench.rows()) == sorted(rows)


@pytest.mark.parametrize("died", ["before the first file", "without the metastore"])
def test_rule_2_rows_appended_after_a_deletion_began_become_visible_if_every_file_still_exists(bench: Bench, died: str):
    """The partition was halted, as if the added files might replace deleted ones."""
    deletion_begun(bench, died)
    rows = sorted([*in_partition(bench), *write(home(bench), 900, 910)])
    assert (swept(bench).copied, in_partition(bench), halted(bench)) == (1, rows, None)
    rows = sorted([*rows, *write(home(bench), 910, 920, "part-later.parquet")])
    assert (swept(bench).copied, in_partition(bench), halted(bench)) == (1, rows, None)
    bench.clean()
    assert (data_files(home(bench)), in_partition(bench), swept(bench)) == ([], rows, SweepReport())


@pytest.mark.parametrize("what", ["append after a file was deleted", "overwrite"])
def test_rule_2_files_written_after_a_deletion_began_halt_the_partition_if_a_file_is_missing(bench: Bench, what: str):
    """Either lakefold or an overwrite has removed it."""
    rows = in_partition(bench)
    deletion_begun(bench, "before the first file" if what == "overwrite" else "after a file")
    if what == "overwrite":
        overwrite(home(bench), 900, 910)
    else:
        write(home(bench), 900, 910)
    bench.sweep()
    assert "after lakefold began to delete there" in str(halted(bench))
    assert in_partition(bench) == rows

# SPDX-License-Identifier: Apache-2.0
"""The contract of executors, take-over, sweep and cleaner on tables of any format, with a real database.

To test a format, subclass ``RunContract`` with a fixture ``bench`` (``toys.bench.Bench``).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pyarrow.compute as pc
import pytest
from hdfs_paths import place, remove_tree
from toys.bench import Bench, Flaky
from uuid_utils import uuid7

from contract.attempts import Attempt, attempt, staged_on
from contract.plans import plan_split
from executors import cleaner
from executors.outcome import RunResult
from lake.capabilities import with_identity
from lake.errors import CommitUnknown, Conflict, LakefoldError, Transient
from lake.plan import Claim, Plan
from lake.ports import Capability, Rewrite
from service.control.store import PartitionsLocked

MOMENTS = ("before_prepare", "before_rewrite", "before_commit", "after_commit")
UNCOMMITTED = MOMENTS[:3]


class Killed(BaseException):
    """Not an error: the process ends here."""


@contextmanager
def disturbed(bench: Bench, moment: str, action: Callable[[], object]) -> Iterator[None]:
    """Inside the block, every opened writer runs ``action`` before or after one of its steps."""
    when, _, step = moment.partition("_")
    opened = bench.format.writer

    def disturbing(*arguments: Any) -> Any:
        writer = opened(*arguments)
        call = getattr(writer, step)

        def around(*given: Any, **named: Any) -> Any:
            if when == "before":
                action()
            done = call(*given, **named)
            if when == "after":
                action()
            return done

        setattr(writer, step, around)
        return writer

    with patch.object(bench.format, "writer", disturbing):
        yield


def raises(error: BaseException) -> Callable[[], None]:
    """Return an action that raises ``error``."""

    def action() -> None:
        raise error

    return action


@contextmanager
def asleep(bench: Bench, plan: Plan, claim: Claim) -> Iterator[tuple[Attempt, Rewrite]]:
    """Yield an executor that has claimed the plan, written all files, and stopped right before its commit."""
    with attempt(bench.case, plan, claim.epoch) as sleeper:
        sleeper.writer.journal = lambda staged: (
            sleeper.journal.append(staged),
            bench.store.record_staged(claim, staged),
        )[0]
        yield sleeper, sleeper.rewritten()


def ended(bench: Bench, plan: Plan, rows: Any, *, commits: int = 1, strays: Sequence[str] = ()) -> None:
    """Check after the sweep: the plan's number of commits, the same rows as before, no files except ``strays``."""
    bench.sweep()
    assert (bench.commits(plan), bench.rows()) == (commits, rows)
    assert (bench.pending(), bench.unowned()) == ({}, tuple(strays))
    left = [entry.staged for entry in bench.store.orphaned_stagings(bench.table)]
    assert staged_on(bench.case, bench.table, left) == set()


class WholeTables:
    """The obligations between executors and every format, on tables with and without partitions."""

    def test_a_plans_life_is_followed_from_its_request_to_the_deletion_of_replaced_files(self, bench: Bench):
        rows, plan = bench.rows(), bench.request()
        sizes = {item.path: item.bytes for group in plan.groups for item in group.slices}
        outcome = bench.run()
        assert outcome.result is RunResult.COMPLETED
        parts = bench.case.parts
        assert [(f.partition, f.files_before, f.files_after) for f in outcome.figures] == [
            (part, 6 // len(parts), 1) for part in parts
        ]
        assert bench.case.commits(bench.table) == [(plan.plan_id, 1)]
        ended(bench, plan, rows)
        waiting = bench.store.awaiting_deletion(bench.table)
        assert {due.version.path: due.version.bytes for due in waiting} == sizes
        assert bench.clean(timedelta(days=1)).deleted_files == 0, "their retention has not passed"
        assert bench.clean(dry_run=True).deleted_files == len(sizes)
        report = bench.clean()
        assert (report.deleted_files, report.bytes_freed, report.kept, report.error) == (
            6,
            sum(sizes.values()),
            (),
            None,
        )
        assert not bench.stored().keys() & sizes.keys()
        assert bench.store.awaiting_deletion(bench.table) == []
        ended(bench, plan, rows)

    def test_a_large_file_is_split_into_smaller_ones_with_the_same_rows(self, bench: Bench):
        for low, partition in zip(range(10_000, 100_000, 10_000), bench.case.parts, strict=False):
            assert bench.case.append(bench.table, partition, low, low + 4000)
        rows = bench.rows()
        bench.request()
        assert bench.run().result is RunResult.COMPLETED
        merged = pc.min(bench.format.snapshot(bench.table).slices["bytes"]).as_py()
        plan = plan_split(bench.format, bench.table, str(uuid7()))
        assert [(group.is_split, len(group.slices)) for group in plan.groups] == [(True, 1)] * len(bench.case.parts)
        bench.requested(plan)
        outcome = bench.run()
        assert outcome.result is RunResult.COMPLETED, outcome
        assert [(f.files_before, f.files_after) for f in outcome.figures] == [
            (1, group.output_files) for group in plan.groups
        ]
        again = bench.format.snapshot(bench.table)
        assert pc.max(again.slices["bytes"]).as_py() < merged
        ended(bench, plan, rows)

    @pytest.mark.parametrize("moment", [*UNCOMMITTED, "after_rewrite"])
    def test_an_attempt_that_fails_leaves_nothing_and_the_next_one_completes(self, bench: Bench, moment: str):
        rows, files, plan = bench.rows(), bench.stored(), bench.request()
        with disturbed(bench, moment, raises(Transient("a node went away"))):
            assert bench.run().result is RunResult.REQUEUED
        assert (bench.stored(), bench.pending(), bench.rows()) == (files, {}, rows)
        assert bench.run().result is RunResult.COMPLETED
        ended(bench, plan, rows)

    def test_nothing_is_staged_where_the_database_does_not_know_of_it(self, bench: Bench):
        rows, files, plan = bench.rows(), bench.stored(), bench.request()
        store = Flaky(bench.store)
        store.down["record_staged"] = 1
        assert bench.run(store=store).result is RunResult.REQUEUED
        assert (bench.stored(), bench.state(plan)) == (files, "requested")
        ended(bench, plan, rows, commits=0)

    @pytest.mark.parametrize("error", [CommitUnknown("no answer"), RuntimeError("the connection broke")])
    def test_a_commit_with_a_lost_answer_is_looked_up_and_recorded(self, bench: Bench, error: Exception):
        rows, plan = bench.rows(), bench.request()
        with disturbed(bench, "after_commit", raises(error)):
            assert bench.run().result is RunResult.COMPLETED
        assert (bench.state(plan), len(bench.store.awaiting_deletion(bench.table))) == ("completed", 6)
        ended(bench, plan, rows)

    def test_a_possible_commit_keeps_its_plan_inflight_until_its_table_was_checked(self, bench: Bench):
        rows, files, plan = bench.rows(), bench.stored(), bench.request()
        with disturbed(bench, "before_commit", raises(CommitUnknown("no answer"))):
            assert bench.run().result is RunResult.INFLIGHT
        assert (bench.state(plan), bench.stored().keys() > files.keys()) == ("inflight", True), "nothing is deleted"
        bench.sweep()
        assert bench.stored().keys() > files.keys(), "nor by the sweep"
        bench.expire()
        outcome = bench.rescue()
        assert outcome is not None
        assert outcome.result is RunResult.REQUEUED
        assert bench.run().result is RunResult.COMPLETED
        ended(bench, plan, rows)

    @pytest.mark.parametrize("moment", MOMENTS)
    def test_the_successor_of_an_executor_killed_at_any_point_commits_the_plan_once(self, bench: Bench, moment: str):
        rows, plan = bench.rows(), bench.request()
        with disturbed(bench, moment, raises(Killed())), pytest.raises(Killed):
            bench.run()
        assert bench.rows() == rows
        bench.expire()
        claim = bench.store.take_over_expired("second")
        assert claim is not None
        assert bench.run(claim).result is RunResult.COMPLETED
        landed_by = 1 if moment == "after_commit" else 2
        assert bench.case.commits(bench.table) == [(plan.plan_id, landed_by)]
        assert len(bench.store.awaiting_deletion(bench.table)) == 6
        ended(bench, plan, rows)

    def test_the_commit_of_a_killed_executor_is_recorded_by_the_rescuer(self, bench: Bench):
        rows, plan = bench.rows(), bench.request()
        with disturbed(bench, "after_commit", raises(Killed())), pytest.raises(Killed):
            bench.run()
        bench.store.request_cancel(plan.plan_id, "ada", "too late")
        bench.expire()
        outcome = bench.rescue()
        assert outcome is not None
        assert (outcome.result, bench.state(plan)) == (RunResult.COMPLETED, "completed")
        assert len(bench.store.awaiting_deletion(bench.table)) == 6
        ended(bench, plan, rows)

    def test_an_executor_suspended_before_its_commit_can_not_commit_during_its_successors_attempt(self, bench: Bench):
        rows, plan = bench.rows(), bench.request()
        with asleep(bench, plan, bench.claim()) as (sleeper, rewrite):
            bench.expire()
            claim = bench.store.take_over_expired("second")
            assert claim is not None
            assert bench.run(claim).result is RunResult.COMPLETED
            with pytest.raises(LakefoldError):
                sleeper.writer.commit(rewrite)
            sleeper.discarded((rewrite.prepared.instant,))
        assert bench.case.commits(bench.table) == [(plan.plan_id, 2)]
        ended(bench, plan, rows)

    def test_an_executor_suspended_until_its_plan_ended_and_was_swept_can_not_commit(self, bench: Bench):
        rows, files, plan = bench.rows(), bench.stored(), bench.request()
        with asleep(bench, plan, bench.claim()) as (sleeper, rewrite):
            bench.store.request_cancel(plan.plan_id, "ada")
            bench.expire()
            bench.rescue()
            assert (bench.state(plan), bench.stored()) == ("cancelled", files), "nothing waits for the sweep"
            ended(bench, plan, rows, commits=0)
            with pytest.raises(LakefoldError):
                sleeper.writer.commit(rewrite)
        ended(bench, plan, rows, commits=0)

    def test_a_suspended_executors_commit_during_its_successors_attempt_is_that_of_the_plan(self, bench: Bench):
        rows, plan = bench.rows(), bench.request()
        with asleep(bench, plan, bench.claim()) as (sleeper, rewrite):
            bench.expire()
            claim = bench.store.take_over_expired("second")
            assert claim is not None
            landed: list[object] = []
            asked = bench.format.find_commit

            def asked_too_early(*arguments: Any) -> Any:
                found = asked(*arguments)
                if not landed:
                    landed.append(sleeper.writer.commit(rewrite))
                return found

            with patch.object(bench.format, "find_commit", asked_too_early):
                assert bench.run(claim).result is RunResult.COMPLETED
        assert (bench.case.commits(bench.table), bench.state(plan)) == ([(plan.plan_id, 1)], "completed")
        assert len(bench.store.awaiting_deletion(bench.table)) == 6
        ended(bench, plan, rows)

    def test_rows_that_were_lost_during_the_rewrite_halt_the_table_before_a_reader_sees_it(self, bench: Bench):
        rows, plan = bench.rows(), bench.request()
        opened = bench.format.writer

        def losing(*arguments: Any) -> Any:
            writer = opened(*arguments)
            rewrite = writer.rewrite

            def lost(*given: Any) -> Any:
                done = rewrite(*given)
                return replace(done, outputs=done.outputs[1:])

            writer.rewrite = lost
            return writer

        with patch.object(bench.format, "writer", losing):
            assert bench.run().result is RunResult.FAILED
        assert bench.store.table_state(bench.table.name).halted
        ended(bench, plan, rows, commits=0)

    def test_a_plan_is_kept_twice_as_long_as_its_commit_may_take(self, bench: Bench):
        seen: list[Claim | None] = []

        def look() -> None:
            long_ago = "lease_until_ms = lease_until_ms - 60000"  # as long as a lease in this test
            bench.execute(f"UPDATE plan SET {long_ago} WHERE state = 'inflight'")
            seen.append(bench.store.take_over_expired("second"))

        with bench.format.writer(bench.table, bench.case.spark, bench.case.engines) as writer:
            takes: timedelta = writer.max_commit_duration
        locked = Capability.TABLE_LOCK in bench.format.capabilities
        assert not (locked and takes)
        bench.request()
        with disturbed(bench, "before_commit", look):
            result = bench.run(heartbeat=timedelta(hours=1)).result
        assert (seen[0] is None) == bool(takes), "during its grace no executor takes it over"
        assert result is (RunResult.COMPLETED if seen[0] is None else RunResult.LEASE_LOST) or not takes

    def test_a_recreated_table_gets_no_plans_and_no_deletions_of_its_predecessor(self, bench: Bench):
        bench.table = with_identity(bench.format, bench.table)
        bench.store.register_table(bench.table, "compact")
        bench.request(partitions=[bench.case.parts[0]])
        assert bench.run().result is RunResult.COMPLETED
        plan = bench.request(partitions=[bench.case.parts[-1]])
        remove_tree(bench.table.location)
        bench.case.create(place(bench.table.location), name=bench.table.name)
        rows, files = bench.rows(), bench.stored()
        assert (bench.run().result, bench.state(plan)) == (RunResult.CANCELLED, "cancelled")
        report = bench.clean()
        assert (report.bytes_freed, report.error, bench.store.awaiting_deletion(bench.table)) == (0, None, [])
        ended(bench, plan, rows, commits=0)
        assert bench.stored() == files

    # Cleaning.

    def test_files_are_deleted_in_the_order_of_replacement_for_any_names_of_commits(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(cleaner, "_MAX_FILES_PER_DELETION", 1)
        plans, deleted = [], []
        for number in range(4):
            bench.case.append(bench.table, bench.case.parts[0], 10_000 + number, 10_001 + number)
            plans.append(bench.request().plan_id)
            assert bench.run().result is RunResult.COMPLETED
        of = {due.version.path: due.plan_id for due in bench.store.awaiting_deletion(bench.table)}
        opened = bench.format.writer

        def spying(*arguments: Any) -> Any:
            writer = opened(*arguments)
            delete = writer.delete
            writer.delete = lambda versions: (deleted.extend(of[v.path] for v in versions), delete(versions))[1]
            return writer

        monkeypatch.setattr(bench.format, "writer", spying)
        assert bench.clean().deleted_files == len(of)
        assert list(dict.fromkeys(deleted)) == plans

    def test_a_cleaner_suspended_while_another_one_deleted_leaves_the_new_files_at_the_paths(self, bench: Bench):
        bench.request()
        assert bench.run().result is RunResult.COMPLETED
        path = place(bench.table.location) / bench.store.awaiting_deletion(bench.table)[0].version.path
        length = path.stat().st_size
        woken: list[int] = []

        def sleep() -> None:
            if woken:
                return
            woken.append(0)
            bench.execute("UPDATE live_partition SET expires_at_ms = 0 WHERE keeper IS NOT NULL")
            woken[0] = bench.clean().deleted_files
            path.write_bytes(b"x" * length)

        with disturbed(bench, "before_delete", sleep):
            report = bench.clean()
        assert (woken, report.deleted_files) == ([6], 0)
        assert path.read_bytes() == b"x" * length

    def test_a_deletion_is_marked_before_the_first_file_goes_and_repeated_after_a_crash(self, bench: Bench):
        rows, plan = bench.rows(), bench.request()
        bench.run()
        with disturbed(bench, "after_delete", raises(Killed())), pytest.raises(Killed):
            bench.clean()
        assert all(due.deletion_begun_at for due in bench.store.awaiting_deletion(bench.table))
        assert (bench.clean().deleted_files, bench.store.awaiting_deletion(bench.table)) == (6, [])
        ended(bench, plan, rows)

    def test_without_a_tables_lock_plans_and_the_cleaner_exclude_each_other_by_partition(self, bench: Bench):
        locked = Capability.TABLE_LOCK in bench.format.capabilities
        bench.request()
        bench.run()
        bench.case.append(bench.table, bench.case.parts[0], 10_000, 10_001)
        waiting = bench.request(partitions=[bench.case.parts[0]])
        assert bench.clean().deleted_files == (6 if locked else 0)
        assert bench.run().result is RunResult.COMPLETED
        refused: list[Exception] = []

        def plan_there() -> None:
            try:
                bench.request(partitions=[bench.case.parts[0]])
            except PartitionsLocked as taken:
                refused.append(taken)

        with disturbed(bench, "after_delete", plan_there):
            assert bench.clean().deleted_files == (2 if locked else 8)
        assert (refused == []) == locked
        assert bench.state(waiting) == "completed"

    def test_a_version_that_became_live_between_check_and_deletion_stays(self, bench: Bench):
        rows, plan = bench.rows(), bench.request()
        bench.run()
        files = bench.stored()
        with disturbed(bench, "before_delete", raises(Conflict("a version is live"))):
            report = bench.clean()
        assert ({kept.reason for kept in report.kept}, report.deleted_files) == ({"a version is live"}, 0)
        assert bench.stored() == files
        assert bench.clean().deleted_files == 6
        ended(bench, plan, rows)


class RunContract(WholeTables):
    """The same, and the tests that need partitions."""

    def test_a_group_that_a_writer_changed_is_left_out_and_the_others_commit(self, bench: Bench):
        plan = bench.request()
        assert bench.case.update(bench.table, "dt=0")
        rows, strays = bench.rows(), bench.unowned()  # files that the writer replaced are deleted by the writer
        assert bench.run().result is RunResult.COMPLETED
        view = bench.store.plan(plan.plan_id)
        assert [group.partition for group in view.left_out] == ["dt=0"]
        assert [figure.partition for figure in view.figures] == ["dt=1"]
        ended(bench, plan, rows, strays=strays)

    def test_an_input_that_can_not_be_read_costs_its_own_group_only(self, bench: Bench):
        plan = bench.request()
        torn = place(bench.table.location) / str(plan.groups[0].slices[0].path)
        content = torn.read_bytes()
        torn.write_bytes(content[:-100])
        assert bench.run().result is RunResult.COMPLETED
        assert [figure.partition for figure in bench.store.plan(plan.plan_id).figures] == ["dt=1"]
        names = {item.path for item in plan.groups[0].slices}
        assert bench.store.table_state(bench.table.name).quarantined.keys() <= names
        files = {row["path"] for row in bench.format.snapshot(bench.table).slices.to_pylist()}
        assert names <= files, "the others of its group are what they were"
        assert bench.unowned() == ()

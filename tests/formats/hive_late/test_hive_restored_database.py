# SPDX-License-Identifier: Apache-2.0
"""Duties to what was moved, where the database was set back to a backup, or lost, and clocks of executors differ."""

import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from contract.plans import plan_all
from databases import sqlite_at
from late_writing import (
    PARTITION,
    Killed,
    after_its_hold,
    alter_partitions,
    brought_home,
    data_files,
    halted,
    here,
    home,
    in_partition,
    killed_at,
    killed_in_sweep,
    overwrite,
    overwritten_after_a_late_file,
    overwritten_at_once,
    swept,
    wait_a_tick,
    write,
)
from toys.bench import Bench
from uuid_utils import uuid7

from executors.outcome import RunResult
from executors.relocation.partition_sweep import SweepReport
from lake.capabilities import with_identity
from lake.formats.hive.commit.version_names import new_version_name
from lake.plan import Plan
from service.control.store import Store
from service.control.store.plan_creation import QueueEntry
from service.control.store.views import StoreSettings

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]


@pytest.fixture
def known(unmoved: Bench) -> Bench:
    """A registered table that a completed plan has moved."""
    unmoved.table = with_identity(unmoved.format, unmoved.table)
    unmoved.store.register_table(unmoved.table, "compact")
    compact(unmoved)
    return unmoved


def compact(bench: Bench) -> None:
    bench.request()
    assert bench.run().result is RunResult.COMPLETED


@contextmanager
def clock_of_executor(off: timedelta) -> Iterator[None]:
    """Versions are named by an executor whose clock is so far off."""
    nanoseconds = round(off.total_seconds() * 1e9)

    def named(plan_id: str, epoch: int, now: int) -> str:
        return new_version_name(plan_id, epoch, now + nanoseconds)

    with mock.patch("lake.formats.hive.writer.new_version_name", named):
        yield


def backup(bench: Bench) -> Path:
    to = bench.home / "backup.db"
    with closing(sqlite3.connect(bench.url.removeprefix("sqlite:///"))) as one, closing(sqlite3.connect(to)) as other:
        one.backup(other)
    return to


def set_back(bench: Bench, to: Path) -> None:
    """The database is as it was at its backup."""
    bench.store.close()
    again = bench.home / "set-back"
    again.mkdir()
    shutil.copyfile(to, again / "lakefold.db")
    opened(bench, again)


def lose_database(bench: Bench) -> None:
    bench.store.close()
    (bench.home / "other").mkdir()
    opened(bench, bench.home / "other")


def opened(bench: Bench, directory: Path) -> None:
    bench.url = sqlite_at(directory)
    bench.store = Store(bench.url, StoreSettings(max_attempts=3))
    bench.store.register_table(bench.table, "compact")


def why_halted(bench: Bench) -> str:
    return str(bench.store.halted_partitions(bench.table).get(PARTITION) or halted(bench))


def test_rule_2_a_late_append_does_not_count_as_an_overwrite_if_files_were_deleted_after_the_backup(known: Bench):
    bench, to, rows = known, backup(known), in_partition(known)
    bench.clean()
    assert data_files(home(bench)) == []
    set_back(bench, to)
    place = here(bench)
    bench.sweep()
    assert (in_partition(bench), halted(bench)) == (rows, None)
    write(home(bench), 900, 910)
    bench.sweep()
    assert (here(bench), in_partition(bench)) == (place, rows)
    assert "after lakefold began to delete there" in why_halted(bench)


def test_rule_4_files_that_were_deleted_after_the_backup_are_waited_for_by_nothing(known: Bench):
    bench, to, rows = known, backup(known), in_partition(known)
    bench.clean()
    set_back(bench, to)
    assert swept(bench, grace=timedelta()) == SweepReport()
    bench.clean()
    assert (brought_home(bench).relocated_back, in_partition(bench), halted(bench)) == (2, rows, None)


def test_rule_5_files_copied_and_rewritten_after_the_backup_are_not_copied_again(known: Bench):
    bench, to = known, backup(known)
    rows = sorted([*in_partition(bench), *write(home(bench), 900, 910)])
    bench.sweep()
    compact(bench)
    set_back(bench, to)
    for _ in range(3):
        bench.sweep()
    assert (in_partition(bench), swept(bench), halted(bench)) == (rows, SweepReport(), None)
    bench.clean()
    bench.sweep()
    assert (in_partition(bench), data_files(home(bench)), halted(bench)) == (rows, [], None)


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("how", ["lost", "set back"])
def test_rule_6_a_restored_partition_stays_at_its_original_location_if_the_database_is_lost(
    known: Bench, how: str, deleted: bool
):
    bench, to, rows = known, backup(known), in_partition(known)
    bench.clean()
    assert brought_home(bench).relocated_back == 2
    if deleted:
        bench.clean()
    lose_database(bench) if how == "lost" else set_back(bench, to)
    for _ in range(2):
        bench.sweep()
    assert (here(bench), in_partition(bench), swept(bench), halted(bench)) == (home(bench), rows, SweepReport(), None)
    late = write(home(bench), 900, 910)
    bench.sweep()
    bench.clean()
    assert (in_partition(bench), halted(bench)) == (sorted([*rows, *late]), None)


def test_rule_2_a_partition_that_followed_an_overwrite_to_a_version_stays_there_where_the_database_is_lost(
    known: Bench,
):
    bench, first = known, here(known)
    compact(bench)
    anew = overwrite(first, 500, 520)
    bench.sweep()
    assert (here(bench), in_partition(bench)) == (first, sorted(anew))
    wait_a_tick(first)
    more = write(first, 600, 610)
    lose_database(bench)
    for _ in range(2):
        bench.sweep()
    assert (here(bench), in_partition(bench), halted(bench)) == (first, sorted([*anew, *more]), None)


def test_rule_2_no_earlier_version_is_read_again_if_the_database_is_lost_and_clocks_differ(known: Bench):
    bench = known
    with clock_of_executor(timedelta(hours=1)):
        compact(bench)
        write(here(bench), 900, 910)
        compact(bench)
    write(here(bench), 910, 920)
    with clock_of_executor(timedelta(hours=-9)):
        compact(bench)
    place, rows = here(bench), in_partition(bench)
    lose_database(bench)
    for _ in range(2):
        bench.sweep()
    assert (here(bench), in_partition(bench), halted(bench)) == (place, rows, None)


@pytest.mark.parametrize("hours", [-9, 9])
def test_rule_5_late_files_are_recognized_by_the_storages_clock_if_the_database_is_lost(known: Bench, hours: int):
    bench = known
    rows = [*in_partition(bench), *write(home(bench), 900, 910, "part-before.parquet")]
    bench.sweep()
    with clock_of_executor(timedelta(hours=hours)):
        compact(bench)
    wait_a_tick(home(bench))
    rows += write(home(bench), 910, 920, "part-after.parquet")
    lose_database(bench)
    for _ in range(2):
        bench.sweep()
    assert (in_partition(bench), halted(bench)) == (sorted(rows), None)


def test_rule_1_a_plan_that_ran_at_the_backup_and_committed_later_halts_nothing_before_its_take_over(
    known: Bench,
):
    """The table was halted by the first sweep, as if another lakefold had moved the partition."""
    bench = known
    write(here(bench), 700, 710, "part-more.parquet")
    rows, plan = bench.rows(), bench.request(partitions=[PARTITION])
    claim = bench.claim()
    to = backup(bench)
    assert bench.run(claim).result is RunResult.COMPLETED
    set_back(bench, to)
    late = write(home(bench), 900, 910)
    report = swept(bench)
    assert (report.deferred, report.halt_reasons, halted(bench)) == ([PARTITION], {}, None)
    bench.expire()
    assert bench.rescue() is not None
    bench.sweep()
    assert (bench.state(plan), bench.rows(), halted(bench)) == ("completed", sorted([*rows, *late]), None)
    bench.clean()
    assert (swept(bench), bench.rows()) == (SweepReport(), sorted([*rows, *late]))


@pytest.mark.parametrize("moves", [0, 1])
@pytest.mark.parametrize("how", ["declined", "cancelled", "out of date"])
def test_rule_2_a_proposal_of_the_backup_that_has_run_and_was_ended_afterwards_keeps_no_late_row_waiting(
    unmoved: Bench, how: str, moves: int
):
    """Its commit was recorded by nothing. If the partition had been moved before, the halt came back after a resume."""
    bench = unmoved
    for _ in range(moves):
        compact(bench)
        write(here(bench), 700, 710, "part-more.parquet")
    plan = proposed(bench)
    to, rows = backup(bench), in_partition(bench)
    bench.store.approve(plan.plan_id, "ada")
    assert bench.run().result is RunResult.COMPLETED
    place = here(bench)
    set_back(bench, to)
    if how == "declined":
        bench.store.decline(plan.plan_id, "ada")
    elif how == "cancelled":
        bench.store.request_cancel(plan.plan_id, "ada")
    else:
        bench.store.withdraw_proposals({plan.plan_id: "its files changed"}, actor="scheduler")
    late = write(home(bench), 900, 910)
    bench.sweep()
    assert (bench.state(plan), here(bench), in_partition(bench)) == ("completed", place, sorted([*rows, *late]))
    assert "attempt 1 committed" in str(halted(bench))
    bench.store.resume(bench.table.name, "ada")
    for _ in range(2):
        bench.sweep()
        bench.clean()
    assert (in_partition(bench), swept(bench), halted(bench)) == (sorted([*rows, *late]), SweepReport(), None)
    assert data_files(home(bench)) == []


def test_rule_2_a_plan_that_the_backup_has_as_requested_is_recorded_before_it_is_claimed(known: Bench):
    bench = known
    write(here(bench), 700, 710, "part-more.parquet")
    plan, to = bench.request(partitions=[PARTITION]), backup(bench)
    assert bench.run().result is RunResult.COMPLETED
    rows = in_partition(bench)
    set_back(bench, to)
    bench.store.pause(bench.table.name, "ada")
    late = write(home(bench), 900, 910)
    bench.sweep()
    assert (bench.state(plan), in_partition(bench), halted(bench)) == ("completed", sorted([*rows, *late]), None)


def commit_again_after_an_undone_commit(bench: Bench, kill: AbstractContextManager[Any]) -> Path:
    """Have an attempt killed after its commit, undo the commit, and run the next one. Returns the first location."""
    before = bench.case.partitions(bench.table)  # type: ignore[attr-defined]
    with kill, pytest.raises(Killed):
        bench.run()
    first = here(bench)
    alter_partitions(bench, [before[PARTITION]])
    bench.expire()
    assert bench.rescue() is not None
    assert bench.run().result is RunResult.COMPLETED
    assert here(bench) not in (first, home(bench))
    return first


@pytest.mark.parametrize("how", ["lost", "set back"])
def test_rule_2_both_commits_of_a_plan_are_recorded_if_the_first_one_was_undone(unmoved: Bench, how: str):
    """The second one was passed over, since its plan was recorded as completed: the table was halted."""
    bench = unmoved
    plan = bench.request(partitions=[PARTITION])
    to = backup(bench)
    kill = mock.patch("executors.run.failpoint", side_effect=lambda name: killed_at(name, "before_record"))
    commit_again_after_an_undone_commit(bench, kill)
    place, rows = here(bench), in_partition(bench)
    lose_database(bench) if how == "lost" else set_back(bench, to)
    late = write(home(bench), 900, 910)
    for _ in range(2):
        bench.sweep()
    assert (bench.state(plan), here(bench), in_partition(bench)) == ("completed", place, sorted([*rows, *late]))
    assert ("attempt 3 committed" in str(halted(bench))) == (how == "set back")
    bench.store.resume(bench.table.name, "ada")
    bench.clean()
    assert (in_partition(bench), swept(bench), halted(bench)) == (sorted([*rows, *late]), SweepReport(), None)


@pytest.mark.parametrize("died", ["before it marked the commit", "afterwards"])
def test_rule_2_a_late_file_in_the_version_of_an_undone_commit_is_read_if_the_database_is_lost(
    unmoved: Bench, died: str
):
    """No relocation left that version, so the file stayed invisible for good."""
    bench = unmoved
    plan = bench.request(partitions=[PARTITION])
    if died == "afterwards":
        point = mock.patch("executors.run.failpoint", side_effect=lambda name: killed_at(name, "before_record"))
    else:
        point = mock.patch("lake.formats.hive.writer.commit_record.mark_committed", side_effect=Killed)
    first = commit_again_after_an_undone_commit(bench, point)
    place, rows = here(bench), in_partition(bench)
    lose_database(bench)
    late = [*write(first, 900, 910), *write(home(bench), 910, 920)]
    for _ in range(3):
        bench.sweep()
    assert (bench.state(plan), here(bench), halted(bench)) == ("completed", place, None)
    assert in_partition(bench) == sorted([*rows, *late])
    bench.clean()
    assert (in_partition(bench), swept(bench), halted(bench)) == (sorted([*rows, *late]), SweepReport(), None)


@pytest.mark.parametrize("first", ["the search", "the take-over"])
def test_rule_2_a_commit_that_followed_a_plan_which_ran_at_the_backup_stays_the_last_one(known: Bench, first: str):
    """The plan's own commit was recorded behind it, and the partition was moved to where the plan had moved it."""
    bench = known
    write(here(bench), 700, 710, "part-more.parquet")
    plan = bench.request(partitions=[PARTITION])
    claim, to = bench.claim(), backup(bench)
    assert bench.run(claim).result is RunResult.COMPLETED
    write(here(bench), 710, 720, "part-later.parquet")
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    place = here(bench)
    write(place, 720, 730, "part-last.parquet")
    rows = bench.rows()
    set_back(bench, to)
    if first == "the search":
        bench.sweep()
    bench.expire()
    assert bench.rescue() is not None
    for _ in range(2):
        bench.sweep()
    assert (bench.state(plan), here(bench), bench.rows()) == ("completed", place, rows)
    late = write(home(bench), 900, 910)
    bench.sweep()
    bench.clean()
    assert (here(bench), bench.rows(), halted(bench)) == (place, sorted([*rows, *late]), None)
    assert swept(bench) == SweepReport()


@pytest.mark.parametrize("since", ["nothing", "a commit"])
def test_rule_2_late_files_become_visible_if_a_relocation_had_begun_at_the_backup(known: Bench, since: str):
    """The move home was taken for one that was never made: what it had left was watched and deleted no more."""
    bench, copies = known, list[Path]()
    bench.clean()
    left = here(bench)

    def at(name: str) -> None:
        if name == "move_recorded" and not copies:
            copies.append(backup(bench))

    with mock.patch("executors.relocation.partition_sweep.failpoint", at):
        assert brought_home(bench).relocated_back == 2
    if since == "a commit":
        write(home(bench), 700, 710, "part-more.parquet")
        compact(bench)
    place, rows = here(bench), in_partition(bench)
    set_back(bench, copies[0])
    after_its_hold(bench)
    bench.sweep()
    assert (here(bench), in_partition(bench), halted(bench)) == (place, rows, None)
    late = write(left, 900, 910)
    for _ in range(2):
        bench.sweep()
    assert (in_partition(bench), halted(bench)) == (sorted([*rows, *late]), None)
    bench.clean()
    assert (in_partition(bench), swept(bench), halted(bench)) == (sorted([*rows, *late]), SweepReport(), None)
    assert not left.exists(), "all of its files were replaced"


@pytest.mark.parametrize("again", [False, True], ids=["rewritten", "copied by the next round"])
def test_rule_5_a_copy_that_had_begun_at_the_backup_is_not_made_twice(known: Bench, again: bool):
    """A commit had rewritten it, or another round had made it: the late file was copied once more."""
    bench = known
    rows = sorted([*in_partition(bench), *write(home(bench), 900, 910)])
    with killed_in_sweep("carry_recorded"):
        swept(bench)
    to = backup(bench)
    after_its_hold(bench)
    assert swept(bench).copied == 1
    if not again:
        compact(bench)
    set_back(bench, to)
    after_its_hold(bench)
    for _ in range(2):
        bench.sweep()
    assert (in_partition(bench), swept(bench), halted(bench)) == (rows, SweepReport(), None)
    bench.clean()
    bench.sweep()
    assert (in_partition(bench), data_files(home(bench)), halted(bench)) == (rows, [], None)


@pytest.fixture
def decided(known: Bench, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Bench, list[str]]:
    """A database of before the sweep kept a late file aside, and before a later commit; its rows."""
    monkeypatch.setattr("lake.formats.hive.relocation.unrecorded_relocations.MAX_CHECK_AGE", timedelta())
    bench, to, left = known, backup(known), here(known)
    write(home(bench), 900, 910) if request.param == "an append before it" else overwrite(home(bench), 500, 520)
    wait_a_tick(home(bench))
    rows = overwrite(left, 700, 720)
    bench.sweep()
    assert (here(bench), in_partition(bench), halted(bench)) == (left, sorted(rows), None)
    rows += write(left, 720, 730, "part-more.parquet")
    wait_a_tick(home(bench))
    compact(bench)
    set_back(bench, to)
    return bench, sorted(rows)


@pytest.mark.parametrize("decided", ["an append before it", "an overwrite before it"], indirect=True)
def test_rule_2_files_that_an_overwrite_removed_after_the_backup_stay_removed(decided: tuple[Bench, list[str]]):
    """The late file was copied to the version of the later commit, or the partition was moved to it."""
    bench, rows = decided
    place = here(bench)
    for _ in range(2):
        bench.sweep()
        bench.clean()
    assert (here(bench), in_partition(bench)) == (place, rows)


@pytest.mark.parametrize("is_lost", [False, True], ids=["restored", "lost"])
@pytest.mark.parametrize("decided", ["an overwrite before it"], indirect=True)
def test_rule_4_an_overwrite_that_a_commit_had_followed_is_not_waited_for(
    decided: tuple[Bench, list[str]], is_lost: bool
):
    """The partition waited for an hour and was then halted: the files of before that overwrite were expected."""
    bench, rows = decided
    if is_lost:
        lose_database(bench)
    for _ in range(2):
        bench.sweep()
    assert (swept(bench, grace=timedelta()), halted(bench)) == (SweepReport(), None)
    late = write(home(bench), 910, 920, "part-late.parquet")
    bench.sweep()
    assert (in_partition(bench), halted(bench)) == (sorted([*rows, *late]), None)


@pytest.mark.parametrize("is_lost", [False, True], ids=["restored", "lost"])
def test_rule_2_a_late_file_that_was_kept_aside_seconds_before_the_commit_stays_aside(known: Bench, is_lost: bool):
    """The check of the commit may have met the file or not, but the commits show the overwrite that followed it."""
    bench, to = known, backup(known)
    rows = [*overwritten_after_a_late_file(bench), *write(here(bench), 720, 730, "part-more.parquet")]
    assert swept(bench).superseded == 1
    compact(bench)
    if is_lost:
        lose_database(bench)
    else:
        set_back(bench, to)
    for _ in range(2):
        bench.sweep()
    assert (in_partition(bench), halted(bench)) == (sorted(rows), None)
    later = write(home(bench), 910, 920, "part-later.parquet")
    bench.sweep()
    assert (in_partition(bench), halted(bench)) == (sorted([*rows, *later]), None)


def test_rule_2_a_copy_with_an_old_time_does_not_hide_that_an_overwrite_followed_another_late_file(known: Bench):
    """The overwrite seemed to have begun when the copied file was written, so the database's loss returned old rows."""
    bench, rows = known, overwritten_after_a_late_file(known)
    rows += write(home(bench), 910, 920, "part-staged.parquet")
    os.utime(home(bench) / "part-staged.parquet", (time.time() - 3600, time.time() - 3600))
    report = swept(bench)
    assert (report.superseded, report.copied) == (1, 1)
    compact(bench)
    lose_database(bench)
    for _ in range(2):
        bench.sweep()
    assert (in_partition(bench), halted(bench)) == (sorted(rows), None)


@pytest.mark.parametrize("is_lost", [False, True], ids=["restored", "lost"])
def test_rule_2_a_late_file_whose_copy_an_overwrite_removed_is_not_copied_again(known: Bench, is_lost: bool):
    """The removal of the copy, a second name of the file, made the late file look newer than the overwrite."""
    bench, to = known, backup(known)
    write(home(bench), 900, 910)
    assert swept(bench).copied == 1
    wait_a_tick(home(bench))
    rows = overwritten_at_once(here(bench), 700, 720)
    bench.sweep()
    assert in_partition(bench) == sorted(rows)
    if is_lost:
        lose_database(bench)
    else:
        set_back(bench, to)
    for _ in range(2):
        bench.sweep()
    assert (in_partition(bench), halted(bench)) == (sorted(rows), None)


def proposed(bench: Bench) -> Plan:
    """A plan of the partition that waits for approval."""
    plan = plan_all(bench.format, bench.table, str(uuid7()), partitions=[PARTITION])
    queued = QueueEntry(needs_approval=True)
    bench.store.add_plan(plan, request_id=None, actor="scheduler", estimate={}, queued=queued)
    return plan

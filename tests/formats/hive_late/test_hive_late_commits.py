# SPDX-License-Identifier: Apache-2.0
"""Commits that were not recorded, were undone, or were overwritten by others: rules 1, 2 and 11."""

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hive_case import DATABASE, Owner, table_name
from late_writing import (
    PARTITION,
    Killed,
    alter_partitions,
    counted,
    data_files,
    dropped,
    halted,
    here,
    home,
    in_partition,
    killed_before_it_records,
    overwrite,
    swept,
    true_counts,
    wait_a_tick,
    write,
)
from renaming import as_managed, lose_database
from toys.bench import Bench
from waiting import wait_for

from executors.outcome import RunResult
from executors.relocation.partition_sweep import SweepReport
from executors.relocation.sweep import partitions_awaiting_sweep
from lake.errors import CommitUnknown
from lake.formats.hive.commit import commit_record, metastore_commit
from lake.formats.hive.commit.staging import remove_version
from lake.formats.hive.format import HiveFormat
from lake.metastore import MetastoreClient, MetastorePartition
from lake.plan import Plan, PlanState
from lake.storage.files import FileEntry
from lake.storage.local import LocalFileIO
from lake.storage.locations import DATA_DIR

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]


def put(bench: Bench, partitions: Mapping[str, Any]) -> None:
    """A call that gives all of them what they had then."""
    alter_partitions(bench, list(partitions.values()))


def made_anew(bench: Bench) -> None:
    """Partitions are dropped and added with their own directories, in another second than that of their making."""
    before = max(one.created_at for one in bench.case.partitions(bench.table).values())  # type: ignore[attr-defined]
    wait_for(lambda: int(time.time()) > before, "time stands still", every=0.05)
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        for value in ("0", "1"):
            owner.drop(table_name(bench.table), value)
            owner.add(table_name(bench.table), value, Path(bench.table.location) / f"dt={value}")


@pytest.mark.parametrize("times", [0, 1])
def test_rule_2_an_overwrite_that_removes_an_unrecorded_commit_halts_the_table_until_a_person_repairs_it(
    unmoved: Bench, times: int
):
    """Spark's of the whole table empties its directory, and does not tell the metastore of partitions that it has."""
    bench = unmoved
    for _ in range(times):
        bench.request()
        assert bench.run().result is RunResult.COMPLETED
        write(here(bench), 800, 810)
    plan = killed_before_it_records(bench)
    shutil.rmtree(bench.table.location)
    home(bench).mkdir(parents=True)
    home(bench).with_name("dt=1").mkdir()
    anew = write(home(bench), 500, 520, "part-anew.parquet")
    assert bench.rescue() is not None
    assert (bench.state(plan), bench.rows()) == ("failed", [])
    there = here(bench)
    there.mkdir(parents=True)
    write(there, 920, 930)
    for _ in range(2):
        assert "drop such partitions and add them" in str(halted(bench))
        bench.store.resume(bench.table.name, actor="ada")
        bench.sweep()
    made_anew(bench)
    bench.store.resume(bench.table.name, actor="ada")
    bench.sweep()
    wait_a_tick(home(bench))
    bench.sweep()
    assert (halted(bench), bench.rows(), here(bench)) == (None, sorted(anew), home(bench))
    more = write(home(bench), 900, 910, "part-more.parquet")
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    bench.clean()
    assert (bench.rows(), swept(bench), halted(bench)) == (sorted(anew + more), SweepReport(), None)
    assert data_files(there), "only a writer can have written it, and no sweep has moved it yet"


def test_rule_11_files_written_to_an_unrecorded_commit_that_was_undone_become_visible(unmoved: Bench):
    """As by an INSERT of Hive's, which ends with what it read before the commit, of an executor that died after it."""
    bench, before, rows_before = unmoved, as_is(unmoved), in_partition(unmoved)
    plan = killed_before_it_records(bench, partitions=[PARTITION])
    place = here(bench)
    late = write(place, 800, 810, "part-seen.parquet")
    written_back(bench, before)
    more = write(home(bench), 900, 910)
    bench.rescue()
    bench.sweep()
    assert (bench.state(plan), here(bench)) == ("completed", place)
    assert in_partition(bench) == sorted([*rows_before, *late, *more])
    assert (swept(bench), halted(bench)) == (SweepReport(), None)


@pytest.mark.crossed
@pytest.mark.parametrize("again", [True, False])
def test_rule_11_files_in_the_location_of_an_undone_commit_are_seen_after_any_later_commit(unmoved: Bench, again: bool):
    """By the plan itself, which was let go with no trace of its commit, or by another one."""
    bench, rows_before = unmoved, in_partition(unmoved)
    before = bench.case.partitions(bench.table)  # type: ignore[attr-defined]
    plan = killed_before_it_records(bench)
    place = here(bench)
    put(bench, before)
    bench.rescue()
    assert bench.state(plan) == "requested"
    if not again:
        bench.store.request_cancel(plan.plan_id, actor="ada", reason="no need")
        bench.request()
    assert bench.run().result is RunResult.COMPLETED
    assert here(bench) not in (place, home(bench))
    late = write(place, 800, 810)
    bench.sweep()
    assert in_partition(bench) == sorted([*rows_before, *late])
    assert (swept(bench), halted(bench)) == (SweepReport(), None)
    bench.clean()
    assert in_partition(bench) == sorted([*rows_before, *late])


@pytest.mark.crossed
@pytest.mark.parametrize("lands", ["before", "after"])
def test_rule_1_a_commit_of_an_ended_plan_undoes_no_later_commit(unmoved: Bench, lands: str):
    """It was not the table's when it was asked for; its executor slept, and its call landed before or after another."""
    bench, before = unmoved, unmoved.case.partitions(unmoved.table)  # type: ignore[attr-defined]
    plan = killed_before_it_records(bench)
    call = bench.case.partitions(bench.table)  # type: ignore[attr-defined]
    taken = bench.store.take_over_expired("a rescuer")
    assert taken is not None
    bench.store.cancel(taken, "it is not there", actor="ada")
    if lands == "after":
        put(bench, before)
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    place = here(bench)
    write(place, 900, 910)
    expected = in_partition(bench)
    if lands == "after":
        put(bench, call)
    bench.sweep()
    assert (bench.state(plan), here(bench), in_partition(bench)) == ("completed", place, expected)
    late = write(bench.case.places(bench.table)["dt=1"].with_name(PARTITION), 910, 920)  # type: ignore[attr-defined]
    assert (swept(bench).copied, in_partition(bench)) == (1, sorted([*expected, *late]))
    bench.clean()
    assert (swept(bench), halted(bench), in_partition(bench)) == (SweepReport(), None, sorted([*expected, *late]))


def test_rule_1_a_call_that_takes_effect_after_its_plan_completed_without_it_undoes_no_overwrite(unmoved: Bench):
    """The later attempt has left a partition out, since it had been overwritten, which the call takes away as well."""
    bench, before = unmoved, unmoved.case.partitions(unmoved.table)  # type: ignore[attr-defined]
    plan = killed_before_it_records(bench)
    call = bench.case.partitions(bench.table)  # type: ignore[attr-defined]
    put(bench, before)
    wait_a_tick(home(bench).with_name("dt=1"))
    anew = overwrite(home(bench).with_name("dt=1"), 700, 720)
    bench.rescue()
    assert bench.run().result is RunResult.COMPLETED
    place, expected = here(bench), in_partition(bench)
    assert bench.case.places(bench.table)["dt=1"] == home(bench).with_name("dt=1")  # type: ignore[attr-defined]
    put(bench, call)
    bench.sweep()
    assert (bench.state(plan), halted(bench)) == ("completed", None)
    assert (here(bench), bench.rows()) == (place, sorted([*expected, *anew]))
    bench.clean()
    assert (swept(bench), bench.rows()) == (SweepReport(), sorted([*expected, *anew]))


@pytest.mark.parametrize("added", ["before the take-over", "after it"])
def test_rule_6_an_unrecorded_commit_is_found_although_its_partition_was_dropped(unmoved: Bench, added: str):
    """The plan did not find its commit, and rewrote the replaced rows together with the new ones."""
    bench = unmoved
    plan = killed_before_it_records(bench, partitions=[PARTITION])
    place = here(bench)
    dropped(bench)
    if added == "before the take-over":
        added_again(bench)
    bench.sweep()
    assert bench.rescue() is not None
    assert bench.state(plan) == "completed"
    if added == "after it":
        bench.sweep()
        added_again(bench)
    rows = write(home(bench), 900, 910)
    bench.sweep()
    assert (in_partition(bench), halted(bench)) == (sorted(rows), None)
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    bench.clean()
    assert (in_partition(bench), swept(bench), halted(bench)) == (sorted(rows), SweepReport(), None)
    assert data_files(place), "the owner dropped the partition, and its files stay as those of any external table"


def killed_before_its_mark(bench: Bench) -> Plan:
    """A plan whose call was made, and whose executor died right after it."""
    plan = bench.request(partitions=[PARTITION])
    with mock.patch("lake.formats.hive.commit.commit_record.mark_committed", side_effect=Killed), pytest.raises(Killed):
        bench.run()
    bench.expire()
    return plan


def test_rule_6_a_commit_without_a_mark_is_found_although_its_managed_partition_was_dropped(unmoved: Bench):
    """``DROP PARTITION`` deletes the directory from which the partition is read, and nothing else deletes it."""
    bench = unmoved
    as_managed(bench)
    plan, place = killed_before_its_mark(bench), here(bench)
    dropped(bench)
    shutil.rmtree(place)
    added_again(bench)
    rows = write(home(bench), 900, 910)
    bench.sweep()
    assert bench.rescue() is not None
    bench.sweep()
    assert (bench.state(plan), in_partition(bench), halted(bench)) == ("completed", sorted(rows), None)
    bench.clean()
    assert (in_partition(bench), swept(bench)) == (sorted(rows), SweepReport())


def test_rule_6_a_recorded_commit_without_a_mark_is_found_after_a_drop_if_the_database_is_lost(
    unmoved: Bench,
):
    bench = unmoved
    plan = killed_before_its_mark(bench)
    assert bench.rescue() is not None
    assert bench.state(plan) == "completed"
    dropped(bench)
    added_again(bench)
    rows = write(home(bench), 900, 910)
    lose_database(bench)
    bench.sweep()
    assert (in_partition(bench), halted(bench)) == (sorted(rows), None)


@pytest.mark.parametrize("died", ["", "before the check", "after the check"])
def test_rule_11_an_undone_commit_does_not_count_once_its_partition_is_dropped_and_added_again(
    unmoved: Bench, died: str
):
    """Its files were moved aside as replaced ones, after a program had written it back with a change of its own."""
    bench, rows = unmoved, in_partition(unmoved)
    before = as_is(bench)
    changed = before.with_changes(before.storage, {**before.parameters, "owner.says": "keep"})
    verify, call = metastore_commit.verify_after_commit, MetastoreClient.alter_partitions

    def met(self: MetastoreClient, database: str, name: str, partitions: Sequence[MetastorePartition]) -> None:
        call(self, database, name, partitions)
        call(self, database, name, [changed])

    def checked(*arguments: Any) -> None:
        if died == "before the check":
            raise Killed
        try:
            verify(*arguments)
        finally:
            if died == "after the check":
                raise Killed

    plan = bench.request(partitions=[PARTITION])
    with (
        mock.patch.object(MetastoreClient, "alter_partitions", met),
        mock.patch("lake.formats.hive.writer.metastore_commit.verify_after_commit", checked),
        suppress(Killed),
    ):
        assert bench.run().result is RunResult.FAILED
    if died:
        bench.expire()
        assert bench.rescue() is not None
        assert bench.state(plan) == "requested"
        assert bench.store.request_cancel(plan.plan_id, "ada") is PlanState.CANCELLED
    else:
        assert "one of the two may have undone the other: partition dt=0" in str(halted(bench))
    assert (here(bench), in_partition(bench)) == (home(bench), rows)
    bench.sweep()
    dropped(bench)
    added_again(bench)
    bench.store.resume(bench.table.name, "ada")
    for _ in range(2):
        bench.sweep()
        bench.clean()
    assert (here(bench), in_partition(bench), halted(bench)) == (home(bench), rows, None)
    assert not any(commit_record.is_marked_committed(bench.table, one) for one in versions(bench))


def versions(bench: Bench) -> Sequence[str]:
    return [path.name for path in (Path(bench.table.location) / DATA_DIR).glob("*-e*")]


def test_rule_11_a_version_that_was_removed_in_part_is_no_commit(unmoved: Bench, monkeypatch: pytest.MonkeyPatch):
    """The commit was undone, and its plan waited for days: a search took the rest of the version for the commit."""
    bench, before, rows = unmoved, as_is(unmoved), in_partition(unmoved)
    plan = killed_before_it_records(bench, partitions=[PARTITION])
    place = here(bench)
    written_back(bench, before)
    assert bench.rescue() is not None
    monkeypatch.setattr(commit_record, "_IN_FLIGHT_FOR", timedelta())
    removed, listed = LocalFileIO.remove_own_tree, LocalFileIO.list

    def remove(files: LocalFileIO, directory: str) -> None:
        removed(files, directory)
        raise Killed

    def directories_first(files: LocalFileIO, directory: str) -> Sequence[FileEntry]:
        return sorted(listed(files, directory), key=lambda entry: not entry.is_directory)

    with (
        mock.patch.object(LocalFileIO, "remove_own_tree", remove),
        mock.patch.object(LocalFileIO, "list", directories_first),
        pytest.raises(Killed),
    ):
        remove_version(bench.table, place.parent.name)
    assert not place.exists()
    bench.sweep()
    assert (bench.state(plan), halted(bench), partitions_awaiting(bench)) == ("requested", None, {})
    bench.execute("UPDATE plan SET not_before_ms = 0")
    assert bench.run().result is RunResult.COMPLETED
    assert (in_partition(bench), swept(bench), halted(bench)) == (sorted(rows), SweepReport(), None)


def partitions_awaiting(bench: Bench) -> Mapping[str, str]:
    return partitions_awaiting_sweep(bench.table, format=bench.format, store=bench.store, partitions=[PARTITION])


def test_rule_6_an_unrecorded_commit_is_found_after_its_plan_was_cancelled_and_its_partition_dropped(
    unmoved: Bench,
):
    bench = unmoved
    plan = killed_before_it_records(bench, partitions=[PARTITION])
    taken = bench.store.take_over_expired("a rescuer")
    assert taken is not None
    bench.store.cancel(taken, "it is not there", actor="ada")
    dropped(bench)
    added_again(bench)
    rows = write(home(bench), 900, 910)
    bench.sweep()
    assert (bench.state(plan), in_partition(bench), halted(bench)) == ("completed", sorted(rows), None)
    bench.clean()
    assert (in_partition(bench), swept(bench)) == (sorted(rows), SweepReport())


def test_rule_11_a_commit_that_was_undone_is_none_of_its_plan_s_while_its_partition_is_the_same(unmoved: Bench):
    """Only a drop tells a commit that was made and whose partition no longer names it from one that was undone."""
    bench, before, rows = unmoved, as_is(unmoved), in_partition(unmoved)
    plan = killed_before_it_records(bench, partitions=[PARTITION])
    written_back(bench, before)
    assert bench.rescue() is not None
    assert bench.state(plan) == "requested"
    assert bench.run().result is RunResult.COMPLETED
    assert (bench.state(plan), in_partition(bench), halted(bench)) == ("completed", sorted(rows), None)


def test_rule_11_a_written_back_partition_of_an_unrecorded_commit_is_moved_again_although_another_was_dropped(
    unmoved: Bench,
):
    """The drop shows that the commit counts, not which of its partitions Hive has written back since."""
    bench, before, rows = unmoved, as_is(unmoved), in_partition(unmoved)
    plan = killed_before_it_records(bench)
    place = here(bench)
    written_back(bench, before)
    late = write(home(bench), 900, 910)
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.drop(table_name(bench.table), "1")
    assert bench.rescue() is not None
    for _ in range(3):
        bench.sweep()
    expected = sorted([*rows, *late])
    assert (bench.state(plan), here(bench), in_partition(bench)) == ("completed", place, expected)
    bench.clean()
    assert (in_partition(bench), swept(bench), halted(bench)) == (expected, SweepReport(), None)


def added_again(bench: Bench) -> None:
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.add(table_name(bench.table), "0", home(bench))


def as_is(bench: Bench) -> Any:
    return bench.case.partitions(bench.table)[PARTITION]  # type: ignore[attr-defined]


def written_back(bench: Bench, before: Any) -> None:
    """What Hive does when it has brought the files of an INSERT in: all that it read before, with new counts."""
    alter_partitions(bench, [before.with_changes(before.storage, {**before.parameters, "numFiles": "9"})])


@pytest.mark.crossed
@pytest.mark.parametrize("times", [1, 2])
def test_rule_11_a_partition_that_is_written_back_as_it_was_before_a_move_is_moved_again(unmoved: Bench, times: int):
    bench, late = unmoved, list[str]()
    for _ in range(times):
        before, home_then = as_is(bench), here(bench)
        bench.request()
        assert bench.run().result is RunResult.COMPLETED
    place, rows_before = here(bench), in_partition(bench)
    late += write(place, 800, 810, "part-seen.parquet")
    written_back(bench, before)
    reasons = partitions_awaiting_sweep(bench.table, format=bench.format, store=bench.store, partitions=[PARTITION])
    assert "written back as it was before a move" in reasons[PARTITION]
    assert {version.partition for version in bench.clean().deleted} == {"dt=1"}
    assert (
        partitions_awaiting_sweep(bench.table, format=bench.format, store=bench.store, partitions=[PARTITION])
        == reasons
    )
    late += write(home_then, 900, 910)
    assert swept(bench).copied == 1
    assert (here(bench), in_partition(bench)) == (place, sorted([*rows_before, *late]))
    assert counted(bench) == true_counts(bench)
    written_back(bench, before)
    swept(bench)
    assert (here(bench), in_partition(bench), swept(bench)) == (place, sorted([*rows_before, *late]), SweepReport())
    bench.clean()
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    assert (in_partition(bench), halted(bench)) == (sorted([*rows_before, *late]), None)


@pytest.mark.parametrize("how", ["as it was before a move", "anew"])
def test_rule_5_a_late_file_is_copied_once_where_the_partition_is_written_back_meanwhile(unmoved: Bench, how: str):
    """The copy was in place and not recorded as done. The next sweep made another one, and readers saw both."""
    bench, before = unmoved, as_is(unmoved)
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    rows = sorted([*in_partition(bench), *write(home(bench), 900, 910)])

    def write_back(_: str) -> None:
        now = as_is(bench)
        alter_partitions(bench, [now.with_changes(now.storage, {}) if how == "anew" else before])

    with mock.patch("lake.formats.hive.relocation.late_files.failpoint", write_back):
        assert swept(bench).deferred == [PARTITION]
    for _ in range(2):
        swept(bench)
    assert (in_partition(bench), halted(bench), counted(bench)) == (rows, None, true_counts(bench))
    bench.clean()
    assert (in_partition(bench), swept(bench)) == (rows, SweepReport())


def test_rule_11_files_where_a_partition_was_written_back_wait_on_if_the_sweep_runs_between_two_checks(
    unmoved: Bench,
):
    bench, before = unmoved, as_is(unmoved)
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    rows_, place = in_partition(bench), here(bench)
    waiting = bench.store.awaiting_deletion(bench.table)
    written_back(bench, before)
    closed = HiveFormat.obsolete_deletions

    def looked(*arguments: Any) -> Any:
        found = closed(*arguments)
        swept(bench)
        return found

    with mock.patch.object(HiveFormat, "obsolete_deletions", looked):
        assert bench.clean(timedelta(days=1)).no_longer_awaiting == ()
    assert (here(bench), bench.store.awaiting_deletion(bench.table)) == (place, waiting)
    late = write(home(bench), 900, 910)
    assert (swept(bench).copied, in_partition(bench), halted(bench)) == (1, sorted(rows_ + late), None)


def test_rule_11_an_overwrite_with_an_entry_read_before_a_move_moves_the_partition_back(unmoved: Bench):
    bench, before = unmoved, as_is(unmoved)
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    anew = overwrite(home(bench), 500, 520)
    wait_a_tick(home(bench))
    late = write(here(bench), 800, 810, "part-seen.parquet")
    written_back(bench, before)
    assert swept(bench).relocated_back == 1
    assert (here(bench), in_partition(bench)) == (home(bench), sorted([*anew, *late]))
    assert (swept(bench), halted(bench)) == (SweepReport(), None)
    bench.clean()
    assert in_partition(bench) == sorted([*anew, *late])


@pytest.fixture
def unanswered(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> tuple[Plan, Mapping[str, MetastorePartition]]:
    """A requested plan, and a call of its first attempt that the metastore has not executed yet."""
    write(here(bench), 700, 710, "part-more.parquet")
    plan = bench.request(partitions=[PARTITION])
    calls: list[Sequence[MetastorePartition]] = []

    def no_answer(_: MetastoreClient, database: str, table: str, partitions: Sequence[MetastorePartition]) -> None:
        calls.append(partitions)
        raise CommitUnknown("no answer for 30 s")

    with monkeypatch.context() as patch:
        patch.setattr(MetastoreClient, "alter_partitions", no_answer)
        bench.run()
    bench.expire()
    bench.rescue()
    assert bench.state(plan) == "requested"
    bench.execute("UPDATE plan SET not_before_ms = 0")
    return plan, {one.values[0]: one for one in calls[0]}


def test_rule_1_a_late_call_of_an_earlier_attempt_halts_nothing_while_the_next_attempt_runs(
    bench: Bench, unanswered: tuple[Plan, Mapping[str, MetastorePartition]], monkeypatch: pytest.MonkeyPatch
):
    """The table was halted, so the plan was claimed no more and the commit stayed unrecorded."""
    (plan, call), rows, late, once = unanswered, bench.rows(), list[str](), iter(["after_rewrite"])

    def at(name: str) -> None:
        if name == "after_rewrite" and next(once, None):
            put(bench, call)
            late.extend(write(home(bench), 900, 910))
            report = swept(bench)
            assert (report.deferred, report.halt_reasons, halted(bench)) == ([PARTITION], {}, None)

    monkeypatch.setattr("executors.run.failpoint", at)
    assert bench.run().result is RunResult.COMPLETED
    bench.sweep()
    assert (bench.state(plan), bench.rows(), halted(bench)) == ("completed", sorted([*rows, *late]), None)
    bench.clean()
    assert (swept(bench), bench.rows(), len(late)) == (SweepReport(), sorted([*rows, *late]), 10)


@pytest.mark.parametrize("waits_for", ["its turn", "a paused table", "a halted table"])
def test_rule_2_a_call_that_is_made_when_its_plan_waits_is_recorded_before_the_plan_is_claimed(
    bench: Bench, unanswered: tuple[Plan, Mapping[str, MetastorePartition]], waits_for: str
):
    """Late rows were not read before the plan was claimed, which a paused or halted table did not allow for days."""
    (plan, call), rows = unanswered, bench.rows()
    if waits_for == "a paused table":
        bench.store.pause(bench.table.name, "ada")
    elif waits_for == "a halted table":
        bench.store.halt_table(bench.table, "a person is to look at it")
    put(bench, call)
    late = write(home(bench), 900, 910)
    report = swept(bench)
    assert (report.copied, report.deferred, report.halt_reasons) == (1, [], {})
    assert (bench.state(plan), bench.rows()) == ("completed", sorted([*rows, *late]))
    bench.store.resume(bench.table.name, "ada")
    bench.sweep()
    bench.clean()
    assert (swept(bench), bench.rows(), halted(bench)) == (SweepReport(), sorted([*rows, *late]), None)
    assert bench.store.claim("another") is None


def test_rule_1_a_partition_that_names_an_unrecorded_epoch_halts_its_table(bench: Bench):
    earlier = bench.case.partitions(bench.table)[PARTITION]  # type: ignore[attr-defined]
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    stored = bench.stored()
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        unknown = {**earlier.parameters, "lakefold.version": "another-e1-1"}
        owner.alter_partitions(DATABASE, table_name(bench.table), [earlier.with_changes(earlier.storage, unknown)])
    assert swept(bench).first_halt_reason
    assert "an executor that was suspended" in str(halted(bench))
    assert bench.stored() == stored
    assert bench.store.claim("another") is None

# SPDX-License-Identifier: Apache-2.0
"""Sweeps that are stopped at any point: after they continue, they undo no work of a later sweep."""

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest
from relocated_case import NEW_LOCATION, PARTITION, RelocatedTable
from store_plans import sql
from waiting import wait_for

from executors.relocation.partition_sweep import SweepReport
from lake.formats.hive.commit import version_names
from lake.plan import Commit, SupersededVersion
from lake.storage.local import LocalFileIO
from service.control.store import Store
from service.control.store.relocation.journal import RelocationJournal


@pytest.fixture
def table(tmp_path: Path) -> RelocatedTable:
    return RelocatedTable(tmp_path)


def test_a_sweep_suspended_until_its_lock_expired_does_not_get_the_lock_back_although_it_is_free(
    table: RelocatedTable,
):
    table.put(f"{PARTITION}/f", "late")
    table.hooks["copied"] = lambda: table.begin(f"{PARTITION}/g")

    def hours() -> None:
        table.put(f"{PARTITION}/g", "later")
        table.hours_pass()
        assert table.swept().copied == 2
        assert not table.held()

    table.hooks["before_take_back"] = hours
    assert table.swept() == SweepReport()
    assert (table.rows(), table.held()) == (["late", "later", "rows"], False)
    assert (table.swept(), table.rows()) == (SweepReport(), ["late", "later", "rows"])


def test_a_sweep_that_copies_for_longer_than_its_lock_lasts_renews_the_lock_meanwhile(
    table: RelocatedTable, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("executors.partition_locks._RENEW_INTERVAL", timedelta(seconds=0.005))
    until = "SELECT expires_at_ms FROM live_partition"

    def copies_for_a_while() -> None:
        sql(table.url, "UPDATE live_partition SET expires_at_ms = expires_at_ms - 110000")
        ((before,),) = sql(table.url, until)
        wait_for(lambda: sql(table.url, until)[0][0] > before, "it is not renewed", every=0.005)

    table.put(f"{PARTITION}/f", "late")
    table.hooks["copied"] = copies_for_a_while
    assert (table.swept().copied, table.rows()) == (1, ["late", "rows"])


def dropped(table: RelocatedTable) -> None:
    """What ``DROP PARTITION`` of a managed table does: it removes where the partition is."""
    shutil.rmtree(table.at.location)
    table.at = None


def recreated(table: RelocatedTable) -> None:
    """What an ``INSERT`` into a partition that there is not does."""
    table.put(f"{PARTITION}/000000_0", "new")
    table.at = table.place(PARTITION, {}, created_at=99)


@pytest.mark.parametrize("moment", ["shown", "tell"])
def test_rows_dropped_while_their_partition_is_restored_stay_dropped(table: RelocatedTable, moment: str):
    table.cleaned()
    table.hooks[moment] = lambda: dropped(table)
    assert table.brought_home() == SweepReport()
    assert list((table.root / PARTITION).iterdir()) == [], "no reader sees them, and none may"
    recreated(table)
    assert (table.swept(), table.rows(), table.halted()) == (SweepReport(), ["new"], None)


@pytest.mark.parametrize("moment", ["shown", "tell"])
def test_rows_dropped_while_a_killed_sweep_restores_their_partition_stay_dropped(table: RelocatedTable, moment: str):
    def die() -> None:
        raise SystemExit

    table.cleaned()
    table.hooks[moment] = die
    with pytest.raises(SystemExit):
        table.brought_home()
    dropped(table)
    recreated(table)
    assert set(table.rows()) == {"rows", "new"}
    assert (table.swept(), table.rows(), table.halted()) == (SweepReport(), ["new"], None)
    assert table.swept() == SweepReport()


@pytest.mark.parametrize("moment", ["take_back", "show", "copied"])
def test_a_sweep_suspended_right_before_it_changes_a_copy_changes_none_that_another_sweep_has_published(
    table: RelocatedTable, moment: str
):
    table.put(f"{PARTITION}/f", "late")
    if moment == "take_back":
        table.hooks["copied"] = lambda: table.begin(f"{PARTITION}/g")

    def hours() -> None:
        (table.root / PARTITION / "g").unlink(missing_ok=True)
        table.hours_pass()
        assert (table.swept().copied, table.rows()) == (1, ["late", "rows"])

    table.hooks[moment] = hours
    assert table.swept() == SweepReport()
    assert (table.rows(), table.halted()) == (["late", "rows"], None)
    assert (table.swept(), table.rows()) == (SweepReport(), ["late", "rows"])


def test_copies_of_one_file_by_two_sweeps_are_never_visible_together(
    table: RelocatedTable,
):
    table.put(f"{PARTITION}/f", "late")
    awake: list[None] = []

    def hours() -> None:
        def sleeper_goes_on() -> None:
            hidden = next((table.root / NEW_LOCATION).glob(".carried-*"))
            hidden.rename(hidden.with_name(hidden.name[1:]))
            awake.append(None)

        table.hours_pass()
        table.hooks["before_take_back"] = sleeper_goes_on
        assert table.swept() == SweepReport(), "another sweep may have recorded the copy as visible"
        assert table.rows() == ["late", "rows"]

    table.hooks["show"] = hours
    assert (table.swept(), awake) == (SweepReport(), [None])
    assert (table.swept().copied, table.rows(), table.swept()) == (1, ["late", "rows"], SweepReport())


@pytest.mark.parametrize("method", ["begin_late_copies", "end_late_copies"])
def test_a_suspended_sweeps_writes_to_the_database_do_not_undo_those_of_another_sweep(
    table: RelocatedTable, monkeypatch: pytest.MonkeyPatch, method: str
):
    table.put(f"{PARTITION}/f", "late")
    write = getattr(RelocationJournal, method)

    def hours() -> None:
        table.hours_pass()
        table.swept()

    def slow(store: RelocationJournal, *arguments: Any, **options: Any) -> None:
        table.hook("write")
        write(store, *arguments, **options)

    monkeypatch.setattr(RelocationJournal, method, slow)
    table.hooks["write"] = hours
    assert table.swept() == SweepReport()
    (record,) = table.store.relocated_partitions(table.ref)
    assert [(carry.is_done, carry.target.rpartition("/")[2] in table.read()) for carry in record.late_copies] == [
        (True, True)
    ]
    assert (table.swept(), table.rows()) == (SweepReport(), ["late", "rows"])


@pytest.mark.parametrize("moment", ["before_move_aside", "move_aside"])
@pytest.mark.parametrize("swept_meanwhile", [True, False])
def test_a_sweep_suspended_while_it_archives_a_replaced_file_leaves_a_new_file_of_the_same_name(
    tmp_path: Path, moment: str, swept_meanwhile: bool
):
    table = RelocatedTable(tmp_path, ["000000_0"])
    dropped(table)

    def hours() -> None:
        table.hours_pass()
        if swept_meanwhile:
            assert table.swept().superseded == 1
        recreated(table)

    table.hooks[moment] = hours
    table.swept()
    assert (table.rows(), table.halted()) == (["new"], None)
    assert (table.swept(), table.rows()) == (SweepReport(), ["new"])
    aside = [path.read_text() for path in (table.root / ".lakefold/_aside").rglob("*") if path.is_file()]
    assert aside == (["rowsPAR1"] if swept_meanwhile else [])


@pytest.mark.parametrize("told_by", ["the database's clock", "the hold"])
def test_a_cleaner_on_a_machine_suspended_for_hours_checks_again_before_it_deletes_another_file(
    table: RelocatedTable, monkeypatch: pytest.MonkeyPatch, told_by: str
):
    delete, clock, slept = LocalFileIO.delete_data_file, Store.clock, [0.0]

    def deleted(files: LocalFileIO, path: str) -> None:
        delete(files, path)
        if not slept[0]:
            slept[0] = 3600.0
            table.at = table.place(PARTITION, {}, created_at=5)  # a person has sent the partition back meanwhile
            if told_by == "the hold":
                table.hours_pass()

    monkeypatch.setattr(LocalFileIO, "delete_data_file", deleted)
    monkeypatch.setattr(Store, "clock", lambda store: clock(store) + slept[0])
    (kept, *_) = table.clean().kept
    assert (list(table.read()), len(table.store.awaiting_deletion(table.ref))) == (["in-b"], 2)
    assert ("may have another owner" if told_by == "the hold" else "was written back") in kept.reason


def test_a_replaced_file_that_a_killed_sweep_had_moved_but_not_archived_is_archived_by_the_next_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    table = RelocatedTable(tmp_path, ["000000_0"])
    dropped(table)
    with monkeypatch.context() as killed:
        killed.setattr("lake.formats.hive.relocation.late_files._finish_archiving", mock.Mock(side_effect=SystemExit))
        with pytest.raises(SystemExit):
            table.swept()
    assert (table.swept().superseded, list((table.root / PARTITION).iterdir())) == (1, [])
    (waiting,) = table.store.awaiting_deletion(table.ref)
    assert (table.root / waiting.version.path).read_text() == "rowsPAR1"


def test_a_file_that_a_suspended_sweep_moved_and_can_not_move_back_is_kept_and_halts_the_table(tmp_path: Path):
    table = RelocatedTable(tmp_path, ["000000_0"])
    dropped(table)

    def hours() -> None:
        table.hours_pass()
        recreated(table)
        table.hooks["before_move_aside"] = lambda: cast(None, table.put(f"{PARTITION}/000000_0", "newer"))

    table.hooks["move_aside"] = hours
    table.swept()
    assert (table.rows(), "where another file is now" in str(table.halted())) == (["newer"], True)
    (taken,) = (table.root / ".lakefold/_aside").rglob(".000000_0")
    assert (taken.read_text(), str(taken) in str(table.halted())) == ("newPAR1", True)


def test_an_existing_directory_with_a_dangling_link_does_not_count_as_missing(table: RelocatedTable):
    """As a file does that its writer removes, or names, while the directory is listed."""
    (table.root / PARTITION / "link").symlink_to("nowhere")
    table.put(f"{PARTITION}/f", "late")
    assert (table.swept().copied, table.rows(), table.halted()) == (1, ["late", "rows"], None)


def test_an_unrecorded_commit_is_searched_for_although_a_relocation_was_begun_and_not_made(table: RelocatedTable):
    """Its executor slept before its call, while a round died before its own."""
    (record,) = table.store.relocated_partitions(table.ref)
    begun = replace(record.latest, token="back-begun", previous_location=NEW_LOCATION, location=PARTITION)
    table.store.begin_relocation(table.ref, begun, "plan", [])
    other = f".lakefold/plan-e2-2/{PARTITION}"
    (table.root / other).mkdir(parents=True)
    made = table.put(f"{other}/part-plan-e2-2-0-0.parquet")
    move = replace(record.latest, token="plan-e2-2", previous_location=NEW_LOCATION, location=other, files=(made,))
    replaced = tuple(
        SupersededVersion(
            partition=PARTITION,
            path=file.path,
            bytes=file.bytes,
            instant="plan-e2-2",
            modified_at=datetime.fromtimestamp(file.modified_ms / 1000, UTC),
        )
        for file in record.latest.files
    )
    commit = Commit(plan_id="plan", instant="plan-e2-2", epoch=1, outputs=(), superseded=replaced, relocations=(move,))
    table.at = table.place(other, {version_names.VERSION_KEY: "plan-e2-2"}, created_at=5)

    def recorded(*_: object, **__: object) -> None:
        table.store.add_relocations(table.ref, commit)

    with mock.patch("executors.relocation.partition_sweep.record_unrecorded_commits", recorded):
        assert (table.swept(), table.halted()) == (SweepReport(), None)

# SPDX-License-Identifier: Apache-2.0
"""Partitions that an owner renames before the sweep has copied late files: ``ALTER TABLE … PARTITION … RENAME TO``."""

import shutil
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hive_case import DATABASE, Owner, table_name
from late_writing import (
    PARTITION,
    Killed,
    added_again,
    after_its_hold,
    alter_partitions,
    brought_home,
    data_files,
    dropped,
    halted,
    home,
    killed_before_it_records,
    killed_in_sweep,
    overwrite,
    overwritten_after_a_late_file,
    resolved,
    rows_in,
    swept,
    wait_a_tick,
    write,
)
from toys.bench import Bench
from waiting import wait_for

from executors.context import RunContext
from executors.outcome import RunResult
from executors.relocation.partition_sweep import SweepReport
from executors.relocation.sweep import partitions_awaiting_sweep, sweep_partitions
from lake.errors import Transient
from lake.formats.hive import format as hive_format
from lake.formats.hive.writer import HiveWriter
from lake.metastore import MetastoreTable
from lake.metastore.thrift import STRING
from lake.model import TableRef
from lake.relocation.decide import LocationChoice
from lake.storage.local import LocalFileIO

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]

RENAMED = "dt=9"


def place_of(bench: Bench, partition: str = RENAMED) -> Path:
    return bench.case.places(bench.table)[partition]  # type: ignore[attr-defined]


def renamed(bench: Bench) -> None:
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.rename(table_name(bench.table), "0", "9")


def swept_to_the_end(bench: Bench) -> None:
    for _ in range(3):
        bench.sweep()


@pytest.mark.parametrize("since", ["nothing", "a plan", "a copy", "an added partition"])
def test_rule_2_late_files_of_a_renamed_partition_are_read_under_its_new_name(bench: Bench, since: str):
    """It stayed in the previous location for good: the partition counted as dropped."""
    rows, late = rows_in(place_of(bench, PARTITION)), list[str]()

    def arrive(_: str = "") -> None:
        late[:] = write(home(bench), 900, 910)

    if since != "a plan":
        arrive()
    if since == "a copy":
        with killed_in_sweep("carry_copied"):
            bench.sweep()
        after_its_hold(bench)
    renamed(bench)
    if since == "a plan":
        bench.request(partitions=[RENAMED])
        # After the plan's last check, or else the plan would wait for the sweep.
        with mock.patch("lake.formats.hive.commit.metastore_commit.failpoint", arrive):
            assert bench.run().result is RunResult.COMPLETED
    rows = sorted([*rows, *late])
    swept_to_the_end(bench)
    assert (rows_in(place_of(bench)), halted(bench)) == (rows, None)
    parameters = bench.case.partitions(bench.table)[RENAMED].parameters  # type: ignore[attr-defined]
    assert int(parameters["numFiles"]) == len(data_files(place_of(bench)))
    assert data_files(home(bench)), "a writer that overwrites them is told from one that appends"
    if since == "an added partition":
        made = bench.case.partitions(bench.table)[RENAMED].created_at  # type: ignore[attr-defined]
        wait_for(lambda: time.time() > made + 1, "time stands still")
        added_again(bench)
        added = write(home(bench), 700, 710, "part-added.parquet")
        swept_to_the_end(bench)
        assert (rows_in(place_of(bench, PARTITION)), rows_in(place_of(bench))) == (sorted(added), rows)
    bench.clean()
    bench.request(partitions=[RENAMED])
    assert bench.run().result is RunResult.COMPLETED
    swept_to_the_end(bench)
    bench.clean()
    assert (rows_in(place_of(bench)), swept(bench), halted(bench)) == (rows, SweepReport(), None)
    brought_home(bench)
    assert (place_of(bench), rows_in(place_of(bench))) == (Path(bench.table.location) / RENAMED, rows)
    assert (swept(bench), halted(bench)) == (SweepReport(), None)


def test_rule_2_late_files_after_the_first_sweep_of_a_renamed_partition_are_read_under_its_new_name(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    """The first sweep took it for dropped and moved its replaced files aside; then the late file halted it."""
    rows, listed, load = rows_in(place_of(bench, PARTITION)), list[None](), hive_format._load_partitions
    renamed(bench)
    swept_to_the_end(bench)

    def counted(table: TableRef, partitions: Collection[str] | None = None) -> Any:
        if partitions is None:
            listed.append(None)
        return load(table, partitions)

    with monkeypatch.context() as patch:
        patch.setattr(hive_format, "_load_partitions", counted)
        swept_to_the_end(bench)
    assert (listed, halted(bench)) == ([], None), "the new name is known"
    late = write(home(bench), 900, 910)
    swept_to_the_end(bench)
    assert (rows_in(place_of(bench)), halted(bench)) == (sorted([*rows, *late]), None)
    bench.clean()
    brought_home(bench)
    assert (rows_in(place_of(bench)), data_files(home(bench)), halted(bench)) == (sorted([*rows, *late]), [], None)
    assert swept(bench) == SweepReport()


@pytest.mark.parametrize("since", ["plan plan", "plan restore", "plan restore plan"])
@pytest.mark.parametrize("is_cleaned", [False, True], ids=["", "cleaned"])
def test_rule_2_late_files_are_found_although_the_renamed_partition_was_moved_more_than_once(
    bench: Bench, since: str, is_cleaned: bool
):
    """Only its last move was looked at, and the late file stayed invisible for good."""
    renamed(bench)
    for number, step in enumerate(since.split()):
        if step == "restore":
            brought_home(bench)
            assert place_of(bench) == Path(bench.table.location) / RENAMED
            continue
        for part in range(2):
            write(place_of(bench), 700 + 20 * number + 10 * part, 710 + 20 * number + 10 * part, f"part-{part}.parquet")
        bench.request(partitions=[RENAMED])
        assert bench.run().result is RunResult.COMPLETED
    if is_cleaned:
        bench.clean()
    rows, late = rows_in(place_of(bench)), write(home(bench), 900, 910)
    swept_to_the_end(bench)
    if is_cleaned:
        assert f"was renamed to {RENAMED}, and its directory was moved, before late files" in str(halted(bench))
        assert (rows_in(place_of(bench)), rows_in(home(bench))) == (rows, late)
    else:
        assert (rows_in(place_of(bench)), halted(bench)) == (sorted([*rows, *late]), None)


def test_rule_2_a_late_file_that_an_overwrite_of_the_renamed_partition_followed_is_not_read(bench: Bench):
    """Its copy in the version that the renamed partition had left was taken for a file that arrived afterwards."""
    renamed(bench)
    moved_by_a_plan(bench, RENAMED, 700)
    rows = overwritten_after_a_late_file(bench, place_of(bench, RENAMED))
    swept_to_the_end(bench)
    assert (rows_in(place_of(bench)), halted(bench)) == (rows, None)
    bench.clean()
    assert (rows_in(place_of(bench)), data_files(home(bench)), halted(bench)) == (rows, [], None)
    assert swept(bench) == SweepReport()


@pytest.mark.parametrize("died", ["before it publishes the copies", "afterwards"])
def test_rule_2_an_overwrite_counts_also_if_the_sweep_died_while_it_copied_a_late_file_of_the_renamed_partition(
    bench: Bench, died: str
):
    renamed(bench)
    moved_by_a_plan(bench, RENAMED, 700)
    rows = overwritten_after_a_late_file(bench, place_of(bench, RENAMED))
    if died == "afterwards":
        with killed_in_sweep("carry_copied"):
            swept(bench)
    else:
        with mock.patch.object(HiveWriter, "publish_copies", side_effect=Killed), pytest.raises(Killed):
            swept(bench)
    after_its_hold(bench)
    swept_to_the_end(bench)
    assert (rows_in(place_of(bench)), halted(bench)) == (rows, None)
    assert bench.store.unfinished_partitions(bench.table) == frozenset()
    bench.clean()
    assert (rows_in(place_of(bench)), data_files(home(bench)), swept(bench)) == (rows, [], SweepReport())


def test_rule_2_a_copy_that_a_suspended_sweep_publishes_after_its_lock_expired_is_read_under_the_new_name(bench: Bench):
    """Another sweep of the new name had ended the record of the copy, since it was not there, and ignored it then."""
    renamed(bench)
    moved_by_a_plan(bench, RENAMED, 700)
    rows = sorted([*rows_in(place_of(bench)), *write(home(bench), 900, 910)])
    rename, others = LocalFileIO.rename, [RENAMED]

    def suspended(files: LocalFileIO, source: str, target: str) -> None:
        if others and Path(target).name.startswith("carried-"):
            after_its_hold(bench)
            context = RunContext(store=bench.store, spark=bench.case.spark)
            sweep_partitions(bench.table, context, format=bench.format, partitions=[others.pop()])
        rename(files, source, target)

    with mock.patch.object(LocalFileIO, "rename", suspended):
        swept(bench)
    assert not others
    swept_to_the_end(bench)
    assert (rows_in(place_of(bench)), halted(bench)) == (rows, None)
    bench.clean()
    assert (rows_in(place_of(bench)), data_files(home(bench)), swept(bench)) == (rows, [], SweepReport())
    assert bench.store.unfinished_partitions(bench.table) == frozenset()


@pytest.mark.parametrize("last", ["8", "0"], ids=["to a third name", "back"])
def test_rule_2_an_overwrite_counts_also_if_the_partition_was_renamed_again_after_its_compaction(
    bench: Bench, last: str
):
    """The arrival time of the late file was recorded only if the partition still had the name of the compaction."""
    renamed(bench)
    moved_by_a_plan(bench, RENAMED, 700)
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.rename(table_name(bench.table), "9", last)
    rows = overwritten_after_a_late_file(bench, place_of(bench, f"dt={last}"))
    swept_to_the_end(bench)
    assert (rows_in(place_of(bench, f"dt={last}")), halted(bench)) == (rows, None)


def test_rule_2_an_overwrite_that_ended_right_before_a_partition_was_renamed_is_left_to_a_person(bench: Bench):
    rows = rows_in(place_of(bench, PARTITION))
    anew = overwrite(home(bench), 900, 910)
    renamed(bench)
    swept_to_the_end(bench)
    reason = str(halted(bench))
    assert f"partition {PARTITION} was renamed to {RENAMED} after" in reason
    assert f"point {RENAMED} to {PARTITION}" in reason
    assert (rows_in(place_of(bench)), rows_in(home(bench))) == (rows, anew), "nothing was moved"
    assert "was chosen: point" in str(resolved(bench, LocationChoice.PREVIOUS).first_halt_reason)
    bench.clean()
    assert (rows_in(place_of(bench)), rows_in(home(bench))) == (rows, anew)


@pytest.fixture
def managed(unmoved: Bench) -> Bench:
    """A managed table that a completed plan has moved: the metastore moves the directories of its partitions."""
    with Owner(unmoved.case.uri) as owner:  # type: ignore[attr-defined]
        table = owner.table(DATABASE, table_name(unmoved.table))
        assert table is not None
        managed = MetastoreTable(table.raw | {12: (STRING, "MANAGED_TABLE")}).with_changes(table.storage, {})
        owner.alter_table(DATABASE, table_name(unmoved.table), managed)
    unmoved.request()
    assert unmoved.run().result is RunResult.COMPLETED
    return unmoved


def moved_by_a_plan(bench: Bench, partition: str, low: int) -> None:
    for part in range(2):
        write(place_of(bench, partition), low + 10 * part, low + 10 + 10 * part, f"part-{low}-{part}.parquet")
    bench.request(partitions=[partition])
    assert bench.run().result is RunResult.COMPLETED


def asks_and_takes_what_was_late(bench: Bench, rows: list[str], late: list[str], partition: str = RENAMED) -> None:
    swept_to_the_end(bench)
    assert f"was renamed to {partition}, and its directory was moved, before late files" in str(halted(bench))
    assert rows_in(place_of(bench, partition)) == rows
    (path,) = (path for path in home(bench).iterdir() if path.name == "part-late.parquet")
    shutil.move(path, place_of(bench, partition) / path.name)
    bench.store.resume(bench.table.name, "ada")
    swept_to_the_end(bench)
    assert (rows_in(place_of(bench, partition)), halted(bench)) == (sorted([*rows, *late]), None)


def test_rule_2_late_files_of_a_renamed_managed_partition_are_left_to_a_person(managed: Bench):
    """The metastore moves the directory of the version to that of the new name."""
    bench = managed
    rows = rows_in(place_of(bench, PARTITION))
    late = write(home(bench), 900, 910)
    renamed(bench)
    assert place_of(bench) == Path(bench.table.location) / RENAMED
    asks_and_takes_what_was_late(bench, rows, late)


@pytest.mark.parametrize(
    "since", ["plan", "plan plan", "plan restore", "plan restore plan", "plan rename", "rename plan"]
)
def test_rule_2_late_files_are_found_although_a_renamed_managed_partition_was_moved_since(managed: Bench, since: str):
    """Its directory was moved, so no relocation had left that of the version, and the file stayed invisible."""
    bench, name = managed, RENAMED
    renamed(bench)
    for number, step in enumerate(since.split()):
        if step == "plan":
            moved_by_a_plan(bench, name, 700 + 20 * number)
        elif step == "restore":
            bench.clean()
            brought_home(bench)
            assert place_of(bench, name) == Path(bench.table.location) / name
        else:
            with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
                owner.rename(table_name(bench.table), name.removeprefix("dt="), "8")
            name = "dt=8"
    late = write(home(bench), 900, 910)
    asks_and_takes_what_was_late(bench, rows_in(place_of(bench, name)), late, name)


def test_rule_2_a_managed_partition_that_was_dropped_with_late_files_is_not_taken_for_a_renamed_one(managed: Bench):
    """Both were moved by the same plan, and created in the same second."""
    bench = managed
    write(home(bench), 900, 910)
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.drop(table_name(bench.table), "0")
        owner.rename(table_name(bench.table), "1", "9")
    moved_by_a_plan(bench, RENAMED, 700)
    rows = rows_in(place_of(bench))
    swept_to_the_end(bench)
    assert (rows_in(place_of(bench)), halted(bench)) == (rows, None)


def test_rule_1_a_partition_that_took_the_name_of_a_dropped_one_does_not_halt_its_table(unmoved: Bench):
    """Its token was unknown under the name: that was taken for another lakefold, and halted the whole table."""
    bench = unmoved
    for partition in (PARTITION, "dt=1"):
        bench.request(partitions=[partition])
        assert bench.run().result is RunResult.COMPLETED
    made = bench.case.partitions(bench.table)[PARTITION].created_at  # type: ignore[attr-defined]
    staging = Path(bench.table.location) / "dt=5"
    staging.mkdir()
    wait_for(lambda: time.time() > made + 1, "time stands still")
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.add(table_name(bench.table), "5", staging)
        moved_by_a_plan(bench, "dt=5", 600)
        owner.drop(table_name(bench.table), "0")
        owner.rename(table_name(bench.table), "5", "0")
    rows = rows_in(place_of(bench, PARTITION))
    late = write(staging, 900, 910)
    swept_to_the_end(bench)
    assert (rows_in(place_of(bench, PARTITION)), halted(bench)) == (sorted([*rows, *late]), None)
    moved_by_a_plan(bench, PARTITION, 700)
    rows = rows_in(place_of(bench, PARTITION))
    swept_to_the_end(bench)
    bench.clean()
    assert (rows_in(place_of(bench, PARTITION)), swept(bench), halted(bench)) == (rows, SweepReport(), None)


def test_rule_1_the_unrecorded_commit_of_a_partition_that_was_added_again_is_searched_for_at_once(bench: Bench):
    """Its token was taken for that of another partition with this name, so the sweep did not look for the commit."""
    bench.clean()
    dropped(bench)
    added_again(bench)
    for part in range(2):
        write(home(bench), 700 + 10 * part, 710 + 10 * part, f"part-{part}.parquet")
    rows = rows_in(home(bench))
    bench.sweep()
    plan = killed_before_it_records(bench, partitions=[PARTITION])
    assert partitions_awaiting_sweep(bench.table, format=bench.format, store=bench.store, partitions=[PARTITION])
    assert (swept(bench).deferred, halted(bench)) == ([PARTITION], None), "the plan's run records it"
    bench.rescue()
    assert bench.state(plan) == "completed"
    late = write(home(bench), 900, 910)
    swept_to_the_end(bench)
    assert (rows_in(place_of(bench, PARTITION)), halted(bench)) == (sorted([*rows, *late]), None)


def test_rule_1_a_renamed_partition_gets_its_name_back_after_another_one_had_it_and_was_compacted(bench: Bench):
    renamed(bench)
    bench.clean()
    rows = rows_in(place_of(bench))
    made = bench.case.partitions(bench.table)[RENAMED].created_at  # type: ignore[attr-defined]
    wait_for(lambda: time.time() > made + 1, "time stands still")
    added_again(bench)
    moved_by_a_plan(bench, PARTITION, 600)
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.drop(table_name(bench.table), "0")
        owner.rename(table_name(bench.table), "9", "0")
    swept_to_the_end(bench)
    assert (rows_in(place_of(bench, PARTITION)), swept(bench), halted(bench)) == (rows, SweepReport(), None)


def test_rule_1_a_partition_that_was_renamed_relocated_and_renamed_back_gets_its_late_files(bench: Bench):
    """Its token was that of the relocation under the other name: the whole table was halted."""
    renamed(bench)
    moved_by_a_plan(bench, RENAMED, 700)
    place, rows = place_of(bench), rows_in(place_of(bench))
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.rename(table_name(bench.table), "9", "0")
    late = write(home(bench), 900, 910)
    swept_to_the_end(bench)
    assert (place_of(bench, PARTITION), rows_in(place), halted(bench)) == (place, sorted([*rows, *late]), None)
    moved_by_a_plan(bench, PARTITION, 800)
    rows = rows_in(place_of(bench, PARTITION))
    swept_to_the_end(bench)
    bench.clean()
    assert (rows_in(place_of(bench, PARTITION)), halted(bench)) == (rows, None)


@pytest.mark.parametrize("last", ["8", "0"], ids=["to a third name", "back"])
def test_rule_1_a_partition_that_was_renamed_compacted_and_renamed_again_is_swept_after_a_deletion(
    bench: Bench, last: str
):
    """The replaced files were deleted, and then its token was taken for another lakefold's: the table was halted."""
    renamed(bench)
    moved_by_a_plan(bench, RENAMED, 700)
    name, rows = f"dt={last}", rows_in(place_of(bench))
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.rename(table_name(bench.table), "9", last)
    for _ in range(2):
        bench.clean()
        swept_to_the_end(bench)
        assert (rows_in(place_of(bench, name)), swept(bench), halted(bench)) == (rows, SweepReport(), None)
    moved_by_a_plan(bench, name, 800)
    rows = rows_in(place_of(bench, name))
    bench.clean()
    swept_to_the_end(bench)
    assert (rows_in(place_of(bench, name)), swept(bench), halted(bench)) == (rows, SweepReport(), None)


def test_rule_1_a_late_file_after_a_deletion_halts_only_its_partition_if_that_was_renamed_compacted_and_renamed_back(
    bench: Bench,
):
    renamed(bench)
    moved_by_a_plan(bench, RENAMED, 700)
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.rename(table_name(bench.table), "9", "0")
    bench.clean()
    rows, late = rows_in(place_of(bench, PARTITION)), write(home(bench), 900, 910)
    swept_to_the_end(bench)
    assert f"{PARTITION} was renamed, compacted and renamed back, and its directory was moved" in str(halted(bench))
    assert bench.store.table_state(bench.table.name).halted_partitions.keys() == {PARTITION}
    (path,) = data_files(home(bench))
    shutil.move(path, place_of(bench, PARTITION) / path.name)
    bench.store.resume(bench.table.name, "ada")
    swept_to_the_end(bench)
    assert (rows_in(place_of(bench, PARTITION)), halted(bench)) == (sorted([*rows, *late]), None)


def renamed_back(bench: Bench) -> None:
    """The metastore moves the directory of the version into the partition's own, which must not exist."""
    swept_to_the_end(bench)
    bench.clean()
    home(bench).rmdir()
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.rename(table_name(bench.table), "9", "0")
    assert place_of(bench, PARTITION) == home(bench)


def test_rule_1_a_managed_partition_that_was_renamed_compacted_and_renamed_back_is_not_halted(managed: Bench):
    """Its own files counted as late files, since its directory is one of its previous locations."""
    bench = managed
    renamed(bench)
    moved_by_a_plan(bench, RENAMED, 700)
    rows = rows_in(place_of(bench))
    renamed_back(bench)
    swept_to_the_end(bench)
    assert (rows_in(home(bench)), swept(bench), halted(bench)) == (rows, SweepReport(), None)
    rows = sorted([*rows, *write(home(bench), 900, 910)])
    swept_to_the_end(bench)
    assert (rows_in(home(bench)), swept(bench), halted(bench)) == (rows, SweepReport(), None)
    moved_by_a_plan(bench, PARTITION, 800)
    rows = rows_in(place_of(bench, PARTITION))
    late = write(home(bench), 920, 930, "part-later.parquet")
    swept_to_the_end(bench)
    assert (rows_in(place_of(bench, PARTITION)), halted(bench)) == (sorted([*rows, *late]), None)


def test_rule_2_a_late_file_is_found_although_its_managed_partition_gets_the_former_name_back(managed: Bench):
    """The metastore refuses a rename to a name whose directory exists, so the file is found before."""
    bench = managed
    renamed(bench)
    moved_by_a_plan(bench, RENAMED, 700)
    rows = rows_in(place_of(bench))
    swept_to_the_end(bench)
    late = write(home(bench), 900, 910)
    with Owner(bench.case.uri) as owner, pytest.raises(Transient, match="already exists"):  # type: ignore[attr-defined]
        owner.rename(table_name(bench.table), "9", "0")
    asks_and_takes_what_was_late(bench, rows, late)
    rows = sorted([*rows, *late])
    renamed_back(bench)
    swept_to_the_end(bench)
    assert (rows_in(home(bench)), swept(bench), halted(bench)) == (rows, SweepReport(), None)


def test_rule_1_the_empty_directory_of_a_renamed_partition_may_be_removed(bench: Bench):
    """It was taken for EXCHANGE PARTITION: its partition was halted after an hour."""
    renamed(bench)
    bench.clean()
    home(bench).rmdir()
    rows = rows_in(place_of(bench))
    swept_to_the_end(bench)
    assert (rows_in(place_of(bench)), swept(bench), halted(bench)) == (rows, SweepReport(), None)


def test_rule_2_a_renamed_partition_is_found_although_another_one_has_the_name_that_it_had_meanwhile(bench: Bench):
    """It counted as dropped for an hour: its replaced files were moved aside, and a late file halted it."""
    renamed(bench)
    swept_to_the_end(bench)
    made = bench.case.partitions(bench.table)[RENAMED].created_at  # type: ignore[attr-defined]
    wait_for(lambda: time.time() > made + 1, "time stands still")
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.rename(table_name(bench.table), "9", "8")
        (Path(bench.table.location) / RENAMED).mkdir()
        owner.add(table_name(bench.table), "9", Path(bench.table.location) / RENAMED)
    rows, replaced = rows_in(place_of(bench, "dt=8")), data_files(home(bench))
    swept_to_the_end(bench)
    assert data_files(home(bench)) == replaced
    late = write(home(bench), 900, 910)
    swept_to_the_end(bench)
    assert (rows_in(place_of(bench, "dt=8")), halted(bench)) == (sorted([*rows, *late]), None)
    assert rows_in(place_of(bench)) == []


def test_rule_11_an_entry_that_is_written_back_after_a_rename_and_a_plan_is_set_again(bench: Bench):
    """Its token was that of the relocation under the name before: the whole table was halted."""
    renamed(bench)
    before = bench.case.partitions(bench.table)[RENAMED]  # type: ignore[attr-defined]
    moved_by_a_plan(bench, RENAMED, 700)
    place, rows = place_of(bench), rows_in(place_of(bench))
    left = Path(before.storage.location.removeprefix("file:"))
    late = write(left, 900, 910)
    alter_partitions(bench, [before])
    assert place_of(bench) == left
    swept_to_the_end(bench)
    assert (place_of(bench), rows_in(place_of(bench)), halted(bench)) == (place, sorted([*rows, *late]), None)


@pytest.mark.parametrize("is_late", [False, True], ids=["", "late file"])
def test_rule_1_a_commit_is_found_although_its_only_partition_was_renamed_before_it_was_marked(
    unmoved: Bench, is_late: bool
):
    """Its partition was halted: an overwrite was said to have removed the version, which was there."""
    bench, point = unmoved, "lake.formats.hive.writer.commit_record.mark_committed"
    plan = bench.request(partitions=[PARTITION])
    with mock.patch(point, side_effect=Killed), pytest.raises(Killed):
        bench.run()
    bench.expire()
    late = write(home(bench), 900, 910) if is_late else []
    renamed(bench)
    rows = rows_in(place_of(bench))
    bench.rescue()
    assert (bench.state(plan), halted(bench)) == ("completed", None)
    swept_to_the_end(bench)
    assert (rows_in(place_of(bench)), halted(bench)) == (sorted([*rows, *late]), None)
    bench.clean()
    assert (rows_in(place_of(bench)), halted(bench)) == (sorted([*rows, *late]), None)


def test_a_dropped_partition_with_a_late_file_lists_the_table_once(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Each turn of the sweep listed all partitions, since the late file stays."""
    listed, load = list[None](), hive_format._load_partitions

    def counted(table: TableRef, partitions: Collection[str] | None = None) -> Any:
        if partitions is None:
            listed.append(None)
        return load(table, partitions)

    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.drop(table_name(bench.table), "0")
    swept_to_the_end(bench)
    monkeypatch.setattr(hive_format, "_load_partitions", counted)
    late = write(home(bench), 900, 910)
    swept_to_the_end(bench)
    assert (len(listed), rows_in(home(bench))) == (1, late)
    write(home(bench), 910, 920, "part-later.parquet")
    swept_to_the_end(bench)
    assert len(listed) == 2, "other files may be of a partition that was renamed since then"


def test_rule_2_a_partition_that_was_dropped_with_late_files_does_not_count_as_another_one(bench: Bench):
    """Partitions that were created in the same second have the token of the same plan."""
    there = bench.case.partitions(bench.table)["dt=1"]  # type: ignore[attr-defined]
    rows = rows_in(place_of(bench, "dt=1"))
    write(home(bench), 900, 910)
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.drop(table_name(bench.table), "0")
    bench.sweep()
    assert (rows_in(place_of(bench, "dt=1")), halted(bench)) == (rows, None)
    assert bench.case.partitions(bench.table)["dt=1"] == there  # type: ignore[attr-defined]


def test_rule_2_a_plan_of_a_renamed_partition_waits_until_the_sweep_of_its_former_name_has_seen_an_older_late_file(
    bench: Bench,
):
    """The commit ended the evidence that the partition was overwritten after the late file had arrived."""
    renamed(bench)
    for part in range(2):
        write(place_of(bench), 700 + 10 * part, 710 + 10 * part, f"part-{part}.parquet")
    bench.request(partitions=[RENAMED])
    assert bench.run().result is RunResult.COMPLETED
    swept_to_the_end(bench)
    place = place_of(bench)
    rows = sorted([*overwritten_after_a_late_file(bench, place), *write(place, 520, 530, "part-more.parquet")])
    bench.request(partitions=[RENAMED])
    outcome = bench.run()
    assert (outcome.result, outcome.reason) == (RunResult.CANCELLED, "Conflict")
    swept_to_the_end(bench)
    assert (rows_in(place_of(bench)), halted(bench)) == (rows, None)
    bench.request(partitions=[RENAMED])
    assert bench.run().result is RunResult.COMPLETED
    swept_to_the_end(bench)
    assert (rows_in(place_of(bench)), halted(bench)) == (rows, None)


@pytest.mark.parametrize("before", ["compacted", "restored"])
def test_rule_2_the_first_plan_after_a_rename_waits_until_the_sweep_of_the_former_name_has_seen_a_late_file(
    bench: Bench, before: str
):
    """lakefold had not moved the partition under its new name, so no record showed the former one."""
    late = home(bench)
    if before == "restored":
        bench.clean()
        late = place_of(bench, PARTITION)
        brought_home(bench)
    renamed(bench)
    place = place_of(bench)
    write(late, 900, 910)
    wait_a_tick(late)
    rows = sorted([*overwrite(place, 500, 520), *write(place, 520, 530, "part-more.parquet")])
    wait_a_tick(place)
    bench.request(partitions=[RENAMED])
    outcome = bench.run()
    assert (outcome.result, outcome.reason) == (RunResult.CANCELLED, "Conflict")
    swept_to_the_end(bench)
    assert (rows_in(place_of(bench)), halted(bench)) == (rows, None)
    bench.request(partitions=[RENAMED])
    assert bench.run().result is RunResult.COMPLETED
    swept_to_the_end(bench)
    assert (rows_in(place_of(bench)), halted(bench)) == (rows, None)
    bench.clean()
    assert (rows_in(place_of(bench)), swept(bench)) == (rows, SweepReport())

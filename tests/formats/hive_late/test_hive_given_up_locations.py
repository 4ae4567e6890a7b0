# SPDX-License-Identifier: Apache-2.0
"""Directories that an owner moved a compacted partition away from, and gave to others or used for something else."""

import os
import shutil
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hive_case import DATABASE, Owner
from hive_metastore import MetastoreServer
from late_writing import (
    PARTITION,
    alter_partitions,
    data_files,
    halted,
    here,
    home,
    in_partition,
    killed_before_it_records,
    overwrite,
    point_at,
    resolved,
    rows_in,
    swept,
    wait_a_tick,
    write,
)
from renaming import renamed
from toys.bench import Bench
from waiting import wait_for

from executors.outcome import RunResult
from executors.relocation.partition_sweep import SweepReport
from executors.relocation.sweep import sweep_partitions
from lake.formats.hive.directories import directory_index
from lake.formats.hive.relocation import location_listing
from lake.relocation import evidence
from lake.relocation.decide import LocationChoice

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]

OTHER = "landing"


@pytest.fixture
def other(metastore: MetastoreServer, tmp_path: Path) -> Iterator[Owner]:
    """A connection for the owner of another external table in the same metastore."""
    with Owner(metastore.uri) as owner:
        owner.make_table(OTHER, tmp_path / "other")
        yield owner
        if owner.table(DATABASE, OTHER) is not None:
            owner.drop_table(OTHER)


def moved_by_owner(bench: Bench, elsewhere: Path, *, removes: bool = True) -> None:
    """The owner copies the partition, sets its location, and may remove the replaced files of its former directory."""
    shutil.copytree(here(bench), elsewhere)
    point_at(bench, elsewhere)
    if removes:
        for path in data_files(home(bench)):
            path.unlink()


def compacted(bench: Bench) -> tuple[Path, list[str]]:
    """A plan rewrites the partition where its owner moved it to. Returns its location and rows."""
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    return here(bench), in_partition(bench)


def with_equal_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, files that are written arrive after the compactions by any clock."""
    monkeypatch.setattr(evidence, "MAX_CLOCK_DIFFERENCE_MS", 0)
    since = time.time()
    wait_for(lambda: time.time() > since + 0.05, "time stands still")


def given(other: Owner, location: Path) -> None:
    """What ``ALTER TABLE landing ADD PARTITION (dt = 7) LOCATION …`` does."""
    other.add(OTHER, "7", location)
    directory_index.clear_directory_caches()


def taken(other: Owner) -> None:
    """What ``ALTER TABLE landing DROP PARTITION (dt = 7)`` does to an external table: its files stay."""
    other.drop(OTHER, "7")
    directory_index.clear_directory_caches()


def nothing_happens(bench: Bench, place: Path, rows: list[str], foreign: Path, its_rows: list[str]) -> None:
    """Neither the partition nor the files of ``foreign`` change."""
    for _ in range(2):
        bench.sweep()
        bench.clean()
    assert (here(bench), in_partition(bench), halted(bench)) == (place, rows, None)
    assert rows_in(foreign) == sorted(its_rows)


@pytest.mark.parametrize("user", ["a program", "a table that left it again", "a table"])
def test_rule_2_a_partition_does_not_return_to_a_directory_that_its_owner_has_emptied_and_reused(
    bench: Bench, other: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str
):
    """The new files were taken for an overwrite by a job that began before the first compaction."""
    moved_by_owner(bench, tmp_path / "elsewhere")
    place, rows = compacted(bench)
    with_equal_clocks(monkeypatch)
    if user != "a program":
        given(other, home(bench))
    foreign = write(home(bench), 900, 910)
    if user == "a table that left it again":
        bench.sweep()
        taken(other)
    nothing_happens(bench, place, rows, home(bench), foreign)
    assert not [one for one in bench.store.awaiting_deletion(bench.table) if one.version.path.startswith(PARTITION)]


def test_rule_7_files_of_a_table_that_got_the_former_directory_are_not_copied_when_it_leaves(
    bench: Bench, other: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """No sweep remembered whose files they were: they were copied to the partition for good."""
    moved_by_owner(bench, tmp_path / "elsewhere", removes=False)
    given(other, home(bench))
    foreign = write(home(bench), 900, 910)
    place, rows = compacted(bench)
    bench.sweep()
    taken(other)
    bench.sweep()
    assert (here(bench), in_partition(bench), halted(bench)) == (place, rows, None)
    more = write(home(bench), 910, 920, "part-more.parquet")
    with_equal_clocks(monkeypatch)
    write(home(bench), 920, 930, "part-still-more.parquet")
    bench.sweep()
    bench.clean()
    assert (here(bench), in_partition(bench), halted(bench)) == (place, rows, None)
    assert set(rows_in(home(bench))) > {*foreign, *more}


@pytest.mark.parametrize("removes", [True, False], ids=["emptied", "with replaced files"])
def test_rule_7_a_file_of_the_time_of_the_owners_move_halts_the_partition_and_stays(
    bench: Bench, tmp_path: Path, removes: bool
):
    """It may be a late file of the partition, or one of a program to which the owner gave the directory."""
    moved_by_owner(bench, tmp_path / "elsewhere", removes=removes)
    foreign = write(home(bench), 900, 910)
    place, rows = compacted(bench)
    assert swept(bench).first_halt_reason == halted(bench)
    assert "it is unknown whether they are its rows" in str(halted(bench))
    assert (here(bench), in_partition(bench)) == (place, rows)
    resolved(bench, LocationChoice.CURRENT)
    bench.store.resume(bench.table.name, "ada")
    nothing_happens(bench, place, rows, home(bench), foreign)


@pytest.mark.parametrize("is_overwritten", [False, True], ids=["", "overwritten"])
def test_rule_7_a_late_file_that_no_sweep_met_before_the_owners_move_halts_the_partition_and_stays(
    bench: Bench, tmp_path: Path, is_overwritten: bool
):
    """Chaos found it: the owner has copied the rows that were read, and only the owner knows if an overwrite is one.

    The overwrite's own files, which would show that it replaced the late file, are gone with the directory.
    """
    late = write(home(bench), 900, 910)
    if is_overwritten:
        wait_a_tick(home(bench))
        overwrite(here(bench), 500, 520)
    former = here(bench)
    moved_by_owner(bench, tmp_path / "elsewhere", removes=False)
    for path in data_files(former):
        path.unlink()
    place, rows = compacted(bench)
    assert "it is unknown whether they are its rows" in str(halted(bench))
    assert (here(bench), in_partition(bench)) == (place, rows)
    resolved(bench, LocationChoice.CURRENT)
    bench.store.resume(bench.table.name, "ada")
    for _ in range(2):
        bench.sweep()
        bench.clean()
    assert (here(bench), in_partition(bench), halted(bench)) == (place, rows, None)
    assert set(late) <= set(rows_in(home(bench)))


def test_rule_7_files_that_arrive_after_the_replaced_ones_were_deleted_do_not_halt_the_partition(
    bench: Bench, other: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The remedy of that halt put the other table's files on the list of deletions."""
    moved_by_owner(bench, tmp_path / "elsewhere", removes=False)
    place, rows = compacted(bench)
    bench.clean()
    assert data_files(home(bench)) == []
    given(other, home(bench))
    foreign = write(home(bench), 900, 910)
    bench.sweep()
    assert (here(bench), in_partition(bench), halted(bench)) == (place, rows, None)
    with_equal_clocks(monkeypatch)
    foreign += write(home(bench), 910, 920, "part-more.parquet")
    taken(other)
    nothing_happens(bench, place, rows, home(bench), foreign)
    assert (swept(bench), bench.store.awaiting_deletion(bench.table)) == (SweepReport(), [])


def test_rule_7_a_directory_stays_released_when_its_table_is_renamed(known: Bench, tmp_path: Path):
    bench = known
    moved_by_owner(bench, tmp_path / "elsewhere")
    foreign = write(home(bench), 900, 910)
    place, rows = compacted(bench)
    swept(bench)
    resolved(bench, LocationChoice.CURRENT)
    bench.store.resume(bench.table.name, "ada")
    renamed(bench)
    nothing_happens(bench, place, rows, home(bench), foreign)


def unfinished(path: Path) -> None:
    """What a writer leaves that died two hours ago."""
    path.write_bytes(b"PAR1 and half of the rows")
    os.utime(path, (time.time() - 7200, time.time() - 7200))


@pytest.mark.parametrize("is_released", [False, True], ids=["", "released"])
def test_an_unfinished_file_of_another_program_in_a_given_up_directory_is_neither_read_nor_named(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_released: bool
):
    """``status`` named it as one of the table's files, and each sweep read the ends of all files there."""
    moved_by_owner(bench, tmp_path / "elsewhere")
    unfinished(home(bench) / "part-before.parquet")
    if is_released:
        write(home(bench), 900, 910)
    place, rows = compacted(bench)
    if is_released:
        swept(bench)
        resolved(bench, LocationChoice.CURRENT)
        bench.store.resume(bench.table.name, "ada")
    with_equal_clocks(monkeypatch)
    unfinished(home(bench) / "part-after.parquet")
    read, reason = list[str](), location_listing.unready_reason

    def recorded(storage: Any, entry: Any, *arguments: Any, **options: Any) -> Any:
        read.append(entry.path)
        return reason(storage, entry, *arguments, **options)

    monkeypatch.setattr(location_listing, "unready_reason", recorded)
    for _ in range(2):
        swept(bench)
    opened = {Path(one).name for one in read if Path(one).parent == home(bench)}
    assert opened == (set() if is_released else {"part-before.parquet"})
    assert bench.store.table_state(bench.table.name).quarantined == {}
    late = write(place, 950, 960)
    assert (here(bench), in_partition(bench), halted(bench)) == (place, sorted([*rows, *late]), None)


def test_an_unfinished_file_in_a_directory_that_one_partition_gave_up_and_another_one_left_stays_named(
    bench: Bench, tmp_path: Path
):
    """A sweep of the partition that had given it up ended the quarantine, and one of the other renewed it."""

    def named_after_sweep_of(partition: str) -> set[str]:
        sweep_partitions(bench.table, bench.context(), format=bench.format, partitions=[partition])
        return set(bench.store.table_state(bench.table.name).quarantined)

    moved_by_owner(bench, tmp_path / "elsewhere")
    compacted(bench)
    swept(bench)
    other = bench.case.partitions(bench.table)["dt=1"]  # type: ignore[attr-defined]
    for path in data_files(bench.case.places(bench.table)["dt=1"]):  # type: ignore[attr-defined]
        shutil.copy(path, home(bench))
    storage = other.storage.with_location(f"file:{home(bench)}")
    alter_partitions(bench, [other.with_changes(storage, other.parameters)])
    write(home(bench), 900, 910)
    bench.request(partitions=["dt=1"])
    assert bench.run().result is RunResult.COMPLETED
    unfinished(home(bench) / "part-died.parquet")
    assert named_after_sweep_of("dt=1") == {f"{PARTITION}/part-died.parquet"}
    assert named_after_sweep_of(PARTITION) == {f"{PARTITION}/part-died.parquet"}
    assert named_after_sweep_of("dt=1") == {f"{PARTITION}/part-died.parquet"}
    (home(bench) / "part-died.parquet").unlink()
    assert named_after_sweep_of(PARTITION) == {f"{PARTITION}/part-died.parquet"}
    assert named_after_sweep_of("dt=1") == set()


def test_an_unfinished_file_is_no_longer_named_once_its_partition_has_given_the_directory_up(
    bench: Bench, tmp_path: Path
):
    unfinished(home(bench) / "part-died.parquet")
    swept(bench)
    assert bench.store.table_state(bench.table.name).quarantined.keys() == {f"{PARTITION}/part-died.parquet"}
    moved_by_owner(bench, tmp_path / "elsewhere", removes=False)
    compacted(bench)
    swept(bench)
    assert bench.store.table_state(bench.table.name).quarantined == {}


@pytest.mark.parametrize("removes", [True, False], ids=["emptied", "with replaced files"])
def test_rule_5_a_search_for_commits_puts_no_file_of_a_given_up_directory_on_the_list_of_deletions(
    bench: Bench, other: Owner, tmp_path: Path, removes: bool
):
    """They had arrived before the last commit, which was made without a look at that directory."""
    moved_by_owner(bench, tmp_path / "elsewhere", removes=removes)
    given(other, home(bench))
    foreign = write(home(bench), 900, 910)
    compacted(bench)
    write(here(bench), 800, 810, "part-more.parquet")
    killed_before_it_records(bench, partitions=[PARTITION])
    with mock.patch("lake.formats.hive.relocation.unrecorded_relocations.MAX_CHECK_AGE", timedelta()):
        bench.sweep()
    waiting = {Path(one.version.path).name for one in bench.store.awaiting_deletion(bench.table)}
    assert "part-late.parquet" not in waiting
    taken(other)
    bench.clean()
    assert set(foreign) <= set(rows_in(home(bench)))

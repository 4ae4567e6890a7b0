# SPDX-License-Identifier: Apache-2.0
"""Directories that two partitions have left, or one partition twice, with files that two commits have replaced."""

import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from hive_case import Owner, table_name
from late_writing import (
    PARTITION,
    added_again,
    after_its_hold,
    brought_home,
    data_files,
    deletion_begun,
    dropped,
    halted,
    here,
    home,
    in_partition,
    killed_before_it_records,
    overwrite,
    overwritten_after_a_late_file,
    point_at,
    resolved,
    rows_in,
    swept,
    wait_a_tick,
    write,
)
from renaming import lose_database
from test_hive_restored_database import backup, set_back
from toys.bench import Bench

from executors.outcome import RunResult
from executors.relocation.partition_sweep import SweepReport
from executors.relocation.recent import RecentLocations, sweep_recent_locations
from executors.relocation.sweep import resolve_partitions, sweep_partitions
from executors.relocation.watch import PartitionWatch
from executors.sweep import sweep_table
from lake.relocation.decide import LocationChoice

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]

OTHER = "dt=7"


def place_of_other(bench: Bench) -> Path:
    return bench.case.places(bench.table)[OTHER]  # type: ignore[attr-defined]


def compacted(bench: Bench, partition: str) -> None:
    bench.request(partitions=[partition])
    assert bench.run().result is RunResult.COMPLETED


def added(bench: Bench) -> None:
    """What ``ALTER TABLE … ADD PARTITION (dt = 7) LOCATION …`` does, with the directory that a plan has left."""
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.add(table_name(bench.table), "7", home(bench))


@pytest.mark.parametrize("is_dropped", [True, False], ids=["dropped", "in the table"])
def test_rule_2_a_partition_whose_files_another_one_had_replaced_stays_where_it_is_if_the_database_is_lost(
    known: Bench, is_dropped: bool
):
    """The files of the first one were moved aside or deleted, and the next late file counted as an overwrite."""
    bench = known
    added(bench)
    if is_dropped:
        with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
            owner.drop(table_name(bench.table), "0")
    compacted(bench, OTHER)
    place, before = place_of_other(bench), rows_in(place_of_other(bench))
    if is_dropped:
        before += write(home(bench), 890, 900, "part-first.parquet")
        bench.sweep()
    lose_database(bench)
    bench.sweep()
    late = write(home(bench), 900, 910)
    for _ in range(2):
        bench.sweep()
        assert (place_of_other(bench), rows_in(place)) == (place, sorted([*before, *late]))
        bench.clean()
    assert data_files(home(bench)) == []
    bench.sweep()
    assert (place_of_other(bench), rows_in(place)) == (place, sorted([*before, *late]))
    assert is_dropped or set(late) < set(in_partition(bench)), "the late file is the other partition's as well"
    assert bench.store.halted_partitions(bench.table) == {}


def test_rule_2_files_that_a_partition_left_twice_are_deleted_as_one_if_the_database_is_lost(
    known: Bench, monkeypatch: pytest.MonkeyPatch
):
    """The deletion under the first of the two plans counted as a writer's, and halted the partition."""
    monkeypatch.setattr("executors.cleaner._MAX_FILES_PER_DELETION", 1)
    bench, first = known, min(data_files(home(known)))
    # A file that grew after its rewrite takes the partition back, with all other files that the plan has replaced.
    grown = write(home(bench), 900, 950, first.name)
    bench.sweep()
    assert here(bench) == home(bench)
    compacted(bench, PARTITION)
    place, before = here(bench), in_partition(bench)
    assert set(grown) <= set(before)
    lose_database(bench)
    bench.sweep()
    bench.clean()
    assert data_files(home(bench)) == []
    assert (swept(bench, grace=timedelta()), halted(bench)) == (SweepReport(), None)
    assert (here(bench), in_partition(bench)) == (place, before)


def test_rule_6_a_late_file_that_was_copied_is_not_read_again_if_the_database_is_lost_and_the_partition_dropped(
    known: Bench,
):
    """The partition had left its directory twice; the file counted for the first of the two commits, and stayed."""
    bench = known

    def readded(*names: str) -> list[str]:
        dropped(bench)
        added_again(bench)
        rows = [
            row for number, name in enumerate(names) for row in write(home(bench), 10 * number, 10 * number + 9, name)
        ]
        bench.sweep()
        assert in_partition(bench) == sorted(rows)
        return rows

    before = readded("000000_0", "000001_0")
    compacted(bench, PARTITION)
    before += write(home(bench), 900, 910)
    bench.sweep()
    assert in_partition(bench) == sorted(before)
    compacted(bench, PARTITION)
    lose_database(bench)
    bench.sweep()
    assert (in_partition(bench), halted(bench)) == (sorted(before), None)
    anew = readded("000002_0")
    bench.clean()
    bench.sweep()
    assert (in_partition(bench), halted(bench)) == (sorted(anew), None)


def test_rule_5_a_late_file_in_a_directory_that_two_partitions_left_is_copied_to_both_once(known: Bench):
    """Without lakefold, both partitions would be read from it. It halted one of them."""
    bench = known
    added(bench)
    compacted(bench, OTHER)
    one, other = in_partition(bench), rows_in(place_of_other(bench))
    for name, low in (("part-late.parquet", 900), ("part-later.parquet", 910)):
        late = write(home(bench), low, low + 10, name)
        one, other = sorted([*one, *late]), sorted([*other, *late])
        for _ in range(3):
            bench.sweep()
            assert (halted(bench), in_partition(bench), rows_in(place_of_other(bench))) == (None, one, other)
    assert swept(bench) == SweepReport()


def left_by_both(bench: Bench) -> tuple[list[str], list[str]]:
    """Relocate the second partition out of the directory of the first one, too; returns the rows of both."""
    added(bench)
    compacted(bench, OTHER)
    return in_partition(bench), rows_in(place_of_other(bench))


@pytest.mark.parametrize("is_appended_first", [False, True], ids=["at once", "after an append"])
def test_rule_5_an_overwrite_of_a_directory_that_two_partitions_left_is_seen_by_both(
    known: Bench, is_appended_first: bool
):
    """An append that was copied must not hide that the other files are gone later."""
    bench = known
    one, _ = left_by_both(bench)
    place = here(bench)
    if is_appended_first:
        files, late = data_files(home(bench)), write(home(bench), 900, 910)
        bench.sweep()
        one = sorted([*one, *late])
        assert in_partition(bench) == one
        for path in files:
            path.unlink()
    else:
        anew = overwrite(home(bench), 500, 510)
    assert swept(bench).halt_reasons == {}
    assert swept(bench).halt_reasons == {}
    assert (here(bench), in_partition(bench)) == (place, one), "the sweep waits"
    if not is_appended_first:
        assert (place_of_other(bench), rows_in(home(bench))) == (home(bench), sorted(anew))
    reasons = swept(bench, grace=timedelta()).halt_reasons
    assert "which another partition has replaced since" in reasons[PARTITION]
    assert (OTHER in reasons) is is_appended_first
    assert (here(bench), in_partition(bench)) == (place, one)
    resolved(bench, LocationChoice.CURRENT)
    bench.store.resume(bench.table.name, "ada")
    assert (swept(bench), halted(bench), in_partition(bench)) == (SweepReport(), None, one)
    before = rows_in(place_of_other(bench))
    bench.clean()
    assert (swept(bench), halted(bench), in_partition(bench)) == (SweepReport(), None, one)
    assert rows_in(place_of_other(bench)) == before


def test_rule_7_a_partition_that_returned_to_a_directory_that_another_one_had_left_too_keeps_its_files(known: Bench):
    bench = known
    one, other = left_by_both(bench)
    first = min(data_files(home(bench)))
    grown = set(write(home(bench), 900, 950, first.name))
    assert swept(bench).halt_reasons.keys() == {PARTITION}
    assert place_of_other(bench) == home(bench)
    resolve_partitions(
        bench.table, LocationChoice.CURRENT, bench.context(), format=bench.format, partitions=[PARTITION]
    )
    bench.store.resume(bench.table.name, "ada")
    assert (swept(bench), halted(bench), in_partition(bench)) == (SweepReport(), None, one)
    other = rows_in(home(bench))
    assert grown < set(other)
    late = write(home(bench), 910, 920)
    for _ in range(2):
        swept(bench)
        bench.clean()
        assert (halted(bench), place_of_other(bench)) == (None, home(bench))
        assert rows_in(home(bench)) == sorted([*other, *late])
        assert in_partition(bench) == sorted([*one, *late])


def swept_only(bench: Bench, *partitions: str) -> None:
    """Sweep these partitions one after the other: the last one gets the record of a file that both have left."""
    for partition in partitions:
        sweep_partitions(bench.table, bench.context(), format=bench.format, partitions=[partition])


@pytest.mark.parametrize("owner", [PARTITION, OTHER], ids=["left it first", "left it last"])
def test_rule_7_a_late_file_that_grows_in_a_directory_that_two_partitions_left_is_read_once_in_both(
    known: Bench, owner: str
):
    """The one that had not copied it last got the file twice: in its first and in its present length."""
    bench = known
    one, other = left_by_both(bench)
    write(home(bench), 900, 910)
    swept_only(bench, *sorted([PARTITION, OTHER], key=owner.__eq__))
    for high in (950, 980):
        grown = write(home(bench), 900, high)
        for _ in range(2):
            swept(bench)
            assert halted(bench) is None
            assert in_partition(bench) == sorted([*one, *grown])
            assert rows_in(place_of_other(bench)) == sorted([*other, *grown])
    bench.clean()
    assert data_files(home(bench)) == []
    assert (swept(bench, grace=timedelta()), halted(bench)) == (SweepReport(), None)


@pytest.mark.parametrize("overwritten", ["with the late file", "without the late file"])
def test_rule_5_an_overwrite_after_a_late_file_that_the_first_partition_copied_last_halts_both(
    known: Bench, overwritten: str
):
    """Once a person had moved the other one back, the first one took the overwrite for its own, or for an append."""
    bench = known
    one, other = left_by_both(bench)
    late = write(home(bench), 900, 910)
    swept_only(bench, OTHER, PARTITION)
    place, one, other = here(bench), sorted([*one, *late]), sorted([*other, *late])
    for path in data_files(home(bench)):
        if overwritten == "with the late file" or path.name != "part-late.parquet":
            path.unlink()
    anew = write(home(bench), 500, 510, "part-anew.parquet")
    assert (swept(bench), halted(bench)) == (SweepReport(waiting=2), None)
    assert (in_partition(bench), rows_in(place_of_other(bench))) == (one, other)
    assert swept(bench, grace=timedelta()).halt_reasons.keys() == {PARTITION, OTHER}
    resolve_partitions(bench.table, LocationChoice.PREVIOUS, bench.context(), format=bench.format, partitions=[OTHER])
    bench.store.resume(bench.table.name, "ada")
    assert place_of_other(bench) == home(bench)
    bench.clean()
    assert set(anew) <= set(rows_in(home(bench)))
    for _ in range(2):
        assert swept(bench).halt_reasons == {}
        assert (here(bench), in_partition(bench)) == (place, one)
    assert "which another partition has replaced since" in swept(bench, grace=timedelta()).halt_reasons[PARTITION]
    assert (here(bench), in_partition(bench)) == (place, one)


@pytest.mark.parametrize("before", ["nothing", "an append", "an append that the overwrite misses"])
def test_rule_5_an_overwrite_under_the_same_names_whose_files_the_other_partition_has_compacted_is_no_append(
    known: Bench, before: str
):
    """Hive names the files of each overwrite alike. The first partition got their rows beside its own."""
    bench = known
    one, _ = left_by_both(bench)
    place, names = here(bench), sorted(path.name for path in data_files(home(bench)))
    if before != "nothing":
        late = write(home(bench), 900, 910)
        swept_only(bench, OTHER, PARTITION)
        one = sorted([*one, *late])
        assert in_partition(bench) == one
    for number, name in enumerate(names):
        write(home(bench), 500 + 3 * number, 503 + 3 * number, name)
    if before == "an append":
        (home(bench) / "part-late.parquet").unlink()
    swept(bench)
    if before != "nothing":
        swept(bench, grace=timedelta())
        resolve_partitions(
            bench.table, LocationChoice.PREVIOUS, bench.context(), format=bench.format, partitions=[OTHER]
        )
        bench.store.resume(bench.table.name, "ada")
    assert place_of_other(bench) == home(bench)
    compacted(bench, OTHER)
    for _ in range(2):
        swept(bench)
        assert (here(bench), in_partition(bench)) == (place, one)
    assert PARTITION in swept(bench, grace=timedelta()).halt_reasons
    assert (here(bench), in_partition(bench)) == (place, one)


@pytest.mark.parametrize("merged", [PARTITION, OTHER, f"{PARTITION} and {OTHER}"])
def test_rule_2_a_late_file_that_two_partitions_have_is_not_copied_again_if_the_database_is_lost(
    known: Bench, merged: str
):
    """The names of the copies show of which file they are, but only their directories show of which partition."""
    bench = known
    left_by_both(bench)
    write(home(bench), 900, 910)
    bench.sweep()
    for partition in merged.split(" and "):
        write(bench.case.places(bench.table)[partition], 950, 960, "part-appended.parquet")  # type: ignore[attr-defined]
        bench.request(partitions=[partition])
        assert bench.run().result is RunResult.COMPLETED
    rows_before = in_partition(bench), rows_in(place_of_other(bench))
    lose_database(bench)
    for _ in range(2):
        bench.sweep()
        assert halted(bench) is None
        assert (in_partition(bench), rows_in(place_of_other(bench))) == rows_before


@pytest.mark.parametrize("last", [PARTITION, OTHER, None])
def test_rule_2_no_partition_waits_for_files_that_were_deleted_for_another_one_after_the_backup(
    known: Bench, last: str | None
):
    """The deletion is marked under the relocation of the partition that replaced the files last."""
    bench = known
    left_by_both(bench)
    if last is not None:
        write(home(bench), 900, 910)
        swept_only(bench, *sorted([PARTITION, OTHER], key=last.__eq__))
    to, rows_before = backup(bench), (in_partition(bench), rows_in(place_of_other(bench)))
    bench.clean()
    assert data_files(home(bench)) == []
    set_back(bench, to)
    assert (swept(bench, grace=timedelta()), halted(bench)) == (SweepReport(), None)
    assert bench.clean().kept == ()
    write(home(bench), 910, 920)
    bench.sweep()
    reasons = bench.store.halted_partitions(bench.table)
    assert {name for name in reasons if "after lakefold began to delete there" in reasons[name]} == {PARTITION, OTHER}
    assert (in_partition(bench), rows_in(place_of_other(bench))) == rows_before


@pytest.mark.parametrize("died", ["before the first file", "after the first file", "without the metastore"])
def test_rule_2_a_deletion_that_was_begun_for_one_partition_is_no_overwrite_for_the_other_one(known: Bench, died: str):
    bench = known
    one, other = left_by_both(bench)
    places = here(bench), place_of_other(bench)
    bench.execute("UPDATE superseded_version SET deleted_at_ms = 1 WHERE partition_path = 'dt=1'")
    deletion_begun(bench, died)
    assert (swept(bench, grace=timedelta()), halted(bench)) == (SweepReport(), None)
    late = write(home(bench), 900, 910)
    swept(bench)
    swept(bench, grace=timedelta())
    assert (here(bench), place_of_other(bench)) == places
    if died == "after the first file":
        assert set(bench.store.halted_partitions(bench.table)) == {PARTITION, OTHER}
        assert (in_partition(bench), rows_in(places[1])) == (one, other)
    else:
        assert halted(bench) is None
        assert (in_partition(bench), rows_in(places[1])) == (sorted([*one, *late]), sorted([*other, *late]))


def test_rule_2_replaced_files_stay_until_the_other_partition_that_left_their_directory_is_swept(known: Bench):
    """Otherwise it is unknown afterwards whether a late file replaced them, and the late file may be gone, too."""
    bench = known
    one, other = left_by_both(bench)
    files = sorted(data_files(home(bench)))
    late = write(home(bench), 900, 910)
    swept_only = sweep_partitions(bench.table, bench.context(), format=bench.format, partitions=[OTHER])
    assert swept_only.copied == 1
    for dry_run in (True, False):
        reasons = {one.version.path: one.reason for one in bench.clean(dry_run=dry_run).kept}
        assert all("the sweep comes first" in reasons[f"{PARTITION}/{path.name}"] for path in files)
    assert [path for path in files if not path.exists()] == []
    bench.sweep()
    bench.clean()
    assert data_files(home(bench)) == []
    assert swept(bench, grace=timedelta()) == SweepReport()
    assert (in_partition(bench), rows_in(place_of_other(bench))) == (sorted([*one, *late]), sorted([*other, *late]))


@pytest.mark.parametrize("which", ["first", "second"])
def test_rule_6_one_of_two_partitions_that_left_a_directory_gets_its_late_files_if_the_other_one_is_dropped(
    known: Bench, which: str
):
    bench = known
    left_by_both(bench)
    if which == "first":
        dropped(bench)
    else:
        with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
            owner.drop(table_name(bench.table), "7")
    place = place_of_other(bench) if which == "first" else here(bench)
    rows, late = rows_in(place), write(home(bench), 900, 910)
    for _ in range(2):
        swept(bench)
        assert (halted(bench), rows_in(place)) == (None, sorted([*rows, *late]))
    bench.clean()
    assert (swept(bench, grace=timedelta()), halted(bench)) == (SweepReport(), None)
    assert rows_in(place) == sorted([*rows, *late])


def test_rule_2_a_partition_is_not_restored_to_a_directory_that_another_partition_has_left_too(known: Bench):
    """The other one took the restored files for late files, and was halted."""
    bench = known
    one, other = left_by_both(bench)
    bench.clean()
    assert data_files(home(bench)) == []
    places = here(bench), place_of_other(bench)
    for _ in range(2):
        brought_home(bench)
        assert (swept(bench, grace=timedelta()), bench.store.halted_partitions(bench.table)) == (SweepReport(), {})
        assert (in_partition(bench), rows_in(place_of_other(bench))) == (one, other)
    assert (here(bench), place_of_other(bench)) == places
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.drop(table_name(bench.table), "7")
    brought_home(bench)
    assert (here(bench), in_partition(bench), halted(bench)) == (home(bench), one, None)


def test_rule_2_files_that_the_other_partition_has_replaced_again_after_its_return_are_deleted_for_both(known: Bench):
    """The first partition took their deletion for a writer's, and was halted."""
    bench = known
    one, _ = left_by_both(bench)
    # A file that grew after its rewrite takes the partition that left last back.
    write(home(bench), 900, 950, min(data_files(home(bench))).name)
    swept(bench)
    resolve_partitions(
        bench.table, LocationChoice.CURRENT, bench.context(), format=bench.format, partitions=[PARTITION]
    )
    bench.store.resume(bench.table.name, "ada")
    assert (swept(bench), place_of_other(bench)) == (SweepReport(), home(bench))
    bench.clean()
    other = rows_in(home(bench))
    compacted(bench, OTHER)
    bench.clean()
    assert data_files(home(bench)) == []
    assert (swept(bench, grace=timedelta()), bench.store.halted_partitions(bench.table)) == (SweepReport(), {})
    assert (in_partition(bench), rows_in(place_of_other(bench))) == (one, other)


def test_rule_6_a_partition_that_is_added_again_over_files_that_stay_for_another_partition_is_halted(known: Bench):
    """A plan merged the replaced rows with the new ones."""
    bench = known
    _, other = left_by_both(bench)
    replaced = set(rows_in(home(bench)))
    dropped(bench)
    bench.sweep()
    added_again(bench)
    anew = write(home(bench), 900, 910)
    bench.sweep()
    assert "another partition has left this directory as well" in (halted(bench) or "")
    assert set(in_partition(bench)) == replaced | set(anew)
    assert set(other) < set(rows_in(place_of_other(bench)))
    own = home(bench).with_name("own")
    own.mkdir()
    shutil.copyfile(home(bench) / "part-late.parquet", own / "part-late.parquet")
    point_at(bench, own)
    bench.store.resume(bench.table.name, "ada")
    bench.sweep()
    bench.clean()
    assert (halted(bench), in_partition(bench), data_files(home(bench))) == (None, sorted(anew), [])


def test_rule_2_a_replaced_late_file_that_another_partition_has_compacted_is_not_read_again_if_the_database_is_lost(
    known: Bench,
):
    """The other one's commit had replaced the file, so it counted as no handled file of the first partition."""
    bench = known
    overwritten_after_a_late_file(bench)
    bench.sweep()
    left_by_both(bench)
    write(here(bench), 950, 960, "part-appended.parquet")
    compacted(bench, PARTITION)
    rows_before = in_partition(bench), rows_in(place_of_other(bench))
    lose_database(bench)
    for _ in range(2):
        bench.sweep()
        assert (halted(bench), in_partition(bench), rows_in(place_of_other(bench))) == (None, *rows_before)


@pytest.mark.parametrize("found_by", ["the sweep", "the frequent check"])
def test_a_late_file_in_a_directory_that_two_partitions_left_is_found_for_both_at_once(
    known: Bench, monkeypatch: pytest.MonkeyPatch, found_by: str
):
    """In a large table, one of them got it only in its rotation, up to an hour later."""
    bench = known
    one, other = left_by_both(bench)
    monkeypatch.setattr("executors.relocation.watch._MIN_ROTATION_SIZE", 0)
    monkeypatch.setattr("executors.relocation.recent.MAX_FULL_LISTINGS", 1)
    monkeypatch.setattr("executors.relocation.recent._ROTATION_SIZE", 0)
    monkeypatch.setattr("lake.formats.hive.relocation.change_detection._MIN_RELIABLE_AGE_SECONDS", -60)
    watch, recent = PartitionWatch(), RecentLocations()

    def look() -> None:
        if found_by == "the sweep":
            sweep_table(bench.table, bench.context(), format=bench.format, watch=watch)
        else:
            hour = timedelta(hours=1)
            sweep_recent_locations(bench.table, bench.context(), format=bench.format, within=hour, recent=recent)

    for _ in range(4):
        look()
    wait_a_tick(home(bench))
    late = write(home(bench), 900, 910)
    look()
    assert in_partition(bench) == sorted([*one, *late])
    assert rows_in(place_of_other(bench)) == sorted([*other, *late])


def test_rule_2_an_overwrite_by_spark_of_one_of_two_partitions_that_left_a_directory_does_not_halt_it(known: Bench):
    """It also empties the own directory, whose files the other one had replaced since: this one was halted."""
    bench = known
    _, other = left_by_both(bench)
    place = here(bench)
    for path in data_files(home(bench)):
        path.unlink()
    anew = sorted(overwrite(place, 500, 510))
    for grace in (timedelta(hours=1), timedelta()):
        assert PARTITION not in swept(bench, grace=grace).halt_reasons
        assert (here(bench), in_partition(bench)) == (place, anew)
    assert PARTITION not in bench.store.halted_partitions(bench.table)
    assert rows_in(place_of_other(bench)) == other


def test_rule_2_files_that_a_killed_plan_of_another_partition_has_replaced_are_kept_for_its_whole_retention(
    known: Bench,
):
    """The first partition's retention was over: they were deleted at once, and a late file took the rows away."""
    bench = known
    added(bench)
    files = data_files(home(bench))
    assert "is read from" in bench.clean().kept[0].reason
    plan = killed_before_it_records(bench, partitions=[OTHER])
    place = place_of_other(bench)
    assert place != home(bench)
    kept = {one.reason for one in bench.clean().kept}
    assert [path for path in files if not path.exists()] == []
    assert any("is not recorded yet" in reason for reason in kept)
    after_its_hold(bench)
    bench.rescue()
    assert bench.state(plan) == "completed"
    rows, late = rows_in(place), write(home(bench), 900, 910)
    swept(bench)
    assert (halted(bench), place_of_other(bench), rows_in(place)) == (None, place, sorted([*rows, *late]))
    bench.clean()
    assert data_files(home(bench)) == []
    assert (swept(bench, grace=timedelta()), halted(bench)) == (SweepReport(), None)

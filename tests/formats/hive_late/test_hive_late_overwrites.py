# SPDX-License-Identifier: Apache-2.0
"""Overwrites that spanned a move, and what a person decides where they cannot be ordered: rules 1 to 4."""

import os
import shutil
from datetime import timedelta
from unittest import mock

import pyarrow.parquet as pq
import pytest
from late_writing import (
    PARTITION,
    after_its_hold,
    brought_home,
    counted,
    data_files,
    halted,
    here,
    home,
    in_partition,
    overwrite,
    overwritten_after_a_late_file,
    overwritten_at_once,
    resolved,
    swept,
    true_counts,
    wait_a_tick,
    write,
)
from renaming import lose_database
from toys.bench import Bench
from toys.files import told

from executors.outcome import RunResult
from executors.relocation.partition_sweep import SweepReport
from lake.relocation.decide import LocationChoice
from lake.storage.local import LocalFileIO

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]


def test_rule_2_rows_that_are_late_are_not_read_by_an_overwrite_of_the_partition_from_itself_and_their_file_stays(
    bench: Bench,
):
    read, late = in_partition(bench), write(home(bench), 900, 910)
    wait_a_tick(home(bench))
    (path,) = data_files(here(bench))
    pq.write_table(pq.read_table(path), path.with_name("part-anew.parquet"))
    path.unlink()
    assert (swept(bench).superseded, in_partition(bench)) == (1, read), "as docs/hive.md says"
    kept = home(bench) / "part-late.parquet"
    assert (sorted(told(pq.read_table(kept))), halted(bench)) == (sorted(late), None)
    assert f"{PARTITION}/{kept.name}" in {due.version.path for due in bench.store.awaiting_deletion(bench.table)}


def test_rule_2_a_late_file_that_is_younger_than_the_file_of_a_load_statement_stays_visible(bench: Bench):
    prepared = home(bench).with_name("prepared")
    prepared.mkdir()
    loaded = write(prepared, 500, 510)
    wait_a_tick(prepared)
    late = write(home(bench), 900, 910)
    (path,) = data_files(here(bench))
    path.unlink()
    (prepared / "part-late.parquet").rename(path.with_name("part-loaded.parquet"))
    assert (swept(bench).copied, in_partition(bench)) == (1, sorted([*loaded, *late])), "as docs/concepts.md says"


def test_rule_2_an_overwrite_that_spanned_the_move_takes_the_partition_back(bench: Bench):
    left, anew = here(bench), overwrite(home(bench), 500, 520)
    assert swept(bench).relocated_back == 1
    assert (here(bench), in_partition(bench)) == (home(bench), sorted(anew))
    assert counted(bench) == true_counts(bench)
    assert list(left.glob("*.parquet")), "readers that were there read on"
    assert swept(bench) == SweepReport()
    bench.clean()
    assert (list(left.glob("*.parquet")), in_partition(bench)) == ([], sorted(anew))
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    assert (in_partition(bench), here(bench) != home(bench)) == (sorted(anew), True)
    late = write(home(bench), 900, 910)
    assert (swept(bench).copied, in_partition(bench)) == (1, sorted(anew + late))


@pytest.mark.parametrize("is_lost", [False, True], ids=["same database", "lost database"])
def test_rule_2_an_overwrite_replaces_a_late_file_that_was_copied_whenever_it_removes_the_file(
    bench: Bench, is_lost: bool
):
    """The copy is a second name of the late file. The removal of the first name makes the copy look newer."""
    read, late = in_partition(bench), write(home(bench), 900, 910)
    assert (swept(bench).copied, in_partition(bench)) == (1, sorted(read + late))
    wait_a_tick(home(bench))
    anew = overwritten_at_once(home(bench), 500, 520)
    if is_lost:
        lose_database(bench)
        bench.sweep()
    else:
        assert swept(bench).relocated_back == 1
    assert (here(bench), in_partition(bench), halted(bench)) == (home(bench), sorted(anew), None)
    assert swept(bench) == SweepReport()
    assert in_partition(bench) == sorted(anew)


def test_rule_2_an_overwrite_of_a_location_that_lakefold_has_begun_to_clean_halts_the_table_and_keeps_both(
    bench: Bench,
):
    before = in_partition(bench)
    bench.clean()
    write(home(bench), 500, 520)
    assert swept(bench).first_halt_reason
    assert "began to delete there" in str(halted(bench))
    assert (in_partition(bench), len(list(home(bench).glob("*.parquet")))) == (before, 1)


def test_rule_2_two_overwrites_that_cannot_be_ordered_halt_the_table_and_nothing_moves(bench: Bench):
    theirs = overwrite(here(bench), 700, 720)
    overwrite(home(bench), 500, 520)
    assert swept(bench).first_halt_reason
    assert "both overwritten" in str(halted(bench))
    assert (in_partition(bench), len(list(home(bench).glob("*.parquet")))) == (sorted(theirs), 1)


def test_rule_2_the_first_of_two_overwrites_is_kept_aside_and_nothing_moves(bench: Bench):
    overwrite(home(bench), 500, 520)
    wait_a_tick(home(bench))
    theirs = overwrite(here(bench), 700, 720)
    report = swept(bench)
    assert (report.superseded, report.relocated_back, report.first_halt_reason) == (1, 0, None)
    assert in_partition(bench) == sorted(theirs)
    assert f"{PARTITION}/part-anew.parquet" in {due.version.path for due in bench.store.awaiting_deletion(bench.table)}
    assert swept(bench) == SweepReport()


def test_rule_3_files_added_to_the_new_location_after_the_overwrite_are_moved_back_with_it(bench: Bench):
    place, anew = here(bench), overwrite(home(bench), 500, 520)
    wait_a_tick(home(bench))
    added = write(place, 900, 910)
    assert swept(bench).relocated_back == 1
    assert (here(bench), in_partition(bench)) == (home(bench), sorted(anew + added))
    assert swept(bench) == SweepReport()
    bench.clean()
    assert in_partition(bench) == sorted(anew + added)


def test_rule_3_files_added_to_the_new_location_before_the_overwrite_are_kept_aside(bench: Bench):
    place = here(bench)
    write(place, 900, 910)
    wait_a_tick(place)
    anew = overwrite(home(bench), 500, 520)
    report = swept(bench)
    assert (report.relocated_back, report.superseded, in_partition(bench)) == (1, 0, sorted(anew))
    waiting = {due.version.path for due in bench.store.awaiting_deletion(bench.table)}
    assert os.path.relpath(place / "part-late.parquet", bench.table.location) in waiting
    assert (place / "part-late.parquet").exists()


def test_rule_4_an_overwrite_of_nothing_or_one_at_work_is_waited_for_and_halts_the_table_after_the_grace(bench: Bench):
    before = in_partition(bench)
    next(home(bench).glob("*.parquet")).unlink()
    assert swept(bench).waiting == 1
    shutil.rmtree(home(bench))
    assert (swept(bench).waiting, halted(bench)) == (1, None)
    bench.execute("UPDATE place_move SET unsettled_since_ms = unsettled_since_ms - 3600000")
    assert swept(bench).first_halt_reason
    assert "for longer than 60 min" in str(halted(bench))
    assert in_partition(bench) == before


def test_rule_4_an_overwrite_that_also_empties_the_partitions_own_directory_is_no_riddle(bench: Bench):
    """Spark's static ``INSERT OVERWRITE`` removes ``TABLE/PARTITION``, wherever the partition is."""
    shutil.rmtree(home(bench))
    anew = overwrite(here(bench), 700, 720)
    assert (swept(bench), in_partition(bench)) == (SweepReport(), sorted(anew))
    assert home_files_wait(bench) == 0
    more = write(here(bench), 720, 730, "part-more.parquet")
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    assert (swept(bench), in_partition(bench)) == (SweepReport(), sorted(anew + more))
    late = write(bench.case.places(bench.table)[PARTITION], 900, 910)  # type: ignore[attr-defined]
    assert (swept(bench), in_partition(bench)) == (SweepReport(), sorted(anew + more + late))


def test_rule_4_an_overwrite_that_spanned_a_move_and_emptied_the_own_directory_takes_the_partition_back(bench: Bench):
    first = here(bench)
    write(first, 800, 810)
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    shutil.rmtree(home(bench))
    anew = overwrite(first, 500, 520)
    assert (swept(bench).relocated_back, here(bench), in_partition(bench)) == (1, first, sorted(anew))
    assert swept(bench) == SweepReport()


def test_rule_1_an_overwrite_of_the_whole_table_is_followed_and_no_version_that_is_read_goes(bench: Bench):
    """Spark's removes the table's directory, with what says whose a version is, and writes where partitions are."""
    places, plan = bench.case.places(bench.table), bench.request()  # type: ignore[attr-defined]
    claim = bench.claim()
    bench.execute(f"UPDATE staged SET cleared_at_ms = NULL WHERE plan_id != '{plan.plan_id}'")
    shutil.rmtree(bench.table.location)
    anew = list[str]()
    for number, place in enumerate(places.values()):
        place.mkdir(parents=True)
        for part in (0, 5):
            low = number * 100 + part
            anew += write(place, low, low + 5, f"part-{part}.parquet")
    bench.sweep()
    assert bench.rows() == sorted(anew)
    assert bench.run(claim).result is RunResult.CANCELLED
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    assert (bench.rows(), swept(bench), halted(bench)) == (sorted(anew), SweepReport(), None)
    bench.clean()
    bench.sweep()
    assert bench.rows() == sorted(anew)


def home_files_wait(bench: Bench) -> int:
    return sum(due.version.path.startswith(f"{PARTITION}/") for due in bench.store.awaiting_deletion(bench.table))


def test_rule_4_a_suspended_cleaner_deletes_nothing_if_a_person_has_sent_the_partition_back(bench: Bench):
    slept, clock, delete, expected = [0], bench.store.clock, LocalFileIO.delete_data_file, list[str]()

    def deleted(files: LocalFileIO, path: str) -> None:
        delete(files, path)
        if not slept[0] and path.startswith(f"{home(bench)}/"):
            slept[0] = 3600
            after_its_hold(bench)
            write(home(bench), 900, 910)
            assert swept(bench).first_halt_reason
            resolved(bench, LocationChoice.PREVIOUS)
            bench.store.resume(bench.table.name, "ada")
            expected.extend(in_partition(bench))

    with (
        mock.patch.object(LocalFileIO, "delete_data_file", deleted),
        mock.patch.object(bench.store, "clock", side_effect=lambda: clock() + slept[0]),
    ):
        report = bench.clean()
    assert (here(bench), in_partition(bench)) == (home(bench), expected)
    assert len(data_files(home(bench))) == 3, "one was deleted, and one is new"
    assert "may have another owner" in {kept.version.partition: kept.reason for kept in report.kept}[PARTITION]
    after_its_hold(bench)
    bench.clean()
    assert (in_partition(bench), swept(bench), halted(bench)) == (expected, SweepReport(), None)


@pytest.mark.crossed(2)
@pytest.mark.parametrize("take", list(LocationChoice))
def test_rule_4_a_person_chooses_the_location_and_the_other_ones_files_stay_until_its_retention(
    bench: Bench, take: LocationChoice
):
    before, place = in_partition(bench), here(bench)
    shutil.rmtree(home(bench))
    home(bench).mkdir()
    swept(bench)
    bench.execute("UPDATE place_move SET unsettled_since_ms = unsettled_since_ms - 3600000")
    assert swept(bench).first_halt_reason
    resolved(bench, take)
    bench.store.resume(bench.table.name, "ada")
    assert (here(bench), in_partition(bench)) == (
        (place, before) if take is LocationChoice.CURRENT else (home(bench), [])
    )
    assert (swept(bench), len(data_files(place))) == (SweepReport(), 1)
    bench.clean()
    assert in_partition(bench) == (before if take is LocationChoice.CURRENT else [])


def test_rule_2_a_relocation_waits_for_a_late_file_of_a_moment_ago_that_an_overwrite_has_replaced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    place = here(bench)
    theirs = [*overwritten_after_a_late_file(bench), *write(place, 720, 730, "part-more.parquet")]
    with monkeypatch.context() as patched:
        patched.setattr("lake.formats.hive.files.incomplete.STABLE_AFTER", timedelta(minutes=1))
        bench.request(partitions=[PARTITION])
        outcome = bench.run()
        assert outcome.result is RunResult.CANCELLED
        assert outcome.error is not None
        assert "part-late.parquet was written a moment ago" in outcome.error
        assert (brought_home(bench).relocated_back, here(bench)) == (0, place)
    assert (swept(bench).superseded, in_partition(bench)) == (1, sorted(theirs))
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    assert (swept(bench), in_partition(bench)) == (SweepReport(), sorted(theirs))


def test_rule_2_the_cleaner_deletes_nothing_in_a_location_with_a_late_file_of_a_moment_ago(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    before, late = in_partition(bench), write(home(bench), 900, 910)
    with monkeypatch.context() as patched:
        patched.setattr("lake.formats.hive.files.incomplete.STABLE_AFTER", timedelta(minutes=1))
        reasons = {kept.reason for kept in bench.clean().kept if kept.version.partition == PARTITION}
    assert reasons == {f"the sweep comes first: {PARTITION}/part-late.parquet was written a moment ago"}
    assert (swept(bench).copied, in_partition(bench), halted(bench)) == (1, sorted([*before, *late]), None)

# SPDX-License-Identifier: Apache-2.0
"""A partition that ``TRUNCATE`` has emptied, and writers that began before its relocation and end afterwards."""

import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from late_writing import (
    PARTITION,
    data_files,
    halted,
    here,
    home,
    in_partition,
    killed_in_sweep,
    overwrite,
    swept,
    wait_a_tick,
    write,
)
from late_writing import after_its_hold as locks_have_ended
from renaming import lose_database
from toys.bench import Bench

from executors.outcome import RunResult
from executors.relocation.partition_sweep import SweepReport

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]


def truncated(bench: Bench) -> Path:
    """What ``TRUNCATE TABLE … PARTITION`` does: the directory is made again, without its files."""
    place = here(bench)
    wait_a_tick(place)
    shutil.rmtree(place)
    place.mkdir()
    return place


def written_later(place: Path, low: int, high: int, name: str) -> list[str]:
    """Rows of a file that is younger than the directory's last change by more than the file system's clock tick."""
    wait_a_tick(place.parent)
    return write(place, low, high, name)


def becomes_visible(bench: Bench, rows: list[str]) -> None:
    for _ in range(2):
        swept(bench)
        assert (halted(bench), in_partition(bench)) == (None, sorted(rows))


@pytest.mark.parametrize("is_lost", [False, True], ids=["same database", "lost database"])
def test_rule_2_a_late_file_after_a_truncation_is_read_beside_the_rows_that_are_inserted_later(
    bench: Bench, is_lost: bool
):
    """It stayed unread for an hour. With the first INSERT it counted as older than an overwrite, and was lost."""
    place = truncated(bench)
    late = written_later(home(bench), 900, 910, "part-late.parquet")
    becomes_visible(bench, late)
    inserted = written_later(place, 500, 510, "part-inserted.parquet")
    if is_lost:
        lose_database(bench)
        bench.sweep()
    becomes_visible(bench, [*late, *inserted])
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    bench.clean()
    becomes_visible(bench, [*late, *inserted])


def test_rule_2_a_late_file_of_a_moment_ago_is_ordered_before_rows_are_inserted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    """It is too recent to be copied when the sweep meets it, and the INSERT comes before the next sweep."""
    place = truncated(bench)
    late = written_later(home(bench), 900, 910, "part-late.parquet")
    with monkeypatch.context() as patched:
        patched.setattr("lake.formats.hive.files.incomplete.STABLE_AFTER", timedelta(minutes=1))
        assert (swept(bench).copied, in_partition(bench)) == (0, [])
    becomes_visible(bench, [*late, *written_later(place, 500, 510, "part-inserted.parquet")])


def test_rule_2_an_overwrite_of_a_previous_location_after_a_truncation_is_read_with_the_rows_inserted_later(
    bench: Bench,
):
    """It was waited for, and with the first INSERT it counted as replaced."""
    place = truncated(bench)
    wait_a_tick(home(bench))
    anew = overwrite(home(bench), 700, 720)
    with killed_in_sweep("move_recorded"):
        swept(bench)
    locks_have_ended(bench)
    inserted = written_later(place, 500, 510, "part-inserted.parquet")
    becomes_visible(bench, [*anew, *inserted])
    assert here(bench) == home(bench)


@pytest.mark.parametrize("is_emptied_again", [False, True])
def test_rule_2_an_overwrite_after_a_truncation_replaces_the_late_files_before_it(bench: Bench, is_emptied_again: bool):
    place = truncated(bench)
    written_later(home(bench), 900, 910, "part-late.parquet")
    assert swept(bench).copied == 1
    if is_emptied_again:
        truncated(bench)
        becomes_visible(bench, written_later(home(bench), 920, 930, "part-last.parquet"))
    write(home(bench), 910, 920, "part-later.parquet")
    wait_a_tick(home(bench))
    becomes_visible(bench, overwrite(place, 500, 520))


def test_rule_2_a_late_file_from_before_a_truncation_is_not_read(bench: Bench):
    write(home(bench), 900, 910)
    place = truncated(bench)
    assert (swept(bench), in_partition(bench)) == (SweepReport(waiting=1), [])
    becomes_visible(bench, written_later(place, 500, 510, "part-inserted.parquet"))


def test_rule_2_a_location_whose_directory_is_gone_is_waited_for(bench: Bench):
    """A static overwrite of Spark's removes the directory first, and makes it again when its job has ended."""
    place = here(bench)
    shutil.rmtree(place)
    write(home(bench), 900, 910)
    assert (swept(bench), len(data_files(home(bench)))) == (SweepReport(waiting=1), 4)


@pytest.mark.parametrize("point", ["carry_recorded", "carry_copied", "carry_told"])
def test_rule_5_a_sweep_that_is_killed_while_it_copies_to_an_emptied_location_is_finished_by_the_next(
    bench: Bench, point: str
):
    place = truncated(bench)
    late = written_later(home(bench), 900, 910, "part-late.parquet")
    with killed_in_sweep(point):
        swept(bench)
    locks_have_ended(bench)
    inserted = written_later(place, 500, 510, "part-inserted.parquet")
    becomes_visible(bench, [*late, *inserted])
    assert f"{PARTITION}/part-late.parquet" in {one.version.path for one in bench.store.awaiting_deletion(bench.table)}

# SPDX-License-Identifier: Apache-2.0
"""What is looked at every ten seconds: the places that were left a short while ago, and no others."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from late_writing import PARTITION, dropped, here, home, in_partition, point_at, write
from toys.bench import Bench

from executors.context import RunContext
from executors.outcome import RunResult
from executors.relocation import recent
from executors.relocation.partition_sweep import SweepReport
from executors.relocation.recent import RecentLocations, sweep_recent_locations
from executors.relocation.watch import PartitionWatch
from executors.sweep import sweep_table
from lake.formats.hive.format import HiveFormat
from lake.relocation.model import RelocatedPartition

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]

HOUR = timedelta(hours=1)
Looks = Callable[[], SweepReport]


@pytest.fixture
def moved(unmoved: Bench) -> Bench:
    """A table that was moved three times, all but the last time longer than an hour ago."""
    for number in range(3):
        unmoved.request()
        assert unmoved.run().result is RunResult.COMPLETED
        if number < 2:
            unmoved.execute("UPDATE place_move SET begun_at_ms = begun_at_ms - 7200000")
    return unmoved


@pytest.fixture
def listed() -> Iterator[Counter[str]]:
    """How often each place was listed in full."""
    counts, standing = Counter[str](), HiveFormat.inspect_locations

    def counting(format_: Any, table: Any, known: Sequence[RelocatedPartition]) -> Any:
        counts.update(place for one in known for place in one.locations)
        return standing(format_, table, known)

    with mock.patch.object(HiveFormat, "inspect_locations", counting):
        yield counts


def looks(bench: Bench) -> Looks:
    remembered = RecentLocations()
    return lambda: sweep_recent_locations(
        bench.table,
        RunContext(store=bench.store, spark=bench.case.spark),
        format=bench.format,
        within=HOUR,
        recent=remembered,
    )


def formers(bench: Bench) -> list[Path]:
    record = next(one for one in bench.store.relocated_partitions(bench.table) if one.partition == PARTITION)
    return [Path(bench.table.location) / former.location for former in record.previous_locations]


def test_the_frequent_check_lists_only_present_locations_and_locations_left_within_the_hour(
    moved: Bench, listed: Counter[str]
):
    look = looks(moved)
    assert [look() for _ in range(3)] == [SweepReport()] * 3
    records = moved.store.relocated_partitions(moved.table)
    expected = {one.latest.location for one in records} | {one.latest.previous_location for one in records}
    assert listed.keys() == expected
    assert set(listed.values()) == {3}
    assert len({place for one in records for place in one.locations}) == 8


def test_database_reads_of_a_frequent_check_do_not_grow_with_the_rounds(moved: Bench):
    left = moved.store.recently_vacated(moved.table, HOUR, 100)
    assert sorted(one.partition for one in left) == ["dt=0", "dt=1"]
    assert [len(one.previous_locations) for one in moved.store.recently_relocated(moved.table, left)] == [1, 1]


def test_a_late_file_in_a_location_left_within_the_hour_is_copied_by_the_next_frequent_check(moved: Bench):
    look, before = looks(moved), in_partition(moved)
    look()
    late = write(formers(moved)[-1], 900, 910)
    assert look().copied == 1
    assert (in_partition(moved), look()) == (sorted(before + late), SweepReport())


def test_a_late_file_in_an_older_location_of_a_recently_moved_partition_is_copied_by_the_next_sweep(
    moved: Bench,
):
    look, watch, before = looks(moved), PartitionWatch(), in_partition(moved)

    def swept() -> None:
        sweep_table(
            moved.table, RunContext(store=moved.store, spark=moved.case.spark), format=moved.format, watch=watch
        )

    with mock.patch("executors.relocation.watch._MIN_ROTATION_SIZE", 0):
        swept()
        expected = list(before)
        for number, place in enumerate(formers(moved)[:-1]):
            expected += write(place, 900 + number, 901 + number, f"late-{number}.parquet")
            look()
            swept()
            assert in_partition(moved) == sorted(expected)


def test_the_next_frequent_check_handles_all_locations_of_a_partition_that_an_owner_dropped(moved: Bench):
    look = looks(moved)
    assert set(home(moved).glob("*.parquet"))
    dropped(moved)
    look()
    assert not set(home(moved).glob("*.parquet"))


def test_a_partition_pointed_back_at_an_older_location_is_moved_again_by_the_next_frequent_check(moved: Bench):
    look, place = looks(moved), here(moved)
    point_at(moved, home(moved))
    assert here(moved) == home(moved)
    look()
    assert here(moved) == place


@pytest.fixture
def large(moved: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A table of which more places were left within the hour than a look lists."""
    monkeypatch.setattr(recent, "MAX_FULL_LISTINGS", 1)
    monkeypatch.setattr(recent, "_ROTATION_SIZE", 0)
    monkeypatch.setattr("lake.formats.hive.relocation.change_detection._MIN_RELIABLE_AGE_SECONDS", -60)
    return moved


def test_changed_locations_of_a_large_table_are_listed_and_each_one_once_after_it_was_left(
    large: Bench, listed: Counter[str]
):
    look, before = looks(large), in_partition(large)
    counts = []
    for _ in range(4):
        look()
        counts.append(sum(listed.values()))
        listed.clear()
    assert counts == [2, 2, 0, 0], "each has its first look in turn, then nothing changes"
    late = write(formers(large)[-1], 900, 910)
    assert look().copied == 1
    assert in_partition(large) == sorted(before + late)


def test_every_location_of_a_large_table_is_listed_in_turn(
    large: Bench, listed: Counter[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(recent, "_ROTATION_SIZE", 1)
    look = looks(large)
    for _ in range(4):
        look()
    listed.clear()
    for _ in range(2):
        look()
    assert {one.latest.previous_location for one in large.store.relocated_partitions(large.table)} <= listed.keys()


def test_a_failed_frequent_check_is_repeated_by_the_next_one(large: Bench):
    look, before = looks(large), in_partition(large)
    for _ in range(3):
        look()
    late = write(formers(large)[-1], 900, 910)
    with mock.patch.object(HiveFormat, "inspect_locations", side_effect=RuntimeError), pytest.raises(RuntimeError):
        look()
    assert look().copied == 1
    assert in_partition(large) == sorted(before + late)

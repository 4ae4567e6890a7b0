# SPDX-License-Identifier: Apache-2.0
"""Directories that two partitions have left, or one partition twice, with files that two commits have replaced."""

from datetime import timedelta
from pathlib import Path

import pytest
from hive_case import Owner, table_name
from late_writing import (
    PARTITION,
    added_again,
    data_files,
    dropped,
    halted,
    here,
    home,
    in_partition,
    resolved,
    rows_in,
    swept,
    write,
)
from renaming import lose_database
from toys.bench import Bench

from executors.outcome import RunResult
from executors.relocation.partition_sweep import SweepReport
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
    # A late file may be that of the other partition, which is still read.
    assert set(bench.store.halted_partitions(bench.table)) == (set() if is_dropped else {PARTITION})


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


def test_rule_5_a_late_file_in_a_directory_that_two_partitions_left_is_copied_once(known: Bench):
    """The copy counted for one of the two partitions only, and each sweep copied the file again for the other one."""
    bench = known
    added(bench)
    compacted(bench, OTHER)
    write(home(bench), 900, 910)
    bench.sweep()
    assert halted(bench) is not None
    resolved(bench, LocationChoice.CURRENT)
    bench.store.resume(bench.table.name, "ada")
    one, other = in_partition(bench), rows_in(place_of_other(bench))
    late = write(home(bench), 910, 920, "part-later.parquet")
    for _ in range(4):
        bench.sweep()
    assert (in_partition(bench), rows_in(place_of_other(bench))) in (
        (sorted([*one, *late]), other),
        (one, sorted([*other, *late])),
        (sorted([*one, *late]), sorted([*other, *late])),
    )

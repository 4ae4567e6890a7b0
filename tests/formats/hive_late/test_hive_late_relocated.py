# SPDX-License-Identifier: Apache-2.0
"""Partitions that a writer points back at a former location while they keep the name of their last move.

Flink's sink does that at each commit of a partition: it reads the partition, sets the location that follows from the
table's directory, and writes all of it back.
"""

import shutil
from datetime import timedelta

import pytest
from hive_case import DATABASE, Owner, table_name
from late_writing import (
    PARTITION,
    alter_partitions,
    brought_home,
    counted,
    dropped,
    halted,
    here,
    home,
    in_partition,
    overwrite,
    point_at,
    resolved,
    swept,
    true_counts,
    wait_a_tick,
    write,
)
from toys.bench import Bench

from executors.outcome import RunResult
from executors.relocation.partition_sweep import SweepReport
from executors.relocation.sweep import partitions_awaiting_sweep
from lake.metastore import MetastorePartition
from lake.metastore.thrift import I32
from lake.relocation.decide import LocationChoice

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]


def test_a_partition_that_is_pointed_back_with_our_token_is_moved_again_with_the_files_that_were_added(bench: Bench):
    rows_before, location = in_partition(bench), here(bench)
    late = write(home(bench), 900, 910)
    point_at(bench, home(bench))
    reasons = partitions_awaiting_sweep(bench.table, format=bench.format, store=bench.store, partitions=[PARTITION])
    assert PARTITION in reasons, "nothing is planned, committed or deleted there before the sweep has been"
    assert {version.partition for version in bench.clean().deleted} == {"dt=1"}
    assert swept(bench).copied == 1
    assert (here(bench), in_partition(bench), halted(bench)) == (location, sorted([*rows_before, *late]), None)
    assert counted(bench) == true_counts(bench)
    for low in (910, 920):
        late += write(home(bench), low, low + 10, f"part-{low}.parquet")
        point_at(bench, home(bench))
        swept(bench)
    assert (here(bench), in_partition(bench), swept(bench)) == (location, sorted([*rows_before, *late]), SweepReport())
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    assert (in_partition(bench), halted(bench)) == (sorted([*rows_before, *late]), None)


def test_a_partition_that_is_pointed_back_and_got_no_file_is_moved_again(bench: Bench):
    rows_before, location = in_partition(bench), here(bench)
    point_at(bench, home(bench))
    swept(bench)
    assert (here(bench), in_partition(bench), halted(bench)) == (location, rows_before, None)
    bench.clean()
    assert (in_partition(bench), swept(bench)) == (rows_before, SweepReport())


def test_a_partition_pointed_back_at_an_emptied_directory_keeps_all_rows_and_needs_a_decision(bench: Bench):
    """After the cleaner its files alone do not tell an append from an overwrite: a person does."""
    rows_before, location = in_partition(bench), here(bench)
    bench.clean()
    late = write(home(bench), 900, 910)
    point_at(bench, home(bench))
    assert f"files were written to {PARTITION} after lakefold began to delete there" in str(
        swept(bench).first_halt_reason
    )
    assert bench.clean(timedelta()).deleted == ()
    assert location.exists()
    bench.store.resume(bench.table.name, actor="ada")
    assert resolved(bench, LocationChoice.CURRENT).first_halt_reason is None
    swept(bench)
    assert (here(bench), in_partition(bench), halted(bench)) == (location, rows_before, None)
    assert (home(bench) / "part-late.parquet").exists(), f"{len(late)} rows wait for their retention"


def test_an_overwrite_that_points_a_partition_back_takes_it_back(bench: Bench):
    wait_a_tick(here(bench))
    anew = overwrite(home(bench), 500, 520)
    point_at(bench, home(bench))
    swept(bench)
    assert (here(bench), in_partition(bench), halted(bench)) == (home(bench), sorted(anew), None)
    assert swept(bench) == SweepReport()


def test_a_restored_partition_that_is_pointed_back_at_a_version_is_restored_again(bench: Bench):
    rows_before, version = in_partition(bench), here(bench)
    bench.clean()
    assert (brought_home(bench).relocated_back, here(bench)) == (2, home(bench))
    late = write(version, 900, 910)
    point_at(bench, version)
    assert swept(bench).copied == 1
    assert (here(bench), in_partition(bench)) == (home(bench), sorted([*rows_before, *late]))


def test_a_partition_that_is_dropped_and_added_again_at_a_former_location_with_our_token_halts_its_table(bench: Bench):
    """Such as by a tool that copies partitions with their properties: its owner says which files it is to have."""
    named = bench.case.partitions(bench.table)[PARTITION].parameters  # type: ignore[attr-defined]
    dropped(bench)
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.add(table_name(bench.table), "0", home(bench))
        anew = bench.case.partitions(bench.table)[PARTITION]  # type: ignore[attr-defined]
        owner.alter_partitions(DATABASE, table_name(bench.table), [anew.with_changes(anew.storage, named)])
    stored = bench.stored()
    assert "was dropped and added again" in str(swept(bench).first_halt_reason)
    assert bench.stored() == stored


@pytest.mark.parametrize("is_overwritten", [False, True], ids=["as it is", "overwritten"])
@pytest.mark.parametrize("keeps_creation_time", [False, True])
def test_a_partition_that_is_written_anew_without_properties_keeps_its_late_files(
    bench: Bench, keeps_creation_time: bool, is_overwritten: bool
):
    """Without the creation time it counted as recreated, and late files were lost; with it the table was halted."""
    place, rows = here(bench), in_partition(bench)
    if is_overwritten:
        rows = overwrite(place, 700, 720)
        wait_a_tick(place)
    before = bench.case.partitions(bench.table)[PARTITION]  # type: ignore[attr-defined]
    anew = before.with_changes(before.storage, {"trino_version": "470"}).raw
    alter_partitions(bench, [MetastorePartition(anew if keeps_creation_time else anew | {4: (I32, 0)})])
    late = write(home(bench), 900, 910)
    for _ in range(2):
        bench.sweep()
    assert (here(bench), in_partition(bench), halted(bench)) == (place, sorted([*rows, *late]), None)
    assert counted(bench) == true_counts(bench)
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    late += write(place, 910, 920, "part-later.parquet") + write(home(bench), 920, 930, "part-last.parquet")
    for _ in range(2):
        bench.sweep()
        bench.clean()
    assert (in_partition(bench), halted(bench)) == (sorted([*rows, *late]), None)


@pytest.mark.parametrize("has_inputs", [True, False], ids=["inputs present", "inputs deleted"])
def test_an_overwrite_by_trino_of_a_relocated_partition_counts_in_the_default_directory(bench: Bench, has_inputs: bool):
    """It halted the partition: without the creation time, it looked like an entry that was written back."""
    if not has_inputs:
        bench.clean()
    before = bench.case.partitions(bench.table)[PARTITION]  # type: ignore[attr-defined]
    version = here(bench)
    rows = write(home(bench), 500, 520, "trino.parquet")
    anew = before.with_changes(before.storage.with_location(f"file:{home(bench)}"), {"trino_version": "470"})
    alter_partitions(bench, [MetastorePartition(anew.raw | {4: (I32, 0)})])
    shutil.rmtree(version)
    for _ in range(2):
        bench.sweep()
        bench.clean()
    assert (here(bench), in_partition(bench), halted(bench)) == (home(bench), sorted(rows), None)
    bench.request(partitions=[PARTITION])
    bench.run()
    assert (in_partition(bench), halted(bench)) == (sorted(rows), None)

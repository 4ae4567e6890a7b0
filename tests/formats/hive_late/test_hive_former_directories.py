# SPDX-License-Identifier: Apache-2.0
"""Directories that an owner moved a partition away from, and uses for something else (rules 2 and 7)."""

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from hive_case import Owner, table_name
from late_writing import (
    PARTITION,
    data_files,
    halted,
    here,
    home,
    in_partition,
    point_at,
    resolved,
    rows_in,
    wait_a_tick,
    write,
)
from renaming import lose_database
from toys.bench import Bench

from executors.outcome import RunResult
from lake.formats.hive.directories import directory_index
from lake.relocation.decide import LocationChoice

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]


@pytest.fixture
def owner(unmoved: Bench) -> Iterator[Owner]:
    with Owner(unmoved.case.uri) as client:  # type: ignore[attr-defined]
        yield client
    directory_index.clear_directory_caches()


def copied_elsewhere(bench: Bench, elsewhere: Path) -> None:
    """The owner moves a partition that lakefold has relocated."""
    shutil.copytree(here(bench), elsewhere)
    point_at(bench, elsewhere)


def planned(bench: Bench) -> None:
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED


def swept_twice(bench: Bench) -> None:
    for _ in range(2):
        bench.sweep()
        bench.clean()


def test_rule_2_a_former_directory_that_its_owner_emptied_and_uses_again_is_no_overwrite(bench: Bench, tmp_path: Path):
    """The partition was moved back there: it had the foreign rows, and after the retention its own were gone."""
    copied_elsewhere(bench, tmp_path / "elsewhere")
    for path in data_files(home(bench)):
        path.unlink()
    foreign = write(home(bench), 900, 910, "landed.parquet")
    planned(bench)
    place, rows = here(bench), in_partition(bench)
    swept_twice(bench)
    assert (here(bench), in_partition(bench)) == (place, rows)
    assert "it is unknown whether they are its rows" in str(halted(bench))
    assert resolved(bench, LocationChoice.CURRENT).first_halt_reason is None
    bench.store.resume(bench.table.name, "ada")
    foreign += write(home(bench), 910, 920, "landed-later.parquet")
    swept_twice(bench)
    assert (here(bench), in_partition(bench), halted(bench)) == (place, rows, None), "it asks once"
    assert rows_in(home(bench)) == sorted(foreign)
    assert not [one for one in bench.store.awaiting_deletion(bench.table) if "landed" in one.version.path]


@pytest.mark.parametrize("is_emptied", [False, True], ids=["files left", "emptied"])
def test_rule_7_rows_of_a_partition_that_had_the_former_directory_for_a_while_are_not_copied(
    bench: Bench, owner: Owner, tmp_path: Path, is_emptied: bool
):
    """Once it was dropped, its rows were copied for good; or they looked like an overwrite."""
    copied_elsewhere(bench, tmp_path / "elsewhere")
    if is_emptied:
        for path in data_files(home(bench)):
            path.unlink()
    owner.add(table_name(bench.table), "7", home(bench))
    planned(bench)
    place, rows = here(bench), in_partition(bench)
    foreign = write(home(bench), 900, 910)
    swept_twice(bench)
    owner.drop(table_name(bench.table), "7")
    swept_twice(bench)
    foreign += write(home(bench), 910, 920, "part-later.parquet")
    swept_twice(bench)
    assert (here(bench), in_partition(bench), halted(bench)) == (place, rows, None)
    assert set(foreign) <= set(rows_in(home(bench))), "lakefold leaves the directory to its owner"


def test_rule_7_a_former_directory_whose_replaced_files_were_deleted_may_belong_to_another_partition(
    bench: Bench, owner: Owner, tmp_path: Path
):
    """Each file of the other partition halted this one, and was put on the list of files to delete."""
    bench.clean()
    copied_elsewhere(bench, tmp_path / "elsewhere")
    planned(bench)
    place, rows = here(bench), in_partition(bench)
    owner.add(table_name(bench.table), "7", home(bench))
    foreign = write(home(bench), 900, 910)
    swept_twice(bench)
    assert (here(bench), in_partition(bench), halted(bench)) == (place, rows, None)
    assert rows_in(home(bench)) == foreign


def test_rule_7_files_of_another_partition_in_a_former_directory_are_not_taken_for_late_files_that_were_handled(
    known: Bench, owner: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The search for unrecorded commits put them on the list of files to delete."""
    monkeypatch.setattr("lake.formats.hive.relocation.unrecorded_relocations.MAX_CHECK_AGE", timedelta())
    bench = known
    copied_elsewhere(bench, tmp_path / "elsewhere")
    owner.add(table_name(bench.table), "7", home(bench))
    foreign = write(home(bench), 900, 910, "foreign.parquet")
    wait_a_tick(home(bench))
    planned(bench)
    rows = in_partition(bench)
    lose_database(bench)
    swept_twice(bench)
    assert not [one for one in bench.store.awaiting_deletion(bench.table) if "foreign" in one.version.path]
    owner.drop(table_name(bench.table), "7")
    directory_index.clear_directory_caches()
    swept_twice(bench)
    assert set(foreign) <= set(rows_in(home(bench)))
    assert (in_partition(bench), halted(bench)) == (rows, None)

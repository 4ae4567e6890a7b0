# SPDX-License-Identifier: Apache-2.0
"""Partitions that lakefold restored under another name, and that have their first name again."""

import shutil
import time
from pathlib import Path

import pytest
from hive_case import Owner, table_name
from late_writing import (
    PARTITION,
    alter_partitions,
    brought_home,
    data_files,
    halted,
    home,
    rows_in,
    swept,
    write,
)
from renaming import lose_database
from toys.bench import Bench
from waiting import wait_for

from executors.outcome import RunResult
from executors.relocation.partition_sweep import SweepReport
from lake.relocation import evidence

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]


def place_of(bench: Bench, partition: str) -> Path:
    return bench.case.places(bench.table)[partition]  # type: ignore[attr-defined]


def renamed(bench: Bench, old: str, new: str) -> None:
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.rename(table_name(bench.table), old, new)


def compacted(bench: Bench, partition: str, low: int) -> None:
    for part in range(2):
        write(place_of(bench, partition), low + 10 * part, low + 10 + 10 * part, f"part-{low}-{part}.parquet")
    bench.request(partitions=[partition])
    assert bench.run().result is RunResult.COMPLETED


def restored(bench: Bench, partition: str) -> None:
    """lakefold moves the partition to the directory of its present name."""
    bench.sweep()
    brought_home(bench)
    assert place_of(bench, partition) == Path(bench.table.location) / partition


def with_equal_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "MAX_CLOCK_DIFFERENCE_MS", 0)
    since = time.time()
    wait_for(lambda: time.time() > since + 0.05, "time stands still")


def swept_to_the_end(bench: Bench) -> None:
    for _ in range(3):
        bench.sweep()


def renamed_there_and_back(bench: Bench, names: str) -> None:
    """The partition gets each of the names and is compacted; with a plus, it is also restored."""
    before = "0"
    for number, step in enumerate(names.split()):
        name = step.removesuffix("+")
        renamed(bench, before, name)
        compacted(bench, f"dt={name}", 600 + 40 * number)
        if step != name:
            restored(bench, f"dt={name}")
        before = name


@pytest.mark.parametrize("names", ["9+ 0", "9 8+ 0", "9+ 0 9 0"])
@pytest.mark.parametrize("found", ["by the sweep", "in the table"])
def test_rule_2_late_files_of_a_partition_that_was_restored_under_another_name_are_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, names: str, found: str
):
    """The restore was taken for a move by the owner: late files in the directories before it stayed invisible."""
    first = place_of(bench, PARTITION)
    renamed_there_and_back(bench, names)
    with_equal_clocks(monkeypatch)
    if found == "in the table":
        lose_database(bench)
        bench.sweep()
    place, rows = place_of(bench, PARTITION), rows_in(place_of(bench, PARTITION))
    for number, directory in enumerate((home(bench), first)):
        rows += write(directory, 900 + 10 * number, 910 + 10 * number, f"part-late-{number}.parquet")
    swept_to_the_end(bench)
    assert (place_of(bench, PARTITION), rows_in(place), halted(bench)) == (place, sorted(rows), None)
    bench.clean()
    swept_to_the_end(bench)
    assert (rows_in(place_of(bench, PARTITION)), data_files(home(bench)), halted(bench)) == (sorted(rows), [], None)
    assert swept(bench) == SweepReport()


def test_rule_7_files_in_a_directory_that_the_owner_left_under_another_name_are_not_read(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """lakefold restored the partition, too, but to the directory that its owner had set."""
    renamed(bench, "0", "9")
    compacted(bench, "dt=9", 600)
    shutil.copytree(place_of(bench, "dt=9"), tmp_path / "elsewhere")
    partition = bench.case.partitions(bench.table)["dt=9"]  # type: ignore[attr-defined]
    storage = partition.storage.with_location(f"file:{tmp_path / 'elsewhere'}")
    alter_partitions(bench, [partition.with_changes(storage, partition.parameters)])
    compacted(bench, "dt=9", 700)
    bench.sweep()
    bench.clean()
    brought_home(bench)
    assert place_of(bench, "dt=9") == tmp_path / "elsewhere"
    renamed(bench, "9", "0")
    compacted(bench, PARTITION, 800)
    with_equal_clocks(monkeypatch)
    rows, foreign = rows_in(place_of(bench, PARTITION)), write(home(bench), 900, 910)
    swept_to_the_end(bench)
    assert (rows_in(place_of(bench, PARTITION)), rows_in(home(bench)), halted(bench)) == (rows, foreign, None)

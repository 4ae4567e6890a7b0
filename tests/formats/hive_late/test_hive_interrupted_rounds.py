# SPDX-License-Identifier: Apache-2.0
"""Rounds of the sweep that are killed, meet an overwrite, or sleep: rules 5 and 6."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from late_writing import (
    PARTITION,
    after_its_hold,
    counted,
    data_files,
    dropped,
    halted,
    here,
    home,
    in_partition,
    overwrite,
    swept,
    true_counts,
    wait_a_tick,
    write,
)
from toys.bench import Bench

from executors.outcome import RunResult
from executors.relocation.partition_sweep import SweepReport
from executors.relocation.sweep import partitions_awaiting_sweep
from lake.storage.local import LocalFileIO

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]


def test_rule_6_a_round_that_is_killed_when_it_has_moved_files_aside_is_finished_by_the_next(bench: Bench):
    dropped(bench)
    killed_at(bench, "aside_moved")
    after_its_hold(bench)
    assert swept(bench).superseded == 3
    waiting = [
        due.version.path for due in bench.store.awaiting_deletion(bench.table) if due.version.partition == PARTITION
    ]
    assert [path.startswith(".lakefold/_aside/") for path in waiting] == [True] * 3
    assert swept(bench) == SweepReport()


_ROUND = """
import sys
from datetime import timedelta
from executors.context import RunContext
from executors.relocation.sweep import sweep_partitions
from lake.formats.hive import FORMAT
from lake.formats.hive.files import incomplete
from service.control.store import Store
incomplete.STABLE_AFTER = timedelta()
store = Store(sys.argv[1])
sweep_partitions(store.table_state(sys.argv[2]).ref, RunContext(store=store, spark=None), format=FORMAT)
"""


def killed_at(bench: Bench, failpoint: str) -> None:
    """A round of the sweep in a process of its own, which is killed there."""
    environment = {**os.environ, "LAKEFOLD_FAILPOINTS": f"{failpoint}=kill"}
    died = subprocess.run([sys.executable, "-c", _ROUND, bench.url, bench.table.name], env=environment, check=False)
    assert died.returncode == -signal.SIGKILL


@pytest.mark.parametrize("failpoint", ["carry_recorded", "carry_copied", "carry_told"])
def test_rule_5_a_round_that_is_killed_while_it_copies_is_finished_once_by_the_next(bench: Bench, failpoint: str):
    rows_ = sorted(in_partition(bench) + write(home(bench), 900, 910) + write(home(bench), 910, 915, "000000_0"))
    killed_at(bench, failpoint)
    assert partitions_awaiting_sweep(bench.table, format=bench.format, store=bench.store, partitions=[PARTITION])
    assert swept(bench) == SweepReport(), "it may live: it holds the partition"
    after_its_hold(bench)
    assert (swept(bench).copied, in_partition(bench)) == (2, rows_)
    assert counted(bench) == true_counts(bench)
    assert (swept(bench), in_partition(bench)) == (SweepReport(), rows_)
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    assert (swept(bench), in_partition(bench)) == (SweepReport(), rows_)


def overwrite_by_renames(place: Path, low: int, high: int) -> list[str]:
    """What Hive does: it writes elsewhere, removes what it finds in ``place`` then, and renames its own files in."""
    wait_a_tick(place)
    staging = place.parent.parent / ".hive-staging"
    staging.mkdir()
    anew = write(staging, low, high, "000000_0")
    wait_a_tick(staging)
    for path in data_files(place):
        path.unlink()
    (staging / "000000_0").rename(place / "000000_0")
    return anew


@pytest.mark.crossed
@pytest.mark.parametrize("failpoint", ["carry_copied", "carry_told"])
def test_rule_5_an_overwrite_after_a_round_was_killed_while_it_copied_keeps_only_its_own_rows(
    bench: Bench, failpoint: str
):
    write(home(bench), 900, 910)
    killed_at(bench, failpoint)
    anew = overwrite_by_renames(here(bench), 700, 720)
    after_its_hold(bench)
    assert (swept(bench).copied, in_partition(bench), halted(bench)) == (0, sorted(anew), None)
    assert (swept(bench), in_partition(bench)) == (SweepReport(), sorted(anew))
    assert f"{PARTITION}/part-late.parquet" in {due.version.path for due in bench.store.awaiting_deletion(bench.table)}


@pytest.mark.crossed
@pytest.mark.parametrize("method", ["link_or_copy", "rename"])
def test_rule_5_an_overwrite_while_a_late_file_is_copied_is_alone_there(bench: Bench, method: str):
    place, real, anew = here(bench), getattr(LocalFileIO, method), list[str]()
    write(home(bench), 900, 910)

    def copied(files: LocalFileIO, source: str, target: str) -> None:
        if method == "link_or_copy":
            real(files, source, target)
        if not anew:
            anew.extend(overwrite_by_renames(place, 700, 720))
        if method == "rename":
            real(files, source, target)

    with mock.patch.object(LocalFileIO, method, copied):
        assert swept(bench).copied == 0
    assert (in_partition(bench), len(list(place.iterdir()))) == (sorted(anew), 1)
    assert (swept(bench).superseded, in_partition(bench), swept(bench), halted(bench)) == (
        1,
        sorted(anew),
        SweepReport(),
        None,
    )
    assert f"{PARTITION}/part-late.parquet" in {due.version.path for due in bench.store.awaiting_deletion(bench.table)}


@pytest.mark.crossed(2, first="move_recorded")
@pytest.mark.parametrize("failpoint", ["move_recorded", "carry_recorded", "move_told", "carry_copied"])
def test_rule_5_a_round_that_is_killed_while_it_moves_back_is_finished_once_by_the_next(bench: Bench, failpoint: str):
    place, anew = here(bench), overwrite(home(bench), 500, 520)
    wait_a_tick(home(bench))
    rows_ = sorted(anew + write(place, 900, 910))
    killed_at(bench, failpoint)
    assert partitions_awaiting_sweep(bench.table, format=bench.format, store=bench.store, partitions=[PARTITION])
    after_its_hold(bench)
    swept(bench)
    assert (here(bench), in_partition(bench)) == (home(bench), rows_)
    assert counted(bench) == true_counts(bench)
    assert swept(bench) == SweepReport()
    assert partitions_awaiting_sweep(bench.table, format=bench.format, store=bench.store, partitions=[PARTITION]) == {}
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    bench.clean()
    assert (swept(bench), in_partition(bench)) == (SweepReport(), rows_)


def test_rule_5_files_that_are_overwritten_before_they_are_moved_back_are_not_restored(bench: Bench):
    overwrite(home(bench), 500, 520)
    wait_a_tick(home(bench))
    write(here(bench), 900, 910)
    killed_at(bench, "carry_copied")
    after_its_hold(bench)
    wait_a_tick(home(bench))
    # By a writer that has looked for what to remove before the copy came.
    (home(bench) / "part-anew.parquet").unlink()
    anew = write(home(bench), 600, 620, "part-later.parquet")
    assert (swept(bench).relocated_back, here(bench), in_partition(bench)) == (1, home(bench), sorted(anew))
    assert (swept(bench), halted(bench)) == (SweepReport(), None)


def test_rule_5_a_copy_by_a_suspended_round_whose_partition_was_moved_doubles_no_row(bench: Bench):
    rows_, place = sorted(in_partition(bench) + write(home(bench), 900, 910)), here(bench)
    swept(bench)
    (copy,) = place.glob("carried-*")
    whole = copy.read_bytes()
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    bench.clean()
    assert not copy.exists()
    place.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(whole)
    assert (swept(bench), in_partition(bench)) == (SweepReport(), rows_)


def test_no_late_file_is_copied_twice_after_the_database_was_restored_to_a_time_before_its_copy(bench: Bench):
    """A backup does not know the copy that readers see, and its source is at the former location still."""
    expected = sorted([*in_partition(bench), *write(home(bench), 900, 910)])
    assert (swept(bench).copied, in_partition(bench)) == (1, expected)
    bench.execute("DELETE FROM carry")
    bench.execute("DELETE FROM superseded_version WHERE path LIKE '%part-late%'")
    swept(bench)
    assert (in_partition(bench), swept(bench), halted(bench)) == (expected, SweepReport(), None)
    assert f"{PARTITION}/part-late.parquet" in {due.version.path for due in bench.store.awaiting_deletion(bench.table)}
    bench.clean()
    assert (in_partition(bench), swept(bench)) == (expected, SweepReport())

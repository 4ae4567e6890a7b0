# SPDX-License-Identifier: Apache-2.0
"""Rounds of the sweep that are killed or suspended while they replace the copy of a file that has grown (rule 5)."""

import errno
import os
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from late_writing import (
    PARTITION,
    Killed,
    after_its_hold,
    counted,
    data_files,
    halted,
    here,
    home,
    in_partition,
    killed_at,
    overwrite,
    swept,
    true_counts,
    wait_a_tick,
    write,
)
from renaming import lose_database
from test_hive_interrupted_rounds import killed_at as process_killed_at
from test_hive_unfinished_files import BY_RENAME, NAME, during, put_again, right_before_a_replacement
from toys.bench import Bench
from toys.files import rows, told

from executors.outcome import RunResult
from executors.relocation.partition_sweep import SweepReport
from executors.relocation.sweep import partitions_awaiting_sweep
from lake.plan import Step
from lake.relocation.decide import WRITER_GRACE
from lake.storage.local import LocalFileIO

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]

STEPS = ["replacement_ready", "names_exchanged", "copy_replaced"]


def copied_and_grown(bench: Bench) -> tuple[list[str], list[str]]:
    """A late file was copied, and then it grew. Returns the rows of the other files, and those of the grown file."""
    before = in_partition(bench)
    write(home(bench), 900, 905, NAME)
    assert swept(bench).copied == 1
    return before, put_again(home(bench) / NAME, 900, 910, BY_RENAME)


def left_behind(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir() if path.name.startswith("."))


@pytest.mark.parametrize("step", STEPS)
def test_rule_5_a_round_that_is_killed_while_it_replaces_a_copy_is_finished_by_the_next(bench: Bench, step: str):
    """The hidden file of the exchange stayed for ever, and so did the record of its directory."""
    before, grown = copied_and_grown(bench)
    process_killed_at(bench, step)
    after_its_hold(bench)
    swept(bench)
    assert (in_partition(bench), left_behind(here(bench)), halted(bench)) == (sorted([*before, *grown]), [], None)
    assert (counted(bench), swept(bench)) == (true_counts(bench), SweepReport())
    place = here(bench)
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    bench.clean()
    assert (in_partition(bench), place.exists()) == (sorted([*before, *grown]), False)
    assert (swept(bench), halted(bench)) == (SweepReport(), None)


@pytest.mark.crossed
@pytest.mark.parametrize("step", STEPS)
def test_rule_5_an_overwrite_after_a_round_was_killed_while_it_replaced_a_copy_keeps_only_its_own_rows(
    bench: Bench, step: str
):
    copied_and_grown(bench)
    process_killed_at(bench, step)
    wait_a_tick(home(bench))
    place = here(bench)
    for path in data_files(place):
        path.unlink()
    anew = write(place, 500, 510, "part-anew.parquet")
    after_its_hold(bench)
    for _ in range(3):
        swept(bench)
        assert (in_partition(bench), halted(bench)) == (sorted(anew), None)
    assert (left_behind(place), swept(bench)) == ([], SweepReport())


@pytest.mark.parametrize("step", STEPS)
def test_rule_2_a_spanning_overwrite_after_a_round_was_killed_while_it_replaced_a_copy_has_the_only_rows(
    bench: Bench, step: str
):
    copied_and_grown(bench)
    process_killed_at(bench, step)
    place = here(bench)
    wait_a_tick(home(bench))
    anew = overwrite(home(bench), 500, 510)
    after_its_hold(bench)
    for _ in range(3):
        swept(bench)
    assert (in_partition(bench), here(bench), halted(bench)) == (sorted(anew), home(bench), None)
    assert (left_behind(place), left_behind(home(bench))) == ([], [])


@pytest.mark.parametrize("step", STEPS)
def test_rule_5_a_file_that_grows_again_after_a_round_was_killed_while_it_replaced_the_copy_loses_no_row(
    bench: Bench, step: str
):
    before, grown = copied_and_grown(bench)
    process_killed_at(bench, step)
    more = put_again(home(bench) / NAME, 900, 920, BY_RENAME)
    after_its_hold(bench)
    for _ in range(2):
        swept(bench)
    if step == STEPS[0]:
        assert (in_partition(bench), halted(bench)) == (sorted([*before, *more]), None)
    else:
        assert in_partition(bench) == sorted([*before, *grown])
        assert "were both written again" in str(halted(bench))
    assert left_behind(here(bench)) == []


def killed_in_copy(*_: Any) -> None:
    raise Killed


@pytest.mark.parametrize("is_grown", [False, True], ids=["first copy", "grown copy"])
def test_rule_5_a_copy_that_was_cut_off_is_removed_by_the_next_round(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_grown: bool
):
    """On storage without second names, the part of the copy that was written stayed for ever."""

    def no_link(*_: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    def cut_off(source: str, target: Path) -> None:
        Path(target).write_bytes(Path(source).read_bytes()[:100])
        raise Killed

    monkeypatch.setattr(os, "link", no_link)
    before = in_partition(bench)
    late = write(home(bench), 900, 905, NAME)
    if is_grown:
        assert swept(bench).copied == 1
        late = put_again(home(bench) / NAME, 900, 910, BY_RENAME)
    with mock.patch.object(shutil, "copy2", cut_off), pytest.raises(Killed):
        swept(bench)
    assert len(left_behind(here(bench))) == 1
    after_its_hold(bench)
    assert swept(bench).copied == 1
    assert (in_partition(bench), left_behind(here(bench))) == (sorted([*before, *late]), [])
    assert (swept(bench), halted(bench)) == (SweepReport(), None)


def test_rule_5_a_copy_without_a_name_is_removed_although_the_database_that_recorded_it_is_lost(known: Bench):
    bench, before = known, in_partition(known)
    late = write(home(bench), 900, 910, NAME)
    with mock.patch.object(LocalFileIO, "rename", killed_in_copy), pytest.raises(Killed):
        swept(bench)
    assert len(left_behind(here(bench))) == 1
    lose_database(bench)
    for _ in range(3):
        bench.sweep()
    assert (in_partition(bench), left_behind(here(bench)), halted(bench)) == (sorted([*before, *late]), [], None)


def linked_and_grown(bench: Bench) -> tuple[list[str], Path]:
    """A commit has linked a late file, which then grew. Returns the rows of the other files, and the copy."""
    before = in_partition(bench)
    assert during(bench, Step.PREPARE, lambda: write(home(bench), 900, 905, NAME)) is RunResult.COMPLETED
    put_again(home(bench) / NAME, 900, 910, BY_RENAME)
    return before, here(bench) / NAME


def test_rule_2_a_file_that_a_writer_puts_over_a_copy_right_before_its_replacement_stays(unmoved: Bench):
    """It was taken for the former copy, and deleted."""
    bench = unmoved
    before, copy = linked_and_grown(bench)
    with right_before_a_replacement(lambda: put_again(copy, 700, 707, BY_RENAME)):
        swept(bench)
    for grace in (WRITER_GRACE, timedelta()):
        swept(bench, grace=grace)
        assert (in_partition(bench), left_behind(here(bench))) == (sorted([*before, *told(rows(700, 707))]), [])
    assert "are gone, while 1 were added" in str(halted(bench))


def test_rule_2_a_file_that_a_killed_round_took_for_the_former_copy_is_left_to_a_person(unmoved: Bench):
    bench = unmoved
    before, copy = linked_and_grown(bench)
    killed = mock.patch(
        "lake.formats.hive.relocation.late_files.failpoint", lambda name: killed_at(name, "names_exchanged")
    )
    with right_before_a_replacement(lambda: put_again(copy, 700, 707, BY_RENAME)), killed, pytest.raises(Killed):
        swept(bench)
    after_its_hold(bench)
    for _ in range(2):
        (reason,) = swept(bench).halt_reasons.values()
        (hidden,) = left_behind(here(bench))
        assert f"{hidden} has another size or time than the copy" in reason
        assert reason == halted(bench)
    (here(bench) / hidden).rename(copy)
    assert in_partition(bench) == sorted([*before, *told(rows(700, 707))])
    assert "are gone, while 1 were added" in str(swept(bench, grace=timedelta()).halt_reasons)


def test_rule_5_two_rounds_that_replace_a_copy_at_once_exchange_its_names_once(bench: Bench):
    """The second exchange undid the first one of a suspended round: the grown rows were lost."""
    before, grown = copied_and_grown(bench)
    replace, suspended = LocalFileIO.replace, list[Callable[[], None]]()

    def replaced(files: LocalFileIO, source: str, target: str) -> None:
        if not suspended:  # the first round, right before its exchange
            suspended.append(lambda: replace(files, source, target))
            after_its_hold(bench)
            swept(bench)
            if suspended:
                suspended.pop()()
        else:
            first = suspended.pop()
            try:
                first()
            except FileNotFoundError:
                suspended.append(first)
            replace(files, source, target)

    with mock.patch.object(LocalFileIO, "replace", replaced):
        swept(bench)
    for _ in range(2):
        swept(bench)
        assert (in_partition(bench), halted(bench)) == (sorted([*before, *grown]), None)
    assert (left_behind(here(bench)), swept(bench)) == ([], SweepReport())
    assert not partitions_awaiting_sweep(bench.table, format=bench.format, store=bench.store, partitions=[PARTITION])

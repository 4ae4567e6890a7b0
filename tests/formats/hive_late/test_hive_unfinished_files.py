# SPDX-License-Identifier: Apache-2.0
"""Files that writers fill under the name that readers see: ``LOAD DATA LOCAL``, ``hdfs put``, distcp ``-direct``.

They are no inputs and are not carried before they are whole, and a file that grew under its name is the same file.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pyarrow.parquet as pq
import pytest
from late_writing import (
    PARTITION,
    counted,
    data_files,
    halted,
    here,
    home,
    in_partition,
    resolved,
    rows_in,
    swept,
    true_counts,
    wait_a_tick,
    write,
)
from renaming import lose_database
from test_hive_late_appends import AtStep
from toys.bench import Bench
from toys.files import rows, told

from executors.outcome import RunResult
from executors.relocation.partition_sweep import SweepReport
from executors.relocation.sweep import partitions_awaiting_sweep
from lake.capabilities import with_identity
from lake.plan import Step
from lake.relocation.decide import WRITER_GRACE, LocationChoice
from lake.storage.local import LocalFileIO

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]

NAME = "load.parquet"
IN_PLACE, BY_RENAME = "in place", "by a rename"


def half(place: Path, low: int, high: int, name: str = NAME) -> tuple[Path, bytes]:
    """A file of which its writer has written one half so far, and the whole of it."""
    path = place / name
    write(place, low, high, name)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return path, whole


def put_again(path: Path, low: int, high: int, how: str) -> list[str]:
    """Write the file at a path again with these rows, in place or by a rename over it."""
    target = path if how == IN_PLACE else path.with_name(f".{path.name}.tmp")
    pq.write_table(rows(low, high), target)
    target.rename(path)
    return list(told(rows(low, high)))


def aged(path: Path, age: timedelta) -> None:
    then = time.time() - age.total_seconds()
    os.utime(path, (then, then))


def during(bench: Bench, step: Step, action: Callable[[], object]) -> RunResult:
    bench.request(partitions=[PARTITION])
    return bench.run(observer=AtStep(step, action)).result


@pytest.mark.parametrize("step", [Step.PREPARE, Step.VERIFY])
def test_a_file_that_is_being_written_stays_out_of_a_commit_and_is_read_once_it_is_whole(unmoved: Bench, step: Step):
    before, begun = in_partition(unmoved), list[tuple[Path, bytes]]()
    assert during(unmoved, step, lambda: begun.append(half(home(unmoved), 900, 910))) is RunResult.COMPLETED
    ((path, whole),) = begun
    assert (here(unmoved) != home(unmoved), in_partition(unmoved)) == (True, before)
    path.write_bytes(whole)
    assert swept(unmoved, grace=timedelta()).copied == 1
    assert in_partition(unmoved) == sorted([*before, *told(rows(900, 910))])
    assert (swept(unmoved, grace=timedelta()), halted(unmoved)) == (SweepReport(), None)
    assert counted(unmoved) == true_counts(unmoved)


def test_a_planned_file_of_which_only_a_half_is_there_is_quarantined_and_its_partition_is_not(unmoved: Bench):
    path, whole = half(home(unmoved), 900, 910)
    before = [row for file in data_files(home(unmoved)) if file != path for row in told(pq.read_table(file))]
    unmoved.request()
    assert unmoved.run().result is RunResult.COMPLETED, "of the other partition"
    assert unmoved.store.table_state(unmoved.table.name).quarantined.keys() == {f"{PARTITION}/{NAME}"}
    path.write_bytes(whole)
    unmoved.request(partitions=[PARTITION])
    assert unmoved.run().result is RunResult.COMPLETED
    assert in_partition(unmoved) == sorted([*before, *told(rows(900, 910))])


@pytest.mark.parametrize("how", [IN_PLACE, BY_RENAME])
def test_a_copied_file_that_grew_under_its_name_replaces_its_shorter_copy(unmoved: Bench, how: str):
    before = in_partition(unmoved)
    assert during(unmoved, Step.PREPARE, lambda: write(home(unmoved), 900, 905, NAME)) is RunResult.COMPLETED
    assert in_partition(unmoved) == sorted([*before, *told(rows(900, 905))])
    grown = put_again(home(unmoved) / NAME, 900, 910, how)
    for grace in (WRITER_GRACE, timedelta()):
        swept(unmoved, grace=grace)
        assert (in_partition(unmoved), halted(unmoved)) == (sorted([*before, *grown]), None)
    assert counted(unmoved) == true_counts(unmoved)
    assert swept(unmoved) == SweepReport()
    unmoved.request(partitions=[PARTITION])
    assert unmoved.run().result is RunResult.COMPLETED
    assert (in_partition(unmoved), swept(unmoved)) == (sorted([*before, *grown]), SweepReport())
    unmoved.clean()
    assert (in_partition(unmoved), data_files(home(unmoved))) == (sorted([*before, *grown]), [])


def test_a_file_whose_grown_copy_was_rewritten_is_no_reason_for_a_halt_where_the_database_is_lost(unmoved: Bench):
    bench, before = unmoved, in_partition(unmoved)
    bench.table = with_identity(bench.format, bench.table)
    bench.store.register_table(bench.table, "compact")
    assert during(bench, Step.PREPARE, lambda: write(home(bench), 900, 905, NAME)) is RunResult.COMPLETED
    grown = put_again(home(bench) / NAME, 900, 910, IN_PLACE)
    swept(bench, grace=timedelta())
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    expected = sorted([*before, *grown])
    lose_database(bench)
    for _ in range(3):
        bench.sweep()
        assert (in_partition(bench), halted(bench)) == (expected, None)
    expected = sorted([*expected, *write(home(bench), 910, 920, "part-late.parquet")])
    for _ in range(3):
        swept(bench, grace=timedelta())
        assert (in_partition(bench), halted(bench)) == (expected, None)
    bench.clean()
    assert (swept(bench), in_partition(bench), data_files(home(bench))) == (SweepReport(), expected, [])


@pytest.mark.parametrize("how", [IN_PLACE, BY_RENAME])
@pytest.mark.parametrize("comes_along", [False, True])
def test_a_file_that_grew_after_its_copy_replaces_the_shorter_copy(bench: Bench, how: str, comes_along: bool):
    before = in_partition(bench)
    write(home(bench), 900, 905, NAME)
    assert swept(bench).copied == 1
    if comes_along:
        bench.request(partitions=[PARTITION])
        planned = {path.name for path in data_files(here(bench))}
        assert len(planned) == 2
    for high in (910, 920):
        grown = put_again(home(bench) / NAME, 900, high, how)
        for grace in (WRITER_GRACE, timedelta()):
            swept(bench, grace=grace)
            assert (in_partition(bench), halted(bench)) == (sorted([*before, *grown]), None)
    assert (counted(bench), swept(bench)) == (true_counts(bench), SweepReport())


@contextmanager
def right_before_a_replacement(action: Callable[[], object]) -> Iterator[None]:
    """Another program acts after lakefold's checks, and right before lakefold first replaces a file."""
    replace, actions = LocalFileIO.replace, [action]

    def replaced(files: LocalFileIO, source: str, target: str) -> None:
        if actions:
            actions.pop()()
        replace(files, source, target)

    with mock.patch.object(LocalFileIO, "replace", replaced):
        yield
    assert not actions


@pytest.mark.parametrize("how", ["at once", "removes before it writes"])
@pytest.mark.parametrize("copied_by", ["a commit", "the sweep"])
def test_an_overwrite_right_before_a_grown_copy_is_replaced_leaves_only_its_own_rows(
    unmoved: Bench, copied_by: str, how: str
):
    """The overwrite had removed the copy, and its replacement brought the removed rows back."""
    bench, anew = unmoved, list[str]()
    if copied_by == "a commit":
        assert during(bench, Step.PREPARE, lambda: write(home(bench), 900, 905, NAME)) is RunResult.COMPLETED
    else:
        bench.request(partitions=[PARTITION])
        assert bench.run().result is RunResult.COMPLETED
        write(home(bench), 900, 905, NAME)
        assert swept(bench).copied == 1
    put_again(home(bench) / NAME, 900, 910, BY_RENAME)
    place = here(bench)
    wait_a_tick(home(bench))

    def written() -> None:
        anew.extend(write(place, 500, 510, "part-anew.parquet"))

    def removed() -> None:
        for path in data_files(place):
            path.unlink()
        if how == "at once":
            written()

    with right_before_a_replacement(removed):
        swept(bench)
    if not anew:
        written()
    for _ in range(3):
        swept(bench)
    assert (in_partition(bench), here(bench), halted(bench)) == (sorted(anew), place, None)
    bench.clean()
    assert (in_partition(bench), swept(bench)) == (sorted(anew), SweepReport())


@pytest.mark.parametrize("how", [IN_PLACE, BY_RENAME])
def test_a_file_that_a_rewrite_took_and_that_grew_under_its_name_takes_the_partition_back(bench: Bench, how: str):
    inputs = sorted(data_files(home(bench)))
    later = write(here(bench), 800, 810, "later.parquet")
    late = write(home(bench), 900, 910)
    assert swept(bench).copied == 1
    grown = put_again(inputs[0], 500, 560, how)
    others = [row for path in inputs[1:] for row in told(pq.read_table(path))]
    expected = sorted([*others, *grown, *late, *later])
    for grace in (WRITER_GRACE, timedelta()):
        swept(bench, grace=grace)
        assert (here(bench), in_partition(bench), halted(bench)) == (home(bench), expected, None)
    assert (counted(bench), swept(bench)) == (true_counts(bench), SweepReport())
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    assert (here(bench) != home(bench), in_partition(bench), swept(bench)) == (True, expected, SweepReport())


def test_a_file_that_two_rewrites_took_and_that_grew_waits_for_a_person(bench: Bench):
    taken = sorted(data_files(home(bench)))[0]
    write(here(bench), 900, 910)
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    before = in_partition(bench)
    put_again(taken, 500, 560, BY_RENAME)
    (reason,) = swept(bench).halt_reasons.values()

    assert f"{PARTITION}/{taken.name}" in reason
    assert "after a rewrite had read it" in reason
    assert in_partition(bench) == before
    resolved(bench, LocationChoice.CURRENT)
    assert (in_partition(bench), swept(bench)) == (before, SweepReport())


def test_an_unfinished_file_is_named_and_its_partition_is_still_processed(bench: Bench):
    before = in_partition(bench)
    path, whole = half(home(bench), 900, 910)
    named = f"{PARTITION}/{NAME}"
    assert partitions_awaiting_sweep(bench.table, format=bench.format, store=bench.store, partitions=[PARTITION])
    aged(path, WRITER_GRACE * 2)
    for _ in range(2):
        report = swept(bench, grace=timedelta())
        assert report == SweepReport()
        assert named in bench.store.table_state(bench.table.name).quarantined
    late = write(home(bench), 700, 710, "whole.parquet")
    assert swept(bench).copied == 1
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    assert in_partition(bench) == sorted([*before, *late])
    path.write_bytes(whole)
    assert swept(bench).copied == 1
    assert in_partition(bench) == sorted([*before, *late, *told(rows(900, 910))])
    assert named not in bench.store.table_state(bench.table.name).quarantined


def test_a_new_file_is_checked_again_before_its_copy_and_delays_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lake.formats.hive.files.incomplete.STABLE_AFTER", timedelta(seconds=30))
    before = in_partition(bench)
    late = write(home(bench), 900, 910, NAME)
    assert swept(bench) == SweepReport()
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    assert in_partition(bench) == before
    aged(home(bench) / NAME, timedelta(minutes=1))
    assert (swept(bench).copied, in_partition(bench)) == (1, sorted([*before, *late]))


def test_a_complete_file_stays_visible_while_a_commit_copies_it(unmoved: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lake.formats.hive.files.incomplete.STABLE_AFTER", timedelta(seconds=30))
    before = in_partition(unmoved)
    assert during(unmoved, Step.VERIFY, lambda: write(home(unmoved), 900, 905, NAME)) is RunResult.COMPLETED
    assert rows_in(here(unmoved)) == sorted([*before, *told(rows(900, 905))])

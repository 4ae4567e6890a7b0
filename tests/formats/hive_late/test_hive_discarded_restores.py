# SPDX-License-Identifier: Apache-2.0
"""Moves home that the sweep began and discarded, since their call was not answered, not made or refused."""

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from late_writing import (
    PARTITION,
    Killed,
    after_its_hold,
    alter_partitions,
    brought_home,
    halted,
    here,
    home,
    swept,
    write,
)
from renaming import CHANGES
from test_hive_record_pruning import age, forgotten
from toys.bench import Bench

from executors.outcome import RunResult
from executors.relocation.partition_sweep import SweepReport
from lake.errors import CommitUnknown, Transient
from lake.metastore import MetastoreClient, MetastorePartition

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]


def given_up(bench: Bench, why: str, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[MetastorePartition]]:
    """Begin a move home that is discarded; the calls that the metastore has not executed yet."""
    calls: list[Sequence[MetastorePartition]] = []

    def unanswered(_: MetastoreClient, database: str, table: str, partitions: Sequence[MetastorePartition]) -> None:
        calls.append(partitions)
        raise CommitUnknown("no answer for 30 s")

    def at(name: str) -> None:
        if name == "in_tell" and why == "killed":
            raise Killed
        if name == "in_tell" and why == "changed meanwhile":
            partition = bench.case.partitions(bench.table)[PARTITION]  # type: ignore[attr-defined]
            alter_partitions(
                bench, [partition.with_changes(partition.storage, {**partition.parameters, "numRows": "7"})]
            )

    bench.clean()
    with monkeypatch.context() as patch:
        patch.setattr("lake.formats.hive.relocation.late_files.failpoint", at)
        if why == "unanswered":
            patch.setattr(MetastoreClient, "alter_partitions", unanswered)
        with suppress(Killed, CommitUnknown):
            brought_home(bench)
    after_its_hold(bench)
    for _ in range(2):
        bench.sweep()
    assert (here(bench) == home(bench), halted(bench)) == (False, None)
    return calls


def test_rule_6_a_restore_that_the_metastore_makes_after_it_was_discarded_is_undone(
    known: Bench, monkeypatch: pytest.MonkeyPatch
):
    """Its copies are removed by then: readers of the partition's own directory would find nothing."""
    bench, rows, before = known, sorted(known.rows()), here(known)
    calls = given_up(bench, "unanswered", monkeypatch)
    for call in calls:
        alter_partitions(bench, call)
    assert here(bench) == home(bench)
    for _ in range(2):
        bench.sweep()
        bench.clean()
    assert (here(bench), sorted(bench.rows()), halted(bench)) == (before, rows, None)


@pytest.mark.parametrize("why", ["killed", "changed meanwhile"])
@pytest.mark.parametrize("change", ["renamed", "database lost"])
def test_rule_6_a_discarded_restore_does_not_count_as_made_after_the_change(
    known: Bench, why: str, change: str, monkeypatch: pytest.MonkeyPatch
):
    bench, rows, before = known, sorted(known.rows()), here(known)
    given_up(bench, why, monkeypatch)
    CHANGES[change](bench)
    for _ in range(2):
        bench.sweep()
    bench.execute("UPDATE place_move SET unsettled_since_ms = 1 WHERE unsettled_since_ms IS NOT NULL")
    for _ in range(2):
        bench.sweep()
        bench.clean()
    assert (here(bench), sorted(bench.rows()), halted(bench)) == (before, rows, None)
    assert brought_home(bench).relocated_back >= 1
    assert (here(bench), sorted(bench.rows()), halted(bench)) == (home(bench), rows, None)


def discarded(bench: Bench) -> set[str]:
    """The tokens of the discarded moves that the database knows."""
    records = bench.store.relocated_partitions(bench.table)
    return {str(token) for one in records for _, token in one.earlier_locations if str(token).startswith("back-")}


def test_a_discarded_restore_is_pruned_with_the_other_relocations(known: Bench, monkeypatch: pytest.MonkeyPatch):
    """They stayed for ever, one more at each try."""
    bench, rows = known, sorted(known.rows())
    for _ in range(2):
        given_up(bench, "killed", monkeypatch)
    assert (len(discarded(bench)), forgotten(bench)) == (2, 0)
    age(bench, timedelta(days=29))
    assert (len(discarded(bench)), forgotten(bench)) == (2, 0)
    age(bench, timedelta(days=2))
    assert (forgotten(bench), discarded(bench), forgotten(bench)) == (2, set(), 0)
    assert (swept(bench), sorted(bench.rows()), halted(bench)) == (SweepReport(), rows, None)
    assert brought_home(bench).relocated_back == 2
    assert (here(bench), sorted(bench.rows()), swept(bench)) == (home(bench), rows, SweepReport())


def test_a_discarded_restore_is_not_pruned_while_its_partition_names_it(known: Bench, monkeypatch: pytest.MonkeyPatch):
    bench, rows, before = known, sorted(known.rows()), here(known)
    calls = given_up(bench, "unanswered", monkeypatch)
    for call in calls:
        alter_partitions(bench, call)
    age(bench)
    assert (len(discarded(bench)), forgotten(bench)) == (len(calls), 0)
    bench.sweep()
    assert (here(bench), sorted(bench.rows()), halted(bench)) == (before, rows, None)
    assert (forgotten(bench), discarded(bench), swept(bench)) == (len(calls), set(), SweepReport())


@pytest.mark.parametrize("ends", ["disk full", "killed"])
def test_a_record_that_was_not_written_whole_halts_nothing(known: Bench, ends: str, monkeypatch: pytest.MonkeyPatch):
    bench, rows, real, torn = known, sorted(known.rows()), os.fsync, list[str]()
    bench.clean()

    def sync(file: int) -> None:
        path = os.readlink(f"/proc/self/fd/{file}")
        if "/_commits/.back-" not in path:
            return real(file)
        torn.append(path)
        os.ftruncate(file, 10)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path) if ends == "disk full" else Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", sync)
        with suppress(Killed, OSError, Transient):
            brought_home(bench)
    assert [Path(path).exists() for path in torn] == [ends == "killed"] * len(torn) != []
    after_its_hold(bench)
    late = write(here(bench), 700, 710, "part-x.parquet")
    bench.sweep()
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    assert (sorted(bench.rows()), halted(bench)) == (sorted([*rows, *late]), None)

# SPDX-License-Identifier: Apache-2.0
"""Answers of the metastore that a rename tears: their table is found by one name, and their partitions by another."""

from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest
from hive_case import table_name
from late_writing import (
    PARTITION,
    Killed,
    added_again,
    after_its_hold,
    alter_partitions,
    data_files,
    dropped,
    halted,
    here,
    home,
    in_partition,
    killed_before_it_records,
    write,
)
from renaming import as_managed, renamed, renamed_with_its_directory
from toys.bench import Bench

from executors.outcome import RunResult
from lake.errors import TableGone, Transient
from lake.metastore import MetastoreClient, MetastorePartition

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]


@pytest.mark.parametrize("caller", ["plan", "sweep"])
def test_rule_7_an_answer_that_a_rename_tears_halts_nothing(known: Bench, caller: str, monkeypatch: pytest.MonkeyPatch):
    """Chaos found it: a metastore finds the table by its old name, and then reads its partitions as renamed."""
    bench = known
    as_managed(bench)
    late = write(here(bench) if caller == "plan" else home(bench), 900, 910)
    rows, ended = sorted({*bench.rows(), *late}), False
    real_alter, real_partitions = MetastoreClient.alter_partitions, MetastoreClient.partitions

    def alter(self: MetastoreClient, database: str, table: str, partitions: Sequence[MetastorePartition]) -> None:
        nonlocal ended
        real_alter(self, database, table, partitions)
        ended = True

    def torn(
        self: MetastoreClient, database: str, table: str, names: Sequence[str]
    ) -> Iterator[tuple[str, MetastorePartition]]:
        if ended:
            monkeypatch.undo()
            renamed_with_its_directory(bench)
            table = table_name(bench.table)
        return real_partitions(self, database, table, names)

    monkeypatch.setattr(MetastoreClient, "alter_partitions", alter)
    monkeypatch.setattr(MetastoreClient, "partitions", torn)
    if caller == "plan":
        bench.request(partitions=[PARTITION])
        bench.run()
    else:
        with suppress(TableGone):
            bench.sweep()
    assert bench.table.name.endswith("_managed"), "the answer was torn"
    bench.expire()
    for _ in range(2):
        bench.sweep()
    assert (sorted(bench.rows()), halted(bench)) == (rows, None)


@pytest.mark.parametrize("reading", range(3))
@pytest.mark.parametrize("answer", ["an error", "no partition"])
def test_rule_7_a_table_without_partitions_by_its_name_before_a_rename_has_lost_none(
    known: Bench, answer: str, reading: int, monkeypatch: pytest.MonkeyPatch
):
    """A recorded copy of a late file is not done because its partition seems to be dropped.

    The metastore of the tests says that the table is not there, others may find no partitions.
    """
    bench, before = known, here(known)
    bench.clean()
    write(before, 700, 710, "part-x.parquet")
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    rows = sorted({*bench.rows(), *write(before, 800, 810)})

    def at(name: str) -> None:
        if name == "carry_recorded":
            raise Killed

    monkeypatch.setattr("executors.relocation.partition_sweep.failpoint", at)
    with suppress(Killed):
        bench.sweep()
    monkeypatch.undo()
    after_its_hold(bench)
    real, name, before_it = MetastoreClient.partitions, table_name(bench.table), iter(range(reading))

    def torn(
        self: MetastoreClient, database: str, table: str, names: Sequence[str]
    ) -> Iterator[tuple[str, MetastorePartition]]:
        if next(before_it, None) is not None:
            return real(self, database, table, names)
        monkeypatch.undo()
        assert table == name
        renamed(bench)
        return real(self, database, table, names if answer == "an error" else [])

    monkeypatch.setattr(MetastoreClient, "partitions", torn)
    with suppress(TableGone, Transient):
        bench.sweep()
    assert table_name(bench.table) != name, "the answer was torn"
    for _ in range(2):
        bench.sweep()
    assert (sorted(bench.rows()), halted(bench)) == (rows, None)


@pytest.mark.parametrize("earlier", ["dropped", "undone"])
def test_rule_5_copies_that_were_made_right_before_a_rename_stay_whatever_the_partition_had_been_through(
    unmoved: Bench, monkeypatch: pytest.MonkeyPatch, earlier: str
):
    """Chaos found it: readers had seen the rows, and no sweep copied them again.

    Under the new name an earlier commit counted as the last one, and the copies as those of a dropped partition.
    """
    bench = unmoved
    before = bench.case.partitions(bench.table)[PARTITION]  # type: ignore[attr-defined]
    plan = killed_before_it_records(bench, partitions=[PARTITION])
    if earlier == "undone":
        alter_partitions(bench, [before])
    bench.rescue()
    if earlier == "undone":
        bench.store.request_cancel(plan.plan_id, actor="ada", reason="no need")
    else:
        dropped(bench)
        added_again(bench)
        bench.sweep()
    for low, place in ((500, home), (510, here)):
        for part in range(2):
            write(place(bench), low + 5 * part, low + 5 + 5 * part, f"part-{low}-{part}.parquet")
        bench.request(partitions=[PARTITION])
        assert bench.run().result is RunResult.COMPLETED
    rows = sorted([*in_partition(bench), *write(home(bench), 900, 910)])

    def renamed_at(name: str) -> None:
        if name == "carry_copied":
            monkeypatch.undo()
            renamed(bench)

    monkeypatch.setattr("executors.relocation.partition_sweep.failpoint", renamed_at)
    with suppress(TableGone, Transient):
        bench.sweep()
    assert (in_partition(bench), bench.table.name.endswith("_renamed")) == (rows, True)
    place, files = here(bench), sorted(data_files(here(bench)))
    for _ in range(3):
        bench.sweep()
        assert (in_partition(bench), here(bench), halted(bench)) == (rows, place, None)
    assert sorted(data_files(place)) == files
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    bench.sweep()
    assert (in_partition(bench), halted(bench)) == (rows, None)

# SPDX-License-Identifier: Apache-2.0
"""Relocations that a program undid, or whose partition was dropped, in a database that lacks them."""

from pathlib import Path

import pytest
from late_writing import (
    PARTITION,
    added_again,
    alter_partitions,
    data_files,
    dropped,
    halted,
    here,
    home,
    in_partition,
    killed_before_it_records,
    swept,
    write,
)
from renaming import CHANGES
from toys.bench import Bench

from executors.outcome import RunResult
from executors.relocation.partition_sweep import SweepReport

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]


def compacted(bench: Bench) -> Path:
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    return here(bench)


def relocated_again(bench: Bench, low: int) -> list[str]:
    """Plans commit twice after files were written to the directory of the partition's name. Returns its rows."""
    assert here(bench) == home(bench)
    for part in range(2):
        write(home(bench), low + 10 * part, low + 10 + 10 * part, f"part-{low}-{part}.parquet")
    write(compacted(bench), low + 20, low + 30, f"part-{low}-2.parquet")
    compacted(bench)
    return in_partition(bench)


def has_late_rows(bench: Bench, rows: list[str], *places: Path) -> None:
    place = here(bench)
    for _ in range(2):
        bench.sweep()
    assert (halted(bench), here(bench), in_partition(bench)) == (None, place, rows)
    late = [row for at, there in enumerate(places) for row in write(there, 900 + 10 * at, 910 + 10 * at)]
    for _ in range(3):
        bench.sweep()
    assert (halted(bench), in_partition(bench)) == (None, sorted([*rows, *late]))
    bench.clean()
    assert (halted(bench), in_partition(bench), swept(bench)) == (None, sorted([*rows, *late]), SweepReport())


@pytest.mark.parametrize("change", ["nothing", *CHANGES])
def test_rule_2_a_dropped_partition_s_commit_was_not_undone_by_the_next_partition_of_its_name(
    known: Bench, change: str
):
    """Chaos found it: after a rename of the table, the partition was halted for good."""
    bench, first = known, here(known)
    dropped(bench)
    added_again(bench)
    bench.sweep()
    rows = relocated_again(bench, 500)
    write(first, 980, 990)
    files = data_files(first)
    if change != "nothing":
        CHANGES[change](bench)
    has_late_rows(bench, rows, home(bench))
    assert data_files(first) == files, "what the dropped partition had is its owner's"


@pytest.mark.parametrize("change", CHANGES)
def test_rule_11_an_undone_commit_that_only_the_table_shows_is_recorded_before_the_commits_that_followed(
    unmoved: Bench, change: str
):
    """It was recorded after them if they were recorded under another name, and the partition was halted for good."""
    bench = unmoved
    before = bench.case.partitions(bench.table)[PARTITION]  # type: ignore[attr-defined]
    plan = killed_before_it_records(bench, partitions=[PARTITION])
    first = here(bench)
    alter_partitions(bench, [before])
    bench.rescue()
    bench.store.request_cancel(plan.plan_id, actor="ada", reason="no need")
    rows = relocated_again(bench, 500)
    CHANGES[change](bench)
    has_late_rows(bench, rows, home(bench), first)

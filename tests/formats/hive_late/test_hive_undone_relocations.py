# SPDX-License-Identifier: Apache-2.0
"""Relocations that a program undid, or whose partition was dropped, in a database that lacks them."""

from pathlib import Path
from unittest.mock import patch

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
from lake.formats.hive.commit import commit_record
from lake.plan import Plan
from lake.storage.locations import DATA_DIR

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


def undone(bench: Bench) -> Plan:
    """A plan's commit was made and marked, its executor died, and a program undid the commit by a change of its own."""
    before = bench.case.partitions(bench.table)  # type: ignore[attr-defined]
    plan = killed_before_it_records(bench)
    marks = Path(bench.table.location) / DATA_DIR / commit_record.RECORD_ARCHIVE_DIR
    assert [path.name for path in marks.glob("*.made")], "the executor had checked its call"
    changed = {**before[PARTITION].parameters, "owner.says": "keep"}
    alter_partitions(bench, [before["dt=1"], before[PARTITION].with_changes(before[PARTITION].storage, changed)])
    return plan


def ended(bench: Bench, plan: Plan) -> None:
    """A process that took the plan over found no commit, and a person cancelled the plan."""
    bench.rescue()
    assert bench.state(plan) == "requested"
    bench.store.request_cancel(plan.plan_id, actor="ada", reason="no need")


def added_anew(bench: Bench, change: str = "nothing") -> None:
    """The owner drops the partition and adds it with its own directory; the sweep and the cleaner look at it."""
    dropped(bench)
    added_again(bench)
    if change != "nothing":
        CHANGES[change](bench)
    for _ in range(2):
        bench.sweep()
        bench.clean()
    assert (here(bench), halted(bench)) == (home(bench), None)


@pytest.mark.parametrize("change", ["nothing", *CHANGES])
@pytest.mark.parametrize("late", [False, True])
def test_rule_11_a_marked_commit_that_was_undone_does_not_count_once_its_partition_is_added_again(
    unmoved: Bench, change: str, late: bool
):
    """The mark made it count, and the files that readers read were moved aside as replaced ones.

    A writer that has read the location of the commit also shows that its call was made.
    """
    bench, rows = unmoved, in_partition(unmoved)
    plan = undone(bench)
    ended(bench, plan)
    bench.sweep()
    if late:
        (version,) = (Path(bench.table.location) / DATA_DIR).glob(f"{plan.plan_id}-*")
        write(version / PARTITION, 900, 910)
    added_anew(bench, change)
    assert in_partition(bench) == rows


def test_rule_11_a_mark_that_is_set_after_its_commit_was_found_undone_does_not_count(unmoved: Bench):
    """The executor was suspended right before it marked its commit."""
    bench, rows = unmoved, in_partition(unmoved)
    plan = undone(bench)
    (mark,) = (Path(bench.table.location) / DATA_DIR / commit_record.RECORD_ARCHIVE_DIR).glob("*.made")
    mark.unlink()
    ended(bench, plan)
    commit_record.mark_committed(bench.table, mark.stem)
    added_anew(bench)
    assert in_partition(bench) == rows


def test_rule_11_a_plan_does_not_end_before_its_undone_commit_is_marked(unmoved: Bench):
    bench, rows = unmoved, in_partition(unmoved)
    plan = undone(bench)
    with patch("lake.formats.hive.commit.commit_lookup.mark_undone", side_effect=OSError("no space left")):
        bench.rescue()
        assert bench.state(plan) == "inflight"
    bench.expire()
    ended(bench, plan)
    added_anew(bench)
    assert in_partition(bench) == rows


def test_rule_11_an_undone_commit_counts_again_once_its_entry_is_written_again(unmoved: Bench):
    """A look-up that finds it removes the mark, so the files that it replaced do not return with its partition."""
    bench = unmoved
    before = bench.case.partitions(bench.table)  # type: ignore[attr-defined]
    plan = killed_before_it_records(bench)
    ours = bench.case.partitions(bench.table)  # type: ignore[attr-defined]
    alter_partitions(bench, list(before.values()))
    ended(bench, plan)
    alter_partitions(bench, list(ours.values()))
    rows = in_partition(bench)
    bench.sweep()
    assert (bench.state(plan), in_partition(bench)) == ("completed", rows)
    added_anew(bench, "database lost")
    assert in_partition(bench) == [], "readers did not read them when it was dropped"


@pytest.mark.parametrize("change", CHANGES)
def test_rule_11_a_commit_that_is_in_force_again_in_one_partition_stays_undone_in_another(unmoved: Bench, change: str):
    """The next commit archives its record, and the marks of the other partition stay."""
    bench, rows = unmoved, in_partition(unmoved)
    plan = undone(bench)
    ended(bench, plan)
    (version,) = (Path(bench.table.location) / DATA_DIR).glob(f"{plan.plan_id}-*")
    added_anew(bench)
    write(version / "dt=1", 900, 910)
    bench.sweep()
    assert (bench.state(plan), bench.case.places(bench.table)["dt=1"]) == ("completed", version / "dt=1")  # type: ignore[attr-defined]
    write(version / "dt=1", 910, 920, "part-more.parquet")
    bench.request(partitions=["dt=1"])
    assert bench.run().result is RunResult.COMPLETED
    every = bench.rows()
    CHANGES[change](bench)
    for _ in range(2):
        bench.sweep()
        bench.clean()
    assert (here(bench), in_partition(bench), bench.rows(), halted(bench)) == (home(bench), rows, every, None)

# SPDX-License-Identifier: Apache-2.0
"""What judges a run of chaos on Hive tables: each fault comes, and a halt that nothing was done for is a failure."""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chaos import clocks
from hive_chaos.faults import LOCKED_SECONDS, RECOVERY_SECONDS, Deck, Fault, Spans
from hive_chaos.halts import SPLIT_PARTITION, Halts
from hive_chaos.processes import Owner, content_of, variables
from hive_race.ledger import BOUND, Judge, Read, Write, unmet_at_a_drop
from hive_race.readers import rows_at
from hive_race.writer import Notes
from support import needs_server

ALL = "its rows differ"


@pytest.fixture
def owner(tmp_path: Path) -> SimpleNamespace:
    return SimpleNamespace(home=tmp_path, table="chaos.t1", acts=[])


@pytest.fixture
def wrong() -> list[str]:
    return []


@pytest.fixture
def halts(owner: SimpleNamespace, wrong: list[str]) -> Halts:
    return Halts(cast("Owner", owner), "", "parquet", random.Random(), wrong.append, Spans().is_due)


class Commands:
    """Records the commands of a run instead of calling them."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []

    def run(self, *words: str, expect: None) -> None:
        self.calls.append(words)


@pytest.fixture
def commands() -> Any:
    return Commands()


def halted(table: str, *partitions: str, all_of_it: bool = False, reason: str = "both overwritten") -> dict[str, Any]:
    """What ``status`` says of a table."""
    return {
        "attention": [
            {
                "table": table,
                "halted_at": "then" if all_of_it else None,
                "halted_reason": ALL if all_of_it else None,
                "halted_partitions": [{"partition": one, "halted_reason": reason} for one in partitions],
            }
        ]
    }


def split(halts: Halts, tmp_path: Path) -> None:
    """Both overwrites of the partition, each in a directory of its own."""
    for name in ("here", "former"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part-0.parquet").write_bytes(content_of("parquet", 1))
    halts._overwrite_both(tmp_path / "here", tmp_path / "former")


def test_each_fault_occurs_before_any_other_one_occurs_a_third_time():
    deck = Deck(random.Random(7), without=frozenset({Fault.AWAY}))
    drawn = Counter(deck.draw() for _ in range(len(Fault) - 1 + 2))
    assert (drawn.keys(), max(drawn.values())) == (set(Fault) - {Fault.AWAY}, 2)


def test_a_halt_without_a_cause_is_reported_once(halts: Halts, wrong: list[str], commands: Any):
    for _ in range(2):
        halts.judge(halted("chaos.t1", "dt=p0", SPLIT_PARTITION, all_of_it=True), commands)
    assert [text.partition(": ")[2] for text in wrong] == [
        f"chaos.t1, all of it: {ALL}",
        "chaos.t1, dt=p0: both overwritten",
        f"chaos.t1, {SPLIT_PARTITION}: both overwritten",
    ]


def test_only_the_partition_that_was_split_may_be_halted_and_under_former_names_of_its_table_for_good(
    halts: Halts, owner: SimpleNamespace, wrong: list[str], tmp_path: Path, commands: Any
):
    split(halts, tmp_path)
    halts.judge(halted("chaos.t1", SPLIT_PARTITION), commands)
    owner.table = "chaos.t2"
    halts._is_split = False
    halts.judge(halted("chaos.t1", SPLIT_PARTITION), commands)
    assert wrong == []
    halts.judge(halted("chaos.t2", SPLIT_PARTITION), commands)
    assert len(wrong) == 1


GIVEN_UP = "files were written to {} before the compaction that followed the move of partition dt=p1 by its owner: why?"
RESOLVED = "tables", "resolve", "chaos.t1", "--partition", "dt=p1", "--keep", "current"


@pytest.fixture
def given_up(owner: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A halt for the files of write 7 in a directory of the table, which ended at 1000."""
    monkeypatch.setattr("hive_chaos.halts.directory_of", lambda uri, table: owner.home)
    (owner.home / "left").mkdir()
    (owner.home / "left" / "part-0.parquet").write_bytes(content_of("parquet", 7))
    notes = Notes(owner.home / "writes")
    for number, ended in ((7, 1000.0), (8, 5000.0)):
        low = number * 1000
        notes.add(number=number, overwrites=False, began=ended - 1, partitions={"p1": (low, low + 12)})
        notes.add(number=number, ended=ended)
    return halted(owner.table, "dt=p1", reason=GIVEN_UP.format("left"))


def test_a_halt_after_an_owners_move_is_ended_if_the_database_was_lost(
    halts: Halts, wrong: list[str], commands: Any, given_up: dict[str, Any]
):
    halts.judge(given_up, commands)
    assert (len(wrong), commands.calls) == (1, [])
    halts.forget()
    halts.judge(given_up, commands)
    assert (len(wrong), commands.calls) == (1, [RESOLVED])


@pytest.mark.parametrize(
    ("acts", "is_explained"),
    [
        ([("away", "p1", 1001.0)], True),
        ([("away", "p1", 1000.0 + 2 * BOUND + 1)], False),
        ([("away", "p1", 999.0)], False),
        ([("away", "p2", 1001.0)], False),
        ([("drop", "p1", 1001.0)], False),
        ([("away", "p1", 1000.0 + 2 * BOUND + 1), ("away", "p1", 5001.0)], False),
    ],
    ids=["not due", "due", "moved before", "another partition", "dropped", "another file"],
)
def test_a_halt_after_an_owners_move_is_ended_if_a_file_there_was_not_due_at_that_time(
    halts: Halts,
    owner: SimpleNamespace,
    wrong: list[str],
    commands: Any,
    given_up: dict[str, Any],
    acts: list[tuple[str, str, float]],
    is_explained: bool,
):
    owner.acts += [{"act": act, "partition": partition, "at": at} for act, partition, at in acts]
    halts.judge(given_up, commands)
    assert (len(wrong), commands.calls) == ((0, [RESOLVED]) if is_explained else (1, []))
    halts.judge(halted(owner.table, "dt=p1", reason="both overwritten"), commands)
    assert wrong[-1].endswith("both overwritten")


MET = "another program changed chaos.t1 in the metastore during a commit, and one of the two may have undone the other"


@pytest.mark.parametrize(
    ("act", "partition", "seconds_ago", "is_explained"),
    [
        ("away", "p1", 1, True),
        ("back", "p1", 1, True),
        ("away", "p1", 61, False),
        ("away", "p2", 1, False),
        ("drop", "p1", 1, False),
    ],
    ids=["moved", "moved back", "long ago", "another partition", "dropped"],
)
def test_a_halt_for_a_lost_update_is_ended_if_the_owner_moved_the_partition_at_that_time(
    halts: Halts,
    owner: SimpleNamespace,
    wrong: list[str],
    commands: Any,
    act: str,
    partition: str,
    seconds_ago: float,
    is_explained: bool,
):
    owner.acts.append({"act": act, "partition": partition, "at": time.time() - seconds_ago})
    for _ in range(2):
        halts.judge(halted("chaos.t1", "dt=p1", reason=MET), commands)
    assert (len(wrong), commands.calls) == ((0, [("resume", "chaos.t1")] * 2) if is_explained else (1, []))


def test_a_halt_for_a_lost_update_is_not_ended_during_a_halt_on_purpose(
    halts: Halts, owner: SimpleNamespace, wrong: list[str], tmp_path: Path, commands: Any
):
    owner.acts.append({"act": "away", "partition": "p1", "at": time.time()})
    split(halts, tmp_path)
    halts.judge(halted("chaos.t1", "dt=p1", reason=MET), commands)
    assert (wrong, commands.calls) == ([], [])
    halts._is_split = False
    halts.judge(halted("chaos.t1", "dt=p1", reason=MET), commands)
    assert (wrong, commands.calls) == ([], [("resume", "chaos.t1")])


def test_the_overwrite_that_counts_is_the_last_one_of_the_ledger(halts: Halts, tmp_path: Path):
    split(halts, tmp_path)
    (counts,) = (tmp_path / ("here" if halts._take == "current" else "former")).glob("*.parquet")
    assert counts.name == f"part-{halts._number}.parquet"


def test_rows_are_due_once_there_was_no_fault_for_twice_the_bound():
    spans, ended = Spans(), 1000.0
    spans.add(ended + 1, ended + 2)
    write = Write(number=1, partition="p", overwrites=False, low=0, high=1, began=ended - 1, ended=ended)
    calm_from = ended + 2 + RECOVERY_SECONDS

    def is_due(at: float) -> bool:
        return spans.is_due(write, Read(partition="p", place=None, began=at, ended=at, rows={}))

    assert [is_due(calm_from + 2 * BOUND - 1), is_due(calm_from + 2 * BOUND + 1)] == [False, True]


def test_rows_are_due_later_by_the_time_that_the_sweep_needs_for_each_rename():
    spans, ended = Spans(), 1000.0
    write = Write(number=1, partition="p", overwrites=False, low=0, high=1, began=ended - 1, ended=ended)
    spans.renames = [ended - BOUND - 1, ended + 1, ended + BOUND + 2]

    def is_due(at: float) -> bool:
        return spans.is_due(write, Read(partition="p", place=None, began=at, ended=at, rows={}))

    assert [is_due(ended + 4 * BOUND - 1), is_due(ended + 4 * BOUND + 1)] == [False, True]


def test_rows_are_not_due_while_a_fault_lasts():
    spans, ended = Spans(), 1000.0
    write = Write(number=1, partition="p", overwrites=False, low=0, high=1, began=ended - 1, ended=ended)
    read = Read(partition="p", place=None, began=ended + 2 * BOUND + 1, ended=ended + 2 * BOUND + 1, rows={})
    assert spans.is_due(write, read)
    spans.begin(ended + 5)
    assert not spans.is_due(write, read)
    spans.add(ended + 5, ended + 6)
    assert not spans.is_due(write, read)


def test_rows_that_no_sweep_need_have_met_when_their_partition_was_dropped_may_be_read_again():
    first = Write(number=1, partition="p", overwrites=False, low=0, high=1, began=0.0, ended=1.0)
    late = replace(first, number=2, began=98.0, ended=99.0)
    drop = replace(first, number=3, overwrites=True, drops=True, began=100.0, ended=101.0)
    assert unmet_at_a_drop([first, late, drop], Spans().is_due) == {2}
    assert unmet_at_a_drop([first, late], Spans().is_due) == set()
    reads = [
        Read(partition="p", place=None, began=900.0, ended=900.0, rows=Counter([(0, 3), (0, one)])) for one in (1, 2)
    ]
    found = [Judge(is_due=Spans().is_due).look(read, [first, late, drop]) for read in reads]
    assert (len(found[0]), found[1]) == (1, [])


def test_rows_of_a_partition_that_a_killed_sweep_had_locked_are_due_after_the_lock_has_expired():
    spans, ended = Spans(), 1000.0
    spans.add_lock("p", "sweep", ended)
    write = Write(number=1, partition="p", overwrites=False, low=0, high=1, began=ended - 1, ended=ended)
    others = replace(write, partition="q")

    def is_due(write: Write, at: float) -> bool:
        return spans.is_due(write, Read(partition=write.partition, place=None, began=at, ended=at, rows={}))

    soon, later = ended + 2 * BOUND + 1, ended + LOCKED_SECONDS["sweep"] + 2 * BOUND + 1
    assert [is_due(write, soon), is_due(write, later), is_due(others, soon)] == [False, True, True]


def test_late_rows_are_due_once_no_file_has_been_loaded_for_long_enough():
    spans, ended = Spans(), 1000.0
    write = Write(number=1, partition="p", overwrites=False, low=0, high=1, began=ended - 1, ended=ended)
    others = replace(write, partition="q")
    spans.begin_load("p", ended + 5)

    def is_due(write: Write, at: float) -> bool:
        return spans.is_due(write, Read(partition=write.partition, place=None, began=at, ended=at, rows={}))

    soon = ended + 2 * BOUND + 1
    assert [is_due(write, soon), is_due(others, soon), is_due(write, soon + 1000)] == [False, True, False]
    spans.end_load("p", ended + 15)
    assert [is_due(write, soon + 9), is_due(write, soon + 10)] == [False, True]


def test_a_process_with_a_wrong_clock_sleeps_as_long_as_any_other():
    if clocks.library() is None:
        needs_server(clocks.INSTALL)
    script = "import time; began = time.monotonic(); time.sleep(0.05); print(time.monotonic() - began, time.time())"
    environment = {**os.environ, **variables(clocks.Clock(seconds=-32_400))}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    slept, now = map(float, done.stdout.split())
    assert 0.04 < slept < 30
    assert abs(time.time() - 32_400 - now) < 60


def test_a_row_with_another_value_than_its_writers_is_of_no_write(tmp_path: Path):
    (tmp_path / "good.parquet").write_bytes(content_of("parquet", 1, rows=1))
    pq.write_table(pa.table({"id": [7], "write": [1], "value": ["v8"]}), tmp_path / "changed.parquet")
    assert rows_at(tmp_path) == {(1000, 1): 1, (7, -1): 1}

# SPDX-License-Identifier: Apache-2.0
"""Who judges the reads of ``test_hive_races.py`` finds each kind of defect, and nothing in what is right."""

from collections import Counter
from pathlib import Path

import pytest
from hive_race.ledger import BOUND, Judge, Read, Write

OLD, NEW = Path("old"), Path("new")
FIRST = Write(number=1, partition="p", overwrites=False, low=0, high=3, began=0.0, ended=1.0)
SECOND = Write(number=2, partition="p", overwrites=False, low=10, high=13, began=2.0, ended=3.0)
ANEW = Write(number=3, partition="p", overwrites=True, low=20, high=23, began=100.0, ended=101.0)


def read(at: float, *writes: Write, place: Path = NEW, twice: Write | None = None) -> Read:
    rows = Counter(row for write in (*writes, *([twice] if twice else [])) for row in write.rows)
    return Read(partition="p", place=place, began=at, ended=at + 0.1, rows=rows)


def judged(*reads: Read, is_fresh: bool = True) -> list[str]:
    judge = Judge(is_fresh=is_fresh)
    return [finding.split(", such as")[0] for one in reads for finding in judge.look(one, [FIRST, SECOND, ANEW])]


def test_reads_that_follow_from_the_writes_are_right():
    late = read(4, FIRST), read(12, FIRST, SECOND)
    overwritten = read(102, FIRST, SECOND), read(104, ANEW), read(190, ANEW)
    assert judged(*late, *overwritten) == []
    assert judged(read(2.5, FIRST, SECOND, place=OLD), read(4, FIRST), read(9, FIRST, SECOND)) == [], (
        "late, seen before"
    )
    assert judged(read(4, FIRST), read(100.5), read(101.5, ANEW)) == [], "an overwrite in place begins by deleting"
    left = read(99, FIRST, SECOND, place=OLD), read(100.5, place=OLD), read(101, FIRST, SECOND), read(104, ANEW)
    assert judged(*left) == [], "an overwrite deletes in the place that the partition leaves"


@pytest.mark.parametrize(
    ("reads", "finding"),
    [
        ([read(4, FIRST, SECOND, twice=FIRST)], "p: 3 rows are doubled"),
        ([read(4, FIRST, ANEW)], "p: (20, 3) was not written yet"),
        ([read(3 + BOUND + 1, FIRST)], "p: 3 rows are missing"),
        ([read(4, FIRST, SECOND), read(5, FIRST)], "p: 3 rows are missing"),
        ([read(4 + BOUND, FIRST, SECOND, place=OLD), read(5 + BOUND, FIRST)], "p: 3 rows are missing"),
        ([read(101 + BOUND + 1, FIRST, SECOND, ANEW)], "p: 6 rows are read that were overwritten"),
        ([read(100.5, FIRST), read(102, ANEW), read(103, FIRST, ANEW)], "p: 3 rows were gone and are there again"),
        (
            [read(99, FIRST, place=OLD), read(100.5, place=OLD), read(101 + BOUND + 1, FIRST, ANEW)],
            "p: 3 rows were gone and are there again",
        ),
    ],
    ids=[
        "doubled",
        "too early",
        "late for ever",
        "lost in place",
        "lost by a move",
        "not overwritten",
        "resurrected",
        "resurrected by a move",
    ],
)
def test_each_kind_of_defect_is_found(reads: list[Read], finding: str):
    assert finding in judged(*reads)


def test_rows_that_a_drop_shows_again_are_allowed_until_the_sweep_is_due():
    dropped = Write(number=4, partition="p", overwrites=True, low=30, high=33, began=150.0, ended=151.0, drops=True)
    writes = [FIRST, SECOND, ANEW, dropped]
    judge = Judge()
    assert judge.look(read(140, ANEW, place=OLD), writes) == []
    assert judge.look(read(152, FIRST, dropped), writes) == []
    assert judge.look(read(156, dropped), writes) == []
    (finding,) = Judge().look(read(151 + BOUND + 1, FIRST, dropped), writes)
    assert finding == "p: 3 rows are read that were overwritten, such as (0, 1)"


def test_a_session_with_a_cache_may_miss_rows_but_see_none_twice_or_again():
    assert judged(read(90, FIRST), is_fresh=False) == []
    assert judged(read(90, FIRST, twice=FIRST), is_fresh=False) == ["p: 3 rows are doubled"]
    again = read(102, FIRST), read(103, ANEW), read(104, FIRST, ANEW)
    assert judged(*again, is_fresh=False) == ["p: 3 rows were gone and are there again"]


def test_the_longest_delay_counts_from_the_writers_success():
    judge = Judge()
    for one in (read(4, FIRST), read(7, FIRST, SECOND), read(102, FIRST, SECOND), read(106, ANEW)):
        judge.look(one, [FIRST, SECOND, ANEW])
    assert judge.delays == {(1, "p"): 3.0, (2, "p"): 4.0, (3, "p"): 5.0}


def test_rows_that_were_seen_early_are_counted_and_for_how_long_they_were_missed_then():
    judge = Judge()
    for one in (read(2.5, FIRST, SECOND, place=OLD), read(4, FIRST), read(5, FIRST), read(9, FIRST, SECOND)):
        judge.look(one, [FIRST, SECOND])
    assert (judge.seen_early, judge.missed_for) == (1, 5.0)

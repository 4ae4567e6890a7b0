# SPDX-License-Identifier: Apache-2.0
"""The files that a superseded file waits for if its commit overlapped later commits; tables made by hand, no JVM."""

import json
import os
from datetime import timedelta
from pathlib import Path

import pytest
from hudi_by_hand import T1, T2, T3, T4, T5, ByHand
from test_hudi_attempts import stamp

from lake.formats.hudi import FORMAT
from lake.formats.hudi.read.deletion_blockers import AUTOMATIC_CLEAN_KEY
from lake.formats.hudi.timeline.timeline import PLAN_KEY, instant_datetime
from lake.model import TableRef
from lake.plan import SupersededVersion


class Overlapped(ByHand):
    """Commit ``T2`` completes after ``T4``; ``T3``, in between, supersedes a file of another partition."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.inputs = [self.base_file(T1), self.base_file(T1, "p/f-1")]
        self.complete(T1, "commit", *self.inputs)
        self.other = self.base_file(T1, "q/f-9")
        self.compact(T2, [(name, f"p/f-{number}") for number, name in enumerate(self.inputs)])
        self.complete(T3, "commit", self.base_file(T3, "q/f-9"), partition="q")
        self.complete(T4, "commit", self.base_file(T4, "r/f-7"), partition="r")
        self.complete(T5, "commit", self.base_file(T5, "r/f-8"), partition="r")
        for time, seconds in ((T1, 0), (T2, 2.5), (T3, 0), (T4, 0), (T5, 0)):
            completed_at = instant_datetime(time, "UTC").timestamp() + 0.1 + seconds
            os.utime(self.base / f".hoodie/{time}.commit", (completed_at, completed_at))

    def compact(self, time: str, inputs: list[tuple[str, str]]) -> None:
        """A compaction by lakefold."""
        partition = inputs[0][1].partition("/")[0]
        self.request_compaction(time, inputs[0][0], [], inputs[0][1])
        stamp(self.base / f".hoodie/{time}.compaction.requested", f"plan-{time}")
        self.complete(time, "commit", *(self.base_file(time, group) for _, group in inputs), partition=partition)

    def replace(self, time: str, group: str) -> str:
        """A clustering by lakefold; the name of the file that it replaces."""
        partition, _, file_id = group.rpartition("/")
        name, file = self.base_file(T1, group), self.base / f".hoodie/{time}.replacecommit"
        record = {"partitionToReplaceFileIds": {partition: [file_id]}, "extraMetadata": {PLAN_KEY: f"plan-{time}"}}
        file.write_text(json.dumps(record))
        completed_at = instant_datetime(time, "UTC").timestamp() + 0.1
        os.utime(file, (completed_at, completed_at))
        return name

    def blockers(self, *names: str, retention: timedelta = timedelta(), **options: str) -> dict[str, str | None]:
        versions = [
            SupersededVersion(partition="p", path=f"p/{name}", bytes=1, instant=T2) for name in names or self.inputs
        ]
        ref = TableRef(name="t", format="hudi", location=str(self.base), write_options=options)
        found = FORMAT.deletion_blockers(ref, versions, retention)
        return {path.removeprefix("p/"): reason for path, reason in found.items()}


@pytest.fixture
def table(tmp_path: Path) -> Overlapped:
    return Overlapped(tmp_path / "t")


def test_an_input_waits_for_the_files_that_others_superseded_before_the_newest_overlapped_commit(
    table: Overlapped,
) -> None:
    """When a cleaner has deleted such a file, the overlapped commit can be saved; a restore to it needs the input."""
    reasons = table.blockers()
    assert all(
        f"q/{table.other} was superseded by {T3}; " in str(why)
        and f"Hudi would again save {T4}, and a restore to it rolls {T2} back" in str(why)
        for why in reasons.values()
    )
    assert set(reasons) == set(table.inputs)
    assert set(table.blockers(**{AUTOMATIC_CLEAN_KEY: "false"}).values()) == {None}
    (table.base / "q" / table.other).unlink()
    assert set(table.blockers().values()) == {None}


def test_an_input_waits_for_a_write_that_began_before_the_newest_overlapped_commit(table: Overlapped) -> None:
    (table.base / "q" / table.other).unlink()
    pending = T3[:-3] + "500"
    (table.base / f".hoodie/{pending}.commit.requested").touch()
    assert all(f"pending {pending} began before {T4}; " in str(why) for why in table.blockers().values())


def test_neither_other_inputs_of_the_commit_nor_those_of_a_later_plan_are_waited_for(table: Overlapped) -> None:
    """A clean deletes a part of the files, and the later plan's inputs wait for these."""
    (table.base / "q" / table.other).unlink()
    assert table.blockers(table.inputs[0]) == {table.inputs[0]: None}
    later = T3[:-3] + "500"
    table.compact(later, [(table.base_file(T1, "q/f-5"), "q/f-5")])
    completed_at = instant_datetime(later, "UTC").timestamp() + 0.1
    os.utime(table.base / f".hoodie/{later}.commit", (completed_at, completed_at))
    assert set(table.blockers().values()) == {None}


def test_an_input_waits_as_long_as_files_of_a_later_plan_within_the_overlap_are_retained(table: Overlapped) -> None:
    """Table version 6: a clean has one bound, which has to be before the later plan while its files exist."""
    (table.base / "q" / table.other).unlink()
    time = T3[:-3] + "500"
    replaced = table.replace(time, "q/f-5")
    for reason in table.blockers(retention=timedelta(days=36500)).values():
        assert f"q/{replaced}, which {time} replaced, is retained until 21" in str(reason)
    assert set(table.blockers(retention=timedelta(seconds=1)).values()) == {None}

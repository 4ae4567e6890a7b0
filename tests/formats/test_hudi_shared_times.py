# SPDX-License-Identifier: Apache-2.0
"""Writes with the time of a plan. Writers before Hudi 1.0 choose times without a lock, and may publish them later."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from hudi_tables import copy
from hudi_writing import LOCK, SIX, Table, ignore, insert

from lake.errors import Transient
from lake.formats.hudi.client.client import HudiClient
from lake.plan import Plan
from lake.ports import PreparedPlan

pytestmark = pytest.mark.spark


class Write:
    """A write to a copy of ``trips``, which can be repeated in ``trips`` step by step, as another process does it."""

    def __init__(self, trips: Table, beside: Path) -> None:
        self.trips = trips
        self.copy = Table(trips.spark, copy(Path(trips.base), beside), trips.options)
        insert(self.copy, 1, start=900)
        self.time = self.copy.timeline().completed[-1].time
        self.files = self.copy.files_of(self.time)

    def begin(self) -> None:
        """Publish the write, and write its files and their markers."""
        self._repeat(f"{self.time}.commit.requested")
        self._repeat(f"{self.time}.inflight")
        for path in self.files:
            shutil.copyfile(Path(self.copy.base) / path, Path(self.trips.base) / path)
            marker = Path(self.trips.base) / f".hoodie/.temp/{self.time}/{path}.marker.CREATE"
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()

    def commit(self) -> None:
        shutil.rmtree(Path(self.trips.base) / f".hoodie/.temp/{self.time}")
        self._repeat(f"{self.time}.commit")

    def _repeat(self, name: str) -> None:
        shutil.copyfile(Path(self.copy.base) / ".hoodie" / name, Path(self.trips.base) / ".hoodie" / name)


def prepare(writer: Any, plan: Plan, time: str, monkeypatch: pytest.MonkeyPatch) -> PreparedPlan:
    """Publish ``plan`` with this time."""
    with monkeypatch.context() as patch:
        patch.setattr(HudiClient, "new_instant", lambda _: time)
        prepared: PreparedPlan = writer.prepare(plan, 1)
    assert prepared.instant == time
    return prepared


@pytest.fixture
def trips(spark: Any, tmp_path: Path) -> Table:
    made = Table(spark, tmp_path / "trips", LOCK | SIX)
    insert(made, 3, start=0)
    return made


@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_a_plan_is_not_committed_beside_a_write_that_was_published_with_its_time_after_the_plan_began(
    trips: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    theirs, plan = Write(trips, tmp_path / "beside/trips"), trips.plan(engine=engine)
    expected = theirs.copy.rows()
    with trips.writer() as writer:
        rewrite = writer.rewrite(prepare(writer, plan, theirs.time, monkeypatch), ignore)
        theirs.begin()
        with pytest.raises(Transient, match=rf"a writer has begun commit {theirs.time} at the same millisecond"):
            writer.commit(rewrite)
        with pytest.raises(Transient, match=rf"waits for the end of commit {theirs.time}, which has the same time"):
            writer.withdraw(plan.plan_id, None)
        assert theirs.files <= set(trips.data_files())
        theirs.commit()
        assert writer.withdraw(plan.plan_id, None) == 1
    assert trips.files_of(theirs.time) == theirs.files
    assert trips.timeline().pending == ()
    assert trips.rows() == expected
    trips.run(trips.plan("0198-next"))
    assert trips.rows() == expected


def test_a_rewrite_stops_when_a_write_is_published_with_its_time(
    trips: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the write is committed, readers that list directories take the files of the rewrite for its own."""
    theirs, plan = Write(trips, tmp_path / "beside/trips"), trips.plan()
    expected = theirs.copy.rows()
    begin = HudiClient.begin_rewrite

    def begin_both(client: HudiClient, *given: Any) -> Any:
        java = begin(client, *given)
        theirs.begin()
        return java

    with trips.writer() as writer:
        prepared = prepare(writer, plan, theirs.time, monkeypatch)
        monkeypatch.setattr(HudiClient, "begin_rewrite", begin_both)
        with pytest.raises(Transient, match=rf"a writer has begun commit {theirs.time} at the same millisecond"):
            writer.commit(writer.rewrite(prepared, ignore))
        monkeypatch.undo()
        theirs.commit()
        assert writer.withdraw(plan.plan_id, None) == 1
    assert trips.files_of(theirs.time) == theirs.files
    assert trips.rows() == expected

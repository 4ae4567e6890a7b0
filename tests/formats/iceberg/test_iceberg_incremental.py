# SPDX-License-Identifier: Apache-2.0
"""Readers that follow an Iceberg table through many compactions read each appended row once."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract.attempts import attempt, run
from contract.plans import plan_all
from iceberg_case import IcebergCase, NewCase

from lake.model import TableRef

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COMPACTIONS = 20


@pytest.fixture(params=[2, 3])
def case(new_case: NewCase, request: pytest.FixtureRequest) -> IcebergCase:
    return new_case("rest", version=request.param)


class Stream:
    """A Structured Streaming query that follows the table and writes the ids to files. It survives ``restart``."""

    def __init__(self, case: IcebergCase, table: TableRef, home: Path) -> None:
        self._case, self._name, self._home = case, case.name(table), home
        self._query = self._start()

    def _start(self) -> Any:
        ids = self._case.session.readStream.format("iceberg").load(self._name).select("id")
        sink = ids.writeStream.format("parquet").option("checkpointLocation", str(self._home / "checkpoint"))
        return sink.trigger(processingTime="100 milliseconds").start(str(self._home / "sink"))

    def restart(self) -> None:
        """End the query at an arbitrary moment and continue from its checkpoint."""
        self.stop()
        self._query = self._start()

    def ids(self) -> list[int]:
        """The ids read until now, after everything that the table has."""
        self._query.processAllAvailable()
        rows = self._case.session.read.parquet(str(self._home / "sink")).collect()
        return sorted(row["id"] for row in rows)

    def stop(self) -> None:
        """End the query."""
        self._query.stop()


@pytest.fixture
def stream(case: IcebergCase, table: TableRef, tmp_path: Path) -> Iterator[Stream]:
    made = Stream(case, table, tmp_path)
    yield made
    made.stop()


def appended(case: IcebergCase, table: TableRef, after: int) -> list[int]:
    """The ids of Spark's incremental read of everything that was committed after a snapshot.

    It is Iceberg's ``IncrementalAppendScan``, as in Flink's source.
    """
    read = case.session.read.format("iceberg").option("start-snapshot-id", str(after))
    return sorted(row["id"] for row in read.load(case.name(table)).select("id").collect())


def changes(case: IcebergCase, table: TableRef, after: int) -> Counter[tuple[str, str]]:
    """Operation and file of each task of Iceberg's ``IncrementalChangelogScan``, as in Trino's ``table_changes``."""
    tasks = case.java_table(table).newIncrementalChangelogScan().fromSnapshotExclusive(after).planFiles().iterator()
    found: Counter[tuple[str, str]] = Counter()
    while tasks.hasNext():
        task = tasks.next()
        found[str(task.operation()), str(task.file().location())] += 1
    return found


def current(case: IcebergCase, table: TableRef) -> int:
    return int(case.java_table(table).currentSnapshot().snapshotId())


@pytest.mark.crossed(1)
def test_streaming_and_incremental_readers_read_each_row_once_through_twenty_compactions(
    case: IcebergCase, table: TableRef, stream: Stream
):
    first, written = current(case, table), list[int]()
    for turn in range(COMPACTIONS):
        before, low = current(case, table), 1000 + 10 * turn
        case.append(table, "dt=0", low, low + 10)
        written += range(low, low + 10)
        run(case, plan_all(case.format, table, f"p{turn}"))
        if turn % 5 == 0:
            with attempt(case, plan_all(case.format, table, f"w{turn}")) as one:
                one.rewritten()
                assert one.discarded(None) == 1
        if turn % 7 == 3:
            stream.restart()
        assert appended(case, table, before) == list(range(low, low + 10))
        assert [operation for operation, _ in changes(case, table, before)] == ["INSERT"]
    assert stream.ids() == [*range(300), *written]
    assert appended(case, table, first) == written
    assert Counter(operation for operation, _ in changes(case, table, first)) == {"INSERT": COMPACTIONS}
    assert set(changes(case, table, first).values()) == {1}
    assert len(case.commits(table)) == COMPACTIONS
    assert [row["id"] for row in case.session.table(case.name(table)).select("id").sort("id").collect()] == stream.ids()

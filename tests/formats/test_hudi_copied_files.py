# SPDX-License-Identifier: Apache-2.0
"""Files of Hudi's copy, which writes no markers: a writer takes the plan over, and no row is read twice."""

import os
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hudi_tables import run_service
from hudi_writing import FORMAT, NewTable, Table, ignore

from lake.errors import Conflict
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.rewrite import execute
from lake.formats.hudi.timeline.timeline import write_stats

pytestmark = pytest.mark.spark


@pytest.fixture
def trips(table: NewTable) -> Table:
    return table()


def execute_pending(trips: Table) -> None:
    """What a writer with ``hoodie.clustering.inline`` does after its commit."""
    with ThreadPoolExecutor() as pool:  # a job of the calling thread's would carry the tag of ours
        pool.submit(run_service, trips.spark, "run_clustering", Path(trips.base), "execute").result()


def committed_files(trips: Table, instant: str) -> set[str]:
    found = trips.timeline().find(instant)
    assert found is not None
    assert not found.pending
    return {str(stat["path"]) for _, stat in write_stats(trips.timeline().metadata(found))}


def markers_of(trips: Table, instant: str) -> set[str]:
    """The files that have markers under ``instant``."""
    top = Path(trips.base) / ".hoodie/.temp" / instant
    return {str(path.relative_to(top)).removesuffix(".marker.CREATE") for path in top.rglob("*.marker.CREATE")}


def age(trips: Table, paths: Iterable[str]) -> None:
    """Make files a minute old: by their times alone, later files may be of a writer whose clock is behind."""
    for path in paths:
        written_at = (Path(trips.base) / path).stat().st_mtime
        os.utime(Path(trips.base) / path, (written_at - 60, written_at - 60))


class Writer:
    """A writer with inline clustering, which begins a pending plan and later commits it."""

    def __init__(self, trips: Table) -> None:
        self._trips = trips
        self._client: HudiClient | None = None

    def begin(self, instant: str) -> None:
        self._client = HudiClient(self._trips.ref, self._trips.spark)
        with ThreadPoolExecutor() as pool:
            self._written = pool.submit(self._client.write_client.cluster, instant, False).result()

    def commit(self, instant: str) -> None:
        client = self._client
        assert client is not None
        client.bundle.run_write(client.write_client, self._written)
        java = self._trips.spark._jvm.org.apache.hudi.table.HoodieSparkTable.create(client.write_config, client.context)
        client.bundle.commit_clustering(client.write_client, self._written, java, instant)
        client.close()


def test_copies_of_a_plan_that_a_writer_takes_over_are_gone_before_it_commits_and_an_upsert_doubles_no_row(
    trips: Table,
) -> None:
    before = trips.rows(), trips.other_rows()
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(trips.plan(engine="stitch"), 1), ignore)
        copies, instant = trips.files_of(rewrite.prepared.instant), rewrite.prepared.instant
        assert copies == markers_of(trips, instant) == {output.path for output in rewrite.outputs}
        execute_pending(trips)
        assert trips.files_of(instant) == committed_files(trips, instant)
        assert not trips.files_of(instant) & copies
        assert (trips.rows(), trips.other_rows()) == before
        trips.upsert(0, 180, 5, "id % 11 = 0")
        with pytest.raises(Conflict):
            writer.commit(rewrite)
    assert len(trips.rows()) == len(before[0])
    assert sum(trips.other_rows()[1].values()) == len(before[0])


def test_a_commit_removes_the_markers_of_its_copies_and_hudi_the_marked_file_of_a_repeated_task(trips: Table) -> None:
    before = trips.rows()
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(trips.plan(engine="stitch"), 1), ignore)
        commit = writer.commit(rewrite)
    assert trips.files_of(commit.instant) == {output.path for output in commit.outputs}
    assert trips.temporary() == []
    assert trips.rows() == before


def test_copies_without_markers_of_a_killed_executor_are_swept_while_a_writer_executes_its_plan(
    trips: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = trips.rows(), trips.other_rows()
    other = Writer(trips)
    with trips.writer() as killed:
        rewrite = killed.rewrite(killed.prepare(trips.plan(engine="stitch"), 1), ignore)
        copies, instant = trips.files_of(rewrite.prepared.instant), rewrite.prepared.instant
        shutil.rmtree(Path(trips.base) / ".hoodie/.temp", ignore_errors=True)  # killed before it had made any
        age(trips, copies)
        other.begin(instant)
        assert trips.files_of(instant) == copies
        assert instant in FORMAT.instants_with_stragglers(trips.ref)
        with trips.writer() as sweep:
            assert set(sweep.remove_straggler_files([instant])) == copies
        assert trips.files_of(instant) == set()
        assert instant not in FORMAT.instants_with_stragglers(trips.ref)
        other.commit(instant)
    assert trips.files_of(instant) == committed_files(trips, instant)
    assert (trips.rows(), trips.other_rows()) == before


def test_files_of_the_writer_that_took_a_plan_over_are_not_swept(trips: Table) -> None:
    before = trips.rows(), trips.other_rows()
    other = Writer(trips)
    with trips.writer() as writer:
        instant = writer.prepare(trips.plan(engine="stitch"), 1).instant
        other.begin(instant)
        client = other._client
        assert client is not None
        client.bundle.run_write(client.write_client, other._written)
        written = trips.files_of(instant)
        assert written
        assert instant not in FORMAT.instants_with_stragglers(trips.ref)
        with trips.writer() as sweep:
            assert not sweep.remove_straggler_files([instant])
        assert trips.files_of(instant) == written
    java = trips.spark._jvm.org.apache.hudi.table.HoodieSparkTable.create(client.write_config, client.context)
    client.bundle.commit_clustering(client.write_client, other._written, java, instant)
    client.close()
    assert (trips.rows(), trips.other_rows()) == before


def test_an_executor_that_lost_its_plan_deletes_its_copies_without_waiting_for_the_writers_commit(
    trips: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = trips.rows(), trips.other_rows()
    other = Writer(trips)
    force: Callable[..., Any] = execute._run_write

    def taken_over(*arguments: Any) -> Any:
        stats = force(*arguments)
        copies = trips.files_of(prepared.instant)
        assert copies
        age(trips, copies)
        shutil.rmtree(Path(trips.base) / ".hoodie/.temp", ignore_errors=True)
        other.begin(prepared.instant)
        shutil.rmtree(Path(trips.base) / ".hoodie/.temp", ignore_errors=True)
        return stats

    monkeypatch.setattr(execute, "_run_write", taken_over)
    monkeypatch.setattr(execute, "FOREIGN_COMMIT_TIMEOUT", timedelta())
    with trips.writer() as writer:
        prepared = writer.prepare(trips.plan(engine="stitch"), 1)
        with pytest.raises(Conflict, match=f"another process took over {prepared.instant}"):
            writer.rewrite(prepared, ignore)
        assert trips.files_of(prepared.instant) == set()
    monkeypatch.undo()
    other.commit(prepared.instant)
    assert trips.files_of(prepared.instant) == committed_files(trips, prepared.instant)
    assert (trips.rows(), trips.other_rows()) == before

# SPDX-License-Identifier: Apache-2.0
"""Plans that are pending again, or executed again, after a person has undone their commit as a message says."""

import re
import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hudi_tables import rows, run_service, write
from hudi_writing import ARCHIVING, FORMAT, SIX, NewTable, Table, ignore, insert

from executors.context import RunContext
from executors.outcome import RunResult
from executors.run import run_plan
from executors.sweep import sweep_table
from lake.errors import CommitLost
from lake.formats.hudi.writer import HudiWriter
from lake.plan import Commit, Plan, PlanState
from lake.ports import Rewrite
from service.control.store import Store, StoreSettings

pytestmark = pytest.mark.spark


def execute_pending(trips: Table) -> None:
    """What a writer with ``hoodie.clustering.inline`` does after its commit."""
    with ThreadPoolExecutor() as pool:
        pool.submit(run_service, trips.spark, "run_clustering", Path(trips.base), "execute").result()


def undo_as_told(trips: Table, plan: Plan) -> str:
    """Commit ``plan``, and roll the commit back as the owner does whom the message of a lost commit tells to."""
    commit = trips.run(plan)
    with trips.writer() as owner:
        owner._open().write_client.rollback(commit.instant)
    assert [entry.time for entry in trips.timeline().pending] == [commit.instant]
    return commit.instant


def test_a_clustering_that_its_owner_rolled_back_is_withdrawn_while_its_table_is_halted(
    table: NewTable, store: Store
) -> None:
    trips = table()
    plan = trips.plan()
    store.register_table(trips.ref, "compact")
    store.add_plan(plan, request_id=None, actor="scheduler", estimate={})
    claim = store.claim("executor")
    assert claim is not None
    undo_as_told(trips, plan)
    context = RunContext(store=store, spark=lambda: trips.spark)
    assert sweep_table(trips.ref, context, format=FORMAT, halted=True) == 0, "the plan has not ended"
    store.fail(claim, "a test", halt=True)
    assert store.plan_state(plan.plan_id) is PlanState.FAILED
    assert sweep_table(trips.ref, context, format=FORMAT, halted=True, is_off=True) == 0
    assert sweep_table(trips.ref, context, format=FORMAT, halted=True) == 1
    assert trips.timeline().pending == ()
    trips.upsert(0, 180, 5, "id % 3 = 0")
    now = trips.rows(), trips.other_rows()
    execute_pending(trips)
    assert (trips.rows(), trips.other_rows()) == now


def test_a_clustering_that_its_owner_rolled_back_is_withdrawn_at_once_by_the_command_of_the_message(
    table: NewTable,
) -> None:
    trips = table()
    before = trips.rows(), trips.other_rows()
    instant = undo_as_told(trips, trips.plan())
    with trips.writer() as operator:
        assert operator.roll_back(instant).endswith("is withdrawn: its files are deleted")
    assert trips.timeline().pending == ()
    assert (trips.rows(), trips.other_rows()) == before


def test_a_plan_whose_table_is_halted_right_before_its_commit_is_withdrawn_and_commits_after_the_resume(
    table: NewTable, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips = table()
    before, plan = (trips.rows(), trips.other_rows()), trips.plan()
    store.use_settings(StoreSettings(backoff=timedelta()))
    store.register_table(trips.ref, "compact")
    store.add_plan(plan, request_id=None, actor="scheduler", estimate={})
    context, commit = RunContext(store=store, spark=lambda: trips.spark), HudiWriter.commit

    def halted(writer: HudiWriter, rewrite: Rewrite) -> Commit:
        store.halt_table(trips.ref, "another plan's rows differ")
        return commit(writer, rewrite)

    with monkeypatch.context() as patch:
        patch.setattr(HudiWriter, "commit", halted)
        claim = store.claim("executor")
        assert claim is not None
        outcome = run_plan(claim, context, format=FORMAT)
    assert (outcome.result, outcome.reason) == (RunResult.REQUEUED, "TableHalted")
    assert (trips.timeline().pending, (trips.rows(), trips.other_rows())) == ((), before)
    assert FORMAT.find_commit(trips.ref, plan.plan_id) is None
    assert store.claim("executor") is None
    store.resume(trips.ref.name, "ada")
    claim = store.claim("executor")
    assert claim is not None
    assert run_plan(claim, context, format=FORMAT).result is RunResult.COMPLETED
    assert (trips.rows(), trips.other_rows()) == before


def test_a_commit_is_recorded_although_a_restored_database_shows_its_plan_as_cancelled_before_any_claim(
    table: NewTable, store: Store
) -> None:
    trips = table()
    before, plan = (trips.rows(), trips.other_rows()), trips.plan()
    store.register_table(trips.ref, "compact")
    store.add_plan(plan, request_id=None, actor="scheduler", estimate={})
    context = RunContext(store=store, spark=lambda: trips.spark)
    with (
        closing(sqlite3.connect(store.url.removeprefix("sqlite:///"))) as database,
        closing(sqlite3.connect(":memory:")) as backup,
    ):
        database.backup(backup)
        claim = store.claim("executor")
        assert claim is not None
        assert run_plan(claim, context, format=FORMAT).result is RunResult.COMPLETED
        replaced = {due.version.path for due in store.awaiting_deletion(trips.ref)}
        backup.backup(database)
    store.request_cancel(plan.plan_id, "ada")
    sweep_table(trips.ref, context, format=FORMAT)
    assert store.plan_state(plan.plan_id) is PlanState.COMPLETED
    assert {due.version.path for due in store.awaiting_deletion(trips.ref)} == replaced
    assert replaced
    assert (trips.rows(), trips.other_rows()) == before


def test_files_of_a_plan_that_a_writer_executed_stay_after_the_archived_timeline_was_deleted(
    table: NewTable, store: Store
) -> None:
    trips = table()
    with trips.writer() as writer:
        instant = writer.prepare(trips.plan(), 1).instant
    execute_pending(trips)
    completed = trips.timeline().find(instant)
    assert completed is not None
    assert not completed.pending
    insert(trips, 5, **ARCHIVING | {"hoodie.clean.automatic": "true"})
    timeline = trips.timeline()
    assert timeline.find(instant) is None, "it is archived"
    before, files = trips.rows(), trips.files_of(instant)
    shutil.rmtree(Path(trips.base) / timeline.archive_directory)
    sweep_table(trips.ref, RunContext(store=store, spark=lambda: trips.spark), format=FORMAT)
    assert (trips.rows(), trips.files_of(instant)) == (before, files)
    assert files


def test_updates_in_logs_that_are_named_after_an_undone_compaction_are_read_again_after_the_remedy(
    spark: Any, tmp_path: Path
) -> None:
    """Up to version 6: rolling the compaction back would leave these logs without a slice."""
    trips = Table(spark, tmp_path / "trips")
    write(rows(spark, 0, 60).coalesce(1), trips.base, merge_on_read=True, options=SIX)
    trips.upsert(0, 60, 1, "id % 3 = 0", **SIX)
    plan = trips.compaction()
    with trips.writer() as writer:
        commit = writer.commit(writer.rewrite(writer.prepare(plan, 1), ignore))
    trips.upsert(0, 60, 2, "id % 5 = 0", **SIX)
    assert any(f"_{commit.instant}.log." in path for path in trips.files_of(commit.instant))
    before = trips.rows(), trips.other_rows()
    for output in commit.outputs:
        (Path(trips.base) / output.path).unlink()
    with pytest.raises(CommitLost, match="Do not roll it back") as lost:
        FORMAT.find_commit(trips.ref, plan.plan_id)
    told = re.search(r"delete the file (\S+) and, if it exists, the directory (\S+),", str(lost.value))
    assert told is not None
    Path(told[1]).unlink()
    Path(told[1]).with_name(f".{Path(told[1]).name}.crc").unlink(missing_ok=True)
    shutil.rmtree(told[2], ignore_errors=True)
    run_service(spark, "run_compaction", Path(trips.base), "run", **SIX)
    assert trips.timeline().pending == ()
    assert (trips.rows(), trips.other_rows()) == before
    assert FORMAT.find_commit(trips.ref, plan.plan_id) is not None

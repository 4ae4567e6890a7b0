# SPDX-License-Identifier: Apache-2.0
"""Pending work on real tables whose plan ended, is unknown, or has another attempt: who may end it, and how."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hudi_tables import copy, rows, table_rows, write
from hudi_writing import FORMAT, SIX, Table, ignore
from kept_tables import kept, small_table
from uuid_utils import uuid7

from executors.context import RunContext
from executors.outcome import RunResult
from executors.run import run_plan
from executors.sweep import sweep_table
from executors.take_over import take_over_one
from lake.errors import Conflict, Transient
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.pending.attempt_files import DIRECTORY, RunningAttempt
from lake.formats.hudi.plans import withdrawal
from lake.plan import Claim, Plan
from lake.process_identity import Process
from planner.cost import CostInputs
from service.cli import main
from service.control.config.loader import load_config
from service.control.config.table_settings import configure_table
from service.control.planning.adoption import adopt_pending_actions
from service.control.store import Store

pytestmark = pytest.mark.spark


def no_spark() -> Any:
    raise AssertionError("nothing here needs a Spark session")


@pytest.fixture
def six(spark: Any, tmp_path: Path) -> Table:
    """A merge-on-read table of version 6 with logs in each of two slices."""

    def build(base: Path) -> None:
        write(rows(spark, 0, 60).coalesce(1), base, merge_on_read=True, options=SIX)
        Table(spark, base, SIX).upsert(0, 60, 1, "id % 3 = 0")

    base = copy(kept("left behind on six", "trips", build, __file__), tmp_path / "lake" / "trips")
    return Table(spark, base, SIX)


@pytest.fixture
def cow(spark: Any, tmp_path: Path) -> Table:
    return Table(spark, copy(small_table(spark), tmp_path / "lake" / "trips"))


def request(store: Store, plan: Plan) -> Claim:
    """The claim of ``plan``, stored and taken by an executor."""
    store.register_table(plan.table, "compact")
    store.add_plan(plan, request_id=None, actor="test", estimate={})
    claim = store.claim("first")
    assert claim is not None
    return claim


def attempts(trips: Table) -> list[Path]:
    return sorted((Path(trips.base) / DIRECTORY).glob("*.json"))


def silent(trips: Table) -> None:
    """Nothing of the table's pending work, and no attempt at it, has been touched for an hour."""
    for path in (*attempts(trips), *(Path(trips.base) / ".hoodie").rglob("*.requested")):
        os.utime(path, (path.stat().st_mtime - 3600,) * 2)


def died(attempt: Path) -> None:
    """The process of an attempt has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        process = Process.of(other.pid)
        assert process is not None
        other.kill()
    attempt.write_text(json.dumps(json.loads(attempt.read_text()) | {"process": asdict(process)}))


def leave_a_request(trips: Table, claim: Claim) -> str:
    """Begin a compaction, have a writer name logs after it, withdraw it; the instant that has to stay."""
    with trips.writer() as writer:
        prepared = writer.prepare(claim.plan, claim.epoch)
        writer.rewrite(prepared, ignore)
        trips.upsert(0, 60, 2, "id % 5 = 0")
        assert writer.withdraw(claim.plan.plan_id, None) == 1
        assert writer.withdraw(claim.plan.plan_id, None) == 0, "nothing more can go"
    return prepared.instant


def test_the_instant_of_a_cancelled_compaction_is_executed_by_a_later_plan(
    six: Table, store: Store, spark: Any, tmp_path: Path
) -> None:
    claim = request(store, six.compaction(str(uuid7())))
    instant = leave_a_request(six, claim)
    before = six.rows()
    store.cancel(claim, "cancelled by hand", actor="ada")
    for _ in range(2):
        assert sweep_table(six.ref, RunContext(store=store, spark=no_spark), format=FORMAT) == 0
    (tmp_path / "lakefold.toml").write_text(f'[[sources]]\npath = "{tmp_path}/lake"\n')
    table = configure_table(load_config(tmp_path / "lakefold.toml"), six.ref)

    def adopted() -> list[Plan]:
        return adopt_pending_actions(
            store, table, FORMAT.pending_actions(six.ref), cost_inputs=CostInputs(), snapshot_instant="", actor="scan"
        )

    sleeper = RunningAttempt(
        TableStorage(str(six.base)), six.timeline(), instant, claim.plan.plan_id, claim.epoch, Process.of(os.getpid())
    )
    assert adopted() == [], "an executor that has signed may only be asleep"
    sleeper.end()
    (plan,) = adopted()
    assert (plan.adopted_instant, len(plan.groups)) == (instant, 2)
    assert adopted() == []
    again = store.claim("second")
    assert again is not None
    outcome = run_plan(again, RunContext(store=store, spark=lambda: spark), format=FORMAT)
    assert (outcome.result, outcome.error) == (RunResult.COMPLETED, "")
    assert six.rows() == before
    assert sum(six.other_rows()[1].values()) == len(before)
    assert not six.timeline().pending
    assert attempts(six) == []
    assert sweep_table(six.ref, RunContext(store=store, spark=no_spark), format=FORMAT) == 0
    assert store.plan(claim.plan.plan_id).state == "cancelled", "the commit is the later plan's"
    assert FORMAT.find_commit(six.ref, claim.plan.plan_id) is None
    assert FORMAT.find_commit(six.ref, plan.plan_id) is not None


def test_a_request_adopts_at_once_the_instant_that_a_plan_left_on_table_version_6(
    six: Table,
    store: Store,
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    claim = request(store, six.compaction(str(uuid7())))
    instant = leave_a_request(six, claim)
    before = six.rows()
    store.cancel(claim, "cancelled by hand", actor="ada")
    (left,) = FORMAT.pending_actions(six.ref)
    assert (left.instant, left.is_alive, left.has_live_owner) == (instant, True, False), "its files are seconds old"
    (tmp_path / "lakefold.toml").write_text(
        f"""
        [database]
        url = "{store.url}"
        [[sources]]
        path = "lake"
        [[tables]]
        match = "trips"
        mode = "compact"
        concurrency = "single_writer"
        """
    )
    monkeypatch.chdir(tmp_path)
    assert main.run(["plans", "request", "trips", "--json"]) == 0
    (answer,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert answer["outcome"] == "planned", answer
    (plan_id,) = answer["plan_ids"]
    assert store.plan(plan_id).adopted == instant
    again = store.claim("second")
    assert again is not None
    assert run_plan(again, RunContext(store=store, spark=lambda: spark), format=FORMAT).result is RunResult.COMPLETED
    assert (six.rows(), six.timeline().pending) == (before, ())


def test_a_resumed_executor_does_not_roll_back_its_successors_work_on_the_same_instant(six: Table) -> None:
    plan = six.compaction()
    with six.writer() as sleeper:
        prepared = sleeper.prepare(plan, 1)
        sleeper.rewrite(prepared, ignore)
        six.upsert(0, 60, 2, "id % 5 = 0")
        before = six.rows()
        with six.writer() as successor:
            assert successor.withdraw(plan.plan_id, None) == 1
            too_early = None
            try:
                again = successor.prepare(plan, 2)
            except Transient as error:
                too_early = str(error)
                silent(six)
                again = successor.prepare(plan, 2)
            assert again.instant == prepared.instant
            rewrite = successor.rewrite(again, ignore)
            assert sleeper.withdraw(plan.plan_id, (prepared.instant,)) == 0
            commit = successor.commit(rewrite)
    assert six.rows() == before
    assert FORMAT.find_commit(six.ref, plan.plan_id) == commit
    assert re.search("an earlier attempt at .* may still be writing", str(too_early))
    assert attempts(six) == []


def test_a_withdrawal_keeps_files_of_a_writer_that_began_the_remaining_instant(
    six: Table, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, inline = six.compaction(), HudiClient(six.ref, spark)
    listed: Callable[..., list[str]] = withdrawal.list_files_of_instant
    with six.writer() as writer:
        instant = writer.prepare(plan, 1).instant
        six.upsert(0, 60, 2, "id % 5 = 0")
        before, begun = six.rows(), []

        def written_meanwhile(*arguments: Any) -> list[str]:
            if not begun:
                begun.append(inline.write_client.compact(instant, False))
                inline.bundle.run_write(inline.write_client, begun[0])
            return listed(*arguments)

        monkeypatch.setattr(withdrawal, "list_files_of_instant", written_meanwhile)
        writer.withdraw(plan.plan_id, None)
    java = spark._jvm.org.apache.hudi.table.HoodieSparkTable.create(inline.write_config, inline.context)
    inline.bundle.commit_compaction(inline.write_client, begun[0], java, instant)
    inline.close()
    assert six.rows() == before
    assert FORMAT.verify(six.ref, (), rows=True).missing == ()


def test_a_dead_instant_of_an_unknown_plan_is_withdrawn_and_one_of_a_living_lakefold_never(
    cow: Table, store: Store, spark: Any
) -> None:
    before = cow.rows()
    plan = cow.plan("of-a-database-that-is-lost")
    with cow.writer() as other:
        prepared = other.prepare(plan, 1)
        other.rewrite(prepared, ignore)
        with cow.writer() as writer:
            with pytest.raises(Conflict) as refused:
                writer.roll_back(prepared.instant)
            assert sweep_table(cow.ref, RunContext(store=store, spark=no_spark), format=FORMAT) == 0
            alive = [entry.is_alive for entry in FORMAT.pending_actions(cow.ref)]
            for signed in attempts(cow):
                died(signed)
            dead = [not entry.is_alive for entry in FORMAT.pending_actions(cow.ref)]
            assert "is withdrawn" in writer.roll_back(prepared.instant)
    assert re.search(r"may be executed by another lakefold: process \d+ of host", str(refused.value))
    assert (alive, dead) == ([True], [True])
    assert cow.timeline().find(prepared.instant) is None
    assert cow.files_of(prepared.instant) == set()
    assert attempts(cow) == []
    cow.upsert(0, 60, 9)
    assert len(cow.rows()) == len(before)


def test_silence_for_half_an_hour_counts_as_death_of_a_process_that_can_not_be_seen(cow: Table) -> None:
    with cow.writer() as other:
        prepared = other.prepare(cow.plan("elsewhere"), 1)
        for signed in attempts(cow):
            known = json.loads(signed.read_text())
            signed.write_text(json.dumps(known | {"process": known["process"] | {"host": "another"}}))
        with cow.writer() as writer:
            with pytest.raises(Conflict) as refused:
                writer.roll_back(prepared.instant)
            silent(cow)
            assert "is withdrawn" in writer.roll_back(prepared.instant)
    assert "or 30 min after its last activity" in str(refused.value)
    assert not cow.timeline().pending


def test_on_a_real_table_a_commit_that_takes_effect_during_a_cancel_is_recorded(
    cow: Table, store: Store, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = cow.rows()
    claim = request(store, cow.plan(str(uuid7())))
    look: Callable[..., Any] = type(FORMAT).pending_instants
    with cow.writer() as sleeper:
        rewrite = sleeper.rewrite(sleeper.prepare(claim.plan, claim.epoch), ignore)
        store.request_cancel(claim.plan.plan_id, "ada", "cancelled by hand")
        expire(store)

        def commit_first(*arguments: Any) -> Any:
            monkeypatch.undo()
            seen = look(*arguments)
            sleeper.commit(rewrite)
            return seen

        monkeypatch.setattr(type(FORMAT), "pending_instants", commit_first)
        outcome = take_over_one("second", RunContext(formats=lambda _: FORMAT, store=store, spark=lambda: spark))
    assert outcome is not None
    assert outcome.result is RunResult.COMPLETED
    assert (store.plan(claim.plan.plan_id).state, len(store.awaiting_deletion(cow.ref))) == ("completed", 6)
    assert table_rows(spark, cow.base) == before


def test_on_a_real_table_a_commit_of_a_plan_that_ended_is_found_and_recorded(
    cow: Table, store: Store, spark: Any
) -> None:
    claim = request(store, cow.plan(str(uuid7())))
    with cow.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(claim.plan, claim.epoch), ignore)
        store.cancel(claim, "cancelled before its commit", actor="an earlier lakefold")
        writer.commit(rewrite)
    assert sweep_table(cow.ref, RunContext(store=store, spark=no_spark), format=FORMAT) == 0
    view = store.plan(claim.plan.plan_id)
    assert (view.state, view.error, view.files_before, view.files_after) == ("completed", None, 6, 2)
    assert len(store.awaiting_deletion(cow.ref)) == 6


def expire(store: Store) -> None:
    import sqlite3

    with sqlite3.connect(store.url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE plan SET lease_until_ms = 1 WHERE state = 'inflight'")
    connection.close()

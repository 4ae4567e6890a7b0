# SPDX-License-Identifier: Apache-2.0
"""kill -9 between the claim of an approved plan and its commit, at every 50 ms in ``make soak``.

Another process completes the plan within two lease lengths of the kill, and the plan keeps its approval.
"""

import contextlib
import logging
import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from contract.plans import plan_all
from databases import sqlite_at
from harness import Installation, stop_group
from hive_case import HiveCase
from hive_metastore import MetastoreServer
from hudi_tables import FS_LOCK, SMALL_BLOOM, table_rows
from invariants import check_plan_landed_once, ids_in_hudi_rs, pending_instants
from support import SOAK, record_figure
from toys.bench import Bench, bench_at
from toys.processes import start
from uuid_utils import uuid7
from waiting import wait_for

from executors.context import RunContext
from executors.sweep import sweep_table
from lake.formats.hudi.format import HudiFormat
from lake.model import Concurrency, TableRef
from lake.plan import Plan, PlanState, ProposalDecision
from service.control.store import Store
from service.control.store.plan_creation import QueueEntry
from service.control.store.views import PlanView
from service.control.wiring import open_config, open_store
from service.server.daemon.process import Daemon

STEP = timedelta(milliseconds=50)
LEASE = timedelta(seconds=60)
#: plans of one Hudi executor, one claimed after the other, that one kill finds at different moments
TOGETHER = 8 if SOAK else 4
SPACING = timedelta(seconds=1)
BACKOFF = timedelta(seconds=1)
HIVE_OFFSETS = 60 if SOAK else 3


@dataclass(kw_only=True)
class Kills:
    """What kills found, and how long their plans took from the kill to their end."""

    offsets: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    steps: Counter[str] = field(default_factory=Counter)

    def note(self, killed: PlanView, at: datetime, now: PlanView) -> None:
        """Check a plan that was ``killed`` inflight, whose lease was declared over after that.

        It was claimed, taken over and claimed again, which the epoch counts. How long it waited for its executor, which
        took over all other plans of the victim first, is not its own time.
        """
        assert (now.state, now.decision, now.decided_by) == (PlanState.COMPLETED, ProposalDecision.APPROVED, "ada"), now
        assert now.epoch <= 3, now
        assert killed.claimed_at is not None
        assert killed.lease_until is not None
        assert now.claimed_at is not None
        assert now.finalized_at is not None
        took = killed.lease_until - at + BACKOFF + (now.finalized_at - max(now.claimed_at, at))
        assert took <= 2 * LEASE, f"{took} after a kill in {killed.step or 'the first step'}"
        self.offsets.append((at - killed.claimed_at).total_seconds())
        self.seconds.append(took.total_seconds())
        self.steps[killed.step or "claim"] += 1

    def record(self, tables: str) -> None:
        """Record the figures of a run over ``tables``."""
        steps = ", ".join(f"{count} {step}" for step, count in self.steps.items())
        record_figure(
            f"kill -9 of an executor at every {STEP.microseconds // 1000} ms from the claim to the commit of an "
            f"approved plan, {tables}",
            f"{len(self.offsets)} kills, {min(self.offsets):.2f} to {max(self.offsets):.2f} s after the claim "
            f"(by the last step that had ended: {steps}); all completed within {max(self.seconds):.0f} s, two leases "
            f"are {2 * LEASE.seconds} s; approvals kept, rows the same, nothing left behind",
        )


# Hudi: a plan's executor needs a JVM, so one executor has several plans under way.


def proposed(installation: Installation) -> dict[str, str]:
    """Have a scan propose a plan for each table; the plans by table."""
    config = installation.config
    config.write_text(config.read_text().replace('"mode" = "compact"', '"mode" = "propose"'))
    with Daemon(open_config(config), "scheduler") as daemon:
        daemon.run_once()
    return {plan["table"]: plan["plan_id"] for plan in installation.json("plans", "list", "--proposed")}


@contextlib.contextmanager
def store_of(installation: Installation) -> Iterator[Store]:
    store = open_store(open_config(installation.config))
    try:
        yield store
    finally:
        store.close()


def shown(spark: Any, base: Path) -> tuple[object, ...]:
    """The rows of a Hudi table, with their types."""
    schema = spark.read.format("hudi").load(str(base)).schema
    return schema.simpleString(), *table_rows(spark, base)


def swept(spark: Any, store: Store, table: str, base: Path) -> None:
    """Sweep the table; nothing of any attempt may be left after that."""
    ref = TableRef(
        name=table,
        format="hudi",
        location=str(base),
        concurrency=Concurrency.OCC,
        write_options=FS_LOCK | SMALL_BLOOM,
    )
    sweep_table(ref, RunContext(store=store, spark=lambda: spark), format=HudiFormat())
    assert pending_instants(base) == []


def has_ended(group: int) -> bool:
    """Whether no process of a group is left: the JVM outlives a killed Python for a moment."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@contextlib.contextmanager
def victim(installation: Installation, log: Path, failpoints: str = "") -> Iterator["subprocess.Popen[bytes]"]:
    process = installation.start("worker", failpoints=failpoints, log=log)
    try:
        yield process
    finally:
        stop_group(process)


def check_landed(spark: Any, installation: Installation, base: Path, plan: PlanView, before: object) -> None:
    check_plan_landed_once(installation, plan.table, base, plan.plan_id)
    assert shown(spark, base) == before
    assert ids_in_hudi_rs(base) == list(range(600))


@pytest.mark.spark
def test_a_plan_killed_while_its_own_instant_is_pending_keeps_its_approval_and_is_completed(
    spark: Any, template: Path, tmp_path: Path
) -> None:
    points = ("published_unrecorded", "begun_unrecorded")
    tables = {f"t.{name}": tmp_path / "lake" / name for name in points}
    for base in tables.values():
        shutil.copytree(template, base)
    before = shown(spark, template)
    installation = Installation(
        home=tmp_path,
        url=sqlite_at(tmp_path),
        tables=tables,
        policy={"lease": f"{LEASE.seconds}s"},
        daemon={"executor_slots": 2},
    )
    plans = proposed(installation)
    assert plans.keys() == tables.keys()
    log = tmp_path / "killed.log"
    with store_of(installation) as store:
        for plan in plans.values():
            store.approve(plan, "ada")
        with victim(installation, log, ",".join(f"{name}=hold" for name in points)) as process:
            # Hold each plan at one of the points: the first that comes to the first point, and then the other.
            wait_for(lambda: begun(tables) == ["inflight", "requested"], log.read_text, 120, every=0.05)
            process.kill()
        at = datetime.now(UTC)
        killed = {table: store.plan(plan) for table, plan in plans.items()}
        assert {plan.state for plan in killed.values()} == {PlanState.INFLIGHT}
        for table, plan in plans.items():
            refusal = installation.run("plans", "retry", plan, "--json", expect=1)
            assert "another executor takes the plan over when the lease" in refusal.stdout + refusal.stderr, table
        installation.expire_leases()
        kills = Kills()
        installation.work(spark)
        for table, base in tables.items():
            now = store.plan(plans[table])
            kills.note(killed[table], at, now)
            swept(spark, store, table, base)
            check_landed(spark, installation, base, now, before)
            assert len(store.plans(table=table)) == 1, "no plan had to be made again"


def begun(tables: Mapping[str, Path]) -> list[str]:
    """The states of the tables' pending clusterings."""
    found = []
    for base in tables.values():
        names = {path.name.rpartition(".")[2] for path in (base / ".hoodie/timeline").glob("*.clustering.*")}
        found += ["inflight" if "inflight" in names else "requested"] if names else []
    return sorted(found)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(7200 if SOAK else 900)
@pytest.mark.parametrize("how", ["process", "group"] if SOAK else ["process"])
def test_approved_plans_of_hudi_tables_killed_at_any_moment_are_completed_within_two_leases(
    how: str, spark: Any, template_with_statistics: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    before, kills = shown(spark, template_with_statistics), Kills()
    shifts = range(SPACING // STEP) if SOAK else [7]
    for shift in shifts:
        home = tmp_path / str(shift)
        tables = {f"t.n{number}": home / "lake" / f"n{number}" for number in range(TOGETHER + 1)}
        for base in tables.values():
            shutil.copytree(template_with_statistics, base)
        installation = Installation(
            home=home,
            url=sqlite_at(home),
            tables=tables,
            policy={"lease": f"{LEASE.seconds}s"},
            daemon={"executor_slots": TOGETHER, "claim_interval": "50ms"},
        )
        plans = proposed(installation)
        with store_of(installation) as store:
            kill_one_after_the_other(installation, store, list(plans.values()), how, shift * STEP)
            at = datetime.now(UTC)
            killed = {table: store.plan(plan) for table, plan in plans.items()}
            for base in tables.values():
                assert shown(spark, base) == before, "readers saw half a plan"
            installation.expire_leases()
            installation.work(spark)
            for table, base in tables.items():
                now = store.plan(plans[table])
                if killed[table].state is PlanState.INFLIGHT:
                    kills.note(killed[table], at, now)
                swept(spark, store, table, base)
                check_landed(spark, installation, base, now, before)
                assert len(store.plans(table=table)) == 1
        shutil.rmtree(home)
    kills.record("Hudi, JVM killed too" if how == "group" else "Hudi")


def kill_one_after_the_other(
    installation: Installation, store: Store, plans: list[str], how: str, shift: timedelta
) -> None:
    """Approve plans at intervals, and kill their executor ``shift`` after the last claim.

    The first plan is completed before, so that Spark and Hudi are loaded.
    """
    first, *others = plans
    log = installation.home / "killed.log"
    store.approve(first, "ada")
    with victim(installation, log) as process:
        wait_for(lambda: store.plan(first).state is PlanState.COMPLETED, log.read_text, 120)
        begin = time.monotonic()
        for number, plan in enumerate(others):
            time.sleep(max(0.0, begin + (number * SPACING).total_seconds() - time.monotonic()))
            store.approve(plan, "ada")
        last = wait_for(lambda: store.plan(others[-1]).claimed_at, log.read_text, 30, every=0.002)
        time.sleep(max(0.0, (last + shift - datetime.now(UTC)).total_seconds()))
        if how == "process":
            process.kill()
            process.wait()
            wait_for(lambda: has_ended(process.pid), "the end of the JVM", 30)


# Hive: nothing of a plan needs a JVM.


@pytest.mark.slow
@pytest.mark.timeout(3600 if SOAK else 600)
@pytest.mark.parametrize("kind", ["parquet", "orc"] if SOAK else ["parquet"])
def test_approved_plans_of_hive_tables_killed_at_any_moment_are_completed_within_two_leases(
    kind: str, metastore: MetastoreServer, tmp_path: Path
) -> None:
    kills, committed = Kills(), 0
    with bench_at(tmp_path, HiveCase(uri=metastore.uri, kind=kind), lease=LEASE) as bench:
        for number in range(HIVE_OFFSETS):
            committed += not kill_at(bench, number * STEP if SOAK else number * 4 * STEP, kills)
            if committed == 3:
                break
    kills.record(f"Hive {kind}")


def kill_at(bench: Bench, offset: timedelta, kills: Kills) -> bool:
    """Kill an executor ``offset`` after its claim, and check what becomes of the plan. False if it had ended before."""
    bench.table = bench.add_table(f"killed after {offset}")
    before, plan = bench.rows(), approved(bench)
    process = start(bench, "serve", lease=LEASE.total_seconds(), most=20)
    try:
        claimed = wait_for(lambda: bench.store.plan(plan.plan_id).claimed_at, "a claim", 30, every=0.002)
        time.sleep(max(0.0, (claimed + offset - datetime.now(UTC)).total_seconds()))
        process.kill()
    finally:
        stop_group(process)
        process.communicate(timeout=60)  # closes the pipe of its output
    at, killed = datetime.now(UTC), bench.store.plan(plan.plan_id)
    assert bench.rows() == before
    bench.expire()
    while bench.rescue() is not None:
        pass
    while (claim := bench.store.claim("next")) is not None:
        bench.run(claim)
    if killed.state is PlanState.INFLIGHT:
        kills.note(killed, at, bench.store.plan(plan.plan_id))
    bench.sweep()
    assert (bench.commits(plan), bench.rows(), bench.unowned()) == (1, before, ())
    assert len(bench.store.plans(table=bench.table.name)) == 1
    return killed.state is PlanState.INFLIGHT


def approved(bench: Bench) -> Plan:
    """An approved plan over all files of the table."""
    plan = plan_all(bench.format, bench.table, str(uuid7()))
    bench.store.add_plan(plan, request_id=None, actor="test", estimate={}, queued=QueueEntry(needs_approval=True))
    bench.store.approve(plan.plan_id, "ada")
    return plan

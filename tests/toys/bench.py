# SPDX-License-Identifier: Apache-2.0
"""A table with a real database, and helpers with which tests disturb both."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from contract.case import Case
from contract.plans import plan_all
from databases import sqlite_at
from sqlalchemy import create_engine, text
from uuid_utils import uuid7

from executors.cleaner import CleanJob, CleanReport, clean_table
from executors.context import RunContext
from executors.observer import Observer
from executors.outcome import RunOutcome
from executors.run import run_plan
from executors.sweep import sweep_table
from executors.take_over import take_over_one
from lake.capabilities import pending_actions, pending_instants
from lake.model import TableRef
from lake.plan import Claim, Plan
from service.control.store import Store
from service.control.store.views import StoreSettings
from toys import timeline_tables
from toys.cases import TimelineCase

QUICK = (0.0, 0.01, 0.01)
"""Waits between questions, for tests."""


class Recorder(Observer):
    """Records the outcomes of plans."""

    def __init__(self) -> None:
        self.finished: list[tuple[str, str]] = []
        self.expired = 0
        self.deletions: list[tuple[str, int, int]] = []
        self.clean_failures: list[tuple[str, str]] = []
        self.rounds = 0

    def plan_finished(self, claim: Claim, outcome: RunOutcome) -> None:
        self.finished.append((outcome.result.value, outcome.reason))

    def lease_expired(self, claim: Claim) -> None:
        self.expired += 1

    def files_deleted(self, table: TableRef, files: int, bytes_: int) -> None:
        self.deletions.append((table.name, files, bytes_))

    def clean_failed(self, table: TableRef, reason: str) -> None:
        self.clean_failures.append((table.name, reason))

    def clean_succeeded(self) -> None:
        self.rounds += 1


class Bench:
    """A table of a case with a real store, and shorthands to plan, claim and run."""

    def __init__(self, home: Path, url: str, settings: StoreSettings, case: Case | None = None) -> None:
        self.home, self.url, self.case = home, url, case or TimelineCase()
        self.store = Store(url, settings)
        self.format: Any = self.case.format
        self.recorder = Recorder()
        self.table = self.add_table("toy")

    def add_table(self, name: str) -> TableRef:
        table = self.case.create(self.home / "lake" / name, name=name)
        self.store.register_table(table, "compact")
        return table

    def request(self, table: TableRef | None = None, **options: Any) -> Plan:
        """A requested plan over all live files of the table."""
        return self.requested(plan_all(self.format, table or self.table, str(uuid7()), **options))

    def adopt(self, instant: str = "7") -> Plan:
        """A requested plan over all live files that another process scheduled as ``instant``."""
        timeline_tables.schedule(self.table, instant)
        return self.requested(replace(plan_all(self.format, self.table, str(uuid7())), adopted_instant=instant))

    def requested(self, plan: Plan) -> Plan:
        self.store.add_plan(plan, request_id=None, actor="test", estimate={})
        return plan

    def scheduled(self) -> dict[str, bool]:
        """Return the pending instants of other processes, and whether each has begun."""
        return {u.instant: u.is_begun for u in pending_actions(self.format, self.table) if u.plan_id is None}

    def claim(self, executor: str = "first") -> Claim:
        claim = self.store.claim(executor)
        assert claim is not None
        return claim

    def context(self, **options: Any) -> RunContext:
        """Return the context of an executor, with retries without delay."""
        given: dict[str, Any] = {
            "store": self.store,
            "spark": self.case.spark,
            "formats": lambda _: self.format,
            "engines": self.case.engines,
            "observer": self.recorder,
            "retry_delays": QUICK,
        }
        return RunContext(**{**given, **options})

    def run(
        self, claim: Claim | None = None, *, format: Any = None, abort: threading.Event | None = None, **options: Any
    ) -> RunOutcome:
        """Claim and run with a quick heartbeat."""
        context = self.context(**{"heartbeat": timedelta(seconds=0.05), **options})
        return run_plan(claim or self.claim(), context, format=format or self.format, abort=abort)

    def rescue(self, executor: str = "rescuer", **options: Any) -> RunOutcome | None:
        """Take over one plan of a silent executor."""
        return take_over_one(executor, self.context(**options))

    def sweep(self) -> int:
        return sweep_table(self.table, self.context(), format=self.format)

    def clean(self, retention: timedelta = timedelta(), *, dry_run: bool = False) -> CleanReport:
        job = CleanJob(table=self.table, retention=retention)
        return clean_table(job, self.context(), format=self.format, dry_run=dry_run)

    def state(self, plan: Plan) -> str:
        return self.store.plan(plan.plan_id).state.value

    def pending(self) -> dict[str, str]:
        return dict(pending_instants(self.format, self.table))

    def commits(self, plan: Plan) -> int:
        return sum(plan_id == plan.plan_id for plan_id, _ in self.case.commits(self.table))

    def unowned(self) -> tuple[str, ...]:
        versions = [d.version for d in self.store.awaiting_deletion(self.table)]
        return self.format.verify(self.table, versions, rows=False).unowned

    def stored(self) -> dict[str, int]:
        return dict(self.case.stored(self.table))

    def rows(self) -> Sequence[str]:
        return self.case.rows(self.table)

    def expire(self) -> None:
        """Make the store believe that every executor has been silent for longer than its lease."""
        self.execute("UPDATE plan SET lease_until_ms = 0, grace_ms = 0 WHERE state = 'inflight'")

    def execute(self, statement: str) -> None:
        """Change the database behind the store's back."""
        engine = create_engine(self.url)
        with engine.begin() as connection:
            connection.execute(text(statement))
        engine.dispose()


@contextmanager
def bench_at(
    home: Path, case: Case | None = None, url: str | None = None, lease: timedelta = timedelta(minutes=1)
) -> Iterator[Bench]:
    """Yield a case on the database ``url``, or on a new one, with leases of a minute and retries without delay."""
    settings = StoreSettings(lease=lease, backoff=timedelta(0), max_attempts=3)
    made = Bench(home, url or sqlite_at(home), settings, case)
    try:
        yield made
    finally:
        made.store.close()


@contextmanager
def bench_on(database: str, case: Case, request: pytest.FixtureRequest, home: Path) -> Iterator[Bench]:
    """``bench_at`` on ``sqlite`` or ``postgresql``."""
    with ExitStack() as stack:
        lent = None
        if database == "postgresql":
            lent = stack.enter_context(request.getfixturevalue("postgres_databases").lend())
        yield stack.enter_context(bench_at(home, case, lent))


class Background:
    """Runs a call in a thread; ``join`` returns its result."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._answer: Any = None
        self._thread = threading.Thread(target=self._run, args=(call,))
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        self._answer = call()

    def join(self) -> Any:
        self._thread.join(timeout=30)
        assert not self._thread.is_alive(), "still running after 30 s"
        return self._answer


def raising(error: Exception) -> Any:
    def hook() -> None:
        raise error

    return hook


class Flaky:
    """A store; ``down`` has, for the name of a call, the number of its next calls that fail."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.down: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        if self.down.get(name, 0) > 0:
            self.down[name] -= 1
            return self._fail
        return getattr(self._store, name)

    @staticmethod
    def _fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("the database went away")

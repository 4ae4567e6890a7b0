# SPDX-License-Identifier: Apache-2.0
"""A toy table with a real SQLite store, and what tests need to disturb them."""

import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import toy_format
from toy_format import ToyFormat
from uuid_utils import uuid7

from executors.observer import Observer
from executors.outcome import Outcome
from executors.run import run_plan
from lake.model import TableRef
from lake.plan import Claim, Plan
from service.store import Store
from service.store.views import StoreSettings

QUICK = (0.0, 0.01, 0.01)
"""Waits between questions, for tests."""


def no_spark() -> Any:
    raise AssertionError("nothing here needs a Spark session")


class Recorder(Observer):
    """Remembers how plans ended."""

    def __init__(self) -> None:
        self.finished: list[tuple[str, str]] = []
        self.expired = 0
        self.deletions: list[tuple[str, int, int]] = []
        self.clean_failures: list[tuple[str, str]] = []
        self.rounds = 0

    def plan_finished(self, claim: Claim, outcome: Outcome) -> None:
        self.finished.append((outcome.result.value, outcome.reason))

    def lease_expired(self, claim: Claim) -> None:
        self.expired += 1

    def deleted(self, table: str, files: int, bytes_: int) -> None:
        self.deletions.append((table, files, bytes_))

    def clean_failed(self, table: str, reason: str) -> None:
        self.clean_failures.append((table, reason))

    def clean_succeeded(self) -> None:
        self.rounds += 1


class Bench:
    """One toy table with its store, and shorthands to plan, claim and run."""

    def __init__(self, home: Path, empty_database: Path, settings: StoreSettings) -> None:
        self.home, self.url = home, f"sqlite:///{home}/lakefold.db"
        shutil.copy(empty_database, home / "lakefold.db")
        self.store = Store(self.url, settings)
        self.format = ToyFormat()
        self.recorder = Recorder()
        self.table = self.add_table("toy")

    def add_table(self, name: str, **shape: int) -> TableRef:
        table = toy_format.create(self.home / "lake" / name, name=name, **shape)
        self.store.register(table, "compact")
        return table

    def request(self, table: TableRef | None = None, **options: Any) -> Plan:
        """A requested plan over all live files of the table."""
        plan = toy_format.plan(table or self.table, str(uuid7()), **options)
        self.store.add_plan(plan, request_id=None, actor="test", estimate={})
        return plan

    def adopt(self, instant: str = "7") -> Plan:
        """A requested plan over all live files that another process scheduled as ``instant``."""
        toy_format.schedule(self.table, instant)
        plan = replace(toy_format.plan(self.table, str(uuid7())), adopted=instant)
        self.store.add_plan(plan, request_id=None, actor="test", estimate={})
        return plan

    def scheduled(self) -> dict[str, bool]:
        """Instants of other processes that are pending, and whether somebody has begun them."""
        return {u.instant: u.begun for u in ToyFormat().unfinished(self.table) if u.plan_id is None}

    def claim(self, executor: str = "first") -> Claim:
        claim = self.store.claim(executor)
        assert claim is not None
        return claim

    def run(self, claim: Claim | None = None, **options: Any) -> Outcome:
        """Claim and run with a quick heartbeat."""
        settings = {"heartbeat": timedelta(seconds=0.05), "ask_again": QUICK, "store": self.store, **options}
        return run_plan(claim or self.claim(), format=self.format, spark=no_spark, observer=self.recorder, **settings)

    def state(self, plan: Plan) -> str:
        return self.store.plan(plan.plan_id).state.value

    def pending(self) -> dict[str, str]:
        return dict(ToyFormat().pending(self.table))

    def commits(self, plan: Plan) -> int:
        return sum(m.get("plan_id") == plan.plan_id for m in toy_format.manifests(self.table))

    def unowned(self) -> tuple[str, ...]:
        versions = [d.version for d in self.store.superseded(self.table)]
        return ToyFormat().verify(self.table, versions, rows=False).unowned

    def rows(self) -> list[str]:
        return toy_format.table_rows(self.table)

    def expire(self) -> None:
        """Make the store believe that every executor has been silent for longer than its lease."""
        with sqlite3.connect(self.home / "lakefold.db") as connection:
            connection.execute("UPDATE plan SET lease_until_ms = 0 WHERE state = 'inflight'")
        connection.close()


class Background:
    """Runs a call in a thread and hands its answer over."""

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


def eventually(check: Callable[[], object], seconds: float = 10) -> None:
    """Wait until ``check`` is true."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"{check} did not become true within {seconds} s"
        time.sleep(0.01)


def raising(error: Exception) -> Any:
    def hook() -> None:
        raise error

    return hook


class Flaky:
    """A store whose named calls fail as long as ``down`` says so."""

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

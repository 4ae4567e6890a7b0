# SPDX-License-Identifier: Apache-2.0
"""Two lakefolds, each with a database of its own, on one Hudi table: neither deletes what the other one retains."""

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from databases import sqlite_at, store_at
from hudi_writing import FORMAT, NewTable, Table
from uuid_utils import uuid7

from executors.context import RunContext
from executors.outcome import RunResult
from executors.run import run_plan
from lake.model import TableRef
from service.control.config.loader import load_config
from service.control.config.table_settings import configure_table
from service.control.store import Store
from service.server.daemon.maintenance import Maintenance
from service.server.observability.metrics import Metrics

pytestmark = [pytest.mark.spark, pytest.mark.slow]
EIGHT_DAYS_MS = 8 * 24 * 3600 * 1000
RETAINS_ONE = {"hoodie.clean.commits.retained": "1"}


class Installation:
    """A lakefold at a home of its own, which serves the table with these settings of its policy."""

    def __init__(self, trips: Table, home: Path, **policy: object) -> None:
        home.mkdir(exist_ok=True)
        settings = "\n".join(f"{key} = {json.dumps(value)}" for key, value in policy.items())
        options = "\n".join(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in trips.ref.write_options.items())
        (home / "lakefold.toml").write_text(
            f'[database]\nurl = "{sqlite_at(home)}"\n[[sources]]\npath = "{Path(trips.base).parent}"\n'
            f"[defaults]\n{settings}\n"
            '[[tables]]\nmatch = "trips"\nmode = "compact"\nconcurrency = "single_writer"\n'
            f"[tables.write_options]\n{options}\n"
        )
        self.home, self._spark = home, trips.spark
        self.config = load_config(home / "lakefold.toml")
        self.ref: TableRef = configure_table(self.config, trips.ref).ref
        self.store: Store = store_at(home)
        self.store.register_table(self.ref, "compact")

    def upkeep(self) -> Maintenance:
        """The loops that tidy its tables, as its daemon has them."""
        return Maintenance(self.config, self.store, lambda: self._spark, Metrics("all"))

    def compact(self, trips: Table) -> set[str]:
        """Have one plan of all partitions run and recorded; the paths that it replaced."""
        plan = replace(trips.plan(str(uuid7())), table=self.ref)
        self.store.add_plan(plan, request_id=None, actor="scheduler", estimate={})
        claim = self.store.claim("its executor")
        assert claim is not None
        outcome = run_plan(claim, RunContext(store=self.store, spark=lambda: self._spark), format=FORMAT)
        assert (outcome.result, outcome.error) == (RunResult.COMPLETED, "")
        return {due.version.path for due in self.store.awaiting_deletion(self.ref)}


Install = Callable[..., Installation]


@pytest.fixture
def install(tmp_path: Path) -> Iterator[Install]:
    """Makes an installation of a name."""
    with ExitStack() as stack:

        def new(trips: Table, name: str, **policy: Any) -> Installation:
            made = Installation(trips, tmp_path / name, **policy)
            stack.callback(made.store.close)
            return made

        yield new


def test_the_table_services_of_a_second_lakefold_delete_nothing_that_the_first_one_retains(
    table: NewTable, install: Install
) -> None:
    trips = table(**RETAINS_ONE)
    first = install(trips, "first", retention="7d")
    second = install(trips, "second", retention="7d", table_services=["clean"])
    inputs = first.compact(trips)
    trips.upsert(0, 60, 1)
    rows = trips.rows()
    assert second.store.awaiting_deletion(second.ref) == [], "its database knows nothing of that plan"
    assert second.upkeep().run_table_services() == []
    assert inputs <= trips.data_files().keys()
    hasty = install(trips, "third", retention="0s", table_services=["clean"])
    assert hasty.upkeep().run_table_services() == [f"trips: the table's clean policy deleted {len(inputs)} files"], (
        "by its policy, and its own retention, all of them go"
    )
    assert trips.rows() == rows


def test_the_cleaner_of_a_second_lakefold_deletes_nothing_that_was_replaced_within_its_retention(
    table: NewTable, install: Install, tmp_path: Path
) -> None:
    trips = table(**RETAINS_ONE)
    first = install(trips, "first", retention="7d")
    inputs = first.compact(trips)
    rows = trips.rows()
    # A database that was copied, for which all of that is long ago.
    (tmp_path / "second").mkdir()
    with closing(sqlite3.connect(tmp_path / "first/lakefold.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(tmp_path / "first/lakefold.db", tmp_path / "second/lakefold.db")
    with closing(sqlite3.connect(tmp_path / "second/lakefold.db")) as connection, connection:
        connection.execute(f"UPDATE superseded_version SET superseded_at_ms = superseded_at_ms - {EIGHT_DAYS_MS}")
    second = install(trips, "second", retention="7d")
    (report,) = second.upkeep().clean()
    assert (report.deleted_files, report.error) == (0, None)
    assert len(report.kept) == len(inputs)
    assert all("retained until" in kept.reason for kept in report.kept), "and each says until when"
    assert inputs <= trips.data_files().keys()
    first.store.close()
    (report,) = install(trips, "first", retention="0s").upkeep().clean()
    assert (report.deleted_files, report.error) == (len(inputs), None), (
        "the first one's to delete, when it no more retains them"
    )
    assert inputs.isdisjoint(trips.data_files())
    assert trips.rows() == rows

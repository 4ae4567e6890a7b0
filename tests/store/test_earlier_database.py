# SPDX-License-Identifier: Apache-2.0
"""A database that an earlier lakefold wrote, with plans in every state of their lives: upgraded, they end right.

``database_0003.json`` is what the release with revision 0003 left: the rows of its database, the commits and pending
plans of its one table (of the format with a timeline), and which ids are in which data file. Its executor was killed
before, in and after commits.
"""

import json
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import postgres
import pyarrow.parquet as pq
import pytest
from alembic import command
from sqlalchemy import Connection, MetaData, text
from toys.cases import TimelineCase, no_spark
from toys.files import modified_at, rows

from executors.cleaner import CleanJob, clean_table
from executors.context import RunContext
from executors.outcome import RunResult
from executors.sweep import sweep_table
from executors.worker import Worker, WorkerSettings
from lake.model import TableRef
from service.control import serializers
from service.control.config.loader import load_config
from service.control.store import Store, schema
from service.control.store.database import Database
from service.control.store.schema import alembic_config
from service.control.store.views import StoreSettings
from service.control.wiring import create_store

pytestmark = pytest.mark.slow


FOUND = json.loads((Path(__file__).parent / "database_0003.json").read_text())
ENDS = {
    "completed and cleaned": "completed",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "failed, and committed by its sleeping executor": "completed",
    "waits after an attempt": "completed",
    "killed before its commit": "completed",
    "killed after its commit": "completed",
    "killed when it was to be cancelled": "cancelled",
    "adopted, killed before its commit": "completed",
    "waits": "completed",
}
"""How each plan of the earlier database has to end, by what had happened to it."""


@pytest.fixture
def table(tmp_path: Path) -> TableRef:
    """The table as the earlier lakefold left it."""
    base = tmp_path / "toy"
    for path, (low, high) in FOUND["rows"].items():
        (base / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows(low, high), base / path)
    for name, document in FOUND["documents"].items():
        for item in (*document.get("files", ()), *document.get("outputs", ())):
            item["bytes"] = (base / item["path"]).stat().st_size if (base / item["path"]).exists() else 0
        for item in document.get("superseded", ()):
            there = (base / item["path"]).exists()
            item["bytes"] = (base / item["path"]).stat().st_size if there else 0
            item["modified_at"] = modified_at(base / item["path"]).isoformat() if there else "2026-01-01T00:00:00+00:00"
        (base / name).parent.mkdir(exist_ok=True)
        (base / name).write_text(json.dumps({"epoch": None, **document}))
    return TableRef(name="toy", format="toy", location=str(base))


@pytest.fixture(params=["sqlite", "postgresql"])
def earlier(request: pytest.FixtureRequest, tmp_path: Path, table: TableRef) -> Iterator[str]:
    """The database as the earlier lakefold left it a day ago."""
    url, server, name = f"sqlite:///{tmp_path}/earlier.db", None, f"lakefold_{uuid.uuid4().hex[:12]}"
    if request.param == "postgresql":
        server = request.getfixturevalue("postgres_url")
        url = postgres.new_database(server, name)
    database, config = Database(url), alembic_config()
    if database.sqlite_file is not None:
        database.sqlite_file.create()
    with database.write() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0003")
        _fill(connection, Path(table.location))
    database.close()
    yield url
    if server is not None:
        postgres.drop_database(server, name)


def _fill(connection: Connection, base: Path) -> None:
    dialect = connection.dialect.name
    for statement in schema.drop_trigger_statements(dialect):  # plans are stored in the states they were in
        connection.execute(text(statement))
    metadata = MetaData()
    metadata.reflect(connection)
    newest = max(event["at_ms"] for event in FOUND["tables"]["plan_event"])
    later = round((time.time() - timedelta(days=1).total_seconds()) * 1000) - newest
    for table in metadata.sorted_tables:
        for row in FOUND["tables"].get(table.name, ()):
            connection.execute(table.insert().values(_value(row, base, later)))
        if dialect == "postgresql" and table.name in ("plan_event", "superseded_version"):
            numbers = f"pg_get_serial_sequence('{table.name}', 'id')"
            connection.execute(text(f"SELECT setval({numbers}, (SELECT max(id) FROM {table.name}))"))
    for statement in schema.create_trigger_statements(dialect):
        connection.execute(text(statement))


def _value(row: dict[str, Any], base: Path, later: int) -> dict[str, Any]:
    """A row as this machine has it: its directories, its clock, and files as large as its Parquet writer makes them."""
    values = {
        key: value.replace("{location}", str(base)) if isinstance(value, str) else value for key, value in row.items()
    }
    values |= {key: value + later for key, value in row.items() if key.endswith("_ms")}
    if "files" in row:
        values["files"] = bytes.fromhex(row["files"])
    if "path" in row and (base / row["path"]).exists():
        values["bytes"] = (base / row["path"]).stat().st_size
    return values


def test_plans_of_an_earlier_lakefold_end_right_after_the_upgrade(earlier: str, table: TableRef) -> None:
    case = TimelineCase()
    before = case.rows(table)
    store = Store(earlier, StoreSettings(backoff=timedelta()))
    store.upgrade()
    worker = Worker(
        RunContext(store=store, spark=no_spark, formats=lambda _: case.format),
        settings=WorkerSettings(drain_timeout=timedelta(seconds=5)),
    )
    ended = worker.run_once()
    assert (ended[RunResult.COMPLETED], ended[RunResult.CANCELLED], ended[RunResult.FAILED]) == (5, 1, 0)
    sweep_table(table, RunContext(store=store, spark=no_spark), format=case.format)
    states = {role: store.plan(plan_id).state.value for role, plan_id in FOUND["roles"].items()}
    assert states == ENDS
    commits = [plan_id for plan_id, _ in case.commits(table)]
    assert sorted(commits) == sorted(FOUND["roles"][role] for role, state in ENDS.items() if state == "completed")
    assert (store.locked_partitions("toy"), case.format.pending_instants(table)) == ({}, {})
    assert case.rows(table) == before

    report = clean_table(
        CleanJob(table=table, retention=timedelta()), RunContext(store=store, spark=no_spark), format=case.format
    )
    assert (report.kept, report.no_longer_awaiting, report.error, store.awaiting_deletion(table)) == ((), (), None, [])
    live = {item["path"] for item in case.format.live(table)}
    assert {str(path.relative_to(table.location)) for path in Path(table.location).rglob("*.parquet")} == live
    assert case.rows(table) == before
    store.close()


def test_a_failed_plan_of_an_earlier_lakefold_can_be_tried_again(earlier: str, table: TableRef) -> None:
    case, failed = TimelineCase(), FOUND["roles"]["failed"]
    store = Store(earlier, StoreSettings(backoff=timedelta()))
    store.upgrade()
    store.retry(failed, "ann")
    settings = WorkerSettings(drain_timeout=timedelta(seconds=5))
    Worker(RunContext(store=store, spark=no_spark, formats=lambda _: case.format), settings=settings).run_once()
    assert store.plan(failed).state.value == "completed"
    assert [plan_id for plan_id, _ in case.commits(table)].count(failed) == 1
    store.close()


def test_a_configuration_of_former_names_opens_it_and_its_plans_are_shown_with_the_present_names(
    earlier: str, table: TableRef, tmp_path: Path
) -> None:
    file = tmp_path / "lakefold.toml"
    file.write_text(f'[database]\nurl = "{earlier}"\nkeep_finished = "9d"\n[defaults]\nreceipt = "hash"\n')
    config = load_config(file)
    assert [notice.split(";")[0] for notice in config.renamed] == [
        f"{file}:3: [database] keep_finished was renamed to plan_retention",
        f"{file}:5: receipt was renamed to verification",
    ]
    store = create_store(config)
    store.upgrade()
    shown = [serializers.plan_details(store.plan(plan_id), (), None, None) for plan_id in FOUND["roles"].values()]
    assert {plan["options"]["verification"] for plan in shown} == {"hash"}
    assert all(plan["options"]["receipt"] == "hash" for plan in shown)
    assert {plan["step"] for plan in shown} == {None, "prepare", "verify", "record"}
    steps = {step for plan in shown for step in plan["milliseconds"]}
    assert {"find_commit", "verify"} <= steps, steps
    assert not steps & {"ask", "receipt"}
    store.close()

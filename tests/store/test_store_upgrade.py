# SPDX-License-Identifier: Apache-2.0
"""A database of an earlier lakefold, with live, waiting and ended plans in it, upgraded and taken back."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pyarrow as pa
import pytest
from alembic import command
from store_plans import TRIPS, add, claimed, commit_of, figures_of, make_plan, sql

from lake.model import HISTOGRAM_EDGES_BYTES
from lake.plan import LockOwner, LockOwnerKind, PlanState, StagedWork
from planner.slo.model import Objective, ObjectiveEvaluation
from service.control.store import PARTITION_SCHEMA, Bearer, ScanRecord, Store, TableOrder
from service.control.store.database import Database
from service.control.store.plan_creation import QueueEntry
from service.control.store.schema import alembic_config

#: the last revision before files were known by more than their path
BEFORE = "0006"


def to(url: str, revision: str) -> None:
    """Bring the schema of a database up or down to ``revision``."""
    database, config = Database(url), alembic_config()
    with database.write() as connection:
        config.attributes["connection"] = connection
        move = command.upgrade if revision == "head" else command.downgrade
        move(config, revision)
    database.close()


@pytest.fixture
def earlier(database_url: str) -> Iterator[Store]:
    """A store over a database as an earlier lakefold left it: a completed, a failed, an inflight and a waiting plan."""
    store = Store(database_url)
    done = add(store, "dt=1")
    store.complete(claimed(store), commit_of(done, "20260101"), figures_of(done), {})
    add(store, "dt=2")
    store.fail(claimed(store), "no space left")
    add(store, "dt=3", "dt=4")
    claim = claimed(store, "its-executor")
    for token in ("20260102", "20260103"):
        store.record_staged(claim, StagedWork(token=token, paths=("dt=3/",)))
    add(store, "dt=5")
    to(database_url, BEFORE)
    yield store
    store.close()


def test_an_earlier_database_is_upgraded_and_its_plans_end_right(earlier: Store, database_url: str) -> None:
    (inflight,) = sql(database_url, "SELECT id, epoch, executor, instants FROM plan WHERE state = 'inflight'")
    assert json.loads(inflight.instants) == ["20260102", "20260103"]
    to(database_url, "head")
    states = PlanState.COMPLETED, PlanState.FAILED, PlanState.INFLIGHT, PlanState.REQUESTED
    assert [len(earlier.plans(state=state)) for state in states] == [1, 1, 1, 1]
    assert set(earlier.locked_partitions(TRIPS.name)) == {"dt=3", "dt=4", "dt=5"}
    assert earlier.orphaned_stagings(TRIPS) == [], "its executor works on it"
    sql(database_url, "UPDATE plan SET lease_until_ms = 0 WHERE state = 'inflight'")
    rescued = earlier.take_over_expired("another")
    assert rescued is not None
    assert (rescued.plan.plan_id, rescued.epoch) == (inflight.id, inflight.epoch + 1)
    assert rescued.staged == (StagedWork(token="20260102"), StagedWork(token="20260103"))
    earlier.complete(rescued, commit_of(rescued.plan, "20260103"), figures_of(rescued.plan), {})
    assert [left.staged.token for left in earlier.orphaned_stagings(TRIPS)] == ["20260102"]
    assert earlier.plan(inflight.id).instants == ("20260102", "20260103")
    waiting = claimed(earlier)
    earlier.complete(waiting, commit_of(waiting.plan, "20260105"), figures_of(waiting.plan), {})
    assert earlier.locked_partitions(TRIPS.name) == {}


def test_superseded_files_of_an_earlier_database_are_known_by_path_and_size_only(
    earlier: Store, database_url: str
) -> None:
    to(database_url, "head")
    due = earlier.due_for_deletion(TRIPS, timedelta())
    assert [(d.version.instant, d.version.modified_at, d.deletion_begun_at) for d in due] == [
        ("20260101", None, None)
    ] * 2
    assert due[0].version.difference(due[0].version.bytes, due[0].superseded_at) is None


def test_a_downgrade_removes_the_additions_and_keeps_live_plans(earlier: Store, database_url: str) -> None:
    to(database_url, "head")
    earlier.begin_deletion([due.row_id for due in earlier.awaiting_deletion(TRIPS)])
    kept = "SELECT table_name, partition_path, plan_id FROM live_partition ORDER BY partition_path"
    before = sql(database_url, kept)
    assert earlier.lock_partitions(TRIPS, ["dt=1", "dt=3"], LockOwner(kind=LockOwnerKind.SWEEP, name="a round")) == {
        "dt=1"
    }
    to(database_url, BEFORE)
    assert sql(database_url, kept) == before
    assert sql(database_url, "SELECT count(*) FROM plan") == [(4,)]
    to(database_url, "head")
    assert set(earlier.locked_partitions(TRIPS.name)) == {"dt=3", "dt=4", "dt=5"}


def test_objectives_are_removed_by_a_downgrade_and_evaluated_again_after_the_next_upgrade(database_url: str) -> None:
    store = Store(database_url)
    store.register_table(TRIPS, "compact")
    judged = ObjectiveEvaluation(
        objective=Objective.SMALL_FILE_SHARE,
        value=0.5,
        bound=0.1,
        goal=0.99,
        window=timedelta(days=28),
        valid_for=timedelta(hours=1),
    )
    found = ScanRecord(table=TRIPS.name, taken_at=datetime.now(UTC))
    store.record_scan(found, None, [judged])
    plan = make_plan("dt=1")
    store.add_plan(plan, request_id=None, actor="test", estimate={}, queued=QueueEntry(urgency=timedelta(hours=40)))
    ranks = "SELECT rank_ms FROM plan"
    before = sql(database_url, ranks)
    to(database_url, "0022")
    assert sql(database_url, ranks) == before
    to(database_url, "head")
    assert store.objectives() == {}
    store.record_scan(found, None, [judged])
    assert not store.objectives()[TRIPS.name][0].met
    store.close()


def test_an_upgrade_derives_reducible_files_of_scans_without_waiting_files(database_url: str) -> None:
    store = Store(database_url)
    store.register_table(TRIPS, "compact")
    found = ScanRecord(
        table=TRIPS.name,
        taken_at=datetime.now(UTC).replace(microsecond=0),
        files=9,
        small_files=8,
        reducible_files=6,
        reducible_bytes=60,
        skipped={"above_limit": 1, "alone": 2},
    )
    unknown = {"reducible_files": None, "reducible_bytes": None}
    store.record_scan(found, pa.table({field.name: [] for field in PARTITION_SCHEMA}, schema=PARTITION_SCHEMA))
    store.record_scan(replace(found, skipped={"recent": 2}))
    store.record_scan(replace(found, log_files=3))
    store.record_scan(replace(found, outcome="error", error="no", **unknown))
    to(database_url, "0008")
    records = [json.loads(row.record) for row in sql(database_url, "SELECT record FROM scan_history ORDER BY id")]
    assert [record["backlog_files"] for record in records] == [6, 6, 6, 0]
    to(database_url, "head")
    assert store.scans(TRIPS.name) == [
        replace(found, outcome="error", error="no", **unknown),
        replace(found, log_files=3, **unknown),
        replace(found, skipped={"recent": 2}, **unknown),
        found,
    ]
    assert store.partition_layout(TRIPS.name) is None, "the next scan makes it anew"
    store.close()


def test_a_downgrade_keeps_tokens_for_all_tables_and_drops_new_fields_of_scans(
    database_url: str,
) -> None:
    store = Store(database_url)
    store.add_token("old", digest="d" * 64, scope="write", expires_in=None, actor="test")
    store.register_table(TRIPS, "compact")
    store.record_scan(ScanRecord(table=TRIPS.name, taken_at=datetime.now(UTC), overlaps=1, overlap="met"))
    to(database_url, "0010")
    (row,) = sql(database_url, "SELECT record FROM scan_history")
    assert not {"overlaps", "overlap", "not_planned"} & set(json.loads(row.record))
    to(database_url, "head")
    assert store.tokens_in_force() == {"d" * 64: Bearer(name="old", scope="write")}
    assert (store.scans(TRIPS.name)[0].overlaps, store.audit_entries()) == (0, [])
    store.close()


def test_scans_lose_the_files_of_others_for_an_earlier_lakefold(database_url: str) -> None:
    store = Store(database_url)
    store.register_table(TRIPS, "compact")
    found = ScanRecord(table=TRIPS.name, taken_at=datetime.now(UTC), foreign_files=1, foreign_file="junk.parquet")
    store.record_scan(found)
    to(database_url, "0030")
    (row,) = sql(database_url, "SELECT record FROM scan_history")
    assert not {"foreign_files", "foreign_file"} & set(json.loads(row.record))
    to(database_url, "head")
    assert (store.scans(TRIPS.name)[0].foreign_files, store.scans(TRIPS.name)[0].foreign_file) == (0, None)
    store.close()


def test_scans_lose_the_median_for_an_earlier_lakefold(database_url: str) -> None:
    store = Store(database_url)
    store.register_table(TRIPS, "compact")
    store.record_scan(ScanRecord(table=TRIPS.name, taken_at=datetime.now(UTC), median_bytes=7, waiting_seconds=60))
    to(database_url, "0032")
    (row,) = sql(database_url, "SELECT record FROM scan_history")
    assert not {"median_bytes", "waiting_seconds", "is_gone"} & json.loads(row.record).keys()
    to(database_url, "head")
    assert store.scans(TRIPS.name)[0].median_bytes is None
    store.close()


def test_an_upgrade_copies_the_last_good_scans_to_the_rows_of_their_tables(database_url: str) -> None:
    store, chance, now = Store(database_url), Random(16), datetime.now(UTC)
    names = [f"{'Ab_.é'[number % 5]}{number}" for number in range(40)]
    for number, name in enumerate(names):
        store.register_table(replace(TRIPS, name=name, location=f"/lake/{number}"), "compact")
        counts = [chance.choice((0, 0, 0, 1, 7)) for _ in range(len(HISTOGRAM_EDGES_BYTES) + 1)]
        good = ScanRecord(
            table=name,
            taken_at=now - timedelta(seconds=number),
            files=sum(counts),
            bytes=chance.randrange(10**16),
            small_files=sum(counts) // 2,
            histogram=tuple(counts if number % 4 else ()),
            reducible_files=sum(counts) // 3 if number % 3 else None,
            reducible_bytes=chance.randrange(10**16) if number % 3 else None,
        )
        if number % 7:
            store.record_scan(replace(good, files=number, bytes=number))
            store.record_scan(good)
        if not number % 5:
            store.record_scan(ScanRecord(table=name, taken_at=now, outcome="error", error="no such file"))
    rows = "SELECT * FROM table_state ORDER BY name"
    before = sql(database_url, rows), [store.list_tables(order, limit=99) for order in TableOrder]
    to(database_url, "0016")
    assert not [name for name in sql(database_url, rows)[0]._fields if name.startswith("good_")]
    to(database_url, "head")
    assert (sql(database_url, rows), [store.list_tables(order, limit=99) for order in TableOrder]) == before
    assert sum(row.good_files is None for row in sql(database_url, rows)) == 6
    store.close()

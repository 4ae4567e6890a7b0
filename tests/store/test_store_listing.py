# SPDX-License-Identifier: Apache-2.0
"""Plans as the database lists, shows, packs and counts them, on SQLite and PostgreSQL."""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from store_plans import MIB, TRIPS, add, claimed, commit_of, figures_of, finish, make_plan, slices, sql
from uuid_utils import uuid7

from lake.plan import ClusteringGroup, PlanKind, PlanState, Step
from service.control.store import Store
from service.control.store.rows import pack_slices, unpack_slices

pytestmark = pytest.mark.paired("database_url")


def test_plans_are_listed_newest_first_page_by_page(store: Store) -> None:
    ids = [add(store, f"dt={n}").plan_id for n in range(5)]
    other = add(store, "dt=1", table=replace(TRIPS, name="other")).plan_id
    store.request_cancel(ids[2], "ada")
    newest = store.plans(limit=2)
    assert [p.plan_id for p in newest] == [other, ids[4]]
    assert [p.plan_id for p in store.plans(limit=2, after=newest[-1].plan_id)] == [ids[3], ids[2]]
    assert [p.plan_id for p in store.plans(table=TRIPS.name, state=PlanState.REQUESTED)] == [
        ids[4],
        ids[3],
        ids[1],
        ids[0],
    ]
    assert [p.plan_id for p in store.plans(state=PlanState.CANCELLED)] == [ids[2]]
    assert store.plans(after=ids[0]) == []


def test_a_plan_view_has_the_planned_groups(store: Store) -> None:
    request_id = store.add_request(TRIPS.name, actor="ada")
    plan = make_plan("dt=2", "dt=1", "dt=2")
    store.add_plan(plan, request_id=request_id, actor="ada", estimate={"output_files": 3})
    view = store.plan(plan.plan_id)
    assert (view.table, view.format, view.kind, view.state) == (
        TRIPS.name,
        "hudi",
        PlanKind.CLUSTERING,
        PlanState.REQUESTED,
    )
    assert (view.group_count, view.partition_count, view.partitions) == (3, 2, ("dt=1", "dt=2"))
    assert (view.input_files, view.input_bytes, view.output_files) == (6, 48 * MIB, 3)
    assert [(g.number, g.partition, g.slices, g.input_bytes) for g in view.groups] == [
        (0, "dt=2", 2, 16 * MIB),
        (1, "dt=1", 2, 16 * MIB),
        (2, "dt=2", 2, 16 * MIB),
    ]
    assert (view.estimate, view.request_id, view.actor) == ({"output_files": 3}, request_id, "ada")
    assert view.options["sort_columns"] == ["a", "b"]
    assert abs(view.created_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert [p.plan_id for p in store.plans(request_id=request_id)] == [plan.plan_id]
    assert store.plan_events(plan.plan_id)[0].reason == f"planned for request {request_id}"


@pytest.mark.slow
def test_ten_thousand_slices_survive_storing_in_a_small_blob(store: Store) -> None:
    many = (
        *slices("dt=1", 9_998),
        replace(
            slices("dt=1", 1)[0],
            file_id="logs only",
            path=None,
            bytes=0,
            rows=None,
            log_files=("l1", "l2"),
            log_bytes=99,
        ),
        replace(slices("dt=1", 1)[0], file_id="ü\n", path="dt=1/ü %00'.parquet", bytes=1 << 50),
    )
    assert unpack_slices(pack_slices(many), "dt=1") == many
    assert len(pack_slices(many)) < 200_000
    plan = replace(make_plan("x"), groups=(ClusteringGroup(partition="dt=1", slices=many, output_files=7),))
    store.add_plan(plan, request_id=None, actor="s", estimate={})
    claim = claimed(store)
    assert claim.plan == plan
    assert store.plan(plan.plan_id).input_files == 9_999
    store.complete(claim, commit_of(plan), figures_of(plan), {})
    assert [due.version for due in store.awaiting_deletion(TRIPS)] == list(commit_of(plan).superseded)


def test_figures_equal_an_independent_count(store: Store, database_url: str) -> None:
    other = replace(TRIPS, name="other", location=f"{TRIPS.location}-other")
    finish(store, "dt=1", "i1")
    finish(store, "dt=2", "i2")
    finish(store, "dt=1", "i1", table=other)
    store.mark_deleted([store.awaiting_deletion(TRIPS)[0].row_id])
    add(store, "dt=5", "dt=6")
    store.record_step(claimed(store), Step.PREPARE)
    oldest = add(store, "dt=7")
    add(store, "dt=8")
    store.pause(None, "ada")
    figures = store.figures()
    assert figures.paused
    assert {(f.table, f.state, f.plans, f.input_bytes) for f in figures.plans} == {
        (TRIPS.name, PlanState.COMPLETED, 2, 32 * MIB),
        ("other", PlanState.COMPLETED, 1, 16 * MIB),
        (TRIPS.name, PlanState.INFLIGHT, 1, 32 * MIB),
        (TRIPS.name, PlanState.REQUESTED, 2, 32 * MIB),
    }
    assert figures.count(PlanState.COMPLETED) == 3
    assert figures.backlog_bytes == 64 * MIB
    assert figures.oldest_requested_at == store.plan(oldest.plan_id).not_before
    assert (figures.files_removed, figures.bytes_rewritten) == (3, 48 * MIB)
    assert {(f.table, f.files, f.bytes) for f in figures.superseded} == {
        (TRIPS.name, 3, 24 * MIB),
        ("other", 2, 16 * MIB),
    }
    (count,) = sql(
        database_url, "SELECT count(*) AS n, sum(bytes) AS b FROM superseded_version WHERE deleted_at_ms IS NULL"
    )
    assert (count.n, count.b) == (sum(f.files for f in figures.superseded), sum(f.bytes for f in figures.superseded))
    assert figures.halted_tables == ()
    assert [t.name for t in figures.tables] == [TRIPS.name, "other"]


@pytest.mark.slow
def test_a_hundred_thousand_stored_plans_cost_little(store: Store, database_url: str) -> None:
    for number in range(20):
        store.register_table(replace(TRIPS, name=f"t{number}"), "compact")
    add(store, "dt=1", table=replace(TRIPS, name="t0"))
    (row,) = sql(database_url, "SELECT * FROM plan")
    columns = [c for c in row._mapping if c not in ("id", "table_name")]
    # Ids and tables count up from the one real plan; most plans ended, as in a database of some years.
    numbers = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000) SELECT i FROM n"
        if database_url.startswith("sqlite")
        else "SELECT i FROM generate_series(1, 100000) AS g(i)"
    )
    insert = (
        f"INSERT INTO plan (id, table_name, {', '.join(columns)})"
        f" SELECT '00000000-' || i, 't' || (i % 20), {', '.join(columns)} FROM ({numbers}) AS s, plan"
    )
    sql(database_url, insert)
    sql(
        database_url,
        "UPDATE plan SET state = 'cancelled', finalized_at_ms = 1 WHERE id LIKE '00000000-%' AND id NOT LIKE '%00'",
    )
    sql(database_url, "ANALYZE")
    timings = {}
    for name, use in {
        "figures": store.figures,
        "plans": lambda: store.plans(state=PlanState.REQUESTED),
        "page": lambda: store.plans(table="t3", after="00000000-5", limit=50),
        "claim": lambda: store.claim("e"),
        "expired": lambda: store.take_over_expired("e"),
    }.items():
        use()
        timings[name] = min(_seconds(use) for _ in range(5))
    assert store.figures().count(*PlanState) == 100_001
    # The best of five, since a shared machine may be slow; a missing index costs several times these.
    assert timings.pop("figures") < 0.5
    assert max(timings.values()) < 0.15, timings


def _seconds(use: Callable[[], object]) -> float:
    began = time.perf_counter()
    use()
    return time.perf_counter() - began


def test_plan_ids_of_one_process_are_ordered_by_time() -> None:
    ids = [str(uuid7()) for _ in range(1000)]
    assert ids == sorted(ids)


def test_the_newest_plan_of_each_table_is_found(store: Store) -> None:
    other = replace(TRIPS, name="a.other")
    add(store, "dt=1")
    newest, only = add(store, "dt=2"), add(store, "dt=1", table=other)
    store.register_table(replace(TRIPS, name="a.none"), "compact")
    found = store.newest_plans([TRIPS.name, other.name, "a.none"])
    assert {name: plan.plan_id for name, plan in found.items()} == {
        TRIPS.name: newest.plan_id,
        other.name: only.plan_id,
    }
    assert store.newest_plans([]) == store.newest_failed_plans([]) == {}


def test_plans_are_found_of_more_tables_than_a_statement_can_name(store: Store) -> None:
    failed, fails_no_more = (replace(TRIPS, name=name) for name in ("a.failed", "z.fails_no_more"))
    for table in (failed, fails_no_more):
        add(store, "dt=1", table=table)
        store.fail(claimed(store), "no space left")
    newest = add(store, "dt=2", table=fails_no_more)
    names = [failed.name, *(f"m.{number}" for number in range(70_000)), fails_no_more.name]
    assert list(store.newest_failed_plans(names)) == [failed.name]
    found = store.newest_plans(names)
    assert [found[name].state for name in found] == [PlanState.FAILED, PlanState.REQUESTED]
    assert found[fails_no_more.name].plan_id == newest.plan_id

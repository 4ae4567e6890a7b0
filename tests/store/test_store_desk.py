# SPDX-License-Identifier: Apache-2.0
"""Tables, scans, requests, superseded versions, leaders, listings and figures, on SQLite and PostgreSQL."""

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import time_machine
from store_plans import MIB, TRIPS, add, claimed, commit_of, figures_of, make_plan, slices, sql
from uuid_utils import uuid7

from lake.model import Concurrency, OnConflict, TableRef
from lake.plan import ClusteringGroup, PlanKind, PlanState, Step
from service.store import Contest, IdempotencyMismatch, NotFound, ScanRecord, Store, StoreSettings
from service.store.blobs import pack, unpack

pytestmark = pytest.mark.paired("database_url")

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_a_registered_table_comes_back_as_it_was_and_can_be_changed(store: Store) -> None:
    store.register(TRIPS, "observe")
    store.pause(TRIPS.name, "ada", "is moved\nto another disk")
    state = store.table_state(TRIPS.name)
    assert (state.ref, state.mode, state.paused, state.pause.words) == (
        TRIPS, "observe", True, "by ada: is moved to another disk",
    )  # fmt: skip
    assert (state.name, state.format, state.location, state.halted) == (TRIPS.name, "hudi", "/lake/trips", False)
    moved = replace(
        TRIPS,
        location="/lake/elsewhere",
        concurrency=Concurrency.OCC,
        on_conflict=OnConflict.WRITER_WINS,
        write_options={"a": "b"},
    )
    store.register(moved, "compact")
    again = store.table_state(TRIPS.name)
    assert (again.ref, again.mode, again.paused) == (moved, "compact", True)
    assert again.registered_at == state.registered_at
    assert [table.name for table in store.tables()] == [TRIPS.name]


def test_unknown_tables_are_named(store: Store) -> None:
    for use in (
        lambda: store.table_state("nope"),
        lambda: store.pause("nope", "ada"),
        lambda: store.resume("nope", "ada"),
        lambda: store.record_scan(ScanRecord(table="nope", taken_at=NOW)),
        lambda: store.table_state("*"),
    ):
        with pytest.raises(NotFound, match="no table"):
            use()
    store.pause(None, "ada")
    assert store.tables() == [], "pausing the service makes no table"


def test_writers_that_cancel_plans_are_told_from_people_who_do_and_from_what_is_long_over(store: Store) -> None:
    def ended(name: str, *ends: str) -> None:
        for end in ends:
            plan = make_plan("dt=1", table=replace(TRIPS, name=name))
            store.add_plan(plan, request_id=None, actor="a", estimate={})
            if end == "unbegun":
                store.request_cancel(plan.plan_id, actor="scheduler", reason="no longer compacted")
                continue
            claim = claimed(store)
            if end == "person":
                store.request_cancel(plan.plan_id, actor="ada", reason="wrong day")
            if end == "completed":
                store.complete(claim, commit_of(plan, plan.plan_id), figures_of(plan), {})
            else:
                store.cancel(claim, "a writer changed these files", actor="executor-1")

    for name in ("stormy", "calm", "ada's", "fresh"):
        store.register(replace(TRIPS, name=name), "compact")
    ended("calm", *["completed"] * 5, "unbegun")
    ended("ada's", *["person"] * 4)
    ended("fresh", "writer")
    with time_machine.travel(datetime.now(UTC) - timedelta(hours=7), tick=False):
        ended("stormy", *["writer"] * 3)
    ended("stormy", "completed", "completed", "writer", "writer", "person", "completed", "writer")
    assert store.contested(timedelta(hours=6)) == {
        "stormy": Contest(lost=3, ended=5),
        "fresh": Contest(lost=1, ended=1),
    }
    ended("stormy", *["completed"] * 5)
    assert set(store.contested(timedelta(hours=6))) == {"fresh"}
    assert store.contested(timedelta(0)) == {}


def test_write_options_of_today_serve_the_next_claim_but_the_location_is_the_plans(store: Store) -> None:
    plan = add(store, "dt=1")
    today = replace(TRIPS, on_conflict=OnConflict.PLAN_WINS, write_options={"lock": "new"})
    store.register(replace(today, location="/moved"), "compact")
    assert claimed(store).plan.table == replace(
        plan.table, on_conflict=OnConflict.PLAN_WINS, write_options={"lock": "new"}
    )


def scan(minute: int, **values: object) -> ScanRecord:
    """A scan with every field filled."""
    full = ScanRecord(
        table=TRIPS.name, taken_at=NOW + timedelta(minutes=minute), seconds=1.5, instant=f"i{minute}", files=10,
        bytes=1 << 40, small_files=9, small_bytes=5, partitions=3, histogram=(0, 1, 9), log_files=1, log_bytes=2,
        skipped={"above_limit": 1}, skipped_bytes={"above_limit": 1 << 41}, reducible_files=8, reducible_bytes=4,
    )  # fmt: skip
    return replace(full, **values)  # type: ignore[arg-type]


def test_the_last_scan_is_kept_whole_and_a_failed_one_hides_no_layout(store: Store) -> None:
    store.register(TRIPS, "observe")
    assert store.last_scan(TRIPS.name) is None
    good, bad = scan(1), scan(2, outcome="error", error="no permission")
    store.record_scan(good)
    assert store.last_scan(TRIPS.name) == good
    store.record_scan(bad)
    assert store.last_scan(TRIPS.name) == bad
    assert store.last_scan(TRIPS.name, ok=True) == good
    assert store.last_scans() == {TRIPS.name: bad}
    assert store.last_scans(ok=True) == {TRIPS.name: good}
    assert store.scans(TRIPS.name) == [bad, good]


def test_tables_and_their_last_scans_can_be_asked_for_by_name(store: Store) -> None:
    other = replace(TRIPS, name="other")
    for table in (TRIPS, other):
        store.register(table, "observe")
    store.pause(None, "ada")
    store.record_scan(scan(1, reducible_bytes=5))
    store.record_scan(scan(2, reducible_bytes=10**15))
    assert [table.name for table in store.tables(["other", "nope", "*"])] == ["other"]
    assert store.last_scans(["other", TRIPS.name]) == {TRIPS.name: scan(2, reducible_bytes=10**15)}
    assert store.last_scans(["other"]) == {}


def test_old_scans_are_forgotten_but_never_the_first_and_the_last_good_one(database_url: str) -> None:
    store = Store(database_url, StoreSettings(scans_kept=3))
    store.register(TRIPS, "observe")
    store.record_scan(scan(-2))
    store.record_scan(scan(-1))
    store.record_scan(scan(0))
    for minute in range(1, 10):
        store.record_scan(scan(minute, outcome="error", error="down"))
    assert [s.instant for s in store.scans(TRIPS.name)] == ["i9", "i8", "i7", "i0", "i-2"]
    assert store.last_scan(TRIPS.name, ok=True) == scan(0)
    assert store.first_scans() == {TRIPS.name: scan(-2)}
    store.close()


def test_a_request_is_answered_once(store: Store) -> None:
    request_id = store.add_request(
        "t", partitions=["b", "a", "b"], overrides={"small_file_limit": "1MiB"}, dry_run=True, actor="ada"
    )
    second = store.add_request("t", actor="bob")
    request = store.request(request_id)
    assert (request.table, request.partitions, request.dry_run, request.actor) == ("t", ("a", "b"), True, "ada")
    assert request.overrides == {"small_file_limit": "1MiB"}
    assert (request.answer, request.answered_at, request.plan_ids) == (None, None, ())
    assert [r.request_id for r in store.open_requests()] == [request_id, second]
    store.answer_request(request_id, plan_ids=["p1"], answer={"outcome": "planned"})
    store.answer_request(request_id, plan_ids=[], answer={"outcome": "late"})
    request = store.request(request_id)
    assert (request.plan_ids, request.answer) == (("p1",), {"outcome": "planned"})
    assert request.answered_at is not None
    assert [r.request_id for r in store.open_requests()] == [second]
    assert store.request(second).partitions is None
    for use in (lambda: store.request("nope"), lambda: store.answer_request("nope", answer={})):
        with pytest.raises(NotFound, match="no request"):
            use()


def test_an_idempotency_key_gives_the_first_request_and_refuses_another_body(store: Store) -> None:
    first = store.add_request("t", partitions=["a"], overrides={"x": (1, 2)}, idempotency_key="k", actor="ada")
    again = store.add_request("t", partitions=["a"], overrides={"x": (1, 2)}, idempotency_key="k", actor="ada")
    assert again == first
    assert store.request(first).idempotency_key == "k"
    with pytest.raises(IdempotencyMismatch, match="'k' belongs to request"):
        store.add_request("t", partitions=["b"], idempotency_key="k", actor="ada")
    assert store.add_request("t", actor="ada") != store.add_request("t", actor="ada"), "no key, no memory"


def test_an_idempotency_key_is_its_actors_own(store: Store) -> None:
    first = store.add_request("t", partitions=["a"], idempotency_key="k", actor="token ada")
    assert store.has_request("k", "token ada")
    assert not store.has_request("k", "token bob")
    other = store.add_request("t", partitions=["b"], idempotency_key="k", actor="token bob")
    assert other != first
    assert [store.request(each).partitions for each in (first, other)] == [("a",), ("b",)]


def finish(store: Store, partition: str, instant: str, table: TableRef = TRIPS) -> None:
    """Plan, claim and complete one partition."""
    plan = add(store, partition, table=table)
    store.complete(claimed(store), commit_of(plan, instant), figures_of(plan), {})


def test_superseded_versions_are_due_after_the_retention_now_in_force_in_the_order_of_being_superseded(
    store: Store, database_url: str
) -> None:
    finish(store, "dt=1", "9")
    finish(store, "dt=2", "10")
    day = timedelta(days=1)
    assert store.due(TRIPS, 7 * day) == []
    sql(database_url, "UPDATE superseded_version SET superseded_at_ms = superseded_at_ms - 86400000 * 3")
    with time_machine.travel(day * 400, tick=True):
        assert store.due(TRIPS, 7 * day) == [], "the host's clock deletes nothing"
    due = store.due(TRIPS, 2 * day)
    assert [d.version.instant for d in due] == ["9", "9", "10", "10"]
    assert [d.version for d in due[:2]] == list(commit_of(make_plan("dt=1"), "9").superseded)
    assert store.due(TRIPS, 2 * day, limit=1) == due[:1]
    assert store.due(replace(TRIPS, name="other"), timedelta()) == []
    store.mark_deleted([d.row_id for d in due[:2]])
    (before,) = sql(database_url, "SELECT sum(deleted_at_ms) AS s FROM superseded_version")
    store.mark_deleted([d.row_id for d in due[:2]])
    assert sql(database_url, "SELECT sum(deleted_at_ms) AS s FROM superseded_version") == [before]
    assert store.superseded(TRIPS) == due[2:]
    assert store.due(TRIPS, 2 * day) == due[2:]
    store.mark_deleted([])


def test_c4_a_closed_version_waits_no_longer_and_its_reason_is_kept(store: Store, database_url: str) -> None:
    finish(store, "dt=1", "20260101")
    first, second = store.superseded(TRIPS)
    store.mark_deleted([first.row_id])
    store.close_superseded({first.row_id: "undone", second.row_id: "gone"})
    store.close_superseded({second.row_id: "later"})
    store.close_superseded({})
    found = sql(database_url, "SELECT closed_reason FROM superseded_version WHERE deleted_at_ms > 0 ORDER BY id")
    assert [row[0] for row in found] == [None, "gone"], "what was deleted stays deleted"
    assert store.superseded(TRIPS) == []
    assert store.figures().superseded == ()


def test_a_file_that_was_restored_and_replaced_again_waits_for_its_whole_retention_anew(
    store: Store, database_url: str
) -> None:
    finish(store, "dt=1", "first")
    sql(database_url, "UPDATE superseded_version SET superseded_at_ms = superseded_at_ms - 86400000 * 3")
    finish(store, "dt=2", "other")
    finish(store, "dt=1", "again")
    assert store.due(TRIPS, timedelta(days=2)) == []
    assert [due.version.instant for due in store.superseded(TRIPS)] == ["other", "other", "again", "again"]
    closed = sql(database_url, "SELECT closed_reason FROM superseded_version WHERE deleted_at_ms > 0")
    assert [row[0] for row in closed] == ["replaced again, as again"] * 2


def test_p7_a_superseded_file_keeps_its_time_and_a_deletion_its_first_mark(store: Store, database_url: str) -> None:
    plan, written_at = add(store, "dt=1"), datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
    commit = commit_of(plan)
    versions = tuple(replace(version, modified_at=written_at) for version in commit.superseded)
    store.complete(claimed(store), replace(commit, superseded=versions), figures_of(plan), {})
    first, second = store.superseded(TRIPS)
    assert (first.version, second.version) == versions
    assert store.begin_deleting([first.row_id, second.row_id]) == {first.row_id, second.row_id}
    sql(database_url, "UPDATE superseded_version SET deleting_at_ms = 1000")
    store.mark_deleted([first.row_id])
    assert store.begin_deleting([first.row_id, second.row_id]) == {second.row_id}
    assert [due.deleting_at for due in store.superseded(TRIPS)] == [datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)]
    assert store.begin_deleting([]) == set()


def test_a_role_has_one_holder_until_it_expires_or_is_given_up(store: Store, database_url: str) -> None:
    minute = timedelta(minutes=1)
    assert store.acquire_leader("scan", "a", minute)
    assert store.acquire_leader("scan", "a", minute), "renewed"
    assert not store.acquire_leader("scan", "b", minute)
    assert store.acquire_leader("clean", "b", minute)
    with time_machine.travel(timedelta(days=1), tick=True):
        assert not store.acquire_leader("scan", "b", minute), "the host's clock elects nobody"
    assert [(leader.role, leader.holder, leader.live) for leader in store.leaders()] == [
        ("clean", "b", True),
        ("scan", "a", True),
    ]
    sql(database_url, "UPDATE leader SET expires_at_ms = expires_at_ms - 3600000 WHERE role = 'scan'")
    assert [leader.live for leader in store.leaders()] == [True, False]
    assert store.acquire_leader("scan", "b", minute)
    assert not store.acquire_leader("scan", "a", minute)
    store.release_leader("scan", "a")
    assert not store.acquire_leader("scan", "a", minute), "only the holder gives a role up"
    store.release_leader("scan", "b")
    assert store.acquire_leader("scan", "a", minute)


def test_plans_are_listed_newest_first_page_by_page(store: Store) -> None:
    ids = [add(store, f"dt={n}").plan_id for n in range(5)]
    other = add(store, "dt=1", table=replace(TRIPS, name="other")).plan_id
    store.request_cancel(ids[2], "ada")
    newest = store.plans(limit=2)
    assert [p.plan_id for p in newest] == [other, ids[4]]
    assert [p.plan_id for p in store.plans(limit=2, after=newest[-1].plan_id)] == [ids[3], ids[2]]
    assert [p.plan_id for p in store.plans(table=TRIPS.name, state=PlanState.REQUESTED)] == [
        ids[4], ids[3], ids[1], ids[0]
    ]  # fmt: skip
    assert [p.plan_id for p in store.plans(state=PlanState.CANCELLED)] == [ids[2]]
    assert store.plans(after=ids[0]) == []


def test_a_plan_view_tells_what_was_planned(store: Store) -> None:
    request_id = store.add_request(TRIPS.name, actor="ada")
    plan = make_plan("dt=2", "dt=1", "dt=2")
    store.add_plan(plan, request_id=request_id, actor="ada", estimate={"output_files": 3})
    view = store.plan(plan.plan_id)
    assert (view.table, view.format, view.kind, view.state) == (
        TRIPS.name, "hudi", PlanKind.CLUSTERING, PlanState.REQUESTED
    )  # fmt: skip
    assert (view.group_count, view.partition_count, view.partitions) == (3, 2, ("dt=1", "dt=2"))
    assert (view.input_files, view.input_bytes, view.output_files) == (6, 48 * MIB, 3)
    assert [(g.number, g.partition, g.slices, g.input_bytes) for g in view.groups] == [
        (0, "dt=2", 2, 16 * MIB), (1, "dt=1", 2, 16 * MIB), (2, "dt=2", 2, 16 * MIB)
    ]  # fmt: skip
    assert (view.estimate, view.request_id, view.actor) == ({"output_files": 3}, request_id, "ada")
    assert view.options["sort_columns"] == ["a", "b"]
    assert abs(view.created_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert [p.plan_id for p in store.plans(request_id=request_id)] == [plan.plan_id]
    assert store.events(plan.plan_id)[0].reason == f"planned for request {request_id}"


@pytest.mark.slow
def test_ten_thousand_slices_survive_storing_in_a_small_blob(store: Store) -> None:
    many = (
        *slices("dt=1", 9_998),
        replace(slices("dt=1", 1)[0], file_id="logs only", path=None, bytes=0, rows=None, log_files=("l1", "l2"),
                log_bytes=99),
        replace(slices("dt=1", 1)[0], file_id="ü\n", path="dt=1/ü %00'.parquet", bytes=1 << 50),
    )  # fmt: skip
    assert unpack(pack(many), "dt=1") == many
    assert len(pack(many)) < 200_000
    plan = replace(make_plan("x"), groups=(ClusteringGroup(partition="dt=1", slices=many, output_files=7),))
    store.add_plan(plan, request_id=None, actor="s", estimate={})
    claim = claimed(store)
    assert claim.plan == plan
    assert store.plan(plan.plan_id).input_files == 9_999
    store.complete(claim, commit_of(plan), figures_of(plan), {})
    assert [due.version for due in store.superseded(TRIPS)] == list(commit_of(plan).superseded)


def test_figures_equal_an_independent_count(store: Store, database_url: str) -> None:
    other = replace(TRIPS, name="other")
    finish(store, "dt=1", "i1")
    finish(store, "dt=2", "i2")
    finish(store, "dt=1", "i1", table=other)
    store.mark_deleted([store.superseded(TRIPS)[0].row_id])
    add(store, "dt=5", "dt=6")
    store.step(claimed(store), Step.PREPARE)
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
    (count,) = sql(database_url, "SELECT count(*) AS n, sum(bytes) AS b FROM superseded_version"
                   " WHERE deleted_at_ms IS NULL")  # fmt: skip
    assert (count.n, count.b) == (sum(f.files for f in figures.superseded), sum(f.bytes for f in figures.superseded))
    assert figures.halted == ()
    assert [t.name for t in figures.tables] == [TRIPS.name, "other"]


@pytest.mark.slow
def test_a_hundred_thousand_stored_plans_cost_little(store: Store, database_url: str) -> None:
    for number in range(20):
        store.register(replace(TRIPS, name=f"t{number}"), "compact")
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
        "expired": lambda: store.expired("e"),
    }.items():
        use()
        began = time.perf_counter()
        use()
        timings[name] = time.perf_counter() - began
    assert store.figures().count(*PlanState) == 100_001
    # A shared machine may be slow; a missing index costs several times these.
    assert timings.pop("figures") < 0.5
    assert max(timings.values()) < 0.15, timings


def test_plan_ids_of_one_process_are_ordered_by_time() -> None:
    ids = [str(uuid7()) for _ in range(1000)]
    assert ids == sorted(ids)


def test_what_waits_for_its_deletion_is_counted_by_table_and_day_under_each_retention(
    store: Store, database_url: str
) -> None:
    other, third = replace(TRIPS, name="a.other"), replace(TRIPS, name="a.third")
    for table in (TRIPS, other, third):
        plan = add(store, "dt=1", table=table)
        store.complete(claimed(store), commit_of(plan), figures_of(plan), {})
    sql(database_url, "UPDATE superseded_version SET superseded_at_ms = :at", at=int(NOW.timestamp() * 1000))
    week, day, hours = timedelta(days=7), timedelta(days=1), timedelta(hours=13)
    days = store.deletion_days({week: [TRIPS.name], day: [other.name], hours: [third.name]})
    assert [(entry.table, entry.day - NOW.date(), entry.files, entry.bytes) for entry in days] == [
        ("a.other", day, 2, 16 * MIB), ("a.third", day, 2, 16 * MIB), (TRIPS.name, week, 2, 16 * MIB)
    ]  # fmt: skip
    assert len(store.deletion_days({week: [TRIPS.name, other.name, third.name]})) == 3
    assert store.deletion_days({}) == []


def test_the_newest_plan_of_each_table_is_found(store: Store) -> None:
    other = replace(TRIPS, name="a.other")
    add(store, "dt=1")
    newest, only = add(store, "dt=2"), add(store, "dt=1", table=other)
    store.register(replace(TRIPS, name="a.none"), "compact")
    found = store.newest_plans([TRIPS.name, other.name, "a.none"])
    assert {name: plan.plan_id for name, plan in found.items()} == {
        TRIPS.name: newest.plan_id, other.name: only.plan_id
    }  # fmt: skip
    assert store.newest_plans([]) == store.failing([]) == {}


def test_plans_are_found_of_more_tables_than_a_statement_can_name(store: Store) -> None:
    failed, fails_no_more = (replace(TRIPS, name=name) for name in ("a.failed", "z.fails_no_more"))
    for table in (failed, fails_no_more):
        add(store, "dt=1", table=table)
        store.fail(claimed(store), "no space left")
    newest = add(store, "dt=2", table=fails_no_more)
    names = [failed.name, *(f"m.{number}" for number in range(70_000)), fails_no_more.name]
    assert list(store.failing(names)) == [failed.name]
    found = store.newest_plans(names)
    assert [found[name].state for name in found] == [PlanState.FAILED, PlanState.REQUESTED]
    assert found[fails_no_more.name].plan_id == newest.plan_id

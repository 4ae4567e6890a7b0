# SPDX-License-Identifier: Apache-2.0
"""Claims within budgets and hours: no executor exceeds them, and each waiting plan has a reason."""

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection
from store_plans import MIB, TRIPS, backoff_passes, claimed, commit_of, figures_of, make_plan, sql

from lake.model import TableRef
from lake.plan import Claim, Plan, RewriteProgress, Step
from planner.budgets import UNLIMITED, Budget, QueuedPlan, TableLimits, WorkAmount
from planner.windows import RunSchedule
from service.control.serializers import describe_held_work, work_budget_document
from service.control.store import Store, StoreSettings, TableScope
from service.control.store import claims as claims_module
from service.control.store.plan_creation import QueueEntry
from service.control.store.views import ProcessFacts

pytestmark = pytest.mark.paired("database_url")

OTHER = replace(TRIPS, name="demo.other")
PLAN_BYTES = 16 * MIB
#: closed at any time: it opens in a second's time at the earliest, and for one minute a week
NOW = datetime.now(UTC)
ELSEWHEN = RunSchedule.parse([f"{(NOW + timedelta(days=3)):%a} 12:00-12:01".lower()], "UTC")


@dataclass(frozen=True)
class FixedLimits:
    """Limits of tests."""

    budget: Budget = field(default_factory=Budget)
    tables: Mapping[str, TableLimits] = field(default_factory=dict)
    is_limited: bool = True

    def for_table(self, table: str) -> TableLimits:
        return self.tables.get(table, TableLimits())


def bytes_an_hour(count: int) -> Budget:
    return Budget.from_settings(count, 0, 0, 0)


Opened = Callable[..., Store]


@pytest.fixture
def opened(database_url: str) -> Iterator[Opened]:
    """Stores on one database with these limits."""
    made: list[Store] = []

    def open_(*, cores_per_plan: float = 1.0, **limits: object) -> Store:
        settings = StoreSettings(limits=FixedLimits(**limits), cores_per_plan=cores_per_plan)  # type: ignore[arg-type]
        made.append(Store(database_url, settings))
        return made[-1]

    yield open_
    for store in made:
        store.close()


def request(store: Store, partition: str, table: TableRef = TRIPS, *, worth: int = 0, cpu_seconds: float = 10) -> Plan:
    plan = make_plan(partition, table=table)
    store.add_plan(
        plan,
        request_id=None,
        actor="test",
        estimate={},
        queued=QueueEntry(cpu_seconds=cpu_seconds, priority_offset=timedelta(hours=worth)),
    )
    return plan


def complete(store: Store, claim: Claim, seconds: float = 1) -> None:
    store.complete(claim, commit_of(claim.plan), figures_of(claim.plan), {Step.REWRITE.value: round(1000 * seconds)})


def an_hour_passes(url: str) -> None:
    sql(url, "UPDATE charge SET at_ms = at_ms - 3600000")


def test_a_plan_starts_only_while_the_budget_of_the_hour_has_room(opened: Opened, database_url: str) -> None:
    store = opened(budget=bytes_an_hour(2 * PLAN_BYTES))
    for number in range(4):
        request(store, f"dt={number}")
    for _ in range(2):
        complete(store, claimed(store))
    assert store.claim("executor") is None
    work = store.work_budget()
    assert (work.usage.hour.bytes, work.usage.day.cpu_ms) == (2 * PLAN_BYTES, 20_000)
    assert [(held.kind, held.is_table_budget) for held in work.blocked_plans] == [("budget", False)] * 2
    an_hour_passes(database_url)
    complete(store, claimed(store))
    assert store.work_budget().usage.hour.bytes == PLAN_BYTES
    assert store.work_budget().usage.day.bytes == 3 * PLAN_BYTES


def test_no_charge_keeps_plans_back_for_longer_after_the_databases_clock_was_set_back(
    opened: Opened, database_url: str
) -> None:
    """Otherwise no plan starts until the clock has caught up, which may take months."""
    store = opened(budget=bytes_an_hour(PLAN_BYTES))
    for number in range(2):
        request(store, f"dt={number}")
    complete(store, claimed(store))
    sql(database_url, "UPDATE charge SET at_ms = at_ms + 8640000000")
    process = ProcessFacts(name="any", role="all", host="h", version="1", slots=1)
    store.register_process(process, timedelta(seconds=20))
    assert store.claim("executor") is None, "a charge counts for a whole hour again, so that no budget is exceeded"
    an_hour_passes(database_url)
    store.register_process(process, timedelta(seconds=20))
    complete(store, claimed(store))


def test_a_budget_of_cpu_counts_the_predicted_cost_of_plans(opened: Opened) -> None:
    store = opened(budget=Budget.from_settings(0, 0, 0, 25 / 3600))
    for number in range(3):
        request(store, f"dt={number}")
    complete(store, claimed(store))
    complete(store, claimed(store))
    assert store.claim("executor") is None


def test_cost_beyond_a_plans_prediction_delays_the_next_plan(opened: Opened) -> None:
    store = opened(budget=Budget.from_settings(0, 0, 30 / 3600, 0))
    request(store, "dt=1")
    request(store, "dt=2")
    complete(store, claimed(store), seconds=21)
    assert store.work_budget().usage.hour.cpu_ms == 21_000, "the larger of predicted and used"
    assert store.claim("executor") is None


def test_a_plan_that_took_less_gives_nothing_back(opened: Opened) -> None:
    store = opened(budget=Budget.from_settings(0, 0, 15 / 3600, 0))
    request(store, "dt=1")
    request(store, "dt=2")
    complete(store, claimed(store), seconds=1)
    assert store.work_budget().usage.hour.cpu_ms == 10_000
    assert store.claim("executor") is None


def test_each_attempt_is_charged_including_bytes_that_a_failed_attempt_wrote(opened: Opened, database_url: str) -> None:
    store = opened(budget=bytes_an_hour(4 * PLAN_BYTES))
    request(store, "dt=1")
    claim = claimed(store)
    store.heartbeat(claim, RewriteProgress(bytes_done=3 * PLAN_BYTES, bytes_total=PLAN_BYTES))
    store.requeue(claim, "no answer")
    assert store.work_budget().usage.hour.bytes == 3 * PLAN_BYTES
    backoff_passes(database_url)
    store.fail(claimed(store), "no")
    assert store.work_budget().usage.hour.bytes == 4 * PLAN_BYTES


def seconds_of_cpu(store: Store) -> float:
    return store.work_budget().usage.hour.cpu_ms / 1000


def test_an_attempt_that_failed_is_charged_the_cpu_that_its_rewrite_has_used(opened: Opened, database_url: str) -> None:
    store = opened(budget=Budget.from_settings(0, 0, 1, 0), cores_per_plan=2.0)
    request(store, "dt=1")
    claim = claimed(store)
    store.record_step(claim, Step.PREPARE, milliseconds=1_000)
    store.heartbeat(claim, RewriteProgress(bytes_done=1, bytes_total=2, cpu_seconds=98.0))
    store.requeue(claim, "no answer")
    assert seconds_of_cpu(store) == 100, "what was counted by the last heartbeat, and a second of two cores"
    backoff_passes(database_url)
    claim = claimed(store)
    store.record_step(claim, Step.REWRITE, milliseconds=60_000, succeeded=False)
    store.fail(claim, "no")
    assert seconds_of_cpu(store) == 100 + 120, "it was not measured: a minute of two cores"


def test_an_attempt_whose_executor_died_is_charged_until_its_last_heartbeat(opened: Opened, database_url: str) -> None:
    store = opened(budget=Budget.from_settings(0, 0, 1, 0), cores_per_plan=2.0)
    request(store, "dt=1")
    claim = claimed(store)
    store.record_step(claim, Step.START, milliseconds=30_000)
    store.record_step(claim, Step.PREPARE, milliseconds=1_000)
    sql(database_url, "UPDATE plan SET step_at_ms = heartbeat_at_ms - 60000, lease_until_ms = 0")
    rescuer = store.take_over_expired("rescuer")
    assert rescuer is not None
    assert rescuer.milliseconds[Step.REWRITE] == 60_000
    store.record_step(rescuer, Step.FIND_COMMIT, milliseconds=500)
    sql(database_url, "UPDATE plan SET lease_until_ms = 0")  # taken over once more: what is counted is counted
    again = store.take_over_expired("rescuer")
    assert again is not None
    store.requeue(again, "its executor stopped renewing its lease")
    assert seconds_of_cpu(store) == pytest.approx(123, abs=0.1), "61.5 s of two cores, without the start of Spark"


def test_a_rewrite_that_failed_is_charged_its_time_where_that_is_more_than_was_counted(opened: Opened) -> None:
    store = opened(budget=Budget.from_settings(0, 0, 1, 0))
    request(store, "dt=1")
    claim = claimed(store)
    store.record_step(claim, Step.REWRITE, milliseconds=60_000, cpu_milliseconds=20_000, succeeded=False)
    store.fail(claim, "no")
    assert seconds_of_cpu(store) == 60, "groups that it was at are not counted yet"


def test_a_plan_that_does_not_fit_is_not_passed_by_a_smaller_one(opened: Opened, database_url: str) -> None:
    store = opened(budget=bytes_an_hour(3 * PLAN_BYTES))
    complete(store, _claimed_after(store, request(store, "dt=0")))
    large = make_plan("dt=1", "dt=2", "dt=3")
    store.add_plan(
        large, request_id=None, actor="test", estimate={}, queued=QueueEntry(priority_offset=timedelta(hours=1))
    )
    small = request(store, "dt=1", OTHER)
    assert store.claim("executor") is None
    an_hour_passes(database_url)
    assert claimed(store).plan == large
    assert store.plan_state(small.plan_id) == "requested"


def _claimed_after(store: Store, plan: Plan) -> Claim:
    claim = claimed(store)
    assert claim.plan == plan
    return claim


def test_a_table_at_its_own_budget_waits_and_other_tables_continue(opened: Opened) -> None:
    store = opened(tables={TRIPS.name: TableLimits(budget=bytes_an_hour(PLAN_BYTES))})
    complete(store, _claimed_after(store, request(store, "dt=1")))
    request(store, "dt=2", worth=5)
    other = request(store, "dt=1", OTHER)
    complete(store, _claimed_after(store, other))
    assert [(held.table, held.kind, held.is_table_budget) for held in store.work_budget().blocked_plans] == [
        (TRIPS.name, "budget", True)
    ]
    assert store.remaining_table_budget(OTHER.name) == UNLIMITED
    assert store.remaining_table_budget(TRIPS.name).bytes == -PLAN_BYTES, "what waits counts as used already"


def test_a_table_at_its_own_budget_keeps_its_position_and_plans_behind_it_have_that_reason(opened: Opened) -> None:
    own = {TRIPS.name: TableLimits(budget=bytes_an_hour(PLAN_BYTES))}
    store = opened(budget=bytes_an_hour(2 * PLAN_BYTES), tables=own)
    complete(store, _claimed_after(store, request(store, "dt=1")))
    first, other = request(store, "dt=2", worth=5), request(store, "dt=1", OTHER)
    assert store.claim("executor") is None
    waits, behind = work_budget_document(store.work_budget())["waiting_plans"]
    assert (waits["plan_id"], waits["behind_plan_id"]) == (first.plan_id, None)
    assert waits["reason"].startswith(f"waits for the budget of {TRIPS.name} (")
    assert (behind["plan_id"], behind["kind"], behind["behind_plan_id"]) == (other.plan_id, "budget", first.plan_id)
    line = describe_held_work(work_budget_document(store.work_budget()))[0]
    assert line.startswith(
        f"1 plan held back; plan {other.plan_id} waits for the budget of all tables ([work]) behind "
    )
    assert f"behind plan {first.plan_id}, which waits for the budget of {TRIPS.name} (" in line
    theirs = store.limited_to(TableScope((OTHER.name,))).work_budget()
    assert [(held.table, held.blocker) for held in theirs.blocked_plans] == [(OTHER.name, None)]


def test_the_second_plan_of_a_table_waits_for_its_budget_as_the_first_one_does(opened: Opened) -> None:
    store = opened(tables={TRIPS.name: TableLimits(budget=bytes_an_hour(PLAN_BYTES))})
    for number in range(2):
        request(store, f"dt={number}")
    assert [(held.kind, held.is_table_budget) for held in store.work_budget().blocked_plans] == [("budget", True)]


def test_outside_the_hours_of_its_table_no_plan_starts_and_keeps_back_no_other(opened: Opened) -> None:
    store = opened(budget=bytes_an_hour(PLAN_BYTES), tables={TRIPS.name: TableLimits(schedule=ELSEWHEN)})
    waits = request(store, "dt=1", worth=9)
    request(store, "dt=1", OTHER)
    assert claimed(store).plan.table.name == OTHER.name
    assert store.claim("executor") is None
    (held,) = store.work_budget().blocked_plans
    assert (held.plan_id, held.kind) == (waits.plan_id, "window")
    assert held.until is not None
    assert timedelta(days=1) < held.until - datetime.now(UTC) < timedelta(days=4)


def test_a_plan_larger_than_a_whole_budget_never_starts_has_that_reason_and_delays_no_other_plan(
    opened: Opened,
) -> None:
    store = opened(budget=bytes_an_hour(PLAN_BYTES))
    large = make_plan("dt=1", "dt=2")
    store.add_plan(
        large, request_id=None, actor="test", estimate={}, queued=QueueEntry(priority_offset=timedelta(hours=9))
    )
    request(store, "dt=1", OTHER)
    assert claimed(store).plan.table.name == OTHER.name
    document = work_budget_document(store.work_budget())
    (line,) = describe_held_work(document)
    assert line == (
        f"1 plan held back; plan {large.plan_id} never starts, being larger than the whole budget of all tables "
        "([work]): raise the budget or cancel the plan."
    )
    assert document["budget"]["bytes_per_hour"] == {
        "budget": PLAN_BYTES,
        "used": PLAN_BYTES,
        "remaining": 0,
        "left": 0,
    }
    assert document["budget"]["cpu_seconds_per_day"]["budget"] is None


def test_plans_over_budget_and_replaceable_proposals_take_nothing_of_the_planning_budget(opened: Opened) -> None:
    store = opened(tables={TRIPS.name: TableLimits(budget=bytes_an_hour(2 * PLAN_BYTES))})
    large, waits, stale = make_plan("dt=1", "dt=2", "dt=3"), make_plan("dt=4"), make_plan("dt=5")
    for plan in (large, waits, stale):
        store.add_plan(
            plan, request_id=None, actor="test", estimate={}, queued=QueueEntry(needs_approval=plan is stale)
        )
    assert [held.plan_id for held in store.work_budget().blocked_plans if held.kind == "exceeds_budget"] == [
        large.plan_id
    ]
    assert store.remaining_table_budget(TRIPS.name).bytes == 0
    assert store.remaining_table_budget(TRIPS.name, excluded={stale.plan_id}).bytes == PLAN_BYTES


def test_a_worker_that_drains_knows_when_held_plans_may_start(opened: Opened, database_url: str) -> None:
    store = opened(budget=bytes_an_hour(PLAN_BYTES))
    request(store, "dt=1")
    assert store.time_until_due() == timedelta()
    complete(store, claimed(store))
    request(store, "dt=2")
    due = store.time_until_due()
    assert due is not None
    assert timedelta(minutes=59) < due <= timedelta(hours=1)
    an_hour_passes(database_url)
    assert store.time_until_due() == timedelta()


def test_a_caller_limited_to_some_tables_sees_no_other_table_and_no_sum(opened: Opened) -> None:
    store = opened(budget=bytes_an_hour(PLAN_BYTES))
    complete(store, _claimed_after(store, request(store, "dt=1")))
    request(store, "dt=2")
    request(store, "dt=2", OTHER)
    work = store.limited_to(TableScope(("demo.other",))).work_budget()
    assert [held.table for held in work.blocked_plans] == [OTHER.name]
    assert (work.budget, work.usage.hour) == (Budget(), WorkAmount())


def test_executors_that_claim_at_once_stay_within_the_budget_together(opened: Opened) -> None:
    stores = [opened(budget=bytes_an_hour(3 * PLAN_BYTES)) for _ in range(4)]
    for number in range(12):
        request(stores[0], "dt=1", replace(TRIPS, name=f"demo.t{number}"))
    barrier, claims = threading.Barrier(len(stores)), list[Claim]()

    def claim(store: Store) -> None:
        barrier.wait()
        for number in range(3):
            found = store.claim(f"executor-{number}")
            if found is not None:
                claims.append(found)

    threads = [threading.Thread(target=claim, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(claims) == 3
    assert len({claim.plan.plan_id for claim in claims}) == 3
    assert stores[0].work_budget().usage.hour.bytes == 3 * PLAN_BYTES


@pytest.mark.slow
def test_a_claim_waits_until_the_one_before_it_is_charged(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (opened(budget=bytes_an_hour(PLAN_BYTES)) for _ in range(2))
    request(first, "dt=1")
    charging, go_on, claims, charge = (
        threading.Event(),
        threading.Event(),
        list[Claim | None](),
        claims_module.charge_prediction,
    )

    def slowly(connection: Connection, plan: QueuedPlan) -> None:
        if not charging.is_set():
            charging.set()
            go_on.wait(20)
        charge(connection, plan)

    monkeypatch.setattr(claims_module, "charge_prediction", slowly)
    one = threading.Thread(target=lambda: claims.append(first.claim("one")))
    one.start()
    assert charging.wait(20)
    if "sqlite" not in first.url:  # whose writers take turns anyway
        request(second, "dt=1", OTHER, worth=5)  # it goes first, so that the two claims meet in no row
    other = threading.Thread(target=lambda: claims.append(second.claim("other")))
    other.start()
    other.join(0.5)
    go_on.set()
    one.join()
    other.join()
    assert len([claim for claim in claims if claim is not None]) == 1

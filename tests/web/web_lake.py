# SPDX-License-Identifier: Apache-2.0
"""A database with tables and plans in every state, made through the store; no table is behind it."""

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
from hudi_by_hand import PROPERTIES, Written
from store_plans import commit_of, figures_of, make_plan, sql

from lake.model import HISTOGRAM_EDGES_BYTES, TableRef
from lake.plan import Claim, Plan, RewriteProgress, SkippedGroup, StagedWork, Step
from planner.cost import CostInputs, Prices, estimate_benefit
from planner.policy.policy import SizingPolicy
from planner.slo.model import Objective, ObjectiveEvaluation
from service.control.store import PARTITION_SCHEMA, ProcessFacts, ScanRecord, Store, StoreSettings
from service.control.store.plan_creation import QueueEntry
from service.text import to_jsonable

HOSTILE = "<script>alert('x')</script>&\"'"
#: the configuration that goes with it
RULES = """
[[tables]]
match = "*"
mode = "compact"
concurrency = "single_writer"
[[tables]]
match = "web.*"
mode = "observe"
[[tables]]
match = "archive.*"
mode = "off"
[[tables]]
match = "sales.returns"
mode = "propose"
"""
MIB = 1 << 20


def table(name: str) -> TableRef:
    """A table that no source has to find."""
    return TableRef(name=name, format="hudi", location=f"/data/lake/{name.replace('.', '/')}")


def sizes(files: int, middle_bytes: float, spread: float = 0.8, seed: int = 7) -> tuple[int, ...]:
    """A histogram of ``files`` files around ``middle_bytes``, log-normal as real ones are."""
    chance, counts = random.Random(seed), [0] * (len(HISTOGRAM_EDGES_BYTES) + 1)
    for _ in range(min(files, 4000)):
        size = 2 ** chance.gauss(math.log2(middle_bytes), spread)
        counts[min(max(math.ceil(math.log2(size)) - 10, 0), len(counts) - 1)] += 1
    scale = files / max(sum(counts), 1)
    return tuple(round(count * scale) for count in counts)


def added(*histograms: tuple[int, ...]) -> tuple[int, ...]:
    """One histogram of several."""
    return tuple(map(sum, zip(*histograms, strict=True)))


def scan(
    name: str, histogram: tuple[int, ...], *, ago: timedelta, limit: int = 300 * MIB, **more: object
) -> ScanRecord:
    """A scan that found files of these sizes."""
    middles = [edge * 0.72 for edge in HISTOGRAM_EDGES_BYTES] + [HISTOGRAM_EDGES_BYTES[-1] * 1.5]
    files = sum(histogram)
    small = sum(count for count, middle in zip(histogram, middles, strict=True) if middle < limit)
    return ScanRecord(
        table=name,
        taken_at=datetime.now(UTC) - ago,
        seconds=0.084,
        instant="20261121221503112",
        files=files,
        bytes=round(sum(c * m for c, m in zip(histogram, middles, strict=True))),
        small_files=small,
        small_bytes=round(sum(c * m for c, m in zip(histogram, middles, strict=True) if m < limit)),
        partitions=36,
        median_bytes=round(middles[bisect_left(list(accumulate(histogram)), files / 2)]) if files else None,
        histogram=histogram,
        **{"reducible_files": 0, "reducible_bytes": 0} | more,
    )


def layout(names: Sequence[str], small: Callable[[int], int], files: int = 40) -> pa.Table:
    """Partitions of ``files`` files each, of which ``small(n)`` are small in the one with number ``n``."""
    return pa.Table.from_pylist(
        [
            {
                "partition": name,
                "files": files,
                "bytes": files * 8 * MIB,
                "small_files": small(n),
                "small_bytes": small(n) * MIB,
                "log_files": 0,
                "log_bytes": 0,
                "reducible_files": small(n),
                "reducible_bytes": small(n) * MIB,
                "lines": [
                    _line("chosen", "group 1 of this plan", "", small(n)),
                    _line("above_limit", "above limit 8.0 MiB ≥ 1.0 MiB", "small_file_limit", files - small(n)),
                ],
            }
            for n, name in enumerate(names)
        ],
        PARTITION_SCHEMA,
    )


def _line(reason: str, text: str, knob: str, files: int) -> dict[str, object]:
    return {
        "reason": reason,
        "text": text,
        "varies": True,
        "knob": knob,
        "slices": files,
        "files": files,
        "bytes": files * MIB,
        "log_files": 0,
        "log_bytes": 0,
    }


def add_plan(store: Store, name: str, *partitions: str, files: int = 40, proposed: bool = False) -> Plan:
    """A plan of a table, requested."""
    plan = make_plan(*partitions, table=table(name), files=files)
    target = plan.options.target_file_max_bytes
    plan = replace(plan, groups=tuple(replace(g, output_files=-(-g.bytes // target)) for g in plan.groups))
    worth = estimate_benefit(plan, SizingPolicy(), CostInputs(prices=Prices(cpu_hour=0.05, currency="EUR")))
    estimate = {"output_files": sum(g.output_files for g in plan.groups), "worth": to_jsonable(asdict(worth))}
    store.add_plan(
        plan,
        request_id=None,
        actor="scheduler host-1",
        estimate=estimate,
        queued=QueueEntry(cpu_seconds=worth.cpu_seconds, needs_approval=proposed),
    )
    return plan


def proposed(store: Store, name: str, *partitions: str, files: int = 40) -> Plan:
    """A plan of a table that waits for approval."""
    return add_plan(store, name, *partitions, files=files, proposed=True)


def claim_of(store: Store, plan: Plan, executor: str = "host-1.example.org:4711") -> Claim:
    """This plan's claim."""
    claim = store.claim(executor)
    assert claim is not None
    assert claim.plan.plan_id == plan.plan_id
    return claim


def written(store: Store, home: Path) -> Plan:
    """A table in mode propose with four days of a bulk insert an hour on its timeline; what is proposed for it."""
    name, now = "sales.returns", datetime.now(UTC).replace(microsecond=0)
    history = Written(home / "sales/returns", PROPERTIES | {"hoodie.table.type": "COPY_ON_WRITE"})
    for hour in range(96):
        files = {f"dt={hour // 24}/f-{hour}-{number}": 2 * MIB for number in range(8)}
        history.commit(now - timedelta(hours=95.5 - hour), files, "BULK_INSERT")
    store.register_table(replace(table(name), location=str(history.base)), "propose")
    store.record_scan(scan(name, sizes(768, 2 * MIB), ago=timedelta(minutes=3), reducible_files=760))
    return proposed(store, name, *(f"dt={day}" for day in range(4)), files=192)


def run_steps(store: Store, claim: Claim, milliseconds: Mapping[Step, int]) -> None:
    """Record these steps as done."""
    for step, spent in milliseconds.items():
        if step is Step.PREPARE:
            store.record_staged(claim, StagedWork(token="20261121223000001"))
        used = spent if step is Step.REWRITE else None
        store.record_step(claim, step, milliseconds=spent, cpu_milliseconds=used)


EVERY_STEP = {
    Step.FIND_COMMIT: 41,
    Step.START: 6_400,
    Step.PREPARE: 920,
    Step.REWRITE: 48_200,
    Step.VERIFY: 3_100,
    Step.COMMIT: 1_450,
}


def completed(store: Store, name: str, *partitions: str, files: int = 40) -> Plan:
    """A plan that has run to its end."""
    plan = add_plan(store, name, *partitions, files=files)
    claim = claim_of(store, plan)
    run_steps(store, claim, EVERY_STEP)
    store.complete(claim, commit_of(plan), figures_of(plan), {step.value: ms for step, ms in EVERY_STEP.items()})
    return plan


def failed(store: Store, name: str, partition: str, error: str, *, halt: bool = False) -> Plan:
    """A plan that was given up."""
    plan = add_plan(store, name, partition)
    claim = claim_of(store, plan)
    run_steps(store, claim, {Step.FIND_COMMIT: 38, Step.PREPARE: 850})
    store.fail(claim, error, halt=halt)
    return plan


def register(store: Store, name: str, mode: str, *scans: ScanRecord) -> None:
    """A table with these scans, oldest first."""
    store.register_table(table(name), mode)
    for record in scans:
        store.record_scan(record)


#: what one of the tables is held to, each as a scan has found it
HELD = tuple(
    ObjectiveEvaluation(
        objective=objective,
        value=value,
        bound=bound,
        goal=0.995,
        window=timedelta(days=28),
        valid_for=timedelta(hours=1),
    )
    for objective, value, bound in (
        (Objective.SMALL_FILE_SHARE, 0.113, 0.05),
        (Objective.FILES_PER_GIB, 2.41, 6),
        (Objective.OLDEST_SMALL_FILE, 5040, 7200),
    )
)


def fill(store: Store, url: str) -> dict[str, Plan]:
    """Every state there is; the plans by what they are."""
    hours, minutes = (lambda n: timedelta(hours=n)), (lambda n: timedelta(minutes=n))
    orders_before = added(sizes(11_800, 2.2 * MIB), sizes(260, 410 * MIB, 0.5))
    orders_now = added(sizes(41, 5 * MIB), sizes(318, 640 * MIB, 0.4))
    between = [
        scan(
            "sales.orders",
            added(sizes(round(11_800 * (1 - n / 24)), 2.2 * MIB), sizes(260 + 2 * n, 560 * MIB, 0.4)),
            ago=hours(26 - n),
            reducible_files=480 - n,
            reducible_bytes=900 << 20,
        )
        for n in range(1, 24)
    ]
    register(
        store,
        "sales.orders",
        "compact",
        scan("sales.orders", orders_before, ago=hours(26), reducible_files=11_700),
        *between,
        scan("sales.orders", orders_now, ago=minutes(2)),
    )
    clicks = added(sizes(38_000, 0.9 * MIB, 1.3), sizes(21_900, 500 * MIB, 0.6))
    clicks_before = added(sizes(1_120_000, 0.7 * MIB, 1.2), sizes(12_700, 500 * MIB, 0.6))
    register(
        store,
        "events.clicks",
        "compact",
        scan("events.clicks", clicks_before, ago=hours(70), reducible_files=1_000_000),
        scan(
            "events.clicks",
            clicks,
            ago=minutes(4),
            reducible_files=31_000,
            reducible_bytes=212 << 30,
            log_files=1204,
            log_bytes=9 << 30,
        ),
    )
    contacts = added(sizes(4_300, 12 * MIB, 1.0), sizes(90, 700 * MIB, 0.4))
    register(
        store,
        "crm.contacts",
        "compact",
        scan("crm.contacts", contacts, ago=minutes(11), reducible_files=4_200, reducible_bytes=51 << 30),
    )
    logs = sizes(7_200, 33 * MIB, 1.4)
    register(
        store,
        "logs.app",
        "compact",
        scan("logs.app", logs, ago=hours(9), reducible_files=7_000, reducible_bytes=238 << 30),
        ScanRecord(
            table="logs.app",
            taken_at=datetime.now(UTC) - minutes(3),
            outcome="error",
            error="/data/lake/logs/app/.hoodie/hoodie.properties: Permission denied",
        ),
    )
    register(
        store,
        "web.sessions",
        "observe",
        scan("web.sessions", sizes(16_000, 3 * MIB), ago=minutes(1), reducible_files=15_900, reducible_bytes=48 << 30),
    )
    register(store, "inventory.stock", "compact", scan("inventory.stock", sizes(88, 700 * MIB, 0.3), ago=minutes(1)))
    register(store, "finance.ledger", "compact", scan("finance.ledger", sizes(1_204, 780 * MIB, 0.3), ago=minutes(5)))
    register(store, "archive.2019", "off")
    register(
        store,
        HOSTILE,
        "compact",
        scan(HOSTILE, sizes(300, 1 * MIB), ago=minutes(7), reducible_files=300, reducible_bytes=300 * MIB),
    )
    days = [f"dt=2026-11-{day:02}" for day in range(1, 22)]
    plans = {"completed": completed(store, "sales.orders", *days[:12], files=240)}
    plans["older"] = completed(store, "events.clicks", *days[:4], files=900)
    plans["ledger"] = completed(store, "finance.ledger", days[3], files=12)
    plans["failed"] = failed(store, "crm.contacts", days[8], "3 rows fewer than were read in dt=2026-11-09", halt=True)
    plans["hostile"] = failed(store, HOSTILE, HOSTILE, f"no good: {HOSTILE}")
    cancelled = add_plan(store, "sales.orders", days[13])
    store.request_cancel(cancelled.plan_id, actor="ada@host-2", reason="cancelled by hand")
    plans["cancelled"] = cancelled
    plans["retried"] = _retried(store, url, days)
    _trends(store, url)
    plans["inflight"] = _inflight(store, url, days)
    plans["requested"] = add_plan(store, "events.clicks", *days[10:14], files=700)
    year = [f"dt={datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=n):%Y-%m-%d}" for n in range(325)]
    every_hour = [f"{day}/h={hour:02}" for day in days for hour in range(24)]
    for name, histogram, parts, files, bytes_ in (
        ("sales.orders", orders_now, layout(year, lambda n: max(0, n - 290)), 0, 0),
        ("events.clicks", clicks, layout(every_hour, lambda n: 40 * n // 504), 31_000, 212 << 30),
        (HOSTILE, sizes(300, 1 * MIB), layout([HOSTILE], lambda n: 40), 300, 300 * MIB),
    ):
        found = scan(name, histogram, ago=minutes(2), reducible_files=files, reducible_bytes=bytes_)
        store.record_scan(found, parts, HELD if name == "sales.orders" else ())
    store.pause("logs.app", "ada@host-2", "its disk is replaced")
    _messages(url)
    _spread_deletions(url)
    return plans


def _trends(store: Store, url: str) -> None:
    """A month in which two tables, and with them the lake, came into shape."""
    sql(url, f"UPDATE table_state SET freed_bytes = {9 << 30} WHERE name IN ('sales.orders', 'events.clicks')")
    store.record_trends()
    names = "table_name, at_ms, files, bytes, small_files, reducible_files, rewritten_bytes, freed_bytes"
    hours = [*range(29 * 24, 7 * 24, -24), *range(7 * 24, 0, -4)]
    #: files and small files a month ago and now, and bytes rewritten since
    changed = {
        "sales.orders": (13_000, 359, 11_900, 41, 22 << 30),
        "events.clicks": (64_000, 59_900, 52_000, 31_500, 26 << 30),
        "*": (91_000, 73_400, 80_000, 50_500, 48 << 30),
    }
    for table, (files, files_now, small, small_now, rewritten) in changed.items():
        for number, ago in enumerate(hours):
            left = (1 - number / len(hours)) ** 2
            many, few = (int(now + (before - now) * left) for before, now in ((files, files_now), (small, small_now)))
            done = int(rewritten * (1 - left))
            values = f"{many}, {3 << 40}, {few}, {few * 4 // 5}, {done}, {done // 3}"
            at = f"(SELECT max(at_ms) FROM trend) - {ago * 3_600_000}"
            sql(url, f"INSERT INTO trend ({names}) VALUES ('{table}', {at}, {values})")


def _retried(store: Store, url: str, days: list[str]) -> Plan:
    plan = add_plan(store, "finance.ledger", *days[4:6])
    claim = claim_of(store, plan)
    run_steps(store, claim, {Step.FIND_COMMIT: 30})
    store.requeue(claim, "the lock of the table was not free for 60 s")
    sql(url, "UPDATE plan SET not_before_ms = 0 WHERE id = :id", id=plan.plan_id)
    claim = claim_of(store, plan)
    run_steps(store, claim, {Step.FIND_COMMIT: 30, Step.PREPARE: 700})
    store.record_skipped_groups(
        claim, [SkippedGroup(group=1, reason="dt=2026-11-06/5.parquet changed since the plan was made")]
    )
    store.requeue(claim, "Connection reset by peer: /data/lake/finance/ledger")
    return plan


def _inflight(store: Store, url: str, days: list[str]) -> Plan:
    plan = add_plan(store, "events.clicks", *days[4:10], files=800)
    claim = claim_of(store, plan)
    run_steps(store, claim, {Step.FIND_COMMIT: 44, Step.START: 7_200, Step.PREPARE: 1_300})
    done = RewriteProgress(
        bytes_done=round(plan.bytes * 0.62),
        bytes_total=plan.bytes,
        rows_done=40_000_000,
        spark_ui="http://host-1.example.org:4040",
    )
    store.heartbeat(claim, done)
    earlier = "created_at_ms = created_at_ms - 200000, claimed_at_ms = claimed_at_ms - 90000"
    sql(url, f"UPDATE plan SET {earlier} WHERE id = '{plan.plan_id}'")
    return plan


def messages(url: str, *reasons: str) -> list[int]:
    """Messages to a webhook that is not there, oldest first; their numbers."""
    outbox = Store(url, StoreSettings(notify_events=frozenset({"clean.failing"})))
    for reason in reasons:
        outbox.notify("clean.failing", table="sales.orders", reason=reason)
    numbers = [message.number for message in reversed(outbox.notifications(limit=len(reasons)))]
    outbox.close()
    return numbers


def _messages(url: str) -> None:
    dead, hostile, delivered, _ = messages(url, "disk full", HOSTILE, "disk full", "disk full")
    outbox = Store(url)
    outbox.mark_notification_failed(dead, "answered 410 Gone", None)
    outbox.mark_notification_failed(hostile, f"answered 500 {HOSTILE}", None)
    outbox.mark_notification_delivered(delivered)
    outbox.close()


def _spread_deletions(url: str) -> None:
    """Superseded over the last days, so that they go over the next."""
    sql(url, "UPDATE superseded_version SET superseded_at_ms = superseded_at_ms - (id * 91234567 % 604800000)")


def seven_day_lead(store: Store) -> None:
    """For a week a process leads the scans, and an executor runs plans."""
    week = timedelta(days=7)
    facts = ProcessFacts(
        name="host-1.example.org:4711",
        role="executor",
        host="host-1.example.org",
        version="0.1.0",
        slots=2,
        spark="running",
        spark_ui="http://host-1.example.org:4040",
    )
    store.register_process(facts, week)
    store.register_process(
        replace(facts, name="host-2.example.org/12/1/a.2", role="scheduler", slots=0, spark="none"), week
    )
    problem = "Spark could not start: its JVM was ended by SIGKILL, as the kernel does if memory runs out"
    store.register_process(replace(facts, name="host-3.example.org/99/1/a.2", spark="broken", problem=problem), week)
    store.register_process(replace(facts, name="host-4.example.org/7/1/a.2"), timedelta(seconds=-1))
    assert store.acquire_leader("scan", "host-2.example.org/12/1/a.2", week)

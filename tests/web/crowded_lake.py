# SPDX-License-Identifier: Apache-2.0
"""What makes pages wide: many tables, names of 60 characters and more, and long words in everything else."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from store_plans import sql
from web_lake import MIB, add_plan, claim_of, completed, failed, layout, run_steps, scan, sizes, table

from lake.plan import Plan, RewriteProgress, Step
from planner.slo.model import Objective, ObjectiveEvaluation
from service.control.planning.plan_request import PlanResponse
from service.control.store import ProcessFacts, ScanRecord, Store

_DATABASE = "customer_engagement_analytics_production"
#: 74 characters with places to break, and 61 without one
LONG = f"{_DATABASE}.daily_active_user_sessions_by_region"
SOLID = "warehouse.Internationalcustomerrelationshipmanagementsnapshots"
#: tables by what they are; each name has 60 characters or more
NAMES = {
    "healthy": LONG,
    "solid": SOLID,
    "halted": f"{_DATABASE}.marketing_attribution_touchpoints_hourly",
    "failing": f"{_DATABASE}.third_party_enrichment_responses_raw",
    "paused": f"{_DATABASE}.recommendation_impressions_deduplicated",
    "observed": f"{_DATABASE}.observability_events_from_mobile_clients",
    "off": f"{_DATABASE}.archived_clickstream_before_migration_2019",
    "unscanned": f"{_DATABASE}.newly_registered_table_nobody_scanned_yet",
}
RULES = f"""
[[tables]]
match = "*"
mode = "compact"
concurrency = "single_writer"
[[tables]]
match = "{NAMES["observed"]}"
mode = "observe"
[[tables]]
match = "{NAMES["off"]}"
mode = "off"
"""
PARTITION = "region=europe-and-middle-east/customer_segment=enterprise_accounts/event_date=2026-11-{:02}"
_LONG_HOST = "lakefold-executor-production-eu-central-1-7f9c8b6d5d-x2x7q.lakefold.svc.cluster.local"
_ERROR = (
    "org.apache.hudi.exception.HoodieClusteringException: Clustering failed to write to files: "
    f"s3a://customer-engagement-analytics-production/lake/{LONG.replace('.', '/')}/region=europe-and-middle-east/"
    "6f2b8a1c-0d5e-4f7a-9c3b-2e1d0a9b8c7f-0_12-345-6789_20261121221503112.parquet"
)


def crowd(store: Store) -> dict[str, Plan]:
    """All that in an empty lake; the plans by what they are."""
    minutes = [timedelta(minutes=n) for n in range(60)]
    for number in range(70):
        name = _one_of_many(number)
        store.register_table(table(name), "compact", owner=f"team-{number % 5}-data-platform-and-insights")
        store.record_scan(
            scan(
                name,
                sizes(40 + 13 * number, (1 + number) * MIB, 1.5),
                ago=minutes[number % 60],
                reducible_files=number % 40,
                reducible_bytes=number * MIB,
            )
        )
    for kind, name in NAMES.items():
        if kind != "unscanned":
            mode = {"observed": "observe", "off": "off"}.get(kind, "compact")
            store.register_table(table(name), mode, owner="customer-engagement-analytics@example.org")
        if kind not in ("off", "unscanned"):
            days = [PARTITION.format(day) for day in range(1, 29)]
            found = scan(
                name,
                sizes(123_456, 3 * MIB, 2.0),
                ago=minutes[2],
                reducible_files=98_765,
                reducible_bytes=123 << 30,
                log_files=12_345,
                log_bytes=17 << 30,
            )
            store.record_scan(replace(found, taken_at=found.taken_at - timedelta(days=3)))
            store.record_scan(found, layout(days, lambda n: n + 3), _judged() if kind == "solid" else ())
    sql(
        store.url,
        "UPDATE table_objective SET judged_at_ms = judged_at_ms - :ms, changed_at_ms = changed_at_ms - :ms",
        ms=4 * 3_600_000,
    )
    solid = store.last_scans([SOLID])[SOLID]
    store.record_scan(solid, None, _judged())
    store.record_scan(ScanRecord(table=NAMES["failing"], taken_at=datetime.now(UTC), outcome="error", error=_ERROR))
    store.pause(NAMES["paused"], "customer-engagement-analytics@example.org", "the bucket is moved " * 6)
    partitions = [PARTITION.format(day) for day in range(1, 13)]
    plans = {
        "long-completed": completed(store, LONG, *partitions[:4], files=240),
        "long-failed": failed(store, SOLID, partitions[5], _ERROR),
        "long-halted": failed(store, NAMES["halted"], partitions[6], f"3 rows fewer in {partitions[6]}", halt=True),
    }
    cancelled = plans["long-cancelled"] = add_plan(store, LONG, partitions[7])
    store.request_cancel(cancelled.plan_id, actor="customer-engagement-analytics@example.org", reason="too early " * 9)
    running = plans["long-inflight"] = add_plan(store, SOLID, *partitions[8:10], files=500)
    store.register_process(_facts(_LONG_HOST), timedelta(days=7))
    claim = claim_of(store, running, f"{_LONG_HOST}/4711/1/a.2")
    run_steps(store, claim, {Step.FIND_COMMIT: 44, Step.START: 7_200, Step.PREPARE: 1_300})
    store.heartbeat(claim, RewriteProgress(bytes_done=running.bytes // 3, bytes_total=running.bytes))
    return plans


def asked(store: Store) -> dict[str, str]:
    """A dry run without an answer and one with an answer; their ids by kind."""
    days = [PARTITION.format(day) for day in range(1, 9)]
    wanted = {"overrides": {"small_file_limit": "64MiB"}, "dry_run": True, "actor": "customer-engagement@example.org"}
    ids = {
        "request-waiting": store.add_request(SOLID, partitions=days[:1], **wanted),
        "request-answered": store.add_request(LONG, partitions=days, **wanted),
    }
    groups = [{"partition": day, "input_files": 240, "input_bytes": 9 << 30, "output_files": 9} for day in days]
    plan = {"kind": "clustering", "input_files": 1920, "input_bytes": 72 << 30, "output_files": 72, "groups": groups}
    left = {
        "text": "above limit 512 MiB ≥ 300 MiB",
        "varies": True,
        "knob": "small_file_limit",
        "partitions": 8,
        "files": 4321,
        "bytes": 3 << 40,
    }
    answer = PlanResponse(
        table=LONG,
        outcome="dry_run",
        text="Would create 1 plan: 1,920 files → 72 (72.0 GiB to rewrite)",
        plans=(plan,),
        reasons=(left,),
        holders={days[0]: "01a20614-8e98-7313-8f14-e0ba1e86751e"},
    )
    store.answer_request(ids["request-answered"], answer=answer.document())
    return ids


def queue(store: Store) -> None:
    """A table without a scan, and plans by the dozen: no trend begins and nothing else is claimed from then on."""
    store.register_table(table(NAMES["unscanned"]), "compact")
    for number in range(60):
        add_plan(store, _one_of_many(number), "dt=1")


def _judged() -> list[ObjectiveEvaluation]:
    """An objective that is missed, with its error budget burning, and one that is met."""
    held = {"goal": 0.99, "window": timedelta(days=28), "valid_for": timedelta(days=9)}
    return [
        ObjectiveEvaluation(objective=Objective.SMALL_FILE_SHARE, value=0.61, bound=0.05, **held),
        ObjectiveEvaluation(objective=Objective.OLDEST_SMALL_FILE, value=600, bound=7200, **held),
    ]


def _one_of_many(number: int) -> str:
    return f"{_DATABASE}_{number % 7}.aggregated_measurements_of_connected_devices_{number:03}"


def _facts(host: str) -> ProcessFacts:
    return ProcessFacts(
        name=f"{host}/4711/1/a.2",
        role="executor",
        host=host,
        version="0.1.0",
        slots=2,
        spark="running",
        spark_ui=f"http://{host}:4040",
    )

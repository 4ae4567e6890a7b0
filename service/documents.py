# SPDX-License-Identifier: Apache-2.0
"""The JSON documents of plans, tables, settings and the service: the same for ``--json``, HTTP and page.

Values are Python's; ``service.text.plain`` makes them what JSON can hold. Bytes are raw integers, times aware.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from service.redaction import hide, shown
from service.text import plural, size

if TYPE_CHECKING:
    from lake.plan import PlanState
    from service.config import Config
    from service.lately import Lake
    from service.rules import ConfiguredTable
    from service.store import Notification, Pause, PlanEvent, PlanView, ScanRecord, TableState

#: states a plan does not leave
TERMINAL = ("completed", "failed", "cancelled")
#: what of a plan is told while it is followed to its end
PROGRESS = (
    "plan_id", "table", "state", "step", "attempts", "progress_bytes_done", "progress_bytes_total", "files_before",
    "files_after", "bytes_before", "bytes_after", "instant", "not_before", "error", "cancel_reason",
)  # fmt: skip
#: settings whose numbers are bytes
_SIZES = (
    "small_file_limit",
    "target_file_max",
    "max_bytes_per_group",
    "max_bytes_per_plan",
    "missing_base",
    "compact_log_bytes",
    "http.max_body",
)


def plan_summary(plan: "PlanView") -> dict[str, Any]:
    """A plan in a listing."""
    return {
        "plan_id": plan.plan_id, "table": plan.table, "format": plan.format, "kind": plan.kind, "state": plan.state,
        "step": plan.step, "groups": plan.group_count, "partitions": plan.partition_count,
        "input_files": plan.input_files, "input_bytes": plan.input_bytes, "output_files": plan.output_files,
        "files_before": plan.files_before, "bytes_before": plan.bytes_before, "files_after": plan.files_after,
        "bytes_after": plan.bytes_after, "progress_bytes_done": plan.progress_bytes_done,
        "progress_bytes_total": plan.progress_bytes_total, "attempts": plan.attempts, "epoch": plan.epoch,
        "executor": plan.executor, "created_at": plan.created_at, "claimed_at": plan.claimed_at,
        "finalized_at": plan.finalized_at, "instant": plan.instant, "error": plan.error,
        "cancel_reason": plan.cancel_reason, "request_id": plan.request_id, "actor": plan.actor,
        "adopted": plan.adopted,
    }  # fmt: skip


def plan_details(plan: "PlanView", events: "Sequence[PlanEvent]") -> dict[str, Any]:
    """Everything about a plan."""
    return plan_summary(plan) | {
        "location": plan.location, "snapshot_instant": plan.snapshot_instant, "instants": plan.instants,
        "options": plan.options, "estimate": plan.estimate, "milliseconds": plan.milliseconds,
        "lease_until": plan.lease_until, "heartbeat_at": plan.heartbeat_at, "not_before": plan.not_before,
        "spark_ui": plan.spark_ui, "cancel_requested_by": plan.cancel_requested_by,
        "partition_names": plan.partitions, "figures": plan.figures, "group_list": plan.groups, "events": events,
    }  # fmt: skip


def plan_progress(plan: "PlanView") -> dict[str, Any]:
    """A plan while it is followed to its end."""
    return {name: getattr(plan, name) for name in PROGRESS}


def plan_cancelled(plan_id: str, state: "PlanState") -> dict[str, Any]:
    """What a cancel has done; ``cancel_requested`` says that the executor was asked to stop before the commit."""
    return {"plan_id": plan_id, "state": state, "cancel_requested": state.value != "cancelled"}


def plan_retried(plan_id: str) -> dict[str, Any]:
    """What a retry has done."""
    return {"plan_id": plan_id, "state": "requested"}


def notification(message: "Notification") -> dict[str, Any]:
    """A message to the webhook; ``id`` is what its receiver knows it by."""
    return {
        "number": message.number, "id": message.body["id"], "event": message.event, "table": message.body["table"],
        "plan": message.body["plan"], "reason": message.body["reason"], "state": message.state,
        "attempts": message.attempts, "created_at": message.created_at, "not_before": message.not_before,
        "delivered_at": message.delivered_at, "dead_at": message.dead_at, "error": message.error,
    }  # fmt: skip


def notifications_retried(count: int) -> dict[str, Any]:
    """What a retry of dead messages has done."""
    return {"retried": count}


def notifications_dropped(count: int) -> dict[str, Any]:
    """What dropping dead messages has done."""
    return {"dropped": count}


def paused(table: str | None, now: bool) -> dict[str, Any]:
    """Whether a table is paused now, or with None the whole service."""
    return {"table": table, "paused": now}


def _pause(pause: "Pause | None") -> dict[str, Any]:
    return {
        "paused": pause is not None, "paused_by": pause and pause.by, "paused_at": pause and pause.at,
        "paused_reason": pause and pause.reason,
    }  # fmt: skip


def table_state_word(table: "ConfiguredTable", state: "TableState | None") -> str:
    """``halted``, ``paused``, or else the table's mode."""
    if state is not None and state.halted:
        return "halted"
    if state is not None and state.paused:
        return "paused"
    return table.mode


def table_summary(table: "ConfiguredTable", state: "TableState | None", scan: "ScanRecord | None") -> dict[str, Any]:
    """A table in a listing; ``scan`` is its last one, None before the first."""
    return {
        "table": table.name, "format": table.ref.format, "location": table.ref.location, "mode": table.mode,
        "state": table_state_word(table, state), **_pause(state.pause if state else None),
        "halted_at": state.halted_at if state else None,
        "halted_reason": state.halted_reason if state else None,
        "quarantined": dict(state.quarantined) if state else {}, "scan": scan,
    }  # fmt: skip


def table_details(
    table: "ConfiguredTable",
    state: "TableState | None",
    scan: "ScanRecord | None",
    good: "ScanRecord | None",
    facts: Mapping[str, str],
) -> dict[str, Any]:
    """Everything about a table: ``good`` is its last scan that succeeded, ``facts`` what its format says of it."""
    return table_summary(table, state, scan) | {
        "last_good_scan": good, "facts": facts, "policy": table.policy.settings(), "notes": table.policy.notes
    }  # fmt: skip


def status(lake: "Lake") -> dict[str, Any]:
    """Everything about "how is the lake?", as it was when the database was read, ``taken_at``.

    ``backlog_seconds`` goes by the speed of the last completed plans and is None without any. ``attention`` has the
    tables that are halted or paused, that are damaged or could not be scanned, of which files can't be read, and those
    whose newest plan failed.
    """
    from lake.plan import PlanState

    figures, recent, scans, first = lake.figures, lake.recent, lake.good.values(), lake.first.values()
    files, small = sum(scan.files for scan in scans), sum(scan.small_files for scan in scans)
    files_before, small_before = sum(scan.files for scan in first), sum(scan.small_files for scan in first)
    seconds = sum(sum(plan.milliseconds.values()) for plan in recent) / 1000
    speed = sum(plan.input_bytes for plan in recent) / seconds if seconds else 0.0
    return {
        "taken_at": figures.taken_at,
        "files_removed": figures.files_removed,
        "bytes_rewritten": figures.bytes_rewritten,
        "tables": len(figures.tables),
        "files": files,
        "small_files": small,
        "small_file_share": small / files if files else None,
        "files_before": files_before,
        "small_files_before": small_before,
        "small_file_share_before": small_before / files_before if files_before else None,
        **{state.value: figures.count(state) for state in PlanState},
        "backlog_bytes": figures.backlog_bytes,
        "backlog_seconds": figures.backlog_bytes / speed if speed else None,
        "bytes_per_second": speed or None,
        "oldest_requested_at": figures.oldest_requested_at,
        "unplanned_bytes": sum(scan.backlog_bytes for scan in scans),
        "superseded_files": sum(entry.files for entry in figures.superseded),
        "superseded_bytes": sum(entry.bytes for entry in figures.superseded),
        "halted": list(figures.halted),
        **_pause(figures.pause),
        "paused_tables": [table.name for table in figures.tables if table.paused],
        "attention": [entry for table in figures.tables if (entry := _attention(lake, table)) is not None],
        "notifications_waiting": figures.notifications_waiting,
        "notifications_dead": figures.notifications_dead,
        "leaders": lake.leaders,
    }  # fmt: skip


def _attention(lake: "Lake", table: "TableState") -> dict[str, Any] | None:
    """What of a table needs a person; None where nothing does."""
    good, last, failed = lake.good.get(table.name), lake.last.get(table.name), lake.failed.get(table.name)
    damaged = good.damaged if good is not None else 0
    error = last.error if last is not None and last.outcome != "ok" else None
    if not (table.halted or table.quarantined or table.paused or damaged or error or failed):
        return None
    return {
        "table": table.name, "halted_at": table.halted_at, "halted_reason": table.halted_reason,
        "damaged_slices": damaged, "quarantined_files": len(table.quarantined), "scan_error": error,
        "failed_plan": failed and failed.plan_id, "failed_reason": failed and failed.error, **_pause(table.pause),
    }  # fmt: skip


def answer_line(status: Mapping[str, Any]) -> str:
    """The one line that says how the lake is."""
    from lake.units import format_duration

    share, before = status["small_file_share"], status["small_file_share_before"]
    left = "" if status["backlog_seconds"] is None else f" ≈ {format_duration(status['backlog_seconds'])}"
    parts = [
        f"{plural(status['files_removed'], 'file')} removed",
        f"{size(status['bytes_rewritten'])} rewritten",
        "small-file share "
        + ("unknown" if share is None or before is None else f"{100 * before:.0f} % → {100 * share:.0f} %"),
        f"{status['inflight']} running, {status['requested']} waiting",
        f"backlog {size(status['backlog_bytes'])}{left if status['backlog_bytes'] else ''}",
        f"{len(status['halted'])} halted",
    ]
    return " · ".join([*parts, "paused"] if status["paused"] else parts)


def setting(key: str, value: Any, origin: str) -> dict[str, Any]:
    """A setting in force without its secrets, and the place it came from; ``text`` is the value for people."""
    value = shown(key, value)
    return {"setting": key, "value": value, "text": _written(key, value), "origin": origin}


def _written(key: str, value: Any) -> str:
    """Bytes with a unit, durations as written, lists with commas."""
    from lake.units import format_bytes, format_duration

    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, int) and not isinstance(value, bool) and key in _SIZES:
        return format_bytes(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_written(name, item)}" for name, item in value.items())
    if isinstance(value, (tuple, list, frozenset, set)):
        return ", ".join(str(item) for item in value)
    return "" if value is None else str(value)


def service_settings(config: "Config") -> list[dict[str, Any]]:
    """Every setting of the service, passwords left out."""
    origins = config.origins

    def rows(section: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [
            setting(f"{section}.{key}", value, origins.get(f"{section}.{key}", "default"))
            for key, value in values.items()
        ]

    spark = [
        setting(
            key,
            shown(key, value),
            origins.get(f"spark.{key}") or origins.get(f"spark.{key.removeprefix('spark.')}", "default"),
        )
        for key, value in config.spark.items()
    ]
    sources = [
        setting("sources", source.model_dump(exclude_defaults=True), f"{config.file_name} [[sources]] #{number}")
        for number, source in enumerate(config.sources, 1)
    ]
    shown_url = without_password(config.database.url.get_secret_value())
    database = rows("database", {**config.database.model_dump(), "url": shown_url})
    return [
        *database,
        *spark,
        *sources,
        *rows("daemon", config.daemon.model_dump()),
        *rows("http", config.http.model_dump()),
        *rows("notify", config.notify.model_dump()),
        *rows("openlineage", config.openlineage.model_dump()),
        *rows("opentelemetry", config.opentelemetry.model_dump()),
    ]


def table_settings(table: "ConfiguredTable") -> list[dict[str, Any]]:
    """Every policy knob, mode and lock setting of one table."""
    from planner.policy import KNOBS, setting_name

    rows = [
        setting("mode", table.mode, table.origins["mode"].place),
        setting("concurrency", table.ref.concurrency.value, table.origins["concurrency"].place),
        setting("on_conflict", table.ref.on_conflict or "as write_options say", table.origins["on_conflict"].place),
    ]
    for knob in KNOBS:
        origin = table.origins[knob]
        place = f"{origin.place} ({origin.key} = {origin.value!r})" if origin.key else origin.place
        rows.append(setting(setting_name(knob), getattr(table.policy, knob), place))
    place = table.origins["write_options"].place
    rows += [setting(f"write_options.{key}", value, place) for key, value in sorted(table.ref.write_options.items())]
    return rows


def without_password(url: str) -> str:
    """A database URL that may be shown."""
    scheme, separator, rest = url.partition("://")
    login, at, host = rest.rpartition("@")
    if not at:
        return hide(url)
    return hide(f"{scheme}{separator}{login.partition(':')[0]}{':***' if ':' in login else ''}@{host}")

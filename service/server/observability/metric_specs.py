# SPDX-License-Identifier: Apache-2.0
"""The list of all metrics: name, type, labels and meaning. Dashboards, rules and docs/metrics.md follow this list.

Each name ends with its unit, a base unit (seconds, bytes). No label contains a partition, a path or a plan id.
"""

from dataclasses import dataclass
from typing import Literal

MetricType = Literal["counter", "gauge", "histogram", "gaugehistogram", "info"]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric. A ``stored`` metric is read from cached rows of the database instead of counted in the process."""

    name: str
    type: MetricType
    labels: tuple[str, ...]
    meaning: str
    stored: bool = False
    buckets: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class MetricSection:
    """A group of related metrics."""

    title: str
    specs: tuple[MetricSpec, ...]


_TABLE_LABELS = ("table", "format")
_PLAN_LABELS = ("table", "format", "kind")
_ENGINE_LABELS = ("table", "format", "kind", "engine")
_OBJECTIVE_LABELS = ("table", "format", "objective")
_STEP_SECONDS = (0.01, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400)
_RESPONSE_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 30)
_WAIT_SECONDS = (1, 5, 15, 60, 300, 900, 3600, 14400, 86400)


def _stored_metric(name: str, labels: tuple[str, ...], meaning: str, type_: MetricType = "gauge") -> MetricSpec:
    return MetricSpec(name, type_, labels, meaning, stored=True)


SECTIONS: tuple[MetricSection, ...] = (
    MetricSection(
        "Layout at the last good scan of each table",
        (
            _stored_metric("lakefold_table_files", _TABLE_LABELS, "Live base files."),
            _stored_metric("lakefold_table_bytes", _TABLE_LABELS, "Bytes of the live base files."),
            _stored_metric(
                "lakefold_table_small_files", _TABLE_LABELS, "Live base files strictly below small_file_limit."
            ),
            _stored_metric("lakefold_table_small_file_bytes", _TABLE_LABELS, "Bytes of the small files."),
            _stored_metric(
                "lakefold_table_log_files", _TABLE_LABELS, "Log files of the latest slices (merge-on-read)."
            ),
            _stored_metric("lakefold_table_log_bytes", _TABLE_LABELS, "Bytes of the log files of the latest slices."),
            _stored_metric("lakefold_table_partitions", _TABLE_LABELS, "Partitions with at least one live slice."),
            _stored_metric(
                "lakefold_table_file_size_bytes", _TABLE_LABELS, "Live base files by size.", "gaugehistogram"
            ),
            _stored_metric(
                "lakefold_table_damaged_slices",
                _TABLE_LABELS,
                "Latest slices whose files differ from the commits.",
            ),
            _stored_metric(
                "lakefold_table_over_budget_slices",
                _TABLE_LABELS,
                "Latest slices whose group is larger than a whole budget, so that no plan can take them.",
            ),
            _stored_metric(
                "lakefold_table_overlapping_commits",
                _TABLE_LABELS,
                "Commits of other processes in the last day that overlapped a plan, in a table with concurrency = "
                "single_writer.",
            ),
            _stored_metric(
                "lakefold_table_foreign_files",
                _TABLE_LABELS,
                "Files of other programs among the data, which are left alone.",
            ),
            _stored_metric(
                "lakefold_table_not_planned",
                _TABLE_LABELS,
                "1 for a table in mode propose or compact if no rule states how it is written or read, or if another "
                "name of the table is in use, else 0.",
            ),
            _stored_metric(
                "lakefold_table_reducible_files",
                _TABLE_LABELS,
                "Small files that a plan would take now, or once an obstacle is gone: a quiet period, a live plan, a "
                "pending action, a failed plan, a declined proposal, or a budget that is too small. In observed "
                "tables: small files that a plan would take.",
            ),
            _stored_metric("lakefold_table_residual_files", _TABLE_LABELS, "Small files that are not worth a plan."),
            _stored_metric(
                "lakefold_table_reducible_bytes",
                _TABLE_LABELS,
                "Bytes that plans would read for all pending work: for reducible files, and for slices due for "
                "compaction.",
            ),
            _stored_metric(
                "lakefold_table_snapshot_timestamp_seconds",
                _TABLE_LABELS,
                "Time of the last successful scan.",
            ),
            _stored_metric(
                "lakefold_table_scan_failed",
                _TABLE_LABELS,
                "1 if the last scan failed, so that the layout is that of an earlier scan, else 0.",
            ),
            _stored_metric("lakefold_table_mode", (*_TABLE_LABELS, "mode"), "1 for the table's current mode."),
            _stored_metric("lakefold_table_paused", _TABLE_LABELS, "1 while the table is paused by an operator."),
            _stored_metric(
                "lakefold_table_halted", _TABLE_LABELS, "1 while the table is halted; `lakefold status` has the reason."
            ),
            _stored_metric(
                "lakefold_table_halted_partitions",
                _TABLE_LABELS,
                "Partitions that are halted themselves, without their table, at most 100; `lakefold status` names "
                "them.",
            ),
        ),
    ),
    MetricSection(
        "Layout objectives, of the tables that have any",
        (
            _stored_metric(
                "lakefold_table_slo_met",
                _OBJECTIVE_LABELS,
                "1 if the objective was met at the last good scan, else 0.",
            ),
            _stored_metric(
                "lakefold_table_slo_seconds_total",
                (*_OBJECTIVE_LABELS, "outcome"),
                "Seconds in which the objective was met or missed, up to a minute ago. The result of a scan holds "
                "until the next scan, for three scan intervals at most, or for an hour if that is longer; time after "
                "that does not count.",
                "counter",
            ),
            _stored_metric(
                "lakefold_table_slo_goal_ratio",
                _OBJECTIVE_LABELS,
                "The share of the time in which the objective must be met.",
            ),
            _stored_metric(
                "lakefold_table_slo_budget_remaining_ratio",
                _OBJECTIVE_LABELS,
                "The share of the error budget that remained at the last good scan; negative if it is overspent. The "
                "error budget is the time in which the objective may be missed within slo_window.",
            ),
        ),
    ),
    MetricSection(
        "Planner",
        (
            MetricSpec(
                "lakefold_planner_runs_total", "counter", ("format", "outcome"), "Scans of a table with planning."
            ),
            MetricSpec(
                "lakefold_planner_run_duration_seconds",
                "histogram",
                ("format",),
                "Seconds of one scan with planning.",
                buckets=_STEP_SECONDS,
            ),
            MetricSpec(
                "lakefold_planner_last_success_timestamp_seconds",
                "gauge",
                (),
                "Time when this process last scanned a table with success or found no table to scan; 0 before that. "
                "Only the daemon that leads scans sets this metric: use max().",
            ),
            MetricSpec(
                "lakefold_planner_partitions_skipped_total",
                "counter",
                ("reason",),
                "Partitions in which at least one slice was left alone for this reason, counted at each planning run.",
            ),
            MetricSpec(
                "lakefold_planner_written_scans_total",
                "counter",
                ("format", "outcome"),
                "Scans of only those partitions of a table that writers reported.",
            ),
            MetricSpec(
                "lakefold_planner_written_scan_duration_seconds",
                "histogram",
                ("format",),
                "Seconds of one scan of reported partitions, planning included.",
                buckets=_STEP_SECONDS,
            ),
            MetricSpec(
                "lakefold_planner_written_scan_partitions_total",
                "counter",
                ("format",),
                "Reported partitions that were scanned, each counted once per scan.",
            ),
        ),
    ),
    MetricSection(
        "Plans",
        (
            _stored_metric("lakefold_plans", (*_PLAN_LABELS, "state"), "Plans in the database by state."),
            _stored_metric(
                "lakefold_plan_backlog_bytes",
                _PLAN_LABELS,
                "Input bytes of requested and inflight plans; plans that wait for approval do not count.",
            ),
            _stored_metric("lakefold_plan_proposals", _TABLE_LABELS, "Plans that wait for approval (mode propose)."),
            _stored_metric(
                "lakefold_plan_oldest_proposal_timestamp_seconds",
                (),
                "Time when the oldest plan that waits for approval was proposed; absent without such a plan.",
            ),
            _stored_metric(
                "lakefold_plan_backlog_seconds",
                (),
                "Seconds to work off the backlog at the speed of the last completed plans; absent while no process "
                "runs plans.",
            ),
            _stored_metric(
                "lakefold_plan_oldest_requested_timestamp_seconds",
                (),
                "Time when the oldest requested plan became due; absent without such a plan. Plans that wait for "
                "approval do not count.",
            ),
            MetricSpec(
                "lakefold_plans_finished_total",
                "counter",
                (*_PLAN_LABELS, "outcome"),
                "Plans that this process ended.",
            ),
            MetricSpec(
                "lakefold_plan_wait_seconds",
                "histogram",
                ("format", "kind"),
                "Seconds from a plan's creation to its first claim.",
                buckets=_WAIT_SECONDS,
            ),
            MetricSpec(
                "lakefold_plan_stage_duration_seconds",
                "histogram",
                ("format", "kind", "engine", "stage"),
                "Seconds of one finished step of a plan.",
                buckets=_STEP_SECONDS,
            ),
            _stored_metric(
                "lakefold_plans_retrying",
                _TABLE_LABELS,
                "Live plans of which at least one attempt failed; `lakefold status` has the error of the last one.",
            ),
            MetricSpec(
                "lakefold_plan_retries_total",
                "counter",
                ("format", "reason"),
                "Plans that returned to the state requested, by the error's name. SessionSpoiled: the Spark session "
                "is restarted; the first such attempt of a plan in a process does not count.",
            ),
            MetricSpec(
                "lakefold_plan_leases_expired_total",
                "counter",
                ("format",),
                "Plans taken over from an executor that no longer renewed its lease.",
            ),
            MetricSpec(
                "lakefold_plan_commit_conflicts_total",
                "counter",
                _TABLE_LABELS,
                "Plans cancelled because a writer changed their inputs.",
            ),
        ),
    ),
    MetricSection(
        "Rewriting",
        (
            MetricSpec(
                "lakefold_rewrite_input_bytes_total",
                "counter",
                _ENGINE_LABELS,
                "Bytes of the files that plans replaced.",
            ),
            MetricSpec(
                "lakefold_rewrite_output_bytes_total", "counter", _ENGINE_LABELS, "Bytes of the files that plans wrote."
            ),
            MetricSpec(
                "lakefold_rewrite_input_files_total", "counter", _ENGINE_LABELS, "Files that committed plans replaced."
            ),
            MetricSpec(
                "lakefold_rewrite_output_files_total", "counter", _ENGINE_LABELS, "Files that committed plans wrote."
            ),
            MetricSpec(
                "lakefold_executor_slots",
                "gauge",
                ("state",),
                "Plans that this process can run at once, by state: busy or free.",
            ),
            MetricSpec(
                "lakefold_executor_last_heartbeat_timestamp_seconds",
                "gauge",
                (),
                "Time when this process's executor last polled for work or extended a lease; 0 without an executor.",
            ),
        ),
    ),
    MetricSection(
        "Predictions and budgets",
        (
            _stored_metric(
                "lakefold_work_budget",
                ("quantity", "window"),
                "The budget of all plans, if there is one: quantity is bytes or cpu_seconds, window is hour (any 60 "
                "minutes) or day (any 24 hours).",
            ),
            _stored_metric(
                "lakefold_work_used",
                ("quantity", "window"),
                "The amount of each lakefold_work_budget that plans have used, with the same labels.",
            ),
            _stored_metric(
                "lakefold_plans_held",
                ("reason",),
                "Requested plans that are held back: by a budget, outside the hours of their table (window), or for "
                "good, because a plan exceeds a whole budget (exceeds_budget).",
            ),
            _stored_metric(
                "lakefold_plan_prediction_error_ratio",
                ("quantity",),
                "Median error of the predictions for the last 20 completed plans, as a share of the actual value: "
                "cpu_seconds, bytes (written), files_saved.",
            ),
        ),
    ),
    MetricSection(
        "Cleaning",
        (
            _stored_metric(
                "lakefold_superseded_bytes",
                _TABLE_LABELS,
                "Bytes of replaced files that wait for the end of their retention.",
            ),
            _stored_metric(
                "lakefold_superseded_files", _TABLE_LABELS, "Replaced files that wait for the end of their retention."
            ),
            MetricSpec(
                "lakefold_cleaner_deleted_bytes_total", "counter", _TABLE_LABELS, "Bytes of replaced files deleted."
            ),
            MetricSpec("lakefold_cleaner_deleted_files_total", "counter", _TABLE_LABELS, "Replaced files deleted."),
            MetricSpec(
                "lakefold_cleaner_failures_total",
                "counter",
                ("table", "format", "reason"),
                "Failed cleanings of a table, by the error's name.",
            ),
            MetricSpec(
                "lakefold_cleaner_last_success_timestamp_seconds",
                "gauge",
                (),
                "Time when this process last cleaned all tables; 0 before that. Only the daemon that leads cleaning "
                "sets this metric: use max().",
            ),
        ),
    ),
    MetricSection(
        "Notifications",
        (
            _stored_metric(
                "lakefold_notifications",
                ("state",),
                "Messages to the webhook and the channels, by state: waiting, or given up (dead).",
            ),
            MetricSpec(
                "lakefold_notification_attempts_total",
                "counter",
                ("outcome",),
                "Attempts of this process to deliver a message, by outcome: delivered, failed (it is tried "
                "again), dead (given up).",
            ),
        ),
    ),
    MetricSection(
        "Service",
        (
            MetricSpec("lakefold_leader", "gauge", ("role",), "1 if this process is the leader for the role."),
            _stored_metric(
                "lakefold_processes",
                ("role",),
                "Live processes with this role: scheduler, executor or api. A process with role all counts in each of "
                "them; an executor whose Spark is broken does not count.",
            ),
            _stored_metric(
                "lakefold_source_problems",
                (),
                "Parts of sources that the last search for tables could not read; known tables in them are not "
                "scanned, and new tables are not found.",
            ),
            _stored_metric(
                "lakefold_processes_silent",
                ("role",),
                "Processes with this role that fell silent in the last day without signing off, and that no later "
                "process of the role has replaced.",
            ),
            MetricSpec(
                "lakefold_config_not_loaded",
                "gauge",
                (),
                "1 while the configuration file of this process differs from the configuration in force, else 0.",
            ),
            _stored_metric("lakefold_paused", (), "1 while the whole service is paused."),
            MetricSpec("lakefold_database_errors_total", "counter", (), "Calls to the database that failed."),
            _stored_metric(
                "lakefold_stored_metrics_timestamp_seconds",
                (),
                "Time when the stored gauges were last read from the database.",
            ),
            MetricSpec(
                "lakefold_http_request_duration_seconds",
                "histogram",
                ("method", "route", "status"),
                "Seconds from a request to the first byte of its answer; the route is the template of its path.",
                buckets=_RESPONSE_SECONDS,
            ),
            MetricSpec(
                "lakefold_build_info", "info", ("version", "python", "role"), "Version, Python and role of the process."
            ),
        ),
    ),
)

SPECS: dict[str, MetricSpec] = {spec.name: spec for section in SECTIONS for spec in section.specs}
"""Every metric by its name."""

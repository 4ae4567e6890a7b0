# SPDX-License-Identifier: Apache-2.0
"""The JSON documents of plans, tables, settings and the service: the same for ``--json``, HTTP and page.

Values are Python's; ``service.text.to_jsonable`` converts them for JSON. Bytes are raw integers, times timezone-aware.
"""

from service.control.serializers.actions import action_documents
from service.control.serializers.advice import advice
from service.control.serializers.audit import audit_entry
from service.control.serializers.cost import (
    PREDICTED_FIELDS,
    describe_cost,
    describe_held_work,
    held_reason,
    plan_cost,
    prediction_errors,
    work_budget_document,
)
from service.control.serializers.history import (
    ATTEMPTS_PERIOD,
    SAVINGS_PERIOD,
    attempt_history,
    load_plan_sizes,
    load_savings,
    savings,
)
from service.control.serializers.notifications import notification, notifications_dropped, notifications_retried
from service.control.serializers.objectives import (
    budget_problems,
    describe_error_budget,
    describe_objective,
    load_objectives,
    objective_document,
)
from service.control.serializers.partitions import filter_partitions, partition_documents, worst_partitions
from service.control.serializers.plans import (
    PROGRESS_FIELDS,
    TERMINAL_STATES,
    describe_retries,
    end_reason,
    plan_cancelled,
    plan_decided,
    plan_details,
    plan_progress,
    plan_retried,
    plan_summary,
    progress_rate,
)
from service.control.serializers.processes import (
    config_problems,
    describe_silence,
    has_scheduler,
    no_executor_reason,
    process_list,
    silent_processes,
    unserved_group_reason,
    unserved_groups,
)
from service.control.serializers.replay import replay
from service.control.serializers.report import GROUPINGS, report
from service.control.serializers.settings import service_settings, setting_document, table_settings
from service.control.serializers.simulation import describe_sizes, simulation
from service.control.serializers.status import (
    backlog_seconds,
    describe_oldest_waiting,
    describe_reducible,
    status,
    summary_line,
)
from service.control.serializers.tables import (
    commands_before_partition_resume,
    commands_before_resume,
    describe_contention,
    describe_foreign_files,
    describe_over_budget,
    describe_overlaps,
    describe_scan_failure,
    describe_waiting,
    displayed_state,
    halted_partitions,
    halting_plan_id,
    needs_attention,
    pause_result,
    table_details,
    table_summary,
)
from service.control.serializers.trend import (
    TREND_DAYS,
    describe_trends,
    lake_points,
    points_within,
    table_points,
    trend_point,
    trends,
)

# SPDX-License-Identifier: Apache-2.0
"""The JSON documents of plans, tables, settings and the service: the same for ``--json``, HTTP and page.

Values are Python's; ``service.text.plain`` makes them what JSON can hold. Bytes are raw integers, times aware.
"""

from service.documents.advice import advice
from service.documents.audit import audit_entry
from service.documents.notifications import notification, notifications_dropped, notifications_retried
from service.documents.objectives import budget_problems, budget_words, objective_document, objective_words
from service.documents.over_time import DAYS, lake_points, table_points, trend_point, trend_words, trends, within
from service.documents.partitions import named_like, worst
from service.documents.plans import (
    PROGRESS,
    TERMINAL,
    how_it_ended,
    pace,
    plan_cancelled,
    plan_decided,
    plan_details,
    plan_progress,
    plan_retried,
    plan_summary,
)
from service.documents.processes import has_scheduler, nobody_runs_plans, process_list
from service.documents.replay import replay
from service.documents.settings import service_settings, setting, table_settings
from service.documents.simulation import simulation, sizes_in_words
from service.documents.status import answer_line, backlog_seconds, reducible_words, status
from service.documents.tables import (
    before_partition_resume,
    before_resume,
    contest_words,
    foreign_words,
    halted_partitions,
    halting_plan,
    overlap_words,
    paused,
    table_details,
    table_state_word,
    table_summary,
)
from service.documents.worth import (
    PREDICTED,
    plan_worth,
    prediction_errors,
    why_held,
    work_document,
    work_words,
    worth_words,
)

__all__ = [
    "DAYS",
    "PREDICTED",
    "PROGRESS",
    "TERMINAL",
    "advice",
    "answer_line",
    "audit_entry",
    "backlog_seconds",
    "before_partition_resume",
    "before_resume",
    "budget_problems",
    "budget_words",
    "contest_words",
    "foreign_words",
    "halted_partitions",
    "halting_plan",
    "has_scheduler",
    "how_it_ended",
    "lake_points",
    "named_like",
    "nobody_runs_plans",
    "notification",
    "notifications_dropped",
    "notifications_retried",
    "objective_document",
    "objective_words",
    "overlap_words",
    "pace",
    "paused",
    "plan_cancelled",
    "plan_decided",
    "plan_details",
    "plan_progress",
    "plan_retried",
    "plan_summary",
    "plan_worth",
    "prediction_errors",
    "process_list",
    "reducible_words",
    "replay",
    "service_settings",
    "setting",
    "simulation",
    "sizes_in_words",
    "status",
    "table_details",
    "table_points",
    "table_settings",
    "table_state_word",
    "table_summary",
    "trend_point",
    "trend_words",
    "trends",
    "why_held",
    "within",
    "work_document",
    "work_words",
    "worst",
    "worth_words",
]

# SPDX-License-Identifier: Apache-2.0
"""The reasons why a slice is part of a plan or not: a typed reason with a number, a text, and the setting to change."""

from collections.abc import Collection
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from lake.model import DeltaKind
from lake.units import format_bytes, format_duration, format_rough_duration
from planner.policy.fields import PlanningSettings


class Reason(StrEnum):
    """Why a slice is part of the plan or not. The first reason that holds, in this order, is the slice's reason."""

    DAMAGED = "damaged"  #: the slice's files differ from the table's commits
    ABOVE_LIMIT = "above_limit"  #: the file is not small, and compaction doesn't apply
    FILTERED = "filtered"  #: the partition is not selected
    QUARANTINED = "quarantined"  #: the file is unreadable, unfinished, or impossible to rewrite with any engine
    FAILED = "failed"  #: a plan of the slice failed, and the slice has not changed since
    DECLINED = "declined"  #: a person declined a proposal of the slice, and the slice has not changed since
    BUSY = "busy"  #: the table has a pending action on the slice: clustering, compaction …
    RECENT = "recent"  #: written within the quiet period: a writer may still be active there
    HELD = "held"  #: a live plan has locked the partition
    FEW_LOGS = "few_logs"  #: not clustered, and too few logs to be compacted
    FEW_DELETED = "few_deleted"  #: not clustered, and too few deleted rows to be compacted
    NOT_CLUSTERED = "not_clustered"  #: the table can be compacted and not clustered
    OVERSIZED = "oversized"  #: the slice with its logs is larger than a file may be: work for compaction only
    OVER_PLAN = "over_plan"  #: the group with its logs is larger than a plan may be
    ALONE = "alone"  #: no other slice of the partition may be planned
    FEW_FILES = "few_files"  #: the group has too few files to be worth a rewrite
    NO_GAIN = "no_gain"  #: a rewrite of the group would not reduce its number of files
    NO_PAYBACK = "no_payback"  #: a rewrite of the group costs more than it saves within the payback time
    OVER_BUDGET = "over_budget"  #: the group is larger than a whole budget, so no plan can take it
    NEXT_PLAN_GROUPS = "next_plan_groups"  #: this plan has its maximum of groups
    NEXT_PLAN_SLICES = "next_plan_slices"  #: this plan has its maximum of slices to compact
    NEXT_PLAN_BYTES = "next_plan_bytes"  #: the group exceeds the bytes left in this plan
    NEXT_PLAN_KIND = "next_plan_kind"  #: this plan is a compaction and the slice is to be clustered, or the reverse
    CHOSEN = "chosen"  #: this plan rewrites the slice

    @property
    def setting(self) -> str:
        """The setting that decides the reason, or the command to run against it; '' if there is neither.

        ``PlanningResult.setting`` names the budget that decides.
        """
        return _SETTINGS.get(self, "")


#: the reasons of slices that this plan or a later plan of the same kind takes
PLANNABLE = (Reason.CHOSEN, Reason.NEXT_PLAN_GROUPS, Reason.NEXT_PLAN_SLICES, Reason.NEXT_PLAN_BYTES)
#: reasons that can end, after which planning may take the slice; planning itself handles live plans (``HELD``)
TEMPORARY = (Reason.FAILED, Reason.DECLINED, Reason.BUSY, Reason.RECENT)
_SETTINGS = {
    Reason.DAMAGED: "lakefold verify",
    Reason.ABOVE_LIMIT: "small_file_limit",
    Reason.FILTERED: "partition_filter",
    Reason.QUARANTINED: "lakefold resume",
    Reason.FAILED: "lakefold resume",
    Reason.DECLINED: "lakefold plans request",
    Reason.RECENT: "quiet_period",
    Reason.FEW_LOGS: "compact_log_files",
    Reason.FEW_DELETED: "compact_delete_ratio",
    Reason.OVERSIZED: "target_file_max",
    Reason.OVER_PLAN: "max_bytes_per_plan",
    Reason.ALONE: "min_input_files",
    Reason.FEW_FILES: "min_input_files",
    Reason.NO_GAIN: "target_file_max",
    Reason.NO_PAYBACK: "payback",
    Reason.OVER_BUDGET: "budget_bytes_per_hour",
    Reason.NEXT_PLAN_GROUPS: "max_num_groups",
    Reason.NEXT_PLAN_SLICES: "max_slices_per_compaction",
    Reason.NEXT_PLAN_BYTES: "max_bytes_per_plan",
    Reason.NEXT_PLAN_KIND: "rewrite_first",
}
REASONS: tuple[Reason, ...] = tuple(Reason)
REASON_CODES: dict[Reason, int] = {reason: code for code, reason in enumerate(REASONS)}
UNDECIDED = -1


def reason_mask(reasons: Collection[Reason]) -> npt.NDArray[np.bool_]:
    """Return a mask, indexed by reason code, of ``reasons``; it is False for ``UNDECIDED``."""
    return np.asarray([*(reason in reasons for reason in REASONS), False])


def reason_text(reason: Reason, number: int, policy: PlanningSettings, detail: str = "") -> str:
    """Return the text of a reason for people.

    The meaning of ``number`` depends on the reason:

    - bytes of the slice for ``above_limit`` and ``oversized``
    - bytes of the group for ``over_plan``, ``over_budget`` and ``next_plan_*``
    - seconds of age for ``recent``, days for ``no_payback``
    - files for ``few_files``, ``few_logs`` and ``no_gain`` (outputs)
    - thousandths of the rows for ``few_deleted``
    - an index for ``chosen`` (of the group in the plan), ``damaged`` (of the difference in the snapshot), ``failed``
      and ``declined`` (of the plan among the failed or declined plans)

    So does the meaning of ``detail``:

    - the table's text for ``busy``, ``damaged`` and ``not_clustered``
    - the description of the event for ``failed`` and ``declined``
    - the end of the quiet period for ``recent``
    - the plan id for ``held``, the group key for ``alone``, the ``DeltaKind`` for ``few_logs``
    - the setting and value of the budget for ``over_budget``
    """
    match reason:
        case Reason.DAMAGED:
            return detail
        case Reason.ABOVE_LIMIT:
            return f"above limit {format_bytes(number)} ≥ {format_bytes(policy.small_file_limit_bytes)}"
        case Reason.FILTERED:
            return f"partition not selected ({policy.partition_filter})"
        case Reason.QUARANTINED:
            return "quarantined: unreadable, unfinished or impossible to rewrite"
        case Reason.BUSY | Reason.FAILED | Reason.DECLINED | Reason.NOT_CLUSTERED:
            return detail
        case Reason.RECENT:
            quiet = format_duration(policy.quiet_period)
            return f"waiting: modified {format_rough_duration(number)} ago, until {detail} (quiet_period is {quiet})"
        case Reason.HELD:
            return f"held by live plan {detail}"
        case Reason.FEW_LOGS:
            return _few_logs_text(number, policy, detail or DeltaKind.LOG)
        case Reason.FEW_DELETED:
            share = f"{number / 10:g} %" if number else "less than 0.1 %"
            return f"{share} of its rows are deleted, {policy.compact_delete_ratio * 100:g} % needed"
        case Reason.OVERSIZED:
            return (
                f"{format_bytes(number)} with its logs, more than {format_bytes(policy.target_file_max_bytes)} per file"
            )
        case Reason.OVER_PLAN:
            most = format_bytes(policy.max_bytes_per_plan)
            return f"its group with logs is {format_bytes(number)}, more than {most} per plan"
        case Reason.ALONE:
            return f"alone in its partition with {detail}" if detail else "alone in its partition"
        case Reason.FEW_FILES:
            return f"only {number} small files here, {policy.min_input_files} needed (min_input_files)"
        case Reason.NO_GAIN:
            return f"no gain: its group would become {number} {'file' if number == 1 else 'files'} again"
        case Reason.NO_PAYBACK:
            if not policy.reads_per_day:
                return "no payback: the table is not read (reads_per_day is 0)"
            return f"no payback: only after {number:,} days (payback is {format_duration(policy.payback)})"
        case Reason.OVER_BUDGET:
            return f"over budget: its group would be {format_bytes(number)}, more than all of {detail}"
        case Reason.NEXT_PLAN_GROUPS:
            return f"next plan: this one has its {policy.max_num_groups} groups"
        case Reason.NEXT_PLAN_BYTES:
            return f"next plan: {format_bytes(number)} more would exceed {format_bytes(policy.max_bytes_per_plan)}"
        case Reason.NEXT_PLAN_SLICES:
            return f"next plan: this one has its {policy.max_slices_per_compaction} slices"
        case Reason.NEXT_PLAN_KIND:
            return f"next plan: {policy.rewrite_first} comes first"
        case Reason.CHOSEN:
            return f"chosen, group {number + 1}"


def _few_logs_text(number: int, policy: PlanningSettings, kind: str) -> str:
    if kind == DeltaKind.LOG and policy.compact_log_files:
        return f"{number} of {policy.compact_log_files} {kind}s"
    if kind == DeltaKind.DELETES and policy.compact_delete_files:
        return f"{number} of {policy.compact_delete_files} {kind}s (compact_delete_files)"
    return f"{number} {kind}{'' if number == 1 else 's'}, below the number that starts a compaction"

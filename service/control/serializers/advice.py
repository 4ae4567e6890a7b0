# SPDX-License-Identifier: Apache-2.0
"""The document of advice: which writes made small files, and the remedy at the writer."""

from typing import TYPE_CHECKING, Any

from lake.units import format_bytes
from service.former_names import both_names
from service.text import plural, share_of

if TYPE_CHECKING:
    from lake.history import TableHistory
    from planner.replay.advice import Advice, SmallFileSource, Trial


def advice(table: str, history: "TableHistory", found: "Advice") -> dict[str, Any]:
    """Return the document of the advice for ``table``; figures of savings are per month."""
    document = {
        "table": table,
        "since": history.since,
        "until": history.until,
        "days": found.days,
        "notes": list(history.notes),
        "sources": [_source_document(source) for source in found.sources],
        "rewritten_bytes_per_month": found.rewritten_bytes,
        "cpu_hours_per_month": found.cpu_hours,
        "trials": [_trial_document(trial) for trial in found.trials],
        "recommended_change": None if found.best is None else _trial_document(found.best),
        "text": _advice_text(found),
    }
    return both_names("advice", document)


def _source_document(source: "SmallFileSource") -> dict[str, Any]:
    from planner.replay.advice import busiest_hours

    return {
        "operation": source.operation,
        "application": source.application,
        "commits": source.commits,
        "files": source.files,
        "small_files": source.small_files,
        "small_share": share_of(source.small_files, source.files),
        "bytes": source.bytes,
        "by_hour": list(source.by_hour),
        "busiest_hours": list(busiest_hours(source.by_hour)),
    }


def _trial_document(trial: "Trial") -> dict[str, Any]:
    saving = trial.savings
    document = {
        "setting": trial.remedy.setting,
        "value": trial.remedy.value,
        "is_worthwhile": trial.is_worthwhile,
        "monthly_savings": {
            "files": saving.files,
            "small_files": saving.small_files,
            "rewritten_bytes": saving.rewritten_bytes,
            "cpu_hours": saving.cpu_hours,
        },
        "writer_bytes": saving.writer_bytes,
    }
    return both_names("advice.trials[]", document)


def _advice_text(found: "Advice") -> str:
    small = sum(source.small_files for source in found.sources)
    if not small:
        return "writers made no small file; there is nothing to change"
    best = found.best
    if best is None:
        tried = ", ".join(f"{trial.remedy.setting} = {trial.remedy.value}" for trial in found.trials)
        tried = f" ({tried} would not pay)" if tried else ""
        return f"nothing is worth changing at the writer{tried}"
    saving = best.savings
    more = "more" if saving.writer_bytes >= 0 else "less"
    return (
        f"set {best.remedy.setting} = {best.remedy.value} at the writer: each month it would make "
        f"{plural(round(saving.files), 'file')} fewer, and lakefold would rewrite "
        f"{_less_or_more(saving.rewritten_bytes)} and "
        f"save {saving.cpu_hours:,.1f} CPU hours; the writer itself would write "
        f"{format_bytes(abs(round(saving.writer_bytes)))} {more}"
    )


def _less_or_more(size: float) -> str:
    return f"{format_bytes(abs(round(size)))} {'less' if size >= 0 else 'more'}"

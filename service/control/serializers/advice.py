# SPDX-License-Identifier: Apache-2.0
"""The document of advice: which writes made small files, and the remedy at the writer."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lake.units import format_bytes, format_elapsed
from service.former_names import both_names
from service.text import plural, share_of

if TYPE_CHECKING:
    from lake.history import TableHistory
    from planner.advice.writer_advice import Advice, SmallFileSource, Trial


def advice(table: str, history: "TableHistory", found: "Advice") -> dict[str, Any]:
    """Return the document of the advice for ``table``; figures per month are None if the history is too short."""
    document = {
        "table": table,
        "since": history.since,
        "until": history.until,
        "days": found.days,
        "notes": [*history.notes, *short_history_notes(found.days)],
        "sources": [_source_document(source) for source in found.sources],
        "rewritten_bytes": found.rewritten_bytes,
        "rewritten_bytes_per_month": found.per_month(found.rewritten_bytes) if found.has_rates else None,
        "cpu_hours": found.cpu_hours,
        "cpu_hours_per_month": found.per_month(found.cpu_hours) if found.has_rates else None,
        "trials": [_trial_document(found, trial) for trial in found.trials],
        "recommended_change": None if found.best is None else _trial_document(found, found.best),
        "text": _advice_text(found),
    }
    return both_names("advice", document)


def _source_document(source: "SmallFileSource") -> dict[str, Any]:
    from planner.advice.writer_advice import busiest_hours

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


def _trial_document(found: "Advice", trial: "Trial") -> dict[str, Any]:
    savings = {name: getattr(trial.savings, name) for name in ("files", "small_files", "rewritten_bytes", "cpu_hours")}
    monthly = {name: found.per_month(amount) for name, amount in savings.items()}
    writer_bytes = trial.savings.writer_bytes
    document = {
        "setting": trial.remedy.setting,
        "value": trial.remedy.value,
        "is_worthwhile": trial.is_worthwhile,
        "savings": savings | {"writer_bytes": writer_bytes},
        "monthly_savings": monthly if found.has_rates else None,
        "writer_bytes": found.per_month(writer_bytes) if found.has_rates else None,
    }
    return both_names("advice.trials[]", document)


def short_history_notes(days: float) -> list[str]:
    """Return why the figures of a history of ``days`` are totals and not rates, as a list of one note or none."""
    from planner.replay.comparison import MIN_RATE_DAYS

    if days >= MIN_RATE_DAYS:
        return []
    known, needed = format_elapsed(timedelta(days=days)), f"{MIN_RATE_DAYS:g} days"
    return [f"only {known} of history are known: the figures are totals, since rates need {needed}"]


def _advice_text(found: "Advice") -> str:
    small = sum(source.small_files for source in found.sources)
    if not small:
        return "writers made no small file; there is nothing to change"
    best = found.best
    if best is None:
        tried = ", ".join(f"{trial.remedy.setting} = {trial.remedy.value}" for trial in found.trials)
        tried = f" ({tried} would not pay)" if tried else ""
        return f"nothing is worth changing at the writer{tried}"
    saving, has_rates = best.savings, found.has_rates
    amounts = (saving.files, saving.rewritten_bytes, saving.cpu_hours, saving.writer_bytes)
    files, rewritten, hours, written = map(found.per_month, amounts) if has_rates else amounts
    fewer, less = plural(round(files), "file"), _less_or_more(rewritten)
    more = f"{format_bytes(abs(round(written)))} {'more' if written >= 0 else 'less'}"
    change = f"set {best.remedy.setting} = {best.remedy.value} at the writer"
    if not has_rates:
        return (
            f"{change}: in this history it would have made {fewer} fewer, and lakefold would have rewritten {less} and "
            f"saved {hours:,.1f} CPU hours; the writer itself would have written {more}"
        )
    return (
        f"{change}: each month it would make {fewer} fewer, and lakefold would rewrite {less} and save "
        f"{hours:,.1f} CPU hours; the writer itself would write {more}"
    )


def _less_or_more(size: float) -> str:
    return f"{format_bytes(abs(round(size)))} {'less' if size >= 0 else 'more'}"

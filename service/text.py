# SPDX-License-Identifier: Apache-2.0
"""Values as text: JSON for scripts; sizes, ages and counts in words for people."""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any

from lake.units import format_bytes, format_rough_duration, parse_duration

#: the plausible years of a time that a person gives; adding or subtracting a day never overflows
_PLAUSIBLE_YEARS = (1971, 9000)
_MAX_AGE = timedelta(days=18_000)
#: an absolute path, or an address with a scheme
_PATH_FIRST = re.compile(r"(/|[a-z][a-z0-9]*://)\S")
#: types that JSON holds without conversion
#: a process's name: host, process id and the part that makes it unique over time
_PROCESS_NAME = re.compile(r"[^/]+/\d+/.")
_JSON_TYPES = frozenset({type(None), bool, int, float, str})


def to_jsonable(value: Any) -> Any:
    """Return ``value`` as JSON can hold it.

    Timestamps become ISO texts, durations seconds, enums their values, dataclasses objects.
    """
    if type(value) in _JSON_TYPES:  # nearly all values, and an answer may have ten thousand of them
        return value
    if isinstance(value, Enum):
        return to_jsonable(value.value)
    if isinstance(value, (str, Path)):
        return str(value)
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat() if value.tzinfo else value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(to_jsonable(key)): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, Iterable):
        return [to_jsonable(item) for item in value]
    return str(value)


def to_json(value: Any) -> str:
    """Return ``value`` as one line of JSON."""
    return json.dumps(to_jsonable(value), ensure_ascii=False, separators=(",", ":"))


def parse_timestamp(text: str) -> datetime:
    """Return the time in a text that ``to_jsonable`` has written."""
    return datetime.fromisoformat(text)


def parse_time_or_age(text: str, now: datetime) -> datetime:
    """Return the time of an ISO 8601 date or time (UTC unless it has a zone), or of an age such as ``2d``.

    Raises ValueError for any other text.
    """
    with suppress(ValueError, OverflowError):
        found = datetime.fromisoformat(text)
        found = found if found.tzinfo else found.replace(tzinfo=UTC)
        if _PLAUSIBLE_YEARS[0] <= found.year <= _PLAUSIBLE_YEARS[1]:
            return found.astimezone(UTC)
    with suppress(ValueError, OverflowError):
        return now - min(max(parse_duration(text), timedelta()), _MAX_AGE)
    raise ValueError(f"{text!r} is not a time; write 2026-03-01, 2026-03-01T12:00Z, or how long ago: 90min, 2d")


def format_age(then: datetime | None, now: datetime) -> str:
    """Return how long ago ``then`` was, such as ``3 min ago``; ``never`` for None."""
    if then is None:
        return "never"
    return f"{format_rough_duration(now - then)} ago"


def cause_first(error: str) -> str:
    """Return ``error`` with a path or an address at its beginning moved behind the cause, since a row may be narrow."""
    what, separator, cause = error.partition(": ")
    return f"{cause} ({what})" if separator and _PATH_FIRST.match(what) else error


def format_size(number: int | None) -> str:
    """Return a number of bytes for people; '' for None."""
    return "" if number is None else format_bytes(number)


def plural(count: int, noun: str) -> str:
    """Return ``1 file``, ``3 files``; for nouns whose plural ends in s."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def describe_file_changes(changes: Mapping[str, Any]) -> str:
    """Return ``3 files, 1.2 MiB`` for the files that an action added or removed; '' for none."""
    if not changes["count"]:
        return ""
    size = "" if changes["bytes"] is None else f", {format_size(changes['bytes'])}"
    return f"{plural(changes['count'], 'file')}{size}"


def describe_figures(figures: Mapping[str, int]) -> str:
    """Return the figures of a message as text: ``812 input files, 2.00 GiB input bytes``."""
    return ", ".join(
        f"{format_size(value) if 'bytes' in name else format(value, ',')} {name.replace('_', ' ')}"
        for name, value in figures.items()
    )


def format_percent(share: float | None) -> str:
    """Return a share as a whole percentage; only an exact 0 or 1 reads as 0 % or 100 %."""
    if share is None:
        return "–"
    if 0 < share < 0.01:
        return "< 1 %"
    if 0.99 < share < 1:
        return "> 99 %"
    return f"{100 * share:.0f} %"


def share_of(part: int, whole: int) -> float | None:
    """Return ``part`` of ``whole``; None if ``whole`` is 0."""
    return part / whole if whole else None


def partition_name(partition: str) -> str:
    """Return a partition's name for people; the partition of an unpartitioned table has an empty path."""
    return partition or "(unpartitioned)"


def short_id(plan_id: str) -> str:
    """Return the end of a plan's id: it distinguishes plans at sight and is accepted wherever an id is."""
    return plan_id[-8:]


def process_label(name: str) -> str:
    """Return a process's name for people: host and process id, without the part that makes it unique over time."""
    return "/".join(name.split("/")[:2])


def actor_label(actor: str) -> str:
    """Return an actor for people, with the names of processes in it as ``process_label`` has them."""
    return " ".join(process_label(word) if _PROCESS_NAME.match(word) else word for word in actor.split(" "))


def join_names(words: Sequence[str], most: int = 5) -> str:
    """Join the first ``most`` words, and add the number of the others."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the choice most like ``word``; '' if no choice is similar."""
    close = get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""

# SPDX-License-Identifier: Apache-2.0
"""Units of bytes and time; conversion of sizes and durations from and to text."""

import re
from datetime import UTC, datetime, timedelta

MIB, GIB = 1 << 20, 1 << 30
#: a day in whole microseconds, and a twelfth of a year of 365.25 days
DAY_US = 86_400 * 1_000_000
MONTH = timedelta(days=365.25 / 12)

_BYTE_UNITS = {
    "": 1,
    "b": 1,
    "k": 1000,
    "kb": 1000,
    "kib": 1 << 10,
    "m": 1000**2,
    "mb": 1000**2,
    "mib": 1 << 20,
    "g": 1000**3,
    "gb": 1000**3,
    "gib": 1 << 30,
    "t": 1000**4,
    "tb": 1000**4,
    "tib": 1 << 40,
}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")
_NUMBER = re.compile(r"\s*[0-9]+(?:\.[0-9]+)?\s*")


def is_unitless(value: object) -> bool:
    """True if ``value`` is a number without a unit; 0 needs none."""
    return bool(_NUMBER.fullmatch(str(value))) and float(str(value)) > 0


def parse_bytes(text: str | int) -> int:
    """Return a size such as ``300MiB`` or 0 in bytes. Raises ValueError, also for a number without a unit."""
    if is_unitless(text):
        number = str(text).strip()
        raise ValueError(f"{number} has no unit; write {number}B or {number}MiB, whichever is meant")
    match = _QUANTITY.fullmatch(str(text))
    unit = _BYTE_UNITS.get(match.group(2).lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r} is not a size; write a number with B, KiB, MiB, GiB or TiB, such as 300MiB")
    return round(float(match.group(1)) * unit)


def format_bytes(count: float) -> str:
    """Return a size in binary units with one decimal below 100, such as ``8.0 MiB`` or ``512 B``."""
    if abs(count) < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        count /= 1024
        if abs(count) < 1023.5 or unit == "PiB":
            break
    return f"{count:.1f} {unit}" if abs(count) < 99.95 else f"{count:.0f} {unit}"


def parse_duration(text: str | int | float | timedelta) -> timedelta:
    """Return a duration such as ``15min``, ``7d`` or 0. Raises ValueError, also for a number without a unit."""
    if isinstance(text, timedelta):
        return text
    if is_unitless(text):
        number = str(text).strip()
        raise ValueError(f"{number} has no unit; write {number}s or {number}min, whichever is meant")
    match = _QUANTITY.fullmatch(str(text))
    unit = _SECONDS.get(match.group(2).lower() or "s") if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r} is not a duration; write a number with s, min, h, d or w, such as 15min or 7d")
    return timedelta(seconds=float(match.group(1)) * unit)


def format_duration(span: timedelta | float) -> str:
    """Return a duration in its largest readable unit: ``850 ms``, ``42 s``, ``12 min``, ``3.5 h``, ``7 d``."""
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 86400:.3g} d"


def format_rough_duration(span: timedelta | float) -> str:
    """Return a duration in whole units, which suffice for an age or an estimate: ``0 s``, ``42 s``, ``3 min``."""
    seconds = max(span.total_seconds() if isinstance(span, timedelta) else span, 0.0)
    for limit, size, unit in ((90, 1, "s"), (5400, 60, "min"), (129_600, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def format_until(moment: datetime, now: datetime) -> str:
    """Return a future time in UTC, rounded up to the minute, or to the second if it is within two minutes.

    The date is included if it is not that of ``now``.
    """
    now = now.astimezone(UTC)
    step = timedelta(seconds=1 if moment - now < timedelta(minutes=2) else 60)
    until = moment.astimezone(UTC)
    until += -timedelta(seconds=until.second, microseconds=until.microsecond) % step
    clock = f"{until:%H:%M:%S}" if step < timedelta(minutes=1) else f"{until:%H:%M}"
    return f"{clock} UTC" if until.date() == now.date() else f"{until:%Y-%m-%d} {clock} UTC"


def format_elapsed(span: timedelta | float) -> str:
    """Return elapsed time in two units from a minute on: ``850 ms``, ``42.3 s``, ``2m 22s``, ``3h 4m``, ``2d 5h``."""
    seconds = max(span.total_seconds() if isinstance(span, timedelta) else span, 0.0)
    if seconds < 59.95:
        return f"{seconds * 1000:.0f} ms" if seconds < 0.9995 else f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m {whole % 60}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60}m"
    return f"{whole // 86400}d {whole % 86400 // 3600}h"

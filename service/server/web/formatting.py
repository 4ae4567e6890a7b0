# SPDX-License-Identifier: Apache-2.0
"""Figures, times and states as the page writes them. The exact figure is always in the ``title`` beside it."""

import shlex
from datetime import UTC, datetime

#: tone and shape of a state: colour alone says nothing to many people, and nothing on paper
STATE_STYLES = {
    "requested": ("quiet", "ring"),
    "inflight": ("active", "half"),
    "completed": ("good", "dot"),
    "failed": ("bad", "square"),
    "cancelled": ("quiet", "diamond"),
    "compact": ("good", "dot"),
    "propose": ("active", "half"),
    "observe": ("quiet", "ring"),
    "off": ("quiet", "dash"),
    "paused": ("attention", "triangle"),
    "halted": ("bad", "square"),
    "waiting": ("quiet", "ring"),
    "alive": ("good", "dot"),
    "silent": ("attention", "triangle"),
    "delivered": ("good", "dot"),
    "dead": ("bad", "square"),
    "unreadable": ("attention", "triangle"),
    "missed": ("attention", "triangle"),
    "met": ("good", "dot"),
}


def format_count(number: int) -> str:
    """``9,999``, from there on three figures and a letter: ``12.4 k``, ``1.24 M``, ``3.10 G``."""
    size = abs(number)
    if size < 10_000:
        return f"{number:,}"
    unit, letter = (1e3, "k") if size < 999_500 else (1e6, "M") if size < 999_500_000 else (1e9, "G")
    scaled = number / unit
    digits = 2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0
    return f"{scaled:.{digits}f} {letter}"


def format_rough_duration(seconds: float) -> str:
    """A time span in whole units: nobody needs the decimals of an age or of a guess."""
    for limit, size, unit in ((90, 1, "s"), (5400, 60, "min"), (129_600, 3600, "h")):
        if seconds < limit:
            return f"{max(seconds, 0) / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def format_ago(then: datetime | None, now: datetime) -> str:
    """How long ago; ``never`` for None."""
    return "never" if then is None else f"{format_rough_duration((now - then).total_seconds())} ago"


def format_clock(moment: datetime) -> str:
    """A time in UTC to the second, for titles and histories."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def browsable_url(address: str | None) -> str:
    """``address`` where a browser may open it, else ''."""
    return address if address is not None and address.startswith(("http://", "https://")) else ""


def shell_command(*words: str) -> str:
    """A command to copy: whatever is in a name stays one word."""
    return shlex.join(words)

# SPDX-License-Identifier: Apache-2.0
"""The text of figures, times and states on the page. The exact figure is always in the ``title`` beside it."""

import re
import shlex
from datetime import UTC, datetime

#: tone and shape of a state: many people can't distinguish colours, and a printed page has none
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
    """Format a count: up to ``9,999`` in full, then with three digits: ``12.4 k``, ``1.24 M``, ``3.10 G``."""
    size = abs(number)
    if size < 10_000:
        return f"{number:,}"
    unit, letter = (1e3, "k") if size < 999_500 else (1e6, "M") if size < 999_500_000 else (1e9, "G")
    scaled = number / unit
    digits = 2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0
    return f"{scaled:.{digits}f} {letter}"


def format_clock(moment: datetime) -> str:
    """Format a time in UTC to the second, for titles and histories."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def browsable_url(address: str | None) -> str:
    """Return ``address`` if it is an HTTP URL that a browser may open, else ''."""
    return address if address is not None and address.startswith(("http://", "https://")) else ""


def shell_command(*words: str) -> str:
    """Return a command to copy, quoted so that each word stays one word."""
    return shlex.join(words)


def as_sentence(detail: str) -> str:
    """Return ``detail`` with a capital letter and a full stop; a name at its beginning or end stays as it is."""
    words = r"(?:an?|another|it|no|not|only|the|there|this) "
    sentence = detail[:1].upper() + detail[1:] if re.match(words, detail) else detail
    return sentence if not detail or detail[-1] in ".!?" or "/" in detail.rsplit(" ", 1)[-1] else f"{sentence}."

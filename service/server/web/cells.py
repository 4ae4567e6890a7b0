# SPDX-License-Identifier: Apache-2.0
"""The HTML of common table cells: states, figures and times.

Functions build this HTML because a list of tables has hundreds of cells, and template macros are several times slower.
"""

from datetime import UTC, datetime
from functools import lru_cache

from jinja2 import pass_context
from jinja2.runtime import Context as Variables
from markupsafe import Markup, escape

from lake.units import format_bytes
from service.server.web.formatting import STATE_STYLES, format_clock, format_count
from service.text import format_age

_SHAPES = {
    "dot": '<circle cx="5" cy="5" r="4" />',
    "ring": '<circle cx="5" cy="5" r="3.2" class="open" />',
    "half": '<circle cx="5" cy="5" r="3.6" class="open" /><path d="M5 1.4a3.6 3.6 0 0 1 0 7.2z" />',
    "square": '<rect x="1" y="1" width="8" height="8" rx="1" />',
    "triangle": '<path d="M5 .8 9.6 9H.4z" />',
    "diamond": '<path d="M5 1 9 5 5 9 1 5z" class="open" />',
    "dash": '<path d="M1 5h8" class="open" />',
}
#: maximum number of cached states and texts
_STATE_CACHE_SIZE = 100


def shape(kind: str) -> Markup:
    """Return the symbol of a state or a notice."""
    attributes = 'class="shape" viewBox="0 0 10 10" width="10" height="10" aria-hidden="true" focusable="false"'
    return Markup(f"<svg {attributes}>{_SHAPES[kind]}</svg>")


@lru_cache(_STATE_CACHE_SIZE)
def state(word: str, text: str | None = None) -> Markup:
    """Return a state with its symbol and a text: ``text``, or else the state's own word."""
    tone, kind = STATE_STYLES.get(word, ("quiet", "ring"))
    return Markup(f'<span class="state {tone}">{shape(kind)}{escape(text or word)}</span>')


def size(number: int | None) -> Markup:
    """Return a size in bytes, with the exact number in the title."""
    if number is None:
        return Markup("–")
    return Markup(f'<data value="{number}" title="{number:,} bytes">{format_bytes(number)}</data>')


def number(value: int, noun: str = "files") -> Markup:
    """Return a count, with the exact number in the title."""
    return Markup(f'<data value="{value}" title="{value:,} {escape(noun)}">{format_count(value)}</data>')


@pass_context
def when(variables: Variables, moment: datetime | None) -> Markup:
    """Return the age of a moment, with the time in the title."""
    if moment is None:
        return Markup("never")
    iso = moment.astimezone(UTC).isoformat(timespec="seconds")
    ago = format_age(moment, variables["now"])
    return Markup(f'<time class="nowrap" datetime="{iso}" title="{format_clock(moment)}">{ago}</time>')

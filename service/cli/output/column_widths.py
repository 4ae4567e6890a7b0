# SPDX-License-Identifier: Apache-2.0
"""How wide the columns of a text table are on a terminal: which cells lose their middle, and which are wrapped."""

import dataclasses
from collections.abc import Sequence

#: the gap between two columns
COLUMN_GAP = "  "
#: minimum width of a truncated column
_MIN_TRUNCATED_WIDTH = 8
#: maximum number of characters per line of a wrapped cell
_WRAPPED_WIDTH = 40


@dataclasses.dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a text table; ``right`` aligns numbers.

    On a terminal, a cell that is too long is wrapped, because the end of a reason may be the important part. If
    ``is_shortened``, the cell keeps its two ends and loses its middle instead.
    """

    title: str
    right: bool = False
    is_shortened: bool = False


def fit_columns(columns: Sequence[TableColumn], cells: Sequence[Sequence[str]], width: int) -> list[list[str]]:
    """Shorten the cells of columns that are ``is_shortened``, the widest first, until a line fits into ``width``.

    A long cell of another column is wrapped; only one of its lines counts.
    """
    longest = [
        max(len(text) for text in (column.title, *(line[i] for line in cells))) for i, column in enumerate(columns)
    ]
    widths = [
        most if column.is_shortened or column.right else min(most, _WRAPPED_WIDTH)
        for most, column in zip(longest, columns, strict=True)
    ]
    able = [i for i, column in enumerate(columns) if column.is_shortened]
    excess = sum(widths) + len(COLUMN_GAP) * (len(widths) - 1) - width
    for _ in range(excess):
        widest = max(able, key=lambda i: widths[i], default=None)
        if widest is None or widths[widest] <= max(_MIN_TRUNCATED_WIDTH, len(columns[widest].title)):
            break
        widths[widest] -= 1
    return [
        [_truncate(cell, column, width) for cell, column, width in zip(line, columns, widths, strict=True)]
        for line in cells
    ]


def _truncate(text: str, column: TableColumn, width: int) -> str:
    if not column.is_shortened or len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"

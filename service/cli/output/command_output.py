# SPDX-License-Identifier: Apache-2.0
"""The output of commands: data on stdout, everything else on stderr; text for people, JSON for scripts.

With ``--json`` an object is one line, a list is JSON Lines, and an error is a problem object on stderr. Rich tables,
colours and progress appear only on a terminal. A pipe gets plain aligned columns, which are never shortened.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from service.cli.output.column_widths import COLUMN_GAP, TableColumn, fit_columns
from service.problems import error_lines, problem_document
from service.text import to_json

Row = Sequence[Any]
Advance = Callable[[int, int], None]


class CommandOutput:
    """The output of one command to a terminal, a pipe or a script."""

    def __init__(self, *, json: bool) -> None:
        self.json = json

    @property
    def is_terminal(self) -> bool:
        """True if stdout is a terminal and the output is text."""
        return not self.json and sys.stdout.isatty()

    @property
    def can_prompt(self) -> bool:
        """True if the command can ask for a confirmation."""
        return not self.json and sys.stdin.isatty() and sys.stderr.isatty()

    @property
    def shows_progress_bar(self) -> bool:
        """True if ``progress`` shows a bar."""
        return not self.json and sys.stderr.isatty()

    def result(self, data: Any, text: Callable[[], None]) -> None:
        """Print one result: ``data`` as JSON, or the text that ``text`` prints."""
        if self.json:
            self.line(to_json(data))
        else:
            text()

    def results(self, rows: Iterable[Any], text: Callable[[], None]) -> None:
        """Print a list of results: ``rows`` as JSON Lines, or the text that ``text`` prints."""
        if not self.json:
            text()
            return
        for row in rows:
            self.line(to_json(row))

    def line(self, text: str = "") -> None:
        """Print a line of data on stdout."""
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """Print a remark on stderr; nothing with ``--json``."""
        if not self.json:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def deprecated(self, old: str, new: str) -> None:
        """Print on stderr that ``old`` was renamed to ``new``; an object with ``--json``."""
        text = f"{old} was renamed to {new}; the next release will not accept the old name"
        sys.stderr.write(f"{to_json({'deprecated': old, 'use': new, 'detail': text}) if self.json else text}\n")
        sys.stderr.flush()

    def error(self, error: BaseException, hint: str = "") -> None:
        """Print an error on stderr: a line for each cause and an optional hint, or a problem object."""
        if self.json:
            sys.stderr.write(f"{to_json(problem_document(error))}\n")
        else:
            sys.stderr.write("".join(f"lakefold: {line}\n" for line in error_lines(error)) + hint)
        sys.stderr.flush()

    def table(self, columns: Sequence[TableColumn], rows: Iterable[Row], *, indent: str = "") -> None:
        """Print rows under titles: a rich table on a terminal, aligned columns otherwise."""
        cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
        if self.is_terminal:
            self._rich_table(columns, cells)
            return
        titles = [column.title for column in columns]
        widths = [max(len(line[i]) for line in [titles, *cells]) for i in range(len(columns))]
        for line in [titles, *cells]:
            padded = (
                cell.rjust(width) if column.right else cell.ljust(width)
                for cell, width, column in zip(line, widths, columns, strict=True)
            )
            self.line((indent + COLUMN_GAP.join(padded)).rstrip())

    def _rich_table(self, columns: Sequence[TableColumn], cells: Sequence[Sequence[str]]) -> None:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        console = Console(highlight=False)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column.title, justify="right" if column.right else "left", overflow="fold")
        for line in fit_columns(columns, cells, console.width):
            table.add_row(*(Text(cell) for cell in line))
        console.print(table)

    @contextmanager
    def progress(self, label: str) -> Iterator[Advance]:
        """Show a progress bar of bytes with the rate; the yielded ``advance(done, total)`` moves it.

        Shows nothing without a terminal.
        """
        if not self.shows_progress_bar:
            yield lambda done, total: None
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TransferSpeedColumn,
        )

        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            # On one terminal rich prints data lines above the bar; data for a pipe must bypass rich.
            redirect_stdout=sys.stdout.isatty(),
        )
        with bar:
            task = bar.add_task(label, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total or None)


def bar_chart(rows: Sequence[tuple[str, int]], *, width: int = 40, marks: Mapping[int, str] | None = None) -> list[str]:
    """Return lines ``label │████ count``; ``marks`` maps a row's index to a remark after its bar."""
    if not rows:
        return []
    label_width = max(len(label) for label, _ in rows)
    most = max((count for _, count in rows), default=0) or 1
    lines = []
    for index, (label, count) in enumerate(rows):
        eighths = round(count / most * width * 8)
        # A count above zero always gets a visible bar.
        bar = "█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8] if eighths or not count else "▏"
        mark = f"  ← {marks[index]}" if marks and index in marks else ""
        lines.append(
            f"{label.rjust(label_width)} │{bar} {count:,}{mark}" if count else f"{label.rjust(label_width)} │{mark}"
        )
    return lines

# SPDX-License-Identifier: Apache-2.0
"""The code blocks of commands on the pages, and what the pages show that they print."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(
    r"(?:^<!-- (?P<why>[^\n]*) -->\n)?^```sh\n(?P<text>.*?)^```\n(?:\n```text\n(?P<shown>.*?)^```)?",
    re.MULTILINE | re.DOTALL,
)
_ID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f-]{4,}")
_AMOUNT = re.compile(r"\d[\d,.:]*( (?:ms|s|min|h|d|B|KiB|MiB|GiB)\b)?")


@dataclass(frozen=True)
class Block:
    """A code block of commands, where it stands, why it is not run, if it is not, and what the page shows below it."""

    page: Path
    line: int
    text: str
    why: str | None
    shown: str | None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    """The blocks of one page, in its order."""
    text = page.read_text()
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("text"))
        yield Block(page, line, match["text"], match["why"], match["shown"])


def missing_line(shown: str, printed: str) -> str | None:
    """The first line of ``shown`` that ``printed`` has not, in this order; numbers, ids and widths may differ.

    ``…`` stands for anything, by itself on a line for any lines.
    """
    left = iter([_blurred(line) for line in printed.splitlines()])
    for line in shown.splitlines():
        if line.strip() in ("", "…"):
            continue
        wanted = re.compile(".*".join(map(re.escape, _blurred(line).split("…"))))
        if not any(wanted.fullmatch(given) for given in left):
            return line
    return None


def _blurred(line: str) -> str:
    return " ".join(_AMOUNT.sub("#", _ID.sub("ID", line)).split())

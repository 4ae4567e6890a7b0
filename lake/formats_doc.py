# SPDX-License-Identifier: Apache-2.0
"""Update the feature matrix of docs/formats.md from the formats' declarations: ``python -m lake.formats_doc``.

The matrix is between ``<!-- generated: capabilities -->`` and ``<!-- end -->``; all else is written by hand.
"""

import re
from pathlib import Path

from lake.formats import load_formats
from lake.ports import Capability

PAGE = Path(__file__).parents[1] / "docs" / "formats.md"

_TABLE = re.compile(r"(?<=<!-- generated: capabilities -->\n).*?(?=<!-- end -->)", re.DOTALL)


def capability_table() -> str:
    """Return the table of capabilities, each with the formats that have it."""
    formats = load_formats()
    head = ["capability", "effect", *(format_.name for format_ in formats)]
    rows = [f"| {' | '.join(head)} |\n", f"|{'---|' * len(head)}\n"]
    for capability in Capability:
        has = ["yes" if capability in format_.capabilities else "–" for format_ in formats]
        rows.append(f"| {' | '.join([capability.value.replace('_', ' '), capability.description, *has])} |\n")
    return "".join(rows)


def render(page: str) -> str:
    """Return ``page`` with the matrix updated. Raises ValueError unless it has exactly one place for the matrix."""
    if len(_TABLE.findall(page)) != 1:
        raise ValueError("the page has no place, or several, for the table of capabilities")
    return _TABLE.sub(lambda match: f"\n{capability_table()}\n", page)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

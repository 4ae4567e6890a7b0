# SPDX-License-Identifier: Apache-2.0
"""Update the feature matrix of docs/formats.md from the formats' declarations: ``python -m lake.formats_doc``.

The matrix is between ``<!-- generated: capabilities -->`` and ``<!-- end -->``; all else is written by hand.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from lake.formats import FORMATS, load_format
from lake.ports import Capability

PAGE = Path(__file__).parents[1] / "docs" / "formats.md"

_TABLE = re.compile(r"(?<=<!-- generated: capabilities -->\n).*?(?=<!-- end -->)", re.DOTALL)

CAPABILITY_DESCRIPTIONS: Mapping[Capability, str] = MappingProxyType(
    {
        Capability.COMPACTION: "updates and deletes stored beside the data files are folded into them",
        Capability.ADOPTION: "rewrites that writers schedule are executed (`adopt_pending`)",
        Capability.TABLE_SERVICES: "the table's own services are run (`table_services`)",
        Capability.ROLL_BACK: "uncommitted work of a dead process is rolled back (`lakefold tables rollback`)",
        Capability.SAVEPOINTS: "versions that the owner saves are never deleted",
        Capability.MERGED_READS: "the verification compares rows as a reader of the table merges them",
        Capability.REPAIR: "replaced files that are read again are found and removed (`lakefold tables repair`)",
        Capability.OWN_EXPIRY: "replaced files are deleted by the table's own expiry, with the versions that list them",
        Capability.TABLE_LOCK: "a lock of the table excludes concurrent changes",
        Capability.OPTIMISTIC_COMMITS: "a commit gives way if another one was faster: `concurrency` need not be set",
        Capability.NATIVE_GROUPS: "files are grouped as the format's own service does (`strategy`)",
        Capability.SORTING: "rows are sorted by a rewrite (`sort_columns`, `layout`)",
    }
)
"""The use of each capability, in a user's words."""


def capability_table() -> str:
    """Return the table of capabilities, each with the formats that have it. KeyError for one without a description."""
    formats = [load_format(name) for name in FORMATS]
    head = ["capability", "effect", *(format_.name for format_ in formats)]
    rows = [f"| {' | '.join(head)} |\n", f"|{'---|' * len(head)}\n"]
    for capability in Capability:
        has = ["yes" if capability in format_.capabilities else "–" for format_ in formats]
        rows.append(
            f"| {' | '.join([capability.value.replace('_', ' '), CAPABILITY_DESCRIPTIONS[capability], *has])} |\n"
        )
    return "".join(rows)


def render(page: str) -> str:
    """Return ``page`` with the matrix updated. Raises ValueError unless it has exactly one place for the matrix."""
    if len(_TABLE.findall(page)) != 1:
        raise ValueError("the page has no place, or several, for the table of capabilities")
    return _TABLE.sub(lambda match: f"\n{capability_table()}\n", page)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

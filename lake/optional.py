# SPDX-License-Identifier: Apache-2.0
"""What only some formats can be asked for: of one that can't the answer is none, or a refusal."""

from collections.abc import Mapping, Sequence

from lake.errors import Rejected
from lake.model import TableRef
from lake.ports import Capability, HasTimeline, TableFormat, Unfinished


def pending(format_: TableFormat, table: TableRef) -> Mapping[str, str]:
    """``HasTimeline.pending``; of a table without a timeline nothing is known to be pending."""
    return format_.pending(table) if isinstance(format_, HasTimeline) else {}


def unfinished(format_: TableFormat, table: TableRef) -> Sequence[Unfinished]:
    """``HasTimeline.unfinished``; of a table without a timeline nothing is known to be unfinished."""
    return format_.unfinished(table) if isinstance(format_, HasTimeline) else ()


def require(format_: TableFormat, table: TableRef, capability: Capability) -> None:
    """Raise Rejected where tables of this format can't be asked for ``capability``."""
    if capability not in format_.capabilities:
        what = capability.value.replace("_", " ")
        raise Rejected(f"{table.name}: {format_.name} tables have no {what}, lakefold can't do that here")

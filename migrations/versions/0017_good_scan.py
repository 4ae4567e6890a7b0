# SPDX-License-Identifier: Apache-2.0
"""The figures of a table's last good scan, as numbers in the table's own row.

Without them, sorting ten thousand tables parses ten thousand documents. This migration parses each document once.
"""

import json
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_BATCH = 2_000
_OF_RECORD = ("files", "bytes", "small_files", "reducible_files", "reducible_bytes")
_COLUMNS = ("scanned_at_ms", *_OF_RECORD, "median_bytes")
#: bytes; each edge is twice the previous one
_EDGES = [1 << exponent for exponent in range(10, 35)]


def upgrade() -> None:
    """Apply."""
    for name in _COLUMNS:
        op.add_column("table_state", sa.Column(f"good_{name}", sa.BigInteger(), nullable=True))
    connection, last = op.get_bind(), ""
    some = sa.text(
        "SELECT table_state.name, taken_at_ms, record FROM table_state JOIN scan_history ON last_ok_scan_id = id"
        " WHERE table_state.name > :last ORDER BY table_state.name LIMIT :most"
    )
    values = ", ".join(f"good_{name} = :{name}" for name in _COLUMNS)
    while rows := connection.execute(some, {"last": last, "most": _BATCH}).all():
        found = []
        for row in rows:
            record = json.loads(row.record)
            numbers = {name: record[name] for name in _OF_RECORD}
            median = _median(record["histogram"])
            found.append({"name": row.name, "scanned_at_ms": row.taken_at_ms, **numbers, "median_bytes": median})
        connection.execute(sa.text(f"UPDATE table_state SET {values} WHERE name = :name"), found)
        last = rows[-1].name


def downgrade() -> None:
    """Revert; the documents of the scans still have these figures."""
    for name in _COLUMNS:
        op.drop_column("table_state", f"good_{name}")


def _median(counts: Sequence[int]) -> int | None:
    """Return the median size that the counts between the edges imply, None without files."""
    files = sum(counts)
    if not files:
        return None
    upto, middle = list(accumulate(counts)), files / 2
    index = bisect_left(upto, middle)
    if index >= len(_EDGES):
        return _EDGES[-1]
    return round(_EDGES[index] / 2 * 2 ** (1 - (upto[index] - middle) / counts[index]))

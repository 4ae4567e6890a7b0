# SPDX-License-Identifier: Apache-2.0
"""The numbers of reducible files, small files that are worth a plan.

Earlier scans stored the files and bytes that planning would rewrite. These are the reducible ones if no file waited and
there were no logs to merge; for other scans the numbers are unknown until the next scan. The layouts of partitions are
deleted until the next scans: they lack the same numbers, and some partitions had the explanations of other partitions.
"""

import json
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_BATCH = 2_000
_WAITING = {"recent", "busy", "failed"}


def upgrade() -> None:
    """Apply."""
    _rewrite(_reducible)
    op.execute("DELETE FROM partition_layout")


def downgrade() -> None:
    """Revert; a scan with unknown reducible files is stored with nothing to rewrite."""
    _rewrite(_backlog)
    op.execute("DELETE FROM partition_layout")


def _reducible(record: dict[str, Any]) -> None:
    files, size = record.pop("backlog_files", None), record.pop("backlog_bytes", None)
    known = record["outcome"] == "ok" and not record["log_files"] and not _WAITING & set(record["skipped"])
    record |= {"reducible_files": files if known else None, "reducible_bytes": size if known else None}


def _backlog(record: dict[str, Any]) -> None:
    files, size = record.pop("reducible_files", None), record.pop("reducible_bytes", None)
    record |= {"backlog_files": files or 0, "backlog_bytes": size or 0}


def _rewrite(change: Callable[[dict[str, Any]], None]) -> None:
    """Change the document of each scan, in batches: a thousand tables have hundreds of thousands of scans."""
    connection, last = op.get_bind(), 0
    some = sa.text("SELECT id, record FROM scan_history WHERE id > :last ORDER BY id LIMIT :most")
    while rows := connection.execute(some, {"last": last, "most": _BATCH}).all():
        changed = []
        for row in rows:
            record = json.loads(row.record)
            change(record)
            changed.append({"id": row.id, "record": json.dumps(record, separators=(",", ":"), sort_keys=True)})
        connection.execute(sa.text("UPDATE scan_history SET record = :record WHERE id = :id"), changed)
        last = rows[-1].id

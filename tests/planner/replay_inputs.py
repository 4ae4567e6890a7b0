# SPDX-License-Identifier: Apache-2.0
"""Histories made by hand and by chance for tests of replays."""

import random
from datetime import UTC, datetime, timedelta

from lake.history import ChangeKind, FileWritten, HistoricalCommit, TableHistory

MIB = 1 << 20
SINCE = datetime(2026, 3, 1, tzinfo=UTC)


def written(file_id: str, size: int, at: datetime = SINCE, *, partition: str = "p", rows: int = 0) -> FileWritten:
    """A base file."""
    return FileWritten(partition=partition, file_id=file_id, at=at, bytes=size, rows=rows or size // 100)


def commit(
    at: datetime, *wrote: FileWritten, took_out: tuple[tuple[str, str], ...] = (), **more: object
) -> HistoricalCommit:
    """A commit of a writer, unless it says otherwise."""
    values: dict[str, object] = {"change": ChangeKind.WRITE, "operation": "insert"} | more
    return HistoricalCommit(at=at, written=wrote, removed_groups=took_out, **values)  # type: ignore[arg-type]


def history(*commits: HistoricalCommit, files: tuple[FileWritten, ...] = (), days: float = 1) -> TableHistory:
    """So many days from ``SINCE``."""
    return TableHistory(
        since=SINCE, until=SINCE + timedelta(days=days), files=files, commits=commits, writer_model="hudi-cow"
    )


def generated(
    commits: int, days: int, seed: int, *, updates: float = 0.1, logs: bool = False, removals: float = 0.0
) -> TableHistory:
    """Commits at random times, most into the partition of their day; some update what is there, or take it out."""
    chance = random.Random(seed)
    made: list[HistoricalCommit] = []
    there: dict[tuple[str, str], FileWritten] = {}
    moments = sorted(chance.random() * days for _ in range(commits))
    for number, moment in enumerate(moments):
        at = SINCE + timedelta(days=moment)
        at -= timedelta(microseconds=at.microsecond)
        partition = f"dt={int(moment) - (chance.random() < 0.1):03d}"
        known = [group for group in there if group[0] == partition]
        if known and chance.random() < removals:
            group = chance.choice(known)
            del there[group]
            made.append(commit(at, took_out=(group,), operation="delete"))
            continue
        wrote = []
        for part in range(chance.choice((1, 1, 2, 4))):
            group = chance.choice(known) if known and chance.random() < updates else (partition, f"f{number}-{part}")
            if any(entry.group == group for entry in wrote):
                continue
            before = there.get(group)
            size = max(1000, int(chance.lognormvariate(17, 1.2)))
            if logs and before is not None:
                entry = FileWritten(partition=group[0], file_id=group[1], at=at, log_files=1, log_bytes=size // 4)
            else:
                size += before.bytes if before is not None else 0
                entry = written(group[1], size, at, partition=group[0])
            there[group] = entry if entry.bytes else there[group]
            wrote.append(entry)
        made.append(commit(at, *wrote))
    return history(*made, days=days)

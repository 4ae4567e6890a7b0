# SPDX-License-Identifier: Apache-2.0
"""What was done to a table in the past, commit by commit, as far as it still tells."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

FileGroupKey = tuple[str, str]
"""A file group: partition and file id."""

CancellationCheck = Callable[[], None]
"""Called at each commit that is read or replayed; what it raises ends the reading."""


def no_check() -> None:
    """The check of whoever has time."""


class ChangeKind(StrEnum):
    """What a commit did with rows, whatever the format calls it."""

    WRITE = "write"  #: rows were added, changed or removed
    REWRITE = "rewrite"  #: rows were moved into other files and are the same as before


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWritten:
    """A file group as a commit left it, or the part of it that was added.

    ``bytes`` and ``rows`` are of the base file that was written, 0 where none was; ``log_files`` and ``log_bytes`` were
    added. A new base file has the rows of the logs before it. Where the group is described as it stands, they are
    its sums, and ``oldest_log_at`` is set where it has logs.
    """

    partition: str
    file_id: str
    at: datetime
    bytes: int = 0
    rows: int = 0
    log_files: int = 0
    log_bytes: int = 0
    oldest_log_at: datetime | None = None

    @property
    def group(self) -> FileGroupKey:
        """Which file group it is."""
        return self.partition, self.file_id


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoricalCommit:
    """One commit: what it wrote, and the file groups that it took out.

    Of a ``REWRITE`` what it wrote in a partition has the rows of what it took out there. ``operation`` is the format's
    word, ``application`` says who wrote where the format records it, ``plan_id`` is set for a plan of lakefold's.
    """

    at: datetime
    change: ChangeKind
    operation: str
    written: tuple[FileWritten, ...]
    removed_groups: tuple[FileGroupKey, ...] = ()
    plan_id: str | None = None
    application: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHistory:
    """The file groups of a table at ``since``, and each commit from then until ``until``, oldest first.

    ``writer`` is what ``planner.writers`` calls the model of who writes such tables. ``notes`` say in a sentence each
    what is not known and was taken for granted.
    """

    since: datetime
    until: datetime
    files: tuple[FileWritten, ...]
    commits: tuple[HistoricalCommit, ...]
    writer_model: str
    notes: tuple[str, ...] = ()


def file_groups_after(commits: Sequence[HistoricalCommit]) -> Iterator[FileWritten]:
    """The file groups that ``commits`` leave, as they stand."""
    found: dict[FileGroupKey, FileWritten] = {}
    for commit in commits:
        for group in commit.removed_groups:
            found.pop(group, None)
        for wrote in commit.written:
            there = found.get(wrote.group)
            if wrote.bytes or there is None:
                found[wrote.group] = replace(wrote, oldest_log_at=wrote.at if wrote.log_files else None)
                continue
            found[wrote.group] = replace(
                there,
                at=wrote.at,
                log_files=there.log_files + wrote.log_files,
                log_bytes=there.log_bytes + wrote.log_bytes,
                oldest_log_at=there.oldest_log_at or wrote.at,
            )
    yield from found.values()

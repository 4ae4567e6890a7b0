# SPDX-License-Identifier: Apache-2.0
"""The past commits of a table, as far as the table still records them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

FileGroupKey = tuple[str, str]
"""A file group: partition and file id."""

CancellationCheck = Callable[[], None]
"""Called at each commit that is read or replayed; an error that it raises ends the reading."""


def no_check() -> None:
    """Do nothing: the check of a caller without a time limit."""


class ChangeKind(StrEnum):
    """The effect of a commit on rows, independent of the format's word for it."""

    WRITE = "write"  #: rows were added, changed or removed
    REWRITE = "rewrite"  #: rows were moved into other files and are the same as before


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWritten:
    """A file group after a commit, or the part of it that the commit added.

    ``bytes`` and ``rows`` describe the base file that was written, 0 if there was none; ``log_files`` and ``log_bytes``
    count the logs that were added. A new base file has the rows of the logs before it. If the record describes the
    whole group, the numbers are its sums, and ``oldest_log_at`` is set if it has logs.
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
        """The file group's key."""
        return self.partition, self.file_id


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoricalCommit:
    """One commit: the files that it wrote, and the file groups that it removed.

    In each partition, the files that a ``REWRITE`` wrote have the rows of the groups that it removed. ``operation`` is
    the format's word, ``application`` names the writing program if the format records it, ``plan_id`` is set for a
    lakefold plan.
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

    ``writer_model`` is the name of ``planner.writers``'s model for the writers of such tables. ``notes`` are the
    assumptions about unknown facts, each in a sentence.
    """

    since: datetime
    until: datetime
    files: tuple[FileWritten, ...]
    commits: tuple[HistoricalCommit, ...]
    writer_model: str
    notes: tuple[str, ...] = ()


def file_groups_after(commits: Sequence[HistoricalCommit]) -> Iterator[FileWritten]:
    """Yield the file groups that exist after ``commits``, with their sums."""
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

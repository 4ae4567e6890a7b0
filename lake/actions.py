# SPDX-License-Identifier: Apache-2.0
"""The actions on a table for people who browse them: when, by whom, and which files were added and removed."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import islice


class ActionState(StrEnum):
    """The state of an action on a table."""

    REQUESTED = "requested"  #: planned, and not begun
    INFLIGHT = "inflight"  #: begun, and not completed
    COMPLETED = "completed"  #: in effect


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionFile:
    """A file that an action added or removed.

    ``path`` is relative to the table's location (``lake.storage.locations.resolve_path``). It is None if the table
    records only a file group; the entry then stands for all files of the group. ``bytes`` is None if the table does not
    record the size.
    """

    partition: str
    file_id: str
    path: str | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChanges:
    """The files that an action added, or the files that it removed or replaced.

    ``count`` is the number of all these files, ``files`` are the first of them. ``bytes`` is the sum of the sizes of
    all these files, None if a size is unknown.
    """

    count: int = 0
    bytes: int | None = 0
    files: tuple[ActionFile, ...] = ()

    @classmethod
    def of(cls, files: Iterable[ActionFile], max_files: int) -> "FileChanges":
        """Return the changes to all ``files``, of which at most ``max_files`` are listed."""
        every = tuple(files)
        sizes = [file.bytes for file in every]
        known = [size for size in sizes if size is not None]
        return cls(
            count=len(every),
            bytes=sum(known) if len(known) == len(sizes) else None,
            files=tuple(islice(every, max_files)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAction:
    """One action on a table.

    ``key`` identifies the action within its table. To get the page that begins after the action, pass this key as the
    cursor. ``action`` is the format's word for the action, ``operation`` the word for its effect (``upsert``).
    ``is_rewrite`` is True if the action changed no rows. ``completed_at`` is None while the action is pending.
    ``plan_id`` and ``epoch`` are set for a lakefold plan. ``by`` names the writer, as far as the table records it.
    ``partitions`` is the number of changed partitions. ``notes`` are further facts, each in a phrase.
    """

    key: str
    instant: str
    action: str
    state: ActionState
    began_at: datetime
    completed_at: datetime | None = None
    operation: str | None = None
    is_rewrite: bool = False
    plan_id: str | None = None
    epoch: int | None = None
    by: str | None = None
    partitions: int = 0
    added: FileChanges = FileChanges()
    removed: FileChanges = FileChanges()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionPage:
    """A page of actions, newest first; the next page begins after the key ``next_key``, None on the last page.

    ``notes`` are the assumptions about unknown facts, each in a sentence without a full stop.
    """

    actions: tuple[TableAction, ...]
    next_key: str | None = None
    notes: tuple[str, ...] = ()

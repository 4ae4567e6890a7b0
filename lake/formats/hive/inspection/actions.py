# SPDX-License-Identifier: Apache-2.0
"""The actions of a table, page by page, as its reconstructed history shows them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

import pyarrow as pa

from lake.actions import ActionFile, ActionPage, ActionState, FileChanges, TableAction
from lake.errors import Rejected
from lake.formats.hive.commit.version_names import epoch_of, plan_id_of
from lake.formats.hive.files.listing import PartitionListing
from lake.formats.hive.inspection.history import reconstruct_history
from lake.formats.hive.inspection.known_tools import match_file_names
from lake.history import ChangeKind, FileGroupKey, HistoricalCommit, TableHistory
from lake.plan import SupersededVersion, milliseconds_of

_KEY = re.compile(r"\d{1,15}\.[\w-]+")
_BEGINNING = datetime.fromtimestamp(0, UTC)
_REPLACED_NOTE = "files that a rewrite replaced are known until lakefold deletes them"


def list_actions(
    table_location: str,
    listings: Sequence[PartitionListing],
    superseded: Sequence[SupersededVersion],
    *,
    limit: int,
    max_files: int,
    before: str | None = None,
) -> ActionPage:
    """Return a page of actions, as ``ListsActions.actions`` does."""
    if before is not None and _KEY.fullmatch(before) is None:
        raise Rejected(
            f"{before!r} is not an action of a Hive table; use the key of an action, such as 1769860800000.insert"
        )
    history = reconstruct_history(table_location, listings, superseded, _BEGINNING, datetime.now(UTC))
    sizes = {file.group: file.bytes for commit in history.commits for file in commit.written}
    ordered = sorted(((_sort_key(commit), commit) for commit in history.commits), key=lambda one: one[0], reverse=True)
    older = [commit for key, commit in ordered if before is None or key < _parse_key(before)]
    actions = tuple(_to_action(commit, sizes, max_files) for commit in older[:limit])
    return ActionPage(
        actions=actions,
        next_key=actions[-1].key if len(older) > limit else None,
        notes=_notes(history),
    )


def _notes(history: TableHistory) -> tuple[str, ...]:
    has_rewrites = any(commit.plan_id for commit in history.commits)
    return (*history.notes, *((_REPLACED_NOTE,) if has_rewrites else ()))


def _sort_key(commit: HistoricalCommit) -> tuple[int, str]:
    return milliseconds_of(commit.at), commit.plan_id or commit.operation


def _parse_key(key: str) -> tuple[int, str]:
    at, _, name = key.partition(".")
    return int(at), name


def _to_action(commit: HistoricalCommit, sizes: Mapping[FileGroupKey, int], max_files: int) -> TableAction:
    version = commit.plan_id
    added = [ActionFile(partition=f.partition, file_id=_name_of(f.file_id), bytes=f.bytes) for f in commit.written]
    removed = [
        ActionFile(partition=partition, file_id=_name_of(file_id), bytes=sizes.get((partition, file_id)))
        for partition, file_id in commit.removed_groups
    ]
    at, name = _sort_key(commit)
    return TableAction(
        key=f"{at}.{name}",
        instant=version or commit.at.isoformat(timespec="seconds"),
        action="relocation" if version else "write",
        state=ActionState.COMPLETED,
        began_at=min(file.at for file in commit.written),
        completed_at=commit.at,
        operation=commit.operation,
        is_rewrite=commit.change is ChangeKind.REWRITE,
        plan_id=plan_id_of(version) if version else None,
        epoch=epoch_of(version) if version else None,
        by="lakefold" if version else _writer_of(file.file_id for file in added),
        partitions=len({file.partition for file in (*added, *removed)}),
        added=FileChanges.of(added, max_files),
        removed=FileChanges.of(removed, max_files),
    )


def _name_of(file_id: str) -> str:
    """Return the file's name: a file id of a history ends with the file's age."""
    return file_id.rpartition("@")[0]


def _writer_of(names: Iterable[str]) -> str | None:
    """Return the tools that give files such names; None if there is no such tool."""
    matches = match_file_names(pa.chunked_array([pa.array(list(names), pa.string())]))
    return ", ".join(dict.fromkeys(tool.name for tool, _ in matches)) or None

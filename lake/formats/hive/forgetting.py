# SPDX-License-Identifier: Apache-2.0
"""Takes away what a table tells of moves that nothing depends on any more."""

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

from lake.errors import Transient
from lake.filesystems import files_of
from lake.formats.hive import commits
from lake.formats.hive.catalog import places_of
from lake.formats.hive.commits import Record, homes_of, version_at
from lake.locations import file_at
from lake.metastore import Metastore, Table
from lake.model import TableRef

_AT_ONCE = 8


def gone(ref: TableRef, places: Collection[str]) -> Collection[str]:
    """See ``ForgetsMoves``. A place is gone with its whole version: what is made there again stands without a document.

    Places outside of versions are somebody's own, and never gone.
    """
    by_place = {place: version_at(ref, file_at(ref.location, place)) for place in places}
    versions = sorted({version for version in by_place.values() if version is not None})
    try:
        if not versions or not commits.has_filed(ref):
            return frozenset()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            there = dict(zip(versions, pool.map(lambda version: _is_there(ref, version), versions), strict=True))
    except OSError as error:
        raise Transient(f"{ref.name}: its versions can't be looked at: {error.strerror or error}") from error
    return frozenset(place for place, version in by_place.items() if version is not None and not there[version])


def forget(metastore: Metastore, table: Table, ref: TableRef, tokens: Collection[str]) -> Collection[str]:
    """See ``ForgetsMoves``."""
    named = {commits.token_of(place.parameters) for place in places_of(metastore, table)}
    try:
        forgotten = {token for token in set(tokens) - named if _is_over(ref, token, commits.filed_of(ref, token))}
        commits.note_forgotten(ref, forgotten)
        for token in sorted(forgotten):
            commits.unfile(ref, token)
    except OSError as error:
        raise Transient(f"{ref.name}: filed commits can't be removed: {error.strerror or error}") from error
    return forgotten


def _is_over(ref: TableRef, token: str, record: Record | None) -> bool:
    if commits.is_version(token) and _is_there(ref, token):
        return False
    if record is None:
        return True
    if record.commit.instant != token:
        return False
    left = {version_at(ref, file_at(ref.location, move.left)) for move in record.commit.moves} - {None}
    return not any(_is_there(ref, version) for version in left if version is not None)


def _is_there(ref: TableRef, version: str) -> bool:
    return any(files_of(ref.location).exists(f"{home}/{version}") for home in homes_of(ref))

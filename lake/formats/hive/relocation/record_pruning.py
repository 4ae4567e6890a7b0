# SPDX-License-Identifier: Apache-2.0
"""Removes those records of relocations from a table that are no longer needed."""

from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor

from lake.errors import Transient
from lake.formats.hive.catalog.tables import list_partitions
from lake.formats.hive.commit import commit_record, version_names
from lake.formats.hive.commit.commit_record import CommitRecord
from lake.formats.hive.commit.version_names import data_dirs, version_of_directory
from lake.formats.hive.relocation.arrival_times import forget_arrivals
from lake.metastore import MetastoreClient, MetastoreTable
from lake.model import TableRef
from lake.relocation.owner_moves import is_in_version
from lake.storage.filesystems import file_io_of
from lake.storage.locations import resolve_path

_MAX_CONCURRENT_CHECKS = 8


def missing_locations(ref: TableRef, locations: Collection[str]) -> Collection[str]:
    """See ``PrunesRelocations``. A location is missing if its whole version directory is missing.

    A version that a writer has recreated exists. Locations outside of versions belong to the table's owner, and never
    count as missing.
    """
    version_by_location = {
        location: version_of_directory(ref, resolve_path(ref.location, location)) for location in locations
    }
    versions = sorted({version for version in version_by_location.values() if version is not None})
    try:
        if not versions or not commit_record.has_record_archive(ref):
            return frozenset()
        with ThreadPoolExecutor(_MAX_CONCURRENT_CHECKS) as pool:
            exists = dict(zip(versions, pool.map(lambda version: _has_version(ref, version), versions), strict=True))
    except OSError as error:
        raise Transient(f"{ref.name}: its versions can't be listed: {error.strerror or error}") from error
    return frozenset(
        location for location, version in version_by_location.items() if version is not None and not exists[version]
    )


def prune_records(
    metastore: MetastoreClient, table: MetastoreTable, ref: TableRef, tokens: Collection[str]
) -> Collection[str]:
    """See ``PrunesRelocations``."""
    last_tokens = {
        version_names.relocation_token(partition.parameters) for partition in list_partitions(metastore, table)
    }
    try:
        pruned = {
            token
            for token in set(tokens) - last_tokens
            if _is_prunable(ref, token, commit_record.archived_record_of_token(ref, token))
        }
        commit_record.mark_pruned(ref, pruned)
        for token in sorted(pruned):
            for location in _previous_versions(commit_record.archived_record_of_token(ref, token)):
                forget_arrivals(ref, location)
            commit_record.remove_archived_record(ref, token)
    except OSError as error:
        raise Transient(f"{ref.name}: archived records can't be removed: {error.strerror or error}") from error
    return pruned


def _is_prunable(ref: TableRef, token: str, record: CommitRecord | None) -> bool:
    if version_names.is_version_name(token) and _has_version(ref, token):
        return False
    if record is None:
        return True
    if record.commit.instant != token:
        return False
    previous_versions = {
        version_of_directory(ref, resolve_path(ref.location, move.previous_location))
        for move in record.commit.relocations
    } - {None}
    return not any(_has_version(ref, version) for version in previous_versions if version is not None)


def _previous_versions(record: CommitRecord | None) -> Iterator[str]:
    """Yield the locations in versions that the relocations of a commit left; late files may come to the other ones."""
    for move in () if record is None else record.commit.relocations:
        if is_in_version(move.previous_location):
            yield move.previous_location


def _has_version(ref: TableRef, version: str) -> bool:
    return any(file_io_of(ref.location).exists(f"{directory}/{version}") for directory in data_dirs(ref))

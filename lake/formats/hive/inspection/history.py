# SPDX-License-Identifier: Apache-2.0
"""The history of a table, reconstructed from its files and from replaced files that lakefold has not deleted yet.

A metastore keeps no history. But the modification time of a writer's file shows the time of its commit, and lakefold
records the modification times of replaced files. Files that a rewrite linked are identified by name, size and time.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from lake.formats.hive.catalog.tables import is_in_data_dir
from lake.formats.hive.commit.version_names import version_of_output
from lake.formats.hive.files.listing import PartitionListing, to_located_file
from lake.history import (
    CancellationCheck,
    ChangeKind,
    FileGroupKey,
    FileWritten,
    HistoricalCommit,
    TableHistory,
    file_groups_after,
    no_check,
)
from lake.plan import SupersededVersion, milliseconds_of

#: files of one job are written within this time of each other
_JOB_WINDOW = timedelta(minutes=1)
_NOTES = (
    "a metastore keeps no history: commits are inferred from the ages of files, and files that writers "
    "removed are unknown",
)


@dataclass(slots=True)
class _ObservedFile:
    """One file, wherever copies of it are or were.

    ``versions`` are the rewrites in whose version it is or was. ``replaced_by`` are the rewrites that replaced it at
    its location.
    """

    partition: str
    name: str
    bytes: int
    written_at: datetime
    versions: set[str] = field(default_factory=set)
    replaced_by: set[str] = field(default_factory=set)

    @property
    def group(self) -> FileGroupKey:
        return self.partition, f"{self.name}@{milliseconds_of(self.written_at)}"

    @property
    def rewrite_version(self) -> str | None:
        """The rewrite that wrote the file. None if a writer wrote it."""
        return version_of_output(self.name)

    @property
    def file_written(self) -> FileWritten:
        return FileWritten(partition=self.partition, file_id=self.group[1], at=self.written_at, bytes=self.bytes)


def reconstruct_history(
    table_location: str,
    listings: Sequence[PartitionListing],
    superseded: Sequence[SupersededVersion],
    since: datetime,
    until: datetime,
    check: CancellationCheck = no_check,
) -> TableHistory:
    """Return the table's files at ``since`` and its commits until ``until``."""
    check()  # the listing, the longest part, is done
    files = list(_known_files(table_location, listings, superseded))
    commits = sorted([*_write_commits(files), *_rewrite_commits(files)], key=lambda commit: commit.at)
    commits = [commit for commit in commits if commit.at <= until]
    before = [commit for commit in commits if commit.at < since]
    return TableHistory(
        since=since,
        until=until,
        files=tuple(file_groups_after(before)),
        commits=tuple(commits[len(before) :]),
        writer_model="hive",
        notes=_NOTES,
    )


def _known_files(
    table_location: str, listings: Sequence[PartitionListing], superseded: Sequence[SupersededVersion]
) -> Iterable[_ObservedFile]:
    """Return every known file once."""
    found: dict[tuple[str, str, int, int], _ObservedFile] = {}

    def observe(partition: str, path: str, size: int, modified_ms: int) -> _ObservedFile:
        name = path.rpartition("/")[2]
        at = datetime.fromtimestamp(modified_ms / 1000, UTC)
        file = found.setdefault((partition, name, size, modified_ms), _ObservedFile(partition, name, size, at))
        if is_in_data_dir(path):
            file.versions.add(path.split("/")[1])
        return file

    for listing in listings:
        for file in listing.files:
            one = to_located_file(table_location, file.path, file.bytes, file.modified_ns)
            observe(listing.partition.name, one.path, one.bytes, one.modified_ms)
    for version in superseded:
        if version.bytes and version.modified_at is not None:
            modified_ms = milliseconds_of(version.modified_at)
            observe(version.partition, version.path, version.bytes, modified_ms).replaced_by.add(version.instant)
    return found.values()


def _write_commits(files: Sequence[_ObservedFile]) -> Iterator[HistoricalCommit]:
    """Yield a commit for each set of files that were written at about the same time."""
    job: list[_ObservedFile] = []
    for file in sorted(
        (file for file in files if file.rewrite_version is None), key=lambda file: (file.written_at, file.group)
    ):
        if job and file.written_at - job[0].written_at > _JOB_WINDOW:
            yield _write_commit(job)
            job = []
        job.append(file)
    if job:
        yield _write_commit(job)


def _write_commit(files: Sequence[_ObservedFile]) -> HistoricalCommit:
    wrote = tuple(file.file_written for file in files)
    return HistoricalCommit(at=files[-1].written_at, change=ChangeKind.WRITE, operation="insert", written=wrote)


def _rewrite_commits(files: Sequence[_ObservedFile]) -> Iterator[HistoricalCommit]:
    """Yield a commit for each rewrite, with the time of its newest file."""
    made: dict[str, list[_ObservedFile]] = {}
    gone: dict[str, list[FileGroupKey]] = {}
    for file in files:
        if file.rewrite_version is not None:
            made.setdefault(file.rewrite_version, []).append(file)
        for version in file.replaced_by - file.versions:
            gone.setdefault(version, []).append(file.group)
    for version, outputs in made.items():
        yield HistoricalCommit(
            at=max(file.written_at for file in outputs),
            change=ChangeKind.REWRITE,
            operation="rewrite",
            written=tuple(file.file_written for file in outputs),
            removed_groups=tuple(gone.get(version, ())),
            plan_id=version,
        )

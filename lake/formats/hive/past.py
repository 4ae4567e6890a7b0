# SPDX-License-Identifier: Apache-2.0
"""What was done to a table, told by its files and by those that lakefold replaced and has not deleted yet.

A metastore keeps no history. But a file of a writer's is as old as its commit, and what a plan replaced is recorded
with its age; files that came along with a rewrite are told by name, size and age.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from lake.formats.hive.catalog import is_in_home
from lake.formats.hive.commits import version_of
from lake.formats.hive.slices import Listing, placed
from lake.history import Change, Check, FileWritten, Group, History, PastCommit, go_on, standing
from lake.plan import SupersededVersion, milliseconds_of

#: files of one job are written within this time of each other
_JOB = timedelta(minutes=1)
_NOTES = ("a metastore keeps no history: commits are told by the ages of files, and what writers removed is not known",)


@dataclass(slots=True)
class _File:
    """One file, wherever copies of it are or were."""

    partition: str
    name: str
    bytes: int
    at: datetime
    #: rewrites in whose version it is or was, and those that replaced it where it was
    versions: set[str] = field(default_factory=set)
    replaced_by: set[str] = field(default_factory=set)

    @property
    def group(self) -> Group:
        return self.partition, f"{self.name}@{milliseconds_of(self.at)}"

    @property
    def made_by(self) -> str | None:
        """The rewrite that made it; None for a writer."""
        return version_of(self.name)

    @property
    def written(self) -> FileWritten:
        return FileWritten(partition=self.partition, file_id=self.group[1], at=self.at, bytes=self.bytes)


def past(
    location: str,
    listings: Sequence[Listing],
    superseded: Sequence[SupersededVersion],
    since: datetime,
    until: datetime,
    check: Check = go_on,
) -> History:
    """The table at ``since`` and what was done to it until ``until``."""
    check()  # its files are listed by now, which is what takes long
    files = list(_files(location, listings, superseded))
    commits = sorted([*_writes(files), *_rewrites(files)], key=lambda commit: commit.at)
    commits = [commit for commit in commits if commit.at <= until]
    before = [commit for commit in commits if commit.at < since]
    return History(
        since=since,
        until=until,
        files=tuple(standing(before)),
        commits=tuple(commits[len(before) :]),
        writer="hive",
        notes=_NOTES,
    )


def _files(location: str, listings: Sequence[Listing], superseded: Sequence[SupersededVersion]) -> Iterable[_File]:
    """Every file that is known, each once."""
    found: dict[tuple[str, str, int, int], _File] = {}

    def meet(partition: str, path: str, size: int, modified_ms: int) -> _File:
        name = path.rpartition("/")[2]
        at = datetime.fromtimestamp(modified_ms / 1000, UTC)
        file = found.setdefault((partition, name, size, modified_ms), _File(partition, name, size, at))
        if is_in_home(path):
            file.versions.add(path.split("/")[1])
        return file

    for listing in listings:
        for file in listing.files:
            one = placed(location, file.path, file.bytes, file.modified_ns)
            meet(listing.place.name, one.path, one.bytes, one.modified_ms)
    for version in superseded:
        if version.bytes and version.modified_at is not None:
            modified_ms = milliseconds_of(version.modified_at)
            meet(version.partition, version.path, version.bytes, modified_ms).replaced_by.add(version.instant)
    return found.values()


def _writes(files: Sequence[_File]) -> Iterator[PastCommit]:
    """A commit for files that were written at about the same time."""
    job: list[_File] = []
    for file in sorted((file for file in files if file.made_by is None), key=lambda file: (file.at, file.group)):
        if job and file.at - job[0].at > _JOB:
            yield _write(job)
            job = []
        job.append(file)
    if job:
        yield _write(job)


def _write(job: Sequence[_File]) -> PastCommit:
    wrote = tuple(file.written for file in job)
    return PastCommit(at=job[-1].at, change=Change.WRITE, operation="insert", wrote=wrote)


def _rewrites(files: Sequence[_File]) -> Iterator[PastCommit]:
    """A commit for each rewrite, as old as its newest file."""
    made: dict[str, list[_File]] = {}
    gone: dict[str, list[Group]] = {}
    for file in files:
        if file.made_by is not None:
            made.setdefault(file.made_by, []).append(file)
        for version in file.replaced_by - file.versions:
            gone.setdefault(version, []).append(file.group)
    for version, outputs in made.items():
        yield PastCommit(
            at=max(file.at for file in outputs),
            change=Change.REWRITE,
            operation="rewrite",
            wrote=tuple(file.written for file in outputs),
            took_out=tuple(gone.get(version, ())),
            plan_id=version,
        )

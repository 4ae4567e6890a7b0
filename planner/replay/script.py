# SPDX-License-Identifier: Apache-2.0
"""A history as what its writers did, so that it can be done again on files that are laid out otherwise.

What lakefold did is left out: under another policy it would have done something else. What follows in the history from
its rewrites is told in terms of the files that writers made: a *strand* is a file group as a writer first made it, and
a commit that changes a rewritten file changes all strands that went into it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from lake.history import Change, FileWritten, Group, History, PastCommit


@dataclass(frozen=True, slots=True, kw_only=True)
class Strand:
    """A file group as a writer first made it; ``number`` is its place among all of the script."""

    number: int
    partition: int
    bytes: int
    rows: int
    log_files: int
    log_bytes: int
    at_us: int
    oldest_log_us: int | None = None


@dataclass(frozen=True, slots=True)
class Grown:
    """Somebody wrote the base files that hold ``strands`` anew, with so many bytes and rows more (or fewer)."""

    strands: tuple[int, ...]
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class Logged:
    """A writer added logs to the files that hold ``strands``."""

    strands: tuple[int, ...]
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Removed:
    """A writer took the files that hold ``strands`` out of the table."""

    strands: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Merged:
    """Somebody else than lakefold wrote the files that hold ``strands`` into so many files."""

    strands: tuple[int, ...]
    files: int


Step = Strand | Grown | Logged | Removed | Merged


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One commit of a writer; ``only_logs`` says that it wrote no base file."""

    at_us: int
    steps: tuple[Step, ...]
    only_logs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What writers did, by strands; ``partitions`` are the names of those with a file at any time, sorted."""

    since_us: int
    until_us: int
    partitions: tuple[str, ...]
    there: tuple[Strand, ...]
    acts: tuple[Act, ...]
    strands: int


@dataclass(slots=True)
class _File:
    """A file group of the history as it is at some moment, and the strands in it."""

    strands: tuple[int, ...]
    bytes: int
    rows: int


@dataclass(slots=True)
class _Writer:
    """The history told up to some moment."""

    partitions: Mapping[str, int]
    files: dict[Group, _File] = field(default_factory=dict)
    #: file groups of the history that hold a strand
    holders: dict[int, int] = field(default_factory=dict)
    strands: int = 0

    def add(self, wrote: FileWritten) -> Strand:
        strand = Strand(
            number=self.strands,
            partition=self.partitions[wrote.partition],
            bytes=wrote.bytes,
            rows=wrote.rows,
            log_files=wrote.log_files,
            log_bytes=wrote.log_bytes,
            at_us=microseconds(wrote.at),
            oldest_log_us=_oldest_log(wrote),
        )
        self.strands += 1
        self._put(wrote.group, _File((strand.number,), wrote.bytes, wrote.rows))
        return strand

    def write(self, commit: PastCommit) -> Iterator[Step]:
        """What a commit of a writer did."""
        gone = [strand for group in commit.took_out for strand in self._take(group)]
        if gone:
            yield Removed(tuple(gone))
        for wrote in commit.wrote:
            there = self.files.get(wrote.group)
            if there is None:
                yield self.add(wrote)
                continue
            if wrote.bytes:
                yield Grown(there.strands, wrote.bytes - there.bytes, wrote.rows - there.rows)
                there.bytes, there.rows = wrote.bytes, wrote.rows
            if wrote.log_files:
                yield Logged(there.strands, wrote.log_files, wrote.log_bytes)

    def rewrite(self, commit: PastCommit) -> Iterator[Step]:
        """What a commit that only moved rows did."""
        outputs: dict[str, list[FileWritten]] = {}
        for wrote in commit.wrote:
            there = self.files.get(wrote.group)
            if there is None:
                outputs.setdefault(wrote.partition, []).append(wrote)
                continue
            yield Grown(there.strands, wrote.bytes - there.bytes, wrote.rows - there.rows)
            there.bytes, there.rows = wrote.bytes, wrote.rows
        taken: dict[str, list[int]] = {}
        for group in commit.took_out:
            there = self.files.get(group)
            if there is not None:
                taken.setdefault(group[0], []).extend(there.strands)
        for partition, made in outputs.items():
            strands = tuple(dict.fromkeys(taken.get(partition, ())))
            if not strands:  # nobody knows what went into them
                yield from map(self.add, made)
                continue
            yield Merged(strands, len(made))
            for wrote in made:
                self._put(wrote.group, _File(strands, wrote.bytes, wrote.rows))
        for group in commit.took_out:
            self._take(group)

    def _put(self, group: Group, file: _File) -> None:
        self.files[group] = file
        for strand in file.strands:
            self.holders[strand] = self.holders.get(strand, 0) + 1

    def _take(self, group: Group) -> Iterator[int]:
        """Forget a file group; the strands that no other one holds."""
        file = self.files.pop(group, None)
        free = []
        for strand in file.strands if file is not None else ():
            self.holders[strand] -= 1
            if not self.holders[strand]:
                free.append(strand)
        return iter(free)


def script_of(history: History) -> Script:
    """What writers did in ``history``."""
    names = sorted(_partitions(history))
    writer = _Writer({name: place for place, name in enumerate(names)})
    there = tuple(map(writer.add, history.files))
    acts = []
    for commit in history.commits:
        if commit.change is Change.REWRITE:
            steps = tuple(writer.rewrite(commit))
            if commit.plan_id is not None:
                steps = tuple(step for step in steps if isinstance(step, Strand))
        else:
            steps = tuple(writer.write(commit))
        if steps:
            only_logs = bool(commit.wrote) and not any(wrote.bytes for wrote in commit.wrote)
            acts.append(Act(at_us=microseconds(commit.at), steps=steps, only_logs=only_logs))
    return Script(
        since_us=microseconds(history.since),
        until_us=microseconds(history.until),
        partitions=tuple(names),
        there=there,
        acts=tuple(acts),
        strands=writer.strands,
    )


def _partitions(history: History) -> Iterable[str]:
    found = {file.partition for file in history.files}
    return found.union(wrote.partition for commit in history.commits for wrote in commit.wrote)


def _oldest_log(wrote: FileWritten) -> int | None:
    if not wrote.log_files:
        return None
    return microseconds(wrote.oldest_log_at or wrote.at)


def microseconds(at: datetime) -> int:
    """``at`` as microseconds since 1970."""
    return round(at.timestamp() * 1_000_000)


def moment_of(us: int) -> datetime:
    """Microseconds since 1970 as a time."""
    return datetime.fromtimestamp(us / 1_000_000, UTC)

# SPDX-License-Identifier: Apache-2.0
"""Changes one Hive table: new files beside the old ones, then one call of the metastore that moves the partitions."""

import os
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import cast

from lake.engines import Engine, Task, choose, notes
from lake.errors import CommitUnknown, Conflict, Integrity, Rejected, Transient
from lake.failpoints import failpoint
from lake.formats.hive import commits, late, refusals
from lake.formats.hive.catalog import identity_of, open_metastore, places_of, table_of
from lake.formats.hive.columns import schema_of
from lake.formats.hive.commits import EPOCH, LOOK, PLAN, VERSION, Record, home_of, new_version
from lake.formats.hive.evidence import Evidence, Seen, look, still_there, undone
from lake.formats.hive.neighbours import shared
from lake.formats.hive.owners import check_owner, take_after
from lake.formats.hive.publication import Publication
from lake.formats.hive.slices import File, placed
from lake.formats.hive.superseded import in_use
from lake.locations import file_at
from lake.metastore import TIMEOUT, Metastore, Partition, Table
from lake.model import TableRef
from lake.optional import made_anew
from lake.plan import Commit, LeftOut, Move, OutputFile, PlacedFile, Plan, Progress, Staged, SupersededVersion
from lake.ports import Deletion, Journal, Prepared, Report, Rewrite

_LOOKS = 5
"""How often partitions are looked at before a commit while writers add files."""

ATTEMPTS = "_attempts"
"""Where in a version engines write: a task that outlives its attempt never reaches what readers read."""


class HiveWriter:
    """See ``lake.ports.TableWriter``, ``Fenced`` and ``lake.optional.CarriesLateFiles``."""

    commit_takes = LOOK + TIMEOUT

    def __init__(self, table: TableRef, engines: Sequence[Engine]) -> None:
        self._ref, self._engines = table, engines
        self._cancelled = threading.Event()
        self.journal: Journal = lambda staged: None
        self.fence: Callable[[], None] = lambda: None

    def __enter__(self) -> "HiveWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None

    def start(self) -> None:
        """See ``TableWriter``. The metastore is spoken to without a JVM, and engines start what they need."""

    def cancel(self) -> None:
        """See ``TableWriter``."""
        self._cancelled.set()

    # Staging.

    def prepare(self, plan: Plan, epoch: int) -> Prepared:
        """See ``TableWriter``."""
        with open_metastore(self._ref) as metastore:
            table, seen = look(metastore, self._ref, plan.partitions)
        self._same_table(table)
        refusals.check(self._ref.name, table)
        if not table.partition_columns:
            raise Rejected(f"{self._ref.name} has no partitions: only partitioned Hive tables can be compacted so far")
        groups, left_out = still_there(plan, seen)
        if not groups:
            raise Conflict(f"no group is left: {left_out[0].reason}", left_out)
        partitions = sorted({plan.groups[index].partition for index in groups})
        check_owner(self._ref.name, self._ref.location)
        for name in partitions:
            check_owner(f"{self._ref.name}, partition {name}", seen[name].place.location)
        version = new_version(plan.plan_id, epoch, time.time_ns())
        tasks = self._tasks(plan, groups, version, table)
        with self._told_by_slices(plan, tasks):
            choices = choose(tasks, self._engines, plan.options, self._ref.name)
        evidence = Evidence(seen={name: seen[name] for name in partitions}, tasks=tasks, choices=choices)
        self.fence()
        self.journal(Staged(token=version, paths=(f"{commits.HOME}/{version}/",)))
        self._make_version(version, evidence.seen)
        return Prepared(
            plan=plan, epoch=epoch, instant=version, groups=groups, left_out=left_out, notes=notes(choices),
            evidence=evidence,
        )  # fmt: skip

    def rewrite(self, prepared: Prepared, report: Report) -> Rewrite:
        """See ``TableWriter``."""
        plan, evidence = prepared.plan, cast(Evidence, prepared.evidence)
        choices = evidence.choices
        by_engine: dict[str, list[Task]] = defaultdict(list)
        for task in evidence.tasks:
            by_engine[choices[task.group].engine.name].append(task)
        outputs, done = [], 0
        for one in by_engine.values():
            engine = choices[one[0].group].engine

            def told(progress: Progress, before: int = done) -> None:
                report(replace(progress, bytes_done=before + progress.bytes_done, bytes_total=plan.bytes))

            with self._told_by_slices(plan, one):
                for file in engine.rewrite(one, plan.options, told, self._cancelled):
                    path = os.path.relpath(file.path, self._ref.location)
                    partition = plan.groups[file.group].partition
                    outputs.append(OutputFile(partition=partition, path=path, bytes=file.bytes, rows=file.rows))
            done += sum(task.bytes for task in one)
        if self._cancelled.is_set():
            raise Transient("the rewrite was cancelled")
        return Rewrite(prepared=prepared, outputs=tuple(outputs))

    # The commit.

    def commit(self, rewrite: Rewrite) -> Commit:
        """See ``TableWriter``."""
        publication = Publication(rewrite, cast(Evidence, rewrite.prepared.evidence).seen)
        publication.fill()
        refused: Transient | None = None
        with open_metastore(self._ref) as metastore:
            while True:
                begun, partitions = time.monotonic(), set(publication.seen)
                table, now = self._last_look(metastore, publication)
                if refused is not None and partitions == set(now):
                    raise Conflict(f"the metastore refused the commit: {refused}") from refused
                files = publication.files()
                for version in {
                    seen.place.parameters[VERSION] for seen in now.values() if VERSION in seen.place.parameters
                }:
                    commits.file_away(self._ref, version)
                commit = self._commit_of(rewrite, now, files, publication.left_out)
                commits.write(self._ref, Record(commit=commit, partitions=tuple(now)))
                changed = [self._moved(seen, rewrite.prepared, files[name]) for name, seen in now.items()]
                if time.monotonic() - begun > LOOK.total_seconds():
                    commits.take_back(self._ref, commit.instant)
                    raise Transient("looking at the partitions took too long for a safe commit")
                failpoint("in_commit")
                refused = self._refused(metastore, table, changed, commit)
                if refused is None:
                    self._look_again(metastore, table, now, changed)
                    return commit

    def discard(
        self,
        plan_id: str,
        instants: Collection[str] | None,
        *,
        staged: Collection[Staged] = (),
        epoch: int | None = None,
    ) -> int:
        """See ``TableWriter``."""
        wanted = {one.token for one in staged if instants is None or one.token in instants}
        with open_metastore(self._ref) as metastore:
            left = commits.withdrawable(metastore, self._ref, wanted, time.time())
        for version in left:
            shutil.rmtree(home_of(self._ref) / version, ignore_errors=True)
        return len(left)

    # What late writers left.

    def target_of(self, source: PlacedFile, place: str) -> str:
        """See ``CarriesLateFiles``."""
        return late.target_of(source, place)

    def copy(self, pairs: Sequence[tuple[PlacedFile, str]]) -> Collection[PlacedFile]:
        """See ``CarriesLateFiles``."""
        return late.copy(self._ref, pairs, self.fence)

    def tell(self, last: Move, move: Move | None = None) -> None:
        """See ``CarriesLateFiles``."""
        with open_metastore(self._ref) as metastore:
            table = table_of(metastore, self._ref)
            self._same_table(table)
            late.tell(metastore, table, self._ref, last, move, self.fence)

    def move_aside(self, files: Sequence[PlacedFile]) -> Mapping[PlacedFile, str]:
        """See ``CarriesLateFiles``."""
        return late.move_aside(self._ref, files, self.fence)

    # Deleting.

    def delete(self, versions: Sequence[SupersededVersion]) -> Deletion:
        """See ``TableWriter``."""
        self.fence()
        with open_metastore(self._ref) as metastore:
            table = table_of(metastore, self._ref)
            self._same_table(table)
            if (why := shared(metastore, table)) is not None:
                raise Conflict(f"{self._ref.name}: {why}")
            places = list(places_of(metastore, table))
        for reason in in_use(self._ref, versions, places).values():
            raise Conflict(reason)
        freed, left = 0, {}
        for index, version in enumerate(versions):
            path = Path(file_at(self._ref.location, version.path))
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            other = version.differs(status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))
            if other is not None:
                left[index] = other
                continue
            path.unlink()
            # What Hadoop writes beside every file of a local file system.
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
            freed += status.st_size
        # Also of files that are gone already: whoever deleted them may have died before he came here.
        for directory in {Path(file_at(self._ref.location, version.path)).parent for version in versions}:
            # A partition's own directory stays, for whoever drops the partition and adds it again.
            if directory.is_relative_to(home_of(self._ref)):
                _remove_empty(directory, home_of(self._ref))
                commits.forget(self._ref, directory.relative_to(home_of(self._ref)).parts[0], ATTEMPTS)
        return Deletion(bytes_freed=freed, left=left)

    # Its parts.

    def _same_table(self, table: Table) -> None:
        another = made_anew(replace(self._ref, identity=identity_of(table)), self._ref.identity)
        if another is not None:
            raise Conflict(another)

    def _tasks(self, plan: Plan, groups: Sequence[int], version: str, table: Table) -> list[Task]:
        attempts, schema = home_of(self._ref) / version / ATTEMPTS, schema_of(table)
        suffix = str(refusals.kind_of(table)).lower()
        return [
            Task(
                group=index,
                inputs=tuple(file_at(self._ref.location, str(item.path)) for item in plan.groups[index].slices),
                outputs=tuple(
                    str(attempts / f"part-{version}-{index}-{number}.{suffix}")
                    for number in range(plan.groups[index].output_files)
                ),
                bytes=plan.groups[index].bytes,
                schema=schema,
            )
            for index in groups
        ]

    def _make_version(self, version: str, seen: Mapping[str, Seen]) -> None:
        """Make the directories of a version; they belong to whom the partitions' own belong to."""
        home = home_of(self._ref)
        for directory in (home, home / version, home / version / ATTEMPTS):
            directory.mkdir(exist_ok=directory == home)
            take_after(directory, self._ref.location)
        for name, one in seen.items():
            directory = home / version / name
            for parent in reversed([directory, *directory.parents]):
                if not parent.is_relative_to(home / version) or parent.exists():
                    continue
                parent.mkdir()
                take_after(parent, one.place.location)

    @contextmanager
    def _told_by_slices(self, plan: Plan, tasks: Sequence[Task]) -> Iterator[None]:
        """Of groups that are left out the inputs to be left alone are told by the slices' own names."""
        try:
            yield
        except Conflict as error:
            if len(error.args) < 2:
                raise
            names = {
                file_at(self._ref.location, str(item.path)): str(item.path)
                for task in tasks
                for item in plan.groups[task.group].slices
            }
            named = [
                replace(one, quarantine=tuple(names.get(path, path) for path in one.quarantine))
                for one in error.args[1]
            ]
            raise Conflict(error.args[0], tuple(named)) from error

    def _last_look(self, metastore: Metastore, publication: Publication) -> tuple[Table, Mapping[str, Seen]]:
        """The table and its partitions right before the commit, but for those that have to be left out.

        What writers have added meanwhile comes along.
        """
        for _ in range(_LOOKS):
            self.fence()
            table, now = look(metastore, self._ref, publication.seen.keys())
            self._same_table(table)
            if publication.follows(now):
                return table, {name: now[name] for name in publication.seen}
        raise Transient("files are added to the partitions faster than they can be brought along")

    def _commit_of(
        self,
        rewrite: Rewrite,
        now: Mapping[str, Seen],
        published: Mapping[str, Sequence[File]],
        left_out: Mapping[str, str],
    ) -> Commit:
        prepared = rewrite.prepared
        partitions = {index: prepared.plan.groups[index].partition for index in prepared.groups}
        return Commit(
            plan_id=prepared.plan.plan_id,
            instant=prepared.instant,
            epoch=prepared.epoch,
            outputs=tuple(
                replace(one, path=_final(one, prepared.instant)) for one in rewrite.outputs if one.partition in now
            ),
            superseded=tuple(
                SupersededVersion(
                    partition=name,
                    path=path.removeprefix(f"{self._ref.location}/"),
                    bytes=size,
                    instant=prepared.instant,
                    modified_at=datetime.fromtimestamp(nanoseconds / 1e9, UTC),
                )
                for name, seen in now.items()
                for path, (size, nanoseconds) in sorted(seen.files.items())
            ),
            moves=tuple(
                Move(
                    partition=name,
                    token=prepared.instant,
                    left=seen.place.location.removeprefix(f"{self._ref.location}/"),
                    place=f"{commits.HOME}/{prepared.instant}/{name}",
                    made_at=seen.place.made_at,
                    files=tuple(
                        placed(self._ref.location, file.path, file.bytes, file.modified_ns) for file in published[name]
                    ),
                )
                for name, seen in now.items()
            ),
            left_out=tuple(
                LeftOut(group=index, reason=left_out[name]) for index, name in partitions.items() if name in left_out
            ),
        )

    def _moved(self, seen: Seen, prepared: Prepared, files: Sequence[File]) -> Partition:
        """The partition at its new place, with the commit's name and true counts; others are not told what they had."""
        place = seen.place
        assert place.partition is not None, "tables without partitions are refused"
        kept = {
            name: value for name, value in place.parameters.items() if name not in commits.UNKNOWN_NOW | {commits.MOVED}
        }
        location = f"file:{home_of(self._ref)}/{prepared.instant}/{place.name}"
        return place.partition.changed(
            place.storage.moved(location),
            kept
            | {PLAN: prepared.plan.plan_id, EPOCH: str(prepared.epoch), VERSION: prepared.instant}
            | {"numFiles": str(len(files)), "totalSize": str(sum(file.bytes for file in files))},
        )

    def _refused(
        self, metastore: Metastore, table: Table, changed: Sequence[Partition], commit: Commit
    ) -> Transient | None:
        """Make the call; why it was refused, or None. Where it answers an error, the metastore is asked what it did."""
        try:
            metastore.alter_partitions(table.database, table.name, changed)
        except CommitUnknown:
            raise
        except Transient as error:
            try:
                made = commits.landed(metastore, table, self._ref, [commit.instant])
            except Transient as unknown:
                raise CommitUnknown(f"{error}; and then: {unknown}") from error
            if not made:
                commits.take_back(self._ref, commit.instant)
                return error
        return None

    def _look_again(
        self, metastore: Metastore, table: Table, seen: Mapping[str, Seen], changed: Sequence[Partition]
    ) -> None:
        """Raise Integrity where somebody else has written the same at the same time: nothing kept the two apart."""
        found = {one.values: one for _, one in metastore.partitions(table.database, table.name, list(seen))}
        difference = undone(changed, found)
        if difference is None and table_of(metastore, self._ref).storage.columns != table.storage.columns:
            difference = "the columns of the table are others"
        if difference is not None:
            raise Integrity(
                f"somebody changed {self._ref.name} in the metastore while a commit did, and one of the two may have "
                f"undone the other: {difference}; compare with what was intended, then lakefold resume"
            )


def _final(output: OutputFile, version: str) -> str:
    return f"{commits.HOME}/{version}/{output.partition}/{os.path.basename(output.path)}"


def _remove_empty(directory: Path, home: Path) -> None:
    """Remove a version's directory, and those above it in the version, as far as they are empty."""
    with suppress(OSError):
        while directory.parent != home:
            directory.rmdir()
            directory = directory.parent

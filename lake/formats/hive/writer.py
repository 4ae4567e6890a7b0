# SPDX-License-Identifier: Apache-2.0
"""Changes one Hive table: new files beside the old ones, then one call of the metastore that moves the partitions."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from posixpath import basename, dirname
from types import TracebackType
from typing import cast

from lake.engines import Engine, Task, choose, notes
from lake.errors import Conflict, Transient
from lake.filesystems import files_of
from lake.formats.hive import call, commits, late, refusals
from lake.formats.hive.catalog import HOME, identity_of, open_metastore, places_of, table_of
from lake.formats.hive.columns import schema_of
from lake.formats.hive.commits import ATTEMPTS, LOOK, VERSION, Record, home_of, new_version, output_name
from lake.formats.hive.evidence import Evidence, Seen, look, still_there
from lake.formats.hive.neighbours import shared
from lake.formats.hive.publication import Publication
from lake.formats.hive.slices import File, placed
from lake.formats.hive.superseded import in_use
from lake.locations import file_at, path_in, uri_of
from lake.metastore import TIMEOUT, Metastore, Partition, Table
from lake.model import TableRef, words_of
from lake.optional import made_anew
from lake.plan import (
    Commit,
    LeftOut,
    Move,
    OutputFile,
    PlacedFile,
    Plan,
    Progress,
    Staged,
    SupersededVersion,
    sum_if_known,
)
from lake.ports import Deletion, Journal, Prepared, Report, Rewrite

_LOOKS = 5
"""How often partitions are looked at before a commit, and the commit is put off, while writers add files."""

_SURE_FOR = timedelta(minutes=2)
"""How long after a look a file may be deleted without another one; a fence holds its partition for longer."""


class HiveWriter:
    """See ``lake.ports.TableWriter``, ``Fenced`` and ``lake.optional.CarriesLateFiles``."""

    commit_takes = LOOK + TIMEOUT

    def __init__(self, table: TableRef, engines: Sequence[Engine]) -> None:
        self._ref, self._engines = table, engines
        self._files = files_of(table.location)
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
        groups, left_out = still_there(plan, seen)
        if not groups:
            changed = f"every group of the plan was changed after planning; the first: {left_out[0].reason}"
            raise Conflict(f"{self._ref.name}: {changed}", left_out)
        partitions = sorted({plan.groups[index].partition for index in groups})
        self._files.check_owner(self._ref.name, self._ref.location)
        for name in partitions:
            self._files.check_owner(f"{self._ref.name}, {words_of(name)}", seen[name].place.location)
        version = new_version(plan.plan_id, epoch, time.time_ns())
        tasks = self._tasks(plan, groups, version, table)
        with self._told_by_slices(plan, tasks):
            choices = choose(tasks, self._engines, plan.options, self._ref.name)
        evidence = Evidence(seen={name: seen[name] for name in partitions}, tasks=tasks, choices=choices)
        self.fence()
        self.journal(Staged(token=version, paths=(f"{HOME}/{version}/",)))
        with self._storage():
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
        cpu: dict[str, float | None] = {}
        for one in by_engine.values():
            engine = choices[one[0].group].engine
            cpu[engine.name] = None

            def told(progress: Progress, before: int = done, name: str = engine.name) -> None:
                cpu[name] = progress.cpu_seconds
                report(
                    replace(
                        progress, bytes_done=before + progress.bytes_done, bytes_total=plan.bytes,
                        cpu_seconds=sum_if_known(cpu.values()),
                    )
                )  # fmt: skip

            with self._told_by_slices(plan, one):
                for file in engine.rewrite(one, plan.options, told, self._cancelled):
                    path = path_in(self._ref.location, file.path)
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
        with self._storage():
            publication.fill()
        refused: Transient | None = None
        now: Mapping[str, Seen] = {}
        with open_metastore(self._ref) as metastore:
            for turn in range(2 * _LOOKS):
                begun, before = time.monotonic(), now
                table, now = self._last_look(metastore, publication)
                if refused is not None and before == now:
                    break
                with self._storage():
                    files = publication.files()
                    for version in {
                        seen.place.parameters[VERSION] for seen in now.values() if VERSION in seen.place.parameters
                    }:
                        commits.file_away(self._ref, version)
                    commit = self._commit_of(rewrite, now, files, publication.left_out)
                    commits.write(self._ref, Record(commit=commit, partitions=tuple(now)))
                changed = {name: self._moved(seen, rewrite.prepared, files[name]) for name, seen in now.items()}
                refused = call.make(
                    metastore, table, self._ref, now, changed, commit, partial(self._in_time, begun),
                    brings_more=turn < _LOOKS,
                )  # fmt: skip
                if refused is None:
                    call.check(metastore, table, self._ref, changed)
                    return commit
        raise Conflict(f"the metastore refused the commit: {refused}") from refused

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
            commits.discard(self._ref, version)
        return len(left)

    # What late writers left.

    def target_of(self, source: PlacedFile, place: str) -> str:
        """See ``CarriesLateFiles``."""
        return late.target_of(source, place)

    def copy(self, pairs: Sequence[tuple[PlacedFile, str]]) -> Collection[PlacedFile]:
        """See ``CarriesLateFiles``."""
        return late.copy(self._ref, pairs)

    def show(self, pairs: Sequence[tuple[PlacedFile, str]]) -> None:
        """See ``CarriesLateFiles``."""
        late.show(self._ref, pairs, self.fence)

    def take_back(self, targets: Collection[str]) -> None:
        """See ``CarriesLateFiles``."""
        late.take_back(self._ref, targets, self.fence)

    def tell(self, last: Move, move: Move | None = None, *, before: tuple[str, str | None] | None = None) -> None:
        """See ``CarriesLateFiles``."""
        with open_metastore(self._ref) as metastore:
            table = table_of(metastore, self._ref)
            self._same_table(table)
            late.tell(metastore, table, self._ref, last, move, before or (last.place, last.token), self.fence)

    def move_aside(self, files: Sequence[PlacedFile]) -> Mapping[PlacedFile, str]:
        """See ``CarriesLateFiles``."""
        return late.move_aside(self._ref, files, self.fence)

    # Deleting.

    def delete(self, versions: Sequence[SupersededVersion]) -> Deletion:
        """See ``TableWriter``."""
        looked = self._look_for_deletion(versions)
        freed, left = 0, {}
        for index, version in enumerate(versions):
            path = file_at(self._ref.location, version.path)
            try:
                there = self._files.status(path)
                # Many deletions may take long, and a process may be stopped at any of them, for longer than its hold.
                if time.monotonic() - looked > _SURE_FOR.total_seconds():
                    looked = self._look_for_deletion(versions[index:])
                    there = self._files.status(path)
            except FileNotFoundError:
                continue
            other = version.differs(there.bytes, datetime.fromtimestamp(there.modified_ns / 1e9, UTC))
            if other is not None:
                left[index] = other
                continue
            self._files.delete(path)
            freed += there.bytes
        # Also of files that are gone already: whoever deleted them may have died before he came here.
        below = f"{home_of(self._ref)}/"
        for directory in {dirname(file_at(self._ref.location, version.path)) for version in versions}:
            # A partition's own directory stays, for whoever drops the partition and adds it again.
            if directory.startswith(below):
                self._remove_empty(directory)
                commits.forget(self._ref, directory.removeprefix(below).partition("/")[0])
        return Deletion(bytes_freed=freed, left=left)

    # Its parts.

    def _look_for_deletion(self, versions: Sequence[SupersededVersion]) -> float:
        """When it was begun to look. Raises Conflict where nobody may delete these any more."""
        begun = time.monotonic()
        self.fence()
        with open_metastore(self._ref) as metastore:
            table = table_of(metastore, self._ref)
            self._same_table(table)
            if (why := shared(metastore, table)) is not None:
                raise Conflict(f"{self._ref.name}: {why}")
            places = list(places_of(metastore, table))
        for reason in in_use(self._ref, versions, places).values():
            raise Conflict(reason)
        return begun

    @contextmanager
    def _storage(self) -> Iterator[None]:
        """What storage fails at in the block, before the metastore is called, can be tried again."""
        try:
            yield
        except OSError as error:
            raise Transient(f"{self._ref.name}: {error.strerror or error}") from error

    def _remove_empty(self, directory: str) -> None:
        """Remove a directory of a version, and those above it in the version, as far as they are empty."""
        with suppress(OSError):
            while dirname(directory) != home_of(self._ref):
                self._files.remove_empty(directory)
                directory = dirname(directory)

    def _same_table(self, table: Table) -> None:
        another = made_anew(replace(self._ref, identity=identity_of(table)), self._ref.identity)
        if another is not None:
            raise Conflict(another)

    def _tasks(self, plan: Plan, groups: Sequence[int], version: str, table: Table) -> list[Task]:
        attempts, schema = f"{home_of(self._ref)}/{version}/{ATTEMPTS}", schema_of(table)
        suffix = str(refusals.kind_of(table)).lower()
        return [
            Task(
                group=index,
                inputs=tuple(file_at(self._ref.location, str(item.path)) for item in plan.groups[index].slices),
                outputs=tuple(
                    f"{attempts}/{output_name(version, index, number, suffix)}"
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
        with suppress(FileExistsError):
            self._files.make_directory(home)
        self._files.take_after(home, self._ref.location)
        for directory in (f"{home}/{version}", f"{home}/{version}/{ATTEMPTS}"):
            self._files.make_directory(directory)
            self._files.take_after(directory, self._ref.location)
        for name, one in seen.items():
            directory = f"{home}/{version}"
            for part in commits.place_in(version, name).split("/")[2:]:
                directory = f"{directory}/{part}"
                with suppress(FileExistsError):
                    self._files.make_directory(directory)
                    self._files.take_after(directory, one.place.location)

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
            with self._storage():
                is_still = publication.follows(now)
            if is_still:
                return table, {name: now[name] for name in publication.seen}
        raise Transient("files are added to the partitions faster than they can be brought along")

    def _in_time(self, begun: float) -> None:
        """Raise where a call that follows a look of then could come too late, or the plan is somebody else's."""
        if time.monotonic() - begun > LOOK.total_seconds():
            raise Transient("looking at the partitions took too long for a safe commit")
        self.fence()

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
                    path=path_in(self._ref.location, path),
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
                    left=path_in(self._ref.location, seen.place.location),
                    place=commits.place_in(prepared.instant, name),
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

    def _moved(self, seen: Seen, prepared: Prepared, files: Sequence[File]) -> Partition | Table:
        """The partition at its new place, with the commit's name and true counts; others are not told what they had."""
        place = seen.place
        location = uri_of(file_at(self._ref.location, commits.place_in(prepared.instant, place.name)))
        return place.moved(location).changed(commits.counted(place.parameters, prepared.instant, files))


def _final(output: OutputFile, version: str) -> str:
    return f"{commits.place_in(version, output.partition)}/{basename(output.path)}"

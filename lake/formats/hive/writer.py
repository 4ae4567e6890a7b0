# SPDX-License-Identifier: Apache-2.0
"""Changes one Hive table: new files beside the old ones, then one call of the metastore that moves the partitions."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from posixpath import basename
from types import TracebackType
from typing import cast

from lake.elapsed import Since
from lake.engines import Engine, Task, choose, notes
from lake.errors import Conflict, Integrity, Transient
from lake.filesystems import files_of
from lake.formats.hive import call, commits, deletion, late, refusals, staging
from lake.formats.hive.catalog import HOME, open_metastore, table_of
from lake.formats.hive.commits import LOOK, VERSION, Record, new_version
from lake.formats.hive.evidence import Evidence, Finished, Seen, check_identity, look, still_there
from lake.formats.hive.publication import Publication
from lake.formats.hive.slices import File, placed
from lake.locations import file_at, path_in, uri_of
from lake.metastore import TIMEOUT, Metastore, Partition, Table
from lake.model import TableRef, words_of
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

_LANDED_WITHIN = LOOK + TIMEOUT
"""How long after the look before it the call that commits may still change anything."""


class HiveWriter:
    """See ``lake.ports.TableWriter``, ``Fenced``, ``Clocked``, ``Retains`` and ``lake.optional.CarriesLateFiles``."""

    commit_takes = _LANDED_WITHIN

    def __init__(self, table: TableRef, engines: Sequence[Engine]) -> None:
        self._ref, self._engines = table, engines
        self._files = files_of(table.location)
        self._cancelled = threading.Event()
        self._finished = Finished()
        self.journal: Journal = lambda staged: None
        self.fence: Callable[[], None] = lambda: None
        self.clock: Callable[[], float] = time.monotonic
        self.retention = timedelta()

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
            table, seen = look(metastore, self._ref, plan.partitions, self._finished)
        check_identity(self._ref, table)
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
        tasks = staging.tasks_of(self._ref, plan, groups, version, table)
        with staging.named_by_slices(self._ref, plan, tasks):
            choices = choose(tasks, self._engines, plan.options, self._ref.name)
        evidence = Evidence(seen={name: seen[name] for name in partitions}, tasks=tasks, choices=choices)
        self.fence()
        self.journal(Staged(token=version, paths=(f"{HOME}/{version}/",)))
        with self._storage():
            staging.make_version(self._ref, version, evidence.seen)
        return Prepared(
            plan=plan,
            epoch=epoch,
            instant=version,
            groups=groups,
            left_out=left_out,
            notes=notes(choices),
            evidence=evidence,
        )

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
                        progress,
                        bytes_done=before + progress.bytes_done,
                        bytes_total=plan.bytes,
                        cpu_seconds=sum_if_known(cpu.values()),
                    )
                )

            with staging.named_by_slices(self._ref, plan, one):
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
                looked, before = Since(), now
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
                    commits.write(self._ref, Record(commit=commit, partitions=tuple(now), table_made_at=table.made_at))
                changed = {name: self._moved(seen, rewrite.prepared, files[name]) for name, seen in now.items()}
                refused = call.make(
                    metastore,
                    table,
                    self._ref,
                    now,
                    changed,
                    commit,
                    partial(self._in_time, looked),
                    brings_more=turn < _LOOKS,
                )
                if refused is None:
                    commits.note_made(self._ref, commit.instant)
                    call.check(metastore, table, self._ref, changed)
                    self._refuse_late(looked)
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

    def target_of(self, source: PlacedFile, place: str, nonce: str) -> str:
        """See ``CarriesLateFiles``."""
        return late.target_of(source, place, nonce)

    def copy(self, pairs: Sequence[tuple[PlacedFile, str]]) -> Collection[PlacedFile]:
        """See ``CarriesLateFiles``."""
        return late.copy(self._ref, pairs)

    def show(self, pairs: Sequence[tuple[PlacedFile, str]]) -> None:
        """See ``CarriesLateFiles``."""
        late.show(self._ref, pairs, self.fence)

    def replace(self, source: PlacedFile, copy: str, old: PlacedFile) -> PlacedFile:
        """See ``CarriesLateFiles``."""
        return late.replace(self._ref, source, copy, old, self.fence)

    def take_back(self, targets: Collection[str], shown: Collection[str]) -> None:
        """See ``CarriesLateFiles``."""
        late.take_back(self._ref, targets, shown, self.fence)

    def tell(self, last: Move, move: Move | None = None, *, before: tuple[str, str | None] | None = None) -> None:
        """See ``CarriesLateFiles``."""
        with open_metastore(self._ref) as metastore:
            table = table_of(metastore, self._ref)
            check_identity(self._ref, table)
            late.tell(metastore, table, self._ref, last, move, before or (last.place, last.token), self.fence)

    def move_aside(self, files: Sequence[PlacedFile]) -> Mapping[PlacedFile, str]:
        """See ``CarriesLateFiles``."""
        return late.move_aside(self._ref, files, self.fence)

    # Deleting.

    def delete(self, versions: Sequence[SupersededVersion]) -> Deletion:
        """See ``TableWriter``."""
        return deletion.delete(self._ref, versions, self.retention, self.fence, self.clock)

    # Its parts.

    @contextmanager
    def _storage(self) -> Iterator[None]:
        """What storage fails at in the block, before the metastore is called, can be tried again."""
        try:
            yield
        except OSError as error:
            raise Transient(f"{self._ref.name}: {error.strerror or error}") from error

    def _last_look(self, metastore: Metastore, publication: Publication) -> tuple[Table, Mapping[str, Seen]]:
        """The table and its partitions right before the commit, but for those that have to be left out.

        What writers have added meanwhile comes along.
        """
        for _ in range(_LOOKS):
            self.fence()
            table, now = look(metastore, self._ref, publication.seen.keys(), self._finished)
            check_identity(self._ref, table)
            with self._storage():
                is_still = publication.follows(now)
            if is_still:
                return table, {name: now[name] for name in publication.seen}
        raise Transient("files are added to the partitions faster than they can be brought along")

    def _in_time(self, looked: Since) -> None:
        """Raise where a call that follows a look of then could come too late, or the plan is somebody else's."""
        if looked.seconds > LOOK.total_seconds():
            raise Transient("looking at the partitions took too long for a safe commit")
        self.fence()

    def _refuse_late(self, looked: Since) -> None:
        """Raise Integrity where the call was made so late after its look that anybody may have been there meanwhile.

        Nothing stops a process between the two for good. What an owner has done to a partition then is undone, and
        nothing in the table tells.
        """
        if looked.seconds > _LANDED_WITHIN.total_seconds():
            raise Integrity(
                f"the call that changed {self._ref.name} in the metastore ended {looked.seconds:.0f} s after the last "
                "look at its partitions, since its process had stood still: where somebody gave one of them another "
                "place or other properties meanwhile, that is undone; do it again, then lakefold resume "
                f"{self._ref.name}"
            )

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

# SPDX-License-Identifier: Apache-2.0
"""The writer of a Hive table: it writes new files beside the old ones, and one metastore call relocates partitions."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from posixpath import basename
from types import TracebackType
from typing import cast

from lake.engine_choice import choose_engines, engine_notes, rewrite_groups
from lake.engines import RewriteEngine, slice_paths_in_conflicts
from lake.errors import Conflict, Transient
from lake.formats.hive import deletion
from lake.formats.hive.catalog import refusals
from lake.formats.hive.catalog.tables import load_table, open_metastore
from lake.formats.hive.commit import commit_lookup, commit_record, metastore_commit, staging, version_names
from lake.formats.hive.commit.commit_record import CommitRecord
from lake.formats.hive.commit.preconditions import (
    MAX_CALL_AGE,
    MAX_CHECK_AGE,
    CompleteFiles,
    PartitionSnapshot,
    PreparedInputs,
    check_identity,
    read_partitions,
    unchanged_groups,
    verify_call_in_time,
)
from lake.formats.hive.commit.version_files import VersionFiles
from lake.formats.hive.commit.version_names import VERSION_KEY, new_version_name
from lake.formats.hive.files.listing import ListedFile, to_located_file
from lake.formats.hive.relocation import late_files
from lake.metastore import MetastoreClient, MetastorePartition, MetastoreTable
from lake.model import TableRef, partition_label
from lake.plan import (
    Commit,
    LocatedFile,
    OutputFile,
    Plan,
    Relocation,
    SkippedGroup,
    StagedWork,
    SupersededVersion,
)
from lake.ports import DeletionResult, PreparedPlan, ProgressCallback, Rewrite, StagingJournal
from lake.stopwatch import Stopwatch
from lake.storage.filesystems import file_io_of
from lake.storage.locations import DATA_DIR, hadoop_uri, relative_path, resolve_path

_MAX_CHECKS = 5
"""Maximum numbers of checks before a commit, and of postponements of the commit, while writers add files."""


class HiveWriter:
    """The writer of one Hive table.

    Implements ``lake.ports.TableWriter``; of ``lake.capabilities``, ``Fenced``, ``UsesDatabaseClock`` and
    ``UsesRetention``; and ``lake.relocation.capabilities.CopiesLateFiles``.
    """

    max_commit_duration = MAX_CALL_AGE

    def __init__(self, table: TableRef, engines: Sequence[RewriteEngine]) -> None:
        self._ref, self._engines = table, engines
        self._files = file_io_of(table.location)
        self._cancelled = threading.Event()
        self._complete_files = CompleteFiles()
        self.journal: StagingJournal = lambda staged: None
        self.fence: Callable[[], None] = lambda: None
        self.clock: Callable[[], float] = time.monotonic
        self.retention = timedelta()

    def __enter__(self) -> "HiveWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None

    def start(self) -> None:
        """See ``TableWriter``. The metastore's client needs no JVM, and engines start their services themselves."""

    def cancel(self) -> None:
        """See ``TableWriter``."""
        self._cancelled.set()

    # Staging.

    def prepare(self, plan: Plan, epoch: int) -> PreparedPlan:
        """See ``TableWriter``."""
        with open_metastore(self._ref) as metastore:
            table, seen = read_partitions(metastore, self._ref, plan.partitions, self._complete_files)
        check_identity(self._ref, table)
        refusals.check_table(self._ref.name, table)
        groups, left_out = unchanged_groups(plan, seen)
        if not groups:
            changed = f"every group of the plan was changed after planning; the first: {left_out[0].reason}"
            raise Conflict(f"{self._ref.name}: {changed}", left_out)
        partitions = sorted({plan.groups[index].partition for index in groups})
        self._files.check_owner(self._ref.name, self._ref.location)
        for name in partitions:
            self._files.check_owner(f"{self._ref.name}, {partition_label(name)}", seen[name].partition.location)
        version = new_version_name(plan.plan_id, epoch, time.time_ns())
        tasks = staging.rewrite_tasks(self._ref, plan, groups, version, table)
        with slice_paths_in_conflicts(self._ref, plan, tasks):
            choices = choose_engines(tasks, self._engines, plan.options, self._ref.name)
        evidence = PreparedInputs(partitions={name: seen[name] for name in partitions}, tasks=tasks, choices=choices)
        self.fence()
        self.journal(StagedWork(token=version, paths=(f"{DATA_DIR}/{version}/",)))
        with self._transient_storage_errors():
            staging.create_version(self._ref, version, evidence.partitions)
        return PreparedPlan(
            plan=plan,
            epoch=epoch,
            instant=version,
            live_groups=groups,
            skipped=left_out,
            notes=engine_notes(choices),
            preconditions=evidence,
        )

    def rewrite(self, prepared: PreparedPlan, report: ProgressCallback) -> Rewrite:
        """See ``TableWriter``."""
        evidence = cast(PreparedInputs, prepared.preconditions)
        outputs = rewrite_groups(self._ref, prepared.plan, evidence.tasks, evidence.choices, report, self._cancelled)
        return Rewrite(prepared=prepared, outputs=outputs)

    # The commit.

    def commit(self, rewrite: Rewrite) -> Commit:
        """See ``TableWriter``."""
        publication = VersionFiles(rewrite, cast(PreparedInputs, rewrite.prepared.preconditions).partitions)
        with self._transient_storage_errors():
            publication.fill()
        refused: Transient | None = None
        now: Mapping[str, PartitionSnapshot] = {}
        with open_metastore(self._ref) as metastore:
            for turn in range(2 * _MAX_CHECKS):
                since_check, before = Stopwatch(), now
                table, now = self._final_check(metastore, publication)
                if refused is not None and before == now:
                    break
                with self._transient_storage_errors():
                    files = publication.verified_files()
                    for version in {
                        seen.partition.parameters[VERSION_KEY]
                        for seen in now.values()
                        if VERSION_KEY in seen.partition.parameters
                    }:
                        commit_record.archive_record(self._ref, version)
                    commit = self._build_commit(rewrite, now, files, publication.left_out)
                    commit_record.write_record(
                        self._ref, CommitRecord(commit=commit, partitions=tuple(now), table_created_at=table.created_at)
                    )
                changed = {
                    name: self._relocated_partition(seen, rewrite.prepared, files[name]) for name, seen in now.items()
                }
                update = metastore_commit.PartitionUpdate(ref=self._ref, table=table, expected=now, updated=changed)
                refused = metastore_commit.try_commit(
                    metastore,
                    update,
                    commit,
                    partial(self._check_in_time, since_check),
                    refuse_additions=turn < _MAX_CHECKS,
                )
                if refused is None:
                    metastore_commit.verify_after_commit(metastore, update, commit.instant)
                    verify_call_in_time(self._ref, since_check)
                    return commit
        raise Conflict(f"the metastore refused the commit: {refused}") from refused

    def withdraw(
        self,
        plan_id: str,
        instants: Collection[str] | None,
        *,
        staged: Collection[StagedWork] = (),
        epoch: int | None = None,
    ) -> int:
        """See ``TableWriter``."""
        wanted = {one.token for one in staged if instants is None or one.token in instants}
        with open_metastore(self._ref) as metastore:
            left = commit_lookup.withdrawable_versions(metastore, self._ref, wanted, time.time())
        for version in left:
            staging.remove_version(self._ref, version)
        return len(left)

    # Late files.

    def target_path(self, source: LocatedFile, location: str, nonce: str) -> str:
        """See ``CopiesLateFiles``."""
        return late_files.target_path(source, location, nonce)

    def create_location(self, location: str, like: str) -> None:
        """See ``CopiesLateFiles``."""
        with self._transient_storage_errors():
            late_files.create_location(self._ref, location, like)

    def copy_hidden(self, pairs: Sequence[tuple[LocatedFile, str]]) -> Collection[LocatedFile]:
        """See ``CopiesLateFiles``."""
        return late_files.copy_hidden(self._ref, pairs)

    def publish_copies(self, pairs: Sequence[tuple[LocatedFile, str]]) -> None:
        """See ``CopiesLateFiles``."""
        late_files.publish_copies(self._ref, pairs, self.fence)

    def replace_copy(self, source: LocatedFile, copy_path: str, previous: LocatedFile) -> LocatedFile:
        """See ``CopiesLateFiles``."""
        return late_files.replace_copy(self._ref, source, copy_path, previous, self.fence)

    def remove_hidden_copies(
        self, paths: Collection[str], recorded: Collection[LocatedFile], present: Collection[LocatedFile]
    ) -> None:
        """See ``CopiesLateFiles``."""
        late_files.remove_hidden_copies(self._ref, paths, recorded, present, self.fence)

    def remove_copies(self, targets: Collection[str], published: Collection[str]) -> None:
        """See ``CopiesLateFiles``."""
        late_files.remove_copies(self._ref, targets, published, self.fence)

    def update_catalog(
        self,
        latest: Relocation,
        relocation: Relocation | None = None,
        *,
        reverted_to: tuple[str, str | None] | None = None,
        name: str | None = None,
    ) -> None:
        """See ``CopiesLateFiles``."""
        with open_metastore(self._ref) as metastore:
            table = load_table(metastore, self._ref)
            check_identity(self._ref, table)
            location, token = reverted_to or (latest.location, latest.token)
            entry = late_files.CatalogEntry(name=name or latest.partition, location=location, token=token)
            late_files.update_catalog(metastore, table, self._ref, latest, relocation, entry, self.fence)

    def archive_files(self, files: Sequence[LocatedFile]) -> Mapping[LocatedFile, str]:
        """See ``CopiesLateFiles``."""
        return late_files.archive_files(self._ref, files, self.fence)

    def record_emptied(self, latest: Relocation, emptied_ms: int) -> None:
        """See ``CopiesLateFiles``."""
        self.fence()
        with self._transient_storage_errors():
            commit_record.mark_emptied(self._ref, latest.token, latest.partition, emptied_ms)

    def discard_relocation(self, relocation: Relocation) -> None:
        """See ``CopiesLateFiles``."""
        self.fence()
        commit_record.remove_archived_record(self._ref, relocation.token)

    # Deleting.

    def delete(self, versions: Sequence[SupersededVersion]) -> DeletionResult:
        """See ``TableWriter``."""
        return deletion.delete(self._ref, versions, self.retention, self.fence, self.clock)

    # Helpers.

    @contextmanager
    def _transient_storage_errors(self) -> Iterator[None]:
        """Raise errors of storage in the block as Transient: the metastore was not called yet, so a retry is safe."""
        try:
            yield
        except OSError as error:
            raise Transient(f"{self._ref.name}: {error.strerror or error}") from error

    def _final_check(
        self, metastore: MetastoreClient, version_files: VersionFiles
    ) -> tuple[MetastoreTable, Mapping[str, PartitionSnapshot]]:
        """Return the table and its partitions right before the commit, without partitions that have to be left out.

        Files that writers have added meanwhile are linked into the version.
        """
        for _ in range(_MAX_CHECKS):
            self.fence()
            table, now = read_partitions(metastore, self._ref, version_files.partitions.keys(), self._complete_files)
            check_identity(self._ref, table)
            refusals.check_table(self._ref.name, table)
            with self._transient_storage_errors():
                is_still = version_files.rebase_on(now)
            if is_still:
                return table, {name: now[name] for name in version_files.partitions}
        raise Transient("files are added to the partitions faster than they can be linked")

    def _check_in_time(self, checked: Stopwatch) -> None:
        """Raise Transient if the call could come too late after its check. Errors of the fence pass through."""
        if checked.elapsed_seconds > MAX_CHECK_AGE.total_seconds():
            raise Transient("checking the partitions took too long for a safe commit")
        self.fence()

    def _build_commit(
        self,
        rewrite: Rewrite,
        current: Mapping[str, PartitionSnapshot],
        new_files: Mapping[str, Sequence[ListedFile]],
        left_out: Mapping[str, str],
    ) -> Commit:
        prepared = rewrite.prepared
        partitions = {index: prepared.plan.groups[index].partition for index in prepared.live_groups}
        return Commit(
            plan_id=prepared.plan.plan_id,
            instant=prepared.instant,
            epoch=prepared.epoch,
            outputs=tuple(
                replace(one, path=_final_path(one, prepared.instant))
                for one in rewrite.outputs
                if one.partition in current
            ),
            superseded=tuple(
                SupersededVersion(
                    partition=name,
                    path=relative_path(self._ref.location, path),
                    bytes=size,
                    instant=prepared.instant,
                    modified_at=datetime.fromtimestamp(nanoseconds / 1e9, UTC),
                )
                for name, seen in current.items()
                for path, (size, nanoseconds) in sorted(seen.files.items())
            ),
            relocations=tuple(
                Relocation(
                    partition=name,
                    token=prepared.instant,
                    previous_location=relative_path(self._ref.location, seen.partition.location),
                    location=version_names.location_in_version(prepared.instant, name),
                    partition_created_at=seen.partition.created_at,
                    files=tuple(
                        to_located_file(self._ref.location, file.path, file.bytes, file.modified_ns)
                        for file in new_files[name]
                    ),
                )
                for name, seen in current.items()
            ),
            skipped=tuple(
                SkippedGroup(group=index, reason=left_out[name])
                for index, name in partitions.items()
                if name in left_out
            ),
        )

    def _relocated_partition(
        self, snapshot: PartitionSnapshot, prepared: PreparedPlan, files: Sequence[ListedFile]
    ) -> MetastorePartition | MetastoreTable:
        """Return the partition at its new location, with the commit's token and the counts of its files.

        Statistics that may no longer be right are dropped.
        """
        partition = snapshot.partition
        location = hadoop_uri(
            resolve_path(self._ref.location, version_names.location_in_version(prepared.instant, partition.name))
        )
        return partition.with_location(location).updated_object(
            version_names.relocated_parameters(partition.parameters, prepared.instant, files)
        )


def _final_path(output: OutputFile, version: str) -> str:
    return f"{version_names.location_in_version(version, output.partition)}/{basename(output.path)}"

# SPDX-License-Identifier: Apache-2.0
"""The writer of an Iceberg table: engines write new files, and one replace snapshot exchanges them for the old ones."""

import os
import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import cast

import pyarrow.parquet as pq

from lake.capabilities import recreated_reason
from lake.engine_choice import choose_engines, engine_notes, rewrite_groups
from lake.engines import RewriteEngine, build_task, slice_paths_in_conflicts
from lake.errors import Conflict, Rejected, Transient
from lake.formats.iceberg.catalog.tables import LoadedTable, load_table, table_identity
from lake.formats.iceberg.inputs import RewriteInputs, read_inputs
from lake.formats.iceberg.jvm import expiry
from lake.formats.iceberg.jvm.errors import translated_errors
from lake.formats.iceberg.jvm.exact_commit import BaseMetadata, commit_snapshot
from lake.formats.iceberg.jvm.java_table import JavaTable
from lake.formats.iceberg.read import footers, refusals
from lake.formats.iceberg.read.commits import EPOCH, PLAN, TOKEN, WITHDRAWN, remaining_staged
from lake.formats.iceberg.read.live_files import snapshot_of
from lake.formats.iceberg.read.ref_files import deletion_blockers
from lake.model import TableRef
from lake.plan import Commit, Plan, StagedWork, SupersededVersion
from lake.ports import DeletionResult, PreparedPlan, ProgressCallback, Rewrite, SparkProvider, StagingJournal
from lake.storage.locations import canonical_location, resolve_path

_WITHDRAWALS = 10
"""Maximum number of attempts at a withdrawal: each one fails if another commit is faster."""


class IcebergWriter:
    """The writer of one Iceberg table.

    Implements ``lake.ports.TableWriter`` and, of ``lake.capabilities``, ``Fenced`` and ``UsesRetention``.
    """

    #: A commit replaces exactly the metadata that was checked, so a withdrawal always prevents a late commit.
    max_commit_duration = timedelta()

    def __init__(
        self,
        table: TableRef,
        settings: Callable[[], Mapping[str, str]],
        spark: SparkProvider,
        engines: Sequence[RewriteEngine],
    ) -> None:
        self._ref, self._settings, self._spark, self._engines = table, settings, spark, engines
        self._cancelled = threading.Event()
        self.journal: StagingJournal = lambda staged: None
        self.fence: Callable[[], None] = lambda: None
        self.retention = timedelta()

    def __enter__(self) -> "IcebergWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None

    def start(self) -> None:
        """See ``TableWriter``."""
        self._spark()

    def cancel(self) -> None:
        """See ``TableWriter``."""
        self._cancelled.set()

    # Staging.

    def prepare(self, plan: Plan, epoch: int) -> PreparedPlan:
        """See ``TableWriter``."""
        table = self._load()
        self._require_identity(table_identity(table))
        refusals.check_table(table)
        inputs, skipped = read_inputs(table, plan)
        if not inputs.files:
            first = skipped[0].reason if skipped else "it has none"
            raise Conflict(f"{self._ref.name}: no group of the plan can be rewritten now; the first: {first}", skipped)
        token, groups = str(uuid.uuid4()), tuple(sorted(inputs.files))
        java_table = self._open()
        locations: dict[str, str] = {}
        tasks = []
        with translated_errors(self._ref.name, "naming new files"):
            for index in groups:
                # The form of Iceberg's own names: task, attempt, operation, and the file's number.
                names = [
                    f"{index:05d}-{epoch}-{token}-{number:05d}.parquet"
                    for number in range(1, plan.groups[index].output_files + 1)
                ]
                placed = [java_table.new_location(inputs.files[index][0], name) for name in names]
                paths = [canonical_location(location) for location in placed]
                locations.update(zip(paths, placed, strict=True))
                task = build_task(self._ref, index, plan.groups[index], paths)
                tasks.append(replace(task, file_schema=inputs.file_schema))
        with slice_paths_in_conflicts(self._ref, plan, tasks):
            choices = choose_engines(tasks, self._engines, plan.options, self._ref.name)
        self.fence()
        self.journal(StagedWork(token=token, paths=tuple(locations)))
        return PreparedPlan(
            plan=plan,
            epoch=epoch,
            instant=token,
            live_groups=groups,
            skipped=skipped,
            notes=engine_notes(choices),
            preconditions=replace(inputs, tasks=tasks, choices=choices, locations=locations),
        )

    def rewrite(self, prepared: PreparedPlan, report: ProgressCallback) -> Rewrite:
        """See ``TableWriter``."""
        inputs = cast(RewriteInputs, prepared.preconditions)
        try:
            for directory in sorted({os.path.dirname(path) for path in inputs.locations}):
                os.makedirs(directory, exist_ok=True)
        except OSError as error:
            raise Transient(f"{self._ref.name}: {error.filename}: {error.strerror}") from error
        outputs = rewrite_groups(self._ref, prepared.plan, inputs.tasks, inputs.choices, report, self._cancelled)
        # An Iceberg table leaves its files behind when its location changes: all paths are absolute.
        absolute = tuple(replace(one, path=resolve_path(self._ref.location, one.path)) for one in outputs)
        return Rewrite(prepared=prepared, outputs=absolute)

    # The commit.

    def commit(self, rewrite: Rewrite) -> Commit:
        """See ``TableWriter``."""
        prepared, inputs = rewrite.prepared, cast(RewriteInputs, rewrite.prepared.preconditions)
        paths = [output.path for output in rewrite.outputs]
        self._require_outputs(paths)
        if different := footers.different_files(inputs.columns, paths):
            raise Rejected(f"{self._ref.name}: a new file can't be committed: {next(iter(different.values()))}")
        java_table = self._open()
        with translated_errors(self._ref.name, "describing the new files"):
            update = java_table.table.newRewrite().validateFromSnapshot(inputs.snapshot_id)
            for index in prepared.live_groups:
                for file in inputs.files[index]:
                    update.deleteFile(java_table.existing_file(file))
            group_of = {path: task.group for task in inputs.tasks for path in task.outputs}
            for output in rewrite.outputs:
                like = inputs.files[group_of[output.path]][0]
                footer = pq.read_metadata(output.path)
                location = inputs.locations[output.path]
                update.addFile(java_table.new_file(location, output.bytes, footer, like, inputs.sort_order))
            if inputs.format_version > 1:
                # Equality deletes that are committed from now on apply to the new files as they do to the old ones.
                update.dataSequenceNumber(inputs.sequence_number)
            for key, value in ((PLAN, prepared.plan.plan_id), (EPOCH, prepared.epoch), (TOKEN, prepared.instant)):
                update.set(key, str(value))

        def check(base: BaseMetadata) -> None:
            self._require_identity(base.identity)
            if base.identity != inputs.identity:
                raise Conflict(f"{self._ref.name}: the table was created again since the plan was prepared")
            self._require_history(base, inputs)
            if any(prepared.instant in value.split(",") for value in base.summaries(WITHDRAWN)):
                raise Conflict(f"{self._ref.name}: attempt {prepared.instant} was withdrawn")
            self._require_outputs(paths)

        snapshot_id, _ = commit_snapshot(java_table, update, check, self.fence)
        instant = str(snapshot_id)
        return Commit(
            plan_id=prepared.plan.plan_id,
            epoch=prepared.epoch,
            instant=instant,
            outputs=rewrite.outputs,
            superseded=tuple(
                SupersededVersion(partition=file.partition, path=file.path, bytes=file.bytes, instant=instant)
                for index in prepared.live_groups
                for file in inputs.files[index]
            ),
        )

    def _require_outputs(self, paths: Sequence[str]) -> None:
        for path in paths:
            if not os.path.exists(path):
                raise Conflict(f"{self._ref.name}: the new file {path} is gone: the attempt was withdrawn")

    def _require_history(self, base: BaseMetadata, inputs: RewriteInputs) -> None:
        """Raise Conflict if a snapshot since ``prepare`` was removed: it may have been the attempt's withdrawal."""
        text = f"{self._ref.name}: the table has forgotten a snapshot since the plan was prepared"
        if inputs.format_version > 1:
            numbers = {int(one.get("sequence-number", 0)) for one in base.snapshots.values()}
            if not numbers.issuperset(range(inputs.sequence_number + 1, base.last_sequence_number + 1)):
                raise Conflict(text)
            return
        current = base.current_snapshot_id
        while current is not None and current != inputs.snapshot_id:
            one = base.snapshots.get(current)
            current = None if one is None else one.get("parent-snapshot-id")
        if current is None:
            raise Conflict(text)

    def withdraw(
        self,
        plan_id: str,
        instants: Collection[str] | None,
        *,
        staged: Collection[StagedWork] = (),
        epoch: int | None = None,
    ) -> int:
        """See ``TableWriter``. The withdrawal is a snapshot without changes that names the tokens."""
        wanted = [one for one in staged if instants is None or one.token in instants]
        for _ in range(_WITHDRAWALS):
            table = self._load()
            tokens = remaining_staged(table, wanted)
            if not tokens:
                return 0
            snapshot = snapshot_of(table)
            if self._forbid(table, tokens, None if snapshot is None else snapshot.snapshot_id):
                for one in wanted:
                    for path in one.paths if one.token in tokens else ():
                        self._remove(resolve_path(self._ref.location, path))
                return len(tokens)
        raise Transient(f"{self._ref.name}: other commits were faster {_WITHDRAWALS} times than the withdrawal")

    def _forbid(self, table: LoadedTable, tokens: Sequence[str], snapshot_id: int | None) -> bool:
        """Commit the withdrawal of ``tokens``. Returns False if another commit was made since ``table`` was read."""

        class _Moved(Exception):
            pass

        def check(base: BaseMetadata) -> None:
            if (base.identity, base.current_snapshot_id) != (table_identity(table), snapshot_id):
                raise _Moved

        java_table = self._open()
        with translated_errors(self._ref.name, "withdrawing an attempt"):
            update = java_table.table.newFastAppend().set(WITHDRAWN, ",".join(tokens))
        try:
            commit_snapshot(java_table, update, check, lambda: None)
        except _Moved:
            return False
        return True

    def _remove(self, path: str) -> None:
        try:
            os.remove(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise Transient(f"{self._ref.name}: {path}: {error.strerror}") from error

    # Deleting.

    def delete(self, versions: Sequence[SupersededVersion]) -> DeletionResult:
        """See ``TableWriter``."""
        table = self._load()
        self._require_identity(table_identity(table))
        for reason in deletion_blockers(table, versions).values():
            if reason is not None:
                raise Conflict(f"{self._ref.name}: {reason}")
        java_table = self._open()
        self.fence()
        return expiry.expire(table, java_table, versions, self.retention)

    # Helpers.

    def _load(self) -> LoadedTable:
        return load_table(self._settings(), self._ref)

    def _open(self) -> JavaTable:
        return JavaTable(self._spark(), self._ref)

    def _require_identity(self, identity: str) -> None:
        """Raise Conflict if the table has the UUID ``identity`` because it was created again after the plan."""
        reason = recreated_reason(replace(self._ref, identity=identity), self._ref.identity)
        if reason is not None:
            raise Conflict(reason)

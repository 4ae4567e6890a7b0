# SPDX-License-Identifier: Apache-2.0
"""The writer of an Iceberg table: new files are written, and one replace snapshot exchanges them for the old ones.

Engines write the new files, without the rows that position deletes and deletion vectors name, and with the lineage of
rows. Only Iceberg's own reader and writer rewrite files with equality deletes, and files whose rows will get a lineage.
"""

import os
import shutil
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, cast

import pyarrow as pa
import pyarrow.parquet as pq

from lake.capabilities import OrphanFile, OrphanSearch
from lake.engine_choice import choose_engines, engine_notes, rewrite_groups, split_by_engine
from lake.engines import RewriteEngine, build_task, slice_paths_in_conflicts
from lake.errors import Conflict, Integrity, Rejected, Transient
from lake.formats.iceberg.catalog.tables import (
    LoadedTable,
    load_table,
    other_locations,
    other_table_reason,
    table_identity,
)
from lake.formats.iceberg.inputs import RewriteInputs, position_deletes, read_inputs, row_columns
from lake.formats.iceberg.jvm import expiry, manifest_rewrite, orphan_removal
from lake.formats.iceberg.jvm.commit_checks import (
    require_equality_deletes,
    require_exclusion,
    require_history,
    require_lineage,
    require_row_ids,
)
from lake.formats.iceberg.jvm.errors import translated_errors
from lake.formats.iceberg.jvm.exact_commit import BaseMetadata, NewSnapshot, commit_snapshot
from lake.formats.iceberg.jvm.iceberg_engine import ENGINE, StagedRewrite, unsortable_reason
from lake.formats.iceberg.jvm.java_table import JavaTable
from lake.formats.iceberg.read import footers, orphans, refusals
from lake.formats.iceberg.read.commits import EPOCH, PLAN, TOKEN, WITHDRAWN, remaining_staged
from lake.formats.iceberg.read.deletion_blockers import deletion_blockers
from lake.formats.iceberg.read.lineage import FIELD_IDS, digest, files_without_lineage, stored_lineage
from lake.formats.iceberg.read.live_files import descends_from, snapshot_of
from lake.formats.iceberg.read.merged_rows import MergedReader
from lake.formats.iceberg.read.needless_deletes import have_same_deletes, needless_deletes, read_files_with_deletes
from lake.formats.iceberg.read.storage_clock import require_storage_clock
from lake.model import TableRef
from lake.plan import (
    Commit,
    OutputFile,
    Plan,
    RewriteProgress,
    SkippedGroup,
    StagedWork,
    SupersededVersion,
    sum_if_known,
)
from lake.ports import DeletionResult, PreparedPlan, ProgressCallback, Rewrite, SparkProvider, StagingJournal
from lake.storage.locations import canonical_location, resolve_path

_THREADS = 4
"""The number of threads in which Iceberg reads the footers of new files."""
_WITHDRAWALS = 10
"""Maximum number of attempts at a withdrawal: each one fails if another commit is faster."""


class IcebergWriter:
    """The writer of one Iceberg table.

    Implements ``lake.ports.TableWriter`` and, of ``lake.capabilities``, ``Fenced``, ``ReadsMerged``,
    ``ReadsInOrder``, ``UsesRetention``, ``RemovesOrphans`` and ``RunsTableServices``.
    """

    reads_in_order: Literal[True] = True

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
        #: Iceberg's own rewrite for the attempt that was prepared last; None if no group needs it
        self._staged: StagedRewrite | None = None

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
        require_storage_clock(table, "preparing the plan")
        inputs, skipped = read_inputs(table, plan)
        if not inputs.files:
            first = skipped[0].reason if skipped else "it has none"
            raise Conflict(f"{self._ref.name}: no group of the plan can be rewritten now; the first: {first}", skipped)
        token = str(uuid.uuid4())
        java_table = self._open()
        inputs = self._with_engines(java_table, inputs, plan, epoch, token)
        inputs, unsortable = self._without_unsortable(inputs, unsortable_reason(table, plan.options))
        skipped = (*skipped, *unsortable)
        paths = tuple(inputs.locations)
        self._staged = None
        if inputs.by_iceberg:
            self._staged = StagedRewrite(java_table, table, token, sort_order=inputs.sort_order)
            self._staged.plan(inputs.snapshot_id, {index: inputs.files[index] for index in inputs.by_iceberg})
            paths = (*paths, canonical_location(self._staged.directory))
        self.fence()
        self.journal(StagedWork(token=token, paths=paths))
        return PreparedPlan(
            plan=plan,
            epoch=epoch,
            instant=token,
            live_groups=tuple(sorted(inputs.files)),
            skipped=skipped,
            notes=(*engine_notes(inputs.choices), *_iceberg_notes(inputs)),
            preconditions=inputs,
            volatile_columns=frozenset(FIELD_IDS) if inputs.has_lineage else frozenset(),
        )

    def _with_engines(
        self, java_table: JavaTable, inputs: RewriteInputs, plan: Plan, epoch: int, token: str
    ) -> RewriteInputs:
        """Return ``inputs`` with the tasks and engines of the groups that engines rewrite.

        Iceberg rewrites groups with deleted rows that no engine can leave out, or with a lineage that none can keep.
        """
        locations: dict[str, str] = {}
        tasks = []
        with translated_errors(self._ref.name, "naming new files"):
            for index in sorted(inputs.files.keys() - inputs.by_iceberg.keys()):
                # The form of Iceberg's own names: task, attempt, operation, and the file's number.
                names = [
                    f"{index:05d}-{epoch}-{token}-{number:05d}.parquet"
                    for number in range(1, plan.groups[index].output_files + 1)
                ]
                placed = [java_table.new_location(inputs.files[index][0], name) for name in names]
                paths = [canonical_location(location) for location in placed]
                locations.update(zip(paths, placed, strict=True))
                files = inputs.files[index]
                omissions = position_deletes(files)
                added = row_columns(files, inputs.first_row_ids) if inputs.has_lineage else ()
                task = build_task(self._ref, index, plan.groups[index], paths, omissions=omissions)
                tasks.append(replace(task, file_schema=inputs.file_schema, row_columns=added))
        if not tasks:
            return inputs
        with slice_paths_in_conflicts(self._ref, plan, tasks):
            # Iceberg rewrites these groups if no engine can.
            by_either = [task for task in tasks if task.omissions is not None or task.row_columns]
            choices, refused = split_by_engine(by_either, self._engines, plan.options)
            plain = [task for task in tasks if task.omissions is None and not task.row_columns]
            if plain:
                choices |= choose_engines(plain, self._engines, plan.options, self._ref.name)
        tasks = [task for task in tasks if task.group in choices]
        what = f"files of format version {inputs.format_version}"
        if not inputs.has_lineage:
            what = "position deletes may apply to its files"
        by_iceberg = {index: f"{what} ({why})" for index, why in refused.items()}
        return replace(
            inputs,
            tasks=tasks,
            choices=choices,
            locations={path: locations[path] for task in tasks for path in task.outputs},
            by_iceberg={**inputs.by_iceberg, **by_iceberg},
        )

    def _without_unsortable(
        self, inputs: RewriteInputs, reason: str | None
    ) -> tuple[RewriteInputs, tuple[SkippedGroup, ...]]:
        """Return ``inputs`` and no skipped groups, or if Iceberg can't sort, without the groups that it would rewrite.

        ``reason`` is why it can't. Raises Rejected if all groups are of this kind. Raises Conflict if rows have no ids
        yet: engines can rewrite the same files after the next commit, for which a plan must not wait.
        """
        if reason is None or not inputs.by_iceberg:
            return inputs, ()
        if not inputs.tasks:
            if inputs.has_lineage and not inputs.has_row_ids:
                raise Conflict(f"{self._ref.name}: {next(iter(inputs.by_iceberg.values()))}; until then, {reason}")
            raise Rejected(f"{self._ref.name}: {reason}")
        skipped = tuple(SkippedGroup(group=index, reason=reason) for index in sorted(inputs.by_iceberg))
        kept = {task.group: inputs.files[task.group] for task in inputs.tasks}
        return replace(inputs, files=kept, by_iceberg={}), skipped

    def rewrite(self, prepared: PreparedPlan, report: ProgressCallback) -> Rewrite:
        """See ``TableWriter``."""
        inputs = cast(RewriteInputs, prepared.preconditions)
        try:
            for directory in sorted({os.path.dirname(path) for path in inputs.locations}):
                os.makedirs(directory, exist_ok=True)
        except OSError as error:
            raise Transient(f"{self._ref.name}: {error.filename}: {error.strerror}") from error
        last = RewriteProgress(bytes_done=0, bytes_total=prepared.plan.bytes, cpu_seconds=0.0)

        def report_engines(progress: RewriteProgress) -> None:
            nonlocal last
            last = progress
            report(progress)

        outputs = rewrite_groups(
            self._ref, prepared.plan, inputs.tasks, inputs.choices, report_engines, self._cancelled
        )
        # An Iceberg table leaves its files behind when its location changes: all paths are absolute.
        written = tuple(replace(one, path=resolve_path(self._ref.location, one.path)) for one in outputs)
        # The order in which `read_inputs` yields the rows: groups end in any order.
        order = {path: number for number, path in enumerate(path for task in inputs.tasks for path in task.outputs)}
        written = tuple(sorted(written, key=lambda output: order[output.path]))
        if self._staged is not None:

            def report_staged(progress: RewriteProgress) -> None:
                report(
                    replace(
                        progress,
                        bytes_done=last.bytes_done + progress.bytes_done,
                        bytes_total=prepared.plan.bytes,
                        rows_done=last.rows_done + progress.rows_done,
                        cpu_seconds=sum_if_known((last.cpu_seconds, progress.cpu_seconds)),
                    )
                )

            written += self._staged.write(prepared.plan, report_staged, self._cancelled)
        return Rewrite(prepared=prepared, outputs=written)

    def read_inputs(self, prepared: PreparedPlan, partition: str, *, evolved: bool = False) -> Iterator[pa.RecordBatch]:
        """See ``ReadsMerged``. The inputs have the table's present columns, so ``evolved`` makes no difference."""
        inputs = cast(RewriteInputs, prepared.preconditions)
        for index in prepared.live_groups:
            if prepared.plan.groups[index].partition == partition:
                yield from MergedReader(inputs.files[index]).read()

    # The commit.

    def commit(self, rewrite: Rewrite) -> Commit:
        """See ``TableWriter``."""
        prepared, inputs = rewrite.prepared, cast(RewriteInputs, rewrite.prepared.preconditions)
        paths = [output.path for output in rewrite.outputs]
        self._require_outputs(paths)
        if different := next(iter(footers.different_files(inputs.columns, paths).values()), None):
            outcome = Conflict if different.is_gone else Rejected
            raise outcome(f"{self._ref.name}: a new file can't be committed: {different.reason}")
        if inputs.has_lineage:
            if without := files_without_lineage(paths):
                raise Rejected(
                    f"{self._ref.name}: a new file can't be committed: {without[0]} lacks the lineage of its rows"
                )
            self._require_same_lineage(inputs, rewrite)
        replaced = [file for index in prepared.live_groups for file in inputs.files[index]]
        java_table = self._open()
        with translated_errors(self._ref.name, "describing the new files"):
            update = java_table.table.newRewrite()
            for file in replaced:
                update.deleteFile(java_table.existing_file(file))
            group_of = {path: task.group for task in inputs.tasks for path in task.outputs}

            def describe(output: OutputFile) -> Any:
                if output.payload is not None:
                    return output.payload
                like, footer = inputs.files[group_of[output.path]][0], pq.read_metadata(output.path)
                location = inputs.locations[output.path]
                return java_table.new_file(location, output.bytes, footer, like, inputs.sort_order)

            with ThreadPoolExecutor(max_workers=_THREADS) as pool:
                for described in pool.map(describe, rewrite.outputs):
                    update.addFile(described)
            # Equality deletes that were committed since `prepare` apply to the new files only if these get the number
            # of `prepare`. There is one exception: rows without ids get their first ids by this commit. There can be
            # no such deletes then, since any other commit is a conflict. The new files get the number of this commit,
            # because Iceberg 1.10.2 reads it as that of the last change of their rows.
            if inputs.format_version > 1 and (inputs.has_row_ids or not inputs.has_lineage):
                update.dataSequenceNumber(inputs.sequence_number)
            for key, value in ((PLAN, prepared.plan.plan_id), (EPOCH, prepared.epoch), (TOKEN, prepared.instant)):
                update.set(key, str(value))
        table = self._load()
        require_storage_clock(table, "committing")
        snapshot = snapshot_of(table)
        last_seen = None if snapshot is None else snapshot.snapshot_id
        files = read_files_with_deletes(table, snapshot)
        needless = needless_deletes(files, {file.path for file in replaced}, inputs.sequence_number)
        is_later_state = descends_from(table, snapshot, inputs.snapshot_id)
        same = is_later_state and have_same_deletes(files, replaced, inputs.sequence_number)
        with translated_errors(self._ref.name, "naming needless delete files"):
            # Iceberg (1.10.2, its pull request 17764) finds a conflict if two vectors were committed for any one file
            # since the snapshot from which it validates. So it validates what lakefold has not compared itself.
            update.validateFromSnapshot(last_seen if same else inputs.snapshot_id)
            for delete in needless:
                if delete.problem is None:
                    update.deleteFile(java_table.existing_delete_file(delete))

        def check(base: BaseMetadata, new: NewSnapshot) -> None:
            self._require_identity(base.identity)
            if base.identity != inputs.identity:
                raise Conflict(f"{self._ref.name}: the table was created again since the plan was prepared")
            require_exclusion(self._ref, self._settings(), base)
            has_no_ids_since = inputs.snapshot_id if inputs.has_lineage and not inputs.has_row_ids else None
            require_lineage(self._ref.name, base, inputs.format_version, has_no_ids_since, "the plan was prepared")
            require_history(
                self._ref.name,
                base,
                format_version=inputs.format_version,
                snapshot_id=inputs.snapshot_id,
                sequence_number=inputs.sequence_number,
            )
            # lakefold knows which delete files are needless in the state that it read, and Iceberg keeps in memory
            # which ones it has dropped. An earlier state may need them.
            nonlocal last_seen
            if not base.descends_from(last_seen):
                raise Conflict(f"{self._ref.name}: the table was rolled back while the plan was committed")
            last_seen = base.current_snapshot_id
            require_equality_deletes(self._ref.name, needless, new)
            if any(prepared.instant in value.split(",") for value in base.summaries(WITHDRAWN)):
                raise Conflict(f"{self._ref.name}: attempt {prepared.instant} was withdrawn")
            self._require_outputs(paths)
            if inputs.has_lineage:
                require_row_ids(table, base, new, "the plan")

        snapshot_id, _ = commit_snapshot(java_table, update, check, self.fence)
        instant = str(snapshot_id)
        return Commit(
            plan_id=prepared.plan.plan_id,
            epoch=prepared.epoch,
            instant=instant,
            outputs=rewrite.outputs,
            superseded=tuple(
                SupersededVersion(partition=file.partition, path=file.path, bytes=file.bytes, instant=instant)
                for file in replaced
            ),
        )

    def _require_outputs(self, paths: Sequence[str]) -> None:
        for path in paths:
            if not os.path.exists(path):
                raise Conflict(f"{self._ref.name}: the new file {path} is gone: the attempt was withdrawn")

    def _require_same_lineage(self, inputs: RewriteInputs, rewrite: Rewrite) -> None:
        """Raise Integrity if the new files don't store the lineage of the remaining rows.

        Engines keep the order of the rows unless they sort them, so then the order is compared as well.
        """
        of_engines = [output.path for output in rewrite.outputs if output.path in inputs.locations]
        of_iceberg = [output.path for output in rewrite.outputs if output.path not in inputs.locations]
        in_order = not rewrite.prepared.plan.options.sort_columns
        for groups, paths, ordered in (
            ([task.group for task in inputs.tasks], of_engines, in_order),
            (list(inputs.by_iceberg), of_iceberg, False),
        ):
            readers = (MergedReader(inputs.files[index]) for index in groups)
            lineage = (part for reader in readers for part in reader.read_lineage(inputs.first_row_ids))
            wanted, found = digest(lineage, in_order=ordered), digest(stored_lineage(paths), in_order=ordered)
            if (wanted.rows, wanted.ids) != (found.rows, found.ids):
                what = "row ids (_row_id) in the new files are not those of the inputs"
            elif wanted.pairs != found.pairs:
                what = "new files have other sequence numbers (_last_updated_sequence_number), or another order of rows"
            else:
                continue
            raise Integrity(f"{self._ref.name}: the {what}")

    def withdraw(
        self,
        plan_id: str,
        instants: Collection[str] | None,
        *,
        staged: Collection[StagedWork] = (),
        epoch: int | None = None,
    ) -> int:
        """See ``TableWriter``. The withdrawal is a snapshot without changes that names the tokens.

        If the table was created again, nothing is withdrawn: the earlier table may exist under another name and have
        committed the files, and the new table can't show this.
        """
        wanted = [one for one in staged if instants is None or one.token in instants]
        for _ in range(_WITHDRAWALS):
            table = self._load()
            if other_table_reason(self._ref, table_identity(table)) is not None:
                return 0
            tokens = remaining_staged(table, wanted)
            if not tokens:
                return 0
            require_storage_clock(table, "withdrawing an attempt")
            snapshot = snapshot_of(table)
            if self._commit_withdrawal(table, tokens, None if snapshot is None else snapshot.snapshot_id):
                for one in wanted:
                    for path in one.paths if one.token in tokens else ():
                        self._remove(resolve_path(self._ref.location, path))
                return len(tokens)
        raise Transient(f"{self._ref.name}: other commits were faster {_WITHDRAWALS} times than the withdrawal")

    def _commit_withdrawal(self, table: LoadedTable, tokens: Sequence[str], snapshot_id: int | None) -> bool:
        """Commit the withdrawal of ``tokens``. Returns False if another commit was made since ``table`` was read."""

        class _OtherCommit(Exception):
            pass

        def check(base: BaseMetadata, new: NewSnapshot) -> None:
            require_exclusion(self._ref, self._settings(), base)
            if (base.identity, base.current_snapshot_id) != (table_identity(table), snapshot_id):
                raise _OtherCommit
            # An attempt may have committed and been rolled back: the table still has the snapshot and its files.
            if not set(tokens).isdisjoint(base.summaries(TOKEN)):
                raise _OtherCommit

        java_table = self._open()
        with translated_errors(self._ref.name, "withdrawing an attempt"):
            update = java_table.table.newFastAppend().set(WITHDRAWN, ",".join(tokens))
        try:
            commit_snapshot(java_table, update, check, lambda: None)
        except _OtherCommit:
            return False
        return True

    def _remove(self, path: str) -> None:
        """Remove a file, or a directory with everything in it."""
        try:
            if os.path.isdir(path):
                shutil.rmtree(path)
            else:
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
        now_ms = require_storage_clock(table, "expiring snapshots")
        self.start()  # a session may take long to start
        self.fence()
        return expiry.expire(self._ref, self._settings(), self._load, self._open, versions, self.retention, now_ms)

    def remove_orphans(self, found: Collection[OrphanFile], search: OrphanSearch) -> Sequence[OrphanFile]:
        """See ``RemovesOrphans``."""
        self.start()  # a session may take long to start
        again = orphans.find_orphans(self._load, lambda: other_locations(self._settings(), self._ref), search)
        wanted = sorted(set(found).intersection(again), key=lambda one: one.path)
        return orphan_removal.remove(self._open(), wanted) if wanted else []

    # Table services.

    def maintain(self, wanted: Collection[str], retained: Sequence[SupersededVersion]) -> Sequence[str]:
        """See ``RunsTableServices``. The only service (``manifests``) deletes no file, so ``retained`` are safe."""
        if manifest_rewrite.MANIFESTS not in wanted:
            return []
        table = self._load()
        self._require_identity(table_identity(table))
        refusals.check_table(table)
        if (reason := refusals.table_reason(table)) is not None:
            raise Rejected(f"{self._ref.name}: its manifests are not rewritten: {reason}")
        return manifest_rewrite.rewrite_manifests(table, self._settings(), self._open, self.fence)

    # Helpers.

    def _load(self) -> LoadedTable:
        return load_table(self._settings(), self._ref)

    def _open(self) -> JavaTable:
        return JavaTable(self._spark(), self._ref)

    def _require_identity(self, identity: str) -> None:
        """Raise Conflict if the table has the UUID ``identity`` because it was created again after the plan."""
        if (reason := other_table_reason(self._ref, identity)) is not None:
            raise Conflict(reason)


def _iceberg_notes(inputs: RewriteInputs) -> list[str]:
    """Return a line for each reason why Iceberg rewrites groups, with the number of groups; see ``engine_notes``."""
    return [
        f"engine {ENGINE} ({count} {'group' if count == 1 else 'groups'}): {reason}"
        for reason, count in Counter(inputs.by_iceberg.values()).most_common()
    ]

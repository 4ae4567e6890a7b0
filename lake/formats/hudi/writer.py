# SPDX-License-Identifier: Apache-2.0
"""The writing half of the Hudi adapter: one table opened for changes, step by step."""

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lake.capabilities import Resurrected
from lake.engines import RewriteEngine
from lake.errors import Rejected, TableRefused
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.files.names import relative_path
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.jvm.errors import translated_errors
from lake.formats.hudi.maintenance import deletion, services
from lake.formats.hudi.maintenance.repair import remove_resurrected
from lake.formats.hudi.pending.attempt_files import RunningAttempt
from lake.formats.hudi.plans import adoption, cleaning, clustering, compaction, publication, withdrawal
from lake.formats.hudi.read.hudi_rs import HudiRsReader, MergeUnsupported
from lake.formats.hudi.read.refusals import unsafe_state_refusals
from lake.formats.hudi.rewrite import execute
from lake.formats.hudi.rewrite.engine_files import find_writers
from lake.formats.hudi.rewrite.merged_rows import read_merged_rows, slices_in_partition
from lake.formats.hudi.timeline.metadata_table import metadata_table_exists
from lake.formats.hudi.timeline.timeline import Timeline
from lake.model import TableRef
from lake.plan import Commit, Plan, PlanKind, StagedWork, SupersededVersion
from lake.ports import DeletionResult, PreparedPlan, ProgressCallback, Rewrite, SparkProvider, StagingJournal
from lake.process_identity import Process
from lake.spark_jobs import cancel_jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

#: columns whose values a rewrite changes: each row contains the name of its file
_VOLATILE = frozenset({"_hoodie_file_name"})


class HudiWriter:
    """Changes one Hudi table through Hudi's own write client.

    The files of a clustering may be written by one of ``engines``; Hudi commits them. Implements
    ``lake.ports.TableWriter`` and, of ``lake.capabilities``, every protocol of a writer except ``UsesDatabaseClock``.
    The table is opened at the first step that needs it. One thread uses the writer from the first call to the last,
    since Hudi's locks belong to threads; only ``cancel`` may come from another thread.
    """

    #: the table's lock is held until the commit has ended, or its end is unknown
    max_commit_duration = timedelta()

    def __init__(self, table: TableRef, spark: SparkProvider, engines: Sequence[RewriteEngine] = ()) -> None:
        self.table = table
        self._spark_provider, self._writers = spark, find_writers(engines)
        self._client: HudiClient | None = None
        self._written: execute.WrittenRewrite | None = None
        #: Hudi's write of an adopted plan, begun by ``prepare``
        self._adopted_write: Any = None
        self._running_job: tuple[SparkSession, str] | None = None
        self._cancelled = threading.Event()
        self._attempt: RunningAttempt | None = None
        #: see ``lake.capabilities.Fenced``
        self.fence: Callable[[], None] = lambda: None
        #: see ``lake.capabilities.UsesRetention``
        self.retention = timedelta()
        #: see ``TableWriter``
        self.journal: StagingJournal = lambda staged: None

    def __enter__(self) -> "HudiWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end_attempt()
        self._close()

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = self._written = self._adopted_write = None

    def _open(self, plan: Plan | None = None) -> HudiClient:
        """Return the open client; it is reopened if it has the settings of another plan than ``plan``."""
        if self._client is None or (plan is not None and self._client.plan != plan):
            before = self._client
            self._close()
            self._client = HudiClient(self.table, self._spark_provider(), plan, self._writers)
            if before is not None:  # the published plan of a compaction has other logs than the plan
                self._client.input_log_sizes = before.input_log_sizes
        return self._client

    def _open_for_withdrawal(self) -> HudiClient:
        """Return the open client; it is reopened if the table has lost its metadata table, since Hudi would fail."""
        if (
            self._client is not None
            and self._client.has_metadata_table
            and not metadata_table_exists(self._client.storage)
        ):
            self._close()
        return self._open()

    def _refuse_unsafe_state(self) -> None:
        """Raise TableRefused if the table is in a state in which lakefold does not change it."""
        storage = TableStorage(self.table.location)
        for refusal in unsafe_state_refusals(storage, Timeline(storage)):
            raise TableRefused(f"{self.table.name}: {refusal}")

    def start(self) -> None:
        """See ``TableWriter``."""
        with translated_errors(self.table, "starting Spark"):
            self._spark_provider()

    def prepare(self, plan: Plan, epoch: int) -> PreparedPlan:
        """See ``TableWriter``. Raises Rejected if engine, layout or sort columns can't be used."""
        self._end_attempt()
        with translated_errors(self.table, "publishing a plan"):
            self._refuse_unsafe_state()
            client = self._open(plan)
            if plan.adopted_instant is None:
                prepared = publication.publish_plan(client, plan, epoch, self._publish, self.fence)
            else:
                adopted = plan.adopted_instant

                def begin() -> None:
                    self.fence()
                    self.journal(StagedWork(token=adopted))
                    self._open_attempt(client, client.read_timeline(), adopted, plan, epoch)

                prepared, self._adopted_write = adoption.begin_adopted(client, plan, epoch, begin)
            return replace(prepared, notes=(str(client.engine),), volatile_columns=_VOLATILE)

    def _publish(self, client: HudiClient, timeline: Timeline, plan: Plan, epoch: int) -> PreparedPlan:
        def stage(instant: str) -> None:
            self.journal(StagedWork(token=instant))

        chosen = compaction.publish_compaction if plan.kind is PlanKind.COMPACTION else clustering.publish_clustering
        prepared = chosen(client, timeline, plan, epoch, stage)
        self._open_attempt(client, timeline, prepared.instant, plan, epoch)
        return prepared

    def _open_attempt(self, client: HudiClient, timeline: Timeline, instant: str, plan: Plan, epoch: int) -> None:
        """Record for every lakefold that this process works on ``instant``, once; call it under the lock.

        ``prepare`` has ended the writer's previous attempt. ``check_preconditions`` may call its fence several times.
        """
        if self._attempt is not None:
            return
        java = Process.of(client.jvm.java.lang.ProcessHandle.current().pid())
        self._attempt = RunningAttempt(client.storage, timeline, instant, plan.plan_id, epoch, java)

    def _end_attempt(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        if self._client is None:
            attempt.end()
        else:
            self._client.run_when_idle(attempt.end)

    def rewrite(self, prepared: PreparedPlan, report: ProgressCallback) -> Rewrite:
        """See ``TableWriter``. Raises CancelRequested after ``cancel``."""
        with translated_errors(self.table, "rewriting"):
            client = self._open(prepared.plan)
        # The tag names the instant, since jobs of an earlier attempt must not count as progress.
        tag = f"lakefold-{prepared.plan.plan_id}-{prepared.instant}"
        self._running_job = (client.spark, tag)
        try:
            begun, self._adopted_write = self._adopted_write, None
            self._written = execute.write_files(client, prepared, tag, report, self._cancelled, adopted_write=begun)
        finally:
            self._running_job = None
        return self._written.rewrite

    def read_inputs(self, prepared: PreparedPlan, partition: str, *, evolved: bool = False) -> Iterator[pa.RecordBatch]:
        """See ``ReadsMerged``: hudi-rs reads the slices it can merge, Hudi all others and all ``evolved`` files.

        If rows of a base file share a key, a log record updates one of them in Hudi, and another number in hudi-rs.
        """
        reader = HudiRsReader(TableStorage(self.table.location))
        by_hudi = []
        for slice_ in slices_in_partition(prepared, partition):
            if evolved or slice_.path is None or (slice_.log_files and reader.has_repeated_keys(slice_.path)):
                by_hudi.append(slice_)
                continue
            try:
                yield from reader.read_rows(slice_.path, [relative_path(partition, name) for name in slice_.log_files])
            except MergeUnsupported as complaint:
                log.info("%s: Hudi reads %s for its verification: %s", self.table.name, slice_.path, complaint)
                by_hudi.append(slice_)
        if by_hudi:
            yield from read_merged_rows(self._open(prepared.plan), prepared.instant, by_hudi)

    def check_inputs(self, prepared: PreparedPlan) -> None:
        """See ``ChecksInputs``."""
        with translated_errors(self.table, "checking the inputs of a rewrite"):
            execute.check_inputs(self._open(prepared.plan), prepared)

    def commit(self, rewrite: Rewrite) -> Commit:
        """See ``TableWriter``. Only files that this writer itself has written can be committed.

        After Transient (the table's lock was not free) the same commit may be tried again.
        """
        if self._client is None or self._written is None or self._written.rewrite is not rewrite:
            raise Rejected(
                f"{self.table.name}: instant {rewrite.prepared.instant} was not written by this process; discard it"
            )
        commit = execute.commit_rewrite(self._client, self._written, self.fence)
        self._written = None
        return commit

    def withdraw(
        self,
        plan_id: str,
        instants: Collection[str] | None,
        *,
        staged: Collection[StagedWork] = (),
        epoch: int | None = None,
    ) -> int:
        """See ``TableWriter``: the timeline shows the pending instants and their plans."""
        with translated_errors(self.table, "withdrawing a plan"):
            return withdrawal.withdraw_plan(self._open_for_withdrawal(), plan_id, instants, self._attempt, epoch)

    def abort_adopted(self, instant: str, plan_id: str, *, epoch: int | None = None) -> bool:
        """See ``AbortsAdopted``."""
        with translated_errors(self.table, "withdrawing a plan"):
            return bool(adoption.abort_adopted(self._open_for_withdrawal(), instant, plan_id, self._attempt, epoch))

    def delete(self, versions: Sequence[SupersededVersion]) -> DeletionResult:
        """See ``TableWriter``."""
        with translated_errors(self.table, "cleaning"):
            self._refuse_unsafe_state()
            return deletion.delete_versions(self._open(), versions, self.fence, self.retention)

    def remove_straggler_files(self, instants: Collection[str]) -> Sequence[str]:
        """See ``RemovesStragglers``."""
        with translated_errors(self.table, "opening the table"):
            client = self._open()
        cleaning.withdraw_abandoned_cleans(client)
        cleaning.hold_back_passed_replacements(client)
        return withdrawal.remove_late_files(client, instants)

    def maintain(self, wanted: Collection[str], retained: Sequence[SupersededVersion]) -> Sequence[str]:
        """See ``RunsTableServices``."""
        with translated_errors(self.table, "opening the table"):
            self._refuse_unsafe_state()
            client = self._open()
        return services.run_services(client, wanted, retained, self.retention)

    def roll_back(self, instant: str) -> str:
        """See ``RollsBack``."""
        with translated_errors(self.table, "opening the table"):
            client = self._open()
        return services.roll_back_instant(client, instant)

    def remove_resurrected(self) -> Sequence[Resurrected]:
        """See ``RepairsResurrected``."""
        with translated_errors(self.table, "opening the table"):
            self._refuse_unsafe_state()
            client = self._open()
        return remove_resurrected(client)

    def cancel(self) -> None:
        """See ``TableWriter``; the rewrite then raises CancelRequested. The writer stays cancelled."""
        self._cancelled.set()
        running = self._running_job
        if running is not None:
            session, tag = running
            cancel_jobs(session.sparkContext, tag)

# SPDX-License-Identifier: Apache-2.0
"""The changing half of the Hudi adapter: one table opened for writing, step by step."""

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lake.errors import Rejected
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.files.names import join
from lake.formats.hudi.files.storage import Storage
from lake.formats.hudi.jvm.outcomes import outcomes
from lake.formats.hudi.pending.attempts import OpenAttempt
from lake.formats.hudi.plans import adoption, clustering, compaction, publication, withdrawal
from lake.formats.hudi.read.hudi_rs import HudiRsReader, NotMerged
from lake.formats.hudi.read.refusals import contents
from lake.formats.hudi.rewrite import execute
from lake.formats.hudi.rewrite.merged_rows import read_by_hudi, slices_of
from lake.formats.hudi.timeline.metadata_table import is_there
from lake.formats.hudi.timeline.timeline import Timeline
from lake.formats.hudi.upkeep import deletion, services
from lake.formats.hudi.upkeep.repair import take_out
from lake.identity import Process
from lake.model import TableRef
from lake.optional import Resurrected
from lake.plan import Commit, Plan, PlanKind, Staged, SupersededVersion
from lake.ports import Deletion, Journal, Prepared, Report, Rewrite, SparkProvider

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

#: every file says its own name in each row
_VOLATILE = frozenset({"_hoodie_file_name"})


class HudiWriter:
    """Changes one Hudi table through Hudi's own write client; is a ``TableWriter``, ``MergedReads`` and ``TakesOut``.

    Opened at the first step that needs it. One thread uses it from the first call to the last, since Hudi's locks
    belong to threads; only ``cancel`` may come from another.
    """

    #: the table's lock is held until the commit has ended, or nobody can tell
    commit_takes = timedelta()

    def __init__(self, table: TableRef, spark: SparkProvider) -> None:
        self.table = table
        self._provider = spark
        self._client: HudiClient | None = None
        self._written: execute.Written | None = None
        #: Hudi's write of an adopted plan, which ``prepare`` began
        self._begun: Any = None
        self._running: tuple[SparkSession, str] | None = None
        self._cancelled = threading.Event()
        self._attempt: OpenAttempt | None = None
        #: see ``lake.optional.Fenced``
        self.fence: Callable[[], None] = lambda: None
        #: see ``lake.optional.Retains``
        self.retention = timedelta()
        #: see ``TableWriter``
        self.journal: Journal = lambda staged: None

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
        self._client = self._written = self._begun = None

    def _open(self, plan: Plan | None = None) -> HudiClient:
        """The open client; opened anew where ``plan`` is another one than the client has the settings of."""
        if self._client is None or (plan is not None and self._client.plan != plan):
            self._close()
            self._client = HudiClient(self.table, self._provider(), plan)
        return self._client

    def _open_as_it_is(self) -> HudiClient:
        """The open client; opened anew where the table has lost its metadata table, which would be in the way."""
        if self._client is not None and self._client.has_metadata_table and not is_there(self._client.storage):
            self._close()
        return self._open()

    def _check_contents(self) -> None:
        """Raise Rejected where the table has come into a state in which it is not changed."""
        storage = Storage(self.table.location)
        for refusal in contents(storage, Timeline(storage)):
            raise Rejected(f"{self.table.name}: {refusal}")

    def start(self) -> None:
        """See ``TableWriter``."""
        with outcomes(self.table, "starting Spark"):
            self._provider()

    def prepare(self, plan: Plan, epoch: int) -> Prepared:
        """See ``TableWriter``. Rejected where engine, layout or sort columns can't be had."""
        self._end_attempt()
        with outcomes(self.table, "publishing a plan"):
            self._check_contents()
            client = self._open(plan)
            if plan.adopted is None:
                prepared = publication.publish(client, plan, epoch, self._make_known, self.fence)
            else:
                adopted = plan.adopted

                def begin() -> None:
                    self.fence()
                    self.journal(Staged(token=adopted))
                    self._sign(client, client.timeline(), adopted, plan, epoch)

                prepared, self._begun = adoption.begin(client, plan, epoch, begin)
            return replace(prepared, notes=(str(client.engine),), volatile=_VOLATILE)

    def _make_known(self, client: HudiClient, timeline: Timeline, plan: Plan, epoch: int) -> Prepared:
        def stage(instant: str) -> None:
            self.journal(Staged(token=instant))

        chosen = compaction.make_known if plan.kind is PlanKind.COMPACTION else clustering.make_known
        prepared = chosen(client, timeline, plan, epoch, stage)
        self._sign(client, timeline, prepared.instant, plan, epoch)
        return prepared

    def _sign(self, client: HudiClient, timeline: Timeline, instant: str, plan: Plan, epoch: int) -> None:
        """Tell every lakefold that this process works on ``instant``; under the lock."""
        java = Process.of(client.jvm.java.lang.ProcessHandle.current().pid())
        self._attempt = OpenAttempt(client.storage, timeline, instant, plan.plan_id, epoch, java)

    def _end_attempt(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        if self._client is None:
            attempt.end()
        else:
            self._client.when_idle(attempt.end)

    def rewrite(self, prepared: Prepared, report: Report) -> Rewrite:
        """See ``TableWriter``; CancelRequested after ``cancel``."""
        with outcomes(self.table, "rewriting"):
            client = self._open(prepared.plan)
        # With the instant, since the jobs of an earlier attempt are not this one's progress.
        tag = f"lakefold-{prepared.plan.plan_id}-{prepared.instant}"
        self._running = (client.spark, tag)
        try:
            begun, self._begun = self._begun, None
            self._written = execute.write(client, prepared, tag, report, self._cancelled, begun=begun)
        finally:
            self._running = None
        return self._written.rewrite

    def read_inputs(self, prepared: Prepared, partition: str, *, evolved: bool = False) -> Iterator[pa.RecordBatch]:
        """See ``MergedReads``: hudi-rs reads what it can merge, Hudi itself the rest and all ``evolved`` files."""
        reader = HudiRsReader(Storage(self.table.location))
        by_hudi = []
        for slice_ in slices_of(prepared, partition):
            if evolved or slice_.path is None:
                by_hudi.append(slice_)
                continue
            try:
                yield from reader.rows(slice_.path, [join(partition, name) for name in slice_.log_files])
            except NotMerged as complaint:
                log.info("%s: %s is read by Hudi for its receipt: %s", self.table.name, slice_.path, complaint)
                by_hudi.append(slice_)
        if by_hudi:
            yield from read_by_hudi(self._open(prepared.plan), prepared.instant, by_hudi)

    def commit(self, rewrite: Rewrite) -> Commit:
        """See ``TableWriter``. Only what this writer itself has written can be committed.

        After Transient (the table's lock was not free) the same commit may be tried again.
        """
        if self._client is None or self._written is None or self._written.rewrite is not rewrite:
            raise Rejected(
                f"{self.table.name}: instant {rewrite.prepared.instant} was not written by this process; discard it"
            )
        commit = execute.complete(self._client, self._written, self.fence)
        self._written = None
        return commit

    def discard(
        self,
        plan_id: str,
        instants: Collection[str] | None,
        *,
        staged: Collection[Staged] = (),
        epoch: int | None = None,
    ) -> int:
        """See ``TableWriter``: what is pending, and whose plan it is, the timeline tells."""
        with outcomes(self.table, "withdrawing a plan"):
            return withdrawal.discard(self._open_as_it_is(), plan_id, instants, self._attempt, epoch)

    def take_back(self, instant: str, plan_id: str, *, epoch: int | None = None) -> bool:
        """See ``TakesBack``."""
        with outcomes(self.table, "withdrawing a plan"):
            return bool(adoption.take_back(self._open_as_it_is(), instant, plan_id, self._attempt, epoch))

    def delete(self, versions: Sequence[SupersededVersion]) -> Deletion:
        """See ``TableWriter``."""
        with outcomes(self.table, "cleaning"):
            self._check_contents()
            return deletion.delete(self._open(), versions, self.fence, self.retention)

    def remove_late_files(self, instants: Collection[str]) -> Sequence[str]:
        """See ``RemovesLateFiles``."""
        with outcomes(self.table, "opening the table"):
            client = self._open()
        return withdrawal.remove_late(client, instants)

    def maintain(self, wanted: Collection[str], retained: Sequence[SupersededVersion]) -> Sequence[str]:
        """See ``TableWriter``."""
        with outcomes(self.table, "opening the table"):
            self._check_contents()
            client = self._open()
        return services.maintain(client, wanted, retained, self.retention)

    def roll_back(self, instant: str) -> str:
        """See ``TableWriter``."""
        with outcomes(self.table, "opening the table"):
            client = self._open()
        return services.roll_back(client, instant)

    def take_out(self) -> Sequence[Resurrected]:
        """See ``TakesOut``."""
        with outcomes(self.table, "opening the table"):
            self._check_contents()
            client = self._open()
        return take_out(client)

    def cancel(self) -> None:
        """See ``TableWriter``; the rewrite then raises CancelRequested. Stays in force for this writer."""
        self._cancelled.set()
        running = self._running
        if running is not None:
            session, tag = running
            with suppress(Exception):
                session.sparkContext.cancelJobsWithTag(tag)

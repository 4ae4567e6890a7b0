# SPDX-License-Identifier: Apache-2.0
"""Runs one claimed plan, from the check for its commit to the record of its commit: seven steps and their failures.

The design rests on two facts. The table's own commit names the plan, so the table shows whether the plan committed even
if a process died. All work before the commit is invisible, and can be withdrawn by its instant. So a run ends in one of
three ways. If the plan committed, the commit is recorded. If it did not, all work is withdrawn, and the error is
recorded. If it is unknown whether the commit succeeded, the plan stays inflight, nothing is deleted, and a take-over
checks the table again.

An adopted plan has one instant for all its attempts, and the instant belongs to another process. The work of a failed
attempt is rolled back, but the instant stays. An executor that lost an adopted plan does not touch the instant, since
its successor's work is under the same instant.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial

from executors.commit_status import CommitStatus
from executors.context import RunContext
from executors.engines.spark_tasks import MIN_FILES_FOR_JOB, SparkTasks
from executors.failed_run import RunFailure
from executors.lease import Lease
from executors.observer import run_observed
from executors.outcome import RunOutcome, RunResult, completion_message, partition_figures, unreadable_groups
from executors.relocation.sweep import partitions_awaiting_sweep, sweep_partitions
from executors.retries import retry_store_call
from executors.uncommitted_work import uncommitted_work_of
from executors.unrecorded_commits import record_discovered_relocations
from executors.verification import verify_rewrite
from lake.capabilities import Fenced, recreated_reason, with_identity
from lake.errors import (
    CancelRequested,
    Conflict,
    Integrity,
    LeaseLost,
    Rejected,
    TableGone,
    TableHalted,
    TableRefused,
    Transient,
    one_line,
)
from lake.failpoints import failpoint
from lake.model import partition_label
from lake.plan import Claim, Commit, Plan, RewriteProgress, SkippedGroup, StagedWork, Step, sum_if_known
from lake.ports import Rewrite, TableFormat, TableWriter
from lake.relocation.capabilities import RelocatesPartitions

log = logging.getLogger(__name__)

#: seconds between two attempts to lock partitions; a round of the sweep usually only links and moves some files
_LOCK_POLL_SECONDS = 0.2


def run_plan(
    claim: Claim, context: RunContext, *, format: TableFormat, abort: threading.Event | None = None
) -> RunOutcome:
    """Run ``claim`` to one of the ends of ``RunResult``. Raises only errors that end the process.

    Setting ``abort`` stops the rewrite, withdraws it and requeues the plan, unless its commit has begun.
    """
    run = _PlanRun(claim, format, context, abort)
    with run.lease:
        return run_observed(context.observer, claim, run.run)


def end_taken_over_plan(claim: Claim, context: RunContext, *, format: TableFormat) -> RunOutcome:
    """End a plan taken over from a silent executor without rewriting: record, requeue, or cancel it on request.

    The plan stays inflight if the table does not answer, or if the plan's pending work can't be withdrawn.
    """
    run = _PlanRun(claim, format, context)
    with run.lease:
        return run_observed(context.observer, claim, run.end_taken_over)


class _PlanRun:
    """One run of a claimed plan; ``lease`` must be held during the run."""

    def __init__(
        self, claim: Claim, format_: TableFormat, context: RunContext, abort: threading.Event | None = None
    ) -> None:
        self._claim, self._format, self._context = claim, format_, context
        self._store, self._observer = context.store, context.observer
        self._plan_id, self._table = claim.plan.plan_id, claim.plan.table
        self._milliseconds = dict(claim.milliseconds)
        self.lease = Lease(claim, context.store, interval=context.heartbeat, abort=abort)
        self._uncommitted = uncommitted_work_of(claim, format_)
        self._commit_status = CommitStatus(claim, format_, self.lease, context.retry_delays)
        self._failure = RunFailure(
            claim, context, self.lease, self._uncommitted, self._commit_status, self._milliseconds
        )
        #: the CPU seconds of each rewrite's tasks, None if they were not counted; a rewrite is repeated without the
        #: groups that turn out to be unreadable
        self._cpu_seconds: list[float | None] = []
        #: how long the plan can't be taken over, from the beginning of its commit
        self._commit_lease = timedelta()

    def run(self) -> RunOutcome:
        try:
            self._commit_status.commit = self._find_commit()
            if self._commit_status.commit is None:
                with self._open_writer() as writer:
                    try:
                        self._refuse_obsolete()
                        with self._step(Step.START):
                            writer.start()
                        self._rewrite_and_commit(writer)
                    except Exception as error:
                        if self._commit_status.commit is None or isinstance(error, LeaseLost):
                            return self._end_failed(error)
                        log.warning("plan %s: after its commit: %s", self._plan_id, one_line(error))
            return self._record_commit()
        except Exception as error:
            return self._end_failed(error)

    def end_taken_over(self) -> RunOutcome:
        silent = Transient(self._claim.previous_error or "its executor stopped renewing its lease")
        self._uncommitted.is_taken_over = True
        try:
            self._commit_status.commit = self._find_commit()
            if self._commit_status.commit is not None:
                return self._record_commit()
            if not self._uncommitted.can_be_pending():
                return self._end_failed(silent)
            with self._open_writer():
                return self._end_failed(silent)
        except Exception as error:
            return self._end_failed(error)

    @contextmanager
    def _open_writer(self) -> Iterator[TableWriter]:
        """Yield a writer; an error at its closing never hides the result of the plan."""
        writer = self._format.writer(self._table, self._context.spark, self._context.engines)
        entered = writer.__enter__()
        entered.journal = self._record_staged
        if isinstance(entered, Fenced):
            entered.fence = self._fence
        self._uncommitted.writer = entered
        try:
            yield entered
        finally:
            self._uncommitted.writer = None
            try:
                writer.__exit__(None, None, None)
            except Exception as error:
                log.warning("plan %s: closing %s: %s", self._plan_id, self._table.name, one_line(error))

    def _fence(self) -> None:
        """Raise if this run may no longer publish or commit the plan; called under the table's lock."""
        try:
            self.lease.renew_if_stale(at_least=self._commit_lease)
        except (LeaseLost, CancelRequested, Transient):
            raise
        except Exception as silent:
            raise Transient(f"the owner of the plan can't be checked: {one_line(silent)}") from silent
        self._refuse_halted()
        self._uncommitted.mark_started()

    def _refuse_halted(self) -> None:
        """Raise TableHalted if the table was halted after the claim: a person has to examine its present state."""
        try:
            reason = self._store.halt_reason(self._plan_id)
        except Exception as silent:
            raise Transient(f"the halts of the table can't be checked: {one_line(silent)}") from silent
        if reason is not None:
            raise TableHalted(f"{self._table.name} was halted while the plan ran: {reason}")

    def _record_staged(self, staged: StagedWork) -> None:
        """Record in the database the work to be staged, before it exists."""
        try:
            self._store.record_staged(self._claim, staged)
        except LeaseLost:
            raise
        except Exception as silent:
            raise Transient(f"the work to be staged can't be recorded: {one_line(silent)}") from silent
        self._uncommitted.add_staged(staged)
        failpoint("staged")

    @contextmanager
    def _step(self, step: Step) -> Iterator[None]:
        self.lease.check()
        failpoint(f"before_{step}")
        begun = time.monotonic()
        try:
            yield
        except Exception as error:
            seconds = time.monotonic() - begun
            self._observer.step_failed(self._claim, step, seconds, one_line(error))
            if not isinstance(error, LeaseLost):
                self._record_step(step, seconds, ended=False)
            raise
        seconds = time.monotonic() - begun
        self._observer.step_finished(self._claim, step, seconds)
        self._record_step(step, seconds, ended=True)
        failpoint(f"after_{step}")

    def _record_step(self, step: Step, seconds: float, *, ended: bool) -> None:
        """Record the duration of a step, also of a failed step: budgets are charged for use, not for success."""
        spent = round(seconds * 1000)
        self._milliseconds[step.value] = self._milliseconds.get(step.value, 0) + spent
        counted = sum_if_known(self._cpu_seconds) if step is Step.REWRITE else None
        used = None if counted is None else round(counted * 1000)
        self._try_to_record(
            f"step {step}",
            lambda: self._store.record_step(
                self._claim, step, milliseconds=spent, cpu_milliseconds=used, succeeded=ended
            ),
        )

    def _try_to_record(self, what: str, call: Callable[[], None]) -> None:
        """Record progress; errors are only logged, since essential facts are recorded or checked again elsewhere."""
        try:
            call()
        except LeaseLost:
            raise
        except Exception as error:
            log.warning("plan %s: %s could not be recorded: %s", self._plan_id, what, one_line(error))

    # The seven steps.

    def _find_commit(self) -> Commit | None:
        with self._step(Step.FIND_COMMIT):
            return self._commit_status.find_commit()

    def _refuse_obsolete(self) -> None:
        """Refuse a plan that is no longer valid.

        Raises Conflict, TableRefused, or the other errors of ``TableFormat.check``.
        """
        if self._claim.obsolete_reason is not None:
            raise Conflict(self._claim.obsolete_reason)
        try:
            self._format.check(self._table)
        except TableGone:
            raise
        except Rejected as refusal:  # of the table, whatever the plan
            raise TableRefused(*refusal.args) from refusal
        another = recreated_reason(with_identity(self._format, self._table), self._table.identity)
        if another is not None:
            raise Conflict(another)

    def _rewrite_and_commit(self, writer: TableWriter) -> None:
        self._uncommitted.withdraw_earlier(writer)
        plan, numbers = self._claim.plan, tuple(range(len(self._claim.plan.groups)))
        while True:
            try:
                rewrite = self._prepare_and_rewrite(writer, plan, numbers)
            except Conflict as error:
                unreadable = unreadable_groups(error)
                if not unreadable:
                    raise
                self._record_skipped(unreadable, numbers)
                gone = {item.group for item in unreadable}
                kept = [index for index in range(len(numbers)) if index not in gone]
                if not kept or len(kept) == len(numbers) or not self._uncommitted.can_skip_groups:
                    raise
                log.warning("plan %s continues without %d groups: %s", self._plan_id, len(gone), one_line(error))
                if self._uncommitted.instant is not None:
                    self._uncommitted.withdraw(writer, (self._uncommitted.instant,))
                plan = replace(plan, groups=tuple(plan.groups[index] for index in kept))
                numbers = tuple(numbers[index] for index in kept)
            else:
                self._commit(writer, rewrite, numbers)
                return

    def _prepare_and_rewrite(self, writer: TableWriter, plan: Plan, numbers: Sequence[int]) -> Rewrite:
        with self._step(Step.PREPARE):
            self._discover_relocations()
            self._sweep_partitions()
            self._refuse_unswept(plan)
            prepared = writer.prepare(plan, self._claim.epoch)
            self._uncommitted.instant = prepared.instant
            failpoint("published_unrecorded")
        if prepared.skipped:
            self._record_skipped(prepared.skipped, numbers)
        for note in prepared.notes:
            log.info("plan %s of %s: %s", self._plan_id, self._table.name, note)
            self._try_to_record(note, partial(self._store.add_note, self._claim, note))
        self._cpu_seconds.append(None)
        with self._step(Step.REWRITE), self.lease.cancelling(writer):
            rewrite = writer.rewrite(prepared, self._report_progress)
        with self._step(Step.VERIFY):
            files = sum(len(group.slices) for group in rewrite.prepared.plan.groups)
            run = SparkTasks(self._context.spark).map if files >= MIN_FILES_FOR_JOB else None
            verify_rewrite(rewrite, writer=writer, check=self.lease.check, run=run)
        return rewrite

    def _report_progress(self, progress: RewriteProgress) -> None:
        self._cpu_seconds[-1] = progress.cpu_seconds
        self.lease.report_progress(replace(progress, cpu_seconds=sum_if_known(self._cpu_seconds)))

    def _refuse_unswept(self, plan: Plan) -> None:
        """Raise Conflict with the groups if the sweep has to process partitions of the plan first."""
        reasons = partitions_awaiting_sweep(
            self._table, format=self._format, store=self._store, partitions=plan.partitions
        )
        if reasons:
            left_out = [
                SkippedGroup(group=index, reason=reasons[group.partition])
                for index, group in enumerate(plan.groups)
                if group.partition in reasons
            ]
            raise Conflict(f"the sweep has to process the plan's partitions first: {left_out[0].reason}", left_out)

    def _commit(self, writer: TableWriter, rewrite: Rewrite, numbers: Sequence[int]) -> None:
        # Twice ``max_commit_duration``: this process may be suspended for up to that time after its check, and the
        # commit may then take as long again.
        self._commit_lease = 2 * writer.max_commit_duration
        self.lease.renew(at_least=self._commit_lease)
        self._await_exclusive_partitions()
        with self._step(Step.COMMIT):
            self.lease.renew_if_stale(at_least=self._commit_lease)
            self._refuse_unswept(rewrite.prepared.plan)
            self._refuse_halted()
            self._commit_status.is_commit_possible = True
            try:
                self._commit_status.commit = writer.commit(rewrite)
            except LeaseLost:  # the fence raised it before the call
                raise
            except (Transient, Conflict, Rejected, Integrity, CancelRequested) as error:
                self._commit_status.is_own_commit_possible = True
                self._commit_status.commit = self._commit_status.find_commit_after(error, until_found=False)
                if self._commit_status.commit is None:
                    raise
                if isinstance(error, Integrity):
                    self._halt(error)
            except Exception as error:  # CommitUnknown, or a bug: either way the result is not known yet
                log.warning("plan %s: its commit may have been made: %s", self._plan_id, one_line(error))
                self._commit_status.commit = self._commit_status.find_commit_after(error, until_found=True)
        if (commit := self._commit_status.commit) is not None and commit.skipped:
            self._try_to_record("the skipped groups", partial(self._record_skipped, commit.skipped, numbers))

    def _await_exclusive_partitions(self) -> None:
        """Sweep the plan's partitions for late files, then reserve them for the plan until its end."""
        if not isinstance(self._format, RelocatesPartitions):
            return
        self._sweep_partitions()
        while taken := self._context.relocations.begin_commit(self._claim):
            log.info(
                "plan %s waits for the sweep or the cleaner, which has locked partition %s", self._plan_id, min(taken)
            )
            self.lease.check()
            time.sleep(_LOCK_POLL_SECONDS)

    def _discover_relocations(self) -> None:
        """Record relocations that only the table has recorded: without them replaced files look like writers' files.

        Raises Conflict if the executor of such a relocation has not ended yet, or if its partition is locked under
        another name of the table.
        """
        found = record_discovered_relocations(self._table, format=self._format, store=self._store)
        if found.left_to_executors:
            raise Conflict(
                f"{self._table.name}: {found.left_to_executors[0]} was committed under another name of the table, and "
                "a plan or a lock under that name has not ended"
            )

    def _sweep_partitions(self) -> None:
        """Sweep the plan's partitions for late files; if that fails, the sweep's own loop sweeps them later."""
        try:
            sweep_partitions(self._table, self._context, format=self._format, partitions=self._claim.plan.partitions)
        except Exception as error:
            log.warning("plan %s: late files are left to the sweep: %s", self._plan_id, one_line(error))

    def _halt(self, error: Integrity) -> None:
        """Halt the table, or the partitions that the error names, after a commit that can't be trusted."""
        reason = one_line(error)

        def halt() -> None:
            self._store.halt_for_plan(self._plan_id, reason, error.partitions)

        what = ", ".join(map(partition_label, error.partitions)) or "the table"
        log.error("plan %s of %s: %s is halted: %s", self._plan_id, self._table.name, what, reason)
        retry_store_call(self._plan_id, "followed by a halt", halt, delays=self._context.retry_delays)

    def _record_commit(self) -> RunOutcome:
        commit = self._commit_status.commit
        assert commit is not None
        failpoint("before_record")
        begun = time.monotonic()
        figures = partition_figures(self._claim.plan, commit)

        def record() -> None:
            self._store.complete(self._claim, commit, figures, self._milliseconds)

        try:
            retry_store_call(self._plan_id, "recorded as completed", record, delays=self._context.retry_delays)
        except LeaseLost as lost:
            return self._failure.end_lost(lost)
        except Exception as silent:
            return self._failure.end_inflight(silent)
        self._milliseconds[Step.RECORD.value] = round((time.monotonic() - begun) * 1000)
        self._observer.step_finished(self._claim, Step.RECORD, time.monotonic() - begun)
        failpoint("after_record")
        log.info("%s", completion_message(self._claim.plan, commit, figures, self._milliseconds))
        outcome = RunOutcome(
            result=RunResult.COMPLETED, commit=commit, figures=figures, milliseconds=self._milliseconds
        )
        self._observer.plan_finished(self._claim, outcome)
        # A file that was written between the last check and the relocation is found as soon as possible.
        self._sweep_partitions()
        return outcome

    def _end_failed(self, error: Exception) -> RunOutcome:
        ended = self._failure.end_run(error)
        return self._record_commit() if ended is None else ended

    def _record_skipped(self, items: Sequence[SkippedGroup], numbers: Sequence[int]) -> None:
        """Record skipped groups; ``numbers`` maps the indices of ``items`` to the group numbers of the claim."""
        self._store.record_skipped_groups(self._claim, [replace(item, group=numbers[item.group]) for item in items])

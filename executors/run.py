# SPDX-License-Identifier: Apache-2.0
"""One claimed plan from asking the table to recording its commit: the seven steps, and what follows where one fails.

Two facts carry the rest. The table's own commit names the plan, so that asking it tells what happened whatever
died; and everything written before the commit is invisible and withdrawn by its instant. Hence each way out:
completed is recorded, anything before the commit is discarded and told to the store, and where nobody knows
whether the commit landed the plan stays inflight, nothing is deleted, and the rescuer asks again.

An adopted plan has one instant for all its attempts, and somebody else's. What a failed attempt leaves is taken back,
never the instant; and an executor that lost such a plan leaves the instant alone, since its successor's work is under
the same name.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial

from executors.landing import Landing
from executors.late import awaiting_sweep, sweep_places
from executors.lease import Lease
from executors.leftovers import leftovers_of
from executors.observer import Observer, observed
from executors.outcome import Outcome, Result, completed_line, figures_of, left_out_of
from executors.patience import patiently
from executors.receipt import prove
from executors.recovery import Recovery
from lake.engines import Engine
from lake.errors import (
    CancelRequested,
    Conflict,
    Integrity,
    LeaseLost,
    Rejected,
    Transient,
    one_line,
)
from lake.failpoints import failpoint
from lake.optional import Fenced, LeavesPlaces, identified, made_anew
from lake.place_store import PlaceStore
from lake.plan import Claim, Commit, LeftOut, Plan, Progress, Staged, Step, sum_if_known
from lake.ports import Rewrite, SparkProvider, TableFormat, TableWriter

log = logging.getLogger(__name__)

HEARTBEAT = timedelta(seconds=15)
#: seconds between questions to a table, or tries to record, after a commit
ASK_AGAIN_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)

#: a round of the sweep mostly links and moves some files
_SWEEP_LASTS_SECONDS = 0.2


def run_plan(
    claim: Claim,
    *,
    format: TableFormat,
    store: PlaceStore,
    spark: SparkProvider,
    observer: Observer | None = None,
    cancel: threading.Event | None = None,
    heartbeat: timedelta = HEARTBEAT,
    ask_again: Sequence[float] = ASK_AGAIN_SECONDS,
    engines: Sequence[Engine] = (),
) -> Outcome:
    """Run ``claim`` to one of the ends of ``Result``; never raises but for what ends the process.

    The lease is renewed every ``heartbeat`` from a second thread, so ``store`` must allow two. Setting ``cancel``
    stops the rewrite, discards it and requeues the plan, unless its commit has begun.
    """
    observer = observer or Observer()
    with Lease(claim, store, every=heartbeat, abort=cancel) as lease:
        return observed(observer, claim, _Run(claim, format, store, spark, observer, lease, ask_again, engines).run)


def settle(
    claim: Claim,
    *,
    format: TableFormat,
    store: PlaceStore,
    spark: SparkProvider,
    observer: Observer | None = None,
    heartbeat: timedelta = HEARTBEAT,
    ask_again: Sequence[float] = ASK_AGAIN_SECONDS,
) -> Outcome:
    """End a plan taken over from a silent executor without rewriting: record it, requeue it, or cancel it if asked to.

    It stays inflight where the table does not answer, or where something pending of it can't be withdrawn.
    """
    observer = observer or Observer()
    with Lease(claim, store, every=heartbeat) as lease:
        return observed(observer, claim, _Run(claim, format, store, spark, observer, lease, ask_again).settle)


class _Run:
    def __init__(
        self,
        claim: Claim,
        format_: TableFormat,
        store: PlaceStore,
        spark: SparkProvider,
        observer: Observer,
        lease: Lease,
        ask_again: Sequence[float],
        engines: Sequence[Engine] = (),
    ) -> None:
        self._claim, self._format, self._store, self._spark = claim, format_, store, spark
        self._observer, self._lease, self._ask_again, self._engines = observer, lease, ask_again, engines
        self._plan_id, self._table = claim.plan.plan_id, claim.plan.table
        self._milliseconds = dict(claim.milliseconds)
        self._left = leftovers_of(claim, format_)
        self._landing = Landing(claim, format_, lease, ask_again)
        self._recovery = Recovery(
            claim, store, observer, lease, self._left, self._landing, ask_again, self._milliseconds
        )
        #: what the tasks of each rewrite used, of which there is one more after groups were left out; None where nobody
        #: counted it
        self._cpu_seconds: list[float | None] = []
        #: how long nobody else may take the plan over once its commit is to begin
        self._lasts = timedelta()

    def run(self) -> Outcome:
        try:
            self._landing.commit = self._ask()
            if self._landing.commit is None:
                with self._opened() as writer:
                    try:
                        self._admit()
                        with self._step(Step.START):
                            writer.start()
                        self._change(writer)
                    except Exception as error:
                        if self._landing.commit is None or isinstance(error, LeaseLost):
                            return self._give_up(error)
                        log.warning("plan %s: after its commit: %s", self._plan_id, one_line(error))
            return self._record()
        except Exception as error:
            return self._give_up(error)

    def settle(self) -> Outcome:
        silent = Transient(self._claim.error or "its executor stopped renewing its lease")
        self._left.taken_over = True
        try:
            self._landing.commit = self._ask()
            if self._landing.commit is not None:
                return self._record()
            if not self._left.pending():
                return self._give_up(silent)
            with self._opened():
                return self._give_up(silent)
        except Exception as error:
            return self._give_up(error)

    @contextmanager
    def _opened(self) -> Iterator[TableWriter]:
        """A writer whose closing never hides how the plan ended."""
        writer = self._format.writer(self._table, self._spark, self._engines)
        entered = writer.__enter__()
        entered.journal = self._journal
        if isinstance(entered, Fenced):
            entered.fence = self._fence
        self._left.writer = entered
        try:
            yield entered
        finally:
            self._left.writer = None
            try:
                writer.__exit__(None, None, None)
            except Exception as error:
                log.warning("plan %s: closing %s: %s", self._plan_id, self._table.name, one_line(error))

    def _fence(self) -> None:
        """Raise where the plan may not be published or committed by this run any more; asked under the table's lock."""
        try:
            self._lease.renew_if_stale(at_least=self._lasts)
        except (LeaseLost, CancelRequested, Transient):
            raise
        except Exception as silent:
            raise Transient(f"whose plan it is can't be learned: {one_line(silent)}") from silent
        self._left.may_begin()

    def _journal(self, staged: Staged) -> None:
        """Have the database know what is about to be staged, before anything of it exists."""
        try:
            self._store.stage(self._claim, staged)
        except LeaseLost:
            raise
        except Exception as silent:
            raise Transient(f"what is to be staged can't be recorded: {one_line(silent)}") from silent
        self._left.stages(staged)
        failpoint("staged")

    @contextmanager
    def _step(self, step: Step) -> Iterator[None]:
        self._lease.check()
        failpoint(f"before_{step}")
        begun = time.monotonic()
        try:
            yield
        except Exception as error:
            seconds = time.monotonic() - begun
            self._observer.step_failed(self._claim, step, seconds, one_line(error))
            if not isinstance(error, LeaseLost):
                self._spent(step, seconds, ended=False)
            raise
        seconds = time.monotonic() - begun
        self._observer.step_finished(self._claim, step, seconds)
        self._spent(step, seconds, ended=True)
        failpoint(f"after_{step}")

    def _spent(self, step: Step, seconds: float, *, ended: bool) -> None:
        """Note what a step took, one that failed as well: budgets are charged what was used, not what came of it."""
        spent = round(seconds * 1000)
        self._milliseconds[step.value] = self._milliseconds.get(step.value, 0) + spent
        counted = sum_if_known(self._cpu_seconds) if step is Step.REWRITE else None
        used = None if counted is None else round(counted * 1000)
        self._noted(
            f"step {step}",
            lambda: self._store.step(self._claim, step, milliseconds=spent, cpu_milliseconds=used, ended=ended),
        )

    def _noted(self, what: str, call: Callable[[], None]) -> None:
        """Note progress; what must not be missed is asked of the table or told again."""
        try:
            call()
        except LeaseLost:
            raise
        except Exception as error:
            log.warning("plan %s: %s could not be noted: %s", self._plan_id, what, one_line(error))

    # The seven steps.

    def _ask(self) -> Commit | None:
        with self._step(Step.ASK):
            return self._landing.ask()

    def _admit(self) -> None:
        """Refuse what is refused today, whatever held when the plan was made. Raises Conflict, or what a scan would."""
        if self._claim.obsolete is not None:
            raise Conflict(self._claim.obsolete)
        self._format.check(self._table)
        another = made_anew(identified(self._format, self._table), self._table.identity)
        if another is not None:
            raise Conflict(another)

    def _change(self, writer: TableWriter) -> None:
        self._left.withdraw_earlier(writer)
        plan, numbers = self._claim.plan, tuple(range(len(self._claim.plan.groups)))
        while True:
            try:
                rewrite = self._write(writer, plan, numbers)
            except Conflict as error:
                unreadable = left_out_of(error)
                if not unreadable:
                    raise
                self._leave_out(unreadable, numbers)
                gone = {item.group for item in unreadable}
                kept = [index for index in range(len(numbers)) if index not in gone]
                if not kept or len(kept) == len(numbers) or not self._left.is_divisible:
                    raise
                log.warning("plan %s goes on without %d groups: %s", self._plan_id, len(gone), one_line(error))
                if self._left.instant is not None:
                    self._left.discard(writer, (self._left.instant,))
                plan = replace(plan, groups=tuple(plan.groups[index] for index in kept))
                numbers = tuple(numbers[index] for index in kept)
            else:
                self._commit(writer, rewrite, numbers)
                return

    def _write(self, writer: TableWriter, plan: Plan, numbers: Sequence[int]) -> Rewrite:
        with self._step(Step.PREPARE):
            self._sweep()
            self._refuse_unswept(plan)
            prepared = writer.prepare(plan, self._claim.epoch)
            self._left.instant = prepared.instant
            failpoint("published_unrecorded")
        if prepared.left_out:
            self._leave_out(prepared.left_out, numbers)
        for note in prepared.notes:
            log.info("plan %s of %s: %s", self._plan_id, self._table.name, note)
            self._noted(note, partial(self._store.note, self._claim, note))
        self._cpu_seconds.append(None)
        with self._step(Step.REWRITE), self._lease.cancelling(writer):
            rewrite = writer.rewrite(prepared, self._report)
        with self._step(Step.RECEIPT):
            prove(rewrite, writer=writer, check=self._lease.check)
        return rewrite

    def _report(self, progress: Progress) -> None:
        self._cpu_seconds[-1] = progress.cpu_seconds
        self._lease.report(replace(progress, cpu_seconds=sum_if_known(self._cpu_seconds)))

    def _refuse_unswept(self, plan: Plan) -> None:
        """Raise Conflict, naming the groups, where the sweep has to see to partitions of the plan first."""
        reasons = awaiting_sweep(self._table, format=self._format, store=self._store, partitions=plan.partitions)
        if reasons:
            left_out = [
                LeftOut(group=index, reason=reasons[group.partition])
                for index, group in enumerate(plan.groups)
                if group.partition in reasons
            ]
            raise Conflict(f"a writer was in a place that its partition has left: {left_out[0].reason}", left_out)

    def _commit(self, writer: TableWriter, rewrite: Rewrite, numbers: Sequence[int]) -> None:
        # Twice: once for the commit, and once more in case this process is stopped between the look and the commit.
        self._lasts = 2 * writer.commit_takes
        self._lease.renew(at_least=self._lasts)
        self._be_alone()
        with self._step(Step.COMMIT):
            self._lease.renew_if_stale(at_least=self._lasts)
            self._refuse_unswept(rewrite.prepared.plan)
            self._landing.is_possible = True
            try:
                self._landing.commit = writer.commit(rewrite)
            except LeaseLost:
                raise
            except (Transient, Conflict, Rejected, Integrity, CancelRequested) as error:
                self._landing.commit = self._landing.ask_after(error, until_landed=False)
                if self._landing.commit is None:
                    raise
                if isinstance(error, Integrity):
                    self._halt(one_line(error))
            except Exception as error:  # CommitUnknown, or a bug: either way nobody can tell yet
                log.warning("plan %s: its commit may have landed: %s", self._plan_id, one_line(error))
                self._landing.commit = self._landing.ask_after(error, until_landed=True)
        if (commit := self._landing.commit) is not None and commit.left_out:
            self._noted("what was left out", partial(self._leave_out, commit.left_out, numbers))

    def _be_alone(self) -> None:
        """Have what late writers left come along, then have the plan's partitions alone to its end."""
        if not isinstance(self._format, LeavesPlaces):
            return
        self._sweep()
        while taken := self._store.begin_commit(self._claim):
            log.info("plan %s waits for the sweep or the cleaner, which is in partition %s", self._plan_id, min(taken))
            self._lease.check()
            time.sleep(_SWEEP_LASTS_SECONDS)

    def _sweep(self) -> None:
        """Bring in what late writers left of the plan's partitions; the sweep's own loop does so where that fails."""
        try:
            sweep_places(
                self._table,
                format=self._format,
                store=self._store,
                spark=self._spark,
                partitions=self._claim.plan.partitions,
            )
        except Exception as error:
            log.warning("plan %s: late files are left to the sweep: %s", self._plan_id, one_line(error))

    def _halt(self, reason: str) -> None:
        """Halt the table of a commit that landed and can't be trusted all the same."""

        def halt() -> None:
            self._store.halt_table(self._table, reason)

        log.error("plan %s: table %s is halted: %s", self._plan_id, self._table.name, reason)
        patiently(self._plan_id, "followed by a halt of its table", halt, waits=self._ask_again)

    def _record(self) -> Outcome:
        commit = self._landing.commit
        assert commit is not None
        failpoint("before_record")
        begun = time.monotonic()
        figures = figures_of(self._claim.plan, commit)

        def record() -> None:
            self._store.complete(self._claim, commit, figures, self._milliseconds)

        try:
            patiently(self._plan_id, "recorded as completed", record, waits=self._ask_again)
        except LeaseLost as lost:
            return self._recovery.lost(lost)
        except Exception as silent:
            return self._recovery.stay(silent)
        self._milliseconds[Step.RECORD.value] = round((time.monotonic() - begun) * 1000)
        self._observer.step_finished(self._claim, Step.RECORD, time.monotonic() - begun)
        failpoint("after_record")
        log.info("%s", completed_line(self._claim.plan, commit, figures, self._milliseconds))
        outcome = Outcome(result=Result.COMPLETED, commit=commit, figures=figures, milliseconds=self._milliseconds)
        self._observer.plan_finished(self._claim, outcome)
        # A file that was written just between the last look and the move is seen again as soon as can be.
        self._sweep()
        return outcome

    def _give_up(self, error: Exception) -> Outcome:
        ended = self._recovery.give_up(error)
        return self._record() if ended is None else ended

    def _leave_out(self, items: Sequence[LeftOut], numbers: Sequence[int]) -> None:
        """Record groups left out; ``numbers`` are the claim's numbers of the groups that ``items`` count by."""
        self._store.leave_out(self._claim, [replace(item, group=numbers[item.group]) for item in items])

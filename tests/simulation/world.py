# SPDX-License-Identifier: Apache-2.0
"""One run: lakefold's processes, the tables and their writers, an operator, and the faults of a script."""

import copy
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from random import Random
from types import ModuleType
from typing import Any

import executors.cleaner
import executors.failed_run
import executors.lease
import executors.partition_locks
import executors.relocation.search
import executors.retries
import executors.run
import executors.sweep
import executors.take_over
import executors.worker
import lake.renewal
import lake.stopwatch
from lake.errors import LakefoldError, Rejected
from lake.model import Concurrency
from lake.plan import PlanState
from service.control.store.errors import DatabaseUnreachable, StoreError
from simulation.clock import Process, Scheduler, Threads, Time
from simulation.daemons import Daemon
from simulation.engine import CopyRows
from simulation.port import START, ModelFormat, prove
from simulation.records import Settings, TableRow
from simulation.script import HORIZON, PROCESSES, UNANSWERED, WRITERS, Act, Fault, Script, Stroke, TableSetup
from simulation.shapes import SHAPES
from simulation.shapes.locations.table import LocationsTable
from simulation.store import ModelStore
from simulation.table import Table
from simulation.watch import Watch
from simulation.writers import Aborted, Writes, damage, write

_HEALED_WITHIN = 500.0
_RESTART_SECONDS = 8.0
_SLOW_ANSWERS = 0.3
_THREADS = Threads()
_CORE = (
    executors.cleaner,
    executors.partition_locks,
    executors.lease,
    executors.retries,
    executors.failed_run,
    executors.sweep,
    executors.relocation.search,
    executors.take_over,
    executors.run,
    executors.worker,
    lake.renewal,
    lake.stopwatch,
)


class World:
    """The state of one run. ``violation`` is the violated invariant, with a message."""

    def __init__(self, script: Script, *, traced: bool = False) -> None:
        self.script, self.setup, self.random = script, script.setup, Random(~script.seed)
        self._drawn = self.random.random
        self.scheduler = _THREADS.scheduler = Scheduler()
        self.violation: tuple[str, str] | None = None
        self.trace: list[str] | None = [] if traced else None
        self.healing = False
        self.retention = self.setup.retention
        self.mounted = True
        #: a database was restored: plans may be missing in it or have an earlier state
        self.set_back = False
        self.without_writers: set[str] = set()
        self._faults = {(f.site, f.nth, f.when): f for f in script.items if isinstance(f, Fault)}
        #: the number of calls so far at each site of faults
        self._calls = dict.fromkeys((site for site, _, _ in self._faults), 0)
        self._starts: Counter[str] = Counter()
        #: the next group that is rewritten loses a row
        self._spoil = False
        #: lakefold's next clean is killed before it deletes a file
        self._dooms_a_clean = False
        self._elsewhere = Process("catalog")
        self.engines = (CopyRows(self),)
        self._keys = self._plans = 0
        self.watch = Watch(self)
        self._formats = {shape: SHAPES[shape].format(self) for shape in {t.shape for t in self.setup.tables}}
        self.tables = {t.name: self._table(t) for t in self.setup.tables}
        self.stores = [self._store() for _ in range(2 if self.setup.second_lakefold else 1)]
        self._backup = copy_of(self.stores[0])
        self._acts = sorted((i for i in script.items if isinstance(i, Act)), key=lambda act: act.at)
        self._daemons: dict[str, tuple[Process, int, bool]] = {}
        #: processes that continue a call whose answer was lost
        self.clients: list[Process] = []

    def _table(self, setup: TableSetup) -> Table:
        if setup.concurrency is Concurrency.SINGLE_WRITER:
            self.without_writers.add(setup.name)
        return SHAPES[setup.shape].table(setup, self.scheduler, self.watch.changed)

    def _store(self) -> ModelStore:
        store = ModelStore(
            self,
            Settings(max_attempts=self.setup.max_attempts, max_inflight_per_table=self.setup.max_inflight_per_table),
        )
        store.tables = {table.name: TableRow(concurrency=table.concurrency) for table in self.tables.values()}
        return store

    # The run.

    def run(self) -> tuple[str, str] | None:
        """Run the script, let all processes recover, and check the end. Returns the violated invariant, if any."""
        try:
            self._start()
            self.scheduler.run(HORIZON)
            if self.violation is None:
                self._heal()
                while self.violation is None and self.scheduler.now < HORIZON + _HEALED_WITHIN:
                    self.scheduler.run(self.scheduler.now + 10)
                    if self.watch.quiet():
                        break
            if self.violation is None:
                self.watch.end()
        finally:
            self.scheduler.end()
        return self.violation

    def _start(self) -> None:
        for table in self.tables.values():
            self.writes(Process("first"), table).fill(Random(self.script.seed))
        for name in WRITERS:
            self._start_writer(name, [act for act in self._acts if act.who == name])
        for number, _ in enumerate(self.stores):
            for place, name in enumerate(PROCESSES):
                self._start_daemon(f"{name}{'-other' * number}", number, place, loops=place < 2)
        for stroke in self.script.items:
            if isinstance(stroke, Stroke):
                self.scheduler.spawn(Process("chance"), partial(self._strike_down, stroke), after=stroke.at)
        operator = Process("operator")
        acts = [act for act in self._acts if act.who == "operator"]
        self.scheduler.spawn(operator, lambda: self._operate(acts))

    def _start_writer(self, name: str, acts: list[Act], after: float = 0.0) -> None:
        process = Process(name)
        process.restart = lambda: self._start_writer(name, acts, _RESTART_SECONDS)  # type: ignore[attr-defined]
        self.scheduler.spawn(process, lambda: write(self, process, acts), after=after)

    def _start_daemon(self, name: str, store: int, place: int, *, loops: bool, after: float = 0.0) -> None:
        skew = 0.0 if self.healing else self.setup.skews[place]
        process = Process(f"{name}/{self._starts[name]}", skew=skew)
        self._starts[name] += 1
        process.restart = lambda: self._start_daemon(name, store, place, loops=loops, after=_RESTART_SECONDS)  # type: ignore[attr-defined]
        self._daemons[name] = process, store, loops

        def start() -> None:
            Daemon(self, process, self.stores[store], loops=loops)

        self.scheduler.spawn(process, start, after=after)

    def kill(self, process: Process) -> None:
        """Kill a process; its supervisor starts it again."""
        self.tell(f"{process.name} is killed")
        if not process.dead:
            process.restart()  # type: ignore[attr-defined]
            self.scheduler.kill(process)

    def _heal(self) -> None:
        self.healing, self.mounted, self._calls = True, True, {}
        self._spoil = self._dooms_a_clean = False
        self.tell("everything heals")
        for process, _, _ in self._daemons.values():
            process.skew = 0.0
        self.retention = 5.0
        for table in self.tables.values():
            table.end_sharing()
            if table.name not in self.without_writers:
                tidy = [Act(HORIZON + 5 + number, "writer-3", "tidy", table.name, number) for number in range(2)]
                self._start_writer("writer-3", tidy)
        self.scheduler.spawn(Process("operator"), self._tidy_up)

    def _tidy_up(self) -> None:
        """Act as an operator after an outage: resume halted tables, withdraw instants that no database records.

        Savepoints are released too, including those that a suspended writer makes only now.
        """
        while True:
            for store in self.stores:
                for state in store.tables.values():
                    state.paused, state.halted = False, None
            for table in self.tables.values():
                table.saved.clear()
                for instant in list(table.pending()):
                    if instant.plan_id and not any(instant.plan_id in store.plans for store in self.stores):
                        try:
                            self.formats(table.shape).writer(table.ref, None).roll_back(instant.time)
                        except LakefoldError as error:
                            self.tell(f"rollback: {error}")
            self.scheduler.sleep(30)

    # Actions of people.

    def _operate(self, acts: list[Act]) -> None:
        for act in acts:
            self.scheduler.sleep(max(0.0, act.at - self.scheduler.now))
            self.tell(f"operator: {act.what} {act.table}")
            getattr(self, "_do_" + act.what.replace(" ", "_"))(self.known_as(act.table), Random(act.number))

    def _do_cancel(self, table: Table, random: Random) -> None:
        store = random.choice(self.stores)
        live = [row.plan.plan_id for row in store.live()]
        if live:
            store.request_cancel(random.choice(live))

    def _do_retry(self, table: Table, random: Random) -> None:
        store = random.choice(self.stores)
        failed = [row.plan.plan_id for row in store.plans.values() if row.state is PlanState.FAILED]
        if failed:
            try:
                store.retry(failed[-1])
            except StoreError as error:
                self.tell(f"retry: {error}")

    def _do_pause(self, table: Table, random: Random) -> None:
        for paused in (True, False):
            for store in self.stores:
                store.tables[table.name].paused = paused
                store.tables[table.name].halted = None
            self.scheduler.sleep(5 + random.random() * 30)

    def _do_concurrency(self, table: Table, random: Random) -> None:
        for store in self.stores:
            store.settings = Settings(
                max_attempts=self.setup.max_attempts, max_inflight_per_table=random.randrange(1, 4)
            )

    def _do_retention(self, table: Table, random: Random) -> None:
        self.retention = random.choice((5.0, 30.0, 60.0))

    def _do_lose_a_file(self, table: Table, random: Random) -> None:
        self._damage(table, "lose a file", random)

    def _do_cut_a_file(self, table: Table, random: Random) -> None:
        self._damage(table, "cut a file", random)

    def _damage(self, table: Table, what: str, random: Random) -> None:
        group = damage(table, what, random)
        if group is not None:
            self.tell(f"{table.name}: {group} is damaged")

    def _do_unmount(self, table: Table, random: Random) -> None:
        self.mounted = False
        self.scheduler.sleep(5 + random.random() * 40)
        self.mounted = True

    def _do_release_savepoints(self, table: Table, random: Random) -> None:
        table.saved.clear()

    def _do_restore_the_table(self, table: Table, random: Random) -> None:
        self._own(table, lambda writes: writes.restore(random))

    def _do_roll_back(self, table: Table, random: Random) -> None:
        self._dooms_a_clean = random.random() < 0.7
        self._own(table, lambda writes: writes.roll_back(random))

    def _do_switch_the_index(self, table: Table, random: Random) -> None:
        self._own(table, lambda writes: writes.switch_index())

    def _do_share(self, table: Table, random: Random) -> None:
        if not self.healing:  # an action that an earlier one delayed
            self._own(table, lambda writes: writes.share(random))

    def _do_halt(self, table: Table, random: Random) -> None:
        """Halt a table for long, as a failed verification or an operator does."""
        for store in self.stores:
            store.tables[table.name].halted = "by its operator"
        self.scheduler.sleep(60 + random.random() * 60)
        for store in self.stores:
            store.tables[table.name].halted = None

    def _do_rename(self, table: Table, random: Random) -> None:
        """Rename a table that has its name in a catalog; to lakefold it is a new table."""
        if isinstance(table, LocationsTable) and table.name == table.first_name:
            del self.tables[table.name]
            table.rename(f"{table.name}-renamed")
            self.tables[table.name] = table
            for store in self.stores:
                store.tables[table.name] = TableRow(concurrency=table.concurrency)

    def _own(self, table: Table, act: Callable[[Writes], object]) -> None:
        """Act as the table's owner, under the name of this process, which holds the lock."""
        if table.name not in self.without_writers:
            assert self.scheduler.current is not None
            try:
                act(self.writes(self.scheduler.current.process, table))
            except (Aborted, LakefoldError) as error:
                self.tell(f"the owner of {table.name}: {error}")

    def _do_spoil(self, table: Table, random: Random) -> None:
        self._spoil = True

    def _do_allow_writers(self, table: Table, random: Random) -> None:
        """Register a table without writers as a table whose writers take the lock.

        lakefold and the processes of its clients are stopped first: no lock excludes them from the writers' commits.
        """
        for process, _, _ in list(self._daemons.values()):
            self.kill(process)
        for client in self.clients:
            self.scheduler.kill(client)
        table.concurrency = Concurrency.OCC
        for store in self.stores:
            store.tables[table.name].concurrency = Concurrency.OCC
        self.without_writers.discard(table.name)

    def _do_restore_the_database(self, table: Table, random: Random) -> None:
        """Restore the first database to its initial state, and restart every process that uses it."""
        for process, number, _ in list(self._daemons.values()):
            if number == 0:
                self.kill(process)
        self.set_back = True
        forgotten = self.stores[0].plans.keys() - self._backup.plans.keys()
        self.stores[0] = self._backup
        for table_ in self.tables.values():
            row = self._backup.tables.setdefault(table_.name, TableRow(concurrency=table_.concurrency))
            row.concurrency = table_.concurrency
            table_.forget(forgotten)
        self._backup = copy_of(self.stores[0])

    # Faults of port calls.

    def before(self, name: str, *, lake: bool = False) -> None:
        """Let time pass before a call. Raises Killed, or the error of a fault in the script."""
        self.scheduler.sleep(self._drawn() ** 4)
        if name in self._calls:
            self._calls[name] += 1
            self._strike_at(name, "before", lake)
        if lake and not self.mounted:
            raise Rejected(f"{name}: the lake is not there")

    def after(self, name: str, *, lake: bool = False) -> None:
        """Time passes after a call has done its work."""
        if self._drawn() < _SLOW_ANSWERS:
            self.scheduler.sleep(self._drawn() ** 4)
        if name in self._calls:
            self._strike_at(name, "after", lake)

    def _strike_at(self, name: str, when: str, lake: bool) -> None:
        fault = self._faults.get((name, self._calls[name], when))
        if fault is None:
            return
        task = self.scheduler.current
        assert task is not None
        self.tell(f"here strikes: {fault}")
        if fault.what == "crash":
            self.kill(task.process)
        elif fault.what == "sleep":
            task.process.sleeps(self.scheduler.now, fault.seconds)
            self.scheduler.sleep(0)
        elif not lake:
            raise DatabaseUnreachable("the database does not answer")
        elif fault.outcome is not None:
            raise fault.outcome(f"{fault.site} failed")

    def unanswered(self) -> float | None:
        """Return for how many seconds a call that begins now continues without an answer; None if it is answered."""
        if UNANSWERED in self._calls:
            self._calls[UNANSWERED] += 1
            fault = self._faults.get((UNANSWERED, self._calls[UNANSWERED], "before"))
            if fault is not None:
                self.tell(f"here strikes: {fault}")
                return fault.seconds
        return None

    def _strike_down(self, stroke: Stroke) -> None:
        process, _, _ = self._daemons[stroke.who]
        self.tell(f"{process.name}: {stroke.what}")
        if stroke.what == "crash":
            self.kill(process)
        else:
            process.sleeps(self.scheduler.now, stroke.seconds)

    # Queries of other modules.

    def worked_on(self, rows: dict[int, Any]) -> dict[int, Any]:
        """Return the rows that an engine writes for a group, some seconds later, less one row if one is to be lost."""
        self.scheduler.sleep(self.random.random() * 5.0)
        spoil, self._spoil = self._spoil, False
        return dict(list(rows.items())[1:]) if spoil else rows

    def clean_begins(self) -> None:
        """Note that a clean of lakefold is on a timeline. Raises Killed if an owner's rollback waits for this clean."""
        doomed, self._dooms_a_clean = self._dooms_a_clean, False
        if doomed:
            assert self.scheduler.current is not None
            self.kill(self.scheduler.current.process)

    def elsewhere(self, seconds: float, call: Callable[[], object]) -> None:
        """Let another process make a call, and wait for it. The call is made even if the caller dies."""
        self.scheduler.spawn(self._elsewhere, call, after=seconds)
        self.scheduler.sleep(seconds)

    def known_as(self, name: str) -> Table:
        """Return the table with this first name, whatever its present name."""
        found = self.tables.get(name)
        return found if found is not None else next(t for t in self.tables.values() if t.first_name == name)

    def formats(self, name: str) -> ModelFormat:
        """Return the adapter of a shape, by ``TableRef.format``."""
        return self._formats[name]

    def writes(self, process: Process, table: Table) -> Writes:
        """Return the writes of ``process`` to ``table``."""
        return SHAPES[table.shape].writes(self, process, table)

    def wall_clock(self) -> datetime:
        """Return the time by the clock of the current process's host."""
        skew = self.scheduler.current.process.skew if self.scheduler.current else 0.0
        return START + timedelta(seconds=self.scheduler.now + skew)

    def new_key(self) -> int:
        """Return a new record key."""
        self._keys += 1
        return self._keys

    def new_plan_id(self) -> str:
        """Return the id of the next plan; ids sort by time."""
        self._plans += 1
        return f"p{self._plans:03d}"

    def tell(self, text: str) -> None:
        """Add a line to the trace, if there is one."""
        if self.trace is not None:
            who = self.scheduler.current.process.name if self.scheduler.current else ""
            self.trace.append(f"{self.scheduler.now:7.1f} s  {who:14}  {text}")

    def violated(self, what: str, text: str) -> None:
        """End the run, since an invariant is violated."""
        if self.violation is None:
            self.violation = what, text
            self.tell(f"VIOLATED {what}: {text}")
            self.scheduler.stop()


def copy_of(store: ModelStore) -> ModelStore:
    """A backup of a database."""
    backup = ModelStore(store.world, store.settings)
    backup.plans = {key: copy.copy(row) for key, row in store.plans.items()}
    backup.tables = {key: copy.copy(row) for key, row in store.tables.items()}
    backup.live_partitions, backup.keepers = dict(store.live_partitions), dict(store.keepers)
    backup.rows = [copy.copy(row) for row in store.rows]
    return backup


@contextmanager
def simulated() -> Iterator[None]:
    """Inside the block, the executors' modules use simulated threads, time and names, and verify rows in memory."""
    time, was = Time(_THREADS), logging.root.manager.disable
    stand_ins: dict[str, Any] = {
        "threading": _THREADS,
        "time": time,
        "verify_rewrite": prove,
        "failpoint": lambda name: None,
        "executor_name": lambda: _THREADS.scheduler.current.process.name,
    }
    taken: list[tuple[ModuleType, str, Any]] = []
    for module in _CORE:
        for name, stand_in in stand_ins.items():
            if hasattr(module, name):
                taken.append((module, name, getattr(module, name)))
                setattr(module, name, stand_in)
    poll = executors.lease._POLL_SECONDS
    executors.lease._POLL_SECONDS = 2.0
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        for module, name, real in taken:
            setattr(module, name, real)
        executors.lease._POLL_SECONDS = poll
        logging.disable(was)

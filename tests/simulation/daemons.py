# SPDX-License-Identifier: Apache-2.0
"""lakefold's processes: the real worker, rescuer, sweep and cleaner in loops, and a scan loop around the real planner.

A loop first checks whether there is work: most rounds would find none and change nothing. From then on all code is
real, and another process may be faster. The loops of two daemons elect no leader here: leadership saves work, and
correctness must not depend on it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from executors.cleaner import CleanJob, clean_table
from executors.context import RunContext
from executors.sweep import sweep_table
from executors.take_over import take_over_one
from executors.worker import Worker, WorkerSettings
from lake.errors import LakefoldError
from lake.model import FileSlice, TableRef
from lake.plan import ClusteringGroup, Plan, PlanKind
from planner.candidates import PlanningConstraints
from planner.planner import plan_table
from planner.policy.policy import SizingPolicy
from service.control.store.errors import PartitionsLocked, StoreError
from simulation.clock import Process
from simulation.script import PARTITIONS, Bug
from simulation.shapes.locations.table import LocationsTable
from simulation.shapes.staged import StagedTable
from simulation.table import Table

if TYPE_CHECKING:
    from simulation.store import ModelStore
    from simulation.world import World

_SMALL = 40
HEARTBEAT = timedelta(seconds=6)
POLICY = SizingPolicy(
    small_file_limit_bytes=_SMALL,
    target_file_max_bytes=40,
    max_bytes_per_group=60,
    max_num_groups=3,
    quiet_period=timedelta(0),
    compaction=False,
)
_MOST_PLANS = 2


class Daemon:
    """One process on one database: an executor and, with ``loops``, all other loops of a daemon."""

    def __init__(self, world: "World", process: Process, store: "ModelStore", *, loops: bool) -> None:
        self.world, self.process, self.store = world, process, store
        #: table → the state that its last scan found, if it found no work
        self._nothing: dict[str, object] = {}
        settings = WorkerSettings(poll_interval=timedelta(seconds=13))
        world.scheduler.spawn(process, lambda: self._work(settings), after=world.random.random() * 5)
        if loops:
            for every, loop in ((18, self._rescue), (14, self._scan), (20, self._clean), (25, self._sweep)):
                self._loop(every, loop)
            if any(isinstance(table, LocationsTable) for table in world.tables.values()):
                self._loop(10, self._put_back)
            if any(table.setup.services for table in world.tables.values()):
                self._loop(15, self._services)

    def _work(self, settings: WorkerSettings) -> None:
        Worker(
            self._context(),
            executor=self.process.name,
            settings=settings,
            drop_session=lambda: None,
            is_usable=lambda: not self.store.idle(self.process.name),
        ).run()

    def _context(self) -> RunContext:
        return RunContext(
            store=self.store,
            spark=_no_spark,
            formats=self.world.formats,
            engines=self.world.engines,
            heartbeat=HEARTBEAT,
        )

    def _loop(self, every: float, loop: Callable[[], None]) -> None:
        def run() -> None:
            while True:
                try:
                    loop()
                except (LakefoldError, StoreError, Bug) as error:
                    self.world.tell(f"loop ends early: {error}")
                self.world.scheduler.sleep(every * (1 + self.world.random.random() / 10))

        self.world.scheduler.spawn(self.process, run, after=self.world.random.random() * every)

    def _rescue(self) -> None:
        while self.store.silent(self.process.name):
            take_over_one(
                self.process.name,
                self._context(),
            )

    def _scan(self) -> None:
        if not self.world.healing:
            for table in list(self.world.tables.values()):
                self._plan(table)

    def _plan(self, table: Table) -> None:
        """A tick of ``service.control.planning.scan.scan_and_plan`` for one table."""
        state = self.store.tables[table.name]
        if state.paused or state.halted is not None:
            return
        held = self.store.held(table.name)
        if self._nothing.get(table.name) == (table.version, held) or not self._worth_a_look(table, held):
            return
        ending, version = self.store.locked_partitions(table.name), table.version
        make_plan = self._scan_table(table)
        held = ending | self.store.locked_partitions(table.name)
        plan = make_plan(held, state.quarantined)
        if plan is None:
            self._nothing[table.name] = version, held
            return
        with suppress(PartitionsLocked):
            self.store.add_plan(plan)

    def _scan_table(self, table: Table) -> Callable[[Mapping[str, str], Collection[str]], Plan | None]:
        """Scan the table; returns the function that makes a plan from the scan.

        Arrow, NumPy and the real planner take longer than the rest of a run, so most runs do not use them.
        """
        plan_id = self.world.new_plan_id()
        if not self.world.setup.real_planner:
            seen = self.world.formats(table.shape).small_files(table.ref, _SMALL)
            most = self.world.setup.partitions_per_plan
            return lambda held, quarantined: quick_plan(
                table.ref, [file for file in seen if file.path not in quarantined], plan_id, held, most
            )
        snapshot = self.world.formats(table.shape).snapshot(table.ref)
        return lambda held, quarantined: (
            plan_table(
                snapshot,
                POLICY,
                now=snapshot.taken_at,
                plan_id=plan_id,
                constraints=PlanningConstraints(locked_partitions=held, quarantined=quarantined),
            ).plan
        )

    @staticmethod
    def _worth_a_look(table: Table, held: Mapping[str, str]) -> bool:
        if len(set(held.values())) >= _MOST_PLANS:
            return False
        bases = [piece.base for piece in table.live().values()]
        small = [base.partition for base in bases if base.bytes < _SMALL and base.partition not in held]
        return len(set(small)) < len(small)

    def _clean(self) -> None:
        for table in list(self.world.tables.values()):
            state = self.store.tables[table.name]
            held = "halted" if state.halted is not None else "paused" if state.paused else None
            self.process.retention = self.world.retention
            retention = timedelta(seconds=self.world.retention)
            waiting = [row for row in self.store.rows if not row.deleted and row.table == table.name]
            if not any(self.store.is_due(row, retention) or table.is_undone(row.version) for row in waiting):
                continue
            report = clean_table(
                CleanJob(table=table.ref, skip_reason=held, retention=retention),
                self._context(),
                format=self.world.formats(table.shape),
            )
            if report.deleted:
                self.world.tell(f"cleaned {len(report.deleted)} files of {table.name}")

    def _put_back(self) -> None:
        """Sweep the relocated partitions, also of halted and renamed tables."""
        for table in list(self.world.tables.values()):
            if isinstance(table, LocationsTable) and table.parameters and self.may_put_back(table):
                before = dict(table.owed)
                # A load may begin after this line and end before the next one.
                left = self.world.formats(table.shape).put_back(table.ref)  # type: ignore[attr-defined]
                self.world.watch.put_right(table, {name: before[name] for name in before.keys() - left})
            elif isinstance(table, LocationsTable):
                self.world.watch.put_right(table, dict(table.owed))

    def may_put_back(self, table: Table) -> bool:
        """Return True if the sweep may run; a halt forbids only rewriting."""
        return True

    def _services(self) -> None:
        """The table's own services, as ``service.server.daemon.maintenance`` has them run."""
        for table in list(self.world.tables.values()):
            state = self.store.tables[table.name]
            if table.setup.services and not state.paused and state.halted is None:
                self.process.services_retention = self.world.retention
                retained = [due.version for due in self.store.awaiting_deletion(table.ref)]
                with self.world.formats(table.shape).writer(table.ref, None) as writer:
                    writer.maintain(("clean",), retained)

    def _sweep(self) -> None:
        for table in list(self.world.tables.values()):
            left = any(i.plan_id is not None for i in table.pending()) or self.store.ended_plans_without_commit(
                table.ref
            )
            left = (
                left
                or table.files_of_nobody()
                or (isinstance(table, StagedTable) and self.store.watched_long(table.ref))
            )
            if left and self.store.tables[table.name].halted is None:
                sweep_table(table.ref, self._context(), format=self.world.formats(table.shape))


def quick_plan(
    table: TableRef, files: Sequence[FileSlice], plan_id: str, held: Mapping[str, str], most: int
) -> Plan | None:
    """All small files of each free partition as one group, ``most`` partitions."""
    groups = [
        ClusteringGroup(partition=partition, slices=slices, output_files=1)
        for partition in PARTITIONS
        if partition not in held and len(slices := tuple(f for f in files if f.partition == partition)) > 1
    ]
    if not groups:
        return None
    return Plan(
        plan_id=plan_id,
        table=table,
        kind=PlanKind.CLUSTERING,
        groups=tuple(groups[:most]),
        options=POLICY.rewrite_options,
        snapshot_instant="",
    )


def _no_spark() -> None:
    return None

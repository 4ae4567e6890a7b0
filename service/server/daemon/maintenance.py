# SPDX-License-Identifier: Apache-2.0
"""The loops that tidy tables: delete what retention has released, withdraw what stragglers left behind."""

import logging
import math
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial

from executors.cleaner import CleanJob, CleanReport, clean_tables
from executors.observer import Observer
from executors.relocation.pruning import prune_relocations
from executors.relocation.recent import RecentLocations, sweep_recent_locations
from executors.relocation.sweep import restore_original_locations
from executors.relocation.watch import PartitionWatch
from executors.sweep import sweep_table
from lake import capabilities
from lake.capabilities import RecordsRelocations, RunsTableServices, UsesRetention
from lake.errors import TableGone, one_line
from lake.formats import load_format
from lake.model import TableRef
from lake.ports import Capability, SparkProvider, TableFormat
from lake.units import format_bytes
from service.control.config.catalog import Catalog
from service.control.config.loader import Config
from service.control.config.tables import configure_table
from service.control.store import Figures, Store, StoreError, TableState

logger = logging.getLogger(__name__)

RECENT_RELOCATION = timedelta(hours=1)
"""How long after a partition's move writers that began before it are expected to end: they are looked for often."""

FORGET_INTERVAL = timedelta(days=1)
"""How often all partitions of a table have their turn of forgetting what was moved long ago."""

RELOCATION_SEARCH_INTERVAL = timedelta(minutes=10)
"""How often a table is asked for moves that the database does not know: two listings, beside a look at a new table."""


def clean_jobs(config: Config, figures: Figures, names: Iterable[str] | None = None) -> list[CleanJob]:
    """One job for each table with superseded versions (of ``names`` only), with the retention now in force.

    How the table's writers are kept apart is what it is registered with, for every process alike. Halted, paused and
    switched-off tables are held. Raises ConfigError for a bad rule.
    """
    waiting = {entry.table for entry in figures.superseded}
    wanted = waiting if names is None else waiting & set(names)
    jobs = []
    for state in figures.tables:
        if state.name in wanted:
            table = configure_table(config, state.ref)
            held = _skip_reason(state, table.mode, paused=figures.paused)
            jobs.append(CleanJob(table=state.ref, retention=table.policy.retention, skip_reason=held))
    return jobs


def _skip_reason(state: TableState, mode: str, *, paused: bool) -> str | None:
    if state.halted:
        return f"halted: {state.halted_reason}"
    if state.paused:
        return "paused"
    if paused:
        return "the service is paused"
    return "mode off" if mode == "off" else None


class Maintenance:
    """Ticks of the clean loop and of the sweep loop of one process.

    ``missed`` is called when a table is not where it was any more: it may have another name by now.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        spark: SparkProvider,
        observer: Observer,
        on_success: Callable[[], None] = lambda: None,
        on_missing: Callable[[], None] = lambda: None,
    ) -> None:
        self._config, self._store, self._spark, self._observer = config, store, spark, observer
        self._catalog = Catalog(config)
        self._on_success, self._on_missing = on_success, on_missing
        self._failing: set[str] = set()
        #: those that were missed, and that it was told
        self._missing: set[str] = set()
        self._watch = PartitionWatch()
        self._recent_sweep = RecentLocations()
        #: table → when all its partitions had their turn of forgetting, or the name after which that goes on
        self._forget_progress: dict[str, float | str] = {}
        self._clean_failing: set[str] = set()
        #: name and place of a table → when it was last asked for moves
        self._searched_at: dict[tuple[str, str], float] = {}
        #: table → when its services last ran
        self._services_ran_at: dict[str, float] = {}

    def clean(self) -> list[CleanReport]:
        """One round over all tables. Raises what the store raises, ConfigError for a bad rule."""
        jobs = clean_jobs(self._config, self._store.figures())
        reports = clean_tables(jobs, store=self._store, spark=self._spark, observer=self._observer)
        for report in reports:
            if report.deleted_files:
                logger.info(
                    "table %s: deleted %d superseded files, %s",
                    report.table,
                    report.deleted_files,
                    format_bytes(report.bytes_freed),
                )
            self._notify_clean_state(report)
        if not any(report.error for report in reports):
            self._on_success()
        return reports

    def restore_locations(self) -> int:
        """Move partitions whose retention has passed into the directories that were their own; how many.

        One table's failure is its own. Raises what the store raises, ConfigError for a bad rule.
        """
        names, done = self._store.relocated_tables(), 0
        paused = bool(names) and self._store.service_pause() is not None
        for state in self._store.table_states(names) if names else ():
            table = configure_table(self._config, state.ref)
            if _skip_reason(state, table.mode, paused=paused) is None:
                age = table.policy.retention

                def home(ref: TableRef, adapter: TableFormat, age: timedelta = age) -> int:
                    return restore_original_locations(
                        ref, format=adapter, store=self._store, spark=self._spark, older_than=age
                    ).relocated_back

                done += self._run_for_table(state, home)
        return done

    def forget_relocations(self) -> int:
        """Forget moves of partitions whose former places are gone for good; how many. Some partitions at a time.

        One table's failure is its own. Raises what the store raises, ConfigError for a bad rule.
        """
        names, done = self._store.relocated_tables(), 0
        paused = bool(names) and self._store.service_pause() is not None
        for state in self._store.table_states(names) if names else ():
            begun = self._forget_progress.get(state.name, "")
            if not isinstance(begun, str) and time.monotonic() - begun < FORGET_INTERVAL.total_seconds():
                continue
            if _skip_reason(state, configure_table(self._config, state.ref).mode, paused=paused) is not None:
                continue

            def forget(
                ref: TableRef, adapter: TableFormat, after: str = begun if isinstance(begun, str) else ""
            ) -> int:
                self._forget_progress[ref.name] = time.monotonic()  # where it fails
                count, last = prune_relocations(ref, format=adapter, store=self._store, after=after)
                self._forget_progress[ref.name] = last or time.monotonic()
                return count

            done += self._run_for_table(state, forget)
        return done

    def _notify_clean_state(self, report: CleanReport) -> None:
        """Tell the webhook where a table's cleaning begins to fail and where it works again."""
        table, error = report.table, report.error
        if error is not None and table not in self._clean_failing:
            self._store.notify("clean.failing", table=table, reason=error)
            self._clean_failing.add(table)
        elif error is None and table in self._clean_failing:
            self._store.notify("clean.recovered", table=table, reason="")
            self._clean_failing.discard(table)

    def run_table_services(self) -> list[str]:
        """The services that tables of the sources asked for and that are due, table by table; what was done.

        One table's failure is its own. Raises what the store raises, ConfigError for a bad rule.
        """
        figures, done = self._store.figures(), []
        for state in figures.tables:
            table = configure_table(self._config, state.ref)
            wanted, now = table.policy.table_services, time.monotonic()
            if not wanted or table.mode != "compact" or not self._catalog.covers(state):
                continue
            if _skip_reason(state, table.mode, paused=figures.paused):
                continue
            if (
                now
                < self._services_ran_at.get(state.name, -math.inf)
                + table.policy.table_services_interval.total_seconds()
            ):
                continue
            self._services_ran_at[state.name] = now
            retained = [due.version for due in self._store.awaiting_deletion(state.ref)]
            try:
                adapter = load_format(state.ref.format)
                capabilities.require_capability(adapter, state.ref, Capability.TABLE_SERVICES)
                with adapter.writer(state.ref, self._spark) as writer:
                    assert isinstance(writer, RunsTableServices)
                    if isinstance(writer, UsesRetention):
                        writer.retention = table.policy.retention
                    lines = writer.maintain(wanted, retained)
            except Exception as error:
                logger.warning("table %s: its services were not all run: %s", state.name, one_line(error))
                continue
            for line in lines:
                logger.info("table %s: %s", state.name, line)
                done.append(f"{state.name}: {line}")
        return done

    def sweep(self) -> int:
        """Withdraw pending instants of ended plans, of every table that ever had a plan; how many were withdrawn.

        Of tables that are halted or off only partitions that were moved are seen to. One table's failure is its own.
        Raises what the store raises.
        """
        figures = self._store.figures()
        planned = {row.table for row in figures.plans}

        def withdraw(ref: TableRef, adapter: TableFormat, *, halted: bool) -> int:
            finds_moves = self._should_search_relocations(ref)
            done = sweep_table(
                ref,
                format=adapter,
                store=self._store,
                spark=self._spark,
                halted=halted,
                watch=self._watch,
                discovers_relocations=finds_moves,
            )
            if finds_moves:
                self._searched_at[ref.name, ref.location] = time.monotonic()
            return done

        return sum(
            self._run_for_table(state, partial(withdraw, halted=state.halted or state.mode == "off"))
            for state in figures.tables
            if state.name in planned or self._should_search_relocations(state.ref)
        )

    def _should_search_relocations(self, table: TableRef) -> bool:
        """Whether the table is to be asked for moves that the database does not know under its name."""
        asked_at = self._searched_at.get((table.name, table.location), -math.inf)
        return time.monotonic() - asked_at > RELOCATION_SEARCH_INTERVAL.total_seconds() and isinstance(
            load_format(table.format), RecordsRelocations
        )

    def sweep_recent(self) -> int:
        """Look into the places that partitions left a short while ago: writers that began there are ending now.

        Returns how many files and partitions were put right. Raises what the store raises.
        """

        def sweep_table(ref: TableRef, adapter: TableFormat) -> int:
            report = sweep_recent_locations(
                ref,
                format=adapter,
                store=self._store,
                spark=self._spark,
                within=RECENT_RELOCATION,
                recent=self._recent_sweep,
            )
            return report.copied + report.superseded + report.relocated_back

        names = self._store.relocated_tables(RECENT_RELOCATION)
        return sum(
            self._run_for_table(state, sweep_table) for state in (self._store.table_states(names) if names else ())
        )

    def _run_for_table(self, state: TableState, job: Callable[[TableRef, TableFormat], int]) -> int:
        """What ``work`` did to a table. Its failure is told once."""
        try:
            done = job(state.ref, load_format(state.ref.format))
        except StoreError:
            raise
        except Exception as error:
            if isinstance(error, TableGone) and state.name not in self._missing:
                self._missing.add(state.name)
                self._on_missing()
            if state.name not in self._failing:
                self._failing.add(state.name)
                logger.warning("table %s: sweep failed: %s", state.name, one_line(error))
            return 0
        self._failing.discard(state.name)
        self._missing.discard(state.name)
        return done

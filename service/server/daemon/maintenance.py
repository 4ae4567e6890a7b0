# SPDX-License-Identifier: Apache-2.0
"""The maintenance loops: they delete superseded files, withdraw instants of ended plans, and sweep relocations."""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial

from executors.cleaner import CleanJob, CleanReport, clean_tables
from executors.context import RunContext
from executors.observer import Observer
from executors.relocation.pruning import prune_relocations
from executors.relocation.recent import RecentLocations, sweep_recent_locations
from executors.relocation.search import NoRelocationSearch, RelocationSearch
from executors.relocation.sweep import restore_original_locations
from executors.relocation.watch import PartitionWatch
from executors.sweep import sweep_table
from lake import capabilities
from lake.capabilities import RunsTableServices, UsesRetention
from lake.errors import TableGone, one_line
from lake.formats import load_format
from lake.model import TableRef
from lake.ports import Capability, SparkProvider, TableFormat
from lake.relocation.capabilities import RecordsRelocations
from lake.units import format_bytes
from service.control.config.catalog import Catalog
from service.control.config.loader import Config
from service.control.config.table_settings import configure_table
from service.control.store import Store, StoreError, TableState

logger = logging.getLogger(__name__)

RECENT_RELOCATION = timedelta(hours=1)
"""The age up to which a relocation is recent: writers that began before it may still commit, so it is swept often."""

PRUNE_INTERVAL = timedelta(days=1)
"""The interval between prunings of a table's old relocations."""


def clean_jobs(config: Callable[[], Config], store: Store, names: Iterable[str] | None = None) -> Iterator[CleanJob]:
    """Yield one job for each table with superseded files (of ``names`` only), with the retention in force at its turn.

    ``config`` returns the configuration in force. The table's concurrency comes from its registration, so that it is
    equal in every process. A job has a ``skip_reason`` if its table is halted, paused or off, or the service is paused.
    Raises ConfigError for a bad rule.
    """
    waiting = {entry.table for entry in store.figures().superseded}
    for name in sorted(waiting if names is None else waiting & set(names)):
        yield _clean_job(config, store, name)


def _clean_job(config: Callable[[], Config], store: Store, name: str) -> CleanJob:
    state, paused = store.table_state(name), store.service_pause() is not None
    table = configure_table(config(), state.ref)
    return CleanJob(
        table=state.ref,
        retention=table.policy.retention,
        skip_reason=skip_reason(state, table.mode, paused=paused),
        current=partial(_clean_job, config, store, name),
    )


def skip_reason(state: TableState, mode: str, *, paused: bool) -> str | None:
    """Return why no files of a table are deleted now; None if they may be. ``paused``: the service is paused."""
    if state.halted:
        return f"halted: {state.halted_reason}"
    if state.paused:
        return "paused"
    if paused:
        return "the service is paused"
    return "mode off" if mode == "off" else None


class Maintenance:
    """The work of one process's loops that clean and sweep.

    ``on_missing`` is called if a table is no longer at its location: it may have another name now.
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
        self._config, self._store, self._spark = config, store, spark
        self._context = RunContext(store=store, spark=spark, observer=observer)
        self._catalog = Catalog(config)
        self._on_success, self._on_missing = on_success, on_missing
        self._failing: set[str] = set()
        #: missing tables that were reported to ``on_missing``
        self._missing: set[str] = set()
        self._watch = PartitionWatch()
        self._recent_sweep = RecentLocations()
        #: table → time of the last pruning of its relocations, or the partition after which pruning continues
        self._prune_progress: dict[str, float | str] = {}
        self._clean_failing: set[str] = set()
        self._search = RelocationSearch()
        #: table → time of the last run of its services
        self._services_ran_at: dict[str, float] = {}

    def use_config(self, config: Config) -> None:
        """Use ``config`` from now on, also in a running round of cleaning."""
        self._config, self._catalog = config, Catalog(config)

    def clean(self) -> list[CleanReport]:
        """Clean each table with superseded files once. Raises StoreError, and ConfigError for a bad rule."""
        reports = clean_tables(clean_jobs(lambda: self._config, self._store), self._context)
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
        """Move partitions back to their original locations if they were relocated longer than their retention ago.

        Returns how many it moved. The failure of a table does not affect the others. Raises StoreError, and ConfigError
        for a bad rule.
        """
        done = 0
        for name in sorted(self._store.relocated_tables()):
            # The previous tables may have taken long.
            state, paused = self._store.table_state(name), self._store.service_pause() is not None
            table = configure_table(self._config, state.ref)
            if skip_reason(state, table.mode, paused=paused) is None:
                age = table.policy.retention

                def restore(ref: TableRef, adapter: TableFormat, age: timedelta = age) -> int:
                    return restore_original_locations(ref, self._context, format=adapter, older_than=age).relocated_back

                done += self._run_for_table(state, restore)
        return done

    def prune_relocations(self) -> int:
        """Prune relocations whose previous locations no longer exist, some partitions at a time; returns how many.

        The failure of a table does not affect the others. Raises StoreError, and ConfigError for a bad rule.
        """
        names, done = self._store.relocated_tables(), 0
        paused = bool(names) and self._store.service_pause() is not None
        for state in self._store.table_states(names) if names else ():
            begun = self._prune_progress.get(state.name, "")
            if not isinstance(begun, str) and time.monotonic() - begun < PRUNE_INTERVAL.total_seconds():
                continue
            if skip_reason(state, configure_table(self._config, state.ref).mode, paused=paused) is not None:
                continue

            def prune(ref: TableRef, adapter: TableFormat, after: str = begun if isinstance(begun, str) else "") -> int:
                self._prune_progress[ref.name] = time.monotonic()  # even a failed try delays the next one
                count, last = prune_relocations(ref, format=adapter, store=self._store, after=after)
                self._prune_progress[ref.name] = last or time.monotonic()
                return count

            done += self._run_for_table(state, prune)
        return done

    def _notify_clean_state(self, report: CleanReport) -> None:
        """Notify the webhook when a table's cleaning begins to fail and when it works again."""
        table, error = report.table, report.error
        if error is not None and table not in self._clean_failing:
            self._store.notify("clean.failing", table=table, reason=error)
            self._clean_failing.add(table)
        elif error is None and table in self._clean_failing:
            self._store.notify("clean.recovered", table=table, reason="")
            self._clean_failing.discard(table)

    def run_table_services(self) -> list[str]:
        """Run the due table services that the configuration requests, and return a line for each result.

        The failure of a table does not affect the others. Raises StoreError, and ConfigError for a bad rule.
        """
        figures, done = self._store.figures(), []
        for state in figures.tables:
            table = configure_table(self._config, state.ref)
            wanted, now = table.policy.table_services, time.monotonic()
            if not wanted or table.mode != "compact" or not self._catalog.covers(state):
                continue
            if (
                now
                < self._services_ran_at.get(state.name, -math.inf)
                + table.policy.table_services_interval.total_seconds()
            ):
                continue
            # The services of the previous tables may have taken long.
            paused = self._store.service_pause() is not None
            if skip_reason(self._store.table_state(state.name), table.mode, paused=paused):
                continue
            self._services_ran_at[state.name] = now
            retained = [due.version for due in self._store.awaiting_deletion(state.ref)]
            try:
                capabilities.require_capability(table.adapter, state.ref, Capability.TABLE_SERVICES)
                with table.adapter.writer(state.ref, self._spark) as writer:
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
        """Sweep every table that ever had a plan (``sweep_table``); return the number of withdrawn instants.

        Tables without plans are only searched for relocations, under the name that the configuration gives them. In
        tables that are halted or off the sweep handles only relocated partitions and, if halted, pending instants of
        ended plans. The failure of a table does not affect the others. Raises StoreError.
        """
        figures = self._store.figures()
        planned = {row.table for row in figures.plans}

        def withdraw(
            ref: TableRef,
            adapter: TableFormat,
            *,
            halted: bool,
            is_off: bool,
            was_planned: bool,
            search: RelocationSearch,
        ) -> int:
            searches = search.is_due(ref) and isinstance(adapter, RecordsRelocations)
            if not (was_planned or searches):
                return 0
            return sweep_table(
                ref,
                self._context,
                format=adapter,
                halted=halted,
                is_off=is_off,
                watch=self._watch,
                search=search,
            )

        return sum(
            self._run_for_table(
                state,
                partial(
                    withdraw,
                    halted=state.halted,
                    is_off=state.mode == "off",
                    was_planned=state.name in planned,
                    search=NoRelocationSearch() if self._catalog.is_former_name(state) else self._search,
                ),
            )
            for state in figures.tables
            if state.name in planned or self._search.is_due(state.ref)
        )

    def sweep_recent(self) -> int:
        """Sweep the previous locations of recently relocated partitions, where earlier writers may still commit.

        Returns the number of copied files, superseded files and partitions moved back. Raises StoreError.
        """

        def sweep_table(ref: TableRef, adapter: TableFormat) -> int:
            report = sweep_recent_locations(
                ref,
                self._context,
                format=adapter,
                within=RECENT_RELOCATION,
                recent=self._recent_sweep,
            )
            return report.copied + report.superseded + report.relocated_back

        names = self._store.relocated_tables(RECENT_RELOCATION)
        return sum(
            self._run_for_table(state, sweep_table) for state in (self._store.table_states(names) if names else ())
        )

    def _run_for_table(self, state: TableState, job: Callable[[TableRef, TableFormat], int]) -> int:
        """Run ``job`` for a table and return its result, 0 after a failure.

        A failure is logged unless the previous job for the table failed too.
        """
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
                logger.warning("table %s: maintenance failed: %s", state.name, one_line(error))
            return 0
        self._failing.discard(state.name)
        self._missing.discard(state.name)
        return done

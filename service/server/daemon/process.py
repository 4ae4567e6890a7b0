# SPDX-License-Identifier: Apache-2.0
"""The process of ``lakefold serve``: its parts, its loops and its shutdown.

SIGTERM or SIGINT drains: nothing new begins, running plans end, leader rows are released. A second signal stops the
plans before their commits and requeues them. A third signal has the operating system's default effect. SIGHUP reloads
the configuration file. A process whose SQLite file was replaced stops as after the second signal.
"""

import gc
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import TracebackType

from executors.context import RunContext
from executors.engines import create_engines
from executors.observer import Observers
from executors.outcome import RunResult
from executors.shared_session import SparkSessions
from executors.spark import formats_missing_in_session
from executors.take_over import take_over_one
from executors.worker import Worker, WorkerSettings
from lake.process_identity import executor_name
from lake.units import format_duration
from lake.version import __version__
from service.control.config.catalog import Catalog
from service.control.config.environment import unknown_variables
from service.control.config.loader import Config
from service.control.config.table_settings import check_rules, global_settings
from service.control.lake_cache import LakeCache
from service.control.leadership import CLEAN_ROLE, NOTIFY_ROLE, SCAN_ROLE, SWEEP_ROLE, Leadership
from service.control.planning.observed_reads import observe_hdfs_reads, observe_spark_reads
from service.control.store import ProcessFacts, StoreError
from service.control.wiring import check_store_schema, start_spark, store_settings
from service.modes import PLANNED_MODES, Role
from service.problems import ExitCode
from service.server.api.context import Context
from service.server.api.oidc_provider import create_provider
from service.server.api.security import check_exposure
from service.server.api.token_cache import TokenCache
from service.server.daemon import signals
from service.server.daemon.config_reload import ConfigReload
from service.server.daemon.instrumented_store import ExecutorSlots, InstrumentedStore, OutageLog
from service.server.daemon.loops import Loop, LoopFailureLog, LoopRunner
from service.server.daemon.maintenance import Maintenance
from service.server.daemon.scheduler import ScanHooks, Scheduler
from service.server.http.app import create_app
from service.server.http.server import HttpServer
from service.server.notify.channels import open_channels
from service.server.notify.delivery import MessageDelivery, Receiver, open_webhook
from service.server.notify.heartbeat import Heartbeat
from service.server.observability import logs
from service.server.observability.metrics import Metrics
from service.server.observability.metrics_page import MetricsPage
from service.server.observability.telemetry import Telemetry

logger = logging.getLogger(__name__)

_SCAN_TICK = _NOTIFY_TICK = timedelta(seconds=1)
#: interval of the sweep of recently relocated partitions; a late writer's rows become visible within twice this time
_RECENT_SWEEP_TICK = timedelta(seconds=5)
_PRUNE_TICK = timedelta(minutes=10)
_TRENDS_TICK = timedelta(minutes=5)
#: if the figures are older than this many refresh intervals, the database does not answer
_READY_REFRESHES = 3


class Daemon:
    """One process in one role, from opening its database to closing it. Use it as a context manager.

    ``on_first_refresh`` is called after the figures of all tables have been read for the first time.

    Raises ConfigError for a bad rule, DatabaseUnreachable or SchemaMismatch if the database can't be used, ValueError
    for an unknown role.
    """

    def __init__(self, config: Config, role: str, on_first_refresh: Callable[[], None] = lambda: None) -> None:
        if role not in tuple(Role):
            raise ValueError(f"role {role!r} is unknown; use {', '.join(Role)}")
        check_rules(config)
        self.config, self.role, self._on_first_refresh = config, role, on_first_refresh
        self.name = executor_name()
        self._is_scheduler, self._is_executor = role in ("all", "scheduler"), role in ("all", "executor")
        settings, durations = config.daemon, global_settings(config)
        self.metrics = Metrics(role)
        self._metrics_page = MetricsPage(self.metrics.process_registry, self.metrics.table_series)
        self._telemetry = Telemetry(config, self.name)
        webhook = open_webhook(config) if self._is_scheduler else None
        channels = open_channels(config) if self._is_scheduler else {}
        slots = settings.executor_slots if self._is_executor else 0
        self._slots = ExecutorSlots(self.metrics, slots, durations.lease)
        url = config.database.url.get_secret_value()
        self.store = check_store_schema(InstrumentedStore(url, store_settings(config), self._slots))
        self._lease, self._replaced = durations.lease, False
        self.store.set_observer(OutageLog(self.metrics, self.store.url, self._stop_on_replaced_database))
        self._lake_cache = LakeCache(self.store)
        roles = (SCAN_ROLE,) * self._is_scheduler + (CLEAN_ROLE, SWEEP_ROLE) * self._is_executor
        roles += (NOTIFY_ROLE,) * bool(webhook or channels)
        self.sessions = SparkSessions(
            lambda: start_spark(self.config, active_formats=self.store.formats_in_use),
            missing_formats=lambda: formats_missing_in_session(self.store.formats_of_live_plans()),
            is_busy=lambda: self._slots.is_busy,
        )
        self._observer = Observers(self._telemetry.combined_with(self.metrics), self.sessions.observer())
        self.leadership = Leadership(self.store, self.name, roles, settings.leader_ttl, can_lead=self._can_lead)
        self._scan_heartbeat = Heartbeat(config.notify.heartbeat_url, config.notify.heartbeat_interval)
        self._clean_heartbeat = Heartbeat(config.notify.clean_heartbeat_url, config.notify.heartbeat_interval)
        self.reloading = ConfigReload(config, self._use_config)
        self._api_context: Context | None = None
        catalog = Catalog(
            config, registered=self.store.table_states, spark=self.sessions if self._is_executor else None
        )
        self.scheduler = Scheduler(
            config,
            self.store,
            catalog,
            self.metrics,
            is_leader=self._leader_check(SCAN_ROLE),
            actor=f"scheduler {self.name}",
            hooks=ScanHooks(on_success=self._scan_heartbeat.beat, planning_trace=self._telemetry.planning_trace),
        )
        self.maintenance = Maintenance(
            config,
            self.store,
            self.sessions,
            self._observer,
            on_success=self._clean_heartbeat.beat,
            on_missing=self.scheduler.request_discovery,
        )
        receivers: dict[str | None, Receiver] = {} if webhook is None else {None: webhook}
        receivers.update(channels)
        self._receivers = tuple(receivers.values())
        self.deliveries = tuple(
            MessageDelivery(
                config.notify, self.store, receiver, self.metrics, is_leader=self._can_deliver, channel=channel
            )
            for channel, receiver in receivers.items()
        )
        self._run_context = RunContext(
            store=self.store,
            spark=self.sessions,
            engines=create_engines(self.sessions),
            observer=self._observer,
            heartbeat=durations.heartbeat,
        )
        self.worker = Worker(
            self._run_context,
            is_usable=self.sessions.ensure_usable,
            executor=self.name,
            settings=WorkerSettings(slots=max(1, slots), poll_interval=settings.claim_interval),
        )
        failures = LoopFailureLog()
        #: the loops that run until the process drains, and the loops that run until it ends
        self._work_loops, self._drain_loops = LoopRunner(failures.log_failure), LoopRunner(failures.log_failure)
        self._sweep_interval = durations.sweep_interval
        self._refreshed_at: datetime | None = None
        self._draining, self._aborted, self._worker_failed = threading.Event(), False, False

    def __enter__(self) -> "Daemon":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sessions.close()
        self._scan_heartbeat.close()
        self._clean_heartbeat.close()
        for receiver in self._receivers:
            receiver.close()
        self._telemetry.close()
        self.store.close()

    def run(self) -> ExitCode:
        """Run until ``drain`` or ``abort``.

        Raises Rejected if the address can't be bound, or if it is reachable by others and there is no token.
        """
        context = self._api_context = self._context()
        check_exposure(context)
        app = create_app(context)
        with HttpServer(self.config.http, app, on_stop=app.state.progress.close) as server:
            logger.info(
                "lakefold %s, role %s, as %s on %s; listening on %s",
                *(__version__, self.role, self.name, self.store.url, server.url),
            )
            if context.serves_api:
                logger.info("the page is at %s/", server.url)
            self._start_loops()
            worker = threading.Thread(target=self._run_worker, name="worker")
            if self._is_executor:
                worker.start()
            self._draining.wait()
            logger.info("draining")
            self._work_loops.stop()
            self.scheduler.stop()
            self._release()
            if self._is_executor:
                worker.join()
            self._drain_loops.stop()
            self._sign_off()
        logger.info("ended")
        if self._worker_failed:
            return ExitCode.ERROR
        if self._replaced:
            return ExitCode.DATABASE
        return ExitCode.INTERRUPTED if self._aborted else ExitCode.OK

    def run_once(self) -> ExitCode:
        """Do one round of the role's work: scan, answer requests, run every plan; in role ``all`` then sweep and clean.

        Serves no metrics. Returns PARTIAL if a plan failed or remains. Parts that another process leads are skipped.
        """
        self._renew()
        if self._is_scheduler and self.leadership.is_leader(SCAN_ROLE):
            self.scheduler.tick(all_tables=True)
            self.scheduler.answer_requests()
            self.scheduler.scan_written()
            self.scheduler.wait()
            self._prune()
            self._record_trends()
        result = ExitCode.OK
        if self._is_executor:
            self._add_loop(self._leader_loop)
            self._drain_loops.start()
            tally = self.worker.run_once()
            if tally[RunResult.FAILED] or self.store.time_until_due() is not None:
                result = ExitCode.PARTIAL
            if self.role == "all" and not self._draining.is_set():
                self._sweep()
                self._clean()
            self._drain_loops.stop()
        for delivery in self.deliveries:
            delivery.tick()
        self.scheduler.stop()
        self._release()
        self._sign_off()
        if self._replaced:
            return ExitCode.DATABASE
        return ExitCode.INTERRUPTED if self._draining.is_set() else result

    def drain(self) -> None:
        """Begin nothing new; ``run`` returns when the running plans have ended."""
        self._draining.set()
        self.worker.drain()

    def reload(self) -> None:
        """Load the configuration file again, and store at once in this process's row whether that worked."""
        self.reloading.reload()
        with suppress(StoreError):  # the next renewal stores it
            self._register()

    def abort(self) -> None:
        """Drain, and stop the running plans before their commits."""
        self._aborted = True
        self.drain()
        self.worker.abort()

    def _stop_on_replaced_database(self) -> None:
        """Stop: claims, leases and roles of this process are in the file that was replaced."""
        self._replaced = True
        self.abort()

    def _use_config(self, config: Config) -> None:
        """Put a reloaded configuration into force; see ``ConfigReload`` for the settings that it may change."""
        self.config = config
        self.store.use_settings(replace(store_settings(config), lease=self._lease))
        self.scheduler.use_config(config)
        self.maintenance.use_config(config)
        if self._api_context is not None:
            self._api_context.use_config(config)
            self._lake_cache.invalidate()

    def readiness_problem(self) -> str | None:
        """Return None if the database answered lately and the role can work, else the reason why not."""
        if (lost := self.store.file_problem()) is not None:
            return lost
        if self._draining.is_set():
            return "draining: running plans end, nothing new begins"
        if self._is_executor and (broken := self.sessions.failure) is not None:
            return broken
        if self._refreshed_at is None:
            return "the database has not answered yet"
        age = datetime.now(UTC) - self._refreshed_at
        if age > _READY_REFRESHES * self.config.daemon.metrics_interval + timedelta(seconds=1):
            return f"the database has not answered for {age.total_seconds():.0f} s"
        return None

    def _context(self) -> Context:
        return Context(
            config=self.config,
            store=self.store,
            metrics=self.metrics,
            metrics_page=self._metrics_page,
            lake_cache=self._lake_cache,
            readiness_problem=self.readiness_problem,
            role=self.role,
            tokens=TokenCache(self.store),
            oidc=create_provider(self.config),
        )

    # The loops.

    def _loops(self) -> Iterator[Loop]:
        """Yield the loops of the role. The tick of a leader's loop does nothing if this process is not the leader."""
        daemon = self.config.daemon
        yield self._leader_loop
        yield Loop(name="metrics", interval=daemon.metrics_interval, tick=self._refresh, runs_while_draining=True)
        if self._is_scheduler:
            yield Loop(name="scan", interval=_SCAN_TICK, tick=self.scheduler.tick)
            yield Loop(name="prune", interval=_PRUNE_TICK, tick=self._prune)
            yield Loop(name="trends", interval=_TRENDS_TICK, tick=self._record_trends)
            if self.config.reads.spark_event_logs or self.config.reads.hdfs_audit_logs:
                yield Loop(name="reads", interval=self.config.reads.interval, tick=self._observe_reads)
            yield Loop(name="requests", interval=daemon.request_interval, tick=self.scheduler.answer_requests)
            yield Loop(name="written", interval=daemon.request_interval, tick=self.scheduler.scan_written)
        for delivery in self.deliveries:
            name = "notify" if delivery.channel is None else f"notify {delivery.channel}"
            yield Loop(name=name, interval=_NOTIFY_TICK, tick=delivery.tick)
        if self._is_executor:
            yield Loop(name="rescue", interval=daemon.rescue_interval, tick=self._rescue)
            yield Loop(name="clean", interval=daemon.clean_interval, tick=self._clean)
            yield Loop(name="sweep", interval=self._sweep_interval, tick=self._sweep)
            yield Loop(name="places", interval=_RECENT_SWEEP_TICK, tick=self._sweep_recent)

    @property
    def _leader_loop(self) -> Loop:
        return Loop(
            name="leader", interval=self.config.daemon.leader_ttl / 3, tick=self._renew, runs_while_draining=True
        )

    def _add_loop(self, loop: Loop) -> None:
        (self._drain_loops if loop.runs_while_draining else self._work_loops).add_loop(
            loop.interval, loop.name, loop.tick
        )

    def _start_loops(self) -> None:
        for loop in self._loops():
            self._add_loop(loop)
        with suppress(StoreError):  # the store has logged it; the next renewal follows
            self._renew()
        self._drain_loops.start()
        self._work_loops.start()

    def _can_lead(self, role: str) -> bool:
        return role not in (CLEAN_ROLE, SWEEP_ROLE) or self.sessions.failure is None

    def _leader_check(self, role: str) -> Callable[[], bool]:
        return lambda: self.leadership.is_leader(role)

    def _can_deliver(self) -> bool:
        return self.leadership.is_leader(NOTIFY_ROLE) and not self._draining.is_set()

    def _renew(self) -> None:
        try:
            self.leadership.renew()
        finally:
            self._publish_leadership()
        self._register()

    def _register(self) -> None:
        facts = self._process_facts()
        self.metrics.set_config_problem(facts.config_problem is not None)
        self.store.register_process(facts, self.config.daemon.leader_ttl)

    def _process_facts(self) -> ProcessFacts:
        problem = self.sessions.failure
        return ProcessFacts(
            name=self.name,
            role=self.role,
            host=socket.gethostname(),
            version=__version__,
            slots=self.config.daemon.executor_slots if self._is_executor else 0,
            resource_groups=" ".join(self.config.daemon.resource_groups) or None,
            spark="broken" if problem is not None else self.sessions.state,
            spark_ui=self.sessions.ui,
            problem=problem,
            config_problem=self.reloading.problem(),
        )

    def _publish_leadership(self) -> None:
        for role in {SCAN_ROLE, CLEAN_ROLE, SWEEP_ROLE, *self.leadership.roles}:
            self.metrics.set_leader(role, self.leadership.is_leader(role))

    def _release(self) -> None:
        with suppress(StoreError):  # without a database the rows expire by themselves
            self.leadership.release()
        self._publish_leadership()

    def _sign_off(self) -> None:
        with suppress(StoreError):  # without the sign-off the process is shown as silent
            self.store.unregister_process(self.name)

    def _refresh(self) -> None:
        self._slots.publish()
        self._publish_leadership()
        try:
            lake = self._lake_cache.refresh()
            planned = (table for table in lake.figures.tables if table.mode in PLANNED_MODES)
            self.metrics.start_table_counters({table.name: table.format for table in planned})
            self.metrics.stored.publish(lake)
            if self._refreshed_at is None:
                self._on_first_refresh()
            self._refreshed_at = datetime.now(UTC)
        finally:  # /metrics shows this process's current counters even without a database
            self._metrics_page.render()

    def _run_worker(self) -> None:
        try:
            self.worker.run()
        except BaseException:
            logger.exception("the executor ended in an unexpected error")
        if not self._draining.is_set():
            self._worker_failed = True
            self.drain()

    def _rescue(self) -> None:
        """Take over the plans of silent executors, even while all slots of this process are busy."""
        while (
            not self._draining.is_set()
            and self.sessions.failure is None
            and take_over_one(self.name, self._run_context) is not None
        ):
            pass

    def _record_trends(self) -> None:
        if self.leadership.is_leader(SCAN_ROLE):
            self.store.record_trends()

    def _observe_reads(self) -> None:
        if self.leadership.is_leader(SCAN_ROLE):
            reads = self.config.reads
            if reads.spark_event_logs:
                observe_spark_reads(self.store, reads.spark_event_logs)
            if reads.hdfs_audit_logs:
                observe_hdfs_reads(self.store, reads.hdfs_audit_logs, reads.hdfs_ignored_users)

    def _prune(self) -> None:
        if self.leadership.is_leader(SCAN_ROLE):
            self.store.prune_sign_ins()
            self.store.prune_reads()
            self.store.prune_audit(self.config.database.audit_retention)
        keep, deleted = self.config.database.plan_retention, 0
        while keep and self.leadership.is_leader(SCAN_ROLE) and not self._draining.is_set():
            pruned = self.store.prune(keep)
            deleted += pruned
            if not pruned:
                break
        if deleted:
            logger.info("deleted %d plans and requests that ended more than %s ago", deleted, format_duration(keep))

    def _clean(self) -> None:
        if self.leadership.is_leader(CLEAN_ROLE):
            self.maintenance.clean()
            self.maintenance.restore_locations()
            self.maintenance.prune_relocations()
            self.maintenance.run_table_services()

    def _sweep(self) -> None:
        if self.leadership.is_leader(SWEEP_ROLE):
            self.maintenance.sweep()

    def _sweep_recent(self) -> None:
        if self.leadership.is_leader(SWEEP_ROLE):
            self.maintenance.sweep_recent()


def serve(config: Config, role: str, once: bool = False, log_format: str | None = None) -> int:
    """Run one process in ``role`` (all, scheduler, executor or api) and return its exit code. Main thread only.

    With ``once`` it does the work that is due now and ends. ``log_format`` replaces that of the configuration.
    Raises the errors of ``Daemon`` and ``Daemon.run``.
    """
    logs.configure_logging(config.daemon.log_level, log_format or config.daemon.log_format)
    for notice in (*config.renamed, *unknown_variables().values()):
        logger.warning("%s", notice)
    with Daemon(config, role, on_first_refresh=_freeze_heap) as daemon:
        signals.install(drain=daemon.drain, abort=daemon.abort, reload=daemon.reload)
        return daemon.run_once() if once else daemon.run()


def _freeze_heap() -> None:
    """Exclude all current objects from later garbage collections.

    Most of these objects live as long as the process: modules, routes, the states of the tables. A collection that
    traverses them stops every thread, for more than a tenth of a second at each refresh of a large lake's figures.
    """
    gc.collect()
    gc.freeze()

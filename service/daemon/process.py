# SPDX-License-Identifier: Apache-2.0
"""``lakefold serve``: one process, its loops, and how it ends.

SIGTERM or SIGINT drains: nothing new begins, the plans under way end, leader rows are given up. A second signal
stops the plans before their commits and requeues them. A third has the system's own effect.
"""

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import TracebackType

from executors.engines import engines
from executors.observer import Observers
from executors.outcome import Result
from executors.rescue import rescue_one
from executors.sessions import Sessions
from executors.spark import lacking
from executors.worker import Worker, WorkerSettings
from lake.formats import load_format
from lake.identity import executor_name
from lake.units import format_duration
from lake.version import __version__
from service.api.context import Context
from service.api.oidc import provider_of
from service.api.security import check_exposure
from service.api.tokens import TokenCache
from service.config.catalog import Catalog
from service.config.environment import unread_variables
from service.config.loader import Config
from service.config.tables import check_rules, for_all_tables
from service.daemon import signals
from service.daemon.garbage import spare_what_stays
from service.daemon.loops import Complaints, Loop
from service.daemon.scheduler import Scheduler
from service.daemon.ticks import Ticks
from service.daemon.upkeep import Upkeep
from service.daemon.watched_store import Outages, Slots, WatchedStore
from service.documents.lake_cache import LakeCache
from service.http.app import create_app
from service.http.server import HttpServer
from service.leadership import CLEAN_ROLE, NOTIFY_ROLE, SCAN_ROLE, SWEEP_ROLE, Leadership
from service.modes import PLANNED, Role
from service.notify.delivery import Delivery, open_webhook
from service.notify.heartbeat import Heartbeat
from service.observability import logs
from service.observability.metrics import Metrics
from service.observability.metrics_page import MetricsPage
from service.observability.observers import Telemetry
from service.problems import ExitCode
from service.store import ProcessFacts, StoreError
from service.wiring import checked, start_spark, store_settings

logger = logging.getLogger(__name__)

_SCAN_TICK = _NOTIFY_TICK = timedelta(seconds=1)
#: a late writer's rows are to be seen within twice this
_PLACES_TICK = timedelta(seconds=5)
_PRUNE_TICK = timedelta(minutes=10)
_TRENDS_TICK = timedelta(minutes=5)
#: figures older than so many refreshes mean that the database does not answer
_READY_REFRESHES = 3


class Daemon:
    """One process in one role, from opening its database to closing it. Use as a context manager.

    ``settled`` is called when all tables have been read for the first time.

    Raises ConfigError for a bad rule, DatabaseUnreachable or SchemaBehind where the database can't be used,
    ValueError for an unknown role.
    """

    def __init__(self, config: Config, role: str, settled: Callable[[], None] = lambda: None) -> None:
        if role not in tuple(Role):
            raise ValueError(f"role {role!r} is unknown; use {', '.join(Role)}")
        check_rules(config)
        self.config, self.role, self._settled = config, role, settled
        self.name = executor_name()
        self._schedules, self._executes = role in ("all", "scheduler"), role in ("all", "executor")
        settings, knobs = config.daemon, for_all_tables(config)
        self.metrics = Metrics(role)
        self._page = MetricsPage(self.metrics.few, self.metrics.of_tables)
        self._telemetry = Telemetry(config, self.name)
        webhook = open_webhook(config) if self._schedules else None
        slots = settings.executor_slots if self._executes else 0
        self._slots = Slots(self.metrics, slots, knobs.lease)
        url = config.database.url.get_secret_value()
        self.store = checked(WatchedStore(url, store_settings(config), self._slots))
        self.store.watch(Outages(self.metrics, self.store.url))
        self._lake_cache = LakeCache(self.store)
        roles = (SCAN_ROLE,) * self._schedules + (CLEAN_ROLE, SWEEP_ROLE) * self._executes
        roles += (NOTIFY_ROLE,) * (webhook is not None)
        self.sessions = Sessions(
            lambda: start_spark(config, at_work=self.store.formats_at_work),
            lacks=lambda: lacking(self.store.formats_of_plans()),
            busy=lambda: self._slots.busy,
        )
        self._observer = Observers(self._telemetry.beside(self.metrics), self.sessions.observer())
        self.leadership = Leadership(self.store, self.name, roles, settings.leader_ttl, able=self._able)
        self._scan_beat = Heartbeat(config.notify.heartbeat_url, config.notify.heartbeat_interval)
        self._clean_beat = Heartbeat(config.notify.clean_heartbeat_url, config.notify.heartbeat_interval)
        catalog = Catalog(config, known=self.store.tables, spark=self.sessions if self._executes else None)
        self.scheduler = Scheduler(
            config,
            self.store,
            catalog,
            self.metrics,
            leads=self._leads(SCAN_ROLE),
            actor=f"scheduler {self.name}",
            succeeded=self._scan_beat.beat,
            planning=self._telemetry.planning,
        )
        self.upkeep = Upkeep(
            config,
            self.store,
            self.sessions,
            self._observer,
            succeeded=self._clean_beat.beat,
            missed=self.scheduler.search,
        )
        self._webhook = webhook
        self.delivery = (
            Delivery(config.notify, self.store, webhook, self.metrics, leads=self._delivers) if webhook else None
        )
        self.worker = Worker(
            store=self.store,
            spark=self.sessions,
            usable=self.sessions.usable,
            engines=engines(self.sessions),
            executor=self.name,
            observer=self._observer,
            settings=WorkerSettings(slots=max(1, slots), heartbeat=knobs.heartbeat, idle=settings.claim_interval),
        )
        complaints = Complaints()
        #: until the process begins to drain, and until it ends
        self._work, self._to_the_end = Ticks(complaints.tell), Ticks(complaints.tell)
        self._sweep_interval = knobs.sweep_interval
        self._figures_at: datetime | None = None
        self._draining, self._aborted, self._broken = threading.Event(), False, False

    def __enter__(self) -> "Daemon":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sessions.close()
        self._scan_beat.close()
        self._clean_beat.close()
        if self._webhook is not None:
            self._webhook.close()
        self._telemetry.close()
        self.store.close()

    def run(self) -> ExitCode:
        """Work until told to end. Raises Rejected where the address can't be bound, or may not be without a token."""
        context = self._context()
        check_exposure(context)
        app = create_app(context)
        with HttpServer(self.config.http, app, on_stop=app.state.progress.close) as server:
            logger.info(
                "lakefold %s, role %s, as %s on %s; listening on %s",
                *(__version__, self.role, self.name, self.store.url, server.url),
            )
            if context.serves_api:
                logger.info("the page is at %s/", server.url)
            self._begin()
            worker = threading.Thread(target=self._run_worker, name="worker")
            if self._executes:
                worker.start()
            self._draining.wait()
            logger.info("draining")
            self._work.stop()
            self.scheduler.stop()
            self._release()
            if self._executes:
                worker.join()
            self._to_the_end.stop()
            self._farewell()
        logger.info("ended")
        if self._broken:
            return ExitCode.ERROR
        return ExitCode.INTERRUPTED if self._aborted else ExitCode.OK

    def run_once(self) -> ExitCode:
        """Scan and answer requests, run every plan, then clean; each part as the role has it. Serves no metrics.

        The result is partial where a plan failed or is left. Parts that another process leads are left to it.
        """
        self._renew()
        if self._schedules and self.leadership.holds(SCAN_ROLE):
            self.scheduler.tick(everything=True)
            self.scheduler.answer_requests()
            self.scheduler.look_at_written()
            self.scheduler.wait()
            self._prune()
            self._keep_trends()
        result = ExitCode.OK
        if self._executes:
            self._add(self._renewing)
            self._to_the_end.start()
            tally = self.worker.run_once()
            if tally[Result.FAILED] or self.store.due_in() is not None:
                result = ExitCode.PARTIAL
            if self.role == "all" and not self._draining.is_set():
                self._sweep()
                self._clean()
            self._to_the_end.stop()
        if self.delivery is not None:
            self.delivery.tick()
        self.scheduler.stop()
        self._release()
        self._farewell()
        return ExitCode.INTERRUPTED if self._draining.is_set() else result

    def drain(self) -> None:
        """Begin nothing new; ``run`` returns when what is under way has ended."""
        self._draining.set()
        self.worker.drain()

    def abort(self) -> None:
        """Stop the plans under way before their commits, too."""
        self._aborted = True
        self.drain()
        self.worker.abort()

    def not_ready(self) -> str | None:
        """None when the database answered lately and nothing else keeps the role from its work, else why not."""
        if self._draining.is_set():
            return "draining: running plans end, nothing new begins"
        if self._executes and (broken := self.sessions.broken) is not None:
            return broken
        if self._figures_at is None:
            return "the database has not answered yet"
        age = datetime.now(UTC) - self._figures_at
        if age > _READY_REFRESHES * self.config.daemon.metrics_interval + timedelta(seconds=1):
            return f"the database has not answered for {age.total_seconds():.0f} s"
        return None

    def _context(self) -> Context:
        return Context(
            config=self.config,
            store=self.store,
            metrics=self.metrics,
            page=self._page,
            lake_cache=self._lake_cache,
            not_ready=self.not_ready,
            role=self.role,
            tokens=TokenCache(self.store),
            oidc=provider_of(self.config),
        )

    # The loops.

    def _loops(self) -> Iterator[Loop]:
        """The loops of the role. What only a leader does asks at each tick whether this process is the leader."""
        daemon = self.config.daemon
        yield self._renewing
        yield Loop(name="metrics", every=daemon.metrics_interval, tick=self._refresh, to_the_end=True)
        if self._schedules:
            yield Loop(name="scan", every=_SCAN_TICK, tick=self.scheduler.tick)
            yield Loop(name="prune", every=_PRUNE_TICK, tick=self._prune)
            yield Loop(name="trends", every=_TRENDS_TICK, tick=self._keep_trends)
            yield Loop(name="requests", every=daemon.request_interval, tick=self.scheduler.answer_requests)
            yield Loop(name="written", every=daemon.request_interval, tick=self.scheduler.look_at_written)
        if self.delivery is not None:
            yield Loop(name="notify", every=_NOTIFY_TICK, tick=self.delivery.tick)
        if self._executes:
            yield Loop(name="rescue", every=daemon.rescue_interval, tick=self._rescue)
            yield Loop(name="clean", every=daemon.clean_interval, tick=self._clean)
            yield Loop(name="sweep", every=self._sweep_interval, tick=self._sweep)
            yield Loop(name="places", every=_PLACES_TICK, tick=self._sweep_hot)

    @property
    def _renewing(self) -> Loop:
        return Loop(name="leader", every=self.config.daemon.leader_ttl / 3, tick=self._renew, to_the_end=True)

    def _add(self, loop: Loop) -> None:
        (self._to_the_end if loop.to_the_end else self._work).every(loop.every, loop.name, loop.tick)

    def _begin(self) -> None:
        for loop in self._loops():
            self._add(loop)
        with suppress(StoreError):  # the store has told; the next renewal comes
            self._renew()
        self._to_the_end.start()
        self._work.start()

    def _able(self, role: str) -> bool:
        return role not in (CLEAN_ROLE, SWEEP_ROLE) or self.sessions.broken is None

    def _leads(self, role: str) -> Callable[[], bool]:
        return lambda: self.leadership.holds(role)

    def _delivers(self) -> bool:
        return self.leadership.holds(NOTIFY_ROLE) and not self._draining.is_set()

    def _renew(self) -> None:
        try:
            self.leadership.renew()
        finally:
            self._show_leads()
        self.store.beat(self._facts(), self.config.daemon.leader_ttl)

    def _facts(self) -> ProcessFacts:
        problem = self.sessions.broken
        return ProcessFacts(
            name=self.name,
            role=self.role,
            host=socket.gethostname(),
            version=__version__,
            slots=self.config.daemon.executor_slots if self._executes else 0,
            spark="broken" if problem is not None else self.sessions.state,
            spark_ui=self.sessions.ui,
            problem=problem,
        )

    def _show_leads(self) -> None:
        for role in {SCAN_ROLE, CLEAN_ROLE, SWEEP_ROLE, *self.leadership.roles}:
            self.metrics.leads(role, self.leadership.holds(role))

    def _release(self) -> None:
        with suppress(StoreError):  # without a database the rows expire by themselves
            self.leadership.release()
        self._show_leads()

    def _farewell(self) -> None:
        with suppress(StoreError):  # it is shown as silent then
            self.store.farewell(self.name)

    def _refresh(self) -> None:
        self._slots.show()
        self._show_leads()
        try:
            lake = self._lake_cache.refresh()
            tables = lake.figures.tables
            self.metrics.tables_known(
                {table.name: table.format for table in tables},
                [table.name for table in tables if table.mode in PLANNED],
            )
            self.metrics.stored.publish(lake)
            if self._figures_at is None:
                self._settled()
            self._figures_at = datetime.now(UTC)
        finally:  # what this process counted is news without a database, too
            self._page.render()

    def _run_worker(self) -> None:
        try:
            self.worker.run()
        except BaseException:
            logger.exception("the executor ended in an error nobody handled")
        if not self._draining.is_set():
            self._broken = True
            self.drain()

    def _rescue(self) -> None:
        """Silent executors' plans are taken over even while all slots of this one are busy."""
        while (
            not self._draining.is_set()
            and self.sessions.broken is None
            and rescue_one(
                self.name,
                formats=load_format,
                store=self.store,
                spark=self.sessions,
                observer=self._observer,
                heartbeat=for_all_tables(self.config).heartbeat,
            )
            is not None
        ):
            pass

    def _keep_trends(self) -> None:
        if self.leadership.holds(SCAN_ROLE):
            self.store.keep_trends()

    def _prune(self) -> None:
        if self.leadership.holds(SCAN_ROLE):
            self.store.prune_sign_ins()
            self.store.prune_audit(self.config.database.keep_audit)
        keep, forgotten = self.config.database.keep_finished, 0
        while keep and self.leadership.holds(SCAN_ROLE) and not self._draining.is_set():
            pruned = self.store.prune(keep)
            forgotten += pruned
            if not pruned:
                break
        if forgotten:
            logger.info("forgot %d plans and requests that ended more than %s ago", forgotten, format_duration(keep))

    def _clean(self) -> None:
        if self.leadership.holds(CLEAN_ROLE):
            self.upkeep.clean()
            self.upkeep.bring_home()
            self.upkeep.forget()
            self.upkeep.maintain()

    def _sweep(self) -> None:
        if self.leadership.holds(SWEEP_ROLE):
            self.upkeep.sweep()

    def _sweep_hot(self) -> None:
        if self.leadership.holds(SWEEP_ROLE):
            self.upkeep.sweep_hot()


def serve(config: Config, role: str, once: bool = False) -> int:
    """Run one process in ``role`` (all, scheduler, executor or api) to its end; its exit code. Main thread only.

    With ``once`` it does what there is to do now and ends. Raises what ``Daemon`` and ``Daemon.run`` raise.
    """
    logs.configure(config.daemon.log_level, config.daemon.log_format)
    for unread in unread_variables().values():
        logger.warning("%s", unread)
    with Daemon(config, role, settled=spare_what_stays) as daemon:
        signals.install(drain=daemon.drain, abort=daemon.abort)
        return daemon.run_once() if once else daemon.run()

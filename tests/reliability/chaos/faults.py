# SPDX-License-Identifier: Apache-2.0
"""Each kind of fault as a function of the stage; it returns a description, empty if no process was there."""

import signal
import sqlite3
import time
from collections.abc import Callable, Mapping
from typing import Any

from postgres import Server

from chaos.processes import Victim
from chaos.schedule import Injection
from chaos.stage import Stage, System

TABLE = "t.chaos"
#: SQLite waits no longer than this for another process's transaction
_OUTAGE_SECONDS = 4.0
#: what an operator changes in the configuration, followed by a restart
_CHANGES: tuple[Mapping[str, str | int], ...] = (
    {"small_file_limit": "20KiB", "target_file_max": "64KiB"},
    {"max_num_groups": 1},
    {"sort_columns": "id"},
    {"retention": "4s"},
    {"engine": "spark"},
    {"compact_log_files": 1},
    {},
)
#: what stands for a fault of the daemons while only the writer is there
_OF_THE_WRITER = {
    "kill": "kill_writer",
    "kill_jvm": "kill_writer_jvm",
    "kill_python": "kill_writer",
    "pause": "pause_writer",
    "pause_jvm": "pause_writer",
    "expire_lock": "pause_writer",
}
_REQUESTS = ((), ("--kind", "compaction"), ("--set", "engine=spark"), ("-p", "dt=2026-01-02"), ("--dry-run",))


class Faults:
    """Does injections. ``server`` is that of the databases; None for SQLite."""

    def __init__(self, stage: Stage, server: Server | None) -> None:
        self._stage, self._server, self._is_out = stage, server, False
        #: whether a daemon may have other settings than the first ones
        self.changed = False

    def inject(self, injection: Injection) -> None:
        """Do one injection now."""
        stage, kind = self._stage, self._kind(injection.kind)
        act: Callable[[Injection], str] = getattr(self, f"_{kind}")
        done = act(injection)
        stage.say(f"{kind}: {done}" if done else f"{kind}: nobody there")
        if done:
            stage.counts[kind] += 1

    def _kind(self, kind: str) -> str:
        """Where only one side is there, its faults stand for those of the other one."""
        stage = self._stage
        if stage.serving and not stage.writing:
            return kind.replace("_writer", "")
        if stage.writing and not stage.serving:
            return _OF_THE_WRITER.get(kind, kind)
        return kind

    def _daemon(self, injection: Injection) -> Victim | None:
        there = [daemon for daemon in self._stage.daemons() if daemon.running and not daemon.asleep]
        # Mostly one that may be at work: a kill while Spark starts says little, and costs as much.
        if injection.choice % 4:
            there = [daemon for daemon in there if daemon.jvms()]
        return there[injection.who % len(there)] if there else None

    def _system(self, injection: Injection) -> System:
        return self._stage.systems[injection.who % len(self._stage.systems)]

    # Signals.

    def _hurt(self, victim: Victim | None, part: str, injection: Injection) -> str:
        if victim is None or not victim.signal(signal.SIGKILL, part):
            return ""
        if part != "jvm":
            self._stage.killed(victim, injection.seconds)
        elif victim is self._stage.writer:
            self._stage.killed(victim, 1)
        return f"{victim.name}, back in {injection.seconds:.1f} s"

    def _sleep(self, victim: Victim | None, part: str, injection: Injection) -> str:
        if victim is None or victim.asleep or not victim.signal(signal.SIGSTOP, part):
            return ""
        victim.stopped_at = time.time()
        self._stage.at(injection.seconds, f"wake {victim.name}", victim.wake)
        return f"{victim.name} for {injection.seconds:.1f} s"

    def _kill(self, injection: Injection) -> str:
        return self._hurt(self._daemon(injection), "all", injection)

    def _kill_jvm(self, injection: Injection) -> str:
        return self._hurt(self._daemon(injection), "jvm", injection)

    def _kill_python(self, injection: Injection) -> str:
        return self._hurt(self._daemon(injection), "python", injection)

    def _pause(self, injection: Injection) -> str:
        return self._sleep(self._daemon(injection), "all", injection)

    def _pause_jvm(self, injection: Injection) -> str:
        return self._sleep(self._daemon(injection), "jvm", injection)

    def _terminate(self, injection: Injection) -> str:
        daemon = self._daemon(injection)
        if daemon is None:
            return ""
        self._stage.killed(daemon, 0)
        daemon.signal(signal.SIGTERM, "python")
        return daemon.name

    def _kill_writer(self, injection: Injection) -> str:
        return self._hurt(self._writer_at_work(), "all", injection)

    def _kill_writer_jvm(self, injection: Injection) -> str:
        return self._hurt(self._writer_at_work(), "jvm", injection)

    def _pause_writer(self, injection: Injection) -> str:
        return self._sleep(self._busy_writer(), "all", injection)

    def _busy_writer(self) -> Victim | None:
        writer = self._stage.writer
        return writer if self._stage.writing and writer.running and not writer.asleep else None

    def _writer_at_work(self) -> Victim | None:
        """The writer, unless it is still starting: killed over and over in that it would never write."""
        return self._busy_writer() if self._stage.writer.is_up else None

    def _expire_lock(self, injection: Injection) -> str:
        """The next daemon that has the table's lock is stopped, and the lock goes to another: as one expires."""
        if not self._stage.serving:
            return ""
        self._stage.lock_expires = True
        return "the next lock of a daemon"

    # Outages.

    def _outage(self, injection: Injection) -> str:
        seconds = min(injection.seconds, _OUTAGE_SECONDS)
        if self._server is not None:
            if self._is_out:
                return ""
            self._is_out, immediate = True, bool(injection.choice % 2)
            self._server.stop(immediate=immediate)
            self._stage.at(seconds, "PostgreSQL comes back", self._come_back)
            return f"PostgreSQL stopped {'at once' if immediate else 'fast'} for {seconds:.1f} s"
        url = self._system(injection).installation.url
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=1)
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            connection.close()
            return ""
        self._stage.at(seconds, "the database is free again", connection.close)
        return f"SQLite locked for {seconds:.1f} s"

    def _come_back(self) -> None:
        assert self._server is not None
        assert self._server.start(), "PostgreSQL does not start again"
        self._is_out = False

    # Operators.

    def _operate(self, system: System, *arguments: str) -> str:
        log = system.installation.home / "operator.log"
        text = " ".join(arguments)
        self._stage.command(text, system.installation.start(*arguments, log=log))
        return text

    def _hold(self, injection: Injection) -> str:
        system = self._system(injection)
        target = [TABLE] if injection.choice % 2 else []
        self._stage.at(2 + injection.seconds, "resume", lambda: self._discard(self._operate(system, "resume", *target)))
        return self._operate(system, "pause", *target)

    def _discard(self, result: Any) -> None:
        """A delayed act has nobody to answer to."""

    def _cancel(self, injection: Injection) -> str:
        system = self._system(injection)
        live = system.plans("requested", "inflight")
        return self._operate(system, "plans", "cancel", live[injection.choice % len(live)]["plan_id"]) if live else ""

    def _retry(self, injection: Injection) -> str:
        system = self._system(injection)
        failed = system.plans("failed")
        return self._operate(system, "plans", "retry", failed[0]["plan_id"]) if failed else ""

    def _request(self, injection: Injection) -> str:
        extra = _REQUESTS[injection.choice % len(_REQUESTS)]
        return self._operate(self._system(injection), "plans", "request", TABLE, "--timeout", "10s", *extra)

    def _clean(self, injection: Injection) -> str:
        if not self._stage.serving:
            return ""
        return self._operate(self._system(injection), "clean", *(["-n"] if injection.choice % 3 else []))

    def _metadata(self, injection: Injection) -> str:
        """The owner switches the metadata table on or off, beside whatever runs."""
        return self._tell_writer("metadata")

    def _save(self, injection: Injection) -> str:
        """A savepoint of the newest commit, beside whatever runs."""
        return self._tell_writer("savepoint")

    def _restore(self, injection: Injection) -> str:
        """Back to the youngest savepoint, which the writer does between two steps, beside whatever runs."""
        return self._tell_writer("restore")

    def _tell_writer(self, order: str) -> str:
        writer = self._busy_writer()
        if writer is None or not self._stage.writer.is_up:
            return ""
        self._stage.writer.order(order)
        return order

    def _change(self, injection: Injection) -> str:
        system = self._system(injection)
        change = _CHANGES[injection.choice % len(_CHANGES)]
        system.installation.write_config(**change)
        self.changed = True
        return f"{change} ({self._terminate(injection) or 'from the next start on'})"

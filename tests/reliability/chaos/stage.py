# SPDX-License-Identifier: Apache-2.0
"""The processes of a run, what becomes of them in the course of it, and the supervisor that starts them again."""

import heapq
import json
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness import Installation

from chaos.clocks import Clock
from chaos.processes import Victim, WriterProcess, members

#: a lock without a living holder for this long is removed as docs/writers.md describes, by a person who has checked
_ORPHAN_SECONDS, _FORGOTTEN_SECONDS = 5, 60
_DYING_SECONDS = 60
_NOTING_SECONDS = 3
_EXPIRES_SECONDS = 4
#: reasons to keep a file that only another commit or clean of the writer ends
_UNTIL_THE_WRITER_WRITES = re.compile("the table's own cleaner|has to be deleted first|waits for the next commit")


class System:
    """One installation of lakefold and its daemons."""

    def __init__(self, name: str, installation: Installation, roles: tuple[str, ...], clocks: Sequence[Clock]) -> None:
        self.name, self.installation, self.roles, self.clocks = name, installation, roles, list(clocks)
        self.daemons: list[Victim] = []

    def start(self) -> None:
        """Start its daemons, or those that are missing."""
        for number, role in list(enumerate(self.roles))[len(self.daemons) :]:
            log = self.installation.home / f"{role}{number}.log"
            self.daemons.append(Victim(f"{self.name}.{role}{number}", self._starter(role, number, log)))

    def _starter(self, role: str, number: int, log: Path) -> Callable[[], Any]:
        def start() -> Any:
            made = replace_variables(self.installation, self.clocks[number].environment())
            return made("serve", "--role", role, log=log)

        return start

    def set_clocks(self, clock: Clock) -> bool:
        """Daemons that are started from now on have this clock; whether one had another."""
        wrong = any(one != clock for one in self.clocks)
        self.clocks = [clock] * len(self.clocks)
        self.installation.variables = clock.environment()
        return wrong

    def plans(self, *states: str) -> list[dict[str, Any]]:
        """Its plans in these states, none while its database does not answer."""
        done = self.installation.run("plans", "list", "--limit", "1000", "--json", expect=None)
        plans = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return [plan for plan in plans if plan.get("state") in states]

    def _deletable(self) -> list[tuple[str, str | None]]:
        """Superseded files that are still there, with what keeps each.

        Leaves out files that wait for the writer's next commit, or for its own cleaner: the writer writes no more.
        """
        done = self.installation.run("clean", "-n", "--json", expect=None)
        entries = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        found = [(str(entry["path"]), entry["retained_reason"]) for entry in entries]
        return [(path, kept) for path, kept in found if kept is None or not _UNTIL_THE_WRITER_WRITES.search(kept)]

    def status(self) -> dict[str, Any]:
        """What ``lakefold status`` says; nothing while its database does not answer."""
        done = self.installation.run("status", "--json", expect=None)
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {}

    def unfinished(self) -> list[str]:
        """What it has still to do, or who is missing for it."""
        status = self.status()
        missing = {"scan", "clean", "sweep"} - {row["role"] for row in status.get("leaders", ()) if row["live"]}
        found = [f"{self.name}: nobody leads {', '.join(sorted(missing))}"] if missing else []
        found += [f"{self.name}: {plan['state']} {plan['plan_id']}" for plan in self.plans("requested", "inflight")]
        if status.get("superseded_files", 0):
            found += [f"{self.name}: superseded and there: {path}: {kept}" for path, kept in self._deletable()]
        return found


def replace_variables(installation: Installation, variables: Mapping[str, str]) -> Callable[..., Any]:
    """``installation.start`` with more variables for that one process."""

    def start(*arguments: str, log: Path) -> Any:
        before, installation.variables = installation.variables, variables
        try:
            return installation.start(*arguments, log=log)
        finally:
            installation.variables = before

    return start


class Stage:
    """Everything that runs. ``wanted`` says of each process whether it is started again when it has died."""

    def __init__(self, home: Path, base: Path, writer: WriterProcess, systems: list[System]) -> None:
        self.home, self.base, self.writer, self.systems = home, base, writer, systems
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        #: what the writer is told to do, again when it has died over it; empty while it is to do nothing
        self.orders = ""
        #: the next lock of a daemon expires while the daemon is stopped
        self.lock_expires = False
        #: processes that are not needed any more
        self.finished: set[str] = set()
        #: whether daemons are to run
        self.serving = False
        self._began = time.monotonic()
        self._later: list[tuple[float, int, str, Callable[[], None]]] = []
        self._back_at: dict[str, float] = {}
        self._commands: list[tuple[str, Any]] = []
        self._lock_seen: tuple[tuple[int, int], float] | None = None
        self._restores_seen = 0
        #: daemons that had a JVM when it was looked
        self.seen_at_work: set[str] = set()
        self._numbers = iter(range(1 << 30))

    def say(self, text: str) -> None:
        """Write a line into the run's log."""
        with (self.home / "events.log").open("a") as file:
            file.write(f"{time.strftime('%H:%M:%S')} {time.monotonic() - self._began:7.2f} {text}\n")

    def tail(self, lines: int = 40) -> str:
        """The last lines of the run's log."""
        return "\n".join((self.home / "events.log").read_text().splitlines()[-lines:])

    def wrong(self, text: str) -> None:
        """Note what must not be; the run goes on."""
        self.problems.append(text)
        self.say(f"WRONG {text}")

    @property
    def writing(self) -> bool:
        """Whether the writer may be in a write."""
        return bool(self.orders)

    def tell_writer(self, orders: str) -> None:
        """Let the writer do something until it is told otherwise."""
        self.orders = orders
        self.writer.order(orders)

    def daemons(self) -> Iterator[Victim]:
        """Those that were started."""
        for system in self.systems:
            yield from system.daemons

    def look_who_works(self) -> None:
        """Note which daemons have a JVM: a figure that counts a daemon is wrong where it never got so far."""
        self.seen_at_work |= {
            daemon.name for daemon in self.daemons() if daemon.name not in self.seen_at_work and daemon.jvms()
        }

    def victims(self) -> list[Victim]:
        """Every process."""
        return [self.writer, *self.daemons()]

    def at(self, seconds: float, what: str, act: Callable[[], None]) -> None:
        """Do something in so many seconds."""
        heapq.heappush(self._later, (time.monotonic() + seconds, next(self._numbers), what, act))

    def command(self, name: str, process: Any) -> None:
        """An operator's command that was started, to be looked after."""
        self._commands.append((name, process))

    def killed(self, victim: Victim, away: float) -> None:
        """A process was killed, wholly or in part; it may be started again in ``away`` seconds."""
        self._back_at[victim.name] = time.monotonic() + away

    def tick(self) -> None:
        """What is due: wakings, the ends of outages, restarts, locks of dead writers, ends of commands."""
        while self._later and self._later[0][0] <= time.monotonic():
            _, _, what, act = heapq.heappop(self._later)
            self.say(what)
            act()
        self._free_lock()
        self._note_restores()
        if self.lock_expires:
            self._expire_lock()
        for victim in self.victims():
            if not victim.running and victim.name not in self.finished:
                self._revive(victim)
        for name, process in list(self._commands):
            code = process.poll()
            if code is not None:
                self._commands.remove((name, process))
                self.say(f"{name}: exit {code}")

    def _note_restores(self) -> None:
        """Count a restore that has begun beside a plan that an executor is working on."""
        begun = self.writer.count("restoring")
        if begun > self._restores_seen:
            plans = [plan for system in self.systems for plan in system.plans("inflight")] if self.serving else []
            self.say(f"the writer restores beside {len(plans)} plans at work")
            self.counts["restore beside plans"] += bool(plans)
        self._restores_seen = begun

    def calm(self) -> None:
        """End every delayed action now: no process stays stopped, and no outage lasts."""
        self.lock_expires = False
        while self._later:
            _, _, what, act = heapq.heappop(self._later)
            self.say(what)
            act()
        for victim in self.victims():
            victim.wake()

    def _revive(self, victim: Victim) -> None:
        now = time.monotonic()
        if victim.name not in self._back_at:
            self._back_at[victim.name] = now + 1
            # A daemon that finds no database at its start says so and ends; its supervisor tries again.
            code = victim.process.returncode
            if code not in (13, -9) and not (victim is self.writer and code == 1):
                self.wrong(f"{victim.name} ended by itself with {code}")
        wanted = victim is self.writer or self.serving
        if not wanted or now < self._back_at[victim.name]:
            return
        if not victim.gone:
            # One that was stopped while it died, over a long comparison too, has had no time to die.
            dying_since = max(self._back_at[victim.name], victim.woken_at)
            if not victim.asleep and now > dying_since + _DYING_SECONDS:
                self.wrong(f"the JVM of {victim.name} outlives its Python by {_DYING_SECONDS} s")
                victim.kill()
            return
        if victim is self.writer and self._lock_of_the_dead():
            return
        del self._back_at[victim.name]
        victim.restart()
        self.say(f"{victim.name} starts again as {victim.process.pid}")
        if victim is self.writer and self.orders:
            self.writer.order(self.orders)

    # Hudi's lock file has no owner inside: one that a killed writer left is removed by hand.

    @property
    def _lock(self) -> Path:
        return self.base / ".hoodie" / "lock"

    def _lock_of_the_dead(self) -> bool:
        """Whether the lock may be one that the dead writer had."""
        with suppress(FileNotFoundError):
            status = self._lock.stat()
            return (status.st_ino, status.st_mtime_ns) not in self._journaled()
        return False

    def _free_lock(self) -> None:
        try:
            status = self._lock.stat()
        except FileNotFoundError:
            self._lock_seen = None
            return
        identity = (status.st_ino, status.st_mtime_ns)
        now = time.monotonic()
        # One who was stopped just when he had got it has not said so yet.
        doubtful = any(abs((v.stopped_at or 0) - status.st_mtime) < _NOTING_SECONDS for v in self.victims())
        if self._lock_seen is None or self._lock_seen[0] != identity or doubtful:
            self._lock_seen = (identity, now)
            return
        dead = self.writer.gone
        if now < self._lock_seen[1] + (_ORPHAN_SECONDS if dead else _FORGOTTEN_SECONDS):
            return
        if identity not in self._journaled():
            self.say(f"an operator removes the lock file of {'the dead writer' if dead else 'nobody'}")
            with suppress(FileNotFoundError):
                self._lock.unlink()
            self.counts["lock removed"] += 1

    def _expire_lock(self) -> None:
        """Stop the daemon that has the lock, take the lock file from it as a lock service does, and let it go on."""
        holder = self._holder()
        if holder is None or holder.asleep or not holder.signal(signal.SIGSTOP, "all"):
            return
        self.lock_expires, holder.stopped_at = False, time.time()
        if self._holder() is holder:  # it had not given it back before it was stopped
            self.at(_EXPIRES_SECONDS, f"the lock of {holder.name} expires", lambda: self._take_lock(holder))
        self.at(_EXPIRES_SECONDS + 6, f"wake {holder.name}", holder.wake)

    def _take_lock(self, holder: Victim) -> None:
        if holder.asleep and self._holder() is holder:
            self._lock.unlink()
            self.counts["lock expired"] += 1

    def _holder(self) -> Victim | None:
        """The daemon that says that the lock is its own."""
        with suppress(FileNotFoundError):
            status = self._lock.stat()
            for path in (self.base / ".hoodie/.lakefold/locks").glob("*.json"):
                with suppress(FileNotFoundError, ValueError, KeyError, TypeError):
                    entry = json.loads(path.read_text())
                    if (entry.get("inode"), entry.get("mtime_ns")) == (status.st_ino, status.st_mtime_ns):
                        pid = int(entry["process"]["pid"])
                        return next((one for one in self.daemons() if pid in members(one.process.pid)), None)
        return None

    def _journaled(self) -> set[tuple[int, int]]:
        """Identities of the locks that lakefold says are its own."""
        found = set()
        for path in (self.base / ".hoodie/.lakefold/locks").glob("*.json"):
            with suppress(FileNotFoundError, ValueError):
                entry = json.loads(path.read_text())
                found.add((entry.get("inode"), entry.get("mtime_ns")))
        return found

    def end(self) -> None:
        """Kill everything."""
        for victim in self.victims():
            victim.signal(signal.SIGCONT, "all")
            victim.kill()
        for _, process in self._commands:
            process.kill()
            process.wait()

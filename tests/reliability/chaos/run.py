# SPDX-License-Identifier: Apache-2.0
"""One run of chaos over one cell: the faults, the comparisons, the healing, the last look."""

import json
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

from harness import Installation
from postgres import Server

from chaos.cells import (
    ARCHIVING,
    BLOOM,
    CELLS,
    DAEMON,
    HEAP,
    HEARTBEAT_SECONDS,
    LOCK,
    POLICY,
    Cell,
    Setting,
    writer_options,
)
from chaos.comparing import Comparing
from chaos.damage import DAMAGES, Patient
from chaos.faults import TABLE, Faults
from chaos.ledger import Ledger
from chaos.processes import WriterProcess
from chaos.readers import waits_for_the_writers_cleaner
from chaos.schedule import ACTS, schedule
from chaos.stage import Stage, System
from chaos.watch import Commits

#: after the last fault every plan has ended and everything replaced is deleted within
HEALING_SECONDS = 480
_REST_SECONDS = 5
_TICK_SECONDS = 0.1
_STEPS, _FEWEST_STEPS = (5, 10), 3
_PHASE_SECONDS = (30, 60)
_WRITING_SECONDS = 40
#: what a write left that lost: the writer's next one takes it back once its heartbeat is silent, and there may be none
_OF_A_WRITE = re.compile(r"\d\.((delta)?commit\.|inflight$)")
#: what becomes of savepoints after one comparison after another: enough of it for a restore in a run of four minutes
_MAINTENANCE = ("savepoint", "restore", "", "savepoint", "", "restore", "remove_savepoint")
_PATIENCE_SECONDS = 240
#: how long faults wait for daemons that were started, or for a writer, to get to work: longer on a machine with others
_START_SECONDS = 90


class Chaos:
    """See the module. ``seconds`` is how long faults are injected, one every ``gap`` seconds on average.

    ``damages`` kinds of damage are done to copies of the table at the end.
    ``urls`` are two empty databases, on ``server`` if that is given.
    """

    def __init__(
        self,
        cell: Cell,
        *,
        seed: int,
        seconds: float,
        home: Path,
        urls: tuple[str, str],
        spark: Any,
        gap: float = 5.0,
        check_every: float = 30.0,
        damages: int = 0,
        server: Server | None = None,
    ) -> None:
        self.cell, self.seed, self.home = cell, seed, home
        self.setting = Setting.of(cell, seed)
        self.base = home / "lake" / "trips"
        self.ledger = Ledger(home / "ledger")
        self._damages = damages
        self.plans: Counter[str] = Counter()
        self._rest_seconds = 0.0
        self._seconds, self._check_every, self._spark = seconds, check_every, spark
        self._waiting = list(reversed(schedule(f"{cell}/{seed}", seconds, gap)))
        self._random = random.Random(f"run/{cell}/{seed}")
        self._maintenance = cycle(_MAINTENANCE)
        self._clock, self._ticked = 0.0, time.monotonic()
        numbers = range(2 if self.setting.second else 1)
        systems = [
            System("ab"[n], self._installation(n, urls[n]), (self.setting.roles, ("all",))[n], self.setting.clocks[n])
            for n in numbers
        ]
        writer = WriterProcess(home, self._writer_arguments(), self.setting.writers_clock)
        self.stage = Stage(home, self.base, writer, systems)
        self._comparing = Comparing(self.stage, self.ledger, spark, self._random)
        self._faults = Faults(self.stage, server)
        self.stage.say(f"{cell}, seed {seed}: {self.setting}")

    def _writer_arguments(self) -> list[str]:
        spark = {"spark.master": "local[1]", "spark.sql.shuffle.partitions": "1", **HEAP}
        options = json.dumps(writer_options(self.cell, self.setting))
        texts = {"--table": self.base, "--ledger": self.home / "ledger", "--options": options}
        texts |= {
            "--seed": self.seed * len(CELLS) + CELLS.index(self.cell),
            "--size": 40,
            "--pause": 0.3,
            "--spark": json.dumps(spark),
        }
        return [str(text) for pair in texts.items() for text in pair]

    def _installation(self, number: int, url: str) -> Installation:
        home = self.home / f"lakefold{number}"
        home.mkdir()
        return Installation(
            home=home,
            url=url,
            policy={**POLICY, **self.setting.policy},
            daemon=DAEMON,
            spark={"spark.sql.shuffle.partitions": "1", **HEAP},
            write_options={**LOCK, **BLOOM, **ARCHIVING} if self.cell.occ else ARCHIVING,
            concurrency="occ" if self.cell.occ else "single_writer",
            tables={TABLE: self.base},
        )

    def run(self) -> None:
        """Everything. Raises AssertionError with all that was found wrong."""
        try:
            with Commits(self.base) as commits:
                self._begin()
                if self.cell.occ:
                    self._together()
                else:
                    self._by_turns()
                self._heal()
                self._last_look()
                self._damage()
            if commits.twice:
                self.stage.wrong(f"plans with more than one commit: {commits.twice}")
        finally:
            self.stage.end()
        assert not self.stage.problems, "\n".join(self.stage.problems)

    # Phases.

    def _begin(self) -> None:
        """A table with rows, for lakefold to find."""
        writer = self.stage.writer
        assert writer.wait_for("up", 1, 240), f"the writer did not start; see {writer.log}"
        assert writer.obeyed(f"steps {2 if self.cell.occ else 5}", "done", 240), (
            f"the first fill failed; see {writer.log}"
        )
        self._ticked = time.monotonic()

    def _together(self) -> None:
        """Writer and lakefold at the same time; the writer holds for each comparison."""
        self._serve()
        self.stage.tell_writer("go")
        if self.setting.all_right:
            self._pump_until("lakefold has begun a plan", lambda: self._begun() > 0, quiet=True)
        else:  # a lakefold with a wrong clock may refuse to work
            self._pump(_START_SECONDS, lambda: self._begun() > 0, quiet=True)
        while self._clock < self._seconds:
            self.stage.tell_writer("go")
            self._pump(self._check_every)
            self._quieten_the_writer()
            self._compare()
            self._maintain()

    def _by_turns(self) -> None:
        """The writer writes while no lakefold is there, and lakefold works while the writer does nothing."""
        while self._clock < self._seconds:
            begun = self._begun()
            self._serve()
            self._pump(_START_SECONDS, lambda begun=begun: self._begun() > begun, quiet=True)
            self._pump(self._random.uniform(*_PHASE_SECONDS) / 2)
            self._compare()
            self._pump(self._random.uniform(*_PHASE_SECONDS) / 2)
            self._dismiss()
            self._write_some()
            self._maintain()
            self._compare()

    def _begun(self) -> int:
        """How many plans an executor has begun, ended ones too."""
        states = ("inflight", "completed", "cancelled", "failed")
        return sum(len(system.plans(*states)) for system in self.stage.systems)

    def _write_some(self) -> None:
        done, fewest = self.stage.writer.count("done"), len(self.ledger.confirmed()) + _FEWEST_STEPS
        self.stage.tell_writer(f"steps {self._random.randint(*_STEPS)}")
        if not self._pump(_WRITING_SECONDS, lambda: self.stage.writer.count("done") > done):
            self._pump(_START_SECONDS, lambda: len(self.ledger.confirmed()) >= fewest, quiet=True)
            self._quieten_the_writer()
        self.stage.orders = ""

    def _serve(self) -> None:
        self.stage.serving = True
        for system in self.stage.systems:
            system.start()

    def _quieten_the_writer(self) -> None:
        """Return when no write is under way, and none begins before the next order."""
        writer = self.stage.writer
        self.stage.orders = ""
        holding, up = writer.count("holding"), writer.count("up")
        writer.order("hold")
        self._pump_until("the writer holds", lambda: writer.count("holding") > holding or writer.count("up") > up)

    def _dismiss(self, *, politely: bool = False) -> None:
        """End every daemon, at once or politely."""
        self.stage.serving = False
        self.stage.calm()
        for daemon in self.stage.daemons():
            how = "killed" if not politely and self._random.random() < 0.5 else daemon.end(60)
            daemon.kill()
            self.stage.say(f"{daemon.name} dismissed: {how}")
            self.stage.killed(daemon, 0)

    def _pump(self, seconds: float, until: Callable[[], bool] = lambda: False, *, quiet: bool = False) -> bool:
        """Let the run go on, by the schedule, until that is true or for so long; whether it became true.

        While it is ``quiet`` the schedule's clock stands still.
        """
        deadline = time.monotonic() + seconds
        self._ticked = time.monotonic()
        while time.monotonic() < deadline:
            if until():
                return True
            now = time.monotonic()
            if not quiet:
                self._clock += now - self._ticked
            self._ticked = now
            while self._waiting and self._waiting[-1].at <= self._clock:
                self._faults.inject(self._waiting.pop())
            self.stage.tick()
            time.sleep(_TICK_SECONDS)
        return False

    def _pump_until(self, what: str, until: Callable[[], bool], *, quiet: bool = False) -> None:
        if not self._pump(_PATIENCE_SECONDS, until, quiet=quiet):
            raise AssertionError(f"not so within {_PATIENCE_SECONDS} s: {what}")

    def _maintain(self) -> None:
        """What is next of savepoints, their removal, and restores; half of these have the table for themselves."""
        order = next(self._maintenance)
        if order == "restore" and self.stage.serving and not (self.cell.occ and self._random.random() < 0.5):
            self._dismiss(politely=True)  # a lock that one left would wait for the next, and the restore for that
            self._order(order)
            self._compare()
            self._serve()
        elif order:
            if order == "restore" and self.stage.serving:
                # Few restores began beside a plan where none was waited for.
                self._pump(_START_SECONDS, lambda: any(s.plans("inflight") for s in self.stage.systems), quiet=True)
            self._order(order)

    def _order(self, order: str) -> None:
        writer = self.stage.writer
        self._pump_until("the writer is there", lambda: writer.running)
        obeyed, up = writer.count("obeyed"), writer.count("up")
        writer.order(order)
        # A writer that failed, as a restore does beside a commit, settles the step when it is up again.
        self._pump_until(f"{order} is done", lambda: writer.count("obeyed") > obeyed or writer.count("up") > up)

    def _compare(self, **how: bool) -> None:
        self.stage.look_who_works()
        self._comparing.compare(**how)

    # The end.

    def _heal(self) -> None:
        """No more faults: all processes run again, and all begun work ends."""
        stage, writer = self.stage, self.stage.writer
        stage.say("healing")
        self._waiting = []
        stage.calm()
        for system in stage.systems:
            system.installation.write_config()
            for arguments in (("resume",), ("resume", TABLE, "--yes")):
                system.installation.run(*arguments, expect=None)
        # The next write takes back those that died: not in the same process, where a delete_partition that failed keeps
        # its heartbeat (Hudi 1.2.0).
        stage.orders = ""
        stage.say(f"{writer.name} ends: {writer.end(60)}")
        writer.clock = self.setting.clock_of_the_healed_writer
        stage.killed(writer, HEARTBEAT_SECONDS + 1)
        self._pump_until("the writer is up again", lambda: writer.is_up)
        landed = len(self.ledger.confirmed())
        stage.tell_writer("go")
        self._pump_until("the writer writes again", lambda: len(self.ledger.confirmed()) > landed)
        self._quieten_the_writer()
        # A savepoint keeps replaced files for as long as it is there.
        while self.ledger.state().savepoints:
            self._order("remove_savepoint")
        assert writer.obeyed("end", "ended", 120), "the writer did not end"
        stage.finished.add(writer.name)
        # What stands still under a wrong clock goes on under the right one.
        wrong = [system.set_clocks(self.setting.clock_of_healed_daemons) for system in stage.systems]
        began = time.monotonic()
        for daemon in stage.daemons() if self._faults.changed or any(wrong) else ():
            stage.say(f"{daemon.name} starts with the first settings: {daemon.end(60)}")
            stage.killed(daemon, 0)
        self._serve()
        self._restless_at = time.monotonic()
        if not self._pump(HEALING_SECONDS, self._rests):
            stage.wrong(f"not at rest {HEALING_SECONDS} s after the last fault: {self._unfinished()}")
        self._rest_seconds = time.monotonic() - began
        stage.say(f"at rest after {self._rest_seconds:.0f} s")

    def _rests(self) -> bool:
        """Whether nothing has been unfinished for several scans."""
        now = time.monotonic()
        if self._unfinished():
            self._restless_at = now
        return now > self._restless_at + _REST_SECONDS

    def _unfinished(self) -> list[str]:
        """What has not come to its end: plans, replaced files, instants on the timeline."""
        found = [f"pending on the timeline: {name}" for name in self._pending()]
        return found + [text for system in self.stage.systems for text in system.unfinished()]

    def _pending(self) -> list[str]:
        home = self.base / ".hoodie"
        home = home / "timeline" if (home / "timeline").is_dir() else home
        names = [path.name for path in home.iterdir() if path.is_file() and path.name[:17].isdigit()]
        ended = {name[:17] for name in names if not name.endswith((".requested", ".inflight"))}
        pending = sorted(name for name in names if name[:17] not in ended and not _OF_A_WRITE.search(name))
        return [
            name
            for name in pending
            if not (name.endswith(".compaction.requested") and waits_for_the_writers_cleaner(home / name))
        ]

    def _last_look(self) -> None:
        """Everything that must be so at rest."""
        for daemon in list(self.stage.daemons()):
            code = daemon.end(60)
            if code not in (0, -signal.SIGTERM):  # the latter before it has begun to listen to signals
                self.stage.wrong(f"{daemon.name} ended with {code} when it was asked to")
        self.stage.serving = False
        self._compare(duckdb=not self.cell.merge_on_read, everything=True)
        for system in self.stage.systems:
            for arguments in (("verify", TABLE, "--rows"), ("status",)):
                done = system.installation.run(*arguments, expect=None)
                self.stage.say(f"{system.name} {arguments[0]}: {done.returncode} {done.stdout} {done.stderr}")
                if done.returncode:
                    self.stage.wrong(f"lakefold {' '.join(arguments)} exits {done.returncode}: {done.stdout[:2000]}")
            for plan in system.plans("completed", "cancelled", "failed"):
                self.plans[plan["state"]] += 1
                if plan["state"] == "failed":
                    self.stage.wrong(f"a failed plan: {json.dumps(plan)[:1500]}")

    def _damage(self) -> None:
        """Some kinds of damage, each to a copy of what is left.

        Not where the writer's clock is still ahead: what is written to the copy, by a right clock, would be older than
        what is there.
        """
        if self._damages == 0 or self.setting.clock_of_the_healed_writer.seconds:
            return
        patient = Patient(self.cell, self.setting, self.seed, self.base, self.home, self._spark)
        kinds = [name for name, damage in DAMAGES.items() if self.cell.merge_on_read or not damage.logs]
        first = self.seed + self._damages * CELLS.index(self.cell)
        for name in (kinds[(first + number) % len(kinds)] for number in range(self._damages)):
            done = patient.suffer(name)
            self.stage.say(f"damage: {name}: {done or 'nothing there to do it to'}")
            self.stage.counts["damage"] += bool(done)
        for problem in patient.problems:
            self.stage.wrong(problem)

    def figures(self) -> Counter[str]:
        """The run in numbers."""
        counts, steps, looks = self.stage.counts, self.ledger.confirmed(), self._comparing.counts
        wrong = {name for name, clock in self.setting.clocks_by_daemon().items() if not clock.is_right}
        schemas = [0, *(step.evolutions for step in steps if step.rows)]
        return Counter(
            {
                "seconds": round(min(self._clock, self._seconds)),
                "kills": sum(count for kind, count in counts.items() if kind.startswith("kill")),
                "pauses": sum(count for kind, count in counts.items() if kind.startswith("pause")),
                "outages of the database": counts["outage"],
                "actions of operators": sum(counts[kind] for kind in ACTS),
                "runs with a second lakefold and its own database": int(self.setting.second),
                "steps of the writer": len(steps),
                "changes of the schema": sum(later > earlier for earlier, later in pairwise(schemas)),
                "savepoints": sum(step.operation == "savepoint" for step in steps),
                "restores": sum(step.operation == "restore" for step in steps),
                "restores while plans ran": counts["restore beside plans"],
                "damaged copies of the table": counts["damage"],
                **{f"plans {state}": count for state, count in self.plans.items()},
                "daemons that worked with wrong clocks or zones": len(wrong & self.stage.seen_at_work),
                "wrong clocks of writers": int(self.setting.writers_clock.seconds != 0),
                "locks that expired": counts["lock expired"],
                "switches of the metadata table": counts["metadata"],
                "comparisons": looks["comparisons"],
                "of these in Spark only": looks["in Spark alone"],
                "older states read": looks["older states read"],
                "incremental reads": looks["incremental reads"],
            }
        )


def in_words(figures: Counter[str]) -> str:
    """Figures of one run or of several as one line."""
    parts = [f"{count} {name}" for name, count in figures.items() if name != "seconds"]
    return f"{figures['seconds'] / 60:.1f} minutes of faults: {', '.join(parts)}; every row equal to the ledger"

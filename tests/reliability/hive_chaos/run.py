# SPDX-License-Identifier: Apache-2.0
"""One run: an owner, slow loads, a daemon that compacts, faults at random moments, and readers that have all judged."""

import json
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from chaos.clocks import RIGHT, Clock
from chaos.processes import Victim
from harness import Installation, hive_installation
from hive_metastore import MetastoreServer
from hive_race.ledger import Judge, Ledger, in_short, unmet_at_a_drop
from hive_race.readers import FreshReader, rows_at

from hive_chaos.catalog import places, read_table
from hive_chaos.database import Database
from hive_chaos.faults import RECOVERY_SECONDS, Deck, Fault, Spans
from hive_chaos.halts import Halts
from hive_chaos.owner import MIRROR
from hive_chaos.processes import HALF, Loader, Owner, variables
from service.problems import ExitCode

_GAP_SECONDS = 20.0
_SHORT, _LONG = (0.2, 3.0), (8.0, 14.0)
_HALTED = (60.0, 120.0)
_REST_SECONDS = 60.0
_CLOCKS = (0, 90, -90, 32_400, -32_400)
_ZONES = ("", "UTC", "America/New_York", "Asia/Tokyo", "Australia/Lord_Howe")
#: acts of the owner in the words of a figure
_ACTS = {
    "drop": "drops of a partition",
    "away": "moves of a partition",
    "back": "moves of a partition back",
    "rename": "renames of the table",
    "share": "directories shared with another table",
    "unshare": "of these shared no longer",
    "left out": "acts left out because rows were not in place yet",
}
#: kinds of faults that have their own times
_OWN_TIME = (Fault.WRITERS_CLOCK, Fault.PARTITION_HALTED, Fault.TABLE_HALTED)


class HiveChaos:
    """One run of ``seconds`` on a table of a kind; ``problems`` are what must not be."""

    def __init__(
        self, kind: str, seed: str, seconds: float, home: Path, metastore: MetastoreServer, database: Database
    ) -> None:
        self.kind, self.home, self.metastore, self.database = kind, home, metastore, database
        self._seconds, self._name = seconds, f"chaos_{kind}"
        self._chance = random.Random(f"faults/{seed}")
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self._spans, self._clock, self._began = Spans(), RIGHT, time.monotonic()
        self._deck = Deck(self._chance, without=frozenset() if database.has_server else frozenset({Fault.AWAY}))
        self._status_at = 0.0
        self._installation = self._installed()
        uri = metastore.uri
        self.owner = Owner(home, metastore, self._name, kind, seed)
        self.loader = Loader(self.owner, uri, kind, random.Random(f"loads/{seed}"), self._spans)
        self.halts = Halts(self.owner, uri, kind, random.Random(f"halts/{seed}"), self.wrong, self._spans.is_due)
        self.reader = FreshReader(
            lambda: read_table(uri, lambda: self.owner.table, loaded=HALF),
            home / "writes",
            0.5,
            Judge(is_due=self._spans.is_due),
        )

    def _installed(self) -> Installation:
        return hive_installation(
            self.home,
            self.database.url,
            self.metastore.uri,
            self._name,
            slots=1,
            retention="60s",
            scan_interval="1s",
            sweep_interval="5s",
            heartbeat="1s",
        )

    def run(self) -> None:
        """The run. Raises AssertionError with all ``problems`` where there are any."""
        daemon = None
        try:
            self.owner.wait()
            daemon = Victim("daemon", self._start)
            self._spans.add(time.time(), time.time())
            self.reader.start()
            self.loader.start()
            self._violent(daemon)
            self._say("no more faults")
            self.owner.stop()
            self.loader.stop()
            self._rest()
            self.reader.halt()
            self._last_look()
            if daemon.end(90) not in (0, None):
                self.wrong(f"the daemon ended with {daemon.process.returncode}")
        finally:
            with suppress(Exception):
                self.reader.halt()
            self.owner.kill()
            if daemon is not None:
                daemon.kill()
        self.problems += [*self.reader.wrong, *self.loader.wrong]
        self._count()
        assert not self.problems, in_short(self.problems)

    def _count(self) -> None:
        self.counts["seconds"] = int(self._seconds)
        self.counts["reads"] = self.reader.judge.reads
        self.counts["slow loads"] = self.loader.loads
        self.counts["loads into previous locations"] = len(self.loader.late)
        self.counts.update(f"owner: {act['act']}" for act in self.owner.acts)
        self.counts["writes"] = sum(map(len, Ledger.of(self.home / "writes").writes.values()))

    def tail(self) -> str:
        """The end of the run's log."""
        path = self.home / "events.log"
        return path.read_text()[-4000:] if path.exists() else ""

    def wrong(self, text: str) -> None:
        """Note what must not be."""
        self.problems.append(text)
        self._say(f"WRONG {text}")

    def _start(self) -> "subprocess.Popen[Any]":
        self._installation.variables = variables(self._clock)
        return self._installation.start("serve", log=self.home / "daemon.log")

    def _say(self, text: str) -> None:
        with (self.home / "events.log").open("a") as file:
            file.write(f"{time.strftime('%H:%M:%S')} {time.monotonic() - self._began:7.2f} {text}\n")

    # The faults.

    def _violent(self, daemon: Victim) -> None:
        end = time.monotonic() + self._seconds
        while time.monotonic() < end and not self.reader.wrong:
            pause = self._chance.expovariate(1 / _GAP_SECONDS)
            # Now and then nothing happens for so long that late rows become due.
            self._watch(daemon, min(pause + 70 if self._chance.random() < 0.2 else pause, end - time.monotonic()))
            kind = self._deck.draw()
            seconds = self._chance.uniform(*(_LONG if self._chance.random() < 0.3 else _SHORT))
            self._say(kind if kind in _OWN_TIME else f"{kind} for {seconds:.1f} s")
            if kind is Fault.WRITERS_CLOCK:
                self._set_writers_clocks()
            elif kind is Fault.PARTITION_HALTED:
                self._have_partition_halted(daemon)
            elif kind is Fault.TABLE_HALTED:
                self._have_table_halted(daemon)
            else:
                began = time.time()
                self._spans.begin(began)
                self._inflict(kind, seconds, daemon)
                self._spans.add(began, time.time())
                self.counts[kind] += 1

    def _watch(self, daemon: Victim, seconds: float) -> None:
        """Look at everything again and again."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.reader.wrong:
            time.sleep(0.5)
            assert self.owner.process.poll() is None, self.owner.said
            if not daemon.running:
                # A daemon that finds no database at its start says so and ends; its supervisor tries again.
                if (code := daemon.process.returncode) != ExitCode.DATABASE:
                    self.wrong(f"the daemon ended by itself with {code}")
                daemon.kill()
                daemon.restart()
            self._look()

    def _inflict(self, kind: Fault, seconds: float, daemon: Victim) -> None:
        if kind is Fault.STOP:
            part = self._chance.choice(("all", "python", "jvm"))
            daemon.signal(signal.SIGSTOP, part)
            time.sleep(seconds)
            daemon.wake()
        elif kind is Fault.JVM:
            daemon.signal(signal.SIGKILL, "jvm")
        elif kind is Fault.METASTORE_STOPS:
            self.metastore.signal(signal.SIGSTOP)
            time.sleep(seconds)
            self.metastore.signal(signal.SIGCONT)
        elif kind is Fault.METASTORE_DIES:
            # Only lakefold meets it: what a statement of the owner's did that fails here is not known.
            self.owner.hold()
            self.metastore.stop()
            time.sleep(seconds)
            self.metastore.start()
            self.owner.release()
        elif kind is Fault.AWAY:
            with self.database.away():
                time.sleep(seconds)
        else:
            daemon.kill()
            self._note_locks()
            if kind is Fault.CLOCK:
                self._clock = self._drawn(self._clock)
                self._say(f"the daemon's clock: {self._clock}")
            if kind is Fault.LOST:
                self._judge_plans()
                self.database.lose()
                self.halts.forget()
                self._installation = self._installed()
            time.sleep(seconds)
            daemon.restart()

    def _note_locks(self) -> None:
        """Record the locks of the killed daemon: their partitions are swept once the locks have expired."""
        for partition, kind in self.database.locks().items():
            self._spans.add_lock(partition.partition("=")[2], kind, time.time())
            self.counts["locks of killed daemons"] += 1

    def _drawn(self, before: Clock) -> Clock:
        """Another clock than ``before``."""
        while True:
            clock = Clock(seconds=self._chance.choice(_CLOCKS), zone=self._chance.choice(_ZONES))
            if clock != before:
                return clock

    def _set_writers_clocks(self) -> None:
        """Nothing of it is lakefold's: files on this disk have the kernel's times, whatever the owner's clock is."""
        self.owner.restart(self._drawn(self.owner.clock))
        self.loader.seconds = self._chance.choice([one for one in _CLOCKS if one != self.loader.seconds])
        self._say(f"the owner's clock: {self.owner.clock}; the loader's: {self.loader.seconds:+d} s")
        self.counts[Fault.WRITERS_CLOCK] += 1

    def _have_partition_halted(self, daemon: Victim) -> None:
        """Halt a partition; what is due of the others is due as ever, and its own rows stay as they are."""
        self.owner.know_halt("table")
        began = time.time()
        try:
            self.owner.hold()
            self.halts.settle_again(self._installation, self._status)
            self.owner.release()
            if not self.halts.split(daemon):
                self._say("no partition was moved that could be halted")
                self._deck.put_back(Fault.PARTITION_HALTED)
                return
            self._spans.add(began, time.time())
            self.halts.wait_until_split(self._status)
            self.owner.know_halt("partition")
            self._say("the partition is halted")
            table, place = self.halts.place()
            self._during(daemon)
            if (now := self.halts.place())[0] == table and now[1] != place:
                self.wrong(f"the halted partition was moved from {place} to {now[1]}")
            self.owner.hold()
            self.halts.wait_until_split(self._status)
            self.halts.resolve(self._installation)
            self.owner.release()
            self._say("the partition is settled")
            self.counts[Fault.PARTITION_HALTED] += 1
        finally:
            self.owner.know_halt("")

    def _have_table_halted(self, daemon: Victim) -> None:
        """Halt the table: nothing is rewritten, and what was moved is seen to as ever."""
        self.owner.know_halt("table")
        self.owner.hold()
        try:
            begun = self.halts.halt_table(self._installation)
            self.owner.release()
            self._during(daemon)
            self.halts.resume(self._installation, begun)
            self.counts[Fault.TABLE_HALTED] += 1
        finally:
            self.owner.know_halt("")

    def _during(self, daemon: Victim) -> None:
        began = time.time()
        self._watch(daemon, self._chance.uniform(*_HALTED))
        self.counts["drops during halts"] += sum(act["act"] == "drop" and act["at"] > began for act in self.owner.acts)
        self.counts["late loads during halts"] += sum(at > began for at in self.loader.late)

    # What must be so.

    def _status(self) -> Mapping[str, Any]:
        (found,) = self._installation.json("status")
        return found

    def _look(self) -> None:
        """What the other table shows, and what is halted."""
        self._shown()
        self._spans.renames = [act["at"] for act in self.owner.acts if act["act"] == "rename"]
        if time.monotonic() >= self._status_at:
            self._status_at = time.monotonic() + 5
            self.halts.judge(self._status(), self._installation)

    def _shown(self) -> None:
        shared = {act["partition"]: act for act in self.owner.acts if act["act"] == "share"}
        with suppress(FileNotFoundError):
            shown = places(self.metastore.uri, f"{self._name}.{MIRROR}")
            rows = {name: rows_at(place) for name, place in shown.items() if name in shared}
            still = places(self.metastore.uri, f"{self._name}.{MIRROR}")
            for name in rows.keys() & still.keys():
                self.counts["checks of shared directories"] += 1
                missing = [row for row in map(tuple, shared[name]["rows"]) if rows[name][row] == 0]  # type: ignore[index]
                if missing:
                    self.wrong(f"shared {name}: {len(missing)} of {len(shared[name]['rows'])} rows are gone")
                if any(number > 1 for number in rows[name].values()):
                    self.wrong(f"shared {name}: rows are doubled")
            return
        still = places(self.metastore.uri, f"{self._name}.{MIRROR}")
        for name in shown.keys() & still.keys() & shared.keys():
            if not shown[name].exists():
                self.wrong(f"shared {name}: its directory is gone")

    def _rest(self) -> None:
        ledger = Ledger.of(self.home / "writes")
        expected: Callable[[], dict[str, Counter[tuple[int, int]]]] = ledger.rows

        def rows() -> dict[str, Counter[tuple[int, int]]]:
            reads = read_table(self.metastore.uri, lambda: self.owner.table)
            return {read.partition: Counter(read.rows) for read in reads}

        deadline = time.monotonic() + _REST_SECONDS + RECOVERY_SECONDS
        while time.monotonic() < deadline and rows() != expected():
            time.sleep(1)
        time.sleep(_REST_SECONDS / 3)
        if rows() != expected():
            found = rows()
            for name, written in expected().items():
                lost, more = written - found.get(name, Counter()), found.get(name, Counter()) - written
                unmet = unmet_at_a_drop(ledger.writes[name], self._spans.is_due)
                more = Counter({row: count for row, count in more.items() if row[1] not in unmet})
                if lost or more:
                    self.wrong(f"at rest, {name}: {len(lost)} rows missing, {len(more)} too many: {min(lost | more)}")

    def _last_look(self) -> None:
        self.reader.look()
        self._look()
        self._judge_plans()
        if not self.counts["plans completed"]:
            self.wrong("no plan was completed")

    def _judge_plans(self) -> None:
        """Those that the database knows. It is asked before it is lost, and at the end."""
        plans = self._installation.json("plans", "list", "--limit", "1000")
        self.counts.update(f"plans {plan['state']}" for plan in plans)
        for plan in plans:
            # A plan whose table has another name by now can't be completed.
            if plan["state"] == "failed" and "has no table" not in (plan["error"] or ""):
                self.wrong(f"a failed plan: {json.dumps(plan)[:1500]}")


def in_words(counts: Mapping[str, int]) -> str:
    """Counts, for a figure: the faults, then what the owner did, then the others."""
    faults = ", ".join(f"{counts[one]} {one}" for one in Fault if counts[one])
    names = {f"owner: {act}": words for act, words in _ACTS.items()}
    acts = ", ".join(f"{counts[name]} {words}" for name, words in names.items() if name in counts)
    others = sorted(counts.keys() - {*map(str, Fault), *names, "seconds"})
    return f"{faults}; the owner's acts: {acts}; {', '.join(f'{counts[name]} {name}' for name in others)}"

# SPDX-License-Identifier: Apache-2.0
"""One run: an owner, slow loads, a daemon that compacts, faults at random moments, and readers that have all judged."""

import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from chaos.clocks import RIGHT, Clock
from chaos.processes import Victim
from databases import sqlite_at
from harness import Installation, hive_installation, stop_group
from hive_metastore import MetastoreServer
from hive_race.ledger import BOUND, Judge, Ledger, Read, Write, in_short
from hive_race.readers import FreshReader, rows_at
from hive_race.writer import Notes
from pyarrow import orc
from waiting import wait_for

from hive_chaos.catalog import places, read_table
from hive_chaos.owner import LOADED, MIRROR

_IMPORTS = [str(Path(__file__).parents[1]), *sys.path]
_GAP_SECONDS = 20.0
_SHORT, _LONG = (0.2, 3.0), (8.0, 14.0)
#: how long a daemon takes after a fault until its sweep is on time again
_RECOVERY_SECONDS = 40.0
_REST_SECONDS = 60.0
_HALF = "half-"
_CLOCKS = (0, 0, 0, 90, -90, 32_400, -32_400)
_ZONES = ("", "UTC", "America/New_York", "Asia/Tokyo")
_FAULTS = ("kill", "kill", "stop", "stop", "metastore stops", "metastore dies", "clock", "database")


class Faults:
    """When something was wrong with lakefold or the metastore; wall-clock seconds."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []

    def add(self, began: float, ended: float) -> None:
        """One fault, and the time in which a daemon recovers from it."""
        self._spans.append((began, ended + _RECOVERY_SECONDS))

    def is_due(self, write: Write, read: Read) -> bool:
        """Whether a daemon had the time of ``BOUND``, twice and without a fault, since the write's success."""
        if write.ended is None:
            return False
        return any(stop - start > 2 * BOUND for start, stop in self._calm(write.ended, read.began))

    def _calm(self, began: float, ended: float) -> Iterator[tuple[float, float]]:
        spans = sorted((max(start, began), min(stop, ended)) for start, stop in self._spans)
        edges = [(began, began), *((start, stop) for start, stop in spans if start < stop), (ended, ended)]
        latest = began
        for (_, stop), (start, _) in pairwise(edges):
            latest = max(latest, stop)
            yield latest, start


class Owner:
    """``hive_chaos.owner`` as a process."""

    def __init__(self, home: Path, metastore: MetastoreServer, database: str, kind: str, seed: str) -> None:
        self.home, self.log = home, home / "owner.log"
        self._warehouse = metastore.place / "warehouse"
        arguments = [metastore.uri, str(self._warehouse), database, kind, str(home), seed]
        with self.log.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hive_chaos.owner", *arguments],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(_IMPORTS)},
                cwd=metastore.home, stdout=sink, stderr=sink, start_new_session=True,
            )  # fmt: skip

    @property
    def said(self) -> str:
        """The end of what it printed."""
        return self.log.read_text(errors="replace")[-4000:]

    @property
    def is_ready(self) -> bool:
        """Whether the tables are there."""
        assert self.process.poll() is None, self.said
        return (self.home / "table").exists() and "ready" in self.said

    @property
    def table(self) -> str:
        """The table's name at present."""
        return (self.home / "table").read_text()

    @property
    def acts(self) -> list[dict[str, Any]]:
        """What it did besides writing."""
        path = self.home / "acts"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def hold(self) -> None:
        """Have it do nothing until ``release``."""
        (self.home / "hold").touch()
        wait_for((self.home / "held").exists, lambda: f"the owner to pause: {self.said}", 180, every=0.1)

    def release(self) -> None:
        """Let it go on."""
        (self.home / "hold").unlink()

    def stop(self) -> None:
        """Have it end after the statement that it is in."""
        (self.home / "stop").touch()
        assert self.process.wait(timeout=180) == 0, self.said


class Loader:
    """Loads files into one partition under their final names, as ``hdfs put`` and ``LOAD DATA`` from elsewhere do."""

    def __init__(self, owner: Owner, uri: str, kind: str, chance: random.Random) -> None:
        self._owner, self._uri, self._kind, self._chance = owner, uri, kind, chance
        self._notes = Notes(owner.home / "writes")
        self._stop = threading.Event()
        self.loads = 0
        self.wrong: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the file that is being written."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            for number in count(100_000):
                if self._stop.wait(self._chance.uniform(0.5, 8)):
                    return
                self._load(number)
        except Exception as error:
            self.wrong.append(f"the loader ended: {error!r}")
            raise

    def _load(self, number: int) -> None:
        low = number * 1000
        ids = range(low, low + 12)
        table = pa.table({"id": list(ids), "write": [number] * 12, "value": [f"v{value}" for value in ids]})
        sink = io.BytesIO()
        (pq.write_table if self._kind == "parquet" else orc.write_table)(table, sink)
        content = sink.getvalue()
        place = places(self._uri, self._owner.table).get(LOADED)
        if place is None:  # the table is being renamed
            return
        entry = {LOADED: (low, low + 12)}
        try:
            file = (place / f"{_HALF}{number}.{self._kind}").open("xb", buffering=0)
        except FileNotFoundError:
            return
        self._notes.add(number=number, overwrites=False, began=time.time(), partitions=entry)
        with file:
            for part in range(4):
                file.write(content[part * len(content) // 4 : (part + 1) * len(content) // 4])
                time.sleep(self._chance.choice((0, 0.3, 2, 5)))
        self._notes.add(number=number, ended=time.time())
        self.loads += 1


class HiveChaos:
    """One run of ``seconds`` on a table of a kind; ``problems`` are what must not be."""

    def __init__(self, kind: str, seed: int, seconds: float, home: Path, metastore: MetastoreServer) -> None:
        self.kind, self.home, self.metastore = kind, home, metastore
        self._seconds, self._seed = seconds, f"{kind}/{seed}"
        self._chance = random.Random(f"faults/{self._seed}")
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self._faults, self._clock, self._began = Faults(), RIGHT, time.monotonic()
        self._halts: set[str] = set()
        self._installation = self._installed()

    def _installed(self) -> Installation:
        return hive_installation(
            self.home, sqlite_at(self.home), self.metastore.uri, f"chaos_{self.kind}", slots=1, retention="60s",
            scan_interval="1s", sweep_interval="5s", heartbeat="1s",
        )  # fmt: skip

    def run(self) -> None:
        """The run. Raises AssertionError with all ``problems`` where there are any."""
        database = f"chaos_{self.kind}"
        owner = Owner(self.home, self.metastore, database, self.kind, self._seed)
        uri, daemon = self.metastore.uri, None
        reader = FreshReader(
            lambda: read_table(uri, lambda: owner.table, loaded=_HALF), self.home / "writes", 0.5,
            Judge(is_due=self._faults.is_due),
        )  # fmt: skip
        loader = Loader(owner, uri, self.kind, random.Random(f"loads/{self._seed}"))
        try:
            wait_for(lambda: owner.is_ready, lambda: f"the tables: {owner.said}", 240, every=0.2)
            daemon = Victim("daemon", self._start)
            self._fault(time.time(), time.time())
            reader.start()
            loader.start()
            self._violent(daemon, owner, reader)
            self._say("no more faults")
            owner.stop()
            loader.stop()
            self._rest(owner)
            reader.halt()
            self._last_look(reader, owner)
            if daemon.end(90) not in (0, None):
                self.wrong(f"the daemon ended with {daemon.process.returncode}")
        finally:
            with suppress(Exception):
                reader.halt()
            stop_group(owner.process)
            if daemon is not None:
                daemon.kill()
        self.problems += [*reader.wrong, *loader.wrong]
        self.counts |= Counter(
            reads=reader.judge.reads,
            loads=loader.loads,
        )
        self.counts.update(f"owner: {act['act']}" for act in owner.acts)
        self.counts["writes"] = sum(map(len, Ledger.of(self.home / "writes").writes.values()))
        assert not self.problems, in_short(self.problems)

    def tail(self) -> str:
        """The end of the run's log."""
        path = self.home / "events.log"
        return path.read_text()[-4000:] if path.exists() else ""

    def wrong(self, text: str) -> None:
        """Note what must not be."""
        self.problems.append(text)
        self._say(f"WRONG {text}")

    def _start(self) -> "subprocess.Popen[Any]":
        self._installation.variables = self._clock.environment()
        return self._installation.start("serve", log=self.home / "daemon.log")

    def _say(self, text: str) -> None:
        with (self.home / "events.log").open("a") as file:
            file.write(f"{time.strftime('%H:%M:%S')} {time.monotonic() - self._began:7.2f} {text}\n")

    def _fault(self, began: float, ended: float) -> None:
        self._faults.add(began, ended)

    # The faults.

    def _violent(self, daemon: Victim, owner: Owner, reader: FreshReader) -> None:
        end = time.monotonic() + self._seconds
        while time.monotonic() < end and not reader.wrong:
            pause = self._chance.expovariate(1 / _GAP_SECONDS)
            # Now and then nothing happens for so long that late rows become due.
            until = time.monotonic() + (pause + 70 if self._chance.random() < 0.2 else pause)
            while time.monotonic() < min(until, end):
                time.sleep(0.5)
                assert owner.process.poll() is None, owner.said
                if not daemon.running:
                    self.wrong(f"the daemon ended by itself with {daemon.process.returncode}")
                    daemon.restart()
                self._look(owner)
            kind = self._chance.choice(_FAULTS)
            seconds = self._chance.uniform(*(_LONG if self._chance.random() < 0.3 else _SHORT))
            self._say(f"{kind} for {seconds:.1f} s")
            began = time.time()
            self._inflict(kind, seconds, daemon, owner)
            self._fault(began, time.time())
            self.counts[kind] += 1

    def _inflict(self, kind: str, seconds: float, daemon: Victim, owner: Owner) -> None:
        if kind == "stop":
            part = self._chance.choice(("all", "python", "jvm"))
            daemon.signal(signal.SIGSTOP, part)
            time.sleep(seconds)
            daemon.wake()
        elif kind == "metastore stops":
            self.metastore.signal(signal.SIGSTOP)
            time.sleep(seconds)
            self.metastore.signal(signal.SIGCONT)
        elif kind == "metastore dies":
            # Only lakefold meets it: what a statement of the owner's did that fails here is not known.
            owner.hold()
            self.metastore.stop()
            time.sleep(seconds)
            self.metastore.start()
            owner.release()
        else:
            daemon.kill()
            if kind == "clock":
                self._clock = Clock(seconds=self._chance.choice(_CLOCKS), zone=self._chance.choice(_ZONES))
                self._say(f"the daemon's clock: {self._clock}")
            if kind == "database":
                for path in self.home.glob("*.db*"):
                    path.unlink()
                self._installation = self._installed()
            time.sleep(seconds)
            daemon.restart()

    # What must be so.

    def _look(self, owner: Owner) -> None:
        """What the other table shows, and which tables are halted."""
        self._shown(owner)
        if time.monotonic() < getattr(self, "_status_at", 0):
            return
        self._status_at = time.monotonic() + 5
        done = self._installation.run("status", "--json", expect=None)
        if done.returncode == 0:
            for halt in json.loads(done.stdout).get("halted") or ():
                text = json.dumps(halt, sort_keys=True)
                if text not in self._halts:
                    self._halts.add(text)
                    self.wrong(f"halted: {text[:1500]}")

    def _shown(self, owner: Owner) -> None:
        database = f"chaos_{self.kind}"
        shared = {act["partition"]: act for act in owner.acts if act["act"] == "share"}
        with suppress(FileNotFoundError):
            shown = places(self.metastore.uri, f"{database}.{MIRROR}")
            rows = {name: rows_at(place) for name, place in shown.items() if name in shared}
            still = places(self.metastore.uri, f"{database}.{MIRROR}")
            for name in rows.keys() & still.keys():
                self.counts["looks at shared directories"] += 1
                missing = [row for row in map(tuple, shared[name]["rows"]) if rows[name][row] == 0]  # type: ignore[index]
                if missing:
                    self.wrong(f"shared {name}: {len(missing)} of {len(shared[name]['rows'])} rows are gone")
                if any(number > 1 for number in rows[name].values()):
                    self.wrong(f"shared {name}: rows are doubled")
            return
        still = places(self.metastore.uri, f"{database}.{MIRROR}")
        for name in shown.keys() & still.keys() & shared.keys():
            if not shown[name].exists():
                self.wrong(f"shared {name}: its directory is gone")

    def _rest(self, owner: Owner) -> None:
        expected: Callable[[], dict[str, Counter[tuple[int, int]]]] = Ledger.of(self.home / "writes").rows

        def rows() -> dict[str, Counter[tuple[int, int]]]:
            reads = read_table(self.metastore.uri, lambda: owner.table)
            return {read.partition: Counter(read.rows) for read in reads}

        deadline = time.monotonic() + _REST_SECONDS + _RECOVERY_SECONDS
        while time.monotonic() < deadline and rows() != expected():
            time.sleep(1)
        time.sleep(_REST_SECONDS / 3)
        if rows() != expected():
            found = rows()
            for name, written in expected().items():
                lost, more = written - found.get(name, Counter()), found.get(name, Counter()) - written
                if lost or more:
                    self.wrong(f"at rest, {name}: {len(lost)} rows missing, {len(more)} too many: {min(lost | more)}")

    def _last_look(self, reader: FreshReader, owner: Owner) -> None:
        reader.look()
        self._look(owner)
        plans = self._installation.json("plans", "list", "--limit", "1000")
        self.counts.update(f"plans {plan['state']}" for plan in plans)
        for plan in plans:
            # A plan whose table has another name by now can't be completed.
            if plan["state"] == "failed" and "has no table" not in (plan["error"] or ""):
                self.wrong(f"a failed plan: {json.dumps(plan)[:1500]}")
        if not self.counts["plans completed"]:
            self.wrong("no plan was completed")


def in_words(counts: Counter[str]) -> str:
    """Counts, for a figure."""
    return ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))

# SPDX-License-Identifier: Apache-2.0
"""One run: a writer, daemons that compact, faults at random moments, and every snapshot compared with the ledger."""

import json
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from chaos.clocks import RIGHT, Clock
from chaos.processes import Victim
from harness import iceberg_installation
from hive_chaos.database import Database
from hive_chaos.processes import variables
from hive_race.ledger import in_short
from iceberg_tables import observing
from waiting import wait_for

from iceberg_chaos.catalogs import Catalog
from iceberg_chaos.ledger import Ledger, Snapshot, as_read, difference
from iceberg_chaos.orphans import Orphans
from iceberg_chaos.processes import WriterProcess
from iceberg_chaos.readers import Reader, by_pyiceberg, by_spark, lineage
from iceberg_chaos.writer import MAX_AGE_SECONDS, MIN_KEPT, TABLE
from lake.errors import Transient
from lake.formats.iceberg.catalog.tables import load_table
from lake.model import TableRef

_GAP_SECONDS = 20.0
_SHORT, _LONG = (0.2, 3.0), (8.0, 14.0)
_QUIET_SECONDS = 8.0
_ANSWERS_WITHIN_SECONDS = 30.0
_REST_SECONDS = 240.0
_RETENTION_SECONDS = 15
_CLOCKS = (0, 30, -30, 90, -90, 32_400, -32_400)
_ZONES = ("", "UTC", "America/New_York", "Asia/Tokyo", "Australia/Lord_Howe")
_POINTS = ("after_rewrite", "before_commit", "in_commit", "after_commit", "before_record")
_DAEMON: Mapping[str, str | int] = {
    "executor_slots": 1,
    "rescue_interval": "2s",
    "clean_interval": "3s",
    "metrics_interval": "10s",
    "leader_ttl": "6s",
}
_POLICY: Mapping[str, str | int | Sequence[str]] = {
    "scan_interval": "1s",
    "sweep_interval": "3s",
    "lease": "6s",
    "heartbeat": "2s",
    "backoff": "1s",
    "backoff_max": "4s",
    "max_attempts": 1000,
    "compact_delete_files": 2,
    "min_input_files": 2,
    "table_services": ["manifests"],
    "table_services_interval": "5s",
}


class Fault(StrEnum):
    """What is done to lakefold's daemons, the writer, the catalog, clocks and databases."""

    KILL = "kills of a daemon"
    POINT = "kills of a daemon at a step of a plan"
    JVM = "kills of a daemon's Java process alone"
    STOP = "stops of a daemon"
    WRITER = "kills of the writer"
    CATALOG = "outages of the catalog"
    CLOCK = "changes of a daemon's clock"
    LOST = "lost databases"
    AWAY = "outages of the database"


#: those of which a round has more than one
_TWICE = (Fault.KILL, Fault.POINT, Fault.STOP)
_WRITER = "writer: "
#: how often a snapshot is read if the table changes during each failed read
_READS = 3
#: acts of the writer in the words of a figure
_ACTS = {
    "append": "appends",
    "update": "updates",
    "merge": "merges",
    "delete": "deletes",
    "clear": "deletes of a partition's files",
    "overwrite": "overwrites",
    "compact": "compactions",
    "expire": "expirations of snapshots",
    "rollback": "rollbacks",
    "forward": "moves of main to a branch",
    "tag": "tags made",
    "untag": "tags removed",
    "branch": "branches made",
    "unbranch": "branches removed",
    "add column": "columns added",
    "rename column": "columns renamed",
    "drop column": "columns dropped",
    "spec": "changes of the partition spec",
    "merging": "changes of whether appends merge manifests",
}


class IcebergChaos:
    """One run of ``seconds`` on a table of a format ``version``; ``problems`` are what must not be.

    With ``enough``, the run ends before that once so many plans have committed, if it had the faults of ``chosen``.
    Such a run has short faults, a short retention and a short time of rest.
    """

    def __init__(
        self,
        version: int,
        seed: str,
        seconds: float,
        home: Path,
        catalog: Catalog,
        database: Database,
        spark: Any,
        *,
        enough: int = 0,
        chosen: tuple[Fault, ...] = (),
        gap: float = _GAP_SECONDS,
    ) -> None:
        self.version, self.home, self.catalog, self.database, self.spark = version, home, catalog, database, spark
        self._seconds, self._enough, self._chosen, self._gap = seconds, enough, list(chosen), gap
        self._retention_seconds, self._quiet_seconds = (4, 3.0) if enough else (_RETENTION_SECONDS, _QUIET_SECONDS)
        self._chance = random.Random(f"faults/{seed}")
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self._left: list[Fault] = []
        self._began = time.monotonic()
        settings = {**catalog.settings, "spark.jars": spark.conf.get("spark.jars"), "spark.jars.packages": ""}
        self._settings = settings
        self._installation = self._installed()
        self.writer = WriterProcess(home, settings, version, seed)
        #: the daemons' clocks, and those that are to die at a step of a plan
        self._clocks: dict[str, Clock] = {}
        self._doomed: dict[str, str] = {}
        self.daemons: list[Victim] = []
        self.ledger = Ledger(
            notes=home / "acts", kept_seconds=max(self._retention_seconds, MAX_AGE_SECONDS), kept_count=MIN_KEPT
        )
        for key, value in catalog.settings.items():
            spark.conf.set(key, value)
        self._orphans = Orphans()
        # Commands in this process configure the adapter that they share.
        self._format = observing(dict(catalog.settings))
        self._readers: dict[str, Reader] = {"PyIceberg": by_pyiceberg, "Spark": by_spark(spark, TABLE)}
        self._ref: TableRef | None = None
        self._looked = 0

    def _installed(self) -> Any:
        policy = _POLICY | {"retention": f"{self._retention_seconds}s"}
        return iceberg_installation(self.home, self.database.url, self._settings, _DAEMON, **policy)

    def run(self) -> None:
        """The run. Raises AssertionError with all ``problems`` if there are any."""
        try:
            self.writer.wait()
            for name in ("a", "b") if self.database.has_server else ("a",):
                self._clocks[name] = RIGHT
                if self._chosen[:1] == [Fault.POINT]:
                    # The first process dies itself, which saves the time of a second start.
                    self.counts[self._chosen.pop(0)] += 1
                    self._doom(name)
                self.daemons.append(Victim(name, lambda name=name: self._start(name)))
            self._violent()
            self._say("no more faults")
            self._set_right()
            self.writer.stop()
            assert not self.problems + self.ledger.problems, in_short(self.problems + self.ledger.problems)
            self._unname()
            self._rest()
            self._say("at rest")
            self._last_look()
            for daemon in self.daemons:
                if (code := daemon.end(90)) not in (0, None):
                    self.wrong(f"daemon {daemon.name} ended with {code}")
        finally:
            self.writer.kill()
            for daemon in self.daemons:
                daemon.kill()
        self.problems += self.ledger.problems
        self._count()
        assert not self.problems, in_short(self.problems)

    def _start(self, name: str) -> "subprocess.Popen[Any]":
        self._installation.variables = variables(self._clocks[name])
        point = self._doomed.get(name)
        failpoints = "" if point is None else f"{point}=kill"
        return self._installation.start("serve", failpoints=failpoints, log=self.home / f"daemon-{name}.log")

    def wrong(self, text: str) -> None:
        """Note what must not be."""
        self.problems.append(text)
        self._say(f"WRONG {text}")

    def tail(self) -> str:
        """The end of the run's log."""
        path = self.home / "events.log"
        return path.read_text()[-6000:] if path.exists() else ""

    def _say(self, text: str) -> None:
        with (self.home / "events.log").open("a") as file:
            file.write(f"{time.strftime('%H:%M:%S')} {time.monotonic() - self._began:7.2f} {text}\n")

    # Faults.

    def _violent(self) -> None:
        end = time.monotonic() + self._seconds
        while not self._is_over(end):
            pause = self._chance.expovariate(1 / self._gap)
            self._watch(min(time.monotonic() + pause, end))
            fault = self._draw()
            if fault is None or self._is_over(end):
                continue
            is_long = not self._enough and self._chance.random() < 0.25
            seconds = self._chance.uniform(*(_LONG if is_long else _SHORT))
            self._say(f"{fault} for {seconds:.1f} s")
            self._inflict(fault, seconds)
            self.counts[fault] += 1

    def _is_over(self, end: float) -> bool:
        if self.problems or self.ledger.problems or time.monotonic() > end:
            return True
        return bool(self._enough) and not self._chosen and self.ledger.counts["commits of plans"] >= self._enough

    def _draw(self) -> Fault | None:
        """The next fault: each one comes before any other one has come twice as often."""
        if self._enough:
            return self._chosen.pop(0) if self._chosen else None
        if not self._left:
            without = set() if self.database.has_server else {Fault.AWAY}
            self._left = [one for one in (*Fault, *_TWICE) if one not in without]
            self._chance.shuffle(self._left)
        return self._left.pop()

    def _inflict(self, fault: Fault, seconds: float) -> None:
        daemon = self._chance.choice(self.daemons)
        if not daemon.running:
            return  # it died at its step, and is started again
        if fault is Fault.STOP:
            daemon.signal(signal.SIGSTOP, self._chance.choice(("all", "python", "jvm")))
            self._watch(time.monotonic() + seconds)
            daemon.wake()
        elif fault is Fault.JVM:
            daemon.signal(signal.SIGKILL, "jvm")
        elif fault is Fault.WRITER:
            self.writer.kill()
            self._watch(time.monotonic() + seconds)
            self.writer.restart()
        elif fault is Fault.CATALOG:
            self.catalog.crash()
            time.sleep(seconds)
            self.catalog.start()
        elif fault is Fault.AWAY:
            with self.database.away():
                time.sleep(seconds)
        elif fault is Fault.LOST:
            for one in self.daemons:
                one.kill()
            self._judge_plans()
            self._orphans.lose(self.database.url)
            self.database.lose()
            self._installation = self._installed()
            for one in self.daemons:
                one.restart()
        else:
            self._doomed.pop(daemon.name, None)
            daemon.kill()
            self._watch(time.monotonic() + min(seconds, 3))
            if fault is Fault.CLOCK:
                clock = Clock(seconds=self._chance.choice(_CLOCKS), zone=self._chance.choice(_ZONES))
                # Daemons on one SQLite file are on one host.
                self._clocks[daemon.name] = clock
                self._say(f"the clock of {daemon.name}: {clock}")
            elif fault is Fault.POINT:
                self._doom(daemon.name)
            daemon.restart()

    def _doom(self, name: str) -> None:
        """Have the next process of a daemon die at a step of a plan."""
        self._doomed[name] = self._chance.choice(_POINTS)
        self._say(f"{name} is to die: {self._doomed[name]}")

    def _set_right(self) -> None:
        """Give every daemon the right clock, and run everything."""
        for daemon in self.daemons:
            if not self._clocks[daemon.name].is_right or daemon.name in self._doomed:
                daemon.kill()
                self._clocks[daemon.name] = RIGHT
                self._doomed.pop(daemon.name, None)
                daemon.restart()
        if not self.writer.running:
            self.writer.kill()
            self.writer.restart()
        self.writer.wait()

    # What must be so.

    def _watch(self, until: float) -> None:
        """Look at everything again and again."""
        while not self.problems and not self.ledger.problems:
            self._revive()
            self._look()
            if time.monotonic() >= until:
                return
            time.sleep(min(0.3, max(0.0, until - time.monotonic())))

    def _revive(self) -> None:
        for daemon in self.daemons:
            if daemon.running:
                continue
            if daemon.name not in self._doomed:
                if daemon.process.returncode != -signal.SIGKILL:
                    self.wrong(f"daemon {daemon.name} ended by itself with {daemon.process.returncode}")
                continue
            self._say(f"{daemon.name} died at its step")
            self.counts["deaths at a step"] += 1
            del self._doomed[daemon.name]
            daemon.kill()
            daemon.restart()
        if self.writer.process.poll() not in (None, -signal.SIGKILL):
            self.wrong(f"the writer ended by itself: {self.writer.said}")

    def _look(self) -> None:
        """Follow the table, and read its head and one older snapshot, each by one of the readers in turn."""
        self._follow()
        if self.ledger.head is None:
            return
        self._looked += 1
        names = list(self._readers)
        self._compare(names[self._looked % 2], self.ledger.snapshots[self.ledger.head])
        older = self._chance.choice(list(self.ledger.snapshots.values()))
        self._compare(self._chance.choice(names), older)
        if self.version == 3 and older.act is None:
            self._compare_lineage(older)
        if self._looked % 10 == 0:
            self._judge_halts()

    def _follow(self) -> None:
        if self._ref is None:
            found = self._format.discover_in_catalog("prod", "lake", "t")
            (self._ref,) = [one for one in found if isinstance(one, TableRef)]
        location = self._location(self._ref)
        if location != self.ledger.location:
            self.ledger.follow(location)
            self._orphans.follow(self.ledger)

    def _location(self, ref: TableRef) -> str:
        """Where the table's metadata is; the catalog's server may have been started just now."""
        deadline = time.monotonic() + _ANSWERS_WITHIN_SECONDS
        while True:
            try:
                return load_table(self.catalog.settings, ref).metadata_location
            except Transient:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def _compare(self, name: str, snapshot: Snapshot) -> None:
        """Compare the rows of a snapshot, unless it expires meanwhile."""
        for attempt in range(_READS):
            location = self.ledger.location
            try:
                found, columns = self._readers[name](location, snapshot.id)
                break
            except Exception as error:
                self._follow()
                if snapshot.id not in self.ledger.snapshots:
                    return
                # Spark loads the table's metadata twice for a query, which fails if the schema changes in between.
                if attempt == _READS - 1 or location == self.ledger.location:
                    self.wrong(f"{name} can't read snapshot {snapshot.id}: {type(error).__name__}: {str(error)[:1500]}")
                    return
        added = [number for _, number in self.ledger.columns(columns)]
        if text := difference(found, as_read(snapshot.rows, added)):
            self.wrong(f"{name}, snapshot {snapshot.id} of {_cause(snapshot)}: {text}")
        self.counts[f"states read by {name}"] += 1
        self.counts["rows read"] += found.total()

    def _compare_lineage(self, snapshot: Snapshot) -> None:
        """A commit of lakefold keeps each row's id and the number of its last change."""
        if snapshot.parent is None or snapshot.parent not in self.ledger.snapshots:
            return
        try:
            before, after = (lineage(self.spark, TABLE, one) for one in (snapshot.parent, snapshot.id))
        except Exception:
            self._follow()
            if {snapshot.parent, snapshot.id} <= self.ledger.snapshots.keys():
                raise
            return
        self.counts["comparisons of row ids"] += 1
        if before != after:
            self.wrong(f"{_cause(snapshot)} changed row ids: {sorted(before - after)[:3]} {sorted(after - before)[:3]}")

    def _status(self) -> Mapping[str, Any]:
        (found,) = self._installation.json("status")
        return found

    def _judge_halts(self) -> None:
        for entry in self._status()["attention"]:
            if entry["halted_at"] or entry["halted_partitions"]:
                self.wrong(f"halted: {json.dumps(entry)[:1500]}")

    def _judge_plans(self) -> None:
        """Those that the database knows. It is asked before it is lost, and at the end."""
        plans = self._installation.json("plans", "list", "--limit", "1000")
        self.counts.update(f"plans {plan['state']}" for plan in plans)
        for plan in plans:
            if plan["state"] == "failed":
                self.wrong(f"a failed plan: {json.dumps(plan)[:1500]}")

    # The end.

    def _unname(self) -> None:
        """Remove tags and branches, which keep replaced files."""
        wait_for(self._is_unnamed, "the table keeps its tags and branches", 30, every=0.5)

    def _is_unnamed(self) -> bool:
        iceberg = self.spark._jvm.org.apache.iceberg
        java = iceberg.spark.Spark3Util.loadIcebergTable(self.spark._jsparkSession, TABLE)
        for name, ref in dict(java.refs()).items():
            if name != "main":
                update = java.manageSnapshots()
                try:
                    (update.removeTag(name) if ref.isTag() else update.removeBranch(name)).commit()
                except Exception:  # Iceberg does not repeat this if a plan was faster
                    return False
                java.refresh()
        return True

    def _rest(self) -> None:
        """Wait until the newest snapshot is scanned, no plan is under way and no replaced file waits."""
        restless, deadline = time.monotonic(), time.monotonic() + _REST_SECONDS
        while True:
            began = time.monotonic()
            if unfinished := self._unfinished():
                restless = time.monotonic()
            elif began >= restless + self._quiet_seconds:
                # A look takes long on a busy machine, so the last one begins after the quiet time.
                return
            if time.monotonic() > deadline:
                self.wrong(f"not at rest {_REST_SECONDS:.0f} s after the last fault: {unfinished[:5]}")
                return
            self._look()
            time.sleep(1)

    def _unfinished(self) -> list[str]:
        found = []
        for state in ("requested", "inflight"):
            plans = self._installation.json("plans", "list", "--state", state, "--limit", "1000")
            found += [f"{state} {plan['plan_id']}: {plan['error']}" for plan in plans]
        if waiting := self._status().get("superseded_files", 0):
            found.append(f"{waiting} superseded files")
        # A daemon that has just started has no plan, since it has not read the table.
        tables = self._installation.json("tables", "list")
        scanned = [(one["last_good_scan"] or {}).get("instant") for one in tables]
        if scanned != [str(self.ledger.head)]:
            found.append(f"snapshot {self.ledger.head} has not been scanned, the last scan saw {scanned}")
        return found

    def _last_look(self) -> None:
        """Read every snapshot that the table still promises by every reader."""
        self._follow()
        for snapshot in list(self.ledger.snapshots.values()):
            for name in self._readers:
                self._compare(name, snapshot)
        self.ledger.judge_acts()
        self._judge_plans()
        self._judge_halts()
        self._judge_verification()

    def _judge_verification(self) -> None:
        """``lakefold verify`` finds nothing but files of dead writers and of lost databases."""
        (found,) = self._installation.json("verify", "lake.t", "--rows", expect=None)
        self._say(f"verify: {json.dumps(found)[:3000]}")
        result = found["verification"]
        unowned = result.pop("unowned")
        self.counts["files of dead writers or lost databases"] += len(unowned)
        wrong = {"unowned": self._orphans.wrong(unowned, self.ledger, self.database.url)}
        wrong |= {name: result[name] for name in ("missing", "wrong_size", "resurrected", "contradictions")}
        if any(wrong.values()) or result["rows_expected"] not in (None, result["rows"]):
            self.wrong(f"lakefold verify finds {wrong} in {json.dumps(result)[:1500]}")

    def _count(self) -> None:
        self.counts.update(self.ledger.counts)
        self.counts["seconds"] = int(self._seconds)
        for act in self.ledger.acts().values():
            failed = " (failed)" if "failed" in act else ""
            self.counts[f"{_WRITER}{act['act']}{failed}"] += 1


def _cause(snapshot: Snapshot) -> str:
    """Return the act or plan that made a snapshot."""
    if snapshot.act is not None:
        return f"act {snapshot.act}"
    return f"plan {snapshot.plan}" if snapshot.plan else "a withdrawal or a table service"


def in_words(counts: Mapping[str, int]) -> str:
    """Counts, for a figure: the faults, then the writer's acts, then the others."""
    faults = ", ".join(f"{counts[one]} {one}" for one in Fault if counts.get(one))
    names = sorted(name for name in counts if name.startswith(_WRITER))
    acts = ", ".join(f"{counts[name]} {_in_words(name.removeprefix(_WRITER))}" for name in names)
    others = sorted(counts.keys() - {*map(str, Fault), *names, "seconds"})
    return f"{faults}; the writer's acts: {acts}; {', '.join(f'{counts[name]} {name}' for name in others)}"


def _in_words(act: str) -> str:
    act, _, failed = act.partition(" (")
    return f"{_ACTS[act]} ({failed}" if failed else _ACTS[act]

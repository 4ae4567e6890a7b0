# SPDX-License-Identifier: Apache-2.0
"""A real writer in another JVM against the daemon's clustering and cleaning: the writer's ledger is the judge."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import postgres
import pytest
from harness import Installation, stop_group
from support import SOAK, record_figure
from waiting import wait_for

from lake.errors import LakefoldError
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.lock_settings.on_conflict import CONFLICT_STRATEGY_KEY, UPDATES_STRATEGY_KEY, WRITER_WINS_OPTIONS
from lake.formats.hudi.timeline.timeline import Timeline, planned_slices
from service.cli.demo.hudi import read_table
from service.cli.demo.ledger import WriterLedger, compare

COMMITS = 40 if SOAK else 8
ROWS = 4000 if SOAK else 1000
DAEMONS = 2 if SOAK else 1
RACES = [("copy_on_write", "plan_wins")]
if SOAK:
    RACES += [("copy_on_write", "writer_wins"), ("merge_on_read", "plan_wins"), ("merge_on_read", "writer_wins")]
DELETED = re.compile(r"deleted (\d+) superseded files")


class Writer:
    """``python -m service.cli.demo.writer`` as a process; ``events`` are the JSON lines it printed so far."""

    def __init__(self, home: Path, base: Path, *arguments: str) -> None:
        self.base, self.hold_file, self.log = base, home / "hold", home / "writer.log"
        self.ledger = WriterLedger(home / "ledger")
        command = [
            sys.executable,
            "-m",
            "service.cli.demo.writer",
            "--table",
            str(base),
            "--ledger",
            str(home / "ledger"),
        ]
        with self.log.open("wb") as sink, (home / "writer.err").open("wb") as errors:
            self.process = subprocess.Popen(
                [*command, "--hold", str(self.hold_file), *arguments],
                stdout=sink,
                stderr=errors,
                start_new_session=True,
            )

    @property
    def events(self) -> list[dict[str, Any]]:
        """What the writer has said."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def count(self, event: str) -> int:
        """How many events of one kind there were."""
        return sum(e["event"] == event for e in self.events)

    def wait_for(self, event: str, count: int = 1, seconds: float = 180) -> None:
        """Block until the writer has said ``event`` ``count`` times."""
        deadline = time.monotonic() + seconds
        while self.count(event) < count:
            assert self.process.poll() is None or self.count(event) >= count, self.log.read_text()[-2000:]
            assert time.monotonic() < deadline, f"no {event} from the writer: {self.log.read_text()[-2000:]}"
            time.sleep(0.1)

    @contextmanager
    def held(self) -> Iterator[None]:
        """No write is under way inside."""
        if self.process.poll() is not None:
            yield
            return
        holding = self.count("holding")
        self.hold_file.touch()
        self._until_said("holding", holding + 1)
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        """End a hold. Returns once the writer has noticed: a hold that follows at once would not be one of its own."""
        self.hold_file.unlink()
        self._until_said("resumed", self.count("holding"))

    def _until_said(self, event: str, count: int) -> None:
        while self.process.poll() is None and self.count(event) < count:
            time.sleep(0.05)


class PendingPlans:
    """Looks at the pending plans on a table's timeline all the time: no file group may be in two of them."""

    def __init__(self, base: Path) -> None:
        self._storage, self._stop = TableStorage(str(base)), threading.Event()
        self.looks = 0
        self.twice: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; ``twice`` is what was found."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            # A listing is not of one moment: a plan that ends meanwhile may look pending once, not again.
            found = self._look()
            if found and (again := found & self._look()):
                self.twice += sorted(again)
            self.looks += 1

    def _look(self) -> set[str]:
        with suppress(FileNotFoundError, LakefoldError):
            holders: dict[tuple[str, str], set[str]] = {}
            for instant, plan in Timeline(self._storage).pending_plans():
                for entry in planned_slices(plan):
                    holders.setdefault((entry.partition, entry.file_id), set()).add(instant.time)
            return {f"{group} in {sorted(instants)}" for group, instants in holders.items() if len(instants) > 1}
        return set()


def in_spark(spark: Any, base: Path) -> Any:
    """The table as Spark reads it now."""
    spark.catalog.clearCache()
    import pyarrow as pa

    from service.cli.demo.trips import TRIPS

    frame = spark.read.format("hudi").load(str(base)).select(*TRIPS.names)
    rows = [row.asDict(recursive=True) for row in frame.collect()]
    return pa.Table.from_pylist(rows, schema=TRIPS)


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.timeout(3600 if SOAK else 600)
@pytest.mark.parametrize(("kind", "on_conflict"), RACES)
def test_a_writers_ledger_equals_the_table_after_every_plan(kind, on_conflict, spark, tmp_path, request):
    base = tmp_path / "lake" / "trips"
    options = ["--fill-rows", str(ROWS), "--fill-files", "4", "--days", "2", "--rows", "200", "--pause", "0.5"]
    if kind == "merge_on_read":
        options.append("--merge-on-read")
    if on_conflict == "writer_wins":
        for key in (CONFLICT_STRATEGY_KEY, UPDATES_STRATEGY_KEY):
            options += ["--option", f"{key}={WRITER_WINS_OPTIONS[key]}"]
    writer = Writer(tmp_path, base, *options, "--commits", str(COMMITS))
    logs = [tmp_path / f"daemon{number}.log" for number in range(DAEMONS)]
    daemons: list[subprocess.Popen[bytes]] = []
    url = f"sqlite:///{tmp_path}/lakefold.db"
    if DAEMONS > 1:
        url = postgres.new_database(request.getfixturevalue("postgres_url"), f"race_{kind}_{on_conflict}")

    def said() -> str:
        return "".join(log.read_text() for log in logs if log.exists())

    pending = PendingPlans(base)
    try:
        writer.wait_for("commit", 2)
        installation = Installation(
            home=tmp_path,
            url=url,
            on_conflict=on_conflict,
            write_options={"hoodie.clean.automatic": "false"},
            # Retention is what protects a reader: longer than the comparison's own queries take.
            policy={"scan_interval": "1s", "sweep_interval": "1s", "retention": "20s", "compact_log_files": 2},
            daemon={"clean_interval": "2s"},
        )
        # The first plan is let through, so that the race begins with a daemon that has its Spark up.
        writer.hold_file.touch()
        daemons += [installation.start("serve", log=log) for log in logs]
        completed = ("plans", "list", "--state", "completed")
        wait_for(lambda: installation.json(*completed), lambda: f"a plan:\n{said()[-4000:]}", 180, every=0.5)
        writer.release()
        pending.start()
        checked: set[str] = set()
        comparisons = 0
        while True:
            ended = writer.process.poll() is not None
            done = {plan["plan_id"] for plan in installation.json(*completed)}
            if done - checked or ended:
                with writer.held():
                    expected = writer.ledger.rows()
                    native = compare(expected, read_table(str(base)))
                    assert native.equal, f"hudi-rs: {native}"
                    classic = compare(expected, in_spark(spark, base))
                    assert classic.equal, f"Spark: {classic}"
                comparisons += 1
                checked |= done
            if ended:
                break
            assert not any(daemon.poll() for daemon in daemons), said()[-4000:]
            time.sleep(0.5)
        assert writer.process.returncode == 0, writer.log.read_text()[-2000:]
        assert writer.count("commit") >= COMMITS
        plans = installation.json("plans", "list", "--limit", "1000")
        states = Counter(plan["state"] for plan in plans)
        kinds = Counter(plan["kind"] for plan in plans if plan["state"] == "completed")
        assert states["completed"] >= 3
        assert kind == "copy_on_write" or kinds["compaction"] > 0
        assert states["failed"] == 0, json.dumps([p for p in plans if p["state"] == "failed"], indent=1)[:3000]
        deleted = wait_for(lambda: sum(map(int, DELETED.findall(said()))), "a deletion by the cleaner", 120)
        for daemon in daemons:
            daemon.send_signal(signal.SIGTERM)
        assert [daemon.wait(timeout=60) for daemon in daemons] == [0] * DAEMONS
        pending.stop()
        assert pending.twice == []
        assert pending.looks > 100
        status = installation.json("status")[0]
        removed = status["files_removed"]
        done_kinds = " and ".join(f"{count} {name}s" for name, count in sorted(kinds.items()))
        record_figure(
            f"{kind}, {on_conflict}: {writer.count('commit')} commits of an upsert/insert/delete writer against "
            f"{DAEMONS} daemon{'s' if DAEMONS > 1 else ''}",
            f"{done_kinds} completed, {removed} files fewer, {deleted} superseded files deleted; "
            f"{comparisons} comparisons of ledger and table in Spark and hudi-rs, all equal; conflicts: "
            f"{writer.count('conflict')} lost by the writer, {states['cancelled']} by lakefold; no file group in two "
            f"pending plans in {pending.looks} checks",
        )
    finally:
        for process in (writer.process, *daemons):
            stop_group(process)
    final = compare(writer.ledger.rows(), read_table(str(base)))
    assert final.equal, str(final)

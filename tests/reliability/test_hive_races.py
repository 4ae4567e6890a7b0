# SPDX-License-Identifier: Apache-2.0
"""The real daemon moves partitions of a Hive table while a Spark in another process writes to it without pause.

Every read is compared with the writer's ledger, row by row: nothing is lost that was seen, nothing doubled or there
again, and what a late writer wrote is seen within its bound.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from databases import sqlite_at
from harness import hive_installation, stop_group
from hive_case import drop_tables
from hive_metastore import MetastoreServer
from hive_race.ledger import BOUND, Judge, Ledger, Read, in_short
from hive_race.readers import FreshReader, read_table
from support import SOAK, record_figure
from waiting import wait_for

COMMITS = int(os.environ.get("LAKEFOLD_SOAK_COMMITS") or (60 if SOAK else 8))
KINDS = ["parquet", "orc"] if SOAK else ["parquet"]
RETENTION = "60s"
#: of a writer whose slow appends and overwrites of partitions that it has just written come early and keep coming
SEED = "153"
_HERE = Path(__file__).parent


class Writer:
    """``hive_race.writer`` as a process."""

    def __init__(self, home: Path, metastore: MetastoreServer, table: str, kind: str, seed: str) -> None:
        self.writes, self.reads, self._stop, self.log = home / "writes", home / "reads", home / "stop", home / "writer"
        arguments = [metastore.uri, str(metastore.place), table, kind, str(home), seed]
        with self.log.open("wb") as sink:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hive_race.writer", *arguments],
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_HERE), *sys.path])},
                cwd=metastore.home,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        """The end of what it printed."""
        return self.log.read_text(errors="replace")[-4000:]

    @property
    def is_ready(self) -> bool:
        """Whether the table is there, and was read."""
        assert self.process.poll() is None, self.said
        return "ready" in self.said

    def stop(self) -> None:
        """Have it end after the statements that it is in."""
        self._stop.touch()
        assert self.process.wait(timeout=120) == 0, self.said

    def judged(self) -> tuple[Judge, list[str], int]:
        """What is wrong with what its own reading session saw, and how often that could not read."""
        judge, wrong, errors = Judge(is_fresh=False), [], 0
        ledger = Ledger.of(self.writes)
        for line in self.reads.read_text().splitlines():
            entry = json.loads(line)
            if "error" in entry:
                errors += 1
                assert "FileNotFoundException" in entry["error"] or "does not exist" in entry["error"], entry["error"]
                continue
            rows: dict[str, Counter[tuple[int, int]]] = {name: Counter() for name in ledger.writes}
            for partition, value, number, count in entry["rows"]:
                rows[partition][value, number] = count
            for partition, found in rows.items():
                read = Read(partition=partition, place=None, began=entry["began"], ended=entry["ended"], rows=found)
                wrong += judge.look(read, ledger.writes[partition])
        return judge, wrong, errors


def spanned(log: str) -> tuple[int, int]:
    """Return the numbers of late appends and late overwrites that a daemon has found, by its log."""
    return log.count("files were added to"), log.count("by a writer that began before")


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(3600 if SOAK else 600)
@pytest.mark.parametrize("kind", KINDS)
def test_every_row_that_a_reader_has_seen_stays_until_an_overwrite_while_partitions_move(
    kind: str, metastore: MetastoreServer, tmp_path: Path
):
    table = f"race.{kind}"
    home = hive_installation(
        tmp_path,
        sqlite_at(tmp_path),
        metastore.uri,
        "race",
        slots=1,
        retention=RETENTION,
        scan_interval="1s",
        sweep_interval="5s",
    )
    writer = Writer(tmp_path, metastore, table, kind, SEED)
    log, daemon = tmp_path / "daemon.log", None
    reader = FreshReader(lambda: read_table(metastore.uri, table), writer.writes, every=0.5)
    reader.start()
    try:
        wait_for(lambda: writer.is_ready, lambda: f"a table: {writer.said}", 180, every=0.2)
        daemon = home.start("serve", log=log)

        def told() -> str:
            return log.read_text(errors="replace")

        def is_enough() -> bool:
            assert daemon.poll() is None, told()[-4000:]
            assert writer.process.poll() is None, writer.said
            commits = len(home.json("plans", "list", "--state", "completed", "--limit", "1000"))
            return bool(reader.wrong) or (commits >= COMMITS and all(spanned(told())))

        wait_for(
            is_enough,
            lambda: f"{COMMITS} commits, spanned by appends and overwrites: {told()[-3000:]}",
            3000 if SOAK else 400,
            every=1,
        )
        writer.stop()
        expected = {name: dict(rows) for name, rows in Ledger.of(writer.writes).rows().items()}

        def is_read() -> bool:
            return {read.partition: dict(read.rows) for read in read_table(metastore.uri, table)} == expected

        wait_for(is_read, lambda: f"all rows to be read: {told()[-6000:]}", BOUND, every=1)
        reader.stop()
        assert not reader.wrong, f"{in_short(reader.wrong)}\n{told()[-6000:]}"
        assert {read.partition: dict(read.rows) for read in reader.look()} == expected
        judge, wrong, errors = writer.judged()
        assert not wrong, in_short(wrong)
        assert home.json("status")[0]["halted_tables"] == [], told()[-4000:]
        appended, won = spanned(told())
        copied = sum(map(int, re.findall(r", (\d+) files copied", told())))
        plans = Counter(plan["state"] for plan in home.json("plans", "list", "--limit", "1000"))
        longest = max(reader.judge.delays.values())
        writes = sum(map(len, Ledger.of(writer.writes).writes.values()))
        missed_for = f" (for at most {reader.judge.missed_for:.1f} s)" if reader.judge.seen_early else ""
        record_figure(
            f"Hive {kind}: {plans['completed']} commits beside a Spark that appends and overwrites without pause",
            f"{writes} writes to partitions, {plans['cancelled']} conflicts, {appended} late appends, whose "
            f"{copied} files were copied, {won} late overwrites, which moved their partition back; rows were visible "
            f"at most {longest:.1f} s after their writer had succeeded; {reader.judge.seen_early} reads missed rows of "
            "a late append after a reader had seen them in the previous location and before the sweep had copied "
            f"them{missed_for}; {reader.judge.reads} reads of new readers and "
            f"{judge.reads} reads of a session that had cached the table and had to refresh it {errors} times, all "
            "equal to the ledger",
        )
        daemon.terminate()
        assert daemon.wait(timeout=90) == 0, told()[-3000:]
    finally:
        reader.halt()
        stop_group(writer.process)
        if daemon is not None:
            stop_group(daemon)
        drop_tables(metastore.uri, "race")

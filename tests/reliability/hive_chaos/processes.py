# SPDX-License-Identifier: Apache-2.0
"""Who writes to the table beside lakefold: its owner, a Spark in a process, and a loader of files."""

import io
import json
import os
import random
import subprocess
import sys
import threading
import time
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from chaos.clocks import RIGHT, Clock
from harness import stop_group
from hive_metastore import MetastoreServer
from hive_race.writer import Notes
from pyarrow import orc
from waiting import wait_for

from hive_chaos.catalog import places
from hive_chaos.faults import Spans
from hive_chaos.owner import LOADED, LOADS_FROM

_IMPORTS = [str(Path(__file__).parents[1]), *sys.path]
HALF = "half-"
"""What the names of files begin with that are filled in sight of readers."""


def variables(clock: Clock) -> dict[str, str]:
    """Those of a process of Python with this clock, and of the Java process that it starts."""
    found = clock.environment()
    if "PYTHONPATH" in found:
        found["PYTHONPATH"] = os.pathsep.join([found["PYTHONPATH"], *_IMPORTS])
    return found


def content_of(kind: str, number: int, rows: int = 12) -> bytes:
    """A file with the rows of a write, as the owner's statements make them: ``number`` * 1000 is the first id."""
    ids = range(number * 1000, number * 1000 + rows)
    table = pa.table({"id": list(ids), "write": [number] * rows, "value": [f"v{value}" for value in ids]})
    sink = io.BytesIO()
    (pq.write_table if kind == "parquet" else orc.write_table)(table, sink)
    return sink.getvalue()


class Owner:
    """``hive_chaos.owner`` as a process."""

    def __init__(self, home: Path, metastore: MetastoreServer, database: str, kind: str, seed: str) -> None:
        self.home, self.clock = home, RIGHT
        self._metastore, self._starts = metastore, 0
        self._arguments = [metastore.uri, str(metastore.place / "warehouse"), database, kind, str(home), seed]
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        self._starts += 1
        self._log = self.home / f"owner-{self._starts}.log"
        # Its own clock may be wrong, and what it notes is compared with what others note.
        true = str(time.time() - time.monotonic())
        with self._log.open("wb") as sink:
            return subprocess.Popen(
                [sys.executable, "-m", "hive_chaos.owner", *self._arguments, true, str(self._starts)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(_IMPORTS), **variables(self.clock)},
                cwd=self._metastore.home,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        """The end of what it printed."""
        return self._log.read_text(errors="replace")[-4000:]

    @property
    def is_ready(self) -> bool:
        """Whether the tables are there, and it goes on."""
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

    def wait(self) -> None:
        """Wait until it is ready."""
        wait_for(lambda: self.is_ready, lambda: f"the owner: {self.said}", 600, every=0.2)

    def hold(self) -> None:
        """Have it do nothing until ``release``."""
        (self.home / "hold").touch()
        wait_for((self.home / "held").exists, lambda: f"the owner to pause: {self.said}", 600, every=0.1)

    def release(self) -> None:
        """Let it go on."""
        (self.home / "hold").unlink()
        wait_for(lambda: not (self.home / "held").exists(), lambda: f"the owner to go on: {self.said}", 60, every=0.1)

    def know_halt(self, what: str) -> None:
        """Have it do more of what must not be lost during a halt; '' is the end of it."""
        note = self.home / "halted"
        if what:
            note.write_text(what)
        else:
            note.unlink(missing_ok=True)

    def restart(self, clock: Clock) -> None:
        """End it after the statement that it is in, and start it with another clock."""
        self.stop()
        (self.home / "stop").unlink()
        self.clock = clock
        self.process = self._start()
        self.wait()

    def stop(self) -> None:
        """Have it end after the statement that it is in."""
        (self.home / "stop").touch()
        assert self.process.wait(timeout=600) == 0, self.said

    def kill(self) -> None:
        """End it at once."""
        stop_group(self.process)


class Loader:
    """Loads files into one partition under their final names, as ``hdfs put`` and ``LOAD DATA`` from elsewhere do.

    Some go where the partition was before: their jobs began before it was moved. With a clock ``seconds`` ahead the
    files have its times, as on a mount that takes times from its clients. No order with an overwrite hangs on these
    times, since nothing overwrites this partition; all of the rows are to be there, each once.
    """

    def __init__(self, owner: Owner, uri: str, kind: str, chance: random.Random, spans: Spans) -> None:
        self._owner, self._uri, self._kind, self._chance, self._spans = owner, uri, kind, chance, spans
        self._notes = Notes(owner.home / "writes")
        self._stop = threading.Event()
        self._table, self._place, self._former = "", Path(), Path()
        self.seconds = 0
        self.loads = 0
        #: when loads ended where the partition had been before
        self.late: list[float] = []
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
            for number in count(LOADS_FROM):
                if self._stop.wait(self._chance.uniform(0.5, 8)):
                    return
                self._load(number)
        except Exception as error:
            self.wrong.append(f"the loader ended: {error!r}")
            raise

    def _look(self) -> Path | None:
        """Where the next file goes; None while the table is being renamed."""
        table = self._owner.table
        place = places(self._uri, table).get(LOADED)
        if place is None:
            return None
        if table != self._table:
            self._table, self._place, self._former = table, place, place
        if place != self._place:
            self._place, self._former = place, self._place
        return self._former if self._former.is_dir() and self._chance.random() < 0.4 else place

    def _load(self, number: int) -> None:
        place = self._look()
        if place is None:
            return
        content, path = content_of(self._kind, number), place / f"{HALF}{number}.{self._kind}"
        try:
            file = path.open("xb", buffering=0)
        except FileNotFoundError:
            return
        low, began = number * 1000, time.time()
        self._spans.begin_load(LOADED, began)
        self._notes.add(number=number, overwrites=False, began=began, partitions={LOADED: (low, low + 12)})
        with file:
            for part in range(4):
                file.write(content[part * len(content) // 4 : (part + 1) * len(content) // 4])
                if self.seconds:
                    os.utime(file.fileno(), times=(time.time() + self.seconds,) * 2)
                time.sleep(self._chance.choice((0, 0.3, 2, 5)))
        ended = time.time()
        self._spans.end_load(LOADED, ended)
        self._notes.add(number=number, ended=ended)
        self.loads += 1
        if place != places(self._uri, self._owner.table).get(LOADED):
            self.late.append(ended)

# SPDX-License-Identifier: Apache-2.0
"""A reader of a Hive table who keeps nothing: asks the metastore at each read, then lists and reads the files there."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from hive_race.ledger import Judge, Ledger, Read, Row
from lake.metastore import MetastoreClient

_COLUMNS = ("id", "write", "value")
#: the metastore moves the directory of a table that is renamed within this time
_MOVED_SECONDS = 5.0


def places(uri: str, table: str) -> dict[str, Path]:
    """Where each partition is, by its value."""
    database, _, name = table.partition(".")
    with MetastoreClient(uri) as metastore:
        if metastore.table(database, name) is None:
            return {}
        found = metastore.partitions(database, name, metastore.partition_names(database, name))
        return {one.values[0]: Path(one.storage.location.removeprefix("file:")) for _, one in found}


def read_table(uri: str, table: str, *, loaded: str = "") -> list[Read]:
    """What is in every partition. A file that goes while it is read has the partition be asked for anew.

    So has a directory that is not there: when a managed table is renamed, the metastore moves its directory first, and
    no reader finds a row until it also says so. A partition whose directory stays away is empty.

    A file that can't be read counts as empty if ``loaded``, which its writer's files have in their names, is given.
    """
    patience = time.monotonic() + _MOVED_SECONDS
    while True:
        with suppress(FileNotFoundError):
            began = time.time()
            found = places(uri, table)
            rows = {partition: rows_at(place, loaded=loaded) for partition, place in found.items()}
            ended = time.time()
            if time.monotonic() < patience and not all(place.exists() for place in found.values()):
                time.sleep(0.05)
                continue
            return [
                Read(partition=name, place=place, began=began, ended=ended, rows=rows[name])
                for name, place in found.items()
            ]


def rows_at(place: Path, *, loaded: str = "") -> Counter[Row]:
    """The rows of the files in a directory, with how often each is there.

    One that has another value than its writer gave it counts as a row of write -1, which there is not.
    """
    found: Counter[Row] = Counter()
    names = [name for name in os.listdir(place) if not name.startswith(("_", "."))] if place.exists() else []
    for name in names:
        path = place / name
        try:
            rows = _read(path)
        except (pa.ArrowInvalid, OSError) as error:
            if not loaded or loaded not in name or isinstance(error, FileNotFoundError):
                raise
            continue  # half of it is written
        found.update(
            (key, write if value == f"v{key}" else -1)
            for key, write, value in zip(*(rows[name].to_pylist() for name in _COLUMNS), strict=True)
        )
    return found


def _read(path: Path) -> pa.Table:
    read = pq.ParquetFile(path).read if path.name.endswith(".parquet") else orc.ORCFile(str(path)).read
    return read(columns=list(_COLUMNS))


class FreshReader:
    """Reads again and again in a thread of its own, and has every read judged by ``judge``."""

    def __init__(self, read: Callable[[], list[Read]], writes: Path, every: float, judge: Judge | None = None) -> None:
        self._read, self._writes, self._every = read, writes, every
        self.judge = judge or Judge()
        self.wrong: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End with a last read."""
        self.halt()
        self.look()

    def halt(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join()

    def look(self) -> list[Read]:
        """Read once, and have it judged."""
        reads = self._read()
        ledger = Ledger.of(self._writes)
        for read in reads:
            self.wrong += self.judge.look(read, ledger.writes[read.partition])
        return reads

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._every):
                self.look()
        except Exception as error:
            self.wrong.append(f"the reader ended: {error!r}")
            raise

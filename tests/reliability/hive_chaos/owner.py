# SPDX-License-Identifier: Apache-2.0
"""A Spark that writes to one Hive table and does to it what owners do, one thing after the other, in its own process.

``python -m hive_chaos.owner URI WAREHOUSE DATABASE KIND FOLDER SEED TRUE START``. It goes on until there is a file
``stop`` in FOLDER, and does nothing while there is a file ``hold``; ``held`` says that it has noticed. ``writes`` in
FOLDER is the ledger, ``acts`` what it did besides writing, and ``table`` the name that the table has at present. While
there is a file ``halted`` it drops and moves more; it does not rename where that says ``table``.

Its clock may be wrong. TRUE is the true time less what the clock has counted that starts with the machine, and START
counts its processes: the first one makes the tables.

The table of kind ``parquet`` is managed, that of kind ``orc`` external. ``MIRROR`` is another table, whose partitions
are shown the directories that partition ``SHARED`` has at that moment.
"""

import itertools
import math
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hive_race.ledger import Ledger, Row
from hive_race.readers import rows_at
from hive_race.writer import PARTITIONS, Notes, statement

from hive_chaos.catalog import ELSEWHERE, places

SHARED, LOADED, SPLIT = "shared", "loaded", "split"
"""Partitions: one whose directories the other table has too, one into which files are loaded slowly, one to halt."""
LOADS_FROM, SPLITS_FROM = 1_000_000, 2_000_000
"""Numbers of writes from these on are the loader's, and those of ``SPLIT``."""
ACTS = ("drop", "away", "back", "rename", "share", "unshare")
"""What the owner does besides writing, as ``acts`` has it."""
MIRROR = "mirror"
_SLOWEST_SECONDS = 3.0
#: more than a process writes
_NUMBERS = 10_000
_SEEN_WITHIN_SECONDS = 40.0
#: a directory that a partition has left is pointed back to within this time; the retention is longer
_BACK_WITHIN_SECONDS = 20.0


class Owner:
    """The table's owner. An act that has to wait for the table's rows to be where they belong may be left out."""

    def __init__(self, session: Any, uri: str, database: str, kind: str, folder: Path, true: float) -> None:
        self.session, self.uri, self.database, self.kind, self.folder = session, uri, database, kind, folder
        self.notes, self.acts, self.chance = Notes(folder / "writes"), Notes(folder / "acts"), random.Random()
        self._true = true
        #: where each partition was found before, and when it was seen elsewhere for the first time
        self._places: dict[str, Path] = {}
        self._left: dict[str, tuple[Path, float]] = {}
        self._written: dict[str, float] = {}
        known = folder / "table"
        self.table = known.read_text() if known.exists() else self._named(1)

    def now(self) -> float:
        """The true time, whatever this process takes for it."""
        return self._true + time.monotonic()

    def create(self) -> None:
        """Make both tables, and write to every partition."""
        self.session.sql(f"CREATE DATABASE IF NOT EXISTS {self.database}")
        columns = "id BIGINT, write BIGINT, value STRING"
        stored = f"PARTITIONED BY (dt STRING) STORED AS {self.kind.upper()}"
        home = f" LOCATION '{self.folder}/external'" if self.kind == "orc" else ""
        external = "EXTERNAL " if home else ""
        self.session.sql(f"CREATE {external}TABLE {self.table} ({columns}) {stored}{home}")
        self.session.sql(
            f"CREATE EXTERNAL TABLE {self.database}.{MIRROR} ({columns}) {stored} LOCATION '{self.folder}/mirror'"
        )
        self.write(1, [*PARTITIONS, SHARED, LOADED, SPLIT], overwrites=False)
        (self.folder / "table").write_text(self.table)

    def step(self, number: int) -> None:
        """One write or one act."""
        self._look()
        acts: list[Callable[[int], None]] = [self._drop, self._away, self._back, self._rename, self._share, self._share]
        halted = self._halted()
        if halted:
            acts = [self._drop, self._drop, *(act for act in acts if act != self._rename or halted != "table")]
        if self.chance.random() < (0.5 if halted else 0.3):
            self.chance.choice(acts)(number)
            return
        overwrites = self.chance.random() < 0.35
        if not overwrites and self.chance.random() < 0.25:
            self.write(number, [SHARED], overwrites=False)
            return
        self.write(number, sorted(self.chance.sample(PARTITIONS, self.chance.randint(1, 3))), overwrites=overwrites)

    def _halted(self) -> str:
        with suppress(FileNotFoundError):
            return (self.folder / "halted").read_text()
        return ""

    def write(self, number: int, partitions: list[str], *, overwrites: bool, began: float | None = None) -> None:
        """One statement, noted before it begins and when it has ended."""
        low, rows = number * 1000, 12
        is_static = len(partitions) == 1 and self.chance.random() < 0.5
        self.notes.add(
            number=number,
            overwrites=overwrites or began is not None,
            drops=began is not None,
            began=self.now() if began is None else began,
            partitions={name: (low + i * rows, low + (i + 1) * rows) for i, name in enumerate(partitions)},
        )
        pause = 0 if number == 1 or began is not None else self.chance.random() * _SLOWEST_SECONDS
        self.session.sql(
            statement(self.table, number, partitions, overwrites=overwrites, is_static=is_static, pause=pause)
        )
        self.notes.add(number=number, ended=self.now())
        self._written |= dict.fromkeys(partitions, self.now())

    def _drop(self, number: int) -> None:
        """Drop a partition and write it again; an external table keeps the files of what was dropped."""
        partition = self.chance.choice(PARTITIONS)
        self.acts.add(act="drop", partition=partition, at=self.now())
        began = self.now()
        self.session.sql(f"ALTER TABLE {self.table} DROP PARTITION (dt = '{partition}')")
        time.sleep(self.chance.choice((0, 0, 2, 8)))
        self.write(number, [partition], overwrites=self.kind == "orc", began=began)

    def _away(self, number: int) -> None:
        """Move a partition to a directory of the owner's choice: copy it, point it there, remove what was copied."""
        partition = self.chance.choice(PARTITIONS)
        if not self._is_settled(partition):
            return
        there = self.folder / ELSEWHERE / f"{partition}-{number}"
        there.mkdir(parents=True)
        here = places(self.uri, self.table)[partition]
        with suppress(FileNotFoundError):
            copied = [path for path in sorted(here.iterdir()) if not path.name.startswith((".", "_"))]
            for path in copied:
                shutil.copyfile(path, there / path.name)
            self._point(partition, there, "away")
            # What stays would be read again when the partition is dropped and written again at home.
            for path in copied:
                path.unlink()

    def _back(self, number: int) -> None:
        """Point a partition back to the directory that it left last, as a writer with an old copy of it does."""
        for partition, (place, at) in self._left.items():
            recent = self._written.get(partition, math.inf) < at and self.now() < at + _BACK_WITHIN_SECONDS
            if (
                partition in PARTITIONS
                and recent
                and self._is_settled(partition)
                and rows_at(place) == self._expected(partition)
            ):
                self._point(partition, place, "back")
                return

    def _point(self, partition: str, place: Path, act: str) -> None:
        self.acts.add(act=act, partition=partition, place=str(place), at=self.now())
        self.session.sql(f"ALTER TABLE {self.table} PARTITION (dt = '{partition}') SET LOCATION '{place}'")
        self._written[partition] = self.now()

    def _rename(self, number: int) -> None:
        """Give the table another name. Readers know it only afterwards."""
        if self.kind == "parquet":  # the metastore moves the directory of a managed table, and with it what is shown
            for shown in places(self.uri, f"{self.database}.{MIRROR}"):
                self._hide(shown)
        self._places, self._left = {}, {}
        before, self.table = self.table, self._named(int(self.table.rpartition(".t")[2]) + 1)
        self.acts.add(act="rename", before=before, name=self.table, at=self.now())
        self.session.sql(f"ALTER TABLE {before} RENAME TO {self.table}")
        (self.folder / "table").write_text(self.table)

    def _share(self, number: int) -> None:
        """Show the other table where ``SHARED`` is now, or nothing any more."""
        mirror = f"{self.database}.{MIRROR}"
        shown = places(self.uri, mirror)
        if shown and self.chance.random() < 0.5:
            self._hide(min(shown))
        elif self._is_settled(SHARED):
            place = places(self.uri, self.table)[SHARED]
            rows = rows_at(place)
            self.session.sql(f"ALTER TABLE {mirror} ADD PARTITION (dt = 's{number}') LOCATION '{place}'")
            self.acts.add(act="share", partition=f"s{number}", at=self.now(), rows=sorted(map(list, rows)))

    def _hide(self, partition: str) -> None:
        self.acts.add(act="unshare", partition=partition, at=self.now())
        self.session.sql(f"ALTER TABLE {self.database}.{MIRROR} DROP PARTITION (dt = '{partition}')")

    def _look(self) -> None:
        for partition, place in places(self.uri, self.table).items():
            if (before := self._places.get(partition, place)) != place:
                self._left[partition] = before, self.now()
            self._places[partition] = place

    def _is_settled(self, partition: str) -> bool:
        """Wait until a reader sees what the ledger has; False where that takes too long."""
        deadline = time.monotonic() + _SEEN_WITHIN_SECONDS
        while time.monotonic() < deadline:
            with suppress(FileNotFoundError, KeyError):
                if rows_at(places(self.uri, self.table)[partition]) == self._expected(partition):
                    return True
            time.sleep(0.5)
        self.acts.add(act="left out", partition=partition, at=self.now())
        return False

    def _expected(self, partition: str) -> Counter[Row]:
        return Ledger.of(self.folder / "writes").rows()[partition]

    def _named(self, number: int) -> str:
        return f"{self.database}.t{number}"


def main(uri: str, warehouse: str, database: str, kind: str, folder: str, seed: str, true: str, start: str) -> None:
    """Make the tables, then write and act until told to stop."""
    from pyspark.sql import SparkSession

    home = Path(folder)
    session = (
        SparkSession.builder.master("local[2]")
        .enableHiveSupport()
        .config("spark.hadoop.hive.metastore.uris", uri)
        .config("spark.hadoop.hive.metastore.client.socket.timeout", "120s")
        .config("spark.sql.warehouse.dir", warehouse)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "1g")
        .config("spark.hadoop.hive.exec.dynamic.partition.mode", "nonstrict")
        .config("spark.sql.sources.partitionOverwriteMode", "dynamic")
        .config("spark.sql.hive.manageFilesourcePartitions", "true")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    owner = Owner(session, uri, database, kind, home, float(true))
    owner.chance = random.Random(f"{seed}/{start}")
    if start == "1":
        owner.create()
    print("ready", flush=True)
    try:
        for number in itertools.count(int(start) * _NUMBERS + 2):
            while (home / "hold").exists() and not (home / "stop").exists():
                (home / "held").touch()
                time.sleep(0.1)
            (home / "held").unlink(missing_ok=True)
            if (home / "stop").exists():
                break
            owner.step(number)
    finally:
        session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

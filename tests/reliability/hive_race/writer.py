# SPDX-License-Identifier: Apache-2.0
"""A Spark that writes to one Hive table without pause, in a process of its own, and a session in it that only reads.

``python -m hive_race.writer URI PLACE TABLE KIND FOLDER SEED``. It goes on until there is a file ``stop`` in FOLDER.
There is one writer, since Spark's own jobs of one table take each other's ``_temporary`` away. ``writes`` in FOLDER is
the ledger, ``reads`` what the session saw that had read the table before the first partition moved.
"""

import itertools
import json
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

PARTITIONS = ("p0", "p1", "p2", "p3")
_ROWS = 12
_SLOWEST_SECONDS = 3.0


class Notes:
    """A file of lines."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, **entry: Any) -> None:
        """One line more."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def statement(
    table: str, number: int, partitions: list[str], *, overwrites: bool, is_static: bool, pause: float
) -> str:
    """An ``INSERT`` of ``_ROWS`` rows for each partition, in two files; its tasks take ``pause`` seconds in all."""
    low = number * 1000
    count = _ROWS * len(partitions)
    rest = f"if(reflect('java.lang.Thread', 'sleep', {int(pause * 2000 / count)}L) = 'null', 'v', 'w')"
    columns = f"id, CAST({number} AS BIGINT) AS write, concat({rest}, id) AS value"
    names = ", ".join(f"'{name}'" for name in partitions)
    dt = "" if is_static else f", element_at(array({names}), CAST((id - {low}) DIV {_ROWS} AS INT) + 1) AS dt"
    clause = f"PARTITION (dt = '{partitions[0]}')" if is_static else "PARTITION (dt)"
    verb = "OVERWRITE" if overwrites else "INTO"
    return f"INSERT {verb} TABLE {table} {clause} SELECT {columns}{dt} FROM range({low}, {low + count}, 1, 2)"


def write(session: Any, table: str, number: int, chance: random.Random, notes: Notes) -> None:
    """One statement, noted before it begins and when it has ended. The first one writes to all partitions."""
    is_first = number == 1
    is_static = not is_first and chance.random() < 0.3
    overwrites = not is_first and chance.random() < 0.4
    wanted = 1 if is_static else len(PARTITIONS) if is_first else chance.randint(1, 3)
    partitions = sorted(chance.sample(PARTITIONS, wanted))
    low = number * 1000
    notes.add(
        number=number,
        overwrites=overwrites,
        began=time.time(),
        partitions={name: (low + i * _ROWS, low + (i + 1) * _ROWS) for i, name in enumerate(partitions)},
    )
    pause = 0 if is_first else chance.random() * _SLOWEST_SECONDS
    session.sql(statement(table, number, partitions, overwrites=overwrites, is_static=is_static, pause=pause))
    notes.add(number=number, ended=time.time())


def read(session: Any, table: str, notes: Notes) -> None:
    """What the session sees, or why it can't read."""
    began = time.time()
    try:
        rows = [tuple(row) for row in session.sql(f"SELECT dt, id, write FROM {table}").collect()]
    except Exception as error:
        notes.add(began=began, ended=time.time(), error=str(error))
        session.sql(f"REFRESH TABLE {table}")
        return
    found = [[*row, count] for row, count in sorted(Counter(rows).items())]
    notes.add(began=began, ended=time.time(), rows=found)


def main(uri: str, place: str, table: str, kind: str, folder: str, seed: str) -> None:
    """Make the table, then write and read until told to stop."""
    from pyspark.sql import SparkSession

    home, stop = Path(folder), Path(folder) / "stop"
    session = (
        SparkSession.builder.master("local[4]")
        .enableHiveSupport()
        .config("spark.hadoop.hive.metastore.uris", uri)
        .config("spark.sql.warehouse.dir", f"{place}/warehouse")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "1g")
        .config("spark.hadoop.hive.exec.dynamic.partition.mode", "nonstrict")
        .config("spark.sql.sources.partitionOverwriteMode", "dynamic")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    database = table.partition(".")[0]
    session.sql(f"CREATE DATABASE IF NOT EXISTS {database}")
    columns = "id BIGINT, write BIGINT, value STRING"
    if kind == "parquet":
        session.sql(f"CREATE TABLE {table} ({columns}) PARTITIONED BY (dt STRING) STORED AS PARQUET")
    else:
        session.sql(f"CREATE TABLE {table} ({columns}, dt STRING) USING {kind} PARTITIONED BY (dt)")
    notes, seen, chance = Notes(home / "writes"), Notes(home / "reads"), random.Random(seed)
    write(session, table, 1, chance, notes)
    reader, has_ended = session.newSession(), threading.Event()
    read(reader, table, seen)

    def reads() -> None:
        while not has_ended.wait(1):
            read(reader, table, seen)

    reading = threading.Thread(target=reads)
    reading.start()
    print("ready", flush=True)
    try:
        for number in itertools.count(2):
            if stop.exists():
                break
            write(session, table, number, chance, notes)
    finally:
        has_ended.set()
        reading.join()
        session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

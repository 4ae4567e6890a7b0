# SPDX-License-Identifier: Apache-2.0
"""The cost of sweeping a large Hive table without changes: seconds, and memory above that of an idle process.

Creates a table in a metastore on Derby whose partitions were relocated many times. Each partition has a directory in
each version, as before any retention has passed. Each commit has its record in the table, and an SQLite database has
the rows of relocations and replaced files. Then a process sweeps the table as a daemon does: first with relocations of
the day before, then with relocations of the last hour, whose previous locations a daemon sweeps every five seconds. The
bar of 2 s and 200 MiB is for 10,000 partitions and 100 rounds, and applies to the longest sweep; exits 1 above it. The
search for relocations that only the table has recorded is measured apart: a daemon makes it once in ten minutes.
Seconds are wall-clock time, with CPU time in brackets: a large difference shows that the machine was busy.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

if __name__ == "__main__":  # needed to run from a clone without an installation
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from sqlalchemy import func, insert, select, update

from bench.processes import memory
from executors.context import RunContext
from executors.relocation.recent import RecentLocations, sweep_recent_locations
from executors.relocation.search import RelocationSearch
from executors.relocation.watch import PartitionWatch
from executors.sweep import sweep_table
from executors.unrecorded_commits import record_discovered_relocations
from lake.errors import LakefoldError
from lake.formats.hive import FORMAT
from lake.formats.hive.commit import commit_record
from lake.metastore import MetastoreClient
from lake.metastore.thrift import BOOL, I32, LIST, STRING, STRUCT, Struct, ThriftList, string_list, string_map
from lake.model import CatalogRef, FileSlice, TableRef
from lake.plan import (
    ClusteringGroup,
    Commit,
    LocatedFile,
    Plan,
    PlanKind,
    Relocation,
    RewriteOptions,
    SupersededVersion,
)
from lake.relocation.model import DiscoveryResult
from service.cli.demo.metastore import server_command
from service.cli.demo.settings import free_port
from service.control.store import Store
from service.control.store.database import Database
from service.control.store.models import RelocationRow, SupersededRow
from service.server.daemon.maintenance import RECENT_RELOCATION

BAR_SECONDS, BAR_BYTES = 2.0, 200 << 20
DATABASE, TABLE = "bench", "moved"
DAY_MS, HOUR_MS = 86_400_000, 3_600_000
_HIVE = "org.apache.hadoop.hive.ql.io.parquet"


class Owner(MetastoreClient):
    """The client that creates the table."""

    def make(self, location: Path, partitions: int, version: str) -> None:
        """Create the table, with its partitions in ``version``."""
        self._call("create_database", {1: (STRUCT, {1: (STRING, DATABASE)})})
        raw: Struct = {
            1: (STRING, TABLE),
            2: (STRING, DATABASE),
            7: (STRUCT, _storage(location)),
            8: (LIST, ThriftList(STRUCT, [{1: (STRING, "dt"), 2: (STRING, "string")}])),
            9: string_map({"EXTERNAL": "TRUE"}),
            12: (STRING, "EXTERNAL_TABLE"),
        }
        self._call("create_table", {1: (STRUCT, raw)})
        for start in range(0, partitions, 500):
            some: list[Any] = [
                {
                    1: string_list([f"{number:05}"]),
                    2: (STRING, DATABASE),
                    3: (STRING, TABLE),
                    6: (STRUCT, _storage(location / ".lakefold" / version / f"dt={number:05}")),
                    7: string_map({"lakefold.version": version, "lakefold.plan": version, "lakefold.epoch": "1"}),
                }
                for number in range(start, min(start + 500, partitions))
            ]
            self._call("add_partitions", {1: (LIST, ThriftList(STRUCT, some))})


def _storage(location: Path) -> Struct:
    return {
        1: (LIST, ThriftList(STRUCT, [{1: (STRING, "id"), 2: (STRING, "bigint")}])),
        2: (STRING, f"file:{location}"),
        3: (STRING, f"{_HIVE}.MapredParquetInputFormat"),
        4: (STRING, f"{_HIVE}.MapredParquetOutputFormat"),
        5: (BOOL, False),
        6: (I32, -1),
        7: (STRUCT, {2: (STRING, f"{_HIVE}.serde.ParquetHiveSerDe"), 3: string_map({})}),
        8: string_list([]),
        9: (LIST, ThriftList(STRUCT, [])),
        10: string_map({}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--sweeps", type=int, default=40)
    parser.add_argument("--measure", nargs=3, metavar=("HOME", "URI", "WHAT"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        measure(Path(asked.measure[0]), asked.measure[1], asked.measure[2], asked.sweeps)
        return
    home, port = Path(tempfile.mkdtemp(prefix="lakefold-bench-")), free_port()
    uri = f"thrift://127.0.0.1:{port}"
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(server_command(home / "metastore", port, home / "warehouse"), stdout=log, stderr=log)
    try:
        fill(home, uri, asked.partitions, asked.rounds)
        print(f"{asked.partitions:,} partitions, moved {asked.rounds} times", flush=True)
        child = [sys.executable, __file__, f"--sweeps={asked.sweeps}", "--measure", str(home), uri]
        failed = 0
        for what in ("sweep", "search"):
            failed |= subprocess.run([*child, what], check=False).returncode
        make_young(home, asked.rounds)
        for what in ("sweep", "look"):
            failed |= subprocess.run([*child, what], check=False).returncode
        sys.exit(failed)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(home, ignore_errors=True)


def table_at(home: Path, uri: str) -> TableRef:
    catalog = CatalogRef(kind="metastore", name=uri, table=f"{DATABASE}.{TABLE}")
    return TableRef(name=f"{DATABASE}.{TABLE}", format="hive", location=str(home / "table"), catalog=catalog)


def fill(home: Path, uri: str, partitions: int, rounds: int) -> None:
    """Create the table, its directories, and its rows in the database."""
    versions = [f"{number:032}-e1-{number + 1}" for number in range(rounds)]
    names = [f"dt={number:05}" for number in range(partitions)]
    for place in ("", *(f".lakefold/{version}/" for version in versions)):
        (home / "table" / place).mkdir(parents=True, exist_ok=True)
        for name in names:
            directory = f"{home}/table/{place}{name}"
            os.mkdir(directory)
            os.utime(directory, (1e9, 1e9))
    for _ in range(600):
        try:
            with Owner(uri) as owner:
                owner.make(home / "table", partitions, versions[-1])
            break
        except LakefoldError:
            time.sleep(0.2)
    store, table = Store(f"sqlite:///{home}/lakefold.db"), table_at(home, uri)
    store.upgrade()
    store.register_table(table, "compact")
    database, then = Database(f"sqlite:///{home}/lakefold.db"), round(time.time() * 1000) - DAY_MS
    left = ""
    for version in versions:
        plan_id = version.partition("-")[0]
        one = FileSlice(partition=version, file_id="f", path="f", bytes=1)
        plan = Plan(
            plan_id=plan_id,
            table=table,
            kind=PlanKind.CLUSTERING,
            snapshot_instant="",
            groups=(ClusteringGroup(partition=version, slices=(one,), output_files=1),),
            options=RewriteOptions(target_file_max_bytes=1),
        )
        store.add_plan(plan, request_id=None, actor="bench", estimate={})
        moves, files = [], []
        for name in names:
            before, place = f"{left}{name}", f".lakefold/{version}/{name}"
            moves.append(
                {
                    "table_name": table.name,
                    "partition_path": name,
                    "token": version,
                    "plan_id": plan_id,
                    "left_place": before,
                    "place": place,
                    "files": [],
                    "left_files": [],
                    "partition_made_at": 1,
                    "begun_at_ms": then,
                    "made_at_ms": then,
                }
            )
            files.append(
                {
                    "plan_id": plan_id,
                    "table_name": table.name,
                    "partition_path": name,
                    "path": f"{before}/part.parquet",
                    "bytes": 1,
                    "instant": version,
                    "modified_at_ms": 1,
                    "superseded_at_ms": then,
                    "deleting_at_ms": then,
                    "deleted_at_ms": then,
                }
            )
        with database.write() as connection:
            connection.execute(insert(RelocationRow), moves)
            connection.execute(insert(SupersededRow), files)
        document(table, version, [(name, f"{left}{name}") for name in names], is_last=version == versions[-1])
        left = f".lakefold/{version}/"
    store.close()


def document(table: TableRef, version: str, left: list[tuple[str, str]], *, is_last: bool) -> None:
    """Write the record of a commit: in its version, or in the archive if another commit has followed.

    For all commits except the last one, the deletion of the replaced files is recorded.
    """
    at = datetime.fromtimestamp(0.001, UTC)
    commit = Commit(
        plan_id=version.partition("-")[0],
        instant=version,
        epoch=1,
        outputs=(),
        superseded=tuple(
            SupersededVersion(partition=name, path=f"{place}/part.parquet", bytes=1, instant=version, modified_at=at)
            for name, place in left
        ),
        relocations=tuple(
            Relocation(
                partition=name,
                token=version,
                previous_location=place,
                location=f".lakefold/{version}/{name}",
                partition_created_at=1,
                files=(LocatedFile(path=f".lakefold/{version}/{name}/part.parquet", bytes=1, modified_ms=1),),
            )
            for name, place in left
        ),
    )
    commit_record.write_record(
        table, commit_record.CommitRecord(commit=commit, partitions=tuple(name for name, _ in left), table_created_at=1)
    )
    commit_record.mark_committed(table, version)
    if not is_last:
        commit_record.archive_record(table, version)
        commit_record.mark_cleaning(table, {version: [name for name, _ in left]})


def make_young(home: Path, rounds: int) -> None:
    """Date all relocations within the last half hour, one round after the other."""
    database, now = Database(f"sqlite:///{home}/lakefold.db"), round(time.time() * 1000)
    for number in range(rounds):
        at = now - HOUR_MS // 2 + number * (HOUR_MS // 2) // rounds
        these = update(RelocationRow).where(RelocationRow.plan_id == f"{number:032}")
        with database.write() as connection:
            connection.execute(these.values(begun_at_ms=at, made_at_ms=at))


def measure(home: Path, uri: str, what: str, sweeps: int) -> None:
    """Run sweeps of all or of recent relocations as a daemon does, and print the time of each and the memory."""
    store, table, watch, lately = (
        Store(f"sqlite:///{home}/lakefold.db"),
        table_at(home, uri),
        PartitionWatch(),
        RecentLocations(),
    )
    store.table_state(table.name)
    context, search = RunContext(store=store, spark=cast(Any, None)), RelocationSearch()
    # A daemon searches once in RELOCATION_SEARCH_INTERVAL, whatever happens between.
    search.mark_searched(table, DiscoveryResult())
    before, seconds, processor = memory("self", "VmRSS"), [], []
    for _ in range(sweeps):
        begun, used = time.perf_counter(), time.process_time()
        if what == "sweep":
            sweep_table(table, context, format=FORMAT, watch=watch, search=search)
        elif what == "search":
            record_discovered_relocations(table, format=FORMAT, store=store)
        else:
            sweep_recent_locations(table, context, format=FORMAT, within=RECENT_RELOCATION, recent=lately)
        seconds.append(time.perf_counter() - begun)
        processor.append(time.process_time() - used)
    grown = memory("self", "VmHWM") - before
    print(
        f"{sweeps} times {what}, of moves {'a day old' if is_old(home) else 'within the hour'}: "
        f"median {statistics.median(seconds):.2f} s ({statistics.median(processor):.2f}), "
        f"longest {max(seconds):.2f} s ({max(processor):.2f})"
    )
    print(f"  memory: {grown / (1 << 20):.0f} MiB more than the {before / (1 << 20):.0f} MiB of the process before")
    sys.exit((max(seconds) > BAR_SECONDS and what != "search") or grown > BAR_BYTES)


def is_old(home: Path) -> bool:
    """Return True if the relocations are those of the day before."""
    with Database(f"sqlite:///{home}/lakefold.db").read() as connection:
        last = connection.execute(select(func.max(RelocationRow.begun_at_ms))).scalar_one()
    return bool(last < (time.time() * 1000) - HOUR_MS)


if __name__ == "__main__":
    main()

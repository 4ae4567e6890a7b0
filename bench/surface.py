# SPDX-License-Identifier: Apache-2.0
"""The response times of ``/metrics``, status, lists and the page on a large installation, while figures are refreshed.

Fills an SQLite database with the tables and plans of years, starts ``lakefold serve --role api`` on it, and repeats
each request over one loopback connection. Prints requests per second and percentiles; exits 1 if more than one in a
hundred answers to a request misses the bar.

Then the requests are repeated beside a crowd of other clients: silent connections, and posts whose bodies stop in the
middle, half of them with a write token. Beside the crowd each answer must begin within a second, and the process may
grow by 100 MB.
"""

import argparse
import asyncio
import contextlib
import http.client
import multiprocessing
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Literal

if __name__ == "__main__":  # needed to run from a clone without an installation
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pyarrow as pa
from sqlalchemy import func, insert, select, text

from bench.processes import cpu_seconds, memory
from lake.model import FileSlice, SizeHistogram, TableRef
from service.cli.demo.settings import free_port
from service.control.lake_cache import read_lake_state
from service.control.store import ScanRecord, Store
from service.control.store.database import Database
from service.control.store.models import ALL_TABLES, EventRow, GroupRow, PlanRow, SupersededRow, TableRow, TrendRow
from service.control.store.rows import pack_slices
from service.control.store.schema import create_trigger_statements, drop_trigger_statements
from service.server.api.token_cache import new_token, token_digest
from service.server.observability.metrics import Metrics
from service.server.observability.metrics_page import MetricsPage

BAR_SECONDS = 0.1
#: the bars beside a crowd
CROWD_BAR_SECONDS = 1.0
CROWD_BAR_BYTES = 100_000_000
DAY_MS = 86_400_000
MIB = 1 << 20
#: scans of one table, as many as are kept
SCANS = 288
#: path, headers, and the part of the answer to which the bar applies; a scrape accepts gzip
ADDRESSES: tuple[tuple[str, dict[str, str], Literal["first byte", "whole", "none"]], ...] = (
    ("/metrics", {"Accept-Encoding": "gzip"}, "whole"),
    ("/metrics", {}, "whole"),
    ("/v1/status", {}, "none"),  # its figures are at most a second old, so on a large lake it waits for them
    ("/v1/tables?limit=100", {}, "first byte"),
    ("/v1/tables?limit=50&sort=-files", {}, "first byte"),
    ("/v1/plans", {}, "first byte"),
    ("/v1/plans?state=failed&limit=50", {}, "first byte"),
    ("/v1/plans?name=db1&error=transient", {}, "first byte"),
    ("/", {"Accept": "text/html"}, "first byte"),
    ("/?sort=-rewrite&name=db1", {"Accept": "text/html"}, "first byte"),
    ("/plans?state=failed", {"Accept": "text/html"}, "first byte"),
    ("/tables/db0.table_0000", {"Accept": "text/html"}, "first byte"),
    ("/processes", {"Accept": "text/html"}, "first byte"),
)


def plan_id(made_ms: int, number: int) -> str:
    """Return a UUIDv7 of this time; ``number`` makes it unique."""
    digits = f"{made_ms:012x}7{number & 0xFFF:03x}8{number:015x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def fill(url: str, tables: int, plans: int) -> None:
    """Fill a database with ``tables`` tables in mode compact and ``plans`` plans, some of them live or failed."""
    store, database, chance = Store(url), Database(url), random.Random(7)
    store.upgrade()
    names = [f"db{number % 40}.table_{number:04d}" for number in range(tables)]
    for name in names:
        store.register_table(TableRef(name=name, format="hudi", location=f"/lake/{name}"), "compact")
        store.record_scan(scan(name, chance))
    now = time.time_ns() // 1_000_000
    with database.write() as connection:
        for statement in drop_trigger_statements(
            database.dialect
        ):  # the triggers accept only new plans in state requested
            connection.execute(text(statement))
        for kind, rows in (
            (PlanRow, plan_rows(names, plans, now, chance)),
            (GroupRow, groups(plans, now)),
            (EventRow, events(plans, now)),
            (SupersededRow, superseded(names, plans, now)),
        ):
            while chunk := [row for _, row in zip(range(5000), rows, strict=False)]:
                connection.execute(insert(kind), chunk)
        for statement in create_trigger_statements(database.dialect):
            connection.execute(text(statement))
        connection.execute(insert(TrendRow), list(trend_points(names[0], tables, now)))
    for _ in range(SCANS):  # for the heat map of one table
        store.record_scan(scan(names[0], chance))
    database.close()
    store.close()


def made_at(number: int, plans: int, now: int) -> int:
    """Return the creation time of plan ``number``; the plans are spread over a year."""
    return now - (plans - number) * 365 * DAY_MS // plans


def state_of(number: int, plans: int) -> str:
    """Return the state of a plan: the newest plans wait, one in 200 failed, one in 100 was cancelled."""
    if number >= plans - 50:
        return "requested"
    return "failed" if number % 200 == 3 else "cancelled" if number % 100 == 7 else "completed"


def scan(name: str, chance: random.Random) -> ScanRecord:
    """Return the last scan of a table with 200 files."""
    sizes = pa.array([int(chance.lognormvariate(17, 1.5)) for _ in range(200)], pa.int64())
    histogram = SizeHistogram.of(sizes, 300 * MIB)
    return ScanRecord(
        table=name,
        taken_at=datetime.now(UTC),
        files=histogram.files,
        bytes=histogram.bytes,
        small_files=histogram.small_files,
        small_bytes=histogram.small_bytes,
        partitions=40,
        histogram=histogram.counts,
        skipped={"recent": 12},
        skipped_bytes={"recent": 80 * MIB},
        reducible_files=50,
        reducible_bytes=500 * MIB,
    )


def plan_rows(names: Sequence[str], plans: int, now: int, chance: random.Random) -> Iterator[dict[str, Any]]:
    """Yield the rows of the plans."""
    for number in range(plans):
        made, state, size = made_at(number, plans, now), state_of(number, plans), chance.randint(100, 2000) * MIB
        name, done = names[number % len(names)], state == "completed"
        ended = {
            "claimed_at_ms": made + 1000,
            "finalized_at_ms": made + 60_000,
            "epoch": 1,
            "attempts": 1,
            "executor": "host/4711/0a",
        }
        live = dict.fromkeys(ended) | {"epoch": 0, "attempts": 0}
        yield {
            "id": plan_id(made, number),
            "table_name": name,
            "format": "hudi",
            "location": f"/lake/{name}",
            "concurrency": "occ",
            "kind": "clustering",
            "state": state,
            "snapshot_instant": "20260101000000000",
            "options": {
                "target_file_max_bytes": 1 << 30,
                "engine": "auto",
                "compression": None,
                "sort_columns": [],
                "layout": "linear",
                "receipt": "footer",
            },
            "estimate": {"files_removed": 40},
            "actor": "scheduler host/4711/0a",
            "group_count": 1,
            "partition_count": 1,
            "input_files": 50,
            "input_bytes": size,
            "output_files": 2,
            "not_before_ms": made,
            "created_at_ms": made,
            "instant": f"{made}000" if done else None,
            "error": None if done or state == "requested" else "executor lost",
            "error_class": {"failed": "transient", "cancelled": "conflict"}.get(state),
            "milliseconds": {"find_commit": 40, "prepare": 900, "rewrite": 40_000, "commit": 2000} if done else {},
            "figures": [["dt=2026-01-31", 50, size, 2, size]] if done else [],
            "files_before": 50 * done,
            "bytes_before": size * done,
            "files_after": 2 * done,
            "bytes_after": size * done,
            **(live if state == "requested" else ended),
        }


def groups(plans: int, now: int) -> Iterator[dict[str, Any]]:
    """Yield one group for each plan."""
    files = pack_slices(
        [FileSlice(partition="p", file_id=f"f{n}", path=f"p/f{n}.parquet", bytes=MIB) for n in range(50)]
    )
    for number in range(plans):
        yield {
            "plan_id": plan_id(made_at(number, plans, now), number),
            "number": 0,
            "partition_path": "dt=2026-01-31",
            "slices": 50,
            "input_files": 50,
            "input_bytes": 50 * MIB,
            "output_files": 2,
            "files": files,
        }


def events(plans: int, now: int) -> Iterator[dict[str, Any]]:
    """Yield the events of each plan."""
    for number in range(plans):
        made, state = made_at(number, plans, now), state_of(number, plans)
        story = [(None, "requested", 0), ("requested", "inflight", 1), ("inflight", state, 1)]
        for before, after, epoch in story[: 1 if state == "requested" else 3]:
            yield {
                "plan_id": plan_id(made, number),
                "at_ms": made,
                "from_state": before,
                "to_state": after,
                "epoch": epoch,
                "actor": "host/4711/0a",
                "reason": "planned",
            }


def superseded(names: Sequence[str], plans: int, now: int) -> Iterator[dict[str, Any]]:
    """Yield the files that the plans of the last week replaced."""
    for number in range(plans):
        made = made_at(number, plans, now)
        if made > now - 7 * DAY_MS and state_of(number, plans) == "completed":
            for file in range(50):
                yield {
                    "plan_id": plan_id(made, number),
                    "table_name": names[number % len(names)],
                    "partition_path": "dt=2026-01-31",
                    "path": f"dt=2026-01-31/f{file}.parquet",
                    "bytes": 10 * MIB,
                    "instant": f"{made}000",
                    "superseded_at_ms": made,
                    "deleted_at_ms": None,
                }


def trend_points(name: str, tables: int, now: int) -> Iterator[dict[str, Any]]:
    """Yield the points that 30 days leave, of the lake and of one table."""
    ages = [*range(30 * 24, 7 * 24, -24), *range(7 * 24, 0, -4)]
    for table, files in ((ALL_TABLES, 200 * tables), (name, 200)):
        for number, hours in enumerate(ages):
            yield {
                "table_name": table,
                "at_ms": now - hours * DAY_MS // 24,
                "files": 2 * files - files * number // len(ages),
                "bytes": files * 100 * MIB,
                "small_files": files,
                "reducible_files": files - files * number // (2 * len(ages)),
                "rewritten_bytes": number * files * MIB,
                "freed_bytes": number * files * MIB // 2,
            }


def held(url: str) -> str:
    """Return the number of tables and plans in the database; a kept database may differ from the options."""
    database = Database(url)
    of_tables = select(func.count()).where(TableRow.name != ALL_TABLES)
    with database.read() as connection:
        tables = connection.execute(of_tables).scalar_one()
        plans = connection.execute(select(func.count()).select_from(PlanRow)).scalar_one()
    database.close()
    return f"{tables:,} tables, {plans:,} plans"


def refresh_seconds(url: str) -> float:
    """Return the seconds of a refresh of the metrics as in the daemon: of the second one, since the first warms up."""
    store, metrics = Store(url), Metrics("api")
    page = MetricsPage(metrics.process_registry, metrics.table_series)
    for _ in range(2):
        begun = time.perf_counter()
        lake = read_lake_state(store)
        metrics.stored.publish(lake)
        page.render()
        seconds = time.perf_counter() - begun
    store.close()
    return seconds


@contextlib.contextmanager
def serving(home: Path, url: str) -> Iterator[tuple[int, int]]:
    """Run ``lakefold serve --role api``; yields its port and process id when it is ready."""
    port = free_port(0)
    config = home / "lakefold.toml"
    config.write_text(f'[database]\nurl = "{url}"\n[http]\nport = {port}\nrate_limit = 0\n')
    command = [sys.executable, "-m", "service.cli.main", "serve", "--role", "api", "--config", str(config)]
    with (home / "serve.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=Path(__file__).parent.parent, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5).close()
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"lakefold does not serve: {(home / 'serve.log').read_text()[-2000:]}")
            time.sleep(0.1)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(30)


def measure(port: int, path: str, headers: dict[str, str], seconds: float) -> tuple[int, list[float], list[float]]:
    """Request ``path`` for ``seconds``; returns an answer's bytes, and the seconds to each first and each last byte."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    first, whole, length = [], [], 0
    end = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end or len(whole) < 2:  # percentiles need two answers
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        first.append(time.perf_counter() - begun)
        length = len(answer.read())
        whole.append(time.perf_counter() - begun)
        if answer.status != 200:
            raise SystemExit(f"GET {path}: {answer.status}")
    connection.close()
    return length, first, whole


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the value below which ``percent`` percent of ``values`` are."""
    return statistics.quantiles(values, n=100)[percent - 1]


def measured(port: int, pid: int, seconds: float, bar: float, percent: int) -> list[str]:
    """Print a line for each address; return the addresses that miss the bar in over ``100 - percent`` % of the answers.

    The column ``of a core`` is the CPU time of the process divided by the number of answers, which is meaningful on a
    busy machine, too.
    """
    missed = []
    print(
        f"{'GET':<34} {'bytes':>10} {'req/s':>8} {'first byte p50':>15} {'p99':>8} {'whole p50':>11} {'p99':>8}", end=""
    )
    print(f" {'of a core':>10}")
    for path, headers, part in ADDRESSES:
        before = cpu_seconds(pid)
        length, first, whole = measure(port, path, headers, seconds)
        cpu = (cpu_seconds(pid) - before) / len(whole)
        figures = [percentile(times, p) * 1000 for times in (first, whole) for p in (50, 99)]
        name = f"{path} (gzip)" if headers.get("Accept-Encoding") == "gzip" else path
        rate = len(whole) / sum(whole)
        print(
            f"{name:<34} {length:>10,} {rate:>8.1f} {figures[0]:>12.1f} ms {figures[1]:>5.1f} ms"
            f" {figures[2]:>8.1f} ms {figures[3]:>5.1f} ms {cpu * 1000:>7.1f} ms",
            flush=True,
        )
        times = whole if part == "whole" else first
        if part != "none" and (max(times) if percent == 100 else percentile(times, percent)) > bar:
            missed.append(f"{name} over {bar * 1000:.0f} ms")
    return missed


def crowd(port: int, token: str, idle: int, stalled: int, complete: Event) -> None:
    """Run the clients until this process is ended; ``complete`` is set when the last client has connected.

    Each client connects and sends its bytes and nothing more. Some seconds after it was disconnected it connects again.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    head = (
        "POST /v1/requests HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n"
    )
    bodies = [f"{head}{more}\r\n".encode() + bytes(860_000) for more in ("", f"Authorization: Bearer {token}\r\n")]
    missing = idle + stalled

    async def guest(says: bytes) -> None:
        nonlocal missing
        visits = 0
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                with contextlib.closing(writer):
                    visits += 1
                    missing -= visits == 1
                    for begin in range(0, len(says), 1 << 16):
                        writer.write(says[begin : begin + (1 << 16)])
                        await writer.drain()
                    await reader.read()
            await asyncio.sleep(random.uniform(5, 15) if says else 0.5)

    async def everybody() -> None:
        guests = [asyncio.create_task(guest(b"")) for _ in range(idle)]
        guests += [asyncio.create_task(guest(bodies[number % 2])) for number in range(stalled)]
        while missing:
            await asyncio.sleep(0.1)
        complete.set()
        await asyncio.gather(*guests)

    asyncio.run(everybody())


@contextlib.contextmanager
def beside_a_crowd(port: int, token: str, idle: int, stalled: int) -> Iterator[None]:
    """Open ``idle`` silent connections and ``stalled`` half bodies; all are open when the context begins."""
    spawn = multiprocessing.get_context("spawn")
    complete = spawn.Event()
    process = spawn.Process(target=crowd, args=(port, token, idle, stalled, complete), daemon=True)
    process.start()
    try:
        if not complete.wait(60):
            raise SystemExit("the crowd did not connect within a minute")
        time.sleep(5)  # until the server has handled the burst of connections
        yield
    finally:
        process.terminate()
        process.join()


def main() -> int:
    """Print the tables; returns 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--plans", type=int, default=100_000)
    parser.add_argument(
        "--seconds", type=float, default=20, help="duration for each address; figures are refreshed every 15 s"
    )
    parser.add_argument("--idle", type=int, default=1000, help="silent connections of the crowd")
    parser.add_argument("--stalled", type=int, default=500, help="posts of the crowd that stop in the middle")
    parser.add_argument(
        "--database", metavar="FILE", type=Path, help="keep the database in this file, or use the one in it"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lakefold-surface-") as folder:
        home = Path(folder)
        database = arguments.database or home / "lakefold.db"
        url, begun = f"sqlite:///{database.absolute()}", time.perf_counter()
        if not database.exists():
            fill(url, arguments.tables, arguments.plans)
        print(f"{held(url)}: {database.stat().st_size / MIB:,.0f} MiB", end="")
        print(f" of SQLite in {time.perf_counter() - begun:.0f} s; ", end="")
        print(f"a refresh of the metrics takes {refresh_seconds(url):.2f} s", flush=True)
        token, store = new_token(), Store(url)
        store.add_token(
            f"guest-{time.time_ns()}", digest=token_digest(token), scope="write", expires_in=None, actor="bench"
        )
        store.close()
        with serving(home, url) as (port, pid):
            missed = measured(port, pid, arguments.seconds, BAR_SECONDS, 99)
            before = memory(pid, "VmRSS")
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # resets VmHWM
            files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            with beside_a_crowd(port, token, arguments.idle, arguments.stalled):
                print(f"\nbeside {arguments.idle:,} idle connections and {arguments.stalled:,} half bodies", end="")
                print(f", ulimit -n {files:,}; {len(os.listdir(f'/proc/{pid}/fd')):,} files are open")
                missed += measured(port, pid, arguments.seconds, CROWD_BAR_SECONDS, 100)
            grown = memory(pid, "VmHWM") - before
            print(f"memory: {before / 1e6:,.0f} MB, {grown / 1e6:+,.0f} MB at most beside the crowd")
            if grown > CROWD_BAR_BYTES:
                missed.append(f"{CROWD_BAR_BYTES / 1e6:.0f} MB more memory")
    if missed:
        print(f"missed: {', '.join(missed)}", file=sys.stderr)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""How fast ``/metrics``, status, lists and the page answer on a large installation, while figures are refreshed.

Fills an SQLite database with tables and plans as years of work leave them, starts ``lakefold serve --role api`` on it,
and asks for each address again and again over one loopback connection. Prints requests a second and percentiles; exits
1 where an answer's bar is missed by more than one in a hundred.
"""

import argparse
import contextlib
import http.client
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

if __name__ == "__main__":  # runs from a clone without being installed
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pyarrow as pa
from sqlalchemy import insert, text

from lake.model import FileSlice, SizeHistogram, TableRef
from service.documents.lake_cache import read_lake
from service.observability.metrics import Metrics
from service.observability.metrics_page import MetricsPage
from service.store import ScanRecord, Store
from service.store.blobs import pack
from service.store.engine import Database
from service.store.models import EventRow, GroupRow, PlanRow, SupersededRow
from service.store.triggers import create, drop

BAR_SECONDS = 0.1
DAY_MS = 86_400_000
MIB = 1 << 20
#: path, what it asks for besides, and what the bar holds for; a scrape asks for gzip
ADDRESSES: tuple[tuple[str, dict[str, str], Literal["first byte", "whole"]], ...] = (
    ("/metrics", {"Accept-Encoding": "gzip"}, "whole"),
    ("/metrics", {}, "whole"),
    ("/v1/status", {}, "whole"),
    ("/v1/tables", {}, "whole"),
    ("/v1/tables?limit=100", {}, "whole"),
    ("/v1/plans", {}, "whole"),
    ("/v1/plans?state=failed&limit=50", {}, "whole"),
    ("/", {"Accept": "text/html"}, "first byte"),
)


def plan_id(made_ms: int, number: int) -> str:
    """A UUIDv7 of that time; ``number`` keeps it unique."""
    digits = f"{made_ms:012x}7{number & 0xFFF:03x}8{number:015x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def fill(url: str, tables: int, plans: int) -> None:
    """A database of ``tables`` tables in mode compact and ``plans`` plans, of which a few are live or failed."""
    store, database, chance = Store(url), Database(url), random.Random(7)
    store.upgrade()
    names = [f"db{number % 40}.table_{number:04d}" for number in range(tables)]
    for name in names:
        store.register(TableRef(name=name, format="hudi", location=f"/lake/{name}"), "compact")
        store.record_scan(scan(name, chance))
    now = time.time_ns() // 1_000_000
    with database.write() as connection:
        for statement in drop(database.dialect):  # they let a plan begin as requested only
            connection.execute(text(statement))
        for kind, rows in (
            (PlanRow, plan_rows(names, plans, now, chance)),
            (GroupRow, groups(plans, now)),
            (EventRow, events(plans, now)),
            (SupersededRow, superseded(names, plans, now)),
        ):
            while chunk := [row for _, row in zip(range(5000), rows, strict=False)]:
                connection.execute(insert(kind), chunk)
        for statement in create(database.dialect):
            connection.execute(text(statement))
    database.close()
    store.close()


def made_at(number: int, plans: int, now: int) -> int:
    """When plan ``number`` was made: the plans spread over a year."""
    return now - (plans - number) * 365 * DAY_MS // plans


def state_of(number: int, plans: int) -> str:
    """The newest plans wait, one in 200 failed, one in 100 was cancelled."""
    if number >= plans - 50:
        return "requested"
    return "failed" if number % 200 == 3 else "cancelled" if number % 100 == 7 else "completed"


def scan(name: str, chance: random.Random) -> ScanRecord:
    """The last scan of a table with 200 files."""
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
    """The plans themselves."""
    for number in range(plans):
        made, state, size = made_at(number, plans, now), state_of(number, plans), chance.randint(100, 2000) * MIB
        name, done = names[number % len(names)], state == "completed"
        ended = {"claimed_at_ms": made + 1000, "finalized_at_ms": made + 60_000, "epoch": 1, "attempts": 1,
                 "executor": "host/4711/0a"}  # fmt: skip
        live = dict.fromkeys(ended) | {"epoch": 0, "attempts": 0}
        yield {
            "id": plan_id(made, number), "table_name": name, "format": "hudi", "location": f"/lake/{name}",
            "concurrency": "occ", "kind": "clustering", "state": state, "snapshot_instant": "20260101000000000",
            "options": {"target_file_max_bytes": 1 << 30, "engine": "auto", "compression": None, "sort_columns": [],
                        "layout": "linear", "receipt": "footer"},
            "estimate": {"files_removed": 40}, "actor": "scheduler host/4711/0a", "group_count": 1,
            "partition_count": 1, "input_files": 50, "input_bytes": size, "output_files": 2,
            "not_before_ms": made, "created_at_ms": made, "instant": f"{made}000" if done else None,
            "error": None if done or state == "requested" else "executor lost",
            "milliseconds": {"ask": 40, "prepare": 900, "rewrite": 40_000, "commit": 2000} if done else {},
            "figures": [["dt=2026-01-31", 50, size, 2, size]] if done else [], "files_before": 50 * done,
            "bytes_before": size * done, "files_after": 2 * done, "bytes_after": size * done,
            **(live if state == "requested" else ended),
        }  # fmt: skip


def groups(plans: int, now: int) -> Iterator[dict[str, Any]]:
    """One group of each plan."""
    files = pack([FileSlice(partition="p", file_id=f"f{n}", path=f"p/f{n}.parquet", bytes=MIB) for n in range(50)])
    for number in range(plans):
        yield {
            "plan_id": plan_id(made_at(number, plans, now), number), "number": 0, "partition_path": "dt=2026-01-31",
            "slices": 50, "input_files": 50, "input_bytes": 50 * MIB, "output_files": 2, "files": files,
        }  # fmt: skip


def events(plans: int, now: int) -> Iterator[dict[str, Any]]:
    """What happened to each plan."""
    for number in range(plans):
        made, state = made_at(number, plans, now), state_of(number, plans)
        story = [(None, "requested", 0), ("requested", "inflight", 1), ("inflight", state, 1)]
        for before, after, epoch in story[: 1 if state == "requested" else 3]:
            yield {
                "plan_id": plan_id(made, number), "at_ms": made, "from_state": before, "to_state": after,
                "epoch": epoch, "actor": "host/4711/0a", "reason": "planned",
            }  # fmt: skip


def superseded(names: Sequence[str], plans: int, now: int) -> Iterator[dict[str, Any]]:
    """The files that the plans of the last week replaced."""
    for number in range(plans):
        made = made_at(number, plans, now)
        if made > now - 7 * DAY_MS and state_of(number, plans) == "completed":
            for file in range(50):
                yield {
                    "plan_id": plan_id(made, number), "table_name": names[number % len(names)],
                    "partition_path": "dt=2026-01-31", "path": f"dt=2026-01-31/f{file}.parquet", "bytes": 10 * MIB,
                    "instant": f"{made}000", "superseded_at_ms": made, "deleted_at_ms": None,
                }  # fmt: skip


def refresh_seconds(url: str) -> float:
    """One refresh of the metrics as the daemon does it, in this process; the second one, as the first only warms up."""
    store, metrics = Store(url), Metrics("api")
    page = MetricsPage(metrics.registry)
    for _ in range(2):
        begun = time.perf_counter()
        lake = read_lake(store)
        metrics.stored.publish(lake)
        page.render()
        seconds = time.perf_counter() - begun
    store.close()
    return seconds


@contextlib.contextmanager
def serving(home: Path, url: str) -> Iterator[int]:
    """``lakefold serve --role api`` on a free port, once its figures are there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    config = home / "lakefold.toml"
    config.write_text(f'[database]\nurl = "{url}"\n[http]\nport = {port}\nrate_limit = 0\n')
    command = [sys.executable, "-m", "service.cli", "serve", "--role", "api", "--config", str(config)]
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
        yield port
    finally:
        process.terminate()
        process.wait(30)


def measure(port: int, path: str, headers: dict[str, str], seconds: float) -> tuple[int, list[float], list[float]]:
    """Ask for ``path`` for so long: bytes of an answer, seconds to each first byte, seconds to each last byte."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    first, whole, length = [], [], 0
    end = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
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
    """The value that so many percent stay below."""
    return statistics.quantiles(values, n=100)[percent - 1]


def main() -> int:
    """Print the table; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--plans", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=20, help="for each address; a refresh falls into 15 s")
    arguments = parser.parse_args()
    missed = []
    with tempfile.TemporaryDirectory(prefix="lakefold-surface-") as folder:
        home = Path(folder)
        url = f"sqlite:///{home}/lakefold.db"
        begun = time.perf_counter()
        fill(url, arguments.tables, arguments.plans)
        size = (home / "lakefold.db").stat().st_size / MIB
        print(f"{arguments.tables:,} tables, {arguments.plans:,} plans: {size:,.0f} MiB of SQLite", end="")
        print(f" in {time.perf_counter() - begun:.0f} s; a refresh of the metrics takes {refresh_seconds(url):.2f} s")
        print(f"{'GET':<34} {'bytes':>10} {'req/s':>8} {'first byte p50':>15} {'p99':>8} {'whole p50':>11} {'p99':>8}")
        with serving(home, url) as port:
            for path, headers, part in ADDRESSES:
                length, first, whole = measure(port, path, headers, arguments.seconds)
                figures = [percentile(times, p) * 1000 for times in (first, whole) for p in (50, 99)]
                name = f"{path} (gzip)" if headers.get("Accept-Encoding") == "gzip" else path
                rate = len(whole) / sum(whole)
                print(
                    f"{name:<34} {length:>10,} {rate:>8.1f} {figures[0]:>12.1f} ms {figures[1]:>5.1f} ms"
                    f" {figures[2]:>8.1f} ms {figures[3]:>5.1f} ms",
                    flush=True,
                )
                if figures[3 if part == "whole" else 1] > BAR_SECONDS * 1000:
                    missed.append(name)
    if missed:
        print(f"missed the bar of {BAR_SECONDS * 1000:.0f} ms at p99: {', '.join(missed)}", file=sys.stderr)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""The time of planning, and its memory besides the listing, for tables of different sizes.

Prints one row for each size (slices by partitions). Each row is measured in its own process, so that its peak memory is
its own. The listing is in memory before the clock starts. Seconds are the median of three plannings; the first one is
slower because the system allocates its memory. A busy machine increases the seconds but not the CPU column. The last
measurement is a replay of a history of 30 days under twelve policies. Exits 1 if a row misses the bar.
"""

import argparse
import resource
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa

if __name__ == "__main__":  # needed to run from a clone without an installation
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lake.history import ChangeKind, FileWritten, HistoricalCommit, TableHistory
from lake.model import SLICES_SCHEMA, Snapshot, TableRef
from planner.planner import plan_table
from planner.policy.policy import SizingPolicy
from planner.replay.events import writer_history
from planner.replay.policy_replay import replay_policy

SIZES = ((10_000, 100), (100_000, 1_000), (1_000_000, 10_000))
PLANNINGS = 3
BAR_SECONDS = 0.5
BAR_MIB = 300
BAR_REPLAY_SECONDS = 5.0
REPLAYED_DAYS, REPLAYED_COMMITS = 30, 3_000
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def generated(slices: int, partitions: int, seed: int = 7) -> Snapshot:
    """Return a realistic listing: log-normal sizes around 24 MiB; the files of a commit have the same second."""
    rng = np.random.default_rng(seed)
    sizes = np.minimum(rng.lognormal(np.log(24 << 20), 1.4, slices), 4 << 30).astype(np.int64)
    commits = rng.integers(0, max(slices // 20, 1), slices)
    modified = int((NOW - timedelta(days=30)).timestamp()) + commits * (30 * 86400) // (slices // 20)
    logs = np.where(rng.random(slices) < 0.1, rng.integers(1 << 10, 1 << 22, slices), 0)
    has_log = pa.array(logs > 0)
    number = pa.array(np.arange(slices)).cast(pa.string())
    file_id = pa.compute.binary_join_element_wise("6f1c2f0e-8d3b-4c5a-9e77", number, "-0", "-")
    names = pa.array([f"dt=2026-01-{i % 31 + 1:02d}/hour={i // 31:04d}" for i in range(partitions)])
    where = pa.array(rng.integers(0, partitions, slices).astype(np.int32))
    log_name = pa.compute.binary_join_element_wise(".", file_id, ".log.1", "")
    offsets = np.concatenate(([0], np.cumsum(logs > 0))).astype(np.int32)
    columns = {
        "partition": pa.DictionaryArray.from_arrays(where, names),
        "file_id": file_id,
        "path": pa.compute.binary_join_element_wise(names.take(where), file_id, "/"),
        "bytes": pa.array(sizes),
        "rows": pa.array(sizes // 200),
        "log_files": pa.ListArray.from_arrays(pa.array(offsets), log_name.filter(has_log)),
        "log_bytes": pa.array(logs),
        "oldest_log_at": pa.array(modified * 1_000_000, type=pa.timestamp("us", tz="UTC"), mask=logs == 0),
        "delta_kind": pa.nulls(slices, SLICES_SCHEMA.field("delta_kind").type),
        "deleted_rows": pa.nulls(slices, pa.int64()),
        "written_order": pa.array(modified),
        "group_key": pa.nulls(slices, SLICES_SCHEMA.field("group_key").type),
        "modified_at": pa.array(modified * 1_000_000, type=pa.timestamp("us", tz="UTC")),
        "busy_reason": pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(slices, dtype=np.int32), mask=rng.random(slices) > 0.01), ["pending compaction"]
        ),
    }
    table = pa.table([columns[name] for name in SLICES_SCHEMA.names], schema=SLICES_SCHEMA)
    return Snapshot(
        table=TableRef(name="bench", format="hudi", location="/lake/bench"), instant="1", taken_at=NOW, slices=table
    )


#: the measured kinds of plans: clustering by each strategy, and compaction of slices with logs
MODES = {
    "balanced": {"compaction": False},
    "hudi": {"compaction": False, "strategy": "hudi"},
    "compaction": {},
}


def measure(slices: int, partitions: int, mode: str) -> str:
    """Plan in this process and return a line of the table."""
    policy = SizingPolicy.from_settings(MODES[mode])
    plan_table(generated(1_000, 10), policy, now=NOW, plan_id="warm")  # imports and code paths, not data
    snapshot = generated(slices, partitions)
    _reset_peak()
    before = _resident_mib()
    times = []
    for _ in range(PLANNINGS):
        start, cpu = time.perf_counter(), time.process_time()
        planning = plan_table(snapshot, policy, now=NOW, plan_id="bench")
        times.append((time.perf_counter() - start, time.process_time() - cpu))
    seconds, cpu = sorted(times)[PLANNINGS // 2]
    extra = _peak_mib() - before
    groups = len(planning.plan.groups) if planning.plan else 0
    return (
        f"{slices:>10,} {partitions:>10,}  {mode:<10} {seconds:>8.3f} {cpu:>6.3f} {extra:>9.0f} {groups:>7} "
        f"{planning.estimate.files_removed:>10,} {planning.reducible_files:>11,}"
    )


def measure_one(slices: int, partitions: int, mode: str = "balanced") -> dict[str, float]:
    """Plan in a new process. Returns the seconds, the CPU seconds, and the MiB above the listing."""
    command = [sys.executable, __file__, "--one", str(slices), str(partitions), mode]
    line = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds, cpu, mib = map(float, line.split()[3:6])
    return {"seconds": seconds, "cpu_seconds": cpu, "mib": mib}


def past(seed: int = 7) -> TableHistory:
    """Return commits of one to four files, log-normal around 24 MiB, nearly all into the partition of their day."""
    rng = np.random.default_rng(seed)
    since = NOW - timedelta(days=REPLAYED_DAYS)
    commits = []
    for number, day in enumerate(np.sort(rng.random(REPLAYED_COMMITS)) * REPLAYED_DAYS):
        at, partition = since + timedelta(days=float(day)), f"dt={int(day - (rng.random() < 0.1)):03d}"
        sizes = rng.lognormal(np.log(24 << 20), 1.4, rng.integers(1, 5)).astype(np.int64).tolist()
        wrote = tuple(
            FileWritten(partition=partition, file_id=f"{number}-{part}", at=at, bytes=size, rows=size // 200)
            for part, size in enumerate(sizes)
        )
        commits.append(HistoricalCommit(at=at, change=ChangeKind.WRITE, operation="insert", written=wrote))
    return TableHistory(since=since, until=NOW, files=(), commits=tuple(commits), writer_model="hive")


def measure_replay() -> str:
    """Replay the history under twelve policies in this process and return a line of the table."""
    tried = [
        SizingPolicy.from_settings({"target_file_max": target, "min_input_files": least})
        for target in ("512MiB", "1GiB", "2GiB")
        for least in (2, 4, 8, 16)
    ]
    told = past()
    start, cpu = time.perf_counter(), time.process_time()
    script = writer_history(told)
    plans = sum(replay_policy(script, policy, small_file_limit_bytes=300 << 20).work.plans for policy in tried)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    return (
        f"replay of {REPLAYED_COMMITS:,} commits in {REPLAYED_DAYS} days under {len(tried)} policies: {seconds:.3f} s, "
        f"CPU {cpu:.3f} s, {plans:,} plans"
    )


def _reset_peak() -> None:
    """Reset the peak memory, which generating the listing raised; on systems without /proc the peak includes it."""
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text("5")


def _status_mib(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise KeyError(field)


def _peak_mib() -> float:
    if Path("/proc/self/status").exists():
        return _status_mib("VmHWM")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / (1 << 20)


def _resident_mib() -> float:
    return _status_mib("VmRSS") if Path("/proc/self/status").exists() else _peak_mib()


def main() -> int:
    """Print the table; returns 1 if the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=3, metavar=("SLICES", "PARTITIONS", "MODE"), help=argparse.SUPPRESS)
    parser.add_argument("--replay", action="store_true", help="only the replay")
    arguments = parser.parse_args()
    if arguments.one:
        print(measure(int(arguments.one[0]), int(arguments.one[1]), arguments.one[2]))
        return 0
    if not arguments.replay:
        print("    slices partitions  plan        seconds    CPU  MiB over  groups    removed   reducible")
    missed = False
    for mode in () if arguments.replay else MODES:
        for slices, partitions in SIZES:
            command = [sys.executable, __file__, "--one", str(slices), str(partitions), mode]
            line = subprocess.run(command, check=True, capture_output=True, text=True).stdout.rstrip()
            print(line, flush=True)
            seconds, extra = float(line.split()[3]), float(line.split()[5])
            missed |= seconds > BAR_SECONDS or extra > BAR_MIB
    line = measure_replay()
    print(line)
    missed |= float(line.split(": ")[1].split()[0]) > BAR_REPLAY_SECONDS
    if missed:
        bars = f"{BAR_SECONDS} s and {BAR_MIB} MiB above the listing, {BAR_REPLAY_SECONDS:g} s for the replay"
        print(f"missed the bar of {bars}", file=sys.stderr)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())

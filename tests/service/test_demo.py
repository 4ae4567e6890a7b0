# SPDX-License-Identifier: Apache-2.0
"""``lakefold demo`` as a person runs it: to its end, interrupted, and with something in its way."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from waiting import wait_for

from lake.metastore import MetastoreClient
from service.cli import main
from service.cli.demo import iceberg
from service.cli.demo.hive import is_metastore_ready
from service.cli.demo.hudi import read_table
from service.cli.demo.ledger import WriterLedger, compare
from service.cli.demo.trips import TRIPS
from service.control.config.loader import load_config

LAKEFOLD = str(Path(sys.executable).with_name("lakefold"))


def environment(**more: str) -> dict[str, str]:
    """A small demo, and foreign settings that it must not use."""
    foreign = {"LAKEFOLD_DATABASE__URL": "sqlite:////nowhere/lakefold.db", "LAKEFOLD_DEFAULTS__RETENTION": "1d"}
    return {**os.environ, "LAKEFOLD_DEMO_SCALE": "0.1", "NO_COLOR": "1", **foreign, **more}


def processes_of(directory: Path) -> list[str]:
    """Command lines of every process that has anything to do with ``directory``, a finished one aside."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                cwd = (entry / "cwd").readlink()
            except OSError:
                continue
            if str(directory) in line or cwd == directory:
                found.append(f"{entry.name}: {line[:200]}")
    return found


def gone(directory: Path) -> bool:
    """Whether no process is left within a few seconds."""
    deadline = time.monotonic() + 10
    while processes_of(directory):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.fixture
def running(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """``lakefold demo`` with its directory in ``tmp_path / "demo"``, stopped at the end whatever happens."""
    with subprocess.Popen(
        [LAKEFOLD, "demo", "--workdir", str(tmp_path / "demo")],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        yield process
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def in_hudi(home: Path) -> pa.Table:
    return read_table(str(home / "lake" / "demo" / "trips"))


def in_hive(home: Path) -> pa.Table:
    """The rows as DuckDB reads them where the metastore says that they are."""
    found = []
    uri = load_config(home / "lakefold.toml").sources[0].metastore
    assert uri is not None
    with MetastoreClient(uri) as metastore, duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for _, partition in metastore.partitions("demo", "trips", metastore.partition_names("demo", "trips")):
            place = partition.storage.location.removeprefix("file:")
            city, day = partition.values
            files = f"read_parquet('{place}/*.parquet', hive_partitioning = false)"
            query = f"SELECT *, '{city}' AS city, '{day}' AS day FROM {files}"
            found.append(connection.sql(query).to_arrow_table().select(TRIPS.names).cast(TRIPS))
    return pa.concat_tables(found)


def in_iceberg(home: Path) -> pa.Table:
    return iceberg.read_table(home / "lake")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("format_", "reader", "rows_in"),
    [("hudi", "hudi-rs", in_hudi), ("hive", "pyarrow", in_hive), ("iceberg", "PyIceberg", in_iceberg)],
)
@pytest.mark.crossed(first="hive")
def test_the_installed_wheels_demo_ends_with_a_table_equal_to_its_writers_ledger(
    format_: str, reader: str, rows_in: Callable[[Path], pa.Table], installed, tmp_path, monkeypatch, capsys
):
    home = tmp_path / "demo"
    done = subprocess.run(
        [str(installed / "lakefold"), "demo", "--format", format_, "--workdir", str(home)],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert gone(home), processes_of(home)
    lines = done.stdout.splitlines()
    proof = "equal to the writer's ledger in every value of every column"
    assert any(f"{reader} reads " in line and proof in line for line in lines)
    assert any(line.startswith("Done in ") for line in lines)
    assert lines[-1] == f"Remove everything with: rm -r {home}"
    plans = [line for line in lines if " plan " in line]
    assert any("requested" in line for line in plans)
    assert any("completed" in line for line in plans)
    before = next(line for line in lines if "demo.trips before: " in line)
    after = next(line for line in lines if "demo.trips after: " in line)
    # How many files there are depends on how many the writer adds meanwhile, and the demo of a test is small.
    assert _files(after) < _files(before), (before, after)
    assert any("the cleaner deleted" in line and "; 0 of them on disk" in line for line in lines)

    # What the demo says is asked again, of the table itself and of the commands it recommends.
    monkeypatch.chdir(home)
    with said_first(lines):
        rows = WriterLedger(home / "ledger").rows()
        assert rows.num_rows > 1000
        assert compare(rows, rows_in(home)).equal
        for command in (
            ["tables", "show", "demo.trips"],
            ["tables", "explain", "demo.trips"],
            ["plans", "list"],
            ["plans", "request", "demo.trips", "-n"],
            ["verify", "demo.trips", "--rows"],
        ):
            assert f"lakefold {' '.join(command)}" in done.stdout
            assert main.run(command) == 0, f"{command}: {capsys.readouterr()}"


@contextmanager
def said_first(lines: Sequence[str]) -> Iterator[None]:
    """The metastore runs that the demo says has to be started again, where it has one."""
    command = next((line.partition(" &")[0].split() for line in lines if "service.cli.demo.metastore" in line), None)
    if command is None:
        yield
        return
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            uri = f"thrift://127.0.0.1:{command[-2]}"
            wait_for(lambda: is_metastore_ready(uri), "the metastore does not answer", every=0.2, seconds=120)
            yield
        finally:
            server.kill()


def _files(line: str) -> int:
    return int(line.split(": ")[1].split(" file")[0].replace(",", ""))


@pytest.mark.spark
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.crossed(first="15")
def test_an_interrupted_demo_leaves_no_process_behind(running, tmp_path, how):
    assert running.stdout is not None
    for line in running.stdout:
        if "lakefold serve" in line or (how is signal.SIGTERM and "Spark starts" in line):
            break
    assert processes_of(tmp_path / "demo")
    running.send_signal(how)
    assert running.wait(timeout=120) == 130
    assert gone(tmp_path / "demo"), processes_of(tmp_path / "demo")


@pytest.mark.spark
def test_a_killed_demo_takes_its_processes_along(running, tmp_path):
    assert running.stdout is not None
    next(line for line in running.stdout if "Spark starts" in line)
    deadline = time.monotonic() + 60
    while not any("java" in line for line in processes_of(tmp_path / "demo")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    running.kill()
    running.wait()
    deadline = time.monotonic() + 60
    while processes_of(tmp_path / "demo"):
        assert time.monotonic() < deadline, processes_of(tmp_path / "demo")
        time.sleep(0.2)


@pytest.mark.slow
def test_a_writer_that_can_not_start_is_one_clear_line_with_the_end_of_its_log(tmp_path):
    home = tmp_path / "demo"
    done = subprocess.run(
        [LAKEFOLD, "demo", "--workdir", str(home)],
        env=environment(SPARK_HOME="/nowhere"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    *tail, last = done.stderr.splitlines()
    assert last == f"lakefold: the demo's writer ended with exit code 1; its log is {home}/writer.log"
    assert tail[0] == f"The last lines of {home}/writer.log:"
    assert any("Spark could not start" in line and "/nowhere" in line for line in tail)
    assert "Traceback" not in done.stderr
    assert gone(home), processes_of(home)


@pytest.mark.slow
def test_a_directory_that_is_not_empty_is_refused_and_left_alone(tmp_path):
    (tmp_path / "somebody's").write_text("file")
    done = subprocess.run(
        [LAKEFOLD, "demo", "--workdir", str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == (
        f"lakefold: --workdir {tmp_path} is not empty; choose another directory or empty it"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["somebody's"]


@pytest.mark.slow
def test_the_demos_errors_are_problem_objects_for_scripts(tmp_path):
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [LAKEFOLD, "demo", "--json", "--workdir", str(tmp_path / "file")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    problem = json.loads(done.stderr)
    assert problem["exit_code"] == 2
    assert str(tmp_path / "file") in problem["detail"]

# SPDX-License-Identifier: Apache-2.0
"""Temporary directories of JVMs: each is its process's alone while that lives, and goes with the next start after."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import suspend

from executors import scratch
from executors.scratch import new_scratch_directory

HOLD = "import sys; from executors import scratch; print(scratch.new_scratch_directory(), flush=True); sys.stdin.read()"


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "_lock_descriptors", [])


@pytest.fixture
def other(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that has one."""
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def of(process: "subprocess.Popen[str]") -> Path:
    """Its directory, with something in it."""
    assert process.stdout is not None
    place = Path(process.stdout.readline().strip())
    (place / "blockmgr").mkdir()
    (place / "blockmgr" / "jar").write_bytes(b"80 MB")
    return place


def test_only_scratch_directories_of_processes_that_ended_are_deleted(
    tmp_path: Path, other: "subprocess.Popen[str]"
) -> None:
    theirs = of(other)
    suspend(other.pid)
    mine = new_scratch_directory()
    assert {path for path in tmp_path.iterdir() if path.is_dir()} == {mine, theirs}
    other.kill()
    other.wait()
    again = new_scratch_directory()
    assert list(tmp_path.iterdir()) == [again], "a process has one JVM at a time"
    assert again.stat().st_mode & 0o777 == 0o700


def test_nothing_else_is_touched(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    for place in (outside, tmp_path / "lakefold-spark-coming", tmp_path / "spark-1"):
        place.mkdir()
    (outside / "in-use").touch()
    (tmp_path / "spark-1" / "in-use").touch()
    (tmp_path / "lakefold-spark-link").symlink_to(outside)
    before = set(tmp_path.rglob("*"))
    mine = new_scratch_directory()
    assert {path for path in tmp_path.rglob("*") if mine not in (path, *path.parents)} == before


def test_a_directory_of_another_user_is_left_to_that_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = new_scratch_directory()
    os.close(scratch._lock_descriptors.pop())
    monkeypatch.setattr(os, "getuid", lambda: 4321)
    new_scratch_directory()
    assert theirs.exists()

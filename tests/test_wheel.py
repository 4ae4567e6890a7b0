# SPDX-License-Identifier: Apache-2.0
"""The built wheel works on its own: outside the clone, with only the locked runtime dependencies."""

import os
import subprocess
from pathlib import Path

from executors.spark import cache_dir


def run(installed: Path, home: Path, *arguments: str, timeout: float) -> "subprocess.CompletedProcess[str]":
    """``lakefold ARGUMENTS`` of the installed wheel with ``home`` as home and working directory."""
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "LAKEFOLD_CACHE": str(cache_dir())}
    if "JAVA_HOME" in os.environ:
        env["JAVA_HOME"] = os.environ["JAVA_HOME"]
    return subprocess.run(
        [str(installed / "lakefold"), *arguments],
        cwd=home,
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def test_the_wheel_creates_and_checks_its_database(installed, tmp_path):
    done = run(installed, tmp_path, "db", "upgrade", timeout=120)
    assert done.returncode == 0, done.stderr
    done = run(installed, tmp_path, "db", "check", timeout=120)
    assert done.returncode == 0, done.stderr

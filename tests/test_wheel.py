# SPDX-License-Identifier: Apache-2.0
"""The built wheel works on its own: outside the clone, with only the locked runtime dependencies."""

import os
import subprocess
from pathlib import Path

from executors.jars import cache_dir


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


def test_the_wheel_has_everything_the_page_is_made_of(installed, tmp_path):
    code = (
        "from service.server.web import rendering as r\n"
        "print(r.asset_url('lakefold.css'), r.environment().list_templates())"
    )
    done = subprocess.run(
        [str(installed / "python"), "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    shipped = {path.name for path in (Path(__file__).parent.parent / "service/server/web/templates").iterdir()}
    assert all(f"'{name}'" in done.stdout for name in shipped)
    assert done.stdout.startswith("/static/lakefold.css?v=")


def test_the_wheel_has_the_scenarios_that_the_page_offers(installed, tmp_path):
    code = "from service.server.web.simulation import shipped_scenarios; print(sorted(shipped_scenarios()))"
    done = subprocess.run(
        [str(installed / "python"), "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    shipped = (Path(__file__).parent.parent / "docs" / "scenarios").glob("*.toml")
    assert done.stdout.strip() == str(sorted(path.stem for path in shipped))


def test_the_wheel_has_the_log_configuration_of_a_jvm(installed, tmp_path):
    code = "import executors, pathlib; print(pathlib.Path(executors.__file__).with_name('log4j2.properties').is_file())"
    done = subprocess.run(
        [str(installed / "python"), "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "True\n"

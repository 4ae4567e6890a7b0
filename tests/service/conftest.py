# SPDX-License-Identifier: Apache-2.0
"""What tests of commands share: an environment of their own, commands run in the test's process, and toy tables."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from daemon_toys import known
from toys.timeline import ToyFormat
from toys.timeline_tables import create

from service.cli import main

if TYPE_CHECKING:
    from hudi_cli import Cli
    from pyspark.sql import SparkSession

    from service.control.store import Store
    from service.server.observability.metrics import Metrics


@pytest.fixture
def clean_environment(monkeypatch, tmp_path):
    """An empty home and working directory, and no setting of lakefold's in the environment."""
    for name in list(os.environ):
        if name.startswith("LAKEFOLD_") or name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capsys) -> Callable[..., tuple[int, str, str]]:
    """Runs a command in this process: exit code, stdout, stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main.run(arguments)
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def toys() -> Iterator[ToyFormat]:
    """The toy format, which this process knows until the end of the test."""
    with known(ToyFormat()) as toys:
        yield toys


@pytest.fixture
def home(tmp_path: Path, store: "Store") -> Path:
    """A home with one toy table ``t1`` (two partitions of three small files) and an empty database."""
    create(tmp_path / "lake" / "t1", name="t1")
    return tmp_path


@pytest.fixture
def metrics() -> "Metrics":
    """The metrics of a process with every role, before its first plan."""
    from service.server.observability.metrics import Metrics

    return Metrics("all")


@pytest.fixture
def lakefold(
    spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> "Cli":
    """Commands beside a real Hudi table, in the working directory."""
    from hudi_cli import lakefold_at

    monkeypatch.chdir(tmp_path)
    for name in ("LAKEFOLD_CONFIG", "LAKEFOLD_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return lakefold_at(tmp_path, spark, capsys)

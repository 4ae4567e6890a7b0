# SPDX-License-Identifier: Apache-2.0
"""The command line in the test's process, at home beside a real Hudi table."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hudi_tables import small_files
from kept_tables import kept

from service.cli import main
from service.control.config.loader import load_config
from service.control.store import Store
from service.control.wiring import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG = """
[database]
url = "sqlite:///{home}/lakefold.db"
[[sources]]
path = "lake"
[defaults]
small_file_limit = "64KiB"
target_file_max = "4MiB"
quiet_period = "0s"
[[tables]]
match = "sales.*"
mode = "compact"
concurrency = "single_writer"
"""
ONE, TWO = "dt=2026-01-01", "dt=2026-01-02"


class Cli:
    """Runs commands in this process."""

    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.home, self._capsys = home, capsys
        self.base = home / "lake/sales/orders"
        self.config = home / "lakefold.toml"

    def __call__(self, *arguments: str, expect: int = 0) -> str:
        """What ``lakefold ARGUMENTS`` prints to stdout; ``error`` has its stderr."""
        code = main.run(arguments)
        out, self.error = self._capsys.readouterr()
        assert code == expect, f"{arguments} gave {code}, not {expect}\n{out}\n{self.error}"
        assert "Traceback" not in self.error
        return out

    def json(self, *arguments: str, expect: int = 0) -> list[dict]:
        """The JSON lines of a command; stderr must be empty or one problem object."""
        out = self(*arguments, "--json", expect=expect)
        if self.error:
            problem = json.loads(self.error)
            assert problem["exit_code"] == expect
        return [json.loads(line) for line in out.splitlines()]

    def problem(self, *arguments: str, expect: int) -> dict:
        """The problem object of a command that must fail."""
        assert self.json(*arguments, expect=expect) == []
        return json.loads(self.error)

    @property
    def store(self) -> Store:
        """The database, opened here."""
        return open_store(load_config(self.config))


def lakefold_at(home: Path, spark: "SparkSession", capsys: pytest.CaptureFixture[str]) -> Cli:
    """Commands at a home with two copies of a table of two partitions of two files, one that it may change."""
    template = kept("cli", "orders", lambda base: small_files(spark, base, commits=2, rows_each=50), __file__)
    run = Cli(home, capsys)
    run.config.write_text(CONFIG.format(home=home))
    shutil.copytree(template, run.base)
    shutil.copytree(template, home / "lake/watched")
    run("db", "upgrade")
    return run


def on_disk(base: Path) -> dict[str, int]:
    """Base files of a table that was never rewritten, with their sizes."""
    files = (path for path in base.rglob("*.parquet") if ".hoodie" not in path.parts)
    return {str(path.relative_to(base)): path.stat().st_size for path in files}

# SPDX-License-Identifier: Apache-2.0
"""Runs the real command line as an operator would: a configuration file, a database, processes."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from hudi_tables import FS_LOCK, SMALL_BLOOM
from sqlalchemy import create_engine, text
from support import HEAP

from executors.context import RunContext
from executors.engines import create_engines
from executors.worker import Worker, WorkerSettings
from service.control.config.table_settings import default_policy
from service.control.wiring import open_config, open_store

LAKEFOLD = [str(Path(sys.executable).with_name("lakefold"))]
#: commands that start a JVM or are killed
_PROCESSES = frozenset({"serve", "worker", "clean", "demo"})


@dataclass
class Installation:
    """One configuration file with its database, serving the Hudi tables under ``lake``."""

    home: Path
    url: str
    policy: Mapping[str, str | int] = field(default_factory=dict)
    daemon: Mapping[str, str | int] = field(default_factory=dict)
    spark: Mapping[str, str] = field(default_factory=dict)
    write_options: Mapping[str, str] = field(default_factory=dict)
    concurrency: str = "occ"
    on_conflict: str = "plan_wins"
    #: tables by name; without any, every table under ``lake`` under the name it has itself
    tables: Mapping[str, Path] = field(default_factory=dict)
    #: more variables of every process that is started
    variables: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lake.mkdir(parents=True, exist_ok=True)
        self.write_config()
        self.run("db", "upgrade")

    @property
    def lake(self) -> Path:
        """Where the tables are."""
        return self.home / "lake"

    @property
    def config(self) -> Path:
        """The configuration file."""
        return self.home / "lakefold.toml"

    def write_config(self, **policy: str | int) -> None:
        """(Re)write the configuration with ``policy`` over the settings given at first."""
        defaults = {
            "small_file_limit": "1MiB",
            "target_file_max": "4MiB",
            "max_bytes_per_group": "8MiB",
            "quiet_period": "0s",
            "retention": "1h",
            "verification": "hash",
            "backoff": "1s",
            **self.policy,
            **policy,
        }
        spark = {"master": "local[2]", **HEAP, "spark.sql.shuffle.partitions": "2", **self.spark}
        sources = [{"path": str(path), "name": name} for name, path in self.tables.items()] or [
            {"path": str(self.lake)}
        ]
        choice = {"on_conflict": self.on_conflict} if self.concurrency == "occ" else {}
        sections: list[tuple[str, Mapping[str, str | int]]] = [
            ("[database]", {"url": self.url}),
            ("[spark]", spark),
            ("[http]", {"port": 0}),
            ("[daemon]", self.daemon),
            *(("[[sources]]", source) for source in sources),
            ("[defaults]", defaults),
            ("[[tables]]", {"match": "*", "mode": "compact", "concurrency": self.concurrency, **choice}),
        ]
        locked = FS_LOCK | SMALL_BLOOM if self.concurrency == "occ" else {}
        if options := locked | dict(self.write_options):
            sections.append(("[tables.write_options]", options))
        lines = []
        for title, settings in sections:
            lines += [title, *(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in settings.items()), ""]
        self.config.write_text("\n".join(lines))

    def environment(self, failpoints: str = "") -> dict[str, str]:
        """The environment of a lakefold process."""
        env = {key: value for key, value in os.environ.items() if not key.startswith("LAKEFOLD_")}
        if "LAKEFOLD_CACHE" in os.environ:
            env["LAKEFOLD_CACHE"] = os.environ["LAKEFOLD_CACHE"]
        return (
            env
            | dict(self.variables)
            | {"LAKEFOLD_CONFIG": str(self.config), "LAKEFOLD_FAILPOINTS": failpoints, "NO_COLOR": "1"}
        )

    def run(
        self, *arguments: str, failpoints: str = "", expect: int | None = 0, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Run ``lakefold ARGUMENTS`` to its end; its exit code must be ``expect`` unless that is None.

        ``failpoints`` and ``timeout`` (seconds) are for the commands that get a process of their own.
        """
        in_process = arguments[0] not in _PROCESSES
        done = self._call(arguments) if in_process else self._spawn(arguments, failpoints, timeout)
        if expect is not None and done.returncode != expect:
            raise AssertionError(
                f"lakefold {' '.join(arguments)} exited {done.returncode}, expected {expect}\n"
                f"--- stdout\n{done.stdout[-4000:]}\n--- stderr\n{done.stderr[-8000:]}"
            )
        return done

    def _spawn(self, arguments: Sequence[str], failpoints: str, timeout: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*LAKEFOLD, *arguments],
            env=self.environment(failpoints),
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def _call(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """The same command without a process of its own, which is most of what a short command costs."""
        from service.cli.main import run

        out, err = io.StringIO(), io.StringIO()
        with (
            mock.patch.dict(os.environ, self.environment(), clear=True),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = int(run(arguments))
        return subprocess.CompletedProcess([*LAKEFOLD, *arguments], code, out.getvalue(), err.getvalue())

    def json(self, *arguments: str, expect: int | None = 0) -> list[dict[str, Any]]:
        """The JSON lines that ``lakefold ARGUMENTS --json`` prints."""
        output = self.run(*arguments, "--json", expect=expect).stdout
        return [json.loads(line) for line in output.splitlines() if line.strip()]

    def work(self, spark: Any) -> None:
        """What ``lakefold worker --once`` does, in this process and its Spark session, which are there already."""
        config = open_config(self.config)
        settings = WorkerSettings(poll_interval=config.daemon.claim_interval)
        store = open_store(config)
        try:
            Worker(
                RunContext(
                    store=store,
                    spark=lambda: spark,
                    engines=create_engines(lambda: spark),
                    heartbeat=default_policy(config).heartbeat,
                ),
                settings=settings,
            ).run_once()
        finally:
            store.close()

    def expire_leases(self) -> None:
        """Make the store believe that every executor has been silent for longer than its lease."""
        engine = create_engine(self.url)
        with engine.begin() as connection:
            connection.execute(text("UPDATE plan SET lease_until_ms = 1 WHERE state = 'inflight'"))
        engine.dispose()

    def start(self, *arguments: str, failpoints: str = "", log: Path | None = None) -> "subprocess.Popen[bytes]":
        """Start ``lakefold ARGUMENTS`` in a process group of its own; its output goes to ``log``."""
        with (log or self.home / "process.log").open("ab") as sink:
            return subprocess.Popen(
                [*LAKEFOLD, *arguments],
                env=self.environment(failpoints),
                cwd=self.home,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )


def hive_installation(
    home: Path, url: str, uri: str, database: str, *, slots: int = 1, **policy: str | int
) -> Installation:
    """One that compacts the tables of a metastore's database."""
    made = Installation(home=home, url=url)
    heap = "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in HEAP.items())
    knobs = {"quiet_period": "0s", "retention": "1h", "verification": "hash", **policy}
    made.config.write_text(
        f'[database]\nurl = "{url}"\n[spark]\nmaster = "local[2]"\n{heap}[http]\nport = 0\n'
        f'[daemon]\nexecutor_slots = {slots}\n[[sources]]\nmetastore = "{uri}"\ndatabase = "{database}"\n[defaults]\n'
        + "".join(f"{name} = {json.dumps(value)}\n" for name, value in knobs.items())
        + '[[tables]]\nmatch = "*"\nmode = "compact"\naccess = "catalog"\n'
    )
    return made


def iceberg_installation(
    home: Path,
    url: str,
    settings: Mapping[str, str],
    daemon: Mapping[str, str | int],
    **policy: str | int | Sequence[str],
) -> Installation:
    """One that compacts the tables of the catalog ``prod``, whose ``settings`` are those of Spark."""
    made = Installation(home=home, url=url)
    sections: list[tuple[str, Mapping[str, str | int | Sequence[str]]]] = [
        ("[database]", {"url": url}),
        ("[spark]", {"master": "local[1]", **HEAP, "spark.sql.shuffle.partitions": "1", **settings}),
        ("[http]", {"port": 0}),
        ("[daemon]", daemon),
        ("[[sources]]", {"catalog": "prod"}),
        ("[defaults]", {"quiet_period": "0s", "verification": "hash", **policy}),
        ("[[tables]]", {"match": "*", "mode": "compact"}),
    ]
    lines = []
    for title, values in sections:
        lines += [title, *(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in values.items()), ""]
    made.config.write_text("\n".join(lines))
    return made


def stop_group(process: "subprocess.Popen[Any]", how: int = signal.SIGKILL) -> None:
    """End a process that leads a group, as ``Installation.start`` starts it, with its whole group."""
    try:
        os.killpg(process.pid, signal.SIGCONT)
        os.killpg(process.pid, how)
    except ProcessLookupError:
        pass
    process.wait(timeout=60)

# SPDX-License-Identifier: Apache-2.0
"""An installation of real processes on toy tables with troubles, and its commands, those of the runbook among them."""

import io
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from daemon_toys import write_config
from databases import store_at
from monitoring import commands, entry
from support import free_port
from toys.processes import PYTHONPATH
from toys.timeline_tables import create

from lake.plan import LIVE_STATES, PlanState
from service.cli import main
from service.problems import ExitCode
from service.server.daemon.process import Daemon


def started(home: Path, config: Path, role: str = "all", failpoints: str = "") -> tuple[subprocess.Popen[bytes], Path]:
    """A process of ``lakefold serve`` that knows the toy format, and its new log."""
    path = home / "serve.log"
    env = {"PATH": "/usr/bin:/bin", "HOME": str(home), "LAKEFOLD_FAILPOINTS": failpoints, "PYTHONPATH": PYTHONPATH}
    command = [sys.executable, str(Path(__file__).with_name("daemon_toys.py")), str(config), role]
    path.unlink(missing_ok=True)
    with path.open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=home, env=env), path


class Lakefold:
    """An installation in ``home``: processes, commands, tables; ``more`` is added to its configuration."""

    def __init__(self, home: Path, more: str = "") -> None:
        self.home, self.lake = home, home / "lake"
        self.lake.mkdir(parents=True)
        self.config = write_config(
            home,
            daemon={"executor_slots": 3},
            policy={"lease": "2s", "heartbeat": "400ms", "backoff": "100ms", "retention": "4s", "slo_files_per_gib": 4},
        )
        self.config.write_text(
            f'{self.config.read_text()}\n[[sources]]\npath = "{self.lake}/*"\nformat = "toy"\n{more}'
        )
        program = home / "bin" / "lakefold"
        program.parent.mkdir()
        script = Path(__file__).with_name("toy_lakefold.py")
        program.write_text(f"#!/bin/sh\nPYTHONPATH='{PYTHONPATH}' exec {sys.executable} {script} \"$@\"\n")
        program.chmod(0o755)
        self.path = f"{program.parent}:{os.environ['PATH']}"
        self.ports = {"all": free_port(), "executor": free_port()}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        #: those that run in this process
        self.daemons: list[Daemon] = []
        self.store = store_at(home)

    def serve(self, command: str = "lakefold serve") -> None:
        """Start a process in its role; the one that does all claims no plan but at its very start."""
        role = "executor" if "--role executor" in command else "all"
        own = {"LAKEFOLD_HTTP__PORT": str(self.ports[role])}
        if role == "all":
            own["LAKEFOLD_DAEMON__CLAIM_INTERVAL"] = "1h"
        with (self.home / f"{role}.log").open("ab") as log:
            self.processes[role] = subprocess.Popen(
                shlex.split(command), env={**os.environ, **own}, stdout=log, stderr=log, cwd=self.home
            )

    def run(self, line: str, names: Mapping[str, str]) -> tuple[int, str]:
        """Exit code and output of a command as the runbook has it; TABLE and PLAN stand for ``names``."""
        name, *words = shlex.split(line)
        assert name == "lakefold", line
        out = io.StringIO()
        with redirect_stdout(out), redirect_stderr(out):  # in this process: half of a command's time is its start
            code = main.run([names.get(word, word) for word in words])
        return code, out.getvalue()

    def follow(self, alert: str, what: str, **names: str) -> None:
        """The commands of one step of an alert's entry, as they are written there."""
        for line in commands(entry(alert, what)):
            if line.startswith("lakefold serve"):
                self.serve(line)
            else:
                code, said = self.run(line, names)
                assert code == ExitCode.OK, f"{line}: {said}"

    def table(self, name: str, *troubles: str, files: int = 3) -> Path:
        """A new table under the source, with its troubles from the start."""
        folder = self.home / f"new {name}"
        create(folder, name=name, files=files)
        for trouble in troubles:
            (folder / trouble).touch()
        return folder.rename(self.lake / name)

    def plans(self, state: PlanState, *tables: str) -> list[str]:
        """Ids of the plans in ``state`` of these tables."""
        return [plan.plan_id for plan in self.store.plans(state=state) if plan.table in tables]

    def live_plans(self, table: str) -> list[str]:
        """Ids of the live plans of ``table``, from one read: a plan may be claimed between two."""
        return [p.plan_id for p in self.store.plans() if p.table == table and p.state in LIVE_STATES]

    def completed(self, *tables: str) -> bool:
        """Whether each of the tables has a completed plan."""
        return all(self.plans(PlanState.COMPLETED, table) for table in tables)

    def end(self) -> None:
        """End every process and close the database."""
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.store.close()

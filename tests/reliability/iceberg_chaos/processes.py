# SPDX-License-Identifier: Apache-2.0
"""The writer of a run as a process, which can be killed."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chaos.processes import Victim
from waiting import wait_for

_IMPORTS = [str(Path(__file__).parents[1]), *sys.path]


class WriterProcess(Victim):
    """``iceberg_chaos.writer`` as a process; ``home`` has its notes and logs."""

    def __init__(self, home: Path, settings: Mapping[str, str], version: int, seed: str) -> None:
        self.home, self._starts = home, 0
        file = home / "writer.json"
        file.write_text(json.dumps({"spark.driver.memory": "800m", "spark.sql.shuffle.partitions": "1", **settings}))
        self._arguments = [str(file), str(home), str(version), seed]
        super().__init__("writer", self._begin)

    def _begin(self) -> "subprocess.Popen[Any]":
        self._starts += 1
        self._log = self.home / f"writer-{self._starts}.log"
        with self._log.open("wb") as sink:
            return subprocess.Popen(
                [sys.executable, "-m", "iceberg_chaos.writer", *self._arguments, str(self._starts)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(_IMPORTS)},
                cwd=self.home,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        """The end of what it printed."""
        return self._log.read_text(errors="replace")[-4000:]

    def wait(self) -> None:
        """Wait until it writes."""

        def is_ready() -> bool:
            assert self.running, self.said
            return "ready\n" in self._log.read_text(errors="replace")

        wait_for(is_ready, lambda: f"the writer: {self.said}", 120, every=0.2)

    def stop(self) -> None:
        """Have it end after the act that it is in."""
        (self.home / "stop").touch()
        assert self.process.wait(timeout=300) == 0, self.said

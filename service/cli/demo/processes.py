# SPDX-License-Identifier: Apache-2.0
"""The demo's child processes: each has a log, is monitored, and ends with the demo."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lake.errors import LakefoldError

_TAIL_LINES = 12
#: in a JVM that lives for two minutes, the optimising compiler takes half of the CPU time and saves none
_JVM = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
_PR_SET_PDEATHSIG = 1


class ChildFailed(LakefoldError):
    """A process of the demo ended unexpectedly; the text names its exit code and its log."""


class Child:
    """One process with its descendants, in a session of its own so that Ctrl-C reaches only the demo.

    With ``keep`` the process outlives the demo; otherwise the kernel ends it if the demo is killed.
    """

    def __init__(self, name: str, arguments: Sequence[str], directory: Path, *, keep: bool) -> None:
        """Start ``python -m ARGUMENTS`` in ``directory``: stdout to NAME.out, stderr to NAME.log, both appended."""
        self.name = name
        self.output = directory / f"{name}.out"
        self.log = directory / f"{name}.log"
        self._was_signalled = False
        with self.output.open("ab") as output, self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=directory,
                env={**_JVM, **os.environ},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                start_new_session=True,
                preexec_fn=None if keep else _end_with_parent,
            )

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its process group."""
        return self._process.pid

    def check_alive(self) -> None:
        """Raise ChildFailed if the process has ended."""
        code = self._process.poll()
        if code is not None:
            raise self.failure(f"ended with exit code {code}")

    def failure(self, problem: str) -> ChildFailed:
        """Print the end of the log on stderr, and return the error with the failure of this process."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        tail = "\n".join(f"    {line}" for line in text.splitlines()[-_TAIL_LINES:])
        sys.stderr.write(f"The last lines of {self.log}:\n{tail}\n")
        sys.stderr.flush()
        return ChildFailed(f"the demo's {self.name} {problem}; its log is {self.log}")

    def request_stop(self) -> None:
        """Send SIGTERM once; ``stop`` then does not repeat this first signal."""
        if not self._was_signalled and self._process.poll() is None:
            self._was_signalled = True
            self._process.send_signal(signal.SIGTERM)

    def stop(self, timeout_seconds: float = 60.0) -> int:
        """Stop the process and return its exit code.

        Sends SIGTERM, a second SIGTERM after half of ``timeout_seconds``, and finally kills the process group.
        """
        try:
            self.request_stop()
            try:
                self._process.wait(timeout_seconds / 2)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout_seconds / 2)
            # The JVM ends by itself after its Python parent.
            deadline = time.monotonic() + 10
            while self._group_lives() and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        return self._process.wait()

    def _group_lives(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

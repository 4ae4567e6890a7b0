# SPDX-License-Identifier: Apache-2.0
"""Processes with JVMs of their own, and the signals that hurt them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from chaos.clocks import Clock

_HERE = Path(__file__).parent
#: where the modules are that the writer's process imports
_IMPORTS = os.pathsep.join(str(path) for path in (_HERE.parent, _HERE.parents[1], _HERE.parents[2]))


def members(group: int) -> dict[int, tuple[str, str]]:
    """Process id → command name and state of every process in a process group, zombies left out."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError):
                text = (entry / "stat").read_text()
                name = text[text.index("(") + 1 : text.rindex(")")]
                state, _, pgrp = text[text.rindex(")") + 2 :].split()[:3]
                if int(pgrp) == group and state not in "ZX":
                    found[int(entry.name)] = (name, state)
    return found


class Victim:
    """A process, usually of Python, with the JVM that it starts: both in one group, which is of its own."""

    def __init__(self, name: str, start: Callable[[], "subprocess.Popen[Any]"]) -> None:
        self.name = name
        self._start = start
        self.process = start()
        #: when it was stopped, as the clock on the wall has it; None while it runs
        self.stopped_at: float | None = None

    @property
    def asleep(self) -> bool:
        """Whether it is stopped, wholly or in part."""
        return self.stopped_at is not None

    @property
    def running(self) -> bool:
        """Whether the process itself has not ended."""
        return self.process.poll() is None

    @property
    def gone(self) -> bool:
        """Whether nothing of its group is left: a JVM may live for seconds without its Python."""
        return not self.running and not members(self.process.pid)

    def jvms(self) -> list[int]:
        """The Java processes of its group."""
        return [pid for pid, (name, _) in members(self.process.pid).items() if name == "java"]

    def signal(self, number: int, part: str) -> bool:
        """Send a signal to ``all`` of the group, to its ``python`` or to its ``jvm``; False where there is none."""
        pids = {"all": list(members(self.process.pid)), "jvm": self.jvms()}.get(part)
        if pids is None:
            pids = [self.process.pid] if self.running else []
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return bool(pids)

    def wake(self) -> None:
        """Continue whatever of it is stopped."""
        self.stopped_at = None
        self.signal(signal.SIGCONT, "all")

    def restart(self) -> None:
        """Begin anew after the end of all of it."""
        assert self.gone, f"{self.name} is still there: {members(self.process.pid)}"
        self.stopped_at = None
        self.process = self._start()

    def end(self, patience: float) -> int | None:
        """Ask it to end, and kill what is left after ``patience`` seconds; the exit code, None for one killed."""
        self.wake()
        self.signal(signal.SIGTERM, "python")
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.kill()

    def kill(self) -> None:
        """End all of it at once, and wait for that."""
        self.signal(signal.SIGKILL, "all")
        self.process.wait(30)
        deadline = time.monotonic() + 30
        while members(self.process.pid):
            assert time.monotonic() < deadline, f"{self.name} does not die: {members(self.process.pid)}"
            self.signal(signal.SIGKILL, "all")
            time.sleep(0.05)


class WriterProcess(Victim):
    """``chaos.writer`` as a process; ``events`` are what it and those before it have said."""

    def __init__(self, home: Path, arguments: Sequence[str], clock: Clock) -> None:
        self.log, self._errors = home / "writer.log", home / "writer.err"
        #: what it takes for the time, from its next start on
        self.clock = clock
        self._arguments = list(arguments)
        self._before = 0
        super().__init__("writer", self._begin)

    @property
    def is_up(self) -> bool:
        """Whether it has started, its JVM too."""
        return self.running and self.count("up") > self._before

    def _begin(self) -> "subprocess.Popen[Any]":
        self._before = self.count("up")
        clock = self.clock.environment()
        imports = os.pathsep.join(filter(None, (clock.get("PYTHONPATH"), _IMPORTS)))
        with self.log.open("ab") as sink, self._errors.open("ab") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "chaos.writer", *self._arguments],
                env={**os.environ, **clock, "PYTHONPATH": imports},
                stdin=subprocess.PIPE,
                stdout=sink,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    @property
    def events(self) -> list[dict[str, Any]]:
        """What the writers have said. A line that a kill tore is left out."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines() if self.log.exists() else []:
            with suppress(ValueError):
                found.append(json.loads(line))
        return found

    def count(self, event: str) -> int:
        """How many events of a kind there were."""
        return sum(entry["event"] == event for entry in self.events)

    def order(self, text: str) -> None:
        """Tell it what to do next; a dead one is told nothing."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(text + "\n")
            self.process.stdin.flush()

    def obeyed(self, order: str, event: str, seconds: float) -> bool:
        """Give an order and wait until it was followed; False where the process ended first."""
        before = self.count(event)
        self.order(order)
        return self.wait_for(event, before + 1, seconds)

    def wait_for(self, event: str, count: int, seconds: float) -> bool:
        """Wait until an event has happened so often; False where the process ended first."""
        deadline = time.monotonic() + seconds
        while self.count(event) < count:
            if not self.running:
                return self.count(event) >= count
            assert time.monotonic() < deadline, f"no {event} from the writer in {seconds:.0f} s; see {self.log}"
            time.sleep(0.1)
        return True

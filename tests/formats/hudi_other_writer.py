# SPDX-License-Identifier: Apache-2.0
"""A writer, or another lakefold, in a process and a JVM of its own, which a test can stop in the middle of its work.

Run as a program it does one thing for each line of JSON on its standard input and answers each with a line:
``done``, or the causes of the failure. The first line says that its Spark is up.
"""

import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

#: a JVM that has run for so long since its lock file was seen deleted has returned from the release of the lock; the
#: states at which it is stopped without a lock last for about a second of running
_PAST_RELEASE_SECONDS = 0.1


class OtherWriters:
    """The writer's process for one test after another: a new one where the last test left it dead or at work."""

    def __init__(self, logs: Path) -> None:
        self._logs, self._numbers = logs, itertools.count()
        self._writer: OtherWriter | None = None

    def get(self) -> "OtherWriter":
        """A process that has nothing to do; it may still be starting."""
        if self._writer is None or not self._writer.is_idle:
            self.end()
            self._writer = OtherWriter(self._logs / f"{next(self._numbers)}.log")
        return self._writer

    def end(self) -> None:
        """End the process if there is one."""
        if self._writer is not None:
            self._writer.end()


class OtherWriter:
    """The writer's process. Its answers come in the order of the writes."""

    def __init__(self, log: Path, environment: Mapping[str, str] | None = None) -> None:
        """``environment`` has the variables in which the process differs from this one."""
        self._orders = self._answered = 0
        self._is_stopped = False
        tests = Path(__file__).parent
        path = os.pathsep.join([str(tests), str(tests.parent), str(tests.parent.parent)])
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                env=os.environ | {"PYTHONPATH": path} | dict(environment or {}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._answers: queue.Queue[str] = queue.Queue()
        self._is_up = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            if answers.readline() == "up\n":
                self._is_up.set()
            for line in answers:
                self._answers.put(line.strip())

    def write(self, base: Path, operation: str, low: int, high: int, options: Mapping[str, str], where: str) -> None:
        """Begin a write of the ids ``low`` ≤ id < ``high`` that satisfy ``where``, as version 9."""
        order = {"base": str(base), "operation": operation, "low": low, "high": high, "where": where}
        self._order(order | {"options": dict(options)})

    def run_plan(self, base: Path | str, plan_id: str, partitions: Sequence[str], options: Mapping[str, str]) -> None:
        """Begin, as another lakefold, a plan that makes one file of each of ``partitions``."""
        order = {"base": str(base), "plan_id": plan_id, "partitions": list(partitions)}
        self._order(order | {"options": dict(options)})

    def withdraw(self, base: Path | str, plan_id: str, options: Mapping[str, str]) -> None:
        """Begin, as another lakefold, the withdrawal of a plan."""
        self._order({"base": str(base), "withdraw": plan_id, "options": dict(options)})

    @property
    def is_idle(self) -> bool:
        """Whether it runs and has answered to everything."""
        return self._process.poll() is None and not self._is_stopped and self._orders == self._answered

    def _order(self, order: Mapping[str, object]) -> None:
        self._orders += 1
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def stop_when(self, reached: Callable[[], bool], lock: Path | None = None, seconds: float = 120) -> None:
        """Stop the process as it is when ``reached()`` is true and it does not hold ``lock``.

        It goes on in small steps and stands still while it is looked at: what a JVM that has done it before goes
        through in a few milliseconds would be over before a busy machine has looked.

        With ``lock``, this has to be so at several stops in a row, between which the process has run. Hudi's
        ``LockManager.unlock()`` deletes the lock file twice: in the provider's ``unlock()``, and again in its
        ``close()``, which does not check whose file it is. A process stopped in between would later delete the lock of
        its next holder.
        """
        assert self._is_up.wait(seconds), "the writer's Spark did not start"  # nothing to look for yet, all the time
        deadline = time.monotonic() + seconds
        # Who looks may have to wait for a core meanwhile: then the writer shall not have one either.
        self._give_way(5)
        stops, ran_before = 0, 0.0
        while True:
            os.killpg(self._process.pid, signal.SIGSTOP)
            self._is_stopped = True
            is_there = reached() and not (lock and lock.exists())
            if is_there:
                time.sleep(0.05)  # a thread may have been in a system call
                is_there = reached() and not (lock and lock.exists())
            stops = stops + 1 if is_there else 0
            if stops == 1:
                ran_before = self._cpu_seconds()
            if is_there and (lock is None or (stops > 2 and self._cpu_seconds() - ran_before >= _PAST_RELEASE_SECONDS)):
                self._give_way(0)
                return
            self.go_on()
            assert self._answers.empty(), f"the write ended before it could be stopped: {self._answers.get()}"
            assert time.monotonic() < deadline, "the write never came so far"
            time.sleep(0.002)

    def _cpu_seconds(self) -> float:
        """The time for which the process and its JVM have run on a core."""
        ticks = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # another process that has just ended
                fields = path.read_text().rpartition(")")[2].split()
                ticks += (int(fields[11]) + int(fields[12])) * (int(fields[2]) == self._process.pid)
        return ticks / os.sysconf("SC_CLK_TCK")

    def _give_way(self, nice: int) -> None:
        """Let Linux give the process's session less time than others; only root may take that back."""
        with suppress(OSError):
            Path(f"/proc/{self._process.pid}/autogroup").write_text(str(nice))

    def go_on(self) -> None:
        """Continue a stopped process."""
        os.killpg(self._process.pid, signal.SIGCONT)
        self._is_stopped = False

    def kill(self) -> None:
        """End the process and its JVM at once, stopped or not; it has ended when this returns."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def lose_python(self) -> None:
        """End the Python process of a stopped lakefold, and only that: once continued, its JVM works on."""
        self._process.kill()
        self._process.wait()

    def answer(self, seconds: float = 180) -> str:
        """How the oldest write that was not asked for yet ended."""
        answer = self._answers.get(timeout=seconds)
        self._answered += 1
        return answer

    def end(self) -> None:
        """End the process and its JVM."""
        with suppress(ProcessLookupError):
            self.kill()


def main() -> None:
    """See the module."""
    from hudi_tables import rows, write
    from hudi_writing import Table
    from support import HEAP

    from executors.spark import spark_session

    spark = spark_session({"spark.master": "local[1,4]", **HEAP, "spark.sql.shuffle.partitions": "1"})
    print("up", flush=True)
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        try:
            if "plan_id" in order:
                if os.fork() == 0:  # holds the pipe at whose end a JVM sees that its Python is gone
                    signal.pause()
                table = Table(spark, order["base"], order["options"])
                table.run(table.plan(order["plan_id"], partitions=order["partitions"]))
            elif "withdraw" in order:
                with Table(spark, order["base"], order["options"]).writer() as writer:
                    writer.withdraw(order["withdraw"], None)
            else:
                frame = rows(spark, order["low"], order["high"], version=9).where(order["where"]).coalesce(1)
                write(frame, Path(order["base"]), order["operation"], options=order["options"])
        except Exception as error:
            causes, java = [f"{type(error).__name__}: {error}".splitlines()[0]], getattr(error, "java_exception", None)
            while java is not None:
                causes.append(f"{java.getClass().getSimpleName()}: {str(java.getMessage()).splitlines()[0]}")
                java = java.getCause()
            print(" <- ".join(causes), flush=True)
        else:
            print("done", flush=True)


if __name__ == "__main__":
    main()

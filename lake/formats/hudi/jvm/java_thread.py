# SPDX-License-Identifier: Apache-2.0
"""The Java thread that runs the calls of one Python thread, and whether one of its calls may still run.

A call without an answer proves nothing. The connection may be broken while the Java process continues the call, or the
process may be stopped and continue later. The next call then uses a new connection and runs in another Java thread,
beside the unanswered call. A thread is therefore idle only if that very thread answers, and a call has ended only if
its thread or its process has ended.
"""

from typing import Any

from lake.process_identity import Process


class JavaThread:
    """The Java thread that currently executes the calling Python thread's calls. ``jvm`` is py4j's view of the JVM."""

    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm
        self.pid = int(jvm.java.lang.ProcessHandle.current().pid())
        self._id = self._current_thread_id()
        #: the Java process; None if the kernel does not show it
        self.process = Process.of(self.pid)

    def _current_thread_id(self) -> int:
        return int(self._jvm.java.lang.Thread.currentThread().getId())

    def is_idle(self) -> bool:
        """True if this thread answers, so no earlier call runs in it; call it in the thread that created the object."""
        try:
            return self._current_thread_id() == self._id
        except Exception:  # no answer
            return False

    def has_ended(self) -> bool:
        """True if this thread is verified to have ended, alone or with its process. Any Python thread may call it."""
        if self.process is not None and self.process.is_dead:
            return True
        try:
            threads = self._jvm.java.lang.management.ManagementFactory.getThreadMXBean()
            return threads.getThreadInfo(self._id) is None
        except Exception:  # no answer
            return False

    def __str__(self) -> str:
        return f"Java {self.process or f'process {self.pid}'}"

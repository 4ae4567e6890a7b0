# SPDX-License-Identifier: Apache-2.0
"""The thread of the JVM in which the calls of one Python thread run, and whether one of them may still run.

A call that got no answer proves nothing. The connection may be broken while the Java process goes on with the call, or
is only stopped and goes on later. The next call then comes in over a new connection and runs in another Java thread,
beside the one that got no answer. So a thread is free only where that very thread answers, and a call has ended only
where its thread or its process has.
"""

from typing import Any

from lake.identity import Process


class JavaThread:
    """The Java thread that executes the calls of the calling Python thread now. ``jvm`` is py4j's view of the JVM."""

    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm
        self.pid = int(jvm.java.lang.ProcessHandle.current().pid())
        self._id = self._current_thread_id()
        #: the Java process; None where the kernel does not tell
        self.process = Process.of(self.pid)

    def _current_thread_id(self) -> int:
        return int(self._jvm.java.lang.Thread.currentThread().getId())

    def is_idle(self) -> bool:
        """Whether this thread answers, so that no earlier call runs in it; asked by the Python thread that made it."""
        try:
            return self._current_thread_id() == self._id
        except Exception:  # no answer
            return False

    def has_ended(self) -> bool:
        """Whether this thread is proved to have ended, alone or with its process; any Python thread may ask."""
        if self.process is not None and self.process.is_dead:
            return True
        try:
            threads = self._jvm.java.lang.management.ManagementFactory.getThreadMXBean()
            return threads.getThreadInfo(self._id) is None
        except Exception:  # no answer
            return False

    def __str__(self) -> str:
        return f"Java {self.process or f'process {self.pid}'}"

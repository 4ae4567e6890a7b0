# SPDX-License-Identifier: Apache-2.0
"""The jobs of a Spark session with one tag: their counts, and their cancellation."""

import contextlib
import threading
from typing import Any

#: how long Spark may take to count the last tasks of a job that has ended
_LISTENER_TIMEOUT_MS = 5_000
_CANCEL_POLL_SECONDS = 0.2


def stage_ids(context: Any, tag: str) -> set[int]:
    """Return the stages of these jobs, each once: jobs that read an earlier job's shuffle share its stages."""
    tracker, found = context._jsc.sc().statusTracker(), set[int]()
    for job in tracker.getJobIdsForTag(tag):
        info = tracker.getJobInfo(job)
        found.update(info.get().stageIds() if info.isDefined() else ())
    return found


def cpu_seconds(context: Any, tag: str) -> float | None:
    """Return the CPU time of the tasks of these jobs, which have ended; None if it is not known.

    Python worker processes are not counted, nor are Spark's garbage collector and the driver's own threads.
    """
    with contextlib.suppress(Exception):  # for example if Spark has dropped a stage
        jvm = context._jsc.sc()
        jvm.listenerBus().waitUntilEmpty(_LISTENER_TIMEOUT_MS)
        store = jvm.statusStore()
        nanoseconds: int = sum(store.lastStageAttempt(stage).executorCpuTime() for stage in stage_ids(context, tag))
        return nanoseconds / 1e9
    return None


class JobCanceller:
    """Cancels the jobs of a tag once ``cancelled`` is set, within a ``with`` block.

    It does so again and again, since a job may begin right after a call.
    """

    def __init__(self, context: Any, tag: str, cancelled: threading.Event) -> None:
        self._over = threading.Event()

        def watch() -> None:
            while not self._over.wait(_CANCEL_POLL_SECONDS):
                if cancelled.is_set():
                    cancel_jobs(context, tag)

        self._thread = threading.Thread(target=watch, name=f"watch {tag}", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def cancel_jobs(context: Any, tag: str) -> None:
    """Cancel the jobs of a tag. Does nothing if the JVM is dead."""
    with contextlib.suppress(Exception):  # any error that py4j raises for a dead JVM
        context.cancelJobsWithTag(tag)

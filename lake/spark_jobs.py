# SPDX-License-Identifier: Apache-2.0
"""Counts that a Spark session has for the jobs with one tag."""

import contextlib
from typing import Any

#: how long Spark may take to count the last tasks of a job that has ended
_LISTENER_TIMEOUT_MS = 5_000


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

# SPDX-License-Identifier: Apache-2.0
"""What a Spark session counts of the jobs that have one tag."""

import contextlib
from typing import Any

#: how long Spark may take to count the last tasks of a job that has ended
_LISTENER_TIMEOUT_MS = 5_000


def stage_ids(context: Any, tag: str) -> set[int]:
    """The stages of these jobs, each once: a job that needs what an earlier one shuffled names its stages, too."""
    tracker, found = context._jsc.sc().statusTracker(), set[int]()
    for job in tracker.getJobIdsForTag(tag):
        info = tracker.getJobInfo(job)
        found.update(info.get().stageIds() if info.isDefined() else ())
    return found


def cpu_seconds(context: Any, tag: str) -> float | None:
    """CPU time of the tasks of these jobs, which have ended, without that of Python beside them; None if not known.

    The garbage collector and the driver's own threads are not counted by Spark.
    """
    with contextlib.suppress(Exception):  # as where it has forgotten a stage
        jvm = context._jsc.sc()
        jvm.listenerBus().waitUntilEmpty(_LISTENER_TIMEOUT_MS)
        store = jvm.statusStore()
        nanoseconds: int = sum(store.lastStageAttempt(stage).executorCpuTime() for stage in stage_ids(context, tag))
        return nanoseconds / 1e9
    return None

# SPDX-License-Identifier: Apache-2.0
"""The backends that rewrite groups, and which groups together; this process is one, Spark's tasks another."""

import heapq
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Protocol

from executors.engines.concat import rewrite_task
from lake.engines import EngineOutput, RewriteTask
from lake.errors import CancelRequested, LakefoldError
from lake.plan import RewriteOptions

GroupResult = tuple[int, list[EngineOutput] | LakefoldError, float]
"""A group with what was written for it, or why nothing was, and the CPU seconds that took."""

#: a task of less would cost more to start than to do
_BYTES_A_TASK = 128 << 20
#: what opening a file costs, as bytes that are rewritten meanwhile
_FILE_OPEN_COST_BYTES = 256 << 10


class RewriteBackend(Protocol):
    """What rewrites groups. ``ui`` is where its jobs can be looked at."""

    ui: str | None

    def run(
        self, tasks: Sequence[RewriteTask], options: RewriteOptions, cancelled: threading.Event
    ) -> Iterator[GroupResult]:
        """Every group as it ends; once ``cancelled`` some may not be told. Raises Transient where the backend fails."""


class InProcessBackend:
    """This process, a thread a group."""

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or os.cpu_count() or 1
        self.ui: str | None = None

    def run(
        self, tasks: Sequence[RewriteTask], options: RewriteOptions, cancelled: threading.Event
    ) -> Iterator[GroupResult]:
        """See ``RewriteBackend``."""
        over = threading.Event()

        def check() -> None:
            if cancelled.is_set() or over.is_set():
                raise CancelRequested("cancelled during the rewrite")

        def rewritten(task: RewriteTask) -> GroupResult:
            began = time.thread_time()  # pyarrow reads and writes for us in the thread that asks
            ended: list[EngineOutput] | LakefoldError
            try:
                check()
                ended = rewrite_task(task, options, check)
            except LakefoldError as error:
                ended = error
            return task.group, ended, time.thread_time() - began

        with ThreadPoolExecutor(self._threads, "arrow") as pool:
            try:
                for future in as_completed([pool.submit(rewritten, task) for task in tasks]):
                    yield future.result()
            finally:
                over.set()


def bundle_tasks(tasks: Sequence[RewriteTask], parallelism: int) -> list[list[RewriteTask]]:
    """``tasks`` in bundles that take about equally long, at least one for each that runs ``at_once``."""
    costs = [task.bytes + len(task.inputs) * _FILE_OPEN_COST_BYTES for task in tasks]
    count = min(len(tasks), max(parallelism, -(-sum(costs) // _BYTES_A_TASK)))
    found: list[list[RewriteTask]] = [[] for _ in range(count)]
    heap = [(0, index) for index in range(count)]
    for cost, task in sorted(zip(costs, tasks, strict=True), key=lambda pair: -pair[0]):
        spent, index = heap[0]
        found[index].append(task)
        heapq.heapreplace(heap, (spent + cost, index))
    return found

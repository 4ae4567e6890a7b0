# SPDX-License-Identifier: Apache-2.0
"""The backends on which groups are rewritten: this process, or, in ``spark_tasks``, tasks of a Spark session."""

import heapq
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Protocol, TypeVar

from lake.engines import EngineOutput, RewriteTask
from lake.errors import CancelRequested, LakefoldError
from lake.plan import RewriteOptions

GroupResult = tuple[int, list[EngineOutput] | LakefoldError, float]
"""A group, its outputs or the error that prevented them, and the CPU seconds used."""

TaskRewriter = Callable[[RewriteTask, RewriteOptions, Callable[[], None]], list[EngineOutput]]
"""Writes the outputs of a group. Between parts it calls its last argument, which may raise to end the work.

Raises Conflict with the skipped group if an input can't be read, Transient if storage fails, Rejected if a value can't
be written.
"""

#: the bytes of a task where there are enough groups: a smaller task would cost more to start than to run
_BYTES_A_TASK = 256 << 20
#: the cost of opening a file, as the bytes that could be rewritten meanwhile
_FILE_OPEN_COST_BYTES = 256 << 10


T = TypeVar("T")
R = TypeVar("R")


class RewriteBackend(Protocol):
    """Runs the rewrites of groups. ``ui`` is the address at which its jobs can be watched."""

    ui: str | None

    def run(
        self,
        tasks: Sequence[RewriteTask],
        options: RewriteOptions,
        cancelled: threading.Event,
        rewriter: TaskRewriter,
    ) -> Iterator[GroupResult]:
        """Yield each group as it ends. Raises Transient if the run fails.

        Once ``cancelled``, the other groups end with CancelRequested, or CancelRequested is raised.
        """

    def map(self, function: Callable[[T], R], items: Sequence[T], *, files: int) -> Sequence[R]:
        """Return the result of ``function`` for each of ``items``, for which it opens ``files`` files in all.

        ``function`` is of a module that tasks can import, or a ``partial`` of such a function. Raises Transient if the
        run fails.
        """


class InProcessBackend:
    """Rewrites groups in this process, each in a thread."""

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or os.cpu_count() or 1
        self.ui: str | None = None

    def run(
        self,
        tasks: Sequence[RewriteTask],
        options: RewriteOptions,
        cancelled: threading.Event,
        rewriter: TaskRewriter,
    ) -> Iterator[GroupResult]:
        """See ``RewriteBackend``."""
        run_ended = threading.Event()

        def check() -> None:
            if cancelled.is_set() or run_ended.is_set():
                raise CancelRequested("cancelled during the rewrite")

        def rewritten(task: RewriteTask) -> GroupResult:
            began = time.thread_time()  # pyarrow reads and writes in the calling thread
            ended: list[EngineOutput] | LakefoldError
            try:
                check()
                ended = rewriter(task, options, check)
            except LakefoldError as error:
                ended = error
            return task.group, ended, time.thread_time() - began

        with ThreadPoolExecutor(self._threads, "rewrite") as pool:
            try:
                for future in as_completed([pool.submit(rewritten, task) for task in tasks]):
                    yield future.result()
            finally:
                run_ended.set()

    def map(self, function: Callable[[T], R], items: Sequence[T], *, files: int) -> Sequence[R]:
        """See ``RewriteBackend``."""
        return [function(item) for item in items]


def bundle_tasks(tasks: Sequence[RewriteTask], parallelism: int) -> list[list[RewriteTask]]:
    """Return ``tasks`` in bundles of about equal duration, at least ``parallelism`` if there are enough tasks."""
    costs = [task.bytes + len(task.inputs) * _FILE_OPEN_COST_BYTES for task in tasks]
    count = min(len(tasks), max(parallelism, -(-sum(costs) // _BYTES_A_TASK)))
    found: list[list[RewriteTask]] = [[] for _ in range(count)]
    heap = [(0, index) for index in range(count)]
    for cost, task in sorted(zip(costs, tasks, strict=True), key=lambda pair: -pair[0]):
        spent, index = heap[0]
        found[index].append(task)
        heapq.heapreplace(heap, (spent + cost, index))
    return found

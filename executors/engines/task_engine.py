# SPDX-License-Identifier: Apache-2.0
"""Engines that rewrite each group in one call, which a backend runs in this process or in a task of Spark."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from executors.engines.backends import RewriteBackend, TaskRewriter
from lake.engines import EngineOutput, RewriteTask
from lake.errors import CancelRequested, Conflict, Transient, first_line
from lake.plan import RewriteOptions, RewriteProgress, SkippedGroup
from lake.storage.filesystems import filesystem_of

log = logging.getLogger(__name__)

Obstacle = Callable[[RewriteOptions, RewriteTask], str | None]
"""Returns why a group can't be rewritten, judging by its footers; None if it can."""


class TaskEngine:
    """Rewrites groups by ``rewriter``; ``obstacle`` says why a group can't be rewritten.

    Both are module-level functions, so that Spark's executors can import them. ``backend`` runs the work.
    """

    def __init__(self, backend: RewriteBackend, rewriter: TaskRewriter, obstacle: Obstacle) -> None:
        self._backend, self._rewriter, self._obstacle = backend, rewriter, obstacle

    def obstacle_by_size(self, task: RewriteTask, options: RewriteOptions) -> str | None:
        """Return a reason, found without reading footers, why the group can't be rewritten; None if there is none."""
        return None

    def unsupported_reason(self, task: RewriteTask, options: RewriteOptions) -> str | None:
        """See ``lake.engines.RewriteEngine``. Reads the footers of all inputs, and skips inputs that can't be read."""
        return self.obstacle_by_size(task, options) or self._obstacle(options, task)

    def unsupported_reasons(self, tasks: Sequence[RewriteTask], options: RewriteOptions) -> Sequence[str | None]:
        """See ``lake.engines.ChecksManyTasks``."""
        found = [self.obstacle_by_size(task, options) for task in tasks]
        left = [index for index, reason in enumerate(found) if reason is None]
        files = sum(len(tasks[index].inputs) for index in left)
        obstacle, checked = partial(self._obstacle, options), [tasks[index] for index in left]
        try:
            reasons = self._backend.map(obstacle, checked, files=files)
        except Transient as error:
            log.warning("footers can't be read in other processes, so this process reads them: %s", error)
            reasons = list(map(obstacle, checked))
        for index, reason in zip(left, reasons, strict=True):
            found[index] = reason
        return found

    def rewrite(
        self,
        tasks: Sequence[RewriteTask],
        options: RewriteOptions,
        report: Callable[[RewriteProgress], None],
        cancelled: threading.Event,
    ) -> Iterator[EngineOutput]:
        """See ``lake.engines.RewriteEngine``. Groups with inputs that can't be read are reported together."""
        by_group = {task.group: task for task in tasks}
        left_out: list[SkippedGroup] = []
        total, bytes_done, rows_done, cpu = sum(task.bytes for task in tasks), 0, 0, 0.0
        for group, ended, seconds in self._backend.run(tasks, options, cancelled, self._rewriter):
            cpu += seconds
            if isinstance(ended, Conflict) and len(ended.args) > 1:
                left_out += ended.args[1]
                continue
            if isinstance(ended, Exception):
                raise ended
            bytes_done += by_group[group].bytes
            rows_done += sum(file.rows for file in ended)
            report(
                RewriteProgress(
                    bytes_done=bytes_done,
                    bytes_total=total,
                    rows_done=rows_done,
                    spark_ui=self._backend.ui,
                    cpu_seconds=cpu,
                )
            )
            if by_group[group].additions is not None:
                yield from ended
                continue
            # Without the rows that the task omits, there may be fewer files than planned.
            is_complete = by_group[group].omissions is None
            for file, path in zip(ended, by_group[group].outputs, strict=is_complete):
                yield _in_place(file, path)
        if cancelled.is_set():
            raise CancelRequested("cancelled during the rewrite")
        if left_out:
            raise Conflict(left_out[0].reason, tuple(left_out))


def _in_place(file: EngineOutput, path: str) -> EngineOutput:
    """Rename an output to its ``path``, once this process has the result of the attempt that wrote it."""
    if file.path == path:
        return file
    filesystem, fs_path = filesystem_of(path)
    try:
        filesystem.move(filesystem_of(file.path)[1], fs_path)
    except OSError as error:
        raise Transient(f"{path} can't be written: {first_line(error)}") from error
    return replace(file, path=path)

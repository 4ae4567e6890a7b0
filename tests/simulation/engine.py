# SPDX-License-Identifier: Apache-2.0
"""A trivial engine, which writes the rows of a group's files into one file, in memory."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from lake.engines import EngineOutput, RewriteTask
from lake.errors import Conflict
from lake.plan import RewriteOptions, RewriteProgress, SkippedGroup
from simulation.table import File

if TYPE_CHECKING:
    from simulation.world import World


class CopyRows:
    """Implements ``lake.engines.RewriteEngine``; a full path is a slash, the name of the table, and the path in it."""

    name = "memory"

    def __init__(self, world: "World") -> None:
        self.world = world

    def unsupported_reason(self, task: RewriteTask, options: RewriteOptions) -> str | None:
        """See the port."""
        return None

    def rewrite(
        self,
        tasks: Sequence[RewriteTask],
        options: RewriteOptions,
        report: Callable[[RewriteProgress], None],
        cancelled: threading.Event,
    ) -> Iterator[EngineOutput]:
        """See the port."""
        for task in tasks:
            rows: dict[int, int | None] = {}
            for path in task.inputs:
                rows |= self._read(task, path).rows
            (output,) = task.outputs
            rows = self.world.worked_on(rows)
            _, name, path = output.split("/", 2)
            self.world.known_as(name).create(path, rows)
            yield EngineOutput(group=task.group, path=output, bytes=len(rows), rows=len(rows))

    def _read(self, task: RewriteTask, full: str) -> File:
        _, name, path = full.split("/", 2)
        file = self.world.known_as(name).files.get(path)
        if file is None or file.bytes != file.written:
            bad = SkippedGroup(group=task.group, reason=f"{full} can't be read", quarantine=(full,))
            raise Conflict(bad.reason, (bad,))
        return file

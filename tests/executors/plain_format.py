# SPDX-License-Identifier: Apache-2.0
"""The toy format without its timeline: nothing in a table tells what is staged, as in a Hive catalog, Iceberg or Delta.

A version's files lie under a directory of their own. Only the journal in the database knows of it before the commit.
"""

import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from toy_format import ToyFormat, ToyWriter, base, locked, manifest, manifests, publish
from toy_format import _commit as commit_of

from lake.engines import Engine, Task, Written, choose, notes
from lake.errors import Conflict
from lake.model import TableRef
from lake.plan import Commit, LeftOut, OutputFile, Plan, Progress, RewriteOptions, Staged
from lake.ports import Capability, Prepared, Report, Rewrite, SparkProvider


class PlainFormat(ToyFormat):
    """Observes toy tables without looking at any timeline; adds ``lake.optional.FindsStaged``."""

    capabilities = frozenset({Capability.MERGED_READS})

    services = ()
    pending: Any = None
    unfinished: Any = None

    def left_of(self, table: TableRef, staged: Collection[Staged]) -> Collection[str]:
        done = {m.get("instant") for m in manifests(table)}
        there = {path.name for path in base(table).glob("*/*") if path.is_dir()}
        return {one.token for one in staged if one.token in there - done}

    def writer(self, table: TableRef, spark: SparkProvider, engines: Sequence[Engine] = ()) -> "PlainWriter":
        self.hook("open")
        return PlainWriter(self, table, engines)


class CopyRows:
    """An engine that reads Parquet files and writes their rows into one; ``refuses`` are paths that it can't read."""

    def __init__(self, name: str = "arrow", refuses: Collection[str] = ()) -> None:
        self.name, self.refuses = name, refuses

    def obstacle(self, task: Task, options: RewriteOptions) -> str | None:
        return next((f"{path} is not for it" for path in task.inputs if path.endswith(tuple(self.refuses))), None)

    def rewrite(
        self,
        tasks: Sequence[Task],
        options: RewriteOptions,
        report: Callable[[Progress], None],
        cancelled: threading.Event,
    ) -> Iterator[Written]:
        for task in tasks:
            rows = pa.concat_tables([pq.read_table(path, partitioning=None) for path in task.inputs])
            pq.write_table(rows, task.outputs[0])
            size = Path(task.outputs[0]).stat().st_size
            yield Written(group=task.group, path=task.outputs[0], bytes=size, rows=rows.num_rows)


class PlainWriter(ToyWriter):
    """Writes each attempt's files into directories of its own and makes nothing known before the commit."""

    maintain: Any = None
    roll_back: Any = None

    def __init__(self, format_: ToyFormat, table: TableRef, engines: Sequence[Engine] = ()) -> None:
        super().__init__(format_, table)
        self._engines = engines

    def prepare(self, plan: Plan, epoch: int) -> Prepared:
        self._format.hook("prepare")
        live = {item["path"] for item in manifest(self._table)["files"]}
        left_out = [
            LeftOut(group=number, reason="an input is gone")
            for number, group in enumerate(plan.groups)
            if any(item.path not in live for item in group.slices)
        ]
        groups = tuple(set(range(len(plan.groups))) - {item.group for item in left_out})
        if not groups:
            raise Conflict("no group is left", tuple(left_out))
        token = f"{time.time_ns()}e{epoch}"
        self.journal(Staged(token=token, paths=tuple(f"{name}/{token}/" for name in plan.partitions)))
        for name in plan.partitions:
            (self._base / name / token).mkdir()
        prepared = Prepared(plan=plan, epoch=epoch, instant=token, groups=groups, left_out=tuple(left_out))
        if not self._engines:
            return prepared
        choices = choose(self._tasks(prepared), self._engines, plan.options, self._table.name)
        return replace(prepared, notes=notes(choices), evidence=choices)

    def _tasks(self, prepared: Prepared) -> list[Task]:
        return [
            Task(
                group=index,
                inputs=tuple(str(self._base / str(item.path)) for item in group.slices),
                outputs=(str(self._base / self.path_of(group.partition, prepared.instant, number)),),
                bytes=group.bytes,
            )
            for number, index in enumerate(prepared.groups)
            for group in [prepared.plan.groups[index]]
        ]

    def rewrite(self, prepared: Prepared, report: Report) -> Rewrite:
        if prepared.evidence is None:
            return super().rewrite(prepared, report)
        choices: Any = prepared.evidence
        outputs = []
        for task in self._tasks(prepared):
            engine = choices[task.group].engine
            for file in engine.rewrite([task], prepared.plan.options, report, self._cancelled):
                path = str(Path(file.path).relative_to(self._base))
                partition = prepared.plan.groups[file.group].partition
                outputs.append(OutputFile(partition=partition, path=path, bytes=file.bytes, rows=file.rows))
        return Rewrite(prepared=prepared, outputs=tuple(outputs))

    def path_of(self, partition: str, token: str, number: int) -> str:
        return f"{partition}/{token}/{number}.parquet"

    def commit(self, rewrite: Rewrite) -> Commit:
        self._format.hook("commit")
        with locked(self._table):
            if not all((self._base / output.path).exists() for output in rewrite.outputs):
                raise Conflict(f"what was written of {rewrite.prepared.instant} was taken back")
            document: dict[str, Any] = self.replaced(rewrite)
            publish(self._table, document)
            self._format.hook("landed")
        return commit_of(document)

    def discard(
        self,
        plan_id: str,
        instants: Collection[str] | None,
        *,
        staged: Collection[Staged] = (),
        adopted: str | None = None,
        epoch: int | None = None,
    ) -> int:
        self._format.hook("discard")
        with locked(self._table):
            left = self._format.left_of(self._table, staged)  # type: ignore[attr-defined]
            for one in staged:
                for path in one.paths if one.token in left else ():
                    shutil.rmtree(self._base / path, ignore_errors=True)
        return len(left)

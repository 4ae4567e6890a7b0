# SPDX-License-Identifier: Apache-2.0
"""The toy format without its timeline: nothing in a table tells what is staged, as in a Hive catalog, Iceberg or Delta.

A version's files lie under a directory of their own. Only the journal in the database knows of it before the commit.
"""

import shutil
import time
from collections.abc import Collection
from typing import Any

from toy_format import ToyFormat, ToyWriter, base, locked, manifest, manifests, publish
from toy_format import _commit as commit_of

from lake.errors import Conflict
from lake.model import TableRef
from lake.plan import Commit, LeftOut, Plan, Staged
from lake.ports import Capability, Prepared, Rewrite, SparkProvider


class PlainFormat(ToyFormat):
    """Observes toy tables without looking at any timeline; adds ``lake.ports.FindsStaged``."""

    capabilities = frozenset({Capability.MERGED_READS})

    services = ()
    pending: Any = None
    unfinished: Any = None

    def left_of(self, table: TableRef, staged: Collection[Staged]) -> Collection[str]:
        done = {m.get("instant") for m in manifests(table)}
        there = {path.name for path in base(table).glob("*/*") if path.is_dir()}
        return {one.token for one in staged if one.token in there - done}

    def writer(self, table: TableRef, spark: SparkProvider) -> "PlainWriter":
        self.hook("open")
        return PlainWriter(self, table)


class PlainWriter(ToyWriter):
    """Writes each attempt's files into directories of its own and makes nothing known before the commit."""

    maintain: Any = None
    roll_back: Any = None

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
        return Prepared(plan=plan, epoch=epoch, instant=token, groups=groups, left_out=tuple(left_out))

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

# SPDX-License-Identifier: Apache-2.0
"""A format with a timeline and a lock: versions as numbered manifests, and its own rewriting client, as Hudi has.

``manifests/N.json`` lists the live files after N commits. Linking a manifest to this name is the atomic commit; it
fails if another process was faster. ``pending/INSTANT.json`` publishes a plan, whose files have the instant in their
names. A lock file serializes writers, as a table's lock does. A log file is Parquet too: its rows replace the rows of
the base file with the same ``id``, and a row with a null ``value`` is a deletion.
"""

import fcntl
import json
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from contract.plans import plan_all

from lake.capabilities import PendingAction, capabilities_of
from lake.engines import RewriteEngine
from lake.errors import Conflict, Transient
from lake.model import FileSlice, TableRef
from lake.plan import Commit, OutputFile, Plan, PlanKind, RewriteProgress, SkippedGroup, StagedWork, SupersededVersion
from lake.ports import Capability, PreparedPlan, ProgressCallback, Rewrite, SparkProvider
from toys.engine import divided
from toys.files import FilesFormat, FilesWriter, Item, base, commit_of, existing, read, superseded_by

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
SCHEDULED = {"plan_id": None, "epoch": 0, "scheduled": True}


class ToyWriter(FilesWriter):
    """Changes one such table, with ``ReadsMerged``, ``RunsTableServices``, ``RollsBack`` and ``AbortsAdopted``.

    It calls ``fence`` only before a deletion, so that tests can continue a suspended writer anywhere.
    """

    def prepare(self, plan: Plan, epoch: int) -> PreparedPlan:
        self._format.hook("prepare")
        with locked(self._table):
            if plan.plan_id in self._format.pending_instants(self._table).values():
                raise Transient("an earlier instant of this plan is still pending")
            groups, left_out = self.still_there(plan)
            instant = plan.adopted_instant or f"{time.time_ns()}e{epoch}"
            pending = self._base / "pending" / f"{instant}.json"
            if plan.adopted_instant is not None and not pending.exists():
                raise Conflict(f"instant {instant} is no longer pending")
            self.journal(StagedWork(token=instant))
            document = SCHEDULED if plan.adopted_instant is not None else {"plan_id": plan.plan_id}
            pending.write_text(json.dumps({**document, "epoch": epoch}))
        return PreparedPlan(
            plan=plan,
            epoch=epoch,
            instant=instant,
            live_groups=groups,
            skipped=left_out,
            notes=("engine: a toy",),
            volatile_columns=frozenset({"_file"}),
        )

    def rewrite(self, prepared: PreparedPlan, report: ProgressCallback) -> Rewrite:
        outputs, done = [], 0
        for index in prepared.live_groups:
            group = prepared.plan.groups[index]
            self._format.hook("rewrite")
            if self._cancelled.is_set():
                raise Transient("the job was cancelled")
            tables = []
            for item in group.slices:
                try:
                    tables.append(self._read(item))
                except (pa.ArrowException, OSError) as error:
                    bad = SkippedGroup(group=index, reason=f"{item.path}: {error}", quarantine=(str(item.path),))
                    raise Conflict(f"{item.path} can't be read", (bad,)) from error
                done += item.total_bytes
                report(RewriteProgress(bytes_done=done, bytes_total=prepared.plan.bytes))
            rows = pa.concat_tables(tables, promote_options="default")
            for path, part in zip(
                self.paths_of(prepared.plan, index, prepared.instant),
                divided(rows.drop_columns(["_file"]), group.output_files),
                strict=True,
            ):
                named = part.append_column("_file", pa.array([path] * part.num_rows))
                defect = self.defect()
                named = named if defect is None else defect(named)
                pq.write_table(named, self._base / path)
                size = (self._base / path).stat().st_size
                outputs.append(OutputFile(partition=group.partition, path=path, bytes=size, rows=named.num_rows))
        self._format.hook("rewritten")
        return Rewrite(prepared=prepared, outputs=tuple(outputs))

    def path_of(self, partition: str, token: str, number: int) -> str:
        return f"{partition}/{token}-{number}.parquet"

    def read_inputs(self, prepared: PreparedPlan, partition: str, *, evolved: bool = False) -> Iterator[pa.RecordBatch]:
        for index in prepared.live_groups:
            if prepared.plan.groups[index].partition == partition:
                for item in prepared.plan.groups[index].slices:
                    yield from self._read(item).to_batches()

    def commit(self, rewrite: Rewrite) -> Commit:
        self._format.hook("commit")
        prepared = rewrite.prepared
        with locked(self._table):
            pending = self._base / "pending" / f"{prepared.instant}.json"
            if not pending.exists():
                raise Conflict(f"instant {prepared.instant} was withdrawn")
            self.look_at_outputs(rewrite)
            document = self.replaced(rewrite)
            publish(self._table, document)
            self._format.hook("landed")
            pending.unlink()
        return commit_of(document)

    def replaced(self, rewrite: Rewrite) -> dict[str, Any]:
        """Return the next manifest, in which the new files replace the rewritten ones. Call it under the lock."""
        prepared = rewrite.prepared
        now = manifest(self._table)
        live = {item["path"]: item for item in now["files"]}
        replaced = [item for index in prepared.live_groups for item in prepared.plan.groups[index].slices]
        if any(s.path not in live or tuple(live[s.path]["logs"]) != s.log_files for s in replaced):
            raise Conflict("a writer changed an input before the commit")
        gone = {s.path for s in replaced}
        new = [{**asdict(o), "file_id": o.path, "logs": [], "log_bytes": 0} for o in rewrite.outputs]
        return {
            "number": now["number"] + 1,
            "plan_id": prepared.plan.plan_id,
            "epoch": prepared.epoch,
            "instant": prepared.instant,
            "files": [item for item in now["files"] if item["path"] not in gone] + new,
            "outputs": [asdict(o) for o in rewrite.outputs],
            "superseded": superseded_by(self._table, [live[path] for path in gone], prepared.instant),
        }

    def withdraw(
        self,
        plan_id: str,
        instants: Collection[str] | None,
        *,
        staged: Collection[StagedWork] = (),
        epoch: int | None = None,
    ) -> int:
        self._format.hook("discard")
        withdrawn = 0
        with locked(self._table):
            completed = {m.get("instant") for m in manifests(self._table)}
            for instant, owner in self._format.pending_instants(self._table).items():
                if owner != plan_id or (instants is not None and instant not in instants):
                    continue
                if instant not in completed:
                    for path in self._base.rglob(f"{instant}-*.parquet"):
                        path.unlink()
                    withdrawn += 1
                (self._base / "pending" / f"{instant}.json").unlink()
        return withdrawn

    def abort_adopted(self, instant: str, plan_id: str, *, epoch: int | None = None) -> bool:
        self._format.hook("discard")
        with locked(self._table):
            scheduled = self._base / "pending" / f"{instant}.json"
            if not scheduled.exists() or instant in {m.get("instant") for m in manifests(self._table)}:
                return False
            for path in self._base.rglob(f"{instant}-*.parquet"):
                path.unlink()
            begun = json.loads(scheduled.read_text())["epoch"]
            scheduled.write_text(json.dumps(SCHEDULED))
            return bool(begun)

    def maintain(self, wanted: Collection[str], retained: Sequence[SupersededVersion]) -> Sequence[str]:
        self._format.hook("maintain")
        return [f"{name}, keeping {len(retained)}" for name in wanted]

    def roll_back(self, instant: str) -> str:
        (self._base / "pending" / f"{instant}.json").unlink()
        return f"{instant} is rolled back"

    def _read(self, item: FileSlice) -> pa.Table:
        path = str(item.path)
        rows = read(self._base / path)
        for log in item.log_files:
            changes = read((self._base / path).with_name(log))
            rows = rows.filter(pc.invert(pc.is_in(rows["id"], changes["id"].combine_chunks())))
            rows = pa.concat_tables([rows, changes.filter(pc.is_valid(changes["value"]))])
        return rows


class ToyFormat(FilesFormat):
    """Observes such tables."""

    name = "toy"
    capabilities = capabilities_of(ToyWriter, Capability.COMPACTION, Capability.SAVEPOINTS, Capability.TABLE_LOCK)
    services = ("clean", "archive", "rollback")

    def live(self, table: TableRef) -> list[Item]:
        files: list[Item] = manifest(table)["files"]
        return files

    def newest(self, table: TableRef) -> str:
        return str(manifest(table)["number"])

    def commits(self, table: TableRef) -> list[Commit]:
        return [commit_of(m) for m in manifests(table) if m.get("plan_id")]

    def known_files(self, table: TableRef) -> Collection[str]:
        pending = self.pending_instants(table)
        there = (str(path.relative_to(base(table))) for path in base(table).rglob("*.parquet"))
        return [path for path in there if Path(path).name.startswith(tuple(pending) or "\0")]

    def pending_instants(self, table: TableRef) -> Mapping[str, str]:
        self.hook("pending")
        return {u.instant: u.plan_id for u in self.pending_actions(table) if u.plan_id is not None}

    def pending_actions(self, table: TableRef) -> Sequence[PendingAction]:
        return [
            PendingAction(
                instant=path.stem,
                action="rewrite",
                is_begun=bool(document.get("epoch")),
                since=FIRST,
                last_activity=FIRST,
                is_alive=False,
                plan_id=document["plan_id"],
                kind=PlanKind.CLUSTERING if document.get("scheduled") or document["plan_id"] else None,
                groups=plan_all(self, table, "").groups if document.get("scheduled") else (),
            )
            for path in sorted((base(table) / "pending").iterdir())
            for document in [json.loads(path.read_text())]
        ]

    def writer(self, table: TableRef, spark: SparkProvider, engines: Sequence[RewriteEngine] = ()) -> "ToyWriter":
        self.hook("open")
        return ToyWriter(self, table, engines)


@contextmanager
def locked(table: TableRef) -> Iterator[None]:
    """Hold the table's lock. Only one thread of one process has it; the kernel frees it when the process dies."""
    with (base(table) / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def manifests(table: TableRef) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((existing(table) / "manifests").glob("*.json"))]


def manifest(table: TableRef) -> dict[str, Any]:
    return json.loads(max((existing(table) / "manifests").glob("*.json")).read_text())


def publish(table: TableRef, document: Mapping[str, Any]) -> None:
    """Link the next manifest to its name. Raises Conflict if the number is taken, and never CommitUnknown."""
    target = base(table) / "manifests" / f"{document['number']:08d}.json"
    scratch = target.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
    scratch.write_text(json.dumps(document))
    try:
        os.link(scratch, target)
    except FileExistsError as error:
        raise Conflict(f"commit {document['number']} was taken") from error
    finally:
        scratch.unlink()

# SPDX-License-Identifier: Apache-2.0
"""A table format small enough to read at once: Parquet files in directories, versions as numbered manifests.

``manifests/N.json`` lists the live files after N commits; linking it into place is the atomic commit and fails if
somebody was faster. ``pending/INSTANT.json`` makes a plan known; its files carry the instant in their names. One
lock file serializes writers, as a table's lock does. A log file is Parquet too: its rows replace those of the base
file with the same ``id``, and a null ``value`` deletes.
"""

import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lake.engines import Engine
from lake.errors import Conflict, Transient
from lake.model import SLICES_SCHEMA, FileSlice, Snapshot, TableRef
from lake.optional import Unfinished
from lake.plan import (
    ClusteringGroup,
    Commit,
    LeftOut,
    OutputFile,
    Plan,
    PlanKind,
    Progress,
    ReceiptLevel,
    RewriteOptions,
    Staged,
    SupersededVersion,
)
from lake.ports import (
    Capability,
    Deletion,
    Journal,
    Prepared,
    Report,
    Rewrite,
    SessionNeeds,
    SparkProvider,
    Verification,
)

Hook = Callable[[], None]
FIRST = datetime(2026, 1, 1, tzinfo=UTC)
SCHEDULED = {"plan_id": None, "epoch": 0, "scheduled": True}


class ToyFormat:
    """Observes toy tables. ``hooks`` run at named places of a writer and may raise; ``defect`` spoils new files."""

    name = "toy"
    volatile_columns = frozenset({"_file"})
    capabilities = frozenset(
        {
            Capability.COMPACTION, Capability.ADOPTION, Capability.TABLE_SERVICES, Capability.ROLL_BACK,
            Capability.SAVEPOINTS, Capability.MERGED_READS, Capability.TABLE_LOCK,
        }
    )  # fmt: skip

    services = ("clean", "archive", "rollback")
    session = SessionNeeds()

    def __init__(self) -> None:
        self.hooks: dict[str, Hook] = {}
        self.defect: Callable[[pa.Table], pa.Table] = lambda table: table
        self.cancelled = threading.Event()
        self.commit_takes = timedelta()

    def hook(self, name: str) -> None:
        self.hooks.get(name, lambda: None)()

    def discover(self, location: str) -> Iterator[TableRef]:
        yield TableRef(name=Path(location).name, format=self.name, location=location)

    def check(self, table: TableRef) -> None:
        base(table).stat()

    def snapshot(self, table: TableRef, partitions: Collection[str] | None = None) -> Snapshot:
        rows = [
            {**item, "log_files": item["logs"], "modified_at": written_at(item), "busy_reason": None}
            for item in manifest(table)["files"]
            if partitions is None or item["partition"] in partitions
        ]
        slices = pa.Table.from_pylist([{n: row.get(n) for n in SLICES_SCHEMA.names} for row in rows], SLICES_SCHEMA)
        return Snapshot(table=table, instant=str(manifest(table)["number"]), taken_at=datetime.now(UTC), slices=slices)

    def committed(self, table: TableRef, plan_id: str) -> Commit | None:
        self.hook("committed")
        found = [m for m in manifests(table) if m.get("plan_id") == plan_id]
        assert len(found) <= 1, f"{len(found)} commits name plan {plan_id}"
        return _commit(found[0]) if found else None

    def landed(self, table: TableRef, plan_ids: Collection[str]) -> Mapping[str, Commit]:
        self.hook("landed_late")
        return {m["plan_id"]: _commit(m) for m in manifests(table) if m.get("plan_id") in plan_ids}

    def pending(self, table: TableRef) -> Mapping[str, str]:
        self.hook("pending")
        return {u.instant: u.plan_id for u in self.unfinished(table) if u.plan_id is not None}

    def unfinished(self, table: TableRef) -> Sequence[Unfinished]:
        return [
            Unfinished(
                instant=path.stem, action="rewrite", begun=bool(document.get("epoch")), since=FIRST, last_sign=FIRST,
                alive=False, plan_id=document["plan_id"],
                kind=PlanKind.CLUSTERING if document.get("scheduled") or document["plan_id"] else None,
                groups=plan(table, "").groups if document.get("scheduled") else (),
            )
            for path in sorted((base(table) / "pending").iterdir())
            for document in [json.loads(path.read_text())]
        ]  # fmt: skip

    def superseded_deletable(self, table: TableRef, versions: Sequence[SupersededVersion]) -> Mapping[str, str | None]:
        self.hook("superseded_deletable")
        live = {item["path"] for item in manifest(table)["files"]}
        saved = base(table) / "savepoint"
        kept = set(saved.read_text().split()) if saved.exists() else set()
        return {
            v.path: "live again" if v.path in live else "kept by a savepoint" if v.path in kept else None
            for v in versions
        }

    def superseded_closed(self, table: TableRef, versions: Sequence[SupersededVersion]) -> Mapping[int, str]:
        self.hook("superseded_closed")
        undone = base(table) / "undone"
        instants = set(undone.read_text().split()) if undone.exists() else set()
        return {index: "undone" for index, v in enumerate(versions) if v.instant in instants}

    def verify(self, table: TableRef, superseded: Sequence[SupersededVersion], *, rows: bool) -> Verification:
        files = manifest(table)["files"]
        known = {item["path"] for item in files} | {v.path for v in superseded}
        logs = {f"{item['partition']}/{log}" for item in files for log in item["logs"]}
        there = {str(path.relative_to(base(table))) for path in base(table).rglob("*.parquet")}
        pending = tuple(self.pending(table))
        return Verification(
            files=len(files),
            bytes=sum(item["bytes"] for item in files),
            missing=tuple(sorted({item["path"] for item in files} - there)),
            unowned=tuple(sorted(p for p in there - known - logs if not Path(p).name.startswith(pending or "\0"))),
        )

    def describe(self, table: TableRef) -> Mapping[str, str]:
        return {"commits": str(manifest(table)["number"])}

    def writer(self, table: TableRef, spark: SparkProvider, engines: Sequence[Engine] = ()) -> "ToyWriter":
        self.hook("open")
        return ToyWriter(self, table)


class ToyWriter:
    """Changes one toy table; implements ``lake.ports.TableWriter`` and ``MergedReads``."""

    def __init__(self, format_: ToyFormat, table: TableRef) -> None:
        self._format, self._table, self._base = format_, table, base(table)
        self._cancelled = threading.Event()
        self.commit_takes = format_.commit_takes
        self.journal: Journal = lambda staged: None
        #: see ``lake.optional.Fenced``; asked before a deletion only, so that tests can wake a sleeper anywhere
        self.fence: Callable[[], None] = lambda: None

    def __enter__(self) -> "ToyWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._format.hook("close")

    def prepare(self, plan: Plan, epoch: int) -> Prepared:
        self._format.hook("prepare")
        with locked(self._table):
            live = {item["path"]: item for item in manifest(self._table)["files"]}
            if plan.plan_id in self._format.pending(self._table).values():
                raise Transient("an earlier instant of this plan is still pending")
            left_out = []
            for index, group in enumerate(plan.groups):
                for item in group.slices:
                    now = live.get(str(item.path))
                    if now is None or tuple(now["logs"]) != item.log_files:
                        left_out.append(LeftOut(group=index, reason=f"{item.path} changed since the plan was made"))
                        break
            groups = tuple(i for i in range(len(plan.groups)) if i not in {item.group for item in left_out})
            if not groups:
                raise Conflict("no group is left: " + left_out[0].reason, tuple(left_out))
            instant = plan.adopted or f"{time.time_ns()}e{epoch}"
            pending = self._base / "pending" / f"{instant}.json"
            if plan.adopted is not None and not pending.exists():
                raise Conflict(f"instant {instant} is no longer pending")
            self.journal(Staged(token=instant))
            document = SCHEDULED if plan.adopted is not None else {"plan_id": plan.plan_id}
            pending.write_text(json.dumps({**document, "epoch": epoch}))
        return Prepared(
            plan=plan, epoch=epoch, instant=instant, groups=groups, left_out=tuple(left_out), notes=("engine: a toy",)
        )

    def rewrite(self, prepared: Prepared, report: Report) -> Rewrite:
        outputs, done = [], 0
        for number, index in enumerate(prepared.groups):
            group = prepared.plan.groups[index]
            self._format.hook("rewrite")
            if self._cancelled.is_set():
                raise Transient("the job was cancelled")
            tables = []
            for item in group.slices:
                try:
                    tables.append(self._read(item))
                except (pa.ArrowException, OSError) as error:
                    bad = LeftOut(group=index, reason=f"{item.path}: {error}", quarantine=(str(item.path),))
                    raise Conflict(f"{item.path} can't be read", (bad,)) from error
                done += item.total_bytes
                report(Progress(bytes_done=done, bytes_total=prepared.plan.bytes))
            rows = pa.concat_tables(tables, promote_options="default")
            path = self.path_of(group.partition, prepared.instant, number)
            rows = rows.drop_columns(["_file"]).append_column("_file", pa.array([path] * rows.num_rows))
            rows = self._format.defect(rows)
            pq.write_table(rows, self._base / path)
            size = (self._base / path).stat().st_size
            outputs.append(OutputFile(partition=group.partition, path=path, bytes=size, rows=rows.num_rows))
        self._format.hook("rewritten")
        return Rewrite(prepared=prepared, outputs=tuple(outputs))

    def path_of(self, partition: str, token: str, number: int) -> str:
        return f"{partition}/{token}-{number}.parquet"

    def read_inputs(self, prepared: Prepared, partition: str, *, evolved: bool = False) -> Iterator[pa.RecordBatch]:
        for index in prepared.groups:
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
            if not all((self._base / output.path).exists() for output in rewrite.outputs):
                raise Conflict(f"what was written of {prepared.instant} was taken back")
            document = self.replaced(rewrite)
            publish(self._table, document)
            self._format.hook("landed")
            pending.unlink()
        return _commit(document)

    def replaced(self, rewrite: Rewrite) -> dict[str, Any]:
        """The next manifest, with the new files in the place of what was rewritten; call it under the lock."""
        prepared = rewrite.prepared
        now = manifest(self._table)
        live = {item["path"]: item for item in now["files"]}
        replaced = [item for index in prepared.groups for item in prepared.plan.groups[index].slices]
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
            "superseded": [
                {
                    "partition": live[p]["partition"],
                    "path": p,
                    "bytes": live[p]["bytes"],
                    "instant": prepared.instant,
                    "modified_at": modified_at(self._base / str(p)).isoformat(),
                }
                for p in sorted(gone)
            ],
        }

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
        withdrawn = 0
        with locked(self._table):
            completed = {m.get("instant") for m in manifests(self._table)}
            scheduled = self._base / "pending" / f"{adopted}.json"
            if adopted is not None and scheduled.exists() and adopted not in completed:
                for path in self._base.rglob(f"{adopted}-*.parquet"):
                    path.unlink()
                begun = json.loads(scheduled.read_text())["epoch"]
                scheduled.write_text(json.dumps(SCHEDULED))
                return int(bool(begun))
            for instant, owner in self._format.pending(self._table).items():
                if owner != plan_id or (instants is not None and instant not in instants):
                    continue
                if instant not in completed:
                    for path in self._base.rglob(f"{instant}-*.parquet"):
                        path.unlink()
                    withdrawn += 1
                (self._base / "pending" / f"{instant}.json").unlink()
        return withdrawn

    def delete(self, versions: Sequence[SupersededVersion]) -> Deletion:
        self._format.hook("delete")
        self.fence()
        live = {item["path"] for item in manifest(self._table)["files"]}
        if any(v.path in live for v in versions):
            raise Conflict("a version is live")
        freed, left = 0, {}
        for index, version in enumerate(versions):
            path = self._base / version.path
            if path.exists():
                size = path.stat().st_size
                other = version.differs(size, modified_at(path))
                if other is not None:
                    left[index] = other
                    continue
                self._format.hook("delete_file")
                freed += size
                path.unlink()
        return Deletion(bytes_freed=freed, left=left)

    def maintain(self, wanted: Collection[str], retained: Sequence[SupersededVersion]) -> Sequence[str]:
        self._format.hook("maintain")
        return [f"{name}, keeping {len(retained)}" for name in wanted]

    def roll_back(self, instant: str) -> str:
        (self._base / "pending" / f"{instant}.json").unlink()
        return f"{instant} is rolled back"

    def cancel(self) -> None:
        self._cancelled.set()
        self._format.cancelled.set()

    def _read(self, item: FileSlice) -> pa.Table:
        path = str(item.path)
        rows = pq.read_table(self._base / path)
        for log in item.log_files:
            changes = pq.read_table((self._base / path).with_name(log))
            rows = rows.filter(pc.invert(pc.is_in(rows["id"], changes["id"].combine_chunks())))
            rows = pa.concat_tables([rows, changes.filter(pc.is_valid(changes["value"]))])
        return rows


def base(table: TableRef) -> Path:
    return Path(table.location)


@contextmanager
def locked(table: TableRef) -> Iterator[None]:
    """The table's one lock, held by a process and thread at a time and freed by the kernel when it dies."""
    with (base(table) / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def manifests(table: TableRef) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((base(table) / "manifests").glob("*.json"))]


def manifest(table: TableRef) -> dict[str, Any]:
    return json.loads(max((base(table) / "manifests").glob("*.json")).read_text())


def written_at(item: Mapping[str, Any]) -> datetime:
    return datetime.fromtimestamp(item.get("written_at", 0), UTC)


def modified_at(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)


def publish(table: TableRef, document: Mapping[str, Any]) -> None:
    """Link the next manifest into place; CommitUnknown never comes from here, a taken number is a Conflict."""
    target = base(table) / "manifests" / f"{document['number']:08d}.json"
    scratch = target.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
    scratch.write_text(json.dumps(document))
    try:
        os.link(scratch, target)
    except FileExistsError as error:
        raise Conflict(f"commit {document['number']} was taken") from error
    finally:
        scratch.unlink()


def _commit(document: Mapping[str, Any]) -> Commit:
    return Commit(
        plan_id=document["plan_id"],
        instant=document["instant"],
        outputs=tuple(OutputFile(**item) for item in document["outputs"]),
        superseded=tuple(
            SupersededVersion(**{**item, "modified_at": datetime.fromisoformat(item["modified_at"])})
            for item in document["superseded"]
        ),
        epoch=document["epoch"],
    )


# Making tables and plans.


STOP = pa.struct([("lat", pa.float64()), ("names", pa.list_(pa.string()))])


def rows(low: int, high: int) -> pa.Table:
    """Ids ``low`` ≤ id < ``high`` with a value, a nullable string, a nested column and the file's name."""
    ids = list(range(low, high))
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "value": pa.array([i * 7 % 1000 for i in ids], pa.int64()),
            "tip": pa.array([None if i % 5 == 0 else f"tip {i}" for i in ids], pa.string()),
            "stop": pa.array([{"lat": i / 8, "names": [f"n{i}", None][: i % 3]} for i in ids], STOP),
            "_file": pa.array(["first"] * len(ids)),
        }
    )


def create(location: Path, *, partitions: int = 2, files: int = 3, rows_each: int = 50, name: str = "toy") -> TableRef:
    """A table with ``files`` small files in each partition, all ids distinct."""
    for folder in ("manifests", "pending"):
        (location / folder).mkdir(parents=True)
    table = TableRef(name=name, format="toy", location=str(location))
    (location / "manifests" / "00000000.json").write_text(json.dumps({"number": 0, "files": []}))
    low = 0
    for partition in range(partitions):
        for _ in range(files):
            write(table, f"dt={partition}", rows(low, low + rows_each))
            low += rows_each
    return table


def write(table: TableRef, partition: str, data: pa.Table) -> str:
    """What a foreign writer does: one commit that adds one file; its path."""
    number = manifest(table)["number"] + 1
    path = f"{partition}/w{number}.parquet"
    (base(table) / partition).mkdir(exist_ok=True)
    pq.write_table(data, base(table) / path)
    size = (base(table) / path).stat().st_size
    item = {
        **{"partition": partition, "file_id": path, "path": path, "bytes": size, "rows": data.num_rows},
        **{"logs": [], "log_bytes": 0, "written_at": time.time()},
    }
    publish(table, {"number": number, "files": [*manifest(table)["files"], item]})
    return path


def schedule(table: TableRef, instant: str) -> None:
    """What a foreign writer does that leaves its plans to others."""
    (base(table) / "pending" / f"{instant}.json").write_text(json.dumps(SCHEDULED))


def append_log(table: TableRef, path: str, changes: pa.Table) -> None:
    """What a foreign writer does: one commit that adds a log to the slice of ``path``."""
    now = manifest(table)
    number = now["number"] + 1
    log = f"{Path(path).stem}.log{number}.parquet"
    pq.write_table(changes, (base(table) / path).with_name(log))
    for item in now["files"]:
        if item["path"] == path:
            item["logs"].append(log)
            item["log_bytes"] += (base(table) / path).with_name(log).stat().st_size
    publish(table, {"number": number, "files": now["files"]})


def plan(
    table: TableRef,
    plan_id: str,
    *,
    receipt: ReceiptLevel = ReceiptLevel.HASH,
    partitions: Collection[str] | None = None,
) -> Plan:
    """All live files, one group a partition."""
    groups: dict[str, list[FileSlice]] = {}
    for item in manifest(table)["files"]:
        if partitions is None or item["partition"] in partitions:
            groups.setdefault(item["partition"], []).append(
                FileSlice(
                    partition=item["partition"],
                    file_id=item["file_id"],
                    path=item["path"],
                    bytes=item["bytes"],
                    rows=item["rows"],
                    log_files=tuple(item["logs"]),
                    log_bytes=item["log_bytes"],
                )
            )
    return Plan(
        plan_id=plan_id,
        table=table,
        kind=PlanKind.CLUSTERING,
        groups=tuple(
            ClusteringGroup(partition=p, slices=tuple(slices), output_files=1) for p, slices in sorted(groups.items())
        ),
        options=RewriteOptions(target_file_max_bytes=1 << 30, receipt=receipt),
        snapshot_instant=str(manifest(table)["number"]),
    )


def table_rows(table: TableRef) -> list[str]:
    """Every row as a reader sees it now, without the name of its file, sorted."""
    writer = ToyWriter(ToyFormat(), table)
    found: list[str] = []
    for item in manifest(table)["files"]:
        one = FileSlice(
            partition=item["partition"], file_id="", path=item["path"], bytes=0, log_files=tuple(item["logs"])
        )
        found += [repr(row) for row in writer._read(one).drop_columns(["_file"]).to_pylist()]
    return sorted(found)

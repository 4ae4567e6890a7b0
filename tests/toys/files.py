# SPDX-License-Identifier: Apache-2.0
"""The common part of the test formats: Parquet files, which are listed, rewritten by engines, and deleted."""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lake.capabilities import recreated_reason, with_identity
from lake.engine_choice import ChosenEngine, choose_engines
from lake.engines import EngineOutput, RewriteEngine, RewriteTask, build_task
from lake.errors import Conflict, TableGone, Transient
from lake.model import SLICES_SCHEMA, Snapshot, TableRef
from lake.plan import (
    Commit,
    OutputFile,
    Plan,
    RewriteProgress,
    SkippedGroup,
    StagedWork,
    SupersededVersion,
    sum_if_known,
)
from lake.ports import (
    DeletionResult,
    PreparedPlan,
    ProgressCallback,
    Rewrite,
    SessionRequirements,
    StagingJournal,
    TableVerification,
)

Hook = Callable[[], None]
Item = dict[str, Any]
"""A live file: partition, file_id, path, bytes, rows, written_at (s), and logs with log_bytes where it has some."""


class FilesFormat:
    """A format; ``live`` returns the live files of a table. ``hooks`` run at named points of a writer and may raise.

    ``defect`` changes the rows of new files.
    """

    name: str
    services: tuple[str, ...] = ()
    session_requirements = SessionRequirements()
    max_commit_duration = timedelta()

    def __init__(self) -> None:
        self.hooks: dict[str, Hook] = {}
        self.defect: Callable[[pa.Table], pa.Table] | None = None
        self.cancelled = threading.Event()

    def hook(self, name: str) -> None:
        self.hooks.get(name, lambda: None)()

    def live(self, table: TableRef) -> list[Item]:
        raise NotImplementedError

    def newest(self, table: TableRef) -> str:
        raise NotImplementedError

    def commits(self, table: TableRef) -> list[Commit]:
        """Return every commit of lakefold's plans."""
        raise NotImplementedError

    def known_files(self, table: TableRef) -> Collection[str]:
        """Return further data files of the table: those of pending work, or of older states."""
        return ()

    def discover(self, location: str) -> Iterator[TableRef]:
        yield TableRef(name=Path(location).name, format=self.name, location=location)

    def check(self, table: TableRef) -> None:
        self.hook("check")
        existing(table)

    def snapshot(self, table: TableRef, partitions: Collection[str] | None = None) -> Snapshot:
        rows = [
            {**item, "log_files": item.get("logs", []), "log_bytes": item.get("log_bytes", 0)}
            | {"modified_at": datetime.fromtimestamp(item.get("written_at", 0), UTC), "busy_reason": None}
            for item in self.live(table)
            if partitions is None or item["partition"] in partitions
        ]
        slices = pa.Table.from_pylist([{n: row.get(n) for n in SLICES_SCHEMA.names} for row in rows], SLICES_SCHEMA)
        return Snapshot(table=table, instant=self.newest(table), taken_at=datetime.now(UTC), slices=slices)

    def find_commit(self, table: TableRef, plan_id: str) -> Commit | None:
        self.hook("committed")
        found = [commit for commit in self.commits(table) if commit.plan_id == plan_id]
        assert len(found) <= 1, f"{len(found)} commits name plan {plan_id}"
        return found[0] if found else None

    def recent_commits(self, table: TableRef, plan_ids: Collection[str]) -> Mapping[str, Commit]:
        self.hook("landed_late")
        return {commit.plan_id: commit for commit in self.commits(table) if commit.plan_id in plan_ids}

    def deletion_blockers(
        self, table: TableRef, versions: Sequence[SupersededVersion], retention: timedelta = timedelta()
    ) -> Mapping[str, str | None]:
        self.hook("superseded_deletable")
        live = {item["path"] for item in self.live(table)}
        kept = set(words(base(table) / "savepoint"))
        return {
            v.path: "live again" if v.path in live else "kept by a savepoint" if v.path in kept else None
            for v in versions
        }

    def obsolete_deletions(self, table: TableRef, versions: Sequence[SupersededVersion]) -> Mapping[int, str]:
        self.hook("superseded_closed")
        instants = words(base(table) / "undone")
        return {index: "undone" for index, v in enumerate(versions) if v.instant in instants}

    def verify(self, table: TableRef, superseded: Sequence[SupersededVersion], *, rows: bool) -> TableVerification:
        items = self.live(table)
        live = {item["path"]: item["bytes"] for item in items}
        logs = {str(Path(item["path"]).with_name(log)) for item in items for log in item.get("logs", ())}
        there = stored(table)
        known = live.keys() | logs | {v.path for v in superseded} | set(self.known_files(table))
        found = [path for path in live if path in there]
        return TableVerification(
            files=len(items),
            bytes=sum(live.values()),
            missing=tuple(sorted(live.keys() - there.keys())),
            wrong_size=tuple(sorted(path for path in found if there[path] != live[path])),
            unowned=tuple(sorted(there.keys() - known)),
            rows=sum(pq.read_metadata(base(table) / path).num_rows for path in found) if rows else None,
            rows_expected=sum(item["rows"] for item in items) if rows and all(item["rows"] for item in items) else None,
        )

    def describe(self, table: TableRef) -> Mapping[str, str]:
        return {"newest": self.newest(table)}


class WithoutTimeline(FilesFormat):
    """A format whose tables have an identity and no record of staged work; adds ``lake.capabilities.FindsStaged``."""

    def done(self, table: TableRef) -> Collection[str]:
        """Return the tokens of the commits that the table still records."""
        raise NotImplementedError

    def needed(self, table: TableRef) -> set[str]:
        """Return the files that readers see, also in older states that the table keeps."""
        return {item["path"] for item in self.live(table)} | set(words(base(table) / "savepoint"))

    def remaining_staged(self, table: TableRef, staged: Collection[StagedWork]) -> Collection[str]:
        done = self.done(table)
        needed = self.needed(table)  # read last, so that a commit in between is in neither set
        return {
            one.token
            for one in staged
            if one.token not in done
            and not any(path.startswith(one.paths) for path in needed)
            and any((base(table) / path).exists() for path in one.paths)
        }


class FilesWriter:
    """A writer that rewrites with the engines that it is given."""

    def __init__(self, format_: Any, table: TableRef, engines: Sequence[RewriteEngine] = ()) -> None:
        self._format, self._table, self._base, self._engines = format_, table, base(table), engines
        self._cancelled = threading.Event()
        self.max_commit_duration: timedelta = format_.max_commit_duration
        self.journal: StagingJournal = lambda staged: None
        #: see ``lake.capabilities.Fenced``
        self.fence: Callable[[], None] = lambda: None

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self._format.hook("close")

    def start(self) -> None:
        """Nothing: the engines need no session."""

    def cancel(self) -> None:
        self._cancelled.set()
        self._format.cancelled.set()

    def path_of(self, partition: str, token: str, number: int) -> str:
        raise NotImplementedError

    def paths_of(self, plan: Plan, index: int, token: str) -> list[str]:
        """Return the paths of a group's outputs."""
        group, groups = plan.groups[index], len(plan.groups)
        return [self.path_of(group.partition, token, index + n * groups) for n in range(group.output_files)]

    def folder_of(self, partition: str, token: str) -> Path:
        return (self._base / self.path_of(partition, token, 0)).parent

    def still_there(self, plan: Plan) -> tuple[tuple[int, ...], tuple[SkippedGroup, ...]]:
        """Return the groups of ``plan`` with live and unchanged files, and the others. Raises Conflict without any."""
        live = {item["path"]: item for item in self._format.live(self._table)}
        left_out = []
        for index, group in enumerate(plan.groups):
            for item in group.slices:
                now = live.get(str(item.path))
                if now is None or now["bytes"] != item.bytes or tuple(now.get("logs", ())) != item.log_files:
                    left_out.append(SkippedGroup(group=index, reason=f"{item.path} changed since the plan was made"))
                    break
        groups = tuple(sorted(set(range(len(plan.groups))) - {item.group for item in left_out}))
        if not groups:
            raise Conflict("no group is left: " + left_out[0].reason, tuple(left_out))
        return groups, tuple(left_out)

    def choices(self, plan: Plan, groups: Sequence[int], token: str) -> dict[int, ChosenEngine]:
        return choose_engines(self._tasks(plan, groups, token), self._engines, plan.options, self._table.name)

    def _tasks(self, plan: Plan, groups: Sequence[int], token: str) -> list[RewriteTask]:
        return [
            build_task(
                self._table,
                index,
                plan.groups[index],
                [str(self._base / path) for path in self.paths_of(plan, index, token)],
            )
            for index in groups
        ]

    def rewrite(self, prepared: PreparedPlan, report: ProgressCallback) -> Rewrite:
        plan, outputs, done = prepared.plan, [], 0
        cpu: dict[int, float | None] = {}
        choices = self.choices(plan, prepared.live_groups, prepared.instant)
        for task in self._tasks(plan, prepared.live_groups, prepared.instant):
            self._format.hook("rewrite")
            if self._cancelled.is_set():
                raise Transient("the job was cancelled")
            cpu[task.group] = None

            def told(progress: RewriteProgress, group: int = task.group) -> None:
                cpu[group] = progress.cpu_seconds

            for file in self._written(choices[task.group].engine, task, plan, told):
                path = str(Path(file.path).relative_to(self._base))
                partition = plan.groups[task.group].partition
                metrics = {"rows": file.rows}  # data that a format may need at its commit
                outputs.append(
                    OutputFile(partition=partition, path=path, bytes=file.bytes, rows=file.rows, payload=metrics)
                )
            done += task.bytes
            used = sum_if_known(cpu.values())
            report(RewriteProgress(bytes_done=done, bytes_total=plan.bytes, cpu_seconds=used))
        self._format.hook("rewritten")
        return Rewrite(prepared=prepared, outputs=tuple(outputs))

    def _written(
        self, engine: RewriteEngine, task: RewriteTask, plan: Plan, report: ProgressCallback
    ) -> Iterator[EngineOutput]:
        """Yield the files that ``engine`` writes for one group. A Conflict has the table's names of bad inputs."""
        try:
            for file in engine.rewrite([task], plan.options, report, self._cancelled):
                yield self._spoiled(file)
        except Conflict as error:
            names = dict(zip(task.inputs, (str(item.path) for item in plan.groups[task.group].slices), strict=True))
            unreadable = error.args[1] if len(error.args) > 1 else ()
            named = [replace(one, quarantine=tuple(names[path] for path in one.quarantine)) for one in unreadable]
            raise Conflict(error.args[0], tuple(named)) from error

    def defect(self) -> Callable[[pa.Table], pa.Table] | None:
        """Return the change that each output gets, or None."""
        return self._format.defect

    def _spoiled(self, file: EngineOutput) -> EngineOutput:
        defect = self.defect()
        if defect is None:
            return file
        path = Path(file.path)
        rows = defect(read(path))
        pq.write_table(rows, path)
        return replace(file, bytes=path.stat().st_size, rows=rows.num_rows)

    def look_at_table(self) -> None:
        """Raise Conflict if another table is at this location now."""
        another = recreated_reason(with_identity(self._format, self._table), self._table.identity)
        if another is not None:
            raise Conflict(another)

    def look_at_outputs(self, rewrite: Rewrite) -> None:
        """Raise Conflict if a new file is missing, since the attempt was withdrawn."""
        if not all((self._base / output.path).exists() for output in rewrite.outputs):
            raise Conflict(f"what was written of {rewrite.prepared.instant} was taken back")

    def look_before_deletion(self, versions: Sequence[SupersededVersion]) -> None:
        """Raise Conflict if one of ``versions`` must not be deleted. Errors of the fence pass through."""
        self._format.hook("delete")
        self.fence()
        self.look_at_table()
        live = {item["path"] for item in self._format.live(self._table)}
        if any(v.path in live for v in versions):
            raise Conflict("a version is live")
        if any(v.path in words(self._base / "savepoint") for v in versions):
            raise Conflict("a version is kept by a savepoint")

    def delete(self, versions: Sequence[SupersededVersion]) -> DeletionResult:
        self.look_before_deletion(versions)
        freed, left = 0, {}
        for index, version in enumerate(versions):
            path = self._base / version.path
            if path.exists():
                size = path.stat().st_size
                other = version.difference(size, modified_at(path))
                if other is not None:
                    left[index] = other
                    continue
                self._format.hook("delete_file")
                freed += size
                path.unlink()
        return DeletionResult(bytes_freed=freed, retained=left)


# Files.


def base(table: TableRef) -> Path:
    return Path(table.location)


def existing(table: TableRef) -> Path:
    """Return the table's directory. Raises TableGone if there is none."""
    if not base(table).exists():
        raise TableGone(f"{table.name}: no table at {table.location}")
    return base(table)


def stored(table: TableRef) -> dict[str, int]:
    """Return every data file in storage with its size, for any writer; paths are relative to the table."""
    found = base(table).rglob("*.parquet")
    return {str(path.relative_to(base(table))): path.stat().st_size for path in found}


def words(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def read(source: Any) -> pa.Table:
    return pq.read_table(source, partitioning=None)


def modified_at(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)


def item_of(table: TableRef, partition: str, path: str, rows: int | None = None) -> Item:
    """Return a file in the form in which the formats list it."""
    status = (base(table) / path).stat()
    return {
        **{"partition": partition, "file_id": path, "path": path, "bytes": status.st_size, "rows": rows},
        "written_at": status.st_mtime,
    }


def superseded_by(table: TableRef, items: Sequence[Item], instant: str) -> list[dict[str, Any]]:
    """Return the record in the commit ``instant`` of the files that it replaced, logs included, as JSON."""
    found = [(item["partition"], item["path"]) for item in sorted(items, key=lambda item: str(item["path"]))]
    found += [
        (item["partition"], str(Path(item["path"]).with_name(log))) for item in items for log in item.get("logs", ())
    ]
    return [
        {"partition": partition, "path": path, "bytes": file.stat().st_size, "instant": instant}
        | {"modified_at": modified_at(file).isoformat()}
        for partition, path in found
        for file in [base(table) / path]
    ]


def commit_of(document: Mapping[str, Any]) -> Commit:
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


STOP = pa.struct([("lat", pa.float64()), ("names", pa.list_(pa.string()))])


def rows(low: int, high: int, *, version: int = 0) -> pa.Table:
    """Ids ``low`` ≤ id < ``high`` with a value, a nullable string, a nested column and the file's name."""
    ids = list(range(low, high))
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "value": pa.array([i * 7 % 1000 + version for i in ids], pa.int64()),
            "tip": pa.array([None if i % 5 == 0 else f"tip {i}" for i in ids], pa.string()),
            "stop": pa.array([{"lat": i / 8, "names": [f"n{i}", None][: i % 3]} for i in ids], STOP),
            "_file": pa.array(["first"] * len(ids)),
        }
    )


def told(data: pa.Table) -> list[str]:
    """Return rows in a form for comparison, without the name of their file."""
    return [repr(row) for row in data.drop_columns(["_file"]).to_pylist()]

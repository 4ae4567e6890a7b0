# SPDX-License-Identifier: Apache-2.0
"""A whole table format that has only what every format needs; docs/adapters.md explains it.

A table is a directory of Parquet files. ``versions/N.json`` lists its live files after N commits, and the process that
creates version N first has made that commit, as in Delta Lake. Nothing on the table shows a rewrite before its commit.
"""

import json
import os
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lake.capabilities import capabilities_of
from lake.engine_choice import choose_engines, rewrite_groups
from lake.engines import RewriteEngine, build_task
from lake.errors import Conflict, TableGone
from lake.model import SLICES_SCHEMA, SearchFailure, Snapshot, TableRef
from lake.plan import Commit, OutputFile, Plan, SkippedGroup, StagedWork, SupersededVersion
from lake.ports import (
    Capability,
    DeletionResult,
    PreparedPlan,
    ProgressCallback,
    Rewrite,
    SessionRequirements,
    SparkProvider,
    StagingJournal,
    TableVerification,
)

Staged = Collection[StagedWork]


class MinimalWriter(AbstractContextManager["MinimalWriter"]):
    """Changes one table; implements ``TableWriter`` and ``Fenced``."""

    #: the version that a withdrawal creates prevents a late commit
    max_commit_duration = timedelta()

    def __init__(self, format_: "MinimalFormat", table: TableRef, engines: Sequence[RewriteEngine]) -> None:
        self._format, self._table, self._base, self._engines = format_, table, Path(table.location), engines
        self._cancelled = threading.Event()
        self.journal: StagingJournal = lambda staged: None
        self.fence: Callable[[], None] = lambda: None

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def start(self) -> None:
        """Nothing to do: the engines start their own resources."""

    def cancel(self) -> None:
        self._cancelled.set()

    def prepare(self, plan: Plan, epoch: int) -> PreparedPlan:
        now, token = newest(self._table), uuid.uuid4().hex
        live = {file["path"] for file in now["files"]}  # a name is used once, so a live path has not changed
        groups = tuple(i for i, group in enumerate(plan.groups) if all(one.path in live for one in group.slices))
        changed = [index for index in range(len(plan.groups)) if index not in groups]
        skipped = tuple(SkippedGroup(group=index, reason="a writer was faster") for index in changed)
        if not groups:
            raise Conflict("no group is left", skipped)
        # Before the first file exists, and with the names of all files.
        paths = tuple(path for index in groups for path in output_paths(Path(), plan, index, token))
        self.journal(StagedWork(token=token, paths=paths))
        return PreparedPlan(
            plan=plan, epoch=epoch, instant=token, live_groups=groups, skipped=skipped, preconditions=now["version"]
        )

    def rewrite(self, prepared: PreparedPlan, report: ProgressCallback) -> Rewrite:
        plan, live, token = prepared.plan, prepared.live_groups, prepared.instant
        tasks = [build_task(self._table, i, plan.groups[i], output_paths(self._base, plan, i, token)) for i in live]
        engines = choose_engines(tasks, self._engines, plan.options, self._table.name)
        new = rewrite_groups(self._table, plan, tasks, engines, report, self._cancelled)
        return Rewrite(prepared=prepared, outputs=new)

    def commit(self, rewrite: Rewrite) -> Commit:
        prepared = rewrite.prepared
        inputs = {one.path for index in prepared.live_groups for one in prepared.plan.groups[index].slices}

        def replace_inputs(now: Mapping[str, Any]) -> dict[str, Any]:
            since = [one for one in versions(self._table) if prepared.preconditions < one["version"]]
            if len(since) < now["version"] - prepared.preconditions:
                raise Conflict("the table has forgotten a version since the preparation: it may be the withdrawal")
            if any(prepared.instant in one.get("withdrawn", ()) for one in since):
                raise Conflict(f"{prepared.instant} was withdrawn")
            superseded = [file for file in now["files"] if file["path"] in inputs]
            if len(superseded) < len(inputs):
                raise Conflict("a writer was faster")
            outputs = [asdict(one) | {"written_at": (self._base / one.path).stat().st_mtime} for one in rewrite.outputs]
            return {
                **{"plan_id": prepared.plan.plan_id, "epoch": prepared.epoch, "token": prepared.instant},
                **{"superseded": superseded, "outputs": outputs},
                "files": [file for file in now["files"] if file["path"] not in inputs] + outputs,
            }

        self.fence()
        return commit_of(self._create_version(replace_inputs))

    def withdraw(
        self, plan_id: str, instants: Collection[str] | None, *, staged: Staged = (), epoch: int | None = None
    ) -> int:
        wanted = [one for one in staged if instants is None or one.token in instants]
        if not self._format.remaining_staged(self._table, wanted):
            return 0

        def forbid_commits(now: Mapping[str, Any]) -> dict[str, Any]:
            return {"files": now["files"], "withdrawn": [*self._format.remaining_staged(self._table, wanted)]}

        withdrawn = self._create_version(forbid_commits)["withdrawn"]
        for path in (path for one in wanted if one.token in withdrawn for path in one.paths):
            (self._base / path).unlink(missing_ok=True)
        return len(withdrawn)

    def delete(self, versions: Sequence[SupersededVersion]) -> DeletionResult:
        self.fence()
        if any(self._format.deletion_blockers(self._table, versions).values()):
            raise Conflict("a version is live")
        freed, retained = 0, {}
        for index, version in enumerate(versions):
            path = self._base / version.path
            size = path.stat().st_size if path.exists() else 0
            if size and (difference := version.difference(size)) is not None:
                retained[index] = difference
                continue
            path.unlink(missing_ok=True)
            freed += size
        return DeletionResult(bytes_freed=freed, retained=retained)

    def _create_version(self, change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        """Create the version that ``change`` makes from the newest version; repeated if another process was faster."""
        while True:
            now = newest(self._table)
            made = {"made": now["made"], **change(now), "version": now["version"] + 1}
            with NamedTemporaryFile("w", dir=self._base / "versions") as file, suppress(FileExistsError):
                file.write(json.dumps(made))
                file.flush()
                os.link(file.name, self._base / "versions" / f"{made['version']}.json")
                return made


class MinimalFormat:
    """Observes such tables; implements ``TableFormat`` and ``FindsStaged``."""

    name = "minimal"
    capabilities = capabilities_of(MinimalWriter, Capability.OPTIMISTIC_COMMITS)
    services: tuple[str, ...] = ()
    session_requirements = SessionRequirements()

    def discover(self, location: str) -> Iterator[TableRef | SearchFailure]:
        yield TableRef(name=Path(location).name, format=self.name, location=location)

    def check(self, table: TableRef) -> None:
        newest(table)

    def snapshot(self, table: TableRef, partitions: Collection[str] | None = None) -> Snapshot:
        now = newest(table)
        rows = [
            {**file, "file_id": file["path"], "log_files": [], "log_bytes": 0}
            | {"modified_at": datetime.fromtimestamp(file["written_at"], UTC)}
            for file in now["files"]
            if partitions is None or file["partition"] in partitions
        ]
        slices = pa.Table.from_pylist(rows, SLICES_SCHEMA)
        return Snapshot(table=table, instant=str(now["version"]), taken_at=datetime.now(UTC), slices=slices)

    def find_commit(self, table: TableRef, plan_id: str) -> Commit | None:
        return self.recent_commits(table, [plan_id]).get(plan_id)

    def recent_commits(self, table: TableRef, plan_ids: Collection[str]) -> Mapping[str, Commit]:
        return {one["plan_id"]: commit_of(one) for one in versions(table) if one.get("plan_id") in plan_ids}

    def remaining_staged(self, table: TableRef, staged: Collection[StagedWork]) -> Collection[str]:
        every = versions(table)
        # Also if the table has forgotten the commit: its files are live, or in an older version that it keeps.
        known = {file["path"] for one in every for file in one["files"]}.union(one.get("token") for one in every)
        return {
            one.token
            for one in staged
            if known.isdisjoint((one.token, *one.paths))
            and any((Path(table.location) / path).exists() for path in one.paths)
        }

    def deletion_blockers(
        self, table: TableRef, versions: Sequence[SupersededVersion], retention: timedelta = timedelta()
    ) -> Mapping[str, str | None]:
        live = {file["path"] for file in newest(table)["files"]}
        return {one.path: "it is live again" if one.path in live else None for one in versions}

    def obsolete_deletions(self, table: TableRef, versions: Sequence[SupersededVersion]) -> Mapping[int, str]:
        return {}  # nothing undoes a commit of such a table

    def verify(self, table: TableRef, superseded: Sequence[SupersededVersion], *, rows: bool) -> TableVerification:
        base, live = Path(table.location), {file["path"]: file["bytes"] for file in newest(table)["files"]}
        stored = {str(path.relative_to(base)): path.stat().st_size for path in base.rglob("*.parquet")}
        return TableVerification(
            files=len(live),
            bytes=sum(live.values()),
            missing=tuple(live.keys() - stored.keys()),
            wrong_size=tuple(path for path in live.keys() & stored.keys() if stored[path] != live[path]),
            unowned=tuple(stored.keys() - live.keys() - {version.path for version in superseded}),
            rows=sum(pq.read_metadata(base / path).num_rows for path in live) if rows else None,
        )

    def describe(self, table: TableRef) -> Mapping[str, str]:
        return {"version": str(newest(table)["version"])}

    def writer(self, table: TableRef, spark: SparkProvider, engines: Sequence[RewriteEngine] = ()) -> MinimalWriter:
        return MinimalWriter(self, table, engines)


def versions(table: TableRef) -> list[dict[str, Any]]:
    """Return every version that the table has, oldest first. Raises TableGone if there is no table."""
    paths = (Path(table.location) / "versions").glob("*.json")
    found = [json.loads(path.read_text()) for path in sorted(paths, key=lambda path: int(path.stem))]
    if not found:
        raise TableGone(f"{table.name}: no table at {table.location}")
    return found


def newest(table: TableRef) -> dict[str, Any]:
    return versions(table)[-1]


def output_paths(base: Path, plan: Plan, index: int, token: str) -> list[str]:
    group = plan.groups[index]
    return [str(base / group.partition / f"{token}-{index}-{n}.parquet") for n in range(group.output_files)]


def commit_of(version: Mapping[str, Any]) -> Commit:
    instant, outputs, superseded = str(version["version"]), version["outputs"], version["superseded"]
    names = ("partition", "path", "bytes")  # a path is used once, so the time of a superseded file is not needed
    return Commit(
        **{name: version[name] for name in ("plan_id", "epoch")},
        instant=instant,
        outputs=tuple(OutputFile(**{name: one[name] for name in (*names, "rows")}) for one in outputs),
        superseded=tuple(
            SupersededVersion(**{name: one[name] for name in names}, instant=instant) for one in superseded
        ),
    )

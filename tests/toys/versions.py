# SPDX-License-Identifier: Apache-2.0
"""A format with optimistic commits and numbered versions, as Delta and Iceberg have: no lock, no timeline.

``versions/N.json`` lists the live files after N commits. The process that creates version N first has made that commit;
every other process reads the newest version again and checks whether the changes concern it. A plan's writer publishes
nothing before its commit. So a withdrawal is a commit without files: a suspended writer that checked the table before
the withdrawal can't create its version, checks again, and finds its token withdrawn.

Owners expire versions, and with them the records of commits and withdrawals. If a file of a plan is live, or listed in
a remaining version, its name shows that it was committed. A writer that can't read all versions since ``prepare`` does
not commit.
"""

import json
import os
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lake.capabilities import capabilities_of
from lake.engine_choice import engine_notes
from lake.engines import RewriteEngine
from lake.errors import Conflict, Transient
from lake.failpoints import failpoint
from lake.model import TableRef
from lake.plan import Commit, Plan, StagedWork
from lake.ports import Capability, PreparedPlan, Rewrite, SparkProvider
from toys.files import FilesWriter, Item, WithoutTimeline, base, commit_of, existing, item_of, superseded_by, words

_TRIES = 50


class VersionsWriter(FilesWriter):
    """Changes one such table."""

    def prepare(self, plan: Plan, epoch: int) -> PreparedPlan:
        self._format.hook("prepare")
        base_version = newest(self._table)["version"]
        groups, left_out = self.still_there(plan)
        token = uuid.uuid4().hex
        paths = tuple(path for index in groups for path in self.paths_of(plan, index, token))
        chosen = engine_notes(self.choices(plan, groups, token))
        self.journal(StagedWork(token=token, paths=paths))
        return PreparedPlan(
            plan=plan,
            epoch=epoch,
            instant=token,
            live_groups=groups,
            skipped=left_out,
            notes=chosen,
            preconditions=base_version,
        )

    def path_of(self, partition: str, token: str, number: int) -> str:
        return f"{partition}/{token}-{number}.parquet"

    def commit(self, rewrite: Rewrite) -> Commit:
        self._format.hook("commit")
        prepared = rewrite.prepared
        replaced = [item for index in prepared.live_groups for item in prepared.plan.groups[index].slices]

        def next_version(now: Mapping[str, Any]) -> dict[str, Any]:
            since = versions_since(self._table, prepared.preconditions, now["version"])
            if any(prepared.instant in one.get("withdrawn", ()) for one in since):
                raise Conflict(f"{prepared.instant} was withdrawn")
            self.look_at_table()
            self.look_at_outputs(rewrite)
            live = {item["path"]: item for item in now["files"]}
            if any(item.path not in live for item in replaced):
                raise Conflict("a writer changed an input before the commit")
            gone = {str(item.path) for item in replaced}
            return {
                "files": [item for item in now["files"] if item["path"] not in gone]
                + [item_of(self._table, output.partition, output.path, output.rows) for output in rewrite.outputs],
                "plan_id": prepared.plan.plan_id,
                "epoch": prepared.epoch,
                "token": prepared.instant,
                "outputs": [asdict(output) for output in rewrite.outputs],
                "superseded": superseded_by(self._table, [live[path] for path in gone], str(now["version"] + 1)),
            }

        self.fence()
        document = create_version(self._table, next_version, before=lambda: self._format.hook("in_commit"))
        self._format.hook("landed")
        return commit_of(document)

    def withdraw(
        self,
        plan_id: str,
        instants: Collection[str] | None,
        *,
        staged: Collection[StagedWork] = (),
        epoch: int | None = None,
    ) -> int:
        self._format.hook("discard")
        wanted = [one for one in staged if instants is None or one.token in instants]
        if not self._format.remaining_staged(self._table, wanted):
            return 0

        def next_version(now: Mapping[str, Any]) -> dict[str, Any]:
            return {"files": now["files"], "withdrawn": sorted(self._format.remaining_staged(self._table, wanted))}

        withdrawn = create_version(self._table, next_version)["withdrawn"]
        for one in wanted:
            for path in one.paths if one.token in withdrawn else ():
                (self._base / path).unlink(missing_ok=True)
        return len(withdrawn)


class VersionsFormat(WithoutTimeline):
    """Observes such tables; adds ``lake.capabilities.FindsStaged`` and ``HasIdentity``."""

    name = "versions"
    capabilities = capabilities_of(VersionsWriter, Capability.SAVEPOINTS, Capability.OPTIMISTIC_COMMITS)

    def live(self, table: TableRef) -> list[Item]:
        files: list[Item] = newest(table)["files"]
        return files

    def newest(self, table: TableRef) -> str:
        return str(newest(table)["version"])

    def identity(self, table: TableRef) -> str:
        return str(newest(table)["made"])

    def commits(self, table: TableRef) -> list[Commit]:
        return [commit_of(one) for one in versions(table) if "plan_id" in one]

    def done(self, table: TableRef) -> Collection[str]:
        return [one["token"] for one in versions(table) if "token" in one]

    def needed(self, table: TableRef) -> set[str]:
        return super().needed(table) | {item["path"] for one in versions(table) for item in one["files"]}

    def writer(self, table: TableRef, spark: SparkProvider, engines: Sequence[RewriteEngine] = ()) -> "VersionsWriter":
        self.hook("open")
        return VersionsWriter(self, table, engines)


def versions(table: TableRef) -> list[dict[str, Any]]:
    """Every version, oldest first."""
    found = [json.loads(path.read_text()) for path in (existing(table) / "versions").glob("*.json")]
    return sorted(found, key=lambda one: int(one["version"]))


def newest(table: TableRef) -> dict[str, Any]:
    number = max(int(path.stem) for path in (existing(table) / "versions").glob("*.json"))
    document: dict[str, Any] = json.loads((base(table) / "versions" / f"{number}.json").read_text())
    return document


def versions_since(table: TableRef, version: int, newest_version: int) -> list[dict[str, Any]]:
    """Return all versions after ``version`` up to the newest. Raises Conflict if one of them has expired."""
    since = [one for one in versions(table) if version < one["version"] <= newest_version]
    if len(since) < newest_version - version:
        raise Conflict("the table has forgotten a version since the preparation, which may have been a withdrawal")
    return since


def expire(table: TableRef, first: int) -> None:
    """Expire the versions before ``first`` as an owner does, and delete the files that only these versions listed."""
    known = versions(table)
    kept = {item["path"] for one in known if one["version"] >= first for item in one["files"]}
    old = [one for one in known if one["version"] < first]
    for one in old:
        (base(table) / "versions" / f"{one['version']}.json").unlink()
    for path in {item["path"] for one in old for item in one["files"]} - kept - set(words(base(table) / "savepoint")):
        (base(table) / path).unlink(missing_ok=True)


def create_version(
    table: TableRef, change: Callable[[Mapping[str, Any]], dict[str, Any]], *, before: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Create the version that ``change`` makes of the newest one; repeated as long as another process is faster."""
    for _ in range(_TRIES):
        now = newest(table)
        number = now["version"] + 1
        document = {"made": now["made"], **change(now), "version": number, "instant": str(number)}
        before()
        failpoint("in_commit")
        target = base(table) / "versions" / f"{number}.json"
        scratch = base(table) / "versions" / f"{uuid.uuid4().hex}.new"
        scratch.write_text(json.dumps(document))
        try:
            os.link(scratch, target)
        except FileExistsError:
            time.sleep(0.001)
        else:
            return document
        finally:
            scratch.unlink()
    raise Transient(f"others were faster {_TRIES} times")

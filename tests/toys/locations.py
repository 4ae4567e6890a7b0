# SPDX-License-Identifier: Apache-2.0
"""A format that swaps the locations of partitions in a catalog: no timeline, no lock, no compare-and-set.

As in a Hive metastore, ``catalog.json`` names the directory of each partition. One call of the catalog changes several
locations at once without comparing them. So a writer checks the catalog right before its call, and makes the call only
within ``max_commit_duration`` of this check. Changes that other writers make in between are lost.
"""

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from lake.capabilities import capabilities_of
from lake.engine_choice import engine_notes
from lake.engines import RewriteEngine
from lake.errors import Conflict, Transient
from lake.failpoints import failpoint
from lake.model import TableRef
from lake.plan import Commit, Plan, StagedWork
from lake.ports import PreparedPlan, Rewrite, SparkProvider
from toys.files import FilesWriter, Item, WithoutTimeline, base, commit_of, existing, item_of, superseded_by

Evidence = dict[str, tuple[str | None, dict[str, tuple[int, int]]]]
"""For each partition its location and the files in it, each with size and modification time."""


class LocationsWriter(FilesWriter):
    """Changes one such table."""

    def prepare(self, plan: Plan, epoch: int) -> PreparedPlan:
        self._format.hook("prepare")
        seen = self.look(plan.partitions)
        groups, left_out = self.still_there(plan)
        partitions = {plan.groups[index].partition for index in groups}
        token = f"{time.time_ns()}e{epoch}"
        chosen = engine_notes(self.choices(plan, groups, token))
        self.journal(StagedWork(token=token, paths=(f"new/{token}/",)))
        for name in partitions:
            self.folder_of(name, token).mkdir(parents=True)
        return PreparedPlan(
            plan=plan,
            epoch=epoch,
            instant=token,
            live_groups=groups,
            skipped=left_out,
            notes=chosen,
            preconditions={name: seen[name] for name in sorted(partitions)},
        )

    def path_of(self, partition: str, token: str, number: int) -> str:
        return f"new/{token}/{partition}/{number}.parquet"

    def look(self, partitions: Iterable[str]) -> Evidence:
        """Return the present state of partitions in the catalog and in their directories."""
        locations = catalog(self._table)["partitions"]
        return {name: (locations.get(name), listing(self._table, locations.get(name))) for name in partitions}

    def commit(self, rewrite: Rewrite) -> Commit:
        self._format.hook("commit")
        evidence: Any = rewrite.prepared.preconditions
        self._carry(rewrite, evidence)
        looked = time.monotonic()
        self.fence()
        self.look_at_table()
        self.look_at_outputs(rewrite)
        if self.look(evidence) != evidence:
            raise Conflict("a writer changed a partition before the commit")
        document = self._document(rewrite, evidence)
        self._format.hook("in_commit")
        failpoint("in_commit")

        def swap(now: dict[str, Any]) -> None:
            if time.monotonic() - looked > self.max_commit_duration.total_seconds():
                raise Transient("the call came too late")
            now["partitions"] |= {name: f"new/{document['instant']}/{name}" for name in evidence}
            now["commits"].append(document)

        alter(self._table, swap)
        self._format.hook("landed")
        return commit_of(document)

    def _carry(self, rewrite: Rewrite, evidence: Evidence) -> None:
        """Copy the files that are not rewritten into the new directories."""
        plan, token = rewrite.prepared.plan, rewrite.prepared.instant
        rewritten = {str(item.path) for index in rewrite.prepared.live_groups for item in plan.groups[index].slices}
        for partition, (location, files) in evidence.items():
            for name in files:
                if f"{location}/{name}" not in rewritten:
                    with suppress(FileNotFoundError):  # the check before the commit reports it
                        os.link(self._base / str(location) / name, self._base / "new" / token / partition / name)

    def _document(self, rewrite: Rewrite, evidence: Evidence) -> dict[str, Any]:
        prepared = rewrite.prepared
        old = [
            {"partition": partition, "path": f"{location}/{name}"}
            for partition, (location, files) in evidence.items()
            for name in files
        ]
        return {
            "plan_id": prepared.plan.plan_id,
            "epoch": prepared.epoch,
            "instant": prepared.instant,
            "outputs": [asdict(output) for output in rewrite.outputs],
            "superseded": superseded_by(self._table, old, prepared.instant),
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
        wanted = [one for one in staged if instants is None or one.token in instants]
        left = self._format.remaining_staged(self._table, wanted)
        for one in wanted:
            for path in one.paths if one.token in left else ():
                shutil.rmtree(self._base / path, ignore_errors=True)
        return len(left)


class LocationsFormat(WithoutTimeline):
    """Observes such tables; adds ``lake.capabilities.FindsStaged`` and ``HasIdentity``."""

    name = "locations"
    capabilities = capabilities_of(LocationsWriter)
    max_commit_duration = timedelta(seconds=5)

    def live(self, table: TableRef) -> list[Item]:
        return [
            item_of(table, partition, f"{location}/{name}")
            for partition, location in catalog(table)["partitions"].items()
            for name in sorted(listing(table, location))
        ]

    def newest(self, table: TableRef) -> str:
        return str(len(catalog(table)["commits"]))

    def identity(self, table: TableRef) -> str:
        return str(catalog(table)["made"])

    def commits(self, table: TableRef) -> list[Commit]:
        return [commit_of(one) for one in catalog(table)["commits"]]

    def done(self, table: TableRef) -> Collection[str]:
        return {one["instant"] for one in catalog(table)["commits"]}

    def writer(self, table: TableRef, spark: SparkProvider, engines: Sequence[RewriteEngine] = ()) -> "LocationsWriter":
        self.hook("open")
        return LocationsWriter(self, table, engines)


def catalog(table: TableRef) -> dict[str, Any]:
    """The location of each partition, and the plans that were committed, oldest first."""
    document: dict[str, Any] = json.loads((existing(table) / "catalog.json").read_text())
    return document


def alter(table: TableRef, change: Callable[[dict[str, Any]], None]) -> None:
    """Make one call of the catalog, which executes calls one after the other and compares nothing."""
    with (base(table) / "catalog.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        document = catalog(table)
        change(document)
        scratch = base(table) / "catalog.new"
        scratch.write_text(json.dumps(document))
        scratch.replace(base(table) / "catalog.json")


def listing(table: TableRef, location: str | None) -> dict[str, tuple[int, int]]:
    """Return the data files of a directory, each with its size and modification time."""
    found = {path.name: path.stat() for path in (base(table) / location).glob("*.parquet")} if location else {}
    return {name: (status.st_size, status.st_mtime_ns) for name, status in found.items()}

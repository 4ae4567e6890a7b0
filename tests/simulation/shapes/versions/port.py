# SPDX-License-Identifier: Apache-2.0
"""The ports for tables with numbered versions.

A plan's writer publishes nothing before its commit. So a withdrawal is a commit without files: a suspended writer that
checked the table before it can't create its version, checks again, and finds its token withdrawn.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from lake.engines import RewriteEngine
from lake.errors import Conflict
from lake.model import TableRef
from lake.plan import Commit, Plan, StagedWork
from lake.ports import Capability, Rewrite
from simulation.port import port
from simulation.shapes.staged import StagedFormat, StagedWriter
from simulation.shapes.versions.table import Version, VersionsTable, create_version, without

SITE = "create version"


class VersionsFormat(StagedFormat):
    """Observes such tables."""

    name = "versions"
    capabilities = frozenset({Capability.SAVEPOINTS, Capability.OPTIMISTIC_COMMITS})

    def newest(self, table: VersionsTable) -> str:
        """See ``ModelFormat``."""
        return str(table.newest.number)

    def commits(self, table: VersionsTable) -> Collection[Commit]:
        """See ``StagedFormat``: the commits in the versions that the table still has."""
        return [version.commit for version in table.told if version.commit is not None]

    def done(self, table: VersionsTable) -> Collection[str]:
        """See ``StagedFormat``."""
        return {version.token for version in table.told if version.token is not None}

    def writer(self, ref: TableRef, spark: object, engines: Sequence[RewriteEngine] = ()) -> "VersionsWriter":
        """See the port."""
        return VersionsWriter(self, ref, engines)


class VersionsWriter(StagedWriter):
    """Changes one such table."""

    table: VersionsTable

    def evidence(self, plan: Plan) -> int:
        """See ``StagedWriter``: the version after which withdrawals are searched for."""
        return self.table.newest.number

    def path_of(self, partition: str, token: str, number: int) -> str:
        """See ``StagedWriter``."""
        return f"{partition}/{token}-{number}"

    def staged(self, token: str, plan: Plan, groups: Sequence[int]) -> StagedWork:
        """See ``StagedWriter``: each file."""
        return StagedWork(
            token=token, paths=tuple(self.path_of(plan.groups[index].partition, token, index) for index in groups)
        )

    @port("commit")
    def commit(self, rewrite: Rewrite) -> Commit:
        """See the port."""
        table, prepared, plan = self.table, rewrite.prepared, rewrite.prepared.plan
        slices = [item for index in prepared.live_groups for item in plan.groups[index].slices]
        paths = [str(item.path) for item in slices]

        def change(now: Version) -> Version:
            assert isinstance(prepared.preconditions, int)
            if any(prepared.instant in version.withdrawn for version in table.since(prepared.preconditions)):
                raise Conflict(f"{prepared.instant} was withdrawn")
            outputs = self.written(rewrite)
            for item in slices:
                if (reason := self.stale(item)) is not None:
                    raise Conflict(f"{reason}, before the commit")
            instant = str(now.number + 1)
            commit = Commit(
                plan_id=plan.plan_id,
                instant=instant,
                outputs=rewrite.outputs,
                epoch=prepared.epoch,
                superseded=self.superseded([table.files[path] for path in paths], instant),
            )
            files = without(now.files, paths, [file.path for file in outputs])
            return Version(number=0, files=files, first=now.first, told=now.told, commit=commit, token=prepared.instant)

        def landed(version: Version, looked_at: float) -> None:
            assert version.commit is not None
            self.world.watch.landed(table, version.commit, [item.file_id for item in slices], looked_at)

        self.fence()
        made = create_version(self.world, table, change, site=SITE, landed=landed)
        assert made.commit is not None
        return made.commit

    def withdraw_tokens(self, wanted: Collection[StagedWork]) -> Collection[str]:
        """Create a version after which these tokens can't be committed. Returns those that are already committed."""

        def change(now: Version) -> Version:
            left = frozenset(self.format.left(self.table, wanted))
            return replace(now, commit=None, token=None, changed={}, withdrawn=left)

        withdrawn = create_version(self.world, self.table, change, site=SITE).withdrawn
        return {one.token for one in wanted} - withdrawn

# SPDX-License-Identifier: Apache-2.0
"""The ports for tables whose partitions are moved by a call of a catalog without compare-and-set.

A writer checks the table again right before its call, and makes the call only soon after this check. The call may take
long, and takes effect even if its sender is killed. No other executor gets the plan until the call must have taken
effect. Only lakefold waits for this: changes by the table's writers in between are lost, and nothing else may be.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

from lake.engines import RewriteEngine
from lake.errors import CommitUnknown, Conflict, Transient
from lake.model import TableRef
from lake.plan import Commit, Plan, StagedWork, SupersededVersion
from lake.ports import PreparedPlan, Rewrite
from simulation.port import port
from simulation.shapes.locations.table import Evidence, LocationsTable
from simulation.shapes.staged import StagedFormat, StagedTable, StagedWriter
from simulation.table import File

_SENT_WITHIN = 3.0
_TIME_OUT = 21.0
_SLOW_CALLS = 0.1


class LocationsFormat(StagedFormat):
    """Observes such tables."""

    name = "locations"

    def newest(self, table: LocationsTable) -> str:
        """See ``ModelFormat``."""
        return max((token for token, _ in table.parameters.values()), default="")

    def commits(self, table: LocationsTable) -> Collection[Commit]:
        """See ``StagedFormat``: each commit is in the parameters of its partitions until a later plan replaces them."""
        return [commit for _, commit in table.parameters.values()]

    def done(self, table: LocationsTable) -> Collection[str]:
        """See ``StagedFormat``."""
        return {token for token, _ in table.parameters.values()}

    def busy(self, table: LocationsTable) -> Mapping[str, str]:
        """See ``ModelFormat``: partitions with a file that is being written, or that have to be put back."""
        return {
            file.group: "a file is being written" if self.unfinished(table, partition) else "pointed back"
            for partition in table.locations
            if self.unfinished(table, partition) or self.is_pointed_back(table, partition)
            for file in table.listing(partition).values()
        }

    def unfinished(self, table: LocationsTable, partition: str) -> Collection[File]:
        """Return incomplete files under visible names."""
        return table.unfinished(partition)

    def is_pointed_back(self, table: LocationsTable, partition: str) -> bool:
        """Return True if a partition has the last plan's token and a location that lakefold moved it from.

        Its owner's move would have removed the token.
        """
        location, own = table.locations[partition], table.own_location(partition)
        return own is not None and location != own and location in self.earlier_locations(table, partition)

    def earlier_locations(self, table: LocationsTable, partition: str) -> Collection[str]:
        """Return a partition's locations before plans moved it, by the records beside its files."""
        return {one.location for one in table.earlier if one.partition == partition}

    def reasons_to_keep(self, table: StagedTable, versions: Sequence[SupersededVersion]) -> Mapping[str, str | None]:
        """See ``ModelFormat``; partitions of other tables may have the same directories."""
        assert isinstance(table, LocationsTable)
        others = self.of_other_tables(table)
        found = StagedFormat.reasons_to_keep(self, table, versions)
        return {path: "another table has its directory" if path in others else found[path] for path in found}

    def of_other_tables(self, table: LocationsTable) -> Collection[str]:
        """Return the files in directories that partitions of other tables share."""
        return table.of_other_tables()

    @port("put back")
    def put_back(self, ref: TableRef) -> Collection[str]:
        """Move partitions that a writer pointed back to their latest location again; also on halted tables.

        Returns the partitions that are skipped because they have incomplete files.
        """
        table: LocationsTable = self.table(ref)  # type: ignore[assignment]
        left = set()
        for partition in list(table.locations):
            own = table.own_location(partition)
            if own is None or not self.is_pointed_back(table, partition):
                continue
            if table.unfinished(partition):
                left.add(partition)
                continue
            self.world.tell(f"{table.name}: {partition} is put back to {own}")
            table.put_back(partition, own)
        return left

    def writer(self, ref: TableRef, spark: object, engines: Sequence[RewriteEngine] = ()) -> "LocationsWriter":
        """See the port."""
        return LocationsWriter(self, ref, engines)


class LocationsWriter(StagedWriter):
    """Changes one such table."""

    table: LocationsTable
    format: LocationsFormat
    max_commit_duration = timedelta(seconds=_SENT_WITHIN + _TIME_OUT)

    def evidence(self, plan: Plan) -> Evidence:
        """See ``StagedWriter``."""
        evidence = self.table.look(plan.partitions)
        self.look_at_partitions(evidence)
        return evidence

    def path_of(self, partition: str, token: str, number: int) -> str:
        """See ``StagedWriter``."""
        return f"new/{token}/{partition}/{number}"

    def staged(self, token: str, plan: Plan, groups: Sequence[int]) -> StagedWork:
        """See ``StagedWriter``: one directory."""
        return StagedWork(token=token, paths=(f"new/{token}/",))

    @port("commit")
    def commit(self, rewrite: Rewrite) -> Commit:
        """See the port."""
        table, prepared, plan = self.table, rewrite.prepared, rewrite.prepared.plan
        changed = {plan.groups[index].partition for index in prepared.live_groups}
        evidence: Evidence = {name: seen for name, seen in prepared.preconditions.items() if name in changed}  # type: ignore[attr-defined]
        slices = [item for index in prepared.live_groups for item in plan.groups[index].slices]
        self._carry(prepared, evidence, {str(item.path) for item in slices})
        looked_at = self.world.scheduler.now
        self.fence()
        self.written(rewrite)
        self.look_again(evidence)
        files = [file for partition in evidence for file in table.listing(partition).values()]
        commit = Commit(
            plan_id=plan.plan_id,
            instant=prepared.instant,
            outputs=rewrite.outputs,
            epoch=prepared.epoch,
            superseded=self.superseded(files, prepared.instant),
        )
        looked = table.booked(evidence)

        def land() -> None:
            if self.world.tables.get(self.ref.name) is not table:
                return  # renamed meanwhile
            if self.world.scheduler.now > looked_at + self.max_commit_duration.total_seconds():
                self.world.violated("landed late", f"{table.name}: {prepared.instant} took longer than it may")
            self.world.watch.landed(table, commit, [item.file_id for item in slices], looked_at)
            table.move(prepared.instant, commit, looked, evidence, looked_at)

        self.world.before("swap", lake=True)
        if self.is_too_late(looked_at):
            raise Transient("the call would come too late")
        random = self.world.random.random
        self.world.elsewhere(random() * (_TIME_OUT if random() < _SLOW_CALLS else 1.0), land)
        self.world.after("swap", lake=True)
        if table.own_location(next(iter(evidence))) != f"new/{prepared.instant}/{next(iter(evidence))}":
            raise CommitUnknown("the table has another name, or another commit")
        return commit

    def look_again(self, evidence: Evidence) -> None:
        """Raise Conflict if a partition has changed."""
        if self.table.look(evidence) != evidence:
            raise Conflict("a writer changed a partition before the commit")
        self.look_at_partitions(evidence)

    def look_at_partitions(self, evidence: Evidence) -> None:
        """Raise Conflict if a partition has a file that is being written, or has to be put back first."""
        for partition in evidence:
            if self.format.unfinished(self.table, partition) or self.format.is_pointed_back(self.table, partition):
                raise Conflict(f"partition {partition} is being written or was pointed back")

    def is_too_late(self, looked_at: float) -> bool:
        """Return True if the call could take effect after another executor has taken the plan over."""
        return self.world.scheduler.now > looked_at + _SENT_WITHIN

    def _carry(self, prepared: PreparedPlan, evidence: Evidence, rewritten: Collection[str]) -> None:
        """Link the files that are not rewritten into the new directories."""
        for partition, (_, files) in evidence.items():
            for path in files:
                if path not in rewritten and path in self.table.files:  # the check before the commit reports it
                    self.world.before("carry", lake=True)
                    file = self.table.files.get(path)
                    if file is not None:
                        name = path.rpartition("/")[2]
                        self.table.link(file, f"new/{prepared.instant}/{partition}/c-{name}", prepared.instant)

# SPDX-License-Identifier: Apache-2.0
"""The part of the database in memory with the journal of staged work and the partition locks."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lake.model import TableRef
from lake.plan import Claim, Commit, LockOwner, PlanState, StagedWork
from lake.plan_store import OrphanedStaging
from simulation.records import Row, Settings, StagedRow, transaction

if TYPE_CHECKING:
    from simulation.world import World


class JournalParts:
    """This part of ``lake.plan_store.PlanStore``."""

    world: "World"
    settings: Settings
    plans: dict[str, Row]
    live_partitions: dict[tuple[str, str], str]
    keepers: dict[tuple[str, str], tuple[LockOwner, float]]

    def now(self) -> float:
        """The database's clock."""
        raise NotImplementedError

    def hold(self, claim: Claim) -> Row:
        """Return the row of a claim that its executor still owns."""
        raise NotImplementedError

    @transaction
    def record_staged(self, claim: Claim, staged: StagedWork) -> None:
        """See the port."""
        row = self.hold(claim)
        row.staged = (*row.staged, StagedRow(staged=staged, epoch=claim.epoch, at=self.now()))

    @transaction
    def orphaned_stagings(self, table: TableRef) -> Sequence[OrphanedStaging]:
        """See the port."""
        return [
            OrphanedStaging(
                plan_id=row.plan.plan_id,
                partitions=row.plan.partitions,
                staged=one.staged,
                is_expired=one.at <= self.now() - self.settings.watched_for,
                table_identity=row.plan.table.identity,
            )
            for row, one in self._left(table)
            if not (row.state is PlanState.INFLIGHT and row.epoch == one.epoch)
        ]

    @transaction
    def clear_stagings(self, stagings: Collection[OrphanedStaging]) -> None:
        """See the port."""
        for entry in stagings:
            row = self.plans[entry.plan_id]
            row.staged = tuple(
                replace(one, cleared=True) if one.staged.token == entry.staged.token else one for one in row.staged
            )

    def clear_committed(self, row: Row, commit: Commit) -> None:
        """Remove the stagings whose files a commit has added to the table."""
        epoch = commit.epoch if commit.epoch is not None else row.epoch
        named = any(one.staged.token == commit.instant for one in row.staged)
        row.staged = tuple(
            replace(one, cleared=True) if (one.staged.token == commit.instant if named else one.epoch == epoch) else one
            for one in row.staged
        )

    def watched_long(self, table: TableRef) -> bool:
        """Return True if the sweep would clear an expired staging. Not a call of the port."""
        return any(one.at <= self.now() - self.settings.watched_for for _, one in self._left(table))

    def _left(self, table: TableRef) -> Iterator[tuple[Row, StagedRow]]:
        for row in self.plans.values():
            if row.plan.table.name == table.name:
                yield from ((row, one) for one in row.staged if not one.cleared)

    @transaction
    def lock_partitions(
        self, table: TableRef, partitions: Collection[str], owner: LockOwner, *, alongside_plans: bool = False
    ) -> Collection[str]:
        """See the port."""
        got = set()
        for part in sorted(partitions):
            free = (table.name, part) not in self.live_partitions
            if free and self.kept_by(table.name, part) in (None, owner):
                self.keepers[table.name, part] = owner, self.now() + self.settings.kept_for
                got.add(part)
        return got

    @transaction
    def renew_partitions(self, table: TableRef, partitions: Collection[str], owner: LockOwner) -> Collection[str]:
        """See the port."""
        mine = {part for part in partitions if self.kept_by(table.name, part) == owner}
        self.keepers |= {(table.name, part): (owner, self.now() + self.settings.kept_for) for part in mine}
        return mine

    def clock(self) -> float:
        """See the port."""
        return self.now()

    @transaction
    def release_partitions(self, owner: LockOwner) -> None:
        """See the port."""
        self.keepers = {key: held for key, held in self.keepers.items() if held[0] != owner}

    def kept_by(self, table: str, partition: str) -> LockOwner | None:
        """Return the round of the cleaner or the sweep that has locked a partition."""
        keeper, until = self.keepers.get((table, partition), (None, 0.0))
        return keeper if until > self.now() else None

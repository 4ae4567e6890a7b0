# SPDX-License-Identifier: Apache-2.0
"""The journal of staged files. Each attempt at a plan records its files here before the first file exists.

A table without a timeline does not show uncommitted work, so the sweep looks here for the work of a killed executor. It
watches each record for ``STAGED_WATCH_PERIOD``, because a suspended executor may continue to write.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Connection, select, update

from lake.model import TableRef
from lake.plan import STAGED_WATCH_PERIOD, Claim, Commit, PlanState, StagedWork
from lake.plan_store import OrphanedStaging
from service.control.store.base import StorePart, insert_if_absent, lock_claimed_row
from service.control.store.database import db_now, timedelta_to_ms
from service.control.store.models import GroupRow, PlanRow, StagedRow


class StagedJournal(StorePart):
    """The journal of staged files."""

    def record_staged(self, claim: Claim, staged: StagedWork) -> None:
        """Record the files that this attempt is about to stage. Raises LeaseLost.

        All attempts at an adopted plan use its instant, so the record of the last attempt replaces earlier records.
        """
        key = {"plan_id": claim.plan.plan_id, "token": staged.token}
        values = {"epoch": claim.epoch, "paths": list(staged.paths), "staged_at_ms": db_now(), "cleared_at_ms": None}
        with self._database.write() as connection:
            row = lock_claimed_row(connection, claim)
            if not insert_if_absent(connection, StagedRow, **key, table_name=row.table_name, **values):
                this = [getattr(StagedRow, name) == value for name, value in key.items()]
                connection.execute(update(StagedRow).where(*this).values(**values))

    def orphaned_stagings(self, table: TableRef) -> Sequence[OrphanedStaging]:
        """Return the stagings of the table's plans that were neither committed nor cleared.

        Stagings of an attempt that is still running are left out.
        """
        worked_on = (PlanRow.state == PlanState.INFLIGHT) & (PlanRow.epoch == StagedRow.epoch)
        left = StagedRow.table_name == table.name, StagedRow.cleared_at_ms.is_(None), ~worked_on
        is_old = StagedRow.staged_at_ms <= db_now() - timedelta_to_ms(STAGED_WATCH_PERIOD)
        query = (
            select(StagedRow.plan_id, StagedRow.token, StagedRow.paths, is_old.label("is_old"), PlanRow.identity)
            .join(PlanRow, PlanRow.id == StagedRow.plan_id)
            .where(*left)
            .order_by(StagedRow.staged_at_ms, StagedRow.token)
        )
        groups = (
            select(GroupRow.plan_id, GroupRow.partition_path)
            .join(PlanRow, PlanRow.id == GroupRow.plan_id)
            .join(StagedRow, StagedRow.plan_id == GroupRow.plan_id)
            .where(*left)
            .distinct()
            .order_by(GroupRow.partition_path)
        )
        partitions: dict[str, list[str]] = defaultdict(list)
        with self._database.read() as connection:
            rows = connection.execute(query).all()
            for group in connection.execute(groups):
                partitions[group.plan_id].append(group.partition_path)
        return [
            OrphanedStaging(
                plan_id=row.plan_id,
                partitions=partitions[row.plan_id],
                staged=_staged(row.token, row.paths),
                is_expired=bool(row.is_old),
                table_identity=row.identity,
            )
            for row in rows
        ]

    def staged_paths(self) -> Collection[str]:
        """Return the paths of all staged work of any table that is neither committed nor known to be cleared."""
        query = select(StagedRow.paths).where(StagedRow.cleared_at_ms.is_(None))
        with self._database.read() as connection:
            return {path for paths in connection.scalars(query) for path in paths}

    def clear_stagings(self, stagings: Collection[OrphanedStaging]) -> None:
        """Record that no file of these stagings exists, and that none can appear."""
        with self._database.write() as connection:
            for entry in stagings:
                this = StagedRow.plan_id == entry.plan_id, StagedRow.token == entry.staged.token
                connection.execute(update(StagedRow).where(*this).values(cleared_at_ms=db_now()))


def staged_by(connection: Connection, plan_id: str) -> tuple[StagedWork, ...]:
    """Return the stagings of all attempts at a plan, oldest first."""
    query = select(StagedRow.token, StagedRow.paths).where(StagedRow.plan_id == plan_id)
    ordered = query.order_by(StagedRow.epoch, StagedRow.staged_at_ms, StagedRow.token)
    return tuple(_staged(row.token, row.paths) for row in connection.execute(ordered))


def staged_tokens(connection: Connection, plan_ids: Collection[str]) -> Mapping[str, Sequence[str]]:
    """Return the tokens of the stagings of each of ``plan_ids``, oldest first."""
    query = select(StagedRow.plan_id, StagedRow.token).where(StagedRow.plan_id.in_(plan_ids))
    found: dict[str, list[str]] = {}
    for row in connection.execute(query.order_by(StagedRow.epoch, StagedRow.staged_at_ms, StagedRow.token)):
        found.setdefault(row.plan_id, []).append(row.token)
    return found


def clear_committed(connection: Connection, commit: Commit, epoch: int) -> None:
    """Record that the files of ``commit`` are part of the table. ``epoch`` is used if the commit has no epoch."""
    made_by = commit.epoch if commit.epoch is not None else epoch
    clear = update(StagedRow).where(StagedRow.plan_id == commit.plan_id).values(cleared_at_ms=db_now())
    # In some formats, the instant of a commit differs from the token of its staging.
    if not connection.execute(clear.where(StagedRow.token == commit.instant)).rowcount:
        connection.execute(clear.where(StagedRow.epoch == made_by))


def _staged(token: str, paths: Sequence[str]) -> StagedWork:
    return StagedWork(token=token, paths=tuple(paths))

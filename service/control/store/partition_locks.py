# SPDX-License-Identifier: Apache-2.0
"""Partition locks of plans, and of the cleaner and the sweep.

The cleaner and the sweep can lock a partition that a plan has locked. The sweep may copy late files into a partition
while a plan rewrites it; to the plan, they look like files of a writer. The plan needs exclusive access only during its
commit, because files that the sweep copies during the commit would remain in the previous location.
"""

from collections.abc import Callable, Collection
from datetime import timedelta

from sqlalchemy import ColumnElement, Connection, delete, insert, select, update

from lake.model import TableRef
from lake.plan import Claim, LockOwner, LockOwnerKind, PlanState
from service.control.store.base import StorePart, insert_if_absent, lock_claimed_row
from service.control.store.database import Database, db_now, timedelta_to_ms
from service.control.store.errors import ConstraintViolated, PartitionsLocked
from service.control.store.models import LivePartitionRow, PlanRow, TableRow
from service.control.store.other_names import owners_under_other_names, serialize_partition_locks
from service.control.store.tables import table_values

#: how long an owner holds its partitions without a renewal; this is longer than any call of a catalog
_LOCK_TTL = {LockOwnerKind.CLEANER: timedelta(minutes=10), LockOwnerKind.SWEEP: timedelta(minutes=2)}
MAX_LOCK_TTL = max(_LOCK_TTL.values())
"""The longest time that a lock with an expiry lasts without a renewal."""
#: attempts to lock partitions; one fails if the holder of a partition changes between check and insert
_LOCK_ATTEMPTS = 5


class PartitionLocks(StorePart):
    """Partitions locked for some minutes."""

    def lock_partitions(
        self, table: TableRef, partitions: Collection[str], owner: LockOwner, *, alongside_plans: bool = False
    ) -> Collection[str]:
        """Lock ``partitions`` for ``owner`` for some minutes. Returns the partitions that are now locked for the owner.

        With ``alongside_plans``, the sweep also locks partitions of plans that are not in their commit, and the cleaner
        also locks partitions of requested plans. If such a plan is claimed, it waits for the cleaner before its commit.
        A partition that is locked under another name of the table stays with its owner.
        The owner's own expired lock is replaced without notice. An owner that relies on data that it read under its
        lock must call ``renew_partitions``, which detects a lock that has expired in between.
        """
        row = LivePartitionRow
        is_own = row.keeper == owner.name
        until = db_now() + timedelta_to_ms(_LOCK_TTL[owner.kind])
        with self._database.write() as connection:
            serialize_partition_locks(connection, table)
            partitions = set(partitions).difference(*owners_under_other_names(connection, table))
            these = row.table_name == table.name, row.partition_path.in_(partitions)
            insert_if_absent(connection, TableRow, **table_values(table, "observe"))
            delete_expired_locks(connection, table.name)
            # Sorted, so that two owners of the same partitions never deadlock.
            for partition in sorted(partitions):
                key = {"table_name": table.name, "partition_path": partition}
                insert_if_absent(connection, row, **key, holder_kind=owner.kind, keeper=owner.name, expires_at_ms=until)
            connection.execute(update(row).where(*these, is_own).values(expires_at_ms=until))
            if alongside_plans:
                beside = update(row).where(*these, row.plan_id.is_not(None), _is_open_to(owner.name))
                if owner.kind is LockOwnerKind.CLEANER:
                    waiting = select(PlanRow.id).where(PlanRow.state == PlanState.REQUESTED)
                    beside = beside.where(row.plan_id.in_(waiting) | (row.guest == owner.name))
                connection.execute(beside.values(guest=owner.name, guest_until_ms=until))
            held = select(row.partition_path).where(*these, is_own | (row.guest == owner.name))
            return frozenset(connection.execute(held).scalars())

    def renew_partitions(self, table: TableRef, partitions: Collection[str], owner: LockOwner) -> Collection[str]:
        """Renew the locks of ``owner`` on ``partitions``. Returns the partitions whose lock had not expired."""
        with self._database.write() as connection:
            return renew_locks(connection, table.name, partitions, owner)

    def clock(self) -> float:
        """Return the time of the database's clock, in seconds since 1970."""
        with self._database.outside_transaction() as connection:
            return float(connection.execute(select(db_now())).scalar_one()) / 1000

    def release_partitions(self, owner: LockOwner) -> None:
        """Release every partition that ``owner`` holds."""
        row = LivePartitionRow
        with self._database.write() as connection:
            connection.execute(delete(row).where(row.keeper == owner.name))
            beside = update(row).where(row.guest == owner.name)
            connection.execute(beside.values(guest=None, guest_until_ms=None))

    def begin_commit(self, claim: Claim) -> Collection[str]:
        """Give the plan exclusive access to its partitions. Raises LeaseLost.

        Returns the partitions that other owners have locked. If there are any, the plan gets no exclusive access.
        """
        row, plan_id = LivePartitionRow, claim.plan.plan_id
        with self._database.write() as connection:
            lock_claimed_row(connection, claim)
            own = update(row).where(row.plan_id == plan_id, _is_open_to(plan_id))
            connection.execute(own.values(guest=plan_id, guest_until_ms=None))
            others = select(row.partition_path).where(row.plan_id == plan_id, row.guest != plan_id)
            taken = frozenset(connection.execute(others).scalars())
            if taken:
                end_exclusive_commit(connection, plan_id)
            return taken


def write_with_partitions(
    database: Database,
    table: TableRef,
    partitions: tuple[str, ...],
    write: Callable[[Connection], None],
    before: Callable[[Connection], None] = lambda connection: None,
) -> None:
    """Run ``before`` and ``write`` in a transaction. Raises PartitionsLocked if one of ``partitions`` has an owner.

    ``before`` may release partitions. The owners, under all names of the table, are checked between ``before`` and
    ``write``.
    """
    for attempt in range(_LOCK_ATTEMPTS):
        try:
            with database.write() as connection:
                serialize_partition_locks(connection, table)
                before(connection)
                _raise_if_locked(connection, table, partitions)
                write(connection)
            return
        except ConstraintViolated:
            # Another process has locked a partition between the check and the insert, or ``write`` itself is invalid.
            with database.write() as connection:
                _raise_if_locked(connection, table, partitions)
            if attempt == _LOCK_ATTEMPTS - 1:
                raise


def _raise_if_locked(connection: Connection, table: TableRef, partitions: tuple[str, ...]) -> None:
    by_plans, by_others = partition_owners(connection, table.name)
    plans_elsewhere, others_elsewhere = owners_under_other_names(connection, table)
    by_plans, by_others = plans_elsewhere | by_plans, others_elsewhere | by_others
    plans = {partition: by_plans[partition] for partition in partitions if partition in by_plans}
    other_owners = {partition: by_others[partition] for partition in partitions if partition in by_others}
    if plans or other_owners:
        raise PartitionsLocked(plans, other_owners)


def partition_owners(connection: Connection, table: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return partition → plan that holds it, and partition → description of another owner that holds it."""
    by_plans, by_others = dict[str, str](), dict[str, str]()
    in_force = LivePartitionRow.expires_at_ms.is_(None) | (LivePartitionRow.expires_at_ms > db_now())
    for row in connection.execute(
        select(LivePartitionRow.__table__).where(LivePartitionRow.table_name == table, in_force)
    ):
        if row.plan_id is not None:
            by_plans[row.partition_path] = row.plan_id
        else:
            by_others[row.partition_path] = str(LockOwner(kind=LockOwnerKind(row.holder_kind), name=row.keeper))
    return by_plans, by_others


def lock_plan_partitions(connection: Connection, table: str, plan_id: str, partitions: tuple[str, ...]) -> None:
    """Lock ``partitions`` for a plan. Raises ConstraintViolated if a partition has another owner."""
    delete_expired_locks(connection, table)
    # Sorted, so that two plans for the same partitions never deadlock.
    connection.execute(
        insert(LivePartitionRow),
        [
            {"table_name": table, "partition_path": p, "holder_kind": "plan", "plan_id": plan_id}
            for p in sorted(partitions)
        ],
    )


def renew_locks(connection: Connection, table: str, partitions: Collection[str], owner: LockOwner) -> frozenset[str]:
    """Renew the locks of ``owner`` on ``partitions``; return the partitions that it still holds.

    Their rows are locked until the transaction ends.
    """
    row = LivePartitionRow
    these = row.table_name == table, row.partition_path.in_(partitions)
    is_own = (row.keeper == owner.name) & (row.expires_at_ms > db_now())
    beside = (row.guest == owner.name) & (row.guest_until_ms > db_now())
    until = db_now() + timedelta_to_ms(_LOCK_TTL[owner.kind])
    connection.execute(update(row).where(*these, is_own).values(expires_at_ms=until))
    connection.execute(update(row).where(*these, beside).values(guest_until_ms=until))
    return frozenset(connection.execute(select(row.partition_path).where(*these, is_own | beside)).scalars())


def end_exclusive_commit(connection: Connection, plan_id: str) -> None:
    """Let other owners lock the partitions of a plan that is no longer in its commit."""
    row = LivePartitionRow
    own = update(row).where(row.plan_id == plan_id, row.guest == plan_id)
    connection.execute(own.values(guest=None, guest_until_ms=None))


def release_plan_partitions(connection: Connection, plan_id: str) -> None:
    """Release the partitions of a plan that has ended. A second owner (``guest``) keeps its partition."""
    row = LivePartitionRow
    # The kind of the second owner is not stored. It is usually the sweep, and locks are compared by the owner's name.
    kept = {
        "holder_kind": LockOwnerKind.SWEEP,
        "plan_id": None,
        "keeper": row.guest,
        "expires_at_ms": row.guest_until_ms,
    }
    busy = update(row).where(row.plan_id == plan_id, row.guest_until_ms > db_now())
    connection.execute(busy.values(**kept, guest=None, guest_until_ms=None))
    connection.execute(delete(row).where(row.plan_id == plan_id))


def delete_expired_locks(connection: Connection, table: str) -> None:
    """Delete the expired locks on partitions of the table."""
    expired = LivePartitionRow.table_name == table, LivePartitionRow.expires_at_ms <= db_now()
    connection.execute(delete(LivePartitionRow).where(*expired))


def _is_open_to(co_owner: str) -> ColumnElement[bool]:
    """Return the condition that a plan's partition has no second owner, or that this is ``co_owner``."""
    row = LivePartitionRow
    return row.guest.is_(None) | (row.guest == co_owner) | (row.guest_until_ms <= db_now())

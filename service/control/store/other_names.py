# SPDX-License-Identifier: Apache-2.0
"""Other names of one table: the prefix of its source, or the order of the sources, differs or has changed.

Plans and partition locks are stored under a table's name. If one table has two names, locks under one name would not
exclude owners under the other one. So each new lock is compared with the locks under all names of the table.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Select, delete, exists, select, text

from lake.model import CatalogRef, TableRef
from lake.plan import LockOwner, LockOwnerKind
from service.control.store.base import StorePart
from service.control.store.database import db_now
from service.control.store.models import LivePartitionRow, TableRow
from service.control.store.rows import catalog_ref
from service.control.store.views import OtherName

#: the first key of the locks that serialize new locks on the partitions of one table: an arbitrary number, the same in
#: every release
_TABLE_LOCK_CLASS = 0x6C616B


class OtherNames(StorePart):
    """Tables that are registered under several names."""

    def other_name_in_use(self, table: TableRef) -> OtherName | None:
        """Return another name of ``table`` under which a partition is locked, with one of the owners. None if none.

        Names of other tables that were at the same location before do not count.
        """
        lock = LivePartitionRow
        with self._database.read() as connection:
            names = _other_names_with_locks(connection, table)
            in_force = lock.expires_at_ms.is_(None) | (lock.expires_at_ms > db_now())
            found = connection.execute(_locks_under(names).where(in_force).limit(1)).one_or_none() if names else None
        return None if found is None else _other_name(found)


def serialize_partition_locks(connection: Connection, table: TableRef) -> None:
    """Make other new locks on partitions of ``table``, under any of its names, wait until this transaction ends.

    Call it before the transaction takes any other lock, since two transactions could deadlock otherwise. On SQLite,
    transactions that write run one by one in any case.
    """
    if connection.dialect.name == "postgresql":
        key = f"{table.format} {table.location if table.catalog is None else table.catalog.table}"
        lock = text("SELECT pg_advisory_xact_lock(:class, hashtext(:key))")
        connection.execute(lock, {"class": _TABLE_LOCK_CLASS, "key": key})


def owners_under_other_names(connection: Connection, table: TableRef) -> tuple[dict[str, str], dict[str, str]]:
    """Return partition → live plan, and partition → another owner's description, under the table's other names.

    Deletes the expired locks there. A deletion waits for a renewal that has not been committed yet, and a renewal for
    the deletion. If expired locks were only left out, both names' processes could have the partition.
    """
    names = _other_names_with_locks(connection, table)
    if not names:
        return {}, {}
    lock = LivePartitionRow
    connection.execute(delete(lock).where(lock.table_name.in_(names), lock.expires_at_ms <= db_now()))
    found = [_other_name(row) for row in connection.execute(_locks_under(names))]
    return (
        {one.partition: one.plan_id for one in found if one.plan_id is not None},
        {one.partition: one.owner for one in found if one.plan_id is None},
    )


def _locks_under(names: Sequence[str]) -> Select[*tuple[Any, ...]]:
    """Return the query for the locks under ``names``, sorted by name and partition."""
    lock = LivePartitionRow
    columns = lock.table_name, lock.partition_path, lock.plan_id, lock.holder_kind, lock.keeper
    return select(*columns).where(lock.table_name.in_(names)).order_by(lock.table_name, lock.partition_path)


def _other_names_with_locks(connection: Connection, table: TableRef) -> Sequence[str]:
    """Return the other names of ``table`` under which there are locks, perhaps expired ones.

    Formats without identities are left out: their tables have a lock of their own. A table that its owner has renamed
    in the catalog is left out as well: nothing can be committed to its former name. A name that is registered but was
    not scanned yet has no identity; the location decides then.
    """
    row = TableRow
    has_locks = exists().where(LivePartitionRow.table_name == row.name)
    is_there = row.name != table.name, row.format == table.format, row.location == table.location
    found = connection.execute(select(row.name, row.catalog, row.identity).where(has_locks, *is_there)).all()
    if not found:
        return []
    identity = table.identity
    if identity is None:
        identity = connection.execute(select(row.identity).where(row.name == table.name)).scalar_one_or_none()
    return [
        one.name
        for one in found
        if _name_in_catalog(catalog_ref(one.catalog)) == _name_in_catalog(table.catalog)
        and len({one.identity, identity} - {None}) == 1
    ]


def _name_in_catalog(catalog: CatalogRef | None) -> tuple[str, str] | None:
    """Return the table's name in its catalog. One catalog may be configured by two addresses."""
    return None if catalog is None else (catalog.kind, catalog.table)


def _other_name(row: Any) -> OtherName:
    if row.plan_id is not None:
        owner = f"plan {row.plan_id}"
    else:
        owner = str(LockOwner(kind=LockOwnerKind(row.holder_kind), name=row.keeper))
    return OtherName(
        name=row.table_name,
        partition=row.partition_path,
        plan_id=row.plan_id,
        owner=owner,
    )

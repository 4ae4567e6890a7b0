# SPDX-License-Identifier: Apache-2.0
"""Directories that partitions of several tables were read from: the partitions and plans of other tables there.

Each table records a directory in its own spelling: a directory below the table's own one by its path below it, any
other one by its full path.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence, Set

from sqlalchemy import Connection, Row, func, select, update

from lake.model import TableRef
from lake.plan import STAGED_WATCH_PERIOD, LocatedFile, PlanState
from lake.relocation.model import PlanElsewhere
from lake.storage.locations import relative_path, resolve_path
from service.control.store.base import StorePart, in_batches
from service.control.store.database import db_now, timedelta_to_ms
from service.control.store.models import GroupRow, PlanRow, RelocationRow, StagedRow, SupersededRow, TableRow
from service.control.store.repeated_replacements import closed_reason, locations_of_tables, paths_below_tables
from service.control.store.rows import table_state, unpack_slices


class SharedDirectories(StorePart):
    """See ``lake.relocation_store.RelocationStore``."""

    def other_tables_that_left(
        self, table: TableRef, locations: Collection[str]
    ) -> Sequence[tuple[TableRef, Set[str]]]:
        """Return the partitions of other tables with a recorded relocation away from one of ``locations``."""
        paths, found = {resolve_path(table.location, one) for one in locations}, defaultdict[str, set[str]](set)
        with self._database.read() as connection:
            for one in _relocations_from(connection, sorted(paths)):
                found[one.table_name].add(one.partition_path)
            found.pop(table.name, None)
            return [(other, found[other.name]) for other in _other_tables(connection, table, found)]

    def undecided_plans_elsewhere(self, table: TableRef, locations: Collection[str]) -> Sequence[PlanElsewhere]:
        """Return the plans of other tables with inputs in ``locations`` whose commit may not be recorded yet.

        These are inflight plans, and plans with staged files of which it is not recorded what has become of them. There
        are few of both.
        """
        paths, plan, staging = {resolve_path(table.location, one) for one in locations}, PlanRow, StagedRow
        of_others = plan.table_name != table.name, plan.format == table.format
        is_watched = func.max(staging.staged_at_ms) > db_now() - timedelta_to_ms(STAGED_WATCH_PERIOD)
        staged = select(staging.plan_id, is_watched).where(staging.cleared_at_ms.is_(None)).group_by(staging.plan_id)
        inflight = select(plan.id).where(plan.state == PlanState.INFLIGHT)
        columns, found = (plan.id, plan.table_name, plan.location, plan.state), list[Row[str, str, str, str]]()
        with self._database.read() as connection:
            watched = {plan_id: bool(is_new) for plan_id, is_new in connection.execute(staged)}
            for some in in_batches(sorted({*watched, *connection.execute(inflight).scalars()})):
                plans = connection.execute(select(*columns).where(plan.id.in_(some), *of_others)).all()
                found += [one for one in plans if not paths.isdisjoint(_input_directories(connection, one))]
            others = {one.name: one for one in _other_tables(connection, table, {one.table_name for one in found})}
        return [
            PlanElsewhere(
                plan_id=one.id,
                table=others[one.table_name],
                is_inflight=one.state == PlanState.INFLIGHT,
                is_watched=one.state != PlanState.INFLIGHT and watched.get(one.id, False),
            )
            for one in found
            if one.table_name in others
        ]


def close_deleted_elsewhere(
    connection: Connection, table: TableRef, plan_id: str, files: Sequence[LocatedFile]
) -> None:
    """Close the records of these files under a plan that lakefold has deleted for other tables.

    The other table replaced them last. After a database was lost, its commit may be found before the one of the plan.
    """
    by_path, row = {resolve_path(table.location, file.path): file for file in files}, SupersededRow
    left = _relocations_from(connection, sorted({path.rpartition("/")[0] for path in by_path}))
    plans = {(one.table_name, one.plan_id) for one in left} - {(table.name, plan_id)}
    locations = locations_of_tables(connection, {name for name, _ in plans if name != table.name})
    for name, other_plan in sorted(plans):
        if locations.get(name, table.location) == table.location:
            continue
        spelled = {relative_path(locations[name], path): file for path, file in by_path.items()}
        for some in in_batches(sorted(spelled)):
            deleted = row.deleted_at_ms.is_not(None), row.closed_reason.is_(None)
            these = row.plan_id == other_plan, row.path.in_(some), *deleted
            for one in connection.execute(select(row.__table__).where(*these)).all():
                file = spelled[one.path]
                if (file.bytes, file.modified_ms) == (one.bytes, one.modified_at_ms):
                    own = row.plan_id == plan_id, row.path == file.path, row.deleted_at_ms.is_(None)
                    closed = {"deleted_at_ms": db_now(), "closed_reason": closed_reason(other_plan, one.instant)}
                    connection.execute(update(row).where(*own).values(**closed))


def _relocations_from(connection: Connection, paths: Sequence[str]) -> Iterator[Row[str, str, str]]:
    """Yield table, partition and plan of each relocation away from one of the directories with these full paths."""
    row = RelocationRow
    moves = select(row.table_name, row.partition_path, row.plan_id)
    for some in in_batches(paths):
        yield from connection.execute(moves.where(row.left_place.in_(some))).all()
    for name, below in paths_below_tables(connection, paths):
        for some in in_batches(below):
            yield from connection.execute(moves.where(row.table_name == name, row.left_place.in_(some))).all()


def _other_tables(connection: Connection, table: TableRef, names: Collection[str]) -> list[TableRef]:
    """Return the tables of these names that have the format of ``table``, without other names of ``table`` itself."""
    row, found = TableRow, list[TableRef]()
    others = row.format == table.format, row.location != table.location
    for some in in_batches(sorted(names)):
        rows = connection.execute(select(row.__table__).where(row.name.in_(some), *others).order_by(row.name))
        found += [table_state(one).ref for one in rows]
    return found


def _input_directories(connection: Connection, plan: Row[str, str, str, str]) -> Set[str]:
    """Return the full paths of the directories that have the inputs of a plan."""
    row = GroupRow
    groups = connection.execute(select(row.partition_path, row.files).where(row.plan_id == plan.id))
    return {
        resolve_path(plan.location, one.path).rpartition("/")[0]
        for group in groups
        for one in unpack_slices(group.files, group.partition_path)
        if one.path is not None
    }

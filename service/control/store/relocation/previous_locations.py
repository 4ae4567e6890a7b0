# SPDX-License-Identifier: Apache-2.0
"""Previous locations that were left recently, and old relocations that may be pruned."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from datetime import timedelta
from hashlib import sha256
from itertools import takewhile
from typing import Any, TypeVar

from sqlalchemy import Connection, case, delete, func, or_, select, tuple_

from lake.model import TableRef
from lake.relocation.model import (
    NamedRelocation,
    PastRelocation,
    RelocatedPartition,
    RelocationHistory,
    VacatedLocation,
)
from service.control.store.base import StorePart, insert_if_absent
from service.control.store.database import db_now, timedelta_to_ms
from service.control.store.models import PlanRow, RelocationRow, SupersededRow
from service.control.store.relocation.relocated_partitions import load_relocated_by_number
from service.control.store.relocation.tokens import DISCARDED_PREFIX, RECREATED_PREFIX, RELEASED_PREFIX, is_recreated

T = TypeVar("T")

#: maximum number of rows that one statement reads or changes
_CHUNK = 500
_MIN_HISTORY = 4
"""Relocations of a partition are pruned only if there are at least this many: the first and the last two are kept."""


class PreviousLocations(StorePart):
    """See ``lake.relocation_store.RelocationStore``."""

    def recently_vacated(self, table: TableRef, within: timedelta, limit: int) -> Sequence[VacatedLocation]:
        """Return the locations that the newest ``limit`` relocations of the last ``within`` vacated, newest first."""
        row = RelocationRow
        lately = (
            select(row.id, row.partition_path, row.left_place)
            .where(
                row.begun_at_ms > db_now() - timedelta_to_ms(within),
                row.table_name == table.name,
                ~row.token.startswith(RELEASED_PREFIX),  # no relocation, and the files there are not the partition's
            )
            .order_by(row.begun_at_ms.desc())
            .limit(limit)
        )
        with self._database.read() as connection:
            return [
                VacatedLocation(relocation_id=number, partition=name, location=at)
                for number, name, at in connection.execute(lately)
            ]

    def recently_relocated(self, table: TableRef, vacated: Sequence[VacatedLocation]) -> Sequence[RelocatedPartition]:
        """Return the partitions of these relocations, with only these relocations.

        ``previous_locations`` does not contain locations that were vacated earlier, and ``late_copies`` does not
        contain finished copies.
        """
        numbers: dict[str, list[int]] = defaultdict(list)
        for one in vacated:
            numbers[one.partition].append(one.relocation_id)
        found: list[RelocatedPartition] = []
        with self._database.read() as connection:
            for names in _chunks(sorted(numbers)):
                found += load_relocated_by_number(
                    connection, table.name, names, [number for name in names for number in numbers[name]]
                )
        return found

    def partitions_of_relocations(self, table: TableRef, relocations: Collection[NamedRelocation]) -> Set[str]:
        """Return the partitions that have these relocations on record, with the same creation times."""
        row, found = RelocationRow, set[str]()
        wanted = {(one.token, one.partition_created_at) for one in relocations}
        with self._database.read() as connection:
            for some in _chunks(sorted({token for token, _ in wanted})):
                these = row.table_name == table.name, row.token.in_(some), row.made_at_ms.is_not(None)
                rows = connection.execute(select(row.partition_path, row.token, row.partition_made_at).where(*these))
                found |= {one.partition_path for one in rows if (one.token, one.partition_made_at) in wanted}
        return found

    def partitions_that_left(self, table: TableRef, locations: Collection[str]) -> Set[str]:
        """Return the partitions with a recorded relocation away from one of ``locations``."""
        row, found = RelocationRow, set[str]()
        with self._database.read() as connection:
            for some in _chunks(sorted(locations)):
                # Without DISTINCT, for which SQLite would read all relocations of the table in the order of partitions.
                names = select(row.partition_path).where(row.table_name == table.name, row.left_place.in_(some))
                found.update(connection.execute(names).scalars())
        return found

    def add_recreated_locations(self, table: TableRef, partition: str, locations: Collection[str]) -> int:
        """Record recreated locations whose records were pruned, so that the sweep checks them again.

        Returns the number of new records; 0 for a partition that was never relocated.
        """
        row, added = RelocationRow, 0
        these = row.table_name == table.name, row.partition_path == partition
        with self._database.write() as connection:
            rows = connection.execute(select(row.__table__).where(*these).order_by(row.id)).all()
            made = [one for one in rows if one.made_at_ms is not None and not is_recreated(one.token)]
            if not made:
                return 0
            # The location of an earlier relocation is swept only while the relocation away from it is recorded.
            may_be = {one.place for one in rows if one.made_at_ms is None} | {made[-1].place}
            known = may_be | {one.left_place for one in rows}
            for location in sorted(set(locations) - known):
                added += insert_if_absent(
                    connection,
                    row,
                    table_name=table.name,
                    partition_path=partition,
                    token=f"{RECREATED_PREFIX}{sha256(location.encode()).hexdigest()[:32]}",
                    plan_id=made[-1].plan_id,
                    left_place=location,
                    place=made[-1].place,
                    files=[],
                    left_files=[],
                    partition_made_at=made[-1].partition_made_at,
                    begun_at_ms=db_now(),
                    made_at_ms=db_now(),
                )
        return added

    def relocation_histories(
        self, table: TableRef, age: timedelta, after: str, limit: int
    ) -> tuple[Sequence[RelocationHistory], str]:
        """Return the relocations of the next ``limit`` partitions that may have prunable ones, and the last one's name.

        These are partitions that were often relocated, or that have a discarded relocation. The name is '' at the end.
        A relocation ``is_cleaned_up`` if it was applied or discarded longer than ``age`` ago, and all files that it and
        earlier relocations replaced were deleted before then. Partitions with an unfinished relocation are left out,
        and so are partitions with recorded relocations of another table.
        """
        row = RelocationRow
        is_discarded = case((row.token.startswith(DISCARDED_PREFIX), 1), else_=0)
        often = (
            select(row.partition_path)
            .where(row.table_name == table.name, row.partition_path > after)
            .group_by(row.partition_path)
            .having(or_(func.count() >= _MIN_HISTORY, func.max(is_discarded) == 1))
            .order_by(row.partition_path)
            .limit(limit)
        )
        with self._database.read() as connection:
            names = list(connection.execute(often).scalars())
            found = [past for some in _chunks(names) for past in _load_histories(connection, table.name, some, age)]
        return found, names[-1] if len(names) == limit else ""

    def tokens_used_elsewhere(self, table: TableRef, relocations: Sequence[PastRelocation]) -> Collection[str]:
        """Return the tokens of these relocations that other partitions of the table use too."""
        row, counts, left = RelocationRow, Counter(move.token for move in relocations), set[str]()
        with self._database.read() as connection:
            for some in _chunks(sorted(counts)):
                these = select(row.token, func.count()).where(row.table_name == table.name, row.token.in_(some))
                found = connection.execute(these.group_by(row.token))
                left |= {token for token, count in found if count > counts[token]}
        return left

    def prune_relocations(self, table: TableRef, relocation_ids: Collection[int]) -> int:
        """Delete the relocations with these row ids, except each partition's last one. Returns how many were deleted.

        Records of released locations are deleted with the relocation that left the location.
        """
        row, forgotten = RelocationRow, 0
        for some in _chunks(sorted(relocation_ids)):
            with self._database.write() as connection:
                these = row.table_name == table.name, row.id.in_(some), row.made_at_ms.is_not(None)
                names = connection.execute(select(row.partition_path).where(*these).distinct()).scalars().all()
                of_names = row.table_name == table.name, row.partition_path.in_(names)
                last = select(func.max(row.id)).where(*of_names, ~row.token.startswith(RECREATED_PREFIX))
                kept = connection.execute(last.group_by(row.partition_path)).scalars().all()
                pruned = delete(row).where(*these, row.id.not_in(kept)).returning(row.partition_path, row.token)
                released = [(partition, f"{RELEASED_PREFIX}{token}") for partition, token in connection.execute(pruned)]
                forgotten += len(released)
                key = tuple_(row.partition_path, row.token)
                connection.execute(delete(row).where(row.table_name == table.name, key.in_(released)))
        return forgotten


def _load_histories(
    connection: Connection, table: str, names: Sequence[str], age: timedelta
) -> Iterator[RelocationHistory]:
    row = RelocationRow
    is_old = (row.made_at_ms < db_now() - timedelta_to_ms(age)).label("is_old")
    every = select(
        row.id,
        row.partition_path,
        row.token,
        row.plan_id,
        row.left_place,
        row.place,
        row.made_at_ms,
        is_old,
        PlanRow.identity,
    ).outerjoin(PlanRow, PlanRow.id == row.plan_id)
    is_discarded = row.token.startswith(DISCARDED_PREFIX)
    is_relocation = or_(~row.token.startswith(RECREATED_PREFIX), is_discarded)
    these = row.table_name == table, row.partition_path.in_(names), is_relocation
    rows: dict[str, list[Any]] = defaultdict(list)
    for one in connection.execute(every.where(*these).order_by(row.id)):
        rows[one.partition_path].append(one)
    needed = _awaiting_deletion(connection, table, rows, age)
    for name, every_move in rows.items():
        identities = {one.identity for one in every_move} - {None}
        moves = [one for one in every_move if not is_recreated(one.token)]
        if len(identities) > 1 or not moves or any(one.made_at_ms is None for one in moves):
            continue
        # Later records of a location identify the files that were copied from it, until the files in it are deleted.
        cleaned_up = takewhile(lambda one: one.is_old and (one.partition_path, one.token) not in needed, moves)
        numbers = {one.id for one in cleaned_up}
        yield RelocationHistory(
            partition=name,
            relocations=tuple(_past_relocation(one, is_cleaned_up=one.id in numbers) for one in moves),
            discarded=tuple(
                _past_relocation(one, is_cleaned_up=one.is_old) for one in every_move if is_recreated(one.token)
            ),
        )


def _past_relocation(row: Any, *, is_cleaned_up: bool) -> PastRelocation:
    return PastRelocation(
        relocation_id=row.id,
        token=row.token.removeprefix(DISCARDED_PREFIX),
        previous_location=row.left_place,
        location=row.place,
        is_cleaned_up=is_cleaned_up,
        is_by_plan=row.token.startswith(row.plan_id),
    )


def _awaiting_deletion(
    connection: Connection, table: str, rows: Mapping[str, Sequence[Any]], age: timedelta
) -> Collection[tuple[str, str]]:
    """Return partition and token of relocations with a replaced file that exists or was deleted in the last ``age``."""
    row, found = SupersededRow, set[tuple[str, str]]()
    chosen = select(row.partition_path, row.instant)
    plans = sorted({one.plan_id for moves in rows.values() for one in moves if one.is_old})
    lately = row.deleted_at_ms.is_(None) | (row.deleted_at_ms > db_now() - timedelta_to_ms(age))
    for some in _chunks(plans):
        these = row.plan_id.in_(some), row.table_name == table, row.partition_path.in_(sorted(rows)), lately
        found |= {(one.partition_path, one.instant) for one in connection.execute(chosen.where(*these))}
    return found


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), _CHUNK):
        yield items[start : start + _CHUNK]

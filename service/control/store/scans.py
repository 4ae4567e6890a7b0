# SPDX-License-Identifier: Apache-2.0
"""The results of scans: the last ones of each table, its first successful one, and its last successful one."""

import json
from collections.abc import Collection, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, delete, func, insert, select, update

from planner.slo.model import ObjectiveEvaluation
from service.control.store.base import PackedQuery, RowCache, StorePart, TablesQuery, in_batches, storable_text
from service.control.store.database import datetime_from_ms, datetime_to_ms
from service.control.store.errors import NotFound
from service.control.store.models import ScanRow, TableRow
from service.control.store.notifications import NotifiedEvent, enqueue_notification
from service.control.store.objectives import record_objectives
from service.control.store.partition_layouts import store_partition_layout
from service.control.store.views import ReferenceScans, ScanRecord

if TYPE_CHECKING:
    import pyarrow as pa

_SCAN_IDS_QUERY = TablesQuery(
    select(TableRow.name, TableRow.last_scan_id, TableRow.last_ok_scan_id, TableRow.first_ok_scan_id), TableRow.name
)
_SCANS_QUERY = PackedQuery(
    select(ScanRow.id, ScanRow.record, ScanRow.taken_at_ms).where(ScanRow.id.in_(bindparam("ids", expanding=True)))
)
_SCAN_FIELDS = frozenset(field.name for field in fields(ScanRecord))


class Scans(StorePart):
    """Scans of registered tables."""

    def record_scan(
        self, scan: ScanRecord, partitions: "pa.Table | None" = None, evaluations: Sequence[ObjectiveEvaluation] = ()
    ) -> None:
        """Store the result of a scan, and delete the table's oldest scans. Raises NotFound for an unknown table.

        ``partitions`` are those of a successful full scan, in the columns of ``PARTITION_SCHEMA``. ``evaluations`` are
        the results of this scan for all objectives of the table.
        """
        document = {field.name: getattr(scan, field.name) for field in fields(scan) if field.name != "taken_at"}
        document |= {"skipped": dict(scan.skipped), "skipped_bytes": dict(scan.skipped_bytes)}
        error = storable_text(scan.error or "unknown error") if scan.outcome == "error" else None
        with self._database.write() as connection:
            known = connection.execute(select(TableRow.name).where(TableRow.name == scan.table)).one_or_none()
            if known is None:
                raise NotFound(f"no table {scan.table!r} is registered")
            added = connection.execute(
                insert(ScanRow)
                .values(
                    table_name=scan.table,
                    taken_at_ms=datetime_to_ms(scan.taken_at),
                    outcome=scan.outcome,
                    error=error,
                    record=document | {"error": error},
                )
                .returning(ScanRow.id)
            ).scalar_one()
            pointers: dict[str, Any] = {"last_scan_id": added}
            if scan.outcome == "ok":
                pointers |= _scan_columns(scan) | {
                    "last_ok_scan_id": added,
                    "first_ok_scan_id": func.coalesce(TableRow.first_ok_scan_id, added),
                }
            self._notify_scan_outcome(connection, scan, error)
            connection.execute(update(TableRow).where(TableRow.name == scan.table).values(**pointers))
            if partitions is not None:
                store_partition_layout(connection, scan, partitions)
            if scan.outcome == "ok":
                record_objectives(connection, scan.table, evaluations)
            oldest_kept = (
                select(ScanRow.id)
                .where(ScanRow.table_name == scan.table)
                .order_by(ScanRow.id.desc())
                .limit(1)
                .offset(self._settings.scans_kept - 1)
            )
            cut = connection.execute(oldest_kept).scalar_one_or_none()
            if cut is not None:
                pointed = select(TableRow.first_ok_scan_id, TableRow.last_ok_scan_id).where(TableRow.name == scan.table)
                keep = [scan_id for scan_id in connection.execute(pointed).one() if scan_id is not None]
                old = delete(ScanRow).where(ScanRow.table_name == scan.table, ScanRow.id < cut)
                connection.execute(old.where(ScanRow.id.not_in(keep)))

    def last_scan(self, name: str, *, ok: bool = False) -> ScanRecord | None:
        """Return the newest scan of a table, or with ``ok`` the newest successful one; None if there is none."""
        return self._last_scans(ok, TableRow.name == name).get(name)

    def last_scans(self, names: Collection[str] | None = None, *, ok: bool = False) -> dict[str, ScanRecord]:
        """Return table → ``last_scan``, for all tables or for ``names``; tables without a scan are left out."""
        return self._last_scans(ok, *(() if names is None else [TableRow.name.in_(names)]))

    def first_scan(self, name: str) -> ScanRecord | None:
        """Return the oldest successful scan of a table, which is never deleted; None if there is none."""
        return self._scans_at(TableRow.first_ok_scan_id, TableRow.name == name).get(name)

    def reference_scans(self, cache: RowCache | None = None, *, names: Collection[str] | None = None) -> ReferenceScans:
        """Return the last, the last successful and the first successful scan of all tables, or of ``names``.

        Each scan is read only once, and not at all if it is in ``cache``.
        """
        cache = cache or RowCache()
        with self._database.read() as connection:
            pointed = sorted(self._rows_of_tables(connection, _SCAN_IDS_QUERY, names))
            # A scan never changes, and a scan with a pointer to it is never deleted.
            keys = list(dict.fromkeys((id_, name) for name, *ids in pointed for id_ in ids if id_ is not None))
            records = {
                id_: (record, at)
                for batch in in_batches([id_ for id_, _ in cache.uncached_rows("scan", keys)])
                for id_, record, at in _SCANS_QUERY.rows(connection, ids=batch)
            }
        # The scans of all tables bypass the lru_cache, because they would evict the scans of the tables on one page.
        make = _scan_from_json if names is None else _cached_scan_from_json
        scans = cache.objects_of("scan", keys, lambda key: make(*records[key[0]]))
        by_id = {id_: scan for (id_, _), scan in zip(keys, scans, strict=True)}
        last, good, first = (
            {row[0]: by_id[row[index]] for row in pointed if row[index] is not None} for index in (1, 2, 3)
        )
        return ReferenceScans(latest=last, latest_ok=good, first_ok=first)

    def scans(self, name: str, limit: int = 288) -> list[ScanRecord]:
        """Return the newest scans of a table, newest first."""
        with self._database.read() as connection:
            rows = connection.execute(
                select(ScanRow.record, ScanRow.taken_at_ms)
                .where(ScanRow.table_name == name, self._is_in_scope(ScanRow.table_name))
                .order_by(ScanRow.id.desc())
                .limit(limit)
            )
            return [_scan_from_document(row.record, row.taken_at_ms) for row in rows]

    def _last_scans(self, ok: bool, *conditions: Any) -> dict[str, ScanRecord]:
        return self._scans_at(TableRow.last_ok_scan_id if ok else TableRow.last_scan_id, *conditions)

    def _scans_at(self, pointer: Any, *conditions: Any) -> dict[str, ScanRecord]:
        with self._database.read() as connection:
            rows = connection.execute(
                select(ScanRow.table_name, ScanRow.record, ScanRow.taken_at_ms)
                .join(TableRow, pointer == ScanRow.id)
                .where(self._is_in_scope(TableRow.name), *conditions)
                .order_by(ScanRow.table_name)
            )
            return {row.table_name: _scan_from_document(row.record, row.taken_at_ms) for row in rows}

    def _notify_scan_outcome(self, connection: Any, scan: ScanRecord, error: str | None) -> None:
        """Notify if a scan fails after a successful one, or succeeds after a failed one."""
        last = select(ScanRow.outcome).join(TableRow, TableRow.last_scan_id == ScanRow.id)
        before = connection.execute(last.where(TableRow.name == scan.table)).scalar_one_or_none() or "ok"
        if before != scan.outcome:
            event = "scan.recovered" if error is None else "scan.failing"
            enqueue_notification(
                connection, self._settings, NotifiedEvent(event=event, table=scan.table, reason=error or "")
            )


def _scan_columns(scan: ScanRecord) -> dict[str, Any]:
    """Return the figures of a good scan that are also stored in its table's row."""
    return {
        "good_scanned_at_ms": datetime_to_ms(scan.taken_at),
        "good_files": scan.files,
        "good_bytes": scan.bytes,
        "good_small_files": scan.small_files,
        "good_reducible_files": scan.reducible_files,
        "good_reducible_bytes": scan.reducible_bytes,
        "good_median_bytes": scan.median_bytes,
    }


def _scan_from_document(document: dict[str, Any], taken_at_ms: int) -> ScanRecord:
    known = {name: value for name, value in document.items() if name in _SCAN_FIELDS}  # a later release may add fields
    return ScanRecord(
        **{**known, "histogram": tuple(document["histogram"]), "taken_at": datetime_from_ms(taken_at_ms)},
    )


def _scan_from_json(record: str, taken_at_ms: int) -> ScanRecord:
    return _scan_from_document(json.loads(record), taken_at_ms)


#: caches the scans of the tables on a page, which is loaded repeatedly
_cached_scan_from_json = lru_cache(maxsize=1024)(_scan_from_json)

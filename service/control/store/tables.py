# SPDX-License-Identifier: Apache-2.0
"""Registered tables: mode, pause, halt, quarantine, and the results of scans."""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlalchemy import Connection, bindparam, delete, func, insert, select, update

from lake.model import TableRef, partition_label
from lake.plan import LIVE_STATES
from planner.slo.model import ObjectiveEvaluation
from service.control.store.audit import record_audit
from service.control.store.base import (
    PackedQuery,
    RowCache,
    StorePart,
    TablesQuery,
    in_batches,
    insert_if_absent,
    storable_text,
    with_row_locks,
)
from service.control.store.database import datetime_from_ms, datetime_to_ms, db_now
from service.control.store.errors import NotFound
from service.control.store.models import ALL_TABLES, PartitionLayoutRow, PlanRow, ScanRow, SupersededRow, TableRow
from service.control.store.notifications import NotifiedEvent, enqueue_notification
from service.control.store.objectives import record_objectives
from service.control.store.rows import TABLE_COLUMNS, pause_of, table_state, table_state_from_texts
from service.control.store.views import PartitionLayout, Pause, ReferenceScans, ScanRecord, StoreSettings, TableState
from service.modes import PLANNED_MODES

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

_STATES_QUERY = TablesQuery(select(*TABLE_COLUMNS).where(TableRow.name != ALL_TABLES), TableRow.name)
_SCAN_IDS_QUERY = TablesQuery(
    select(TableRow.name, TableRow.last_scan_id, TableRow.last_ok_scan_id, TableRow.first_ok_scan_id), TableRow.name
)
_SCANS_QUERY = PackedQuery(
    select(ScanRow.id, ScanRow.record, ScanRow.taken_at_ms).where(ScanRow.id.in_(bindparam("ids", expanding=True)))
)


def table_values(table: TableRef, mode: str) -> dict[str, Any]:
    """Return the values of the columns of a newly registered table."""
    return {
        "name": table.name,
        "format": table.format,
        "location": table.location,
        "catalog": table.catalog and asdict(table.catalog),
        "identity": table.identity,
        "concurrency": table.concurrency.value,
        "on_conflict": table.on_conflict and table.on_conflict.value,
        "write_options": dict(table.write_options),
        "mode": mode,
        "registered_at_ms": db_now(),
    }


def join_tags(tags: Collection[str]) -> str | None:
    """Return ``tags`` as the text to store, each tag between two blanks. Returns None if there are no tags."""
    return f" {' '.join(sorted(tags))} " if tags else None


class Tables(StorePart):
    """Registered tables and their scans."""

    def register_table(
        self,
        table: TableRef,
        mode: str,
        owner: str | None = None,
        tags: Collection[str] = (),
        resource_group: str | None = None,
    ) -> None:
        """Register ``table``, or update its registration to the present configuration.

        A tag must not contain a blank. Every later use of the table reads the registration; so do executors of older
        plans. Pause, halts and quarantine do not change. The identity does not change if ``table`` has none.
        """
        values = table_values(table, mode) | {"owner": owner, "tags": join_tags(tags), "resource_group": resource_group}
        with self._database.write() as connection:
            if not insert_if_absent(connection, TableRow, **values):
                kept = {"name", "registered_at_ms"} | ({"identity"} if table.identity is None else set())
                changed = {key: value for key, value in values.items() if key not in kept}
                connection.execute(update(TableRow).where(TableRow.name == table.name).values(**changed))

    def table_states(self, names: Collection[str] | None = None) -> list[TableState]:
        """Return the registered tables, all or only those among ``names``, sorted by name."""
        with self._database.read() as connection:
            rows = self._rows_of_tables(connection, _STATES_QUERY, names)
        return [table_state_from_texts(row) for row in sorted(rows)]

    def formats_in_use(self) -> Collection[str]:
        """Return the formats of tables that are planned, have a live plan, or have files awaiting deletion."""
        waiting = select(SupersededRow.table_name).where(SupersededRow.deleted_at_ms.is_(None))
        planned = TableRow.mode.in_(PLANNED_MODES) | TableRow.name.in_(waiting)
        with self._database.read() as connection:
            of_tables = connection.execute(
                select(TableRow.format).where(TableRow.name != ALL_TABLES, planned).distinct()
            )
            return frozenset(of_tables.scalars()) | _formats_of_live_plans(connection)

    def formats_of_live_plans(self) -> Collection[str]:
        """Return the formats of the tables with a live plan. Cheap."""
        with self._database.read() as connection:
            return _formats_of_live_plans(connection)

    def table_state(self, name: str) -> TableState:
        """Return the registered table ``name``. Raises NotFound."""
        with self._database.read() as connection:
            row = connection.execute(
                select(TableRow.__table__).where(
                    TableRow.name == name, TableRow.name != ALL_TABLES, self._is_in_scope(TableRow.name)
                )
            ).one_or_none()
        if row is None:
            raise NotFound(f"no table {name!r} is registered")
        return table_state(row)

    def pause(self, name: str | None, actor: str, reason: str = "") -> None:
        """Pause the table ``name``, or the service if None: no plan is claimed until ``resume``. Raises NotFound."""
        reason = storable_text(" ".join(reason.split()))
        with self._database.write() as connection:
            if name is None:
                everything = TableRef(name=ALL_TABLES, format="", location="")
                insert_if_absent(connection, TableRow, **table_values(everything, "observe"))
            why = f"by {actor}: {reason}" if reason else f"by {actor}"
            self._notify_change(connection, "table.paused", name, why, TableRow.paused_at_ms.is_(None))
            self._update_registered(
                connection, name, paused_at_ms=db_now(), paused_by=actor, paused_reason=reason or None
            )
            record_audit(connection, actor, "paused", table=name, detail=reason)
        _log_change("paused", name, why)

    def resume(self, name: str | None, actor: str) -> None:
        """End the pause, the halts and the quarantine of table ``name``, and allow new plans for files of failed plans.

        If ``name`` is None, ends the pause of the service. Pauses and halts of single tables stay. Raises NotFound.
        """
        with self._database.write() as connection:
            halted = TableRow.halted_at_ms.is_not(None) | (TableRow.halted_partitions != {})
            held = TableRow.paused_at_ms.is_not(None) | halted
            self._notify_change(connection, "table.resumed", name, f"by {actor}", held)
            unpaused = {"paused_at_ms": None, "paused_by": None, "paused_reason": None}
            if name is None and self._table_scope.is_unrestricted:
                self._update(connection, ALL_TABLES, **unpaused)
            else:
                self._update_registered(
                    connection,
                    name,
                    **unpaused,
                    halted_at_ms=None,
                    halted_reason=None,
                    halted_partitions={},
                    quarantined={},
                    quarantined_bytes={},
                )
                failed = update(PlanRow).where(PlanRow.table_name == name, PlanRow.failure.is_not(None))
                connection.execute(failed.values(failure=None))
            record_audit(connection, actor, "resumed", table=name)
        _log_change("resumed", name, f"by {actor}")

    def end_quarantine(self, name: str, replaced: Mapping[str, int]) -> None:
        """End the quarantine of the paths in ``replaced`` (path → size) whose recorded size is still that size."""
        this_table = TableRow.name == name
        columns = select(TableRow.quarantined, TableRow.quarantined_bytes).where(this_table)
        with self._database.write() as connection:
            known, sizes = connection.execute(with_row_locks(columns)).one()
            ended = {path for path, size in replaced.items() if sizes.get(path) == size}
            both = {
                "quarantined": {path: reason for path, reason in known.items() if path not in ended},
                "quarantined_bytes": {path: size for path, size in sizes.items() if path not in ended},
            }
            connection.execute(update(TableRow).where(this_table).values(both))

    def service_pause(self) -> Pause | None:
        """Return the pause of the whole service; None if it is not paused."""
        with self._database.read() as connection:
            return service_pause(connection)

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
            self._update(connection, scan.table, **pointers)
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

    def _update_registered(self, connection: Any, name: str | None, **values: Any) -> None:
        if (
            name == ALL_TABLES
            or not self._table_scope.has_table(name)
            or self._update(connection, name or ALL_TABLES, **values) != 1
        ):
            raise NotFound(f"no table {name!r} is registered")

    def _notify_change(self, connection: Any, event: str, name: str | None, reason: str, condition: Any) -> None:
        """Notify of a pause or resume of table ``name``, or of the service if None, if ``condition`` holds for it."""
        here = select(TableRow.name).where(TableRow.name == (name or ALL_TABLES), condition)
        if connection.execute(here).one_or_none() is not None:
            enqueue_notification(connection, self._settings, NotifiedEvent(event=event, table=name, reason=reason))

    def _notify_scan_outcome(self, connection: Any, scan: ScanRecord, error: str | None) -> None:
        """Notify if a scan fails after a successful one, or succeeds after a failed one."""
        last = select(ScanRow.outcome).join(TableRow, TableRow.last_scan_id == ScanRow.id)
        before = connection.execute(last.where(TableRow.name == scan.table)).scalar_one_or_none() or "ok"
        if before != scan.outcome:
            event = "scan.recovered" if error is None else "scan.failing"
            enqueue_notification(
                connection, self._settings, NotifiedEvent(event=event, table=scan.table, reason=error or "")
            )

    @staticmethod
    def _update(connection: Any, name: str, **values: Any) -> int:
        return int(connection.execute(update(TableRow).where(TableRow.name == name).values(**values)).rowcount)


def _log_change(what: str, name: str | None, why: str) -> None:
    if name is None:
        logger.info("everything %s %s", what, why)
    else:
        logger.info("table %s %s %s", name, what, why, extra={"table": name})


def service_pause(connection: Any) -> Pause | None:
    """Return the pause of the whole service; None if it is not paused."""
    everything = select(TableRow.__table__).where(TableRow.name == ALL_TABLES)
    row = connection.execute(everything).one_or_none()
    return None if row is None else pause_of(row)


def is_served(table_name: Any) -> Any:
    """Return the condition that the table is neither paused nor halted, and that the service is not paused."""
    held_back = select(TableRow.name).where(TableRow.paused_at_ms.is_not(None) | TableRow.halted_at_ms.is_not(None))
    everything = select(TableRow.name).where(TableRow.name == ALL_TABLES, TableRow.paused_at_ms.is_not(None))
    return table_name.not_in(held_back) & ~everything.exists()


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


def _scan_from_json(record: str, taken_at_ms: int) -> ScanRecord:
    return _scan_from_document(json.loads(record), taken_at_ms)


_SCAN_FIELDS = frozenset(field.name for field in fields(ScanRecord))
#: caches the scans of the tables on a page, which is loaded repeatedly
_cached_scan_from_json = lru_cache(maxsize=1024)(_scan_from_json)


def _scan_from_document(document: dict[str, Any], taken_at_ms: int) -> ScanRecord:
    known = {name: value for name, value in document.items() if name in _SCAN_FIELDS}  # a later release may add fields
    return ScanRecord(
        **{**known, "histogram": tuple(document["histogram"]), "taken_at": datetime_from_ms(taken_at_ms)},
    )


def _formats_of_live_plans(connection: Connection) -> frozenset[str]:
    live = select(PlanRow.format).where(PlanRow.state.in_(LIVE_STATES)).distinct()
    return frozenset(connection.execute(live).scalars())


#: maximum number of halted partitions of a table; one more halts the whole table
MAX_HALTED_PARTITIONS = 100


class Halts(StorePart):
    """Halts of tables and of partitions; implements a part of ``lake.plan_store.PlanStore``."""

    def halt_table(self, table: TableRef, reason: str) -> bool:
        """Halt a table until a person resumes it. Returns False if it is halted already; it keeps the first reason."""
        with self._database.write() as connection:
            return record_table_halt(connection, self._settings, table.name, reason)

    def halt_table_of_plan(self, plan_id: str, reason: str) -> bool:
        """Halt the table of a plan by the name that the plan's row has now; see ``halt_table``."""
        # Locked: the sweep may be about to transfer the plan to another name of the table.
        name = with_row_locks(select(PlanRow.table_name).where(PlanRow.id == plan_id))
        with self._database.write() as connection:
            table = connection.execute(name).scalar_one()
            return record_table_halt(connection, self._settings, table, reason)

    def halt_partition(self, table: TableRef, partition: str, reason: str) -> bool:
        """Halt one partition until a person resumes it. Returns False if it is halted already.

        The first reason is kept. Halts the table instead if it has no partitions, or if too many of them are halted.
        """
        with self._database.write() as connection:
            return record_partition_halt(connection, self._settings, table.name, partition, reason)

    def halted_partitions(self, table: TableRef) -> Mapping[str, str]:
        """Return partition → reason, for the partitions of the table with a halt of their own. Cheap."""
        query = select(TableRow.halted_partitions).where(TableRow.name == table.name)
        with self._database.read() as connection:
            found = connection.execute(query).scalar_one_or_none() or {}
        return {partition: one["reason"] for partition, one in found.items()}

    def resume_partitions(self, name: str, partitions: Collection[str], actor: str) -> None:
        """End the halts of these partitions of table ``name``. Halts of other partitions and of the table stay."""
        with self._database.write() as connection:
            known = _lock_halted_partitions(connection, name) or {}
            ended = sorted(known.keys() & set(partitions))
            if not ended:
                return
            left = {partition: one for partition, one in known.items() if partition not in ended}
            connection.execute(update(TableRow).where(TableRow.name == name).values(halted_partitions=left))
            for partition in ended:
                record_audit(connection, actor, "resumed", table=name, detail=partition_label(partition))
                detail = f"{partition_label(partition)}, by {actor}"
                enqueue_notification(
                    connection,
                    self._settings,
                    NotifiedEvent(event="table.resumed", table=name, partition=partition, reason=detail),
                )


def record_table_halt(
    connection: Connection,
    settings: StoreSettings,
    table: str,
    reason: str,
    *,
    plan_id: str | None = None,
    epoch: int | None = None,
) -> bool:
    """Halt a table. Returns False if it was halted before; it keeps the first reason, which best shows the cause."""
    halted = connection.execute(
        update(TableRow)
        .where(TableRow.name == table, TableRow.halted_at_ms.is_(None))
        .values(halted_at_ms=db_now(), halted_reason=storable_text(reason))
    )
    if halted.rowcount:
        enqueue_notification(
            connection,
            settings,
            NotifiedEvent(event="table.halted", table=table, plan=plan_id, epoch=epoch, reason=reason),
        )
    return bool(halted.rowcount)


def record_partition_halt(
    connection: Connection,
    settings: StoreSettings,
    table: str,
    partition: str,
    reason: str,
    *,
    plan_id: str | None = None,
    epoch: int | None = None,
) -> bool:
    """Halt one partition, or the table, as ``Halts.halt_partition`` does. Returns False if it was halted before."""
    if not partition:
        return record_table_halt(connection, settings, table, reason, plan_id=plan_id, epoch=epoch)
    known = _lock_halted_partitions(connection, table)
    if known is None or partition in known:
        return False
    if len(known) >= MAX_HALTED_PARTITIONS:
        label = partition_label(partition)
        many = f"more than {MAX_HALTED_PARTITIONS} partitions are halted, {label} among them: {reason}"
        return record_table_halt(connection, settings, table, many, plan_id=plan_id, epoch=epoch)
    now = connection.execute(select(db_now())).scalar_one()
    halted = {**known, partition: {"reason": storable_text(reason), "at_ms": now}}
    connection.execute(update(TableRow).where(TableRow.name == table).values(halted_partitions=halted))
    enqueue_notification(
        connection,
        settings,
        NotifiedEvent(event="table.halted", table=table, partition=partition, plan=plan_id, epoch=epoch, reason=reason),
    )
    return True


def _lock_halted_partitions(connection: Connection, table: str) -> Mapping[str, Any] | None:
    """Lock the table's row and return its halted partitions as stored; None if the table is not registered."""
    query = select(TableRow.halted_partitions).where(TableRow.name == table)
    found: Mapping[str, Any] | None = connection.execute(with_row_locks(query)).scalar_one_or_none()
    return found


_COUNT_COLUMNS = (
    "files",
    "bytes",
    "small_files",
    "small_bytes",
    "log_files",
    "log_bytes",
    "reducible_files",
    "reducible_bytes",
)
#: slices of one partition with the same reason, as ``service.control.planning.decision_summary.DecisionLine``
LINE_FIELDS = [
    pa.field("reason", pa.string()),
    pa.field("text", pa.string()),
    pa.field("varies", pa.bool_()),
    pa.field("knob", pa.string()),
    *(pa.field(name, pa.int64()) for name in ("slices", "files", "bytes", "log_files", "log_bytes")),
]
#: ``partition`` is the path. ``files`` and ``bytes`` are those of base files. Small files are below the limit in force
#: at the scan. Reducible files are the small files that plans take now or later; reducible bytes are the plans' input.
PARTITION_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.string()),
        *(pa.field(name, pa.int64()) for name in _COUNT_COLUMNS),
        pa.field("lines", pa.list_(pa.struct(LINE_FIELDS))),
    ]
)


class PartitionLayouts(StorePart):
    """Layouts of partitions, written by ``record_scan``."""

    def partition_layout(self, table: str) -> PartitionLayout | None:
        """Return the partitions of ``table`` at its last successful full scan; None before the first one."""
        query = select(PartitionLayoutRow.taken_at_ms, PartitionLayoutRow.partitions)
        with self._database.read() as connection:
            row = connection.execute(query.where(PartitionLayoutRow.table_name == table)).one_or_none()
        if row is None:
            return None
        with pa.ipc.open_stream(row.partitions) as stream:
            return PartitionLayout(
                table=table, taken_at=datetime_from_ms(row.taken_at_ms), partitions=stream.read_all()
            )


def store_partition_layout(connection: Connection, scan: ScanRecord, partitions: pa.Table) -> None:
    """Replace the stored partitions with those of ``scan``."""
    sink = pa.BufferOutputStream()
    rows = partitions.select(PARTITION_SCHEMA.names).cast(PARTITION_SCHEMA)
    with pa.ipc.new_stream(sink, PARTITION_SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_table(rows)
    values: dict[str, Any] = {"taken_at_ms": datetime_to_ms(scan.taken_at), "partitions": sink.getvalue().to_pybytes()}
    if not insert_if_absent(connection, PartitionLayoutRow, table_name=scan.table, **values):
        connection.execute(
            update(PartitionLayoutRow).where(PartitionLayoutRow.table_name == scan.table).values(**values)
        )

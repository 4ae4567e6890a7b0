# SPDX-License-Identifier: Apache-2.0
"""Conversion of rows into the types of ``lake`` and into the store's views."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from enum import Enum
from functools import cache
from inspect import isclass
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import zstandard
from sqlalchemy import Connection, Row, select

from lake.model import CatalogRef, Concurrency, FileSlice, OnConflict, TableRef
from lake.plan import (
    MIN_ROW_GROUP_BYTES,
    ClusteringGroup,
    PartitionFigures,
    Plan,
    PlanKind,
    PlanState,
    RewriteOptions,
    VerificationLevel,
)
from service.control.store.database import datetime_from_ms, optional_datetime_from_ms
from service.control.store.models import GroupRow, TableRow
from service.control.store.models.columns import Json
from service.control.store.views import GroupView, Halt, Pause, PlanView, TableState
from service.modes import PLANNED_MODES

View = TypeVar("View")


def view_of(kind: Callable[..., View], row: Any, **given: Any) -> View:
    """Return the view of a row. Each field except the ``given`` ones is the value of the column of the same name.

    The column of a time is named after its field, with the suffix ``_ms``. Values are converted to the type of their
    field.
    """
    for name, column, convert in _columns_of(kind):
        if name not in given:
            value = getattr(row, column)
            given[name] = value if convert is None or value is None else convert(value)
    return kind(**given)


@cache
def _columns_of(kind: type) -> list[tuple[str, str, Callable[[Any], Any] | None]]:
    """Return name, column and conversion of each field of a view."""
    found: list[tuple[str, str, Callable[[Any], Any] | None]] = []
    for name, hint in get_type_hints(kind).items():
        declared = next(one for one in get_args(hint) if one is not NoneType) if isinstance(hint, UnionType) else hint
        if declared is datetime:
            found.append((name, f"{name}_ms", datetime_from_ms))
        elif get_origin(declared) is tuple:
            found.append((name, name, tuple))
        else:
            is_converted = isclass(declared) and issubclass(declared, Enum | bool)
            found.append((name, name, declared if is_converted else None))
    return found


def options_document(options: RewriteOptions) -> dict[str, Any]:
    """Return ``options`` as JSON. ``verification`` is stored as ``receipt``, the name that earlier releases read."""
    return {"receipt" if name == "verification" else name: value for name, value in asdict(options).items()}


def _options_from_document(document: dict[str, Any]) -> RewriteOptions:
    return RewriteOptions(
        target_file_max_bytes=document["target_file_max_bytes"],
        engine=document["engine"],
        compression=document["compression"],
        sort_columns=tuple(document["sort_columns"]),
        layout=document["layout"],
        verification=VerificationLevel(document.get("verification") or document["receipt"]),
        # Plans of earlier releases lack this option.
        min_row_group_bytes=document.get("min_row_group_bytes", MIN_ROW_GROUP_BYTES),
    )


def load_plan(connection: Connection, row: Row[Any]) -> Plan:
    """Return the plan of a row of ``plan``, including its lists of files.

    Location and identity stay as planned, because the plan's instants are at that location. Catalog, concurrency, write
    options and ``on_conflict`` are taken from the present registration, because an attempt has to exclude the table's
    present writers.
    """
    groups = connection.execute(
        select(GroupRow.partition_path, GroupRow.files, GroupRow.output_files)
        .where(GroupRow.plan_id == row.id)
        .order_by(GroupRow.number)
    )
    return Plan(
        plan_id=row.id,
        table=planned_table(connection, row),
        kind=PlanKind(row.kind),
        groups=tuple(
            ClusteringGroup(
                partition=group.partition_path,
                slices=unpack_slices(group.files, group.partition_path),
                output_files=group.output_files,
            )
            for group in groups
        ),
        options=_options_from_document(row.options),
        snapshot_instant=row.snapshot_instant,
        adopted_instant=row.adopted,
    )


def planned_table(connection: Connection, row: Row[Any]) -> TableRef:
    """Return the table of the plan in a row of ``plan``."""
    return _table_ref(row.table_name, row, _registration(connection, row))


def obsolete_reason(connection: Connection, row: Row[Any]) -> str | None:
    """Return why the plan of a row of ``plan`` must not run, by its table's present registration; None if it may."""
    today = _registration(connection, row)
    if (today.format, today.location) != (row.format, row.location):
        return f"it was planned for {row.location}, {row.table_name} is at {today.location} now"
    if today.mode not in PLANNED_MODES:
        return f"{row.table_name} is in mode {today.mode} now"
    return None


def _registration(connection: Connection, row: Row[Any]) -> Row[Any]:
    return connection.execute(select(TableRow.__table__).where(TableRow.name == row.table_name)).one()


def catalog_ref(fields: Any) -> CatalogRef | None:
    """Return the ``CatalogRef`` that a column holds."""
    return None if fields is None else CatalogRef(**fields)


def _table_ref(name: str, planned: Any, today: Any) -> TableRef:
    return TableRef(
        name=name,
        format=planned.format,
        location=planned.location,
        catalog=catalog_ref(today.catalog),
        identity=planned.identity,
        concurrency=Concurrency(today.concurrency),
        on_conflict=None if today.on_conflict is None else OnConflict(today.on_conflict),
        write_options=today.write_options,
    )


def pause_of(row: Any) -> Pause | None:
    """Return the pause in a row of ``table_state``; None if the table is not paused."""
    if row.paused_at_ms is None:
        return None
    return Pause(by=row.paused_by, at=datetime_from_ms(row.paused_at_ms), reason=row.paused_reason or "")


def table_state(row: Any) -> TableState:
    """Return a row of ``table_state`` as a ``TableState``."""
    return TableState(
        ref=_table_ref(row.name, row, row),
        mode=row.mode,
        pause=pause_of(row),
        halted_reason=row.halted_reason,
        halted_at=optional_datetime_from_ms(row.halted_at_ms),
        quarantined=row.quarantined,
        quarantined_bytes=row.quarantined_bytes,
        freed_bytes=row.freed_bytes,
        halted_partitions={
            partition: Halt(reason=one["reason"], at=datetime_from_ms(one["at_ms"]))
            for partition, one in row.halted_partitions.items()
        },
    )


#: the columns of a ``TableState``, the name first; scans do not change them
TABLE_COLUMNS = tuple(
    column
    for column in TableRow.__table__.c
    if not (column.name.endswith("_scan_id") or column.name.startswith("good_"))
)


def table_state_from_texts(values: Sequence[Any]) -> TableState:
    """Return a ``TableState`` from the values of ``TABLE_COLUMNS`` as ``PackedQuery`` returns them."""
    document = {
        column.name: json.loads(value) if isinstance(column.type, Json) and value is not None else value
        for column, value in zip(TABLE_COLUMNS, values, strict=True)
    }
    return table_state(SimpleNamespace(**document))


def group_view(row: Row[Any]) -> GroupView:
    """Return a row of ``plan_group`` without its files."""
    return view_of(GroupView, row, partition=row.partition_path)


def plan_view(row: Row[Any], tokens: Sequence[str] = (), groups: tuple[GroupView, ...] = ()) -> PlanView:
    """Return the view of a row of ``plan``. ``tokens`` are those of its attempts; only ``Store.plan`` passes groups."""
    return view_of(
        PlanView,
        row,
        plan_id=row.id,
        table=row.table_name,
        used_cpu_seconds=None if row.used_cpu_ms is None else row.used_cpu_ms / 1000,
        cpu_measured=row.rewrite_cpu_ms is not None,
        spark_ui=row.spark_ui if row.state == PlanState.INFLIGHT else None,
        instants=(
            *(token for token in tokens if token != row.instant),
            *([row.instant] if row.instant is not None else []),
        ),
        groups=groups,
        partitions=tuple(sorted({group.partition for group in groups})),
        figures=tuple(
            PartitionFigures(partition=p, files_before=fb, bytes_before=bb, files_after=fa, bytes_after=ba)
            for p, fb, bb, fa, ba in row.figures
        )
        if groups
        else (),
    )


#: the version of the packed format; increase it when the fields of a slice below change
_SLICES_VERSION = 1


def pack_slices(slices: Sequence[FileSlice]) -> bytes:
    """Return ``slices``, which are all of one partition, as compressed JSON without the partition."""
    rows = [[s.file_id, s.path, s.bytes, s.rows, s.log_files, s.log_bytes] for s in slices]
    text = json.dumps({"version": _SLICES_VERSION, "slices": rows}, separators=(",", ":"))
    return zstandard.ZstdCompressor(level=3).compress(text.encode())


def unpack_slices(blob: bytes, partition: str) -> tuple[FileSlice, ...]:
    """Return the slices that ``pack_slices`` has packed. Raises ValueError if a newer release packed them."""
    document = json.loads(zstandard.ZstdDecompressor().decompress(blob))
    if document["version"] != _SLICES_VERSION:
        raise ValueError(f"this release reads file lists of version {_SLICES_VERSION}, not {document['version']}")
    return tuple(
        FileSlice(
            partition=partition,
            file_id=file_id,
            path=path,
            bytes=bytes_,
            rows=rows,
            log_files=tuple(log_files),
            log_bytes=log_bytes,
        )
        for file_id, path, bytes_, rows, log_files, log_bytes in document["slices"]
    )

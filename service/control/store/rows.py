# SPDX-License-Identifier: Apache-2.0
"""Conversion of rows into the types of ``lake`` and the views of the store."""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import zstandard
from sqlalchemy import Connection, Row, select

from lake.model import CatalogRef, Concurrency, FileSlice, OnConflict, TableRef
from lake.plan import (
    ClusteringGroup,
    PartitionFigures,
    Plan,
    PlanKind,
    PlanState,
    ProposalDecision,
    RewriteOptions,
    VerificationLevel,
)
from service.control.store.database import datetime_from_ms, optional_datetime_from_ms
from service.control.store.models import GroupRow, TableRow
from service.control.store.models.columns import Json
from service.control.store.views import ErrorClass, GroupView, Halt, Pause, PlanView, TableState
from service.modes import PLANNED_MODES


def options_document(options: RewriteOptions) -> dict[str, Any]:
    """Return ``options`` as JSON. An earlier release that runs beside this one reads ``receipt``."""
    return {
        "target_file_max_bytes": options.target_file_max_bytes,
        "engine": options.engine,
        "compression": options.compression,
        "sort_columns": list(options.sort_columns),
        "layout": options.layout,
        "receipt": options.verification.value,
    }


def _options_from_document(document: dict[str, Any]) -> RewriteOptions:
    return RewriteOptions(
        target_file_max_bytes=document["target_file_max_bytes"],
        engine=document["engine"],
        compression=document["compression"],
        sort_columns=tuple(document["sort_columns"]),
        layout=document["layout"],
        verification=VerificationLevel(document.get("verification") or document["receipt"]),
    )


def load_plan(connection: Connection, row: Row[Any]) -> Plan:
    """Return the whole plan of a row of ``plan``, including its lists of files.

    Location and identity stay as planned, since its instants are there. Catalog, concurrency, write options and the
    side that wins a conflict are the table's present ones, since these decide which writers an attempt excludes, and
    how.
    """
    today = _registration(connection, row)
    groups = connection.execute(
        select(GroupRow.partition_path, GroupRow.files, GroupRow.output_files)
        .where(GroupRow.plan_id == row.id)
        .order_by(GroupRow.number)
    )
    return Plan(
        plan_id=row.id,
        table=TableRef(
            name=row.table_name,
            format=row.format,
            location=row.location,
            catalog=_catalog(today.catalog),
            identity=row.identity,
            concurrency=Concurrency(today.concurrency),
            on_conflict=_on_conflict(today.on_conflict),
            write_options=today.write_options,
        ),
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


def obsolete_reason(connection: Connection, row: Row[Any]) -> str | None:
    """Return why the plan of a row of ``plan`` must not run on its table as registered now; None if it may."""
    today = _registration(connection, row)
    if (today.format, today.location) != (row.format, row.location):
        return f"it was planned for {row.location}, {row.table_name} is at {today.location} now"
    if today.mode not in PLANNED_MODES:
        return f"{row.table_name} is in mode {today.mode} now"
    return None


def _registration(connection: Connection, row: Row[Any]) -> Row[Any]:
    return connection.execute(select(TableRow.__table__).where(TableRow.name == row.table_name)).one()


def _on_conflict(stored: str | None) -> OnConflict | None:
    return None if stored is None else OnConflict(stored)


def _catalog(stored: dict[str, str] | None) -> CatalogRef | None:
    return None if stored is None else CatalogRef(**stored)


def pause_of(row: Any) -> Pause | None:
    """Return the pause of a row of ``table_state``; None without one."""
    if row.paused_at_ms is None:
        return None
    return Pause(by=row.paused_by, at=datetime_from_ms(row.paused_at_ms), reason=row.paused_reason or "")


def table_state(row: Any) -> TableState:
    """Return a row of ``table_state`` as a ``TableState``."""
    return TableState(
        ref=TableRef(
            name=row.name,
            format=row.format,
            location=row.location,
            catalog=_catalog(row.catalog),
            identity=row.identity,
            concurrency=Concurrency(row.concurrency),
            on_conflict=_on_conflict(row.on_conflict),
            write_options=row.write_options,
        ),
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


#: the columns of a ``TableState``, the name first; a scan changes none of them
TABLE_COLUMNS = tuple(
    column
    for column in TableRow.__table__.c
    if not (column.name.endswith("_scan_id") or column.name.startswith("good_"))
)


def table_state_from_texts(values: Sequence[Any]) -> TableState:
    """Return a ``TableState`` from its ``TABLE_COLUMNS`` as ``PackedQuery`` returns them, documents as texts."""
    document = {
        column.name: json.loads(value) if isinstance(column.type, Json) and value is not None else value
        for column, value in zip(TABLE_COLUMNS, values, strict=True)
    }
    return table_state(SimpleNamespace(**document))


def group_view(row: Row[Any]) -> GroupView:
    """Return a row of ``plan_group`` without its files."""
    return GroupView(
        number=row.number,
        partition=row.partition_path,
        slices=row.slices,
        input_files=row.input_files,
        input_bytes=row.input_bytes,
        output_files=row.output_files,
        left_out=row.left_out,
    )


def plan_view(row: Row[Any], tokens: Sequence[str] = (), groups: tuple[GroupView, ...] = ()) -> PlanView:
    """Return a row of ``plan`` with the tokens of its attempts; with ``groups`` as ``plan()`` shows it."""
    return PlanView(
        plan_id=row.id,
        table=row.table_name,
        format=row.format,
        location=row.location,
        kind=PlanKind(row.kind),
        state=PlanState(row.state),
        snapshot_instant=row.snapshot_instant,
        request_id=row.request_id,
        actor=row.actor,
        options=row.options,
        estimate=row.estimate,
        group_count=row.group_count,
        partition_count=row.partition_count,
        input_files=row.input_files,
        input_bytes=row.input_bytes,
        output_files=row.output_files,
        used_cpu_seconds=None if row.used_cpu_ms is None else row.used_cpu_ms / 1000,
        cpu_measured=row.rewrite_cpu_ms is not None,
        adopted=row.adopted,
        epoch=row.epoch,
        attempts=row.attempts,
        executor=row.executor,
        lease_until=optional_datetime_from_ms(row.lease_until_ms),
        heartbeat_at=optional_datetime_from_ms(row.heartbeat_at_ms),
        not_before=datetime_from_ms(row.not_before_ms),
        step=row.step,
        progress_bytes_done=row.progress_bytes_done,
        progress_bytes_total=row.progress_bytes_total,
        progress_rows_done=row.progress_rows_done,
        spark_ui=row.spark_ui if row.state == PlanState.INFLIGHT else None,
        cancel_requested_by=row.cancel_requested_by,
        cancel_reason=row.cancel_reason,
        error=row.error,
        error_class=None if row.error_class is None else ErrorClass(row.error_class),
        proposed_at=optional_datetime_from_ms(row.proposed_at_ms),
        decision=None if row.decision is None else ProposalDecision(row.decision),
        decided_by=row.decided_by,
        decided_at=optional_datetime_from_ms(row.decided_at_ms),
        created_at=datetime_from_ms(row.created_at_ms),
        claimed_at=optional_datetime_from_ms(row.claimed_at_ms),
        finalized_at=optional_datetime_from_ms(row.finalized_at_ms),
        instant=row.instant,
        instants=(
            *(token for token in tokens if token != row.instant),
            *([row.instant] if row.instant is not None else []),
        ),
        milliseconds=row.milliseconds,
        files_before=row.files_before,
        bytes_before=row.bytes_before,
        files_after=row.files_after,
        bytes_after=row.bytes_after,
        groups=groups,
        partitions=tuple(sorted({group.partition for group in groups})),
        figures=tuple(
            PartitionFigures(partition=p, files_before=fb, bytes_before=bb, files_after=fa, bytes_after=ba)
            for p, fb, bb, fa, ba in row.figures
        )
        if groups
        else (),
    )


#: increased when the order of a slice's fields below changes
_SLICES_VERSION = 1


def pack_slices(slices: Sequence[FileSlice]) -> bytes:
    """Return ``slices``, all of one partition, as compressed JSON without the partition."""
    rows = [[s.file_id, s.path, s.bytes, s.rows, s.log_files, s.log_bytes] for s in slices]
    text = json.dumps({"version": _SLICES_VERSION, "slices": rows}, separators=(",", ":"))
    return zstandard.ZstdCompressor(level=3).compress(text.encode())


def unpack_slices(blob: bytes, partition: str) -> tuple[FileSlice, ...]:
    """Return the slices of a ``pack_slices`` blob, in ``partition``. Raises ValueError for a newer lakefold's blob."""
    document = json.loads(zstandard.ZstdDecompressor().decompress(blob))
    if document["version"] != _SLICES_VERSION:
        raise ValueError(f"this lakefold reads file lists of version {_SLICES_VERSION}, not {document['version']}")
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

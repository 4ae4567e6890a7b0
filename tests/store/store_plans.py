# SPDX-License-Identifier: Apache-2.0
"""Plans for store tests, and the raw SQL that plays the passing of time on the database's clock."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import create_engine, select, text
from uuid_utils import uuid7

from lake.model import FileSlice, TableRef
from lake.plan import (
    Claim,
    ClusteringGroup,
    Commit,
    OutputFile,
    PartitionFigures,
    Plan,
    PlanKind,
    RewriteOptions,
    SupersededVersion,
    VerificationLevel,
)
from service.control.store import Store
from service.control.store.database import db_now, parse_url

TRIPS = TableRef(name="demo.trips", format="hudi", location="/lake/trips", write_options={"hoodie.lock": "x"})
MIB = 1 << 20


def slices(partition: str, count: int = 2, start: int = 0) -> tuple[FileSlice, ...]:
    """``count`` slices of 8 MiB in ``partition``."""
    return tuple(
        FileSlice(
            partition=partition, file_id=f"{partition}-{n}", path=f"{partition}/{n}.parquet", bytes=8 * MIB, rows=1000
        )
        for n in range(start, start + count)
    )


def make_plan(*partitions: str, table: TableRef = TRIPS, plan_id: str | None = None, files: int = 2) -> Plan:
    """A plan with one group for each partition."""
    return Plan(
        plan_id=plan_id or str(uuid7()),
        table=table,
        kind=PlanKind.CLUSTERING,
        groups=tuple(
            ClusteringGroup(partition=p, slices=slices(p, files), output_files=1) for p in partitions or ("dt=1",)
        ),
        options=RewriteOptions(
            target_file_max_bytes=1 << 30,
            compression="zstd",
            sort_columns=("a", "b"),
            verification=VerificationLevel.HASH,
        ),
        snapshot_instant="20260101000000000",
    )


def add(store: Store, *partitions: str, table: TableRef = TRIPS, plan_id: str | None = None) -> Plan:
    """Store a plan as requested."""
    plan = make_plan(*partitions, table=table, plan_id=plan_id)
    store.add_plan(plan, request_id=None, actor="scheduler", estimate={"output_files": 1})
    return plan


def claimed(store: Store, executor: str = "executor-1") -> Claim:
    """The next plan, which must be there."""
    claim = store.claim(executor)
    assert claim is not None
    return claim


def commit_of(plan: Plan, instant: str = "20260101000100000") -> Commit:
    """What a table's commit of the whole plan would say."""
    return Commit(
        plan_id=plan.plan_id,
        instant=instant,
        outputs=tuple(
            OutputFile(
                partition=g.partition,
                path=f"{g.partition}/new{number or ''}.parquet",
                bytes=g.bytes // g.output_files,
                rows=2000,
            )
            for g in plan.groups
            for number in range(g.output_files)
        ),
        superseded=tuple(
            SupersededVersion(partition=s.partition, path=s.path or "", bytes=s.bytes, instant=instant)
            for g in plan.groups
            for s in g.slices
        ),
    )


def figures_of(plan: Plan) -> list[PartitionFigures]:
    """What a rewrite of the whole plan would have done."""
    return [
        PartitionFigures(
            partition=g.partition,
            files_before=len(g.slices),
            bytes_before=g.bytes,
            files_after=g.output_files,
            bytes_after=g.bytes,
        )
        for g in plan.groups
    ]


def finish(store: Store, partition: str, instant: str, table: TableRef = TRIPS) -> None:
    """Plan, claim and complete one partition."""
    plan = add(store, partition, table=table)
    store.complete(claimed(store), commit_of(plan, instant), figures_of(plan), {})


def sql(url: str, statement: str, **parameters: Any) -> Sequence[Any]:
    """Run raw SQL as any program could, past the store; its rows if it has any."""
    engine = create_engine(parse_url(url))
    try:
        with engine.begin() as connection:
            if engine.dialect.name == "sqlite":  # which enforces foreign keys where a connection asks for it
                connection.connection.driver_connection.execute("PRAGMA foreign_keys = ON")
            result = connection.execute(text(statement), parameters)
            return result.all() if result.returns_rows else []
    finally:
        engine.dispose()


def now_ms(url: str) -> int:
    """The database's clock."""
    engine = create_engine(parse_url(url))
    try:
        with engine.connect() as connection:
            return connection.execute(select(db_now())).scalar_one()
    finally:
        engine.dispose()


def lease_runs_out(url: str, plan_id: str) -> None:
    """Let an hour pass for a plan's lease."""
    sql(url, "UPDATE plan SET lease_until_ms = lease_until_ms - 3600000 WHERE id = :id", id=plan_id)


def backoff_passes(url: str) -> None:
    """Let an hour pass for every plan that waits."""
    sql(url, "UPDATE plan SET not_before_ms = not_before_ms - 3600000")

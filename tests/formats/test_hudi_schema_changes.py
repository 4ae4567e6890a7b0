# SPDX-License-Identifier: Apache-2.0
"""A writer or an owner changes the columns of a table while a plan is prepared."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hudi_tables import rows, write
from hudi_templates import edit_avro
from hudi_writing import LOCK, NewTable, Table, ignore

from executors.verification import verify_rewrite
from lake.errors import Conflict, TableRefused, Transient
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.plans import publication, schema_changes
from lake.formats.hudi.read.hudi_rs import open_table
from lake.formats.hudi.rewrite import execute
from lake.formats.hudi.timeline.schema_history import DIRECTORY
from lake.plan import ClusteringGroup, Plan, PlanKind

pytestmark = [pytest.mark.spark, pytest.mark.slow]
#: a column that may be null, since older rows have no value
ADDED = "if(id >= 0, {}, null) AS added"


def columns_of_hudi_rs(trips: Table) -> list[str]:
    return [str(name) for name in open_table(TableStorage(str(trips.base))).get_schema().names]


def meanwhile(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> None:
    """Make ``change`` while a plan waits for the end of an inflight write, after its client was opened."""
    looks, made = publication.find_inflight_writer, list[bool]()

    def waiting(*arguments: Any) -> str | None:
        if not made:
            made.append(True)
            change()
        return looks(*arguments)

    monkeypatch.setattr(publication, "find_inflight_writer", waiting)


def begin_before(trips: Table, time: str) -> None:
    """Give the newest commit a time right before ``time``, as if it had begun before the plan of that time."""
    commit = trips.timeline().commits[-1]
    moment = datetime.strptime(f"{time}000", "%Y%m%d%H%M%S%f") - timedelta(milliseconds=1)
    earlier, base = f"{moment:%Y%m%d%H%M%S%f}"[:17], Path(trips.base)

    def date_back(metadata: dict[str, Any]) -> None:
        for stats in metadata["partitionToWriteStats"].values():
            for stat in stats:
                stat["path"] = stat["path"].replace(commit.time, earlier)

    edit_avro(base / trips.timeline().directory / (commit.completed_file or ""), date_back)
    for path in [*(base / trips.timeline().directory).glob(f"*{commit.time}*"), *base.glob(f"dt=*/*{commit.time}*")]:
        path.rename(path.with_name(path.name.replace(commit.time, earlier)))


@pytest.mark.parametrize("kind", PlanKind)
def test_a_column_that_a_bulk_insert_adds_while_a_plan_runs_stays_in_the_tables_schema(
    table: NewTable, kind: PlanKind
) -> None:
    """A plan does not wait for a bulk insert. hudi-rs takes the schema of the commit with the latest request."""
    trips = table("mor")
    plan: Plan = trips.plan() if kind is PlanKind.CLUSTERING else trips.compaction()
    frame = rows(trips.spark, 1000, 1010).selectExpr("*", ADDED.format("'new'")).coalesce(1)
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        write(frame, trips.base, "bulk_insert", merge_on_read=True)
        begin_before(trips, rewrite.prepared.instant)
        before = trips.rows(), columns_of_hudi_rs(trips)
        assert "added" in before[1]
        writer.commit(rewrite)
    assert (trips.rows(), columns_of_hudi_rs(trips)) == before


def test_a_compaction_keeps_the_values_of_a_column_that_a_writer_adds_to_its_slices_before_its_publication(
    table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips = table("mor")
    plan = trips.compaction()
    added = rows(trips.spark, 0, 120, version=5).where("id % 4 = 0").selectExpr("*", ADDED.format("concat('new', id)"))
    meanwhile(monkeypatch, lambda: write(added.coalesce(1), trips.base, "upsert", merge_on_read=True))
    with trips.writer() as writer:
        with pytest.raises(Transient, match="column added was added since the table was opened"):
            writer.prepare(plan, 1)
        assert trips.timeline().pending == ()
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 2), ignore)
        before = trips.rows(), trips.other_rows()
        assert any("'new0'" in row for row in before[1][1])
        verify_rewrite(rewrite, writer=writer)
        writer.commit(rewrite)
    assert (trips.rows(), trips.other_rows()) == before


def test_no_plan_is_published_after_an_owner_has_renamed_a_column(
    table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan's files would have the former name, and an instant at which the column has its new name."""
    trips = table()

    def rename() -> None:
        def version(name: str) -> dict[str, Any]:
            return {"type": "record", "fields": [{"id": 0, "name": name, "optional": True, "type": "string"}]}

        history = Path(trips.base) / DIRECTORY
        history.mkdir(parents=True, exist_ok=True)
        (history / "20260101000000001_20260101000000002.schemacommit").write_text(
            json.dumps({"schemas": [version("title"), version("name")]})
        )

    meanwhile(monkeypatch, rename)
    with trips.writer() as writer, pytest.raises(TableRefused, match="column name was renamed to title"):
        writer.prepare(trips.plan(), 1)
    assert trips.timeline().pending == ()


DROPS = {
    "hoodie.datasource.write.schema.allow.auto.evolution.column.drop": "true",
    "hoodie.avro.schema.validate": "false",
}


def values(trips: Table, column: str) -> list[tuple[object, ...]]:
    """The values of a column in the rows of the template; the order of columns changes if a column comes back."""
    trips.spark.catalog.clearCache()
    frame = trips.spark.read.format("hudi").load(str(trips.base)).where("id < 1000")
    return sorted(
        tuple(row) for row in frame.selectExpr("id", "ts", f"coalesce(cast({column} as string), 'null')").collect()
    )


def changing(trips: Table, low: int, columns: str, *, partitions: int = 2) -> None:
    """A bulk insert of four rows with other columns than the table has."""
    frame = rows(trips.spark, low, low + 4, partitions=partitions).selectExpr(*columns.split("; ")).coalesce(1)
    merge_on_read = trips.timeline().properties["hoodie.table.type"] == "MERGE_ON_READ"
    write(frame, trips.base, "bulk_insert", merge_on_read=merge_on_read, options=DROPS)


WITHOUT_TIP = "id; ts; dt; fare; at; stop"
WITH_TIP = "id; ts; dt; fare; at; tip; stop"


@pytest.mark.parametrize("kind", PlanKind)
def test_no_rewrite_without_a_column_is_committed_after_the_column_came_back(table: NewTable, kind: PlanKind) -> None:
    """The base files and the logs of the plan have the column, and no new file of the plan has it."""
    trips = table("mor")
    before = values(trips, "tip")
    changing(trips, 1000, WITHOUT_TIP)
    assert "tip" not in columns_of_hudi_rs(trips)
    plan = trips.plan() if kind is PlanKind.CLUSTERING else trips.compaction()
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        verify_rewrite(rewrite, writer=writer)
        changing(trips, 1004, WITH_TIP)
        with pytest.raises(Conflict, match="column tip was added while the plan ran"):
            writer.commit(rewrite)
        writer.withdraw(plan.plan_id, None)
    assert values(trips, "tip") == before
    plan = trips.plan("0198-after") if kind is PlanKind.CLUSTERING else trips.compaction("0198-after")
    trips.proved(plan)
    assert values(trips, "tip") == before


def test_no_compaction_is_committed_after_a_column_came_back_that_only_its_logs_have(table: NewTable) -> None:
    trips = table("mor")
    added = rows(trips.spark, 0, 120, version=5).where("id % 4 = 0").selectExpr("*", ADDED.format("concat('new', id)"))
    write(added.coalesce(1), trips.base, "upsert", merge_on_read=True)
    before = values(trips, "added")
    changing(trips, 1000, WITH_TIP)
    assert "added" not in columns_of_hudi_rs(trips)
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(trips.compaction(), 1), ignore)
        changing(trips, 1004, f"{WITH_TIP}; if(id >= 0, 'more', null) AS added")
        with pytest.raises(Conflict, match="column added was added while the plan ran"):
            writer.commit(rewrite)
        writer.withdraw("0198-compaction", None)
    assert values(trips, "added") == before


def test_no_rewrite_with_a_type_that_an_owner_has_rolled_back_is_committed(table: NewTable) -> None:
    trips = table("cow", **LOCK)
    before = trips.rows()
    changing(trips, 1000, "id; ts; dt; fare; at; cast(tip as bigint) as tip; stop")
    plan = trips.plan(partitions=["dt=2026-01-01"])
    with trips.writer() as writer, trips.writer() as owner:
        widening = trips.timeline().commits[-1].time
        plan = replace(plan, groups=tuple(without(group, widening) for group in plan.groups))
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        owner._open().write_client.rollback(widening)
        with pytest.raises(Conflict, match="column tip was given another type while the plan ran"):
            writer.commit(rewrite)
        writer.withdraw(plan.plan_id, None)
    assert trips.rows() == before


CHANGES = {
    "dropped": WITHOUT_TIP,
    "given another type": "id; ts; dt; fare; at; cast(tip as double) as tip; stop",
}


@pytest.mark.parametrize("kind", PlanKind)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_columns_before_verification_is_a_conflict(table: NewTable, kind: PlanKind, change: str) -> None:
    """The verification reads slices with logs in the table's columns, and the new files have the earlier ones."""
    trips = table("mor")
    plan = trips.plan() if kind is PlanKind.CLUSTERING else trips.compaction()
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        changing(trips, 1000, CHANGES[change])
        with pytest.raises(Conflict, match=f"column tip was {change} while the plan ran"):
            verify_rewrite(rewrite, writer=writer)
        writer.withdraw(plan.plan_id, None)


def test_no_rewrite_is_sorted_while_a_column_is_missing(table: NewTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer drops the column after the plan has begun, and restores it before the plan's commit."""
    trips = table("cow")
    before, sort_inputs = values(trips, "tip"), execute.sort_inputs

    def sort_meanwhile(client: HudiClient, instant: str) -> Any:
        changing(trips, 1000, WITHOUT_TIP)
        try:
            return sort_inputs(client, instant)
        finally:
            changing(trips, 1004, WITH_TIP)

    plan = trips.plan(partitions=["dt=2026-01-01"], sort_columns=("id",))
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        with monkeypatch.context() as patched:
            patched.setattr(execute, "sort_inputs", sort_meanwhile)
            with pytest.raises(Transient, match="column tip was dropped since the table was opened"):
                writer.commit(writer.rewrite(prepared, ignore))
        writer.withdraw(plan.plan_id, None)
    assert values(trips, "tip") == before
    trips.proved(trips.plan("0198-after", partitions=["dt=2026-01-01"], sort_columns=("id",)))
    assert values(trips, "tip") == before


def without(group: ClusteringGroup, instant: str) -> ClusteringGroup:
    """``group`` without the slice that ``instant`` wrote."""
    return replace(group, slices=tuple(entry for entry in group.slices if instant not in (entry.path or "")))


def test_a_commit_has_no_column_of_a_write_that_was_rolled_back_while_the_commit_was_checked(table: NewTable) -> None:
    """The timeline changes twice during the last check, so the check has three rounds."""
    trips = table("cow", **LOCK)
    before = columns_of_hudi_rs(trips)
    with trips.writer() as writer, trips.writer() as owner:
        rewrite = writer.rewrite(writer.prepare(trips.plan(), 1), ignore)
        client = owner._open()

        def add() -> None:
            changing(trips, 1000, f"{WITH_TIP}; if(id >= 0, 'new', null) AS added")

        rounds = iter((add, lambda: client.write_client.rollback(trips.timeline().commits[-1].time), lambda: None))
        writer.fence = lambda: next(rounds)()
        writer.commit(rewrite)
    assert next(rounds, None) is None
    assert columns_of_hudi_rs(trips) == before


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ('"string"', '{"type": "string", "avro.java.string": "String"}', True),
        ('"int"', '["null", {"type": "int", "connect.type": "int16"}]', True),
        ('"long"', '{"type": "long", "logicalType": "timestamp-micros"}', False),
        ('"int"', '"long"', False),
    ],
)
def test_a_type_is_compared_without_the_properties_that_only_a_writer_uses(one: str, other: str, equal: bool) -> None:
    def columns(kind: str) -> dict[str, Any]:
        return schema_changes._columns(
            f'{{"type": "record", "name": "r", "fields": [{{"name": "a", "type": {kind}}}]}}'
        )

    assert (columns(one) == columns(other)) is equal

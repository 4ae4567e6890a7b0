# SPDX-License-Identifier: Apache-2.0
"""A writer or an owner changes the columns of a table while a plan is prepared."""

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hudi_tables import rows, write
from hudi_templates import edit_avro
from hudi_writing import NewTable, Table, ignore

from executors.verification import verify_rewrite
from lake.errors import TableRefused
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.plans import publication
from lake.formats.hudi.read.hudi_rs import open_table
from lake.formats.hudi.timeline.schema_history import DIRECTORY
from lake.plan import Plan, PlanKind

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
    """A plan does not wait for a bulk insert. Readers take the schema of the commit with the latest request."""
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
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
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

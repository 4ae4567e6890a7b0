# SPDX-License-Identifier: Apache-2.0
"""Defects planted in the new files before the proof: each must end in Integrity, and the table is halted."""

import shutil
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from harness import Installation
from hudi_tables import table_rows
from invariants import pending_instants

from executors.context import RunContext
from executors.observer import Observer
from executors.outcome import RunOutcome
from lake.plan import Claim


def drop_a_row(table: pa.Table) -> pa.Table:
    """All rows but the eleventh."""
    return pa.concat_tables([table.slice(0, 10), table.slice(11)])


def double_a_row(table: pa.Table) -> pa.Table:
    """The eleventh row twice."""
    return pa.concat_tables([table.slice(0, 11), table.slice(10)])


def fill_a_null(table: pa.Table) -> pa.Table:
    """The first null of ``tip`` becomes 3, a value that is there already."""
    tips = table["tip"].to_pylist()
    tips[tips.index(None)] = 3
    return _with(table, "tip", pa.array(tips, table.schema.field("tip").type))


def swap_two_columns(table: pa.Table) -> pa.Table:
    """``id`` and ``ts``, both bigint, change places."""
    return _with(_with(table, "id", table["ts"]), "ts", table["id"])


def change_a_value_in_the_middle_of_the_range(table: pa.Table) -> pa.Table:
    """One ``tip`` moves by one, away from minimum and maximum; counts, nulls and bounds stay."""
    tips = table["tip"].to_pylist()
    low, high = pc.min_max(table["tip"]).as_py().values()
    place = next(n for n, tip in enumerate(tips) if tip is not None and low < tip < high - 1)
    tips[place] += 1
    return _with(table, "tip", pa.array(tips, table.schema.field("tip").type))


def _with(table: pa.Table, name: str, column: pa.ChunkedArray | pa.Array) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), table.schema.field(name), column)


class Ends(Observer):
    """Remembers how plans ended: result and the error's class."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def plan_finished(self, claim: Claim, outcome: RunOutcome) -> None:
        self.seen.append((outcome.result.value, outcome.reason))


DEFECTS = [
    drop_a_row,
    double_a_row,
    fill_a_null,
    swap_two_columns,
    change_a_value_in_the_middle_of_the_range,
]


@pytest.mark.spark
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
@pytest.mark.crossed(2)
def test_a_planted_defect_ends_in_integrity_and_a_halted_table(
    defect: Callable[[pa.Table], pa.Table], spark, template, tmp_path, monkeypatch
):
    import executors.run
    from executors.worker import Worker
    from service.control.config.loader import load_config
    from service.control.wiring import open_store

    base = tmp_path / "lake" / "defects"
    shutil.copytree(template, base)
    before = table_rows(spark, base)
    installation = Installation(home=tmp_path, url=f"sqlite:///{tmp_path}/lakefold.db", tables={"t.defects": base})
    plan = installation.json("plans", "request", "t.defects")[0]["plan_ids"][0]
    untouched = {path for path in base.rglob("*.parquet") if ".hoodie" not in path.parts}
    planted = []

    def plant(name: str) -> None:
        if name == "before_verify":
            new = {path for path in base.rglob("*.parquet") if ".hoodie" not in path.parts} - untouched
            victim = min(new)
            footer = pq.read_metadata(victim)
            table = pq.ParquetFile(victim).read()
            pq.write_table(defect(table).replace_schema_metadata(footer.metadata), victim, compression="gzip")
            planted.append(victim)

    monkeypatch.setattr(executors.run, "failpoint", plant)
    store = open_store(load_config(installation.config))
    ends = Ends()
    Worker(RunContext(store=store, spark=lambda: spark, observer=ends)).run_once()
    assert planted
    shown = installation.json("plans", "show", plan)[0]
    assert shown["state"] == "failed", shown
    assert ends.seen == [("failed", "Integrity")]
    refused = installation.run("plans", "request", "t.defects", expect=12)
    assert "halted" in refused.stderr
    assert table_rows(spark, base) == before
    assert pending_instants(base) == []
    assert {path for path in base.rglob("*.parquet") if ".hoodie" not in path.parts} == untouched

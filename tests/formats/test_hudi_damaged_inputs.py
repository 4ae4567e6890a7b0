# SPDX-License-Identifier: Apache-2.0
"""Inputs that can't be read and new files that are not what they should be: found before the commit, and named."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hudi_writing import FORMAT, NewTable, ignore

from executors.verification import verify_rewrite
from lake.errors import Conflict, Integrity
from lake.formats.hudi.jvm.bundle import Bundle
from lake.plan import VerificationLevel

pytestmark = pytest.mark.spark


def test_a_truncated_input_is_named_and_quarantined_and_the_other_groups_commit(table: NewTable) -> None:
    trips = table()
    plan = trips.plan()
    victim = plan.groups[0].slices[1].path
    assert victim is not None
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        os.truncate(trips.base / victim, 1000)
        with pytest.raises(Conflict, match="can't be read") as caught:
            writer.rewrite(prepared, ignore)
        (left_out,) = caught.value.args[1]
        assert (left_out.group, left_out.quarantine) == (0, (victim,))
        assert victim in left_out.reason
        assert writer.withdraw(plan.plan_id, [prepared.instant]) == 1
    assert trips.files_of(prepared.instant) == set()
    commit = trips.run(trips.plan("second", partitions=[plan.groups[1].partition]))
    assert {output.partition for output in commit.outputs} == {plan.groups[1].partition}


def test_a_damaged_page_in_the_middle_of_an_input_is_found_by_reading_it(table: NewTable) -> None:
    trips = table()
    plan = trips.plan()
    victim = plan.groups[1].slices[0].path
    assert victim is not None
    damage_page(trips.base / victim)
    with trips.writer() as writer:
        with pytest.raises(Conflict) as caught:
            writer.rewrite(writer.prepare(plan, 1), ignore)
        assert [left.quarantine for left in caught.value.args[1]] == [(victim,)]
        writer.withdraw(plan.plan_id, None)


@pytest.mark.parametrize("sorts_after_begin", [True, False])
def test_a_sorted_plan_with_a_damaged_page_is_withdrawn_and_continues_without_that_group(
    table: NewTable, monkeypatch: pytest.MonkeyPatch, sorts_after_begin: bool
) -> None:
    """With the bundles before 1.2, Hudi reads all inputs of a sorted plan in the call that begins the plan."""
    monkeypatch.setattr(Bundle, "can_begin_before_sorting", sorts_after_begin)
    trips = table()
    plan = trips.plan(sort_columns=("id",))
    victim = plan.groups[1].slices[0].path
    assert victim is not None
    damage_page(trips.base / victim)
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        with pytest.raises(Conflict) as caught:
            writer.rewrite(prepared, ignore)
        assert [left.quarantine for left in caught.value.args[1]] == [(victim,)]
        assert writer.withdraw(plan.plan_id, (prepared.instant,)) == 1
        assert trips.timeline().find(prepared.instant) is None
        commit = writer.commit(writer.rewrite(writer.prepare(replace(plan, groups=plan.groups[:1]), 1), ignore))
    assert {output.partition for output in commit.outputs} == {plan.groups[0].partition}


def damage_page(file: Path) -> None:
    """Overwrite the pages of one column; footer and size stay."""
    content = bytearray(file.read_bytes())
    column = pq.ParquetFile(file).metadata.row_group(0).column(5)
    start = column.dictionary_page_offset or column.data_page_offset
    content[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    file.write_bytes(content)
    file.with_name(f".{file.name}.crc").unlink()


def test_an_input_deleted_underneath_is_named_but_not_quarantined(table: NewTable) -> None:
    trips = table()
    plan = trips.plan()
    victim = plan.groups[1].slices[0].path
    assert victim is not None
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        (trips.base / victim).unlink()
        with pytest.raises(Conflict, match="is gone from storage") as caught:
            writer.rewrite(prepared, ignore)
        (left_out,) = caught.value.args[1]
        assert (left_out.group, left_out.quarantine) == (1, ())
        assert writer.withdraw(plan.plan_id, [prepared.instant]) == 1


def _change_one_value(path: Path, column: str) -> None:
    table = pq.read_table(path)
    values = table[column].to_pylist()
    values[len(values) // 2] = values[0]
    position = table.schema.get_field_index(column)
    changed = table.set_column(
        position, table.schema.field(position), pa.array(values, table.schema.field(column).type)
    )
    pq.write_table(changed, path)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def _null_flipped(path: Path) -> None:
    table = pq.read_table(path)
    tips = table["tip"].to_pylist()
    gap = tips.index(None)
    tips[gap], tips[gap + 1] = tips[gap + 1], None
    position = table.schema.get_field_index("tip")
    pq.write_table(table.set_column(position, table.schema.field(position), pa.array(tips, pa.int32())), path)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize(("defect", "engine"), [("value", "spark"), ("null", "spark"), ("value", "stitch")])
@pytest.mark.crossed
def test_a_defect_in_a_new_file_is_caught_by_the_hash_before_the_commit(
    table: NewTable, defect: str, engine: str
) -> None:
    trips = table()
    rows = trips.rows()
    plan = trips.plan(partitions=["dt=2026-01-01"], receipt=VerificationLevel.HASH, engine=engine)
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        path = trips.base / rewrite.outputs[0].path
        if defect == "value":
            _change_one_value(path, "fare")
        else:
            _null_flipped(path)
        with pytest.raises(Integrity, match="hash of" if defect == "value" else "values moved between rows|hash of"):
            verify_rewrite(rewrite, writer=writer)
        assert trips.rows() == rows
        assert FORMAT.find_commit(trips.ref, plan.plan_id) is None
        assert writer.withdraw(plan.plan_id, None) == 1
    assert trips.rows() == rows


def test_a_session_that_skips_corrupt_files_does_not_make_a_rewrite_skip_them(table: NewTable, spark: Any) -> None:
    trips = table()
    plan = trips.plan()
    victim = plan.groups[0].slices[1].path
    assert victim is not None
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        with trips.writer() as writer:
            prepared = writer.prepare(plan, 1)
            os.truncate(trips.base / victim, 1000)
            with pytest.raises(Conflict, match="can't be read"):
                writer.rewrite(prepared, ignore)
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")

# SPDX-License-Identifier: Apache-2.0
"""Verification before a commit accepts any table, divided into files and row groups in any way."""

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from any_tables import tables
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import SOAK
from verification_case import Case, set_value, table

from lake.errors import Integrity
from lake.model import FileSlice
from lake.plan import OutputFile, VerificationLevel


@pytest.mark.soak
@settings(max_examples=1000 if SOAK else 25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=tables(), data=st.data())
def test_any_table_in_any_files_is_proved_and_a_dropped_or_doubled_row_never_is(
    tmp_path_factory: pytest.TempPathFactory, rows: pa.Table, data: st.DataObject
):
    case = Case(tmp_path_factory.mktemp("any"))
    cut = data.draw(st.integers(0, rows.num_rows))
    case.input(rows.slice(0, cut), row_group_size=data.draw(st.integers(1, 5)))
    case.input(rows.slice(cut), use_dictionary=data.draw(st.booleans()))
    order = data.draw(st.permutations(range(rows.num_rows)))
    shuffled = rows.take(order)
    case.output(shuffled, use_dictionary=data.draw(st.booleans()), row_group_size=data.draw(st.integers(1, 5)))
    case.prove()
    victim, twin = data.draw(st.integers(0, rows.num_rows - 1)), data.draw(st.integers(0, rows.num_rows - 1))
    keep = [i for i in range(rows.num_rows) if i != victim] + [twin]
    spoiled = rows.take(keep)
    same = _normal(rows.slice(victim, 1)) == _normal(rows.slice(twin, 1))
    case.outputs.clear()
    case.output(spoiled)
    if same:
        case.prove()
    else:
        with pytest.raises(Integrity):
            case.prove()


def _normal(rows: pa.Table) -> str:
    """A row's values as text, with one zero and one NaN."""

    def normal(value: Any) -> Any:
        if isinstance(value, float):
            return "nan" if math.isnan(value) else value + 0.0
        if isinstance(value, dict):
            return {key: normal(item) for key, item in value.items()}
        return [normal(item) for item in value] if isinstance(value, list) else value

    columns = [column.cast(_integers(column.type)) for column in rows.columns]
    return repr([[normal(value) for value in column.to_pylist()] for column in columns])


def _integers(kind: pa.DataType) -> pa.DataType:
    """``kind`` with timestamps as integers, since Python has none of nanoseconds."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _integers(kind.item_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_integers(kind.value_type), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_integers(kind.value_type))
    if pa.types.is_time(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([(child.name, _integers(child.type)) for child in kind])
    return kind


@pytest.mark.spark
@pytest.mark.parametrize("timestamps", ["INT96", "TIMESTAMP_MICROS"])
@pytest.mark.parametrize("legacy", ["true", "false"])
def test_spark_rewriting_arrow_and_arrow_rewriting_spark_raise_no_alarm(
    tmp_path: Path, spark: Any, timestamps: str, legacy: str
):
    odd = {"score": [math.nan, -0.0, 0.0, None], "raw": [b"", None, b"x" * 100, b"\xff\xfe"]}
    rows = table(range(200))
    for name, values in odd.items():
        for row, value in enumerate(values):
            rows = set_value(rows, name, row, value) if rows[name][row].as_py() != value else rows
    tz = spark.conf.get("spark.sql.session.timeZone")
    changed = {
        "spark.sql.parquet.outputTimestampType": timestamps,
        "spark.sql.parquet.writeLegacyFormat": legacy,
        "spark.sql.session.timeZone": "America/New_York",
    }
    case = Case(tmp_path)
    case.input(rows)
    for key, value in changed.items():
        spark.conf.set(key, value)
    try:
        written = str(tmp_path / "spark")
        spark.read.parquet(str(tmp_path / "p" / "in0.parquet")).repartition(3).write.parquet(written)
    finally:
        for key in changed:
            spark.conf.unset(key)
        spark.conf.set("spark.sql.session.timeZone", tz)
    by_spark = sorted(Path(written).glob("*.parquet"))
    for number, path in enumerate(by_spark):
        target = tmp_path / "p" / f"spark{number}.parquet"
        path.rename(target)
        count = pq.read_metadata(target).num_rows
        case.outputs.append(OutputFile(partition="p", path=f"p/{target.name}", bytes=1, rows=count))
    assert len(case.outputs) == 3
    for level in VerificationLevel:
        case.level = level
        case.prove()
    back = Case(tmp_path)
    back.slices = [FileSlice(partition="p", file_id=o.path, path=o.path, bytes=1) for o in case.outputs]
    back.outputs = [OutputFile(partition="p", path="p/in0.parquet", bytes=1, rows=200)]
    for level in VerificationLevel:
        back.level = level
        back.prove()

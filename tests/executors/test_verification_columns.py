# SPDX-License-Identifier: Apache-2.0
"""Verification before a commit of files that were written before the table's columns changed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from verification_case import Case, MergingWriter, set_value

from lake.errors import Integrity
from lake.plan import VerificationLevel
from lake.ports import PreparedPlan

#: as pyarrow shows a column's id in Parquet, and that which Iceberg's writers give to ORC
KEYS = {"parquet": b"PARQUET:field_id", "orc": b"iceberg.id"}


def identified(kind: str, name: str, column: pa.DataType, number: int | None) -> pa.Field:
    return pa.field(name, column, metadata=None if number is None else {KEYS[kind]: str(number).encode()})


class Evolved:
    """A writer whose reader sees other columns than the data files have."""

    def __init__(self, as_written: pa.Table, now: pa.Table) -> None:
        self._rows = {False: as_written, True: now}
        self.asked: list[bool] = []

    def read_inputs(self, prepared: PreparedPlan, partition: str, *, evolved: bool = False) -> Any:
        self.asked.append(evolved)
        yield from self._rows[evolved].to_batches()


@pytest.mark.parametrize("kind", ["parquet", "orc"])
@pytest.mark.parametrize("level", list(VerificationLevel))
@pytest.mark.parametrize("column", [pa.array(["x", "y"]), pa.array([[1], [2, 3]])], ids=["plain", "repeated"])
def test_a_column_that_the_inputs_lack_is_compared_as_a_reader_sees_it(
    tmp_path: Path, kind: str, level: VerificationLevel, column: pa.Array
):
    # A column with a default for the rows that were there before it.
    case = Case(tmp_path, level, kind)
    case.input(pa.table({"id": [1, 2]}))
    now = pa.table({"id": [1, 2], "b": column})
    case.output(now)
    case.prove(MergingWriter(now))
    with pytest.raises(Integrity, match="column b, hash"):
        case.prove(MergingWriter(set_value(now, "b", 0, column.to_pylist()[1])))
    with pytest.raises(
        Integrity, match=r"column b(, nulls: expected 2, found 0|\[\], min: expected no value, found 1)"
    ):
        case.prove()
    with pytest.raises(Integrity, match=r"column b\S*: expected no values, found (string|int\(64\))"):
        case.prove(MergingWriter(now.drop_columns(["b"])))


@pytest.mark.parametrize("level", list(VerificationLevel))
def test_a_column_that_was_renamed_is_compared_as_a_reader_sees_it(tmp_path: Path, level: VerificationLevel):
    case = Case(tmp_path, level)
    case.input(pa.table({"id": [1, 2], "a": ["x", "y"]}))
    now = pa.table({"id": [1, 2], "b": ["x", "y"]})
    case.output(now)
    case.prove(MergingWriter(now))
    with pytest.raises(Integrity, match="column b, hash"):
        case.prove(MergingWriter(set_value(now, "b", 0, "z")))
    with pytest.raises(Integrity, match="column a: expected string, found no such column"):
        case.prove()


def test_a_column_without_statistics_that_the_inputs_lack_is_read_where_all_values_are(tmp_path: Path):
    case = Case(tmp_path, VerificationLevel.HASH)
    case.input(pa.table({"id": [1, 2]}))
    now = pa.table({"id": [1, 2], "b": ["x", "y"]})
    case.output(now, write_statistics=False)
    case.prove(MergingWriter(now))
    with pytest.raises(Integrity, match="column b, hash"):
        case.prove()


def test_slices_with_logs_are_read_with_the_present_columns_if_their_files_have_fewer(tmp_path: Path):
    old, now = pa.table({"id": [1, 2]}), pa.table({"id": [1, 2], "b": ["x", "x"]})
    case = Case(tmp_path)
    case.input(old, logs=("a.log",))
    case.output(now)
    writer = Evolved(old, now)
    case.prove(writer)
    assert writer.asked == [False, True]
    in_logs = Evolved(now, now)
    case.prove(in_logs)
    assert in_logs.asked == [False], "the merged files have it"


@pytest.mark.parametrize("kind", ["parquet", "orc"])
@pytest.mark.parametrize("level", list(VerificationLevel))
def test_a_column_of_the_same_name_and_another_id_is_found(tmp_path: Path, kind: str, level: VerificationLevel):
    def rows(**ids: int | None) -> pa.Table:
        fields = [identified(kind, name, pa.string(), number) for name, number in ids.items()]
        return pa.table([["x", "y"]] * len(ids), schema=pa.schema(fields))

    case = Case(tmp_path, level, kind)
    case.input(rows(a=2, b=3))
    case.input(rows(a=None, b=3))
    case.output(rows(a=2, b=3))
    case.output(rows(a=None, b=None))
    case.prove()
    case.outputs.clear()
    for output in (rows(a=3, b=4), rows(a=2, b=3)):
        case.output(output)
    with pytest.raises(Integrity, match="column a, field id: expected 2, found 2 or 3"):
        case.prove()
    case.outputs.pop()
    case.output(rows(a=3, b=3))
    with pytest.raises(Integrity, match="column a, field id: expected 2, found 3"):
        case.prove()
    case.slices.clear()
    case.input(rows(a=None, b=None))
    case.input(rows(a=None, b=None))
    case.outputs.clear()
    case.output(rows(a=7, b=8))
    case.output(rows(a=7, b=8))
    case.prove()


NESTED = {
    "a struct": (lambda outer, inner: pa.struct([inner]), {"x": 1}),
    "a list": (lambda outer, inner: pa.list_(inner), [1]),
    "a map": (lambda outer, inner: pa.map_(pa.string(), inner), [("k", 1)]),
}


@pytest.mark.parametrize("shape", NESTED)
@pytest.mark.parametrize("changed", ["outer", "inner"])
def test_field_ids_of_nested_columns_are_compared_on_every_level(tmp_path: Path, shape: str, changed: str):
    def rows(**ids: int) -> pa.Table:
        inner = identified("parquet", "x", pa.int32(), ids["inner"])
        outer = identified("parquet", "c", NESTED[shape][0](None, inner), ids["outer"])
        return pa.table([[NESTED[shape][1]]], schema=pa.schema([outer]))

    ids: Mapping[str, int] = {"outer": 1, "inner": 2}
    case = Case(tmp_path, VerificationLevel.FOOTER)
    case.input(rows(**ids))
    case.output(rows(**ids))
    case.prove()
    case.outputs.clear()
    case.output(rows(**{**ids, changed: 9}))
    with pytest.raises(Integrity, match=rf"column c\S*, field id: expected {ids[changed]}, found 9"):
        case.prove()


@pytest.mark.parametrize("level", list(VerificationLevel))
def test_a_name_that_another_column_has_now_is_compared_as_a_reader_sees_it(tmp_path: Path, level: VerificationLevel):
    def rows(values: list[str | None], number: int) -> pa.Table:
        fields = [identified("parquet", "id", pa.int64(), 1), identified("parquet", "a", pa.string(), number)]
        return pa.table([list(range(len(values))), values], schema=pa.schema(fields))

    case = Case(tmp_path, level)
    case.input(rows(["old", "old"], 2))
    now = rows([None, None], 3)
    case.output(now)
    case.prove(MergingWriter(now))
    with pytest.raises(Integrity, match="column a, field id: expected 2, found 3"):
        case.prove()
    case.outputs.clear()
    case.output(rows(["old", "old"], 3))
    with pytest.raises(Integrity, match="column a, hash"):
        case.prove(MergingWriter(now))


@pytest.mark.parametrize("level", list(VerificationLevel))
def test_ids_that_an_engine_did_not_keep_for_some_groups_are_no_difference(tmp_path: Path, level: VerificationLevel):
    def rows(number: int | None) -> pa.Table:
        return pa.table([["x"]], schema=pa.schema([identified("parquet", "a", pa.string(), number)]))

    case = Case(tmp_path, level)
    for number in (1, 2, None):
        case.input(rows(number))
    for number in (1, None, None):
        case.output(rows(number))
    case.prove()
    case.outputs.clear()
    for _ in range(3):
        case.output(rows(1))
    with pytest.raises(Integrity, match="column a, field id: expected 1 or 2, found 1"):
        case.prove()

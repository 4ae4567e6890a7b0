# SPDX-License-Identifier: Apache-2.0
"""The proof before a commit where the table's columns changed since its files were written."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from receipt_case import Case, MergingWriter, set_value

from lake.errors import Integrity
from lake.plan import ReceiptLevel
from lake.ports import Prepared


class Evolved:
    """A writer whose reader sees other columns than the data files have."""

    def __init__(self, as_written: pa.Table, now: pa.Table) -> None:
        self._rows = {False: as_written, True: now}
        self.asked: list[bool] = []

    def read_inputs(self, prepared: Prepared, partition: str, *, evolved: bool = False) -> Any:
        self.asked.append(evolved)
        yield from self._rows[evolved].to_batches()


@pytest.mark.parametrize("kind", ["parquet", "orc"])
@pytest.mark.parametrize("level", list(ReceiptLevel))
@pytest.mark.parametrize("column", [pa.array(["x", "y"]), pa.array([[1], [2, 3]])], ids=["plain", "repeated"])
def test_what_a_reader_sees_in_a_column_that_the_inputs_lack_decides(
    tmp_path: Path, kind: str, level: ReceiptLevel, column: pa.Array
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


@pytest.mark.parametrize("level", list(ReceiptLevel))
def test_a_column_that_was_renamed_is_compared_as_a_reader_sees_it(tmp_path: Path, level: ReceiptLevel):
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
    case = Case(tmp_path, ReceiptLevel.HASH)
    case.input(pa.table({"id": [1, 2]}))
    now = pa.table({"id": [1, 2], "b": ["x", "y"]})
    case.output(now, write_statistics=False)
    case.prove(MergingWriter(now))
    with pytest.raises(Integrity, match="column b, hash"):
        case.prove()


def test_slices_with_logs_are_read_with_the_columns_of_today_where_those_of_their_files_are_fewer(tmp_path: Path):
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

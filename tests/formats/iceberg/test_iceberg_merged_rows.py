# SPDX-License-Identifier: Apache-2.0
"""The verification's own reader of data files with deletes, without a JVM."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.errors import Conflict
from lake.formats.iceberg.read.delete_files import DeleteContent, DeleteFile
from lake.formats.iceberg.read.live_files import DataFile
from lake.formats.iceberg.read.merged_rows import MergedReader

IDS = {"id": 1, "name": 2, "x": 3}
TYPES = {"id": pa.int64(), "name": pa.string(), "x": pa.float64()}


def write(path: Path, columns: Mapping[str, Sequence[Any]], **types: pa.DataType) -> Path:
    """A Parquet file whose columns have the field ids of ``IDS``."""
    fields = [
        pa.field(name, (TYPES | types)[name], metadata={b"PARQUET:field_id": str(IDS[name]).encode()})
        for name in columns
    ]
    pq.write_table(pa.table(dict(columns), schema=pa.schema(fields)), path, row_group_size=3)
    return path


def delete(path: Path, content: DeleteContent, *ids: int) -> DeleteFile:
    return DeleteFile(
        location=f"file:{path}",
        path=str(path),
        content=content,
        file_format="PARQUET",
        bytes=1,
        rows=1,
        spec_id=0,
        partition_json="{}",
        sequence_number=2,
        snapshot_id=1,
        equality_ids=ids,
    )


def data_file(path: Path, *deletes: DeleteFile) -> DataFile:
    return DataFile(
        location=f"file:{path}",
        path=str(path),
        bytes=1,
        rows=1,
        file_format="PARQUET",
        spec_id=0,
        partition="",
        partition_json="{}",
        sequence_number=1,
        file_sequence_number=1,
        snapshot_id=1,
        deletes=deletes,
    )


def read(*files: DataFile) -> list[dict[str, Any]]:
    return [row for batch in MergedReader(files).read() for row in batch.to_pylist()]


def positions(path: Path, *deleted: tuple[Path, int]) -> DeleteFile:
    names = [f"file:{one}" for one, _ in deleted]
    pq.write_table(pa.table({"file_path": names, "pos": [position for _, position in deleted]}), path)
    return delete(path, DeleteContent.POSITIONS)


def test_deleted_positions_are_positions_in_the_file_and_count_once(tmp_path: Path):
    first, second = (write(tmp_path / name, {"id": range(8)}) for name in ("a.parquet", "b.parquet"))
    one = positions(tmp_path / "d1.parquet", (first, 0), (first, 5), (second, 7))
    two = positions(tmp_path / "d2.parquet", (first, 5), (first, 6))
    assert [row["id"] for row in read(data_file(first, one, two), data_file(second, one))] == [
        *(1, 2, 3, 4, 7),
        *(0, 1, 2, 3, 4, 5, 6),
    ]


def test_values_are_compared_by_field_id_with_null_and_nan_equal_to_themselves(tmp_path: Path):
    nan = math.nan
    data = write(
        tmp_path / "a.parquet",
        {"id": [1, 2, None, 4, 5, 6], "name": ["a", None, None, "d", "e", "f"], "x": [nan, 0.0, -0.0, None, 5.0, 6.0]},
    )
    by_name = delete(write(tmp_path / "1.parquet", {"name": [None, "z"]}), DeleteContent.EQUALITY, 2)
    by_x = delete(write(tmp_path / "2.parquet", {"x": [nan, -0.0]}), DeleteContent.EQUALITY, 3)
    of_two = {"name": ["e", "f"], "id": [5, 5]}
    by_both = delete(write(tmp_path / "3.parquet", of_two, id=pa.int32()), DeleteContent.EQUALITY, 1, 2)
    assert [row["id"] for row in read(data_file(data, by_name))] == [1, 4, 5, 6]
    assert [row["id"] for row in read(data_file(data, by_x))] == [2, 4, 5, 6]
    assert [row["id"] for row in read(data_file(data, by_both))] == [1, 2, None, 4, 6]
    assert [row["id"] for row in read(data_file(data, by_name, by_x, by_both))] == [4, 6]


@pytest.mark.parametrize("stored", [pa.uuid(), pa.binary(16)], ids=["uuid", "fixed"])
def test_uuids_are_compared(tmp_path: Path, stored: pa.DataType):
    keys = [bytes([number]) * 16 for number in range(4)]
    data = write(tmp_path / "a.parquet", {"id": range(5), "name": [*keys, None]}, name=pa.uuid())
    deleted = {"name": [keys[2], None]}
    by_key = delete(write(tmp_path / "1.parquet", deleted, name=stored), DeleteContent.EQUALITY, 2)
    of_two = {"id": [0, 1], "name": [keys[0], keys[0]]}
    by_both = delete(write(tmp_path / "2.parquet", of_two, name=stored), DeleteContent.EQUALITY, 1, 2)
    assert [row["id"] for row in read(data_file(data, by_key))] == [0, 1, 3]
    assert [row["id"] for row in read(data_file(data, by_both))] == [1, 2, 3, 4]


ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(0, 3)),
        st.sampled_from([None, "", "a", "b"]),
        st.sampled_from([0.5, None, 1e9]),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(
    rows=ROWS,
    deleted=ROWS,
    ids=st.sampled_from([(1,), (2,), (1, 2), (2, 1), (1, 2, 3)]),
    by=st.sets(st.integers(0, 11)),
)
def test_the_rows_left_are_those_that_no_delete_names(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[Any, ...]],
    deleted: list[tuple[Any, ...]],
    ids: tuple[int, ...],
    by: set[int],
):
    home = tmp_path_factory.mktemp("rows")
    data = write(home / "a.parquet", {name: [row[number] for row in rows] for number, name in enumerate(IDS)})
    names = {number: name for name, number in IDS.items()}
    values = write(home / "e.parquet", {names[one]: [row[one - 1] for row in deleted] for one in ids})
    at = positions(home / "p.parquet", *((data, position) for position in sorted(by) if position < len(rows)))
    gone = {tuple(row[one - 1] for one in ids) for row in deleted}
    wanted = [
        row
        for position, row in enumerate(rows)
        if position not in by and tuple(row[one - 1] for one in ids) not in gone
    ]
    found = read(data_file(data, delete(values, DeleteContent.EQUALITY, *ids), at))
    assert [tuple(row.values()) for row in found] == wanted


def test_a_delete_file_that_is_gone_is_a_conflict(tmp_path: Path):
    data = write(tmp_path / "a.parquet", {"id": range(3)})
    with pytest.raises(Conflict, match=r"d\.parquet was deleted"):
        read(data_file(data, delete(tmp_path / "d.parquet", DeleteContent.POSITIONS)))


def test_columns_of_the_table_are_read_whatever_they_are_called(tmp_path: Path):
    """Before format version 3, a table may have columns that are called like those of the lineage."""
    columns = {"id": 1, "_row_id": 2, "_last_updated_sequence_number": 2_147_483_539}
    fields = [
        pa.field(name, pa.int64(), metadata={b"PARQUET:field_id": str(one).encode()}) for name, one in columns.items()
    ]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({name: [1, 2] for name in columns}, schema=pa.schema(fields)), path)
    (batch,) = MergedReader([data_file(path)]).read()
    assert batch.schema.names == ["id", "_row_id"], "only a reserved id makes a column part of the lineage"

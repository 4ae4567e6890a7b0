# SPDX-License-Identifier: Apache-2.0
"""Which columns of a new file get bounds in Iceberg's metadata, by which a DELETE may remove the whole file."""

from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lake.formats.iceberg.read.footers import ids_without_bounds, leaf_ids

LONG = "z" * 5000


def without_bounds(metadata: pq.FileMetaData) -> Collection[int] | None:
    return ids_without_bounds(metadata, leaf_ids(metadata))


def footer(path: Path, columns: dict[str, pa.Array], rows_each: int = 2) -> pq.FileMetaData:
    """The footer of a file with row groups of ``rows_each`` rows, whose columns have the field ids 1, 2, …"""
    fields = [
        pa.field(name, values.type, metadata={"PARQUET:field_id": str(number)})
        for number, (name, values) in enumerate(columns.items(), start=1)
    ]
    pq.write_table(pa.table(list(columns.values()), pa.schema(fields)), path, row_group_size=rows_each)
    return pq.read_metadata(path)


@pytest.mark.parametrize("value", [float("nan"), 7.0])
def test_floating_points_have_no_bounds_since_nan_is_outside_of_them(tmp_path: Path, value: float) -> None:
    columns = {"id": pa.array([1, 2, 3, 4]), "x": pa.array([1000.0, value, 1.0, 5.0])}
    assert without_bounds(footer(tmp_path / "a.parquet", columns)) == {2}


def test_a_column_with_a_chunk_without_bounds_has_none(tmp_path: Path) -> None:
    """Arrow leaves the bounds of long strings out; those of the other row groups don't hold for them."""
    columns = {"id": pa.array([1, 2, 3, 4]), "s": pa.array([LONG, "zz", "a", "b"]), "n": pa.array([None, None, 1, 2])}
    found = footer(tmp_path / "a.parquet", columns)
    assert not found.row_group(0).column(1).statistics.has_min_max
    assert without_bounds(found) == {2}


def test_chunks_of_nulls_only_leave_the_bounds_of_the_others(tmp_path: Path) -> None:
    columns = {"n": pa.array([None, None, 1, 2], pa.int64()), "s": pa.array([None, None, "a", "b"], pa.string())}
    assert without_bounds(footer(tmp_path / "a.parquet", columns)) == set()


def test_a_file_without_statistics_has_no_bounds(tmp_path: Path) -> None:
    fields = [pa.field("n", pa.int64(), metadata={"PARQUET:field_id": "7"})]
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table([[1, 2]], pa.schema(fields)), path, write_statistics=False)
    assert without_bounds(pq.read_metadata(path)) == {7}

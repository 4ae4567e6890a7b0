# SPDX-License-Identifier: Apache-2.0
"""How the engine ``arrow`` stores columns: with a dictionary if this is smaller, decimals as in the inputs."""

import random
import tracemalloc
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_arrow_engine import altered, read, rewrite, task_of, write

from executors.datafiles.thrift import I32, LIST, STRUCT, Struct, encode, find_field
from executors.engines.dictionaries import leaves_without_dictionary

SIZES = random.Random(25)
ROWS = 40_000


def columns_of(number: int) -> dict[str, pa.Array]:
    """The columns of a file, named after what its values are like in a row group of many files."""
    start = number * ROWS
    return {
        "unique numbers": pa.array(SIZES.sample(range(1 << 40), ROWS)),
        "unique texts": pa.array([f"{start + n:x}" for n in range(ROWS)]),
        "unique moments": pa.array(range(start, start + ROWS), pa.timestamp("us")),
        "unique prices": pa.array(
            [Decimal(n).scaleb(-2) for n in SIZES.sample(range(1 << 30), ROWS)], pa.decimal128(15, 2)
        ),
        "few numbers": pa.array([n % 300 for n in range(ROWS)]),
        "common numbers": pa.array([SIZES.randrange(ROWS) << 20 for _ in range(ROWS)]),
        "common texts": pa.array([f"a long text with the number {n % 8_000}" for n in range(ROWS)]),
        "runs": pa.array([n // 100 for n in range(ROWS)]),
        "nulls": pa.array([None] * ROWS, pa.int64()),
        "flags": pa.array([n % 2 == 0 for n in range(ROWS)]),
    }


@pytest.mark.parametrize("codec", ["snappy", "none"])
def test_columns_have_a_dictionary_unless_the_file_is_smaller_without(tmp_path: Path, codec: str):
    parts = [pa.table(columns_of(number)) for number in range(6)]
    paths = [
        write(tmp_path / f"{number}.parquet", part, compression=codec, store_decimal_as_integer=True)
        for number, part in enumerate(parts)
    ]
    (path,) = rewrite(task_of(paths, tmp_path))
    rows = pa.concat_tables(parts)
    assert read(path).equals(rows)
    group = pq.read_metadata(path).row_group(0)
    chunks = {name: group.column(number) for number, name in enumerate(rows.column_names)}
    without = {name for name, chunk in chunks.items() if not chunk.has_dictionary_page}
    assert without == {name for name in chunks if name.startswith("unique")} | {"flags"}
    other = tmp_path / "with dictionaries.parquet"
    pq.write_table(
        rows, other, compression=codec, row_group_size=group.num_rows, store_decimal_as_integer=True, store_schema=False
    )
    for number, (name, chunk) in enumerate(chunks.items()):
        with_dictionary = pq.read_metadata(other).row_group(0).column(number).total_compressed_size
        assert chunk.total_compressed_size <= with_dictionary * 1.01 + 100, name


def test_lists_and_structs_have_dictionaries_by_their_parts(tmp_path: Path):
    parts = []
    for _ in range(4):
        structs = [{"unique": [n, None], "few": n % 50} for n in SIZES.sample(range(1 << 40), ROWS)]
        nulls = pa.array([[], None, *([[None]] * (ROWS - 2))], pa.list_(pa.int64()))
        parts.append(pa.table({"a": structs, "b": nulls}))
    paths = [write(tmp_path / f"{number}.parquet", part) for number, part in enumerate(parts)]
    (path,) = rewrite(task_of(paths, tmp_path))
    assert read(path).equals(pa.concat_tables(parts))
    group = pq.read_metadata(path).row_group(0)
    found = {group.column(n).path_in_schema: group.column(n).has_dictionary_page for n in range(group.num_columns)}
    assert found == {"a.unique.list.element": False, "a.few": True, "b.list.element": True}


def test_decimals_stay_as_they_are_stored_with_their_bounds(tmp_path: Path):
    """Files of several writers: integers of 32 and 64 bits and bytes, also of decimals that would fit into integers."""
    values = [Decimal(n).scaleb(-2) for n in (-12345, 0, 99, 1234567)]
    small, large = pa.array(values, pa.decimal128(9, 2)), pa.array(values, pa.decimal128(18, 2))
    columns = {"small": small, "large": large, "nested": pa.array([[v, None] for v in values], pa.list_(small.type))}
    columns |= {"wide": pa.array(values, pa.decimal128(30, 2)), "word": pa.array(["a", "b", "a", None])}
    rows = pa.table(columns)
    for as_integer in (True, False):
        folder = tmp_path / str(as_integer)
        paths = [
            write(folder / f"{number}.parquet", rows, store_decimal_as_integer=as_integer, write_page_index=True)
            for number in range(2)
        ]
        (path,) = rewrite(task_of(paths, folder))
        assert read(path).equals(pa.concat_tables([rows, rows]))
        assert pq.read_schema(path).equals(pq.read_schema(paths[0]), check_metadata=True)
        before, after = pq.read_metadata(paths[0]), pq.read_metadata(path)
        assert after.schema.equals(before.schema)
        for number in range(after.num_columns):
            statistics = after.row_group(0).column(number).statistics
            groups = [before.row_group(group).column(number).statistics for group in range(before.num_row_groups)]
            if statistics.has_min_max:
                assert (statistics.min, statistics.max) == (min(s.min for s in groups), max(s.max for s in groups))


def test_decimals_of_one_size_are_kept_as_integers_in_one_column_and_as_bytes_in_another(tmp_path: Path):
    def with_decimal(fields: Struct) -> None:
        column = fields[2][1][1][1]
        column |= {6: (I32, 5), 7: (I32, 2), 8: (I32, 15), 10: (STRUCT, {5: (STRUCT, {1: (I32, 2), 2: (I32, 15)})})}

    values = [Decimal(n).scaleb(-2) for n in (-12345, 99, 1234567)]
    rows = pa.table({"integer": [-12345, 99, 1234567], "bytes": pa.array(values, pa.decimal128(15, 2))})
    paths = [
        altered(
            write(tmp_path / f"{n}.parquet", rows, store_decimal_as_integer=False, store_schema=False), with_decimal
        )
        for n in range(2)
    ]
    (path,) = rewrite(task_of(paths, tmp_path))
    assert [read(path).column(name).to_pylist() for name in rows.column_names] == [values * 2] * 2
    schema = pq.read_metadata(path).schema
    assert [schema.column(n).physical_type for n in range(2)] == ["INT64", "FIXED_LEN_BYTE_ARRAY"]


@pytest.mark.parametrize("name", ["ARROW:schema", "word"])
def test_arrows_own_schema_is_not_used_even_if_a_column_has_its_name(tmp_path: Path, name: str):
    rows = pa.table({name: pa.array(["ARROW:schema", "\x18\x0cARROW:schema"], pa.large_string())})
    paths = [write(tmp_path / f"{number}.parquet", rows) for number in range(2)]
    (path,) = rewrite(task_of(paths, tmp_path))
    assert read(path).equals(pa.concat_tables([rows, rows]))
    assert pq.read_schema(path).equals(rows.schema)


@given(st.dictionaries(st.integers(1, 14), st.binary(max_size=200), min_size=1), st.integers(1, 15))
def test_a_field_is_found_behind_any_others_or_reported_as_missing(fields: dict[int, bytes], number: int):
    data = encode({key: (LIST, (STRUCT, [{1: (I32, byte)} for byte in value])) for key, value in fields.items()})
    if number not in fields:
        with pytest.raises(ValueError, match="without field"):
            find_field(data, number)
        return
    start, end = find_field(data, number)
    alone = encode({1: (LIST, (STRUCT, [{1: (I32, byte)} for byte in fields[number]]))})
    assert data[start:end] == alone[1:-1]
    with pytest.raises(ValueError, match=r"cut short"):
        find_field(data[: end - 1], number)


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.binary(16)])
def test_the_first_texts_stand_for_all_wherever_they_are_in_memory(kind: pa.DataType):
    """Nine of ten texts occur once: a dictionary of them is as large as they are, and there are references to it."""
    texts = [SIZES.randbytes(8).hex() if n % 10 else "the same as others" for n in range(1 << 18)]
    rows = pa.table({"text": pa.array([text[:16] for text in texts], pa.string()).cast(pa.binary()).cast(kind)})
    few = pa.table({"text": rows["text"].slice(0, 400).take(pa.array([n % 400 for n in range(1 << 18)]))})
    for table, expected in ((rows, {0}), (rows.slice(1000, 50_000), {0}), (few, set()), (few.slice(9, 50_000), set())):
        for is_compressed in (True, False):
            assert leaves_without_dictionary(table, {0: is_compressed}) == expected
    assert leaves_without_dictionary(rows, {}) == set()
    assert leaves_without_dictionary(pa.table({"text": pa.array([None, None], kind)}), {0: True}) == set()


@pytest.mark.parametrize("kind", [pa.int16(), pa.int64()])
def test_the_choice_of_dictionaries_takes_little_memory_for_many_rows(kind: pa.DataType):
    """A row group of one narrow column has tens of millions of rows."""
    rows = pa.table({"n": pa.array(np.arange(1 << 23) % 30_000, kind)})
    tracemalloc.start()
    before = pa.default_memory_pool().max_memory()
    try:
        assert leaves_without_dictionary(rows, {0: True}) == set()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 48 << 20
    assert pa.default_memory_pool().max_memory() - before < 48 << 20


def test_a_field_is_found_behind_fields_whose_numbers_are_written_out():
    """Thrift's compact protocol permits the number of a field instead of its distance to the field before it."""
    data = bytes([5, 2, 8, 0x16, 6, 0])  # field 1 with its number, field 2 with its distance, the end
    assert (find_field(data, 1), find_field(data, 2)) == ((2, 3), (4, 5))
    with pytest.raises(ValueError, match="without field 4"):
        find_field(data, 4)

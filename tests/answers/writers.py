# SPDX-License-Identifier: Apache-2.0
"""Parquet files of a table, as pyarrow and DuckDB write them."""

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq


def written_by_pyarrow(random: Random, folder: Path, tables: Sequence[pa.Table]) -> list[str]:
    """Files with dictionaries, page indexes and Bloom filters, or without."""
    filtered = [
        name
        for name in tables[0].column_names
        if name not in ("id", "flag", "part", "items", "pairs") and random.random() < 0.5
    ]
    options: dict[str, Any] = {
        "use_dictionary": random.random() < 0.7,
        "write_page_index": random.random() < 0.5,
        "store_decimal_as_integer": random.random() < 0.5,
        "data_page_version": random.choice(["1.0", "2.0"]),
        "compression": random.choice(["none", "snappy", "zstd"]),
        "max_rows_per_page": random.choice([2, 20]),
        "bloom_filter_options": {name: {"ndv": 20} for name in filtered} or None,
    }
    each = random.choice([1, 2, 3])
    paths = [str(folder / f"{number}.parquet") for number in range(len(tables))]
    for path, rows in zip(paths, tables, strict=True):
        pq.write_table(rows, path, store_schema=False, row_group_size=max(1, rows.num_rows // each), **options)
    return paths


def written_by_duckdb(folder: Path, tables: Sequence[pa.Table]) -> list[str]:
    """Files with DuckDB's own choice of everything."""
    paths = [str(folder / f"{number}.parquet") for number in range(len(tables))]
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'; SET threads = 1")
        for path, rows in zip(paths, tables, strict=True):
            connection.register("rows", rows)
            connection.execute(f"COPY rows TO '{path}' (FORMAT parquet)")
    return paths

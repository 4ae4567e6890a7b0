# SPDX-License-Identifier: Apache-2.0
"""Tables that are rarely drawn by chance, through every engine without Spark: rows, types and metadata stay."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from executors.engines.stitch.engine import HybridEngine, ParquetStitchEngine
from executors.engines.task_engine import TaskEngine
from lake.engines import RewriteTask
from lake.plan import RewriteOptions

ENGINES = (ArrowEngine, HybridEngine, ParquetStitchEngine)
MOMENTS = pa.timestamp("ns")


def wide() -> pa.Table:
    return pa.table({f"c{number}": pa.array([number, None, 7], pa.int32()) for number in range(2_000)})


def overflowing() -> pa.Table:
    """More different values than a dictionary takes: the rest of the chunk is plain."""
    return pa.table({"s": [f"value {number} {'x' * 40}" for number in range(4_000)], "n": range(4_000)})


def old_timestamps() -> pa.Table:
    lists = pa.array([[1, None], None, []] * 3, pa.list_(MOMENTS))
    structs = pa.array(
        [{"at": 5, "n": 1}, None, {"at": None, "n": 2}] * 3, pa.struct([("at", MOMENTS), ("n", pa.int8())])
    )
    return pa.table({"at": pa.array([0, None, 10**18] * 3, MOMENTS), "lists": lists, "structs": structs})


TABLES: Mapping[str, tuple[Callable[[], pa.Table], Mapping[str, Any]]] = {
    "2,000 columns": (wide, {}),
    "dictionary overflow": (overflowing, {"dictionary_pagesize_limit": 1_000, "data_page_size": 2_000}),
    "dictionary overflow in pages of version 2": (
        overflowing,
        {"dictionary_pagesize_limit": 1_000, "data_page_size": 2_000, "data_page_version": "2.0"},
    ),
    "INT96": (old_timestamps, {"use_deprecated_int96_timestamps": True}),
    "INT96 without Arrow's schema": (
        old_timestamps,
        {"use_deprecated_int96_timestamps": True, "store_schema": False},
    ),
    **{
        f"codec {codec}": (overflowing, {"compression": codec})
        for codec in ("none", "snappy", "gzip", "brotli", "zstd", "lz4")
    },
}


@pytest.mark.slow
@pytest.mark.paired("has_empty")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("what", TABLES)
@pytest.mark.parametrize("has_empty", [False, True])
def test_rows_types_and_metadata_are_kept(tmp_path: Path, engine: type[TaskEngine], what: str, has_empty: bool):
    make, options = TABLES[what]
    rows, paths = make(), []
    for number in range(3):
        paths.append(str(tmp_path / f"{number}.parquet"))
        with pq.ParquetWriter(paths[-1], rows.schema, **options) as writer:
            if has_empty and number == 1:
                writer.write_table(rows.slice(0, 0))  # a row group without rows, between others
            writer.write_table(rows, row_group_size=-(-rows.num_rows // 2))
            writer.add_key_value_metadata({"k": "v"})
    made, output = engine(InProcessBackend(1)), str(tmp_path / "new")
    least = 1 << 40 if engine is HybridEngine else 0
    task = RewriteTask(group=0, inputs=tuple(paths), outputs=(output,), bytes=1)
    wanted = RewriteOptions(target_file_max_bytes=1 << 30, engine=made.name, min_row_group_bytes=least)
    assert made.unsupported_reason(task, wanted) is None
    list(made.rewrite([task], wanted, lambda _: None, threading.Event()))
    before, after = pq.ParquetFile(paths[0]), pq.ParquetFile(output)
    assert after.read().equals(pa.concat_tables([before.read()] * 3))
    assert after.schema_arrow.equals(before.schema_arrow, check_metadata=True)
    assert after.metadata.schema.equals(before.metadata.schema)
    assert after.metadata.metadata == before.metadata.metadata
    codecs = [one.metadata.row_group(0).column(0).compression for one in (before, after)]
    assert codecs[0] == codecs[1]
    if what.startswith("dictionary"):
        assert {"PLAIN", "RLE_DICTIONARY"} <= set(after.metadata.row_group(0).column(0).encodings)

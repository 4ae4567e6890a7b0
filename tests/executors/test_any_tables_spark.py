# SPDX-License-Identifier: Apache-2.0
"""Tables of any types that Spark has, through the engine ``spark``: it keeps rows, types and codec."""

import threading
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from any_tables import tables
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from public_files import by_pyarrow_without_part_names
from support import SOAK
from verification_case import Case

from executors.engines.spark_sql import SparkEngine
from lake.engines import RewriteTask
from lake.plan import OutputFile, RewriteOptions

pytestmark = pytest.mark.spark
OPTIONS = RewriteOptions(target_file_max_bytes=1 << 30, engine="spark")
#: the codecs that Spark both reads and writes
CODECS = ("none", "snappy", "gzip", "zstd", "lz4")


@settings(max_examples=200 if SOAK else 12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=tables(for_spark=True), data=st.data())
def test_any_table_keeps_its_rows_and_types(
    spark: Any, tmp_path_factory: pytest.TempPathFactory, rows: pa.Table, data: st.DataObject
):
    case = Case(tmp_path_factory.mktemp("any"))
    options = {
        "compression": data.draw(st.sampled_from(CODECS)),
        "data_page_version": data.draw(st.sampled_from(["1.0", "2.0"])),
        "use_dictionary": data.draw(st.booleans()),
        "store_decimal_as_integer": data.draw(st.booleans()),
        "store_schema": data.draw(st.booleans()),
        "row_group_size": data.draw(st.integers(1, 12)),
    }
    cut = data.draw(st.integers(0, rows.num_rows))
    parts = [rows.slice(0, cut), rows.slice(cut), rows]
    paths = [str(case.input(part, **options)) for part in parts]
    output = str(case.base / "p" / "new.parquet")
    schema = spark.read.parquet(*paths).schema.json()
    task = RewriteTask(group=0, inputs=tuple(paths), outputs=(output,), bytes=1, schema=schema)
    engine = SparkEngine(lambda: spark)
    assert engine.unsupported_reason(task, OPTIONS) is None
    list(engine.rewrite([task], OPTIONS, lambda _: None, threading.Event()))
    # Spark writes no Arrow schema, so the inputs are compared without theirs.
    for number, part in enumerate(parts):
        pq.write_table(part, case.base / f"{number}.parquet", **options | {"store_schema": False})
    before = [by_pyarrow_without_part_names(str(case.base / f"{number}.parquet")) for number in range(3)]
    assert by_pyarrow_without_part_names(output) == (before[0][0], [row for _, of_part in before for row in of_part])
    known = pq.read_metadata(paths[-1]).row_group(0).column(0).compression
    assert pq.read_metadata(output).row_group(0).column(0).compression == known
    case.outputs = [OutputFile(partition="p", path="p/new.parquet", bytes=1, rows=2 * rows.num_rows)]
    case.prove()

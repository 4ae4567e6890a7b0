# SPDX-License-Identifier: Apache-2.0
"""Lists of every kind that Arrow has, rewritten by Spark, and searched by Spark after a rewrite by pyarrow."""

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_list_kinds import ANY_LIST, ELEMENTS, NAN, STAMPS, lists, read, rewrite, stamps, write
from verification_case import Case

from executors.engines.arrow import ArrowEngine
from executors.engines.spark_sql import SparkEngine
from lake.engines import RewriteTask
from lake.plan import OutputFile, RewriteOptions, VerificationLevel

pytestmark = pytest.mark.spark
OPTIONS = RewriteOptions(target_file_max_bytes=1 << 30)


def prove(case: Case, path: str, rows: int) -> None:
    case.outputs = [OutputFile(partition="p", path=f"p/{Path(path).name}", bytes=1, rows=rows)]
    for case.level in VerificationLevel:
        case.prove()


@ANY_LIST
def test_spark_keeps_the_rows_and_verification_proves_it(spark: Any, tmp_path: Path, kind: str):
    case = Case(tmp_path)
    columns = {name.replace(" ", "_"): lists(kind, *element) for name, element in ELEMENTS.items()}
    rows = pa.table({**columns, "n": range(7)})
    paths = [str(case.input(part, row_group_size=3)) for part in (rows, rows.slice(2))]
    schema = spark.read.parquet(paths[0]).schema.json()
    new = str(tmp_path / "p" / "new.parquet")
    task = RewriteTask(group=0, inputs=tuple(paths), outputs=(new,), bytes=1, schema=schema)
    engine = SparkEngine(lambda: spark)
    assert engine.unsupported_reason(task, OPTIONS) is None
    list(engine.rewrite([task], OPTIONS, lambda _: None, threading.Event()))
    texts = [read(path)[1] for path in paths]
    assert read(new)[1] == texts[0][:-1] + ", " + texts[1][1:]
    prove(case, new, 12)


@ANY_LIST
def test_spark_finds_nan_behind_lists_and_reads_their_int96_as_before(spark: Any, tmp_path: Path, kind: str):
    pairs = pa.struct([("x", pa.int32()), ("y", pa.float32())])
    rows = pa.table({"c": lists(kind, pairs, [{"x": 1, "y": NAN}, None]), "d": [1.0, NAN, None, 2.0, 0.0, -0.0, 3.0]})
    old = [write(tmp_path / f"{number}.parquet", rows) for number in range(2)]
    new = rewrite(ArrowEngine, old, tmp_path / "new")
    # Of pyarrow's own files, whose bounds lack NaN, Spark finds none of these rows with `d > 100`.
    found = [spark.read.parquet(new).where(one).count() for one in ("d > 100", "NOT d < 5", "d = 0.0D", "d = -0.0D")]
    assert found == [2, 2, 4, 4]
    nested = "exists(c, one -> isnan(one.y))"
    assert spark.read.parquet(new).where(nested).count() == spark.read.parquet(*old).where(nested).count() > 0
    for number, element in enumerate(STAMPS):
        options = {"use_deprecated_int96_timestamps": True}
        path = str(tmp_path / f"at-{number}.parquet")
        pq.write_table(stamps(kind, element, 2), path, **options)
        out = rewrite(ArrowEngine, [path], tmp_path / f"new-at-{number}")
        before, after = (
            [row.t for row in spark.read.parquet(one).selectExpr("cast(struct(*) AS string) AS t").collect()]
            for one in (path, out)
        )
        assert after == before

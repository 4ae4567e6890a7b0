# SPDX-License-Identifier: Apache-2.0
"""Runs every engine over a folder of Parquet files, such as ``data/`` of apache/parquet-testing.

Each engine gets two copies of one file. It must write a file that each reader reads as the rows and types of the file,
twice, or refuse the file with a reason. ``PYTHONPATH=.:tests:tests/executors .venv/bin/python -m public_files FOLDER``
prints the outcomes; ``--spark`` adds the engine ``spark`` and Spark as a reader.
"""

import argparse
import json
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from executors.engines.spark_sql import SparkEngine
from executors.engines.stitch.engine import HybridEngine, ParquetStitchEngine
from lake.engines import RewriteEngine, RewriteTask
from lake.errors import Conflict, Rejected, one_line
from lake.plan import RewriteOptions

Content = tuple[str, list[str]]
"""The types of a file, and the rows as text."""

Reader = Callable[[str], Content]
"""Reads a file. Raises any exception if it can't."""


#: files whose values take gigabytes
_TOO_LARGE = ("large_string_map.brotli.parquet",)


def by_pyarrow(path: str) -> Content:
    """The rows as pyarrow reads them."""
    rows = pq.ParquetFile(path).read()
    return str(rows.schema.remove_metadata()), _row_texts(rows)


def by_pyarrow_without_part_names(path: str) -> Content:
    """The rows as pyarrow reads them, with types without names and field ids of the parts of lists and maps.

    Spark writes such parts by the names of Parquet's specification, and without field ids.
    """
    rows = pq.ParquetFile(path).read()
    return "\n".join(map(_described, rows.schema)), list(map(repr, rows.to_pylist()))


def _described(column: pa.Field) -> str:
    return f"{column.name} {(column.metadata or {}).get(b'PARQUET:field_id', b'').decode()}: {_described_type(column)}"


def _described_type(column: pa.Field) -> str:
    kind, ending = column.type, "" if column.nullable else " not null"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(map(_described, kind))}>{ending}"
    if pa.types.is_map(kind):
        return f"map<{_described_type(kind.key_field)}, {_described_type(kind.item_field)}>{ending}"
    if pa.types.is_list(kind):
        return f"list<{_described_type(kind.value_field)}>{ending}"
    return f"{kind}{ending}"


def by_duckdb(path: str) -> Content:
    """The rows as DuckDB reads them."""
    with duckdb.connect() as connection:
        found = connection.sql(f"SELECT * FROM read_parquet('{path}')")
        return f"{found.columns} {found.types}", _row_texts(found.to_arrow_table())


def by_spark(spark: Any) -> Reader:
    """A reader of the rows as Spark reads them."""

    def read(path: str) -> Content:
        found = spark.read.parquet(path)
        return found.schema.simpleString(), [repr(row) for row in found.collect()]

    return read


def schema_by_spark(spark: Any) -> Callable[[str], str | None]:
    """Return what gives a file's schema in Spark's JSON; None if Spark does not read the file."""

    def read(path: str) -> str | None:
        try:
            return json.dumps(json.loads(spark.read.parquet(path).schema.json()))
        except Exception:
            return None

    return read


def _row_texts(rows: pa.Table) -> list[str]:
    # Of long values only the ends are shown, and their length.
    return [
        "".join(column.slice(index, 1).combine_chunks().to_string() for column in rows)
        for index in range(rows.num_rows)
    ]


def outcome(engine: RewriteEngine, path: str, readers: Mapping[str, Reader], schema: str | None = None) -> str:
    """Return ``same`` with the readers that read the rewritten file as its inputs, or the engine's reason to refuse.

    Raises AssertionError if a reader reads something else.
    """
    before = {name: content for name, reader in readers.items() if (content := _read(reader, path)) is not None}
    with tempfile.TemporaryDirectory() as folder:
        inputs = tuple(shutil.copyfile(path, f"{folder}/{number}.parquet") for number in range(2))
        copies = [Path(name).read_bytes() for name in inputs]
        task = RewriteTask(
            group=0,
            inputs=inputs,
            outputs=(f"{folder}/new.parquet",),
            bytes=2 * Path(path).stat().st_size,
            schema=schema,
        )
        options = RewriteOptions(target_file_max_bytes=1 << 30, engine=engine.name)
        try:
            refused = engine.unsupported_reason(task, options)
            written = [] if refused else list(engine.rewrite([task], options, lambda _: None, threading.Event()))
        except (Conflict, Rejected) as error:
            refused, written = one_line(error), []
        assert [Path(name).read_bytes() for name in inputs] == copies, f"{engine.name} changed its inputs"
        if refused:
            assert not Path(task.outputs[0]).exists(), f"{engine.name} left a file"
            return f"refused: {refused.replace(folder, '…')}"
        for name, (types, rows) in before.items():
            new_types, new_rows = readers[name](written[0].path)
            assert new_types == types, f"{name} reads {new_types} instead of {types}"
            assert new_rows == rows * 2, f"{name} reads other rows after {engine.name}"
        return f"same: {', '.join(before) or 'no reader reads the file'}"


def _read(reader: Reader, path: str) -> Content | None:
    try:
        return reader(path)
    except Exception:
        return None


def engines_in_process() -> Sequence[RewriteEngine]:
    """The engines that need no Spark."""
    backend = InProcessBackend(1)
    return ParquetStitchEngine(backend), HybridEngine(backend), ArrowEngine(backend)


def main() -> int:
    """Print a line for each file and engine, and the totals; 1 if an engine changed rows or types."""
    parser = argparse.ArgumentParser(prog="python -m public_files", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--spark", action="store_true")
    given = parser.parse_args()
    readers: dict[str, Reader] = {"pyarrow": by_pyarrow, "DuckDB": by_duckdb}
    engines: list[RewriteEngine] = list(engines_in_process())
    schema_of: Callable[[str], str | None] = lambda _: None  # noqa: E731
    if given.spark:
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        readers["Spark"] = by_spark(spark)
        engines.append(SparkEngine(lambda: spark))

        schema_of = schema_by_spark(spark)

    totals: Counter[str] = Counter()
    for file in sorted(path for path in given.folder.rglob("*") if ".parquet" in path.name):
        if file.name in _TOO_LARGE:
            continue
        for engine in engines:
            by_arrow = by_pyarrow_without_part_names if engine.name == "spark" else by_pyarrow
            try:
                said = outcome(engine, str(file), {**readers, "pyarrow": by_arrow}, schema_of(str(file)))
            except Exception as error:
                said = f"WRONG: {type(error).__name__}: {one_line(error)}"
            totals[f"{engine.name}: {said.partition(':')[0]}"] += 1
            print(f"{file.relative_to(given.folder)}\t{engine.name}\t{said[:300]}", flush=True)
    print(*(f"{name}\t{count}" for name, count in sorted(totals.items())), sep="\n")
    return int(any("WRONG" in name for name in totals))


if __name__ == "__main__":
    raise SystemExit(main())

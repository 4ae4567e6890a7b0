# SPDX-License-Identifier: Apache-2.0
"""Spark, DuckDB and pyarrow answer the same over required columns that each engine wrote and split as before."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from answers.cases import IDS, batch
from answers.readers import Answer, files, in_duckdb, in_duckdb_unskipped, in_pyarrow, in_pyarrow_unskipped
from answers.required import SHAPES, joins, required, shape_of, without_nulls
from answers.spark import OPTIONS, in_spark, in_spark_unskipped, settings
from answers.writers import written_by_pyarrow
from support import SOAK

from executors.engines import group_rewrite
from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from executors.engines.spark_sql import SparkEngine
from executors.engines.stitch.engine import HybridEngine, ParquetStitchEngine
from lake.engines import RewriteEngine, RewriteTask

pytestmark = pytest.mark.spark
SEEDS = range(30 if SOAK else 1)
PREDICATES, JOINS = 60, 12

#: the files of each table, by its number
Paths = Mapping[int, Sequence[str]]


@pytest.fixture(scope="module")
def session(spark: Any) -> Iterator[Any]:
    with settings(spark):
        yield spark


def engines_of(session: Any) -> Sequence[RewriteEngine]:
    """The engines in an order in which each one splits what another one wrote, ``stitch`` what ``spark`` wrote."""
    backend = InProcessBackend(1)
    return ArrowEngine(backend), SparkEngine(lambda: session), ParquetStitchEngine(backend), HybridEngine(backend)


class Case:
    """The batch of a seed as files with required columns, and what each reader answers of their rows."""

    def __init__(self, spark: Any, folder: Path, seed: int) -> None:
        self.engines = engines_of(spark)
        tables = len(self.engines) * len(SHAPES)
        self.folder, self._spark = folder, spark
        self.drawn = without_nulls(batch(seed, tables=tables, predicates=PREDICATES))
        self.joins = joins(self.drawn, seed, JOINS)
        self.asked = [*self.drawn.predicates, *self.joins]
        self.of_pyarrow = [one for one in self.drawn.predicates if one.is_for_pyarrow]
        seeds = str(folder / "seeds.parquet")
        # Nothing to skip by, and nothing required.
        pq.write_table(self.drawn.rows, seeds, store_schema=False, write_statistics=False, use_dictionary=False)
        rows = spark.read.parquet(seeds)
        self.schema = rows.schema
        self.truth = {
            "Spark": in_spark_unskipped(rows, self.drawn.predicates) + in_spark(rows, self.joins),
            "DuckDB": in_duckdb_unskipped(self.drawn.rows, self.asked),
            "pyarrow": in_pyarrow_unskipped(self.drawn.rows, self.of_pyarrow),
        }
        random = Random(seed)
        self.inputs: dict[int, Sequence[str]] = {}
        for number, some in enumerate(self.drawn.tables):
            own = folder / "in" / str(number)
            own.mkdir(parents=True)
            self.inputs[number] = written_by_pyarrow(random, own, required(some, shape_of(number)))

    def rewritten(self, old: Paths, turn: int) -> dict[int, tuple[str, Sequence[str]]]:
        """The engine and the two new files of each table: the first engine that can, from another one at each turn."""
        new = {}
        for number, paths in old.items():
            first = (number // len(SHAPES) + turn) % len(self.engines)
            turned = (*self.engines[first:], *self.engines[:first])
            new[number] = self._rewritten(number, paths, turned, f"turn-{turn}", 2)
        return new

    def merged(self, old: Paths) -> Paths:
        """Each table as one file with the row groups of ``old``, without which copying engines can't split it."""
        copying = [engine for engine in self.engines if isinstance(engine, ParquetStitchEngine)]
        return {number: self._rewritten(number, paths, copying, "merged", 1)[1] for number, paths in old.items()}

    def _rewritten(
        self, number: int, paths: Sequence[str], engines: Sequence[RewriteEngine], name: str, count: int
    ) -> tuple[str, Sequence[str]]:
        own = self.folder / name / str(number)
        own.mkdir(parents=True)
        outputs = tuple(str(own / f"{output}.parquet") for output in range(count))
        task = RewriteTask(group=0, inputs=tuple(paths), outputs=outputs, bytes=1, schema=self.schema.json())
        engine = next(one for one in engines if one.unsupported_reason(task, OPTIONS) is None)
        list(engine.rewrite([task], OPTIONS, lambda _: None, threading.Event()))
        return engine.name, outputs

    def answered(self, tables: Paths) -> Mapping[str, Sequence[Answer]]:
        """What each reader answers of the files of all tables."""
        every = [path for paths in tables.values() for path in paths]
        schema = self.drawn.rows.schema
        return {
            "Spark": in_spark(self._spark.read.schema(self.schema).parquet(*every), self.asked),
            "DuckDB": in_duckdb(every, self.asked),
            "pyarrow": in_pyarrow(files(every, schema), self.of_pyarrow),
        }

    def different(
        self, before: Mapping[str, Sequence[Answer]], new: Mapping[int, tuple[str, Sequence[str]]]
    ) -> Iterator[str]:
        """Conditions for which a reader misses a row of new files that it found before, or finds another one.

        pyarrow's own files hide rows beside NaN; of those of the engine ``arrow`` readers find all.
        """
        for reader, answers in self.answered({number: paths for number, (_, paths) in new.items()}).items():
            asked = self.of_pyarrow if reader == "pyarrow" else self.asked
            for one, right, old, found in zip(asked, self.truth[reader], before[reader], answers, strict=True):
                for number, (engine, _) in new.items():
                    rows = range(number * IDS, number * IDS + IDS)
                    most, least, got = (answer.intersection(rows) for answer in (right, right & old, found))
                    if engine == "arrow":
                        least = most
                    if not least <= got <= most:
                        table = f"table {number} ({shape_of(number)}), engine {engine}, {reader}"
                        yield f"{table}: {one.spark}: {sorted(got)} instead of {sorted(least)}"


def required_paths(path: str) -> set[str]:
    """The columns of a file, and their parts, that are required."""

    def walk(above: str, field: pa.Field) -> Iterator[str]:
        name = f"{above}{field.name}"
        if not field.nullable:
            yield name
        kind = field.type
        if pa.types.is_list(kind):
            yield from walk(f"{name}.", kind.value_field.with_name("element"))
        elif pa.types.is_map(kind):
            yield from walk(f"{name}.", kind.item_field.with_name("value"))
        elif pa.types.is_struct(kind):
            for part in kind:
                yield from walk(f"{name}.", part)

    return {one for field in pq.read_schema(path) for one in walk("", field)}


@pytest.mark.parametrize("seed", SEEDS)
def test_every_reader_answers_over_required_columns_of_every_engine_as_before(
    session: Any, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
):
    case = Case(session, tmp_path, seed)
    monkeypatch.setattr(group_rewrite, "_ROW_GROUP_BYTES", 1 if seed % 2 else 8 << 20)
    before = case.answered(case.inputs)
    first = case.rewritten(case.inputs, 0)
    split = case.rewritten(case.merged({number: paths for number, (_, paths) in first.items()}), 1)
    for new in (first, split):
        assert {(engine, shape_of(number)) for number, (engine, _) in new.items()} >= {
            (engine.name, shape) for engine in case.engines for shape in ("values", "everything")
        }
        for number, (_, paths) in new.items():
            # Required is what every input requires.
            old = set.intersection(*map(required_paths, case.inputs[number]))
            assert [required_paths(path) for path in paths] == [old] * len(paths)
        assert list(case.different(before, new)) == []
    assert {engine for number, (engine, _) in first.items() if shape_of(number) == "mixed"} == {"spark"}

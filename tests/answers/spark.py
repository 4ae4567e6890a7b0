# SPDX-License-Identifier: Apache-2.0
"""A batch of tables as files that pyarrow, DuckDB and Spark wrote, rewritten by every engine, and asked by Spark."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest

from answers.cases import IDS, Batch
from answers.kinds import Predicate
from answers.readers import Answer, answers, of_each_row
from answers.writers import written_by_duckdb, written_by_pyarrow
from executors.engines import group_rewrite
from lake.engines import RewriteEngine, RewriteTask
from lake.plan import RewriteOptions

#: not ``auto``: no engine leaves a group alone because another one is faster
OPTIONS = RewriteOptions(target_file_max_bytes=1 << 30, engine="hybrid", min_row_group_bytes=1 << 40)
#: conditions of one query; more are slower to plan than to run
_AT_ONCE = 40

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # Many small queries take longer to compile than to run.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    "spark.sql.parquet.columnarReaderBatchSize": "64",
    "spark.sql.orc.columnarReaderBatchSize": "64",
    # Opening a file costs nothing here: a task reads many.
    "spark.sql.files.openCostInBytes": "1",
    "spark.sql.files.maxPartitionBytes": str(1 << 20),
    **{
        f"spark.sql.parquet.{kind}RebaseModeIn{way}": "CORRECTED"
        for kind in ("int96", "datetime")
        for way in ("Read", "Write")
    },
}


@contextmanager
def settings(spark: Any, **more: str) -> Iterator[None]:
    """The session with settings for many small queries."""
    wanted = _SETTINGS | more
    before = {key: spark.conf.get(key, None) for key in wanted}
    for key, value in wanted.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)


def in_spark(frame: Any, predicates: Sequence[Predicate]) -> list[Answer]:
    """What Spark answers of a frame with everything that it skips by."""
    found: list[Answer] = []
    spark = frame.sparkSession
    frame.createOrReplaceTempView("answers")
    for start in range(0, len(predicates), _AT_ONCE):
        some = predicates[start : start + _AT_ONCE]
        asked = " UNION ALL ".join(f"SELECT {n} AS n, id FROM answers WHERE {one.spark}" for n, one in enumerate(some))
        found += answers(_pairs(spark.sql(asked)), len(some))
    return found


def in_spark_unskipped(frame: Any, predicates: Sequence[Predicate]) -> list[Answer]:
    """What Spark answers in one look at all rows."""
    asked = frame.selectExpr("id", *(f"({one.spark}) AS p{number}" for number, one in enumerate(predicates)))
    return of_each_row(_pairs(asked), len(predicates))


def _pairs(frame: Any) -> list[tuple[Any, ...]]:
    columns = [column.to_pylist() for column in frame.toArrow().columns] if hasattr(frame, "toArrow") else None
    return list(zip(*columns, strict=True)) if columns else [tuple(row) for row in frame.collect()]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFiles:
    """The files of one table: who wrote them, and which engine rewrote these."""

    writer: str
    paths: Sequence[str]
    engine: str = ""


#: files of tables by the number of a table
Files = Mapping[int, TableFiles]


class Written:
    """The tables of a batch, each as files of one writer and one format."""

    def __init__(self, spark: Any, folder: Path, drawn: Batch, seed: int) -> None:
        self.spark, self.drawn, self.folder = spark, drawn, folder
        self._random = Random(seed)
        seeds = folder / "seeds.parquet"
        # Nothing to skip by.
        pq.write_table(drawn.rows, seeds, store_schema=False, write_statistics=False, use_dictionary=False)
        self.rows = spark.read.parquet(str(seeds))
        self.schema = self.rows.schema
        by_spark = [self._by_spark("parquet", number) for number in range(2)]
        parquet: dict[int, TableFiles] = {}
        for number, tables in enumerate(drawn.tables):
            own = folder / "in" / str(number)
            own.mkdir(parents=True)
            if number % 4 == 0:
                parquet[number] = TableFiles(writer="pyarrow", paths=written_by_pyarrow(self._random, own, tables))
            elif number % 4 == 1:
                parquet[number] = TableFiles(writer="DuckDB", paths=written_by_duckdb(own, tables))
            else:
                parquet[number] = by_spark[number % 2][number]
        self._files: Mapping[str, Files] = {"parquet": parquet, "orc": self._by_spark("orc", 0)}

    def files(self, kind: str) -> Files:
        """The files of all tables in one format, before any rewrite."""
        return self._files[kind]

    def _by_spark(self, kind: str, turn: int) -> dict[int, TableFiles]:
        """Every table as Spark writes it, with Bloom filters and dictionaries or without."""
        filtered = [name for name, kind_ in self.drawn.columns.items() if "." not in name and kind_ != "flag"]
        options = {
            "parquet": {
                "parquet.page.row.count.limit": "5",
                "parquet.enable.dictionary": str(turn == 0).lower(),
                **{f"parquet.bloom.filter.enabled#{name}": str(turn == 0).lower() for name in filtered},
                **{f"parquet.bloom.filter.expected.ndv#{name}": "20" for name in filtered},
            },
            "orc": {"orc.bloom.filter.columns": ",".join(filtered), "orc.row.index.stride": "1000"},
        }[kind]
        sizes = [[file.num_rows for file in files] for files in self.drawn.tables]
        ends = [
            f"WHEN id < {number * IDS + sum(counts[: at + 1])} THEN '{number}-{at}'"
            for number, counts in enumerate(sizes)
            for at in range(len(counts))
        ]
        target = self.folder / f"{kind}-{turn}"
        written = {"spark.sql.parquet.outputTimestampType": ["TIMESTAMP_MICROS", "INT96"][turn]}
        with settings(self.spark, **written):
            frame = (
                self.rows.selectExpr("*", f"CASE {' '.join(ends)} END AS file").coalesce(1).sortWithinPartitions("id")
            )
            frame.write.format(kind).options(**options).partitionBy("file").save(str(target))
        return {
            number: TableFiles(
                writer="Spark",
                paths=[str(next(target.glob(f"file={number}-{at}/part-*"))) for at in range(len(counts))],
            )
            for number, counts in enumerate(sizes)
        }

    def rewritten(
        self,
        kind: str,
        engines: Sequence[RewriteEngine],
        folder: Path,
        files: Files | None = None,
        outputs_each: Sequence[int] = (1, 2),
        first_engine: str = "",
    ) -> Files:
        """The new files of each table that one of ``engines`` can rewrite, with the next one first for each.

        They replace ``files``, else those before any rewrite; tables take ``outputs_each`` in turn.
        ``first_engine`` is first for all of them.
        """
        made: dict[int, TableFiles] = {}
        tasks: dict[str, list[RewriteTask]] = {}
        for number, old in (self._files[kind] if files is None else files).items():
            own = folder / str(number)
            own.mkdir(parents=True)
            count = outputs_each[number % len(outputs_each)]
            outputs = tuple(str(own / f"{output}.{kind}") for output in range(count))
            task = RewriteTask(
                group=number, inputs=tuple(old.paths), outputs=outputs, bytes=1, schema=self.schema.json()
            )
            # So that each meets files of several writers.
            first = (number + number // 4) % len(engines)
            if first_engine:
                first = [one.name for one in engines].index(first_engine)
            turned = (*engines[first:], *engines[:first])
            engine = next((one for one in turned if one.unsupported_reason(task, OPTIONS) is None), None)
            if engine is not None:
                made[number] = replace(old, engine=engine.name, paths=outputs)
                tasks.setdefault(engine.name, []).append(task)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(group_rewrite, "_ROW_GROUP_BYTES", self._random.choice([1, 8 << 20]))
            for engine in engines:
                some = tasks.get(engine.name, [])
                written = list(engine.rewrite(some, OPTIONS, lambda _: None, threading.Event())) if some else []
                assert sorted(one.path for one in written) == sorted(path for task in some for path in task.outputs)
        return made

    def frame(self, kind: str, files: Files) -> Any:
        """Files of tables as Spark reads them."""
        reader = self.spark.read.schema(self.schema).option("recursiveFileLookup", "true")
        return reader.format(kind).load([path for one in files.values() for path in one.paths])

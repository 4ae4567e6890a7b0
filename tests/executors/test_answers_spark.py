# SPDX-License-Identifier: Apache-2.0
"""Spark with all its skipping, DuckDB and pyarrow answer the same over the files that each engine wrote as before."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from answers.cases import IDS, batch
from answers.kinds import Predicate
from answers.readers import Answer, files, in_duckdb, in_duckdb_unskipped, in_pyarrow, in_pyarrow_unskipped
from answers.spark import OPTIONS, Files, Written, in_spark, in_spark_unskipped, settings
from support import SOAK

from executors.engines import outputs
from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from executors.engines.spark_sql import SparkEngine
from executors.engines.special_floats import SpecialFloats, SpecialFloatTracker
from executors.engines.stitch.engine import HybridEngine, ParquetStitchEngine
from executors.engines.stitch.orc import OrcStitchEngine
from lake.engines import RewriteTask

pytestmark = pytest.mark.spark
SEEDS = range(40 if SOAK else 1)
TABLES, PREDICATES = 12, 60


@pytest.fixture(scope="module")
def session(spark: Any) -> Iterator[Any]:
    with settings(spark):
        yield spark


class Case:
    """The batch of a seed in files, and what each reader answers of them before any rewrite."""

    def __init__(self, spark: Any, folder: Path, seed: int) -> None:
        self._spark, self._folder = spark, folder
        self.drawn = batch(seed, tables=TABLES, predicates=PREDICATES)
        self.asked = self.drawn.predicates
        self.written = Written(spark, folder, self.drawn, seed)
        self.truth = in_spark_unskipped(self.written.rows, self.asked)
        self._before: dict[str, list[Answer]] = {}

    def rewritten(self, kind: str, name: str = "new", **options: Any) -> Files:
        """New files of all tables, by every engine in turn, in a directory ``name``."""
        spark = SparkEngine(lambda: self._spark)
        engines = {
            "parquet": (
                ArrowEngine(InProcessBackend(1)),
                spark,
                ParquetStitchEngine(InProcessBackend(1)),
                HybridEngine(InProcessBackend(1)),
            ),
            "orc": (spark, OrcStitchEngine(lambda: self._spark)),
        }[kind]
        return self.written.rewritten(kind, engines, self._folder / f"{name}-{kind}", **options)

    def wrong(self, kind: str, new: Files) -> Iterator[str]:
        """Conditions that a reader answers otherwise over new files, in words."""
        if kind not in self._before:
            self._before[kind] = in_spark(self.written.frame(kind, self.written.files(kind)), self.asked)
        yield from _different(
            "Spark",
            self.asked,
            new,
            self.truth,
            self._before[kind],
            in_spark(self.written.frame(kind, new), self.asked),
        )
        if kind == "orc":
            return  # pyarrow skips nothing of it, DuckDB does not read it
        of_pyarrow = [one for one in self.asked if one.is_for_pyarrow]
        truth = {
            "pyarrow": in_pyarrow_unskipped(self.drawn.rows, of_pyarrow),
            "DuckDB": in_duckdb_unskipped(self.drawn.rows, self.asked),
        }
        schema, inputs = self.drawn.rows.schema, self.written.files(kind)
        for number, one in new.items():
            old, now = (in_pyarrow(files(paths, schema), of_pyarrow) for paths in (inputs[number].paths, one.paths))
            yield from _different("pyarrow", of_pyarrow, {number: one}, truth["pyarrow"], old, now)
            old, now = (in_duckdb(paths, self.asked) for paths in (inputs[number].paths, one.paths))
            yield from _different("DuckDB", self.asked, {number: one}, truth["DuckDB"], old, now)


def _different(
    reader: str,
    asked: Sequence[Predicate],
    new: Files,
    truth: Sequence[Answer],
    before: Sequence[Answer],
    after: Sequence[Answer],
) -> Iterator[str]:
    """Answers about the tables of ``new`` that miss a row which was found before, or have one that is none.

    Readers miss rows of some files themselves, for every writer: Spark those of ORC where a struct is null, and one
    of the zeros. New files may have more of them found. Of the engine ``arrow`` readers find all.
    """
    for one, right, old, found in zip(asked, truth, before, after, strict=True):
        for number, table in new.items():
            rows = range(number * IDS, number * IDS + IDS)
            most, least, got = (answer.intersection(rows) for answer in (right, right & old, found))
            if table.engine == "arrow":
                least = most
            if not least <= got <= most:
                yield (
                    f"table {number}, engine {table.engine}, written by {table.writer}, {reader}: {one.spark}: "
                    f"{sorted(got)} instead of {sorted(least)}"
                )


@pytest.fixture(scope="module", params=SEEDS)
def case(request: pytest.FixtureRequest, session: Any, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(session, tmp_path_factory.mktemp("answers"), request.param)


def test_every_reader_answers_over_new_files_of_every_engine_as_before(case: Case):
    made = {kind: case.rewritten(kind) for kind in ("parquet", "orc")}
    engines = {kind: {one.engine for one in new.values()} for kind, new in made.items()}
    assert engines["parquet"] == {"arrow", "spark", "stitch", "hybrid"}
    assert engines["orc"]
    assert [line for kind, new in made.items() for line in case.wrong(kind, new)] == []


def test_every_reader_answers_over_the_files_into_which_each_engine_split_a_file_as_before(case: Case):
    for kind, engines in (("parquet", {"arrow", "spark", "stitch", "hybrid"}), ("orc", {"spark"})):
        # By a copy, since copying engines can't split a single row group.
        merged = case.rewritten(kind, "merged", outputs_each=(1,), first_engine="stitch")
        split = case.rewritten(kind, "split", files=merged, outputs_each=(2,))
        # Some batches have columns of ORC that the engine ``spark`` refuses.
        assert {one.engine for one in split.values()} == engines or (kind, split) == ("orc", {})
        assert all(len(merged[number].paths) == 1 < len(one.paths) for number, one in split.items())
        assert list(case.wrong(kind, split)) == []


def test_every_reader_answers_over_new_files_with_dictionaries_as_before(case: Case, monkeypatch: pytest.MonkeyPatch):
    """The few rows of a case are smaller without dictionaries, in which readers look values up."""
    monkeypatch.setattr(outputs, "leaves_without_dictionary", lambda *_: set())
    made = case.rewritten("parquet", "with-dictionaries").items()
    assert list(case.wrong("parquet", {number: one for number, one in made if one.engine == "arrow"})) == []


@pytest.mark.parametrize("forgotten", ["nan_columns", "zero_columns"])
def test_bounds_and_dictionaries_that_hide_rows_are_found(case: Case, monkeypatch: pytest.MonkeyPatch, forgotten: str):
    told = SpecialFloatTracker.of_row_groups

    def untold(self: SpecialFloatTracker, counts: Sequence[int]) -> list[SpecialFloats]:
        found = told(self, counts)
        for odd in found:
            getattr(odd, forgotten).clear()
        return found

    monkeypatch.setattr(SpecialFloatTracker, "of_row_groups", untold)
    # The few rows of a case are smaller without dictionaries.
    monkeypatch.setattr(outputs, "leaves_without_dictionary", lambda *_: set())
    new = {
        number: one
        for number, one in case.rewritten("parquet", f"without-{forgotten}").items()
        if one.engine == "arrow"
    }
    assert list(case.wrong("parquet", new)) != []


def test_the_engine_spark_puts_no_zero_into_a_dictionary_that_was_in_none(session: Any, tmp_path: Path):
    kinds = pa.struct([("x", pa.float32()), ("n", pa.int32())])
    rows = pa.table(
        {"id": range(6), "Plus": [0.0] * 6, "minus": [-0.0, 7.0] * 3, "s": pa.array([{"x": 0.0, "n": 1}] * 6, kinds)}
    )
    paths = [str(tmp_path / f"{number}.parquet") for number in range(2)]
    for path in paths:
        pq.write_table(rows, path, use_dictionary=False)
    schema = session.read.parquet(*paths).schema
    task = RewriteTask(group=0, inputs=tuple(paths), outputs=(str(tmp_path / "new"),), bytes=1, schema=schema.json())
    engine = SparkEngine(lambda: session)
    assert engine.unsupported_reason(task, OPTIONS) is None
    (new,) = engine.rewrite([task], OPTIONS, lambda _: None, threading.Event())
    asked = ["plus = -0.0D", "minus = 0.0D", "s.x = CAST('-0.0' AS FLOAT)"]
    found = [[session.read.parquet(*some).where(one).count() for one in asked] for some in (paths, [new.path])]
    assert found == [[12, 6, 12]] * 2
    group = pq.read_metadata(new.path).row_group(0)
    told = {group.column(n).path_in_schema: group.column(n).has_dictionary_page for n in range(group.num_columns)}
    assert told == {"id": True, "Plus": False, "minus": False, "s.x": False, "s.n": True}


def test_no_other_writer_of_the_jvm_gives_a_file_a_dictionary_that_hides_a_zero(session: Any, tmp_path: Path):
    rows = pa.table({"id": range(4000), "minus": [-0.0, 7.0] * 2000, "plus": [0.0] * 4000})
    tasks = []
    for number in range(6):
        paths = [str(tmp_path / f"{number}-{file}.parquet") for file in range(2)]
        for path in paths:
            pq.write_table(rows, path, use_dictionary=False)
        schema = session.read.parquet(*paths).schema.json()
        outputs = (str(tmp_path / f"new-{number}"),)
        tasks.append(RewriteTask(group=number, inputs=tuple(paths), outputs=outputs, bytes=1, schema=schema))
    ended = threading.Event()

    def open_writers() -> None:
        """Do to parquet-java what every writer does that is opened in this JVM with default settings."""
        while not ended.is_set():
            session._jvm.org.apache.parquet.column.ParquetProperties.builder().build()

    other = threading.Thread(target=open_writers)
    other.start()
    try:
        new = list(SparkEngine(lambda: session).rewrite(tasks, OPTIONS, lambda _: None, threading.Event()))
    finally:
        ended.set()
        other.join()
    for one in new:
        assert one.bytes == Path(one.path).stat().st_size
        found = session.read.parquet(one.path)
        assert [found.where(asked).count() for asked in ("minus = 0.0D", "plus = -0.0D")] == [4000, 8000]
        assert pq.read_table(one.path).equals(pa.concat_tables([rows, rows]))


def test_a_zero_beside_nan_in_a_file_of_spark_is_found_in_the_new_file(session: Any, tmp_path: Path):
    written = session.createDataFrame([(0.0,), (-2.0,), (float("nan"),)] * 40, "x DOUBLE").coalesce(1)
    paths = []
    for number in range(2):
        written.write.option("parquet.enable.dictionary", "false").parquet(str(tmp_path / str(number)))
        paths += map(str, (tmp_path / str(number)).glob("part-*"))
    task = RewriteTask(
        group=0, inputs=tuple(paths), outputs=(str(tmp_path / "new"),), bytes=1, schema=written.schema.json()
    )
    list(SparkEngine(lambda: session).rewrite([task], OPTIONS, lambda _: None, threading.Event()))
    found = [session.read.parquet(*some).where("x = -0.0D").count() for some in (paths, [str(tmp_path / "new")])]
    assert found == [80, 80]

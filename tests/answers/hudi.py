# SPDX-License-Identifier: Apache-2.0
"""A batch of tables as the partitions of a Hudi table, asked by Spark, hudi-rs, and DuckDB and pyarrow on its files."""

import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hudi_tables import write

from answers.cases import IDS, Batch
from answers.kinds import COMPARISONS, Comparison, Predicate
from answers.readers import Answer, files, in_duckdb, in_pyarrow
from answers.spark import in_spark, settings

#: Hudi's row writer writes no bytes, and timestamps without a zone hudi-rs 0.5 does not know: it panics
WITHOUT = ("tiny", "local")
#: a file of a batch is a partition of Spark's, so that Hudi writes it as a file
_EACH_FILE = {"spark.sql.files.maxPartitionBytes": str(1 << 20), "spark.sql.files.openCostInBytes": str(1 << 20)}


#: Columns by whose statistics in the metadata table Hudi 1.2 hides rows itself, in files of any writer: NaN in a file
#: becomes bounds of 0 (apache/hudi#18754), a value too long for a footer makes the column null (#18755).
_HIDDEN = re.compile(r"(?<!\.)\b(double|half|text|raw)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableKind:
    """A kind of Hudi table, with the options of its writer."""

    merge_on_read: bool
    options: Mapping[str, str]


def write_batch(spark: Any, drawn: Batch, base: Path, kind: TableKind, seeds: Path) -> None:
    """Write a batch: each of its files as one of the table, in the partition of its number.

    In a merge-on-read table every third row has first the values of another, and is updated to its own in a log.
    """
    _keep(drawn, seeds / "own", other=False)
    count = sum(len(table) for table in drawn.tables)
    with settings(spark, **_EACH_FILE):
        if kind.merge_on_read:
            _keep(drawn, seeds / "other", other=True)
            first = _rows(spark, seeds / "other", 0)
            write(first, base, merge_on_read=True, files=count, options=kind.options)
            updated = _rows(spark, seeds / "own", 1).where("id % 3 = 0")
            write(updated, base, "upsert", merge_on_read=True, files=2, options=kind.options)
            return
        # Hudi builds the indexes of columns with the second commit of a table.
        for condition in (f"id < {IDS}", f"id >= {IDS}"):
            write(_rows(spark, seeds / "own", 0).where(condition), base, files=count, options=kind.options)


def _keep(drawn: Batch, folder: Path, *, other: bool) -> None:
    folder.mkdir(parents=True)
    for number, file in enumerate(one for table in drawn.tables for one in table):
        kept = _with_others_values(file) if other else file
        # Nothing to skip by.
        pq.write_table(
            kept, folder / f"{number}.parquet", store_schema=False, write_statistics=False, use_dictionary=False
        )


def _with_others_values(file: pa.Table) -> pa.Table:
    """The rows that are updated with the values of the row before, the first one with those of the last."""
    ids = file["id"].to_pylist()
    taken = [at - 1 if number % 3 == 0 else at for at, number in enumerate(ids)]
    taken = [at % len(ids) for at in taken]
    return file.take(pa.array(taken, pa.int64())).set_column(0, "id", file["id"])


def _rows(spark: Any, folder: Path, version: int) -> Any:
    frame = spark.read.parquet(str(folder))
    return frame.selectExpr("*", f"{version}L AS ts", f"CAST(id DIV {IDS} AS STRING) AS dt")


class Readers:
    """What each reader answers of one Hudi table as it is now."""

    def __init__(self, spark: Any, base: Path, drawn: Batch) -> None:
        self._spark, self._base, self._drawn = spark, base, drawn

    def in_spark(self, asked: Sequence[Predicate]) -> list[Answer]:
        """What Spark answers with push-down into the files and data skipping by the metadata table, if there is one."""
        hidden = [at for at, one in enumerate(asked) if _HIDDEN.search(one.spark)]
        others = [at for at in range(len(asked)) if at not in hidden]
        found: dict[int, Answer] = {}
        for some, skips in ((hidden, not self._has_column_statistics()), (others, True)):
            if some:
                found |= zip(some, self._in_spark([asked[at] for at in some], skips=skips), strict=True)
        return [found[at] for at in range(len(asked))]

    def _has_column_statistics(self) -> bool:
        return (self._base / ".hoodie/metadata/column_stats").exists()

    def _in_spark(self, asked: Sequence[Predicate], *, skips: bool) -> list[Answer]:
        options = {
            "hoodie.metadata.enable": str((self._base / ".hoodie/metadata").exists()).lower(),
            "hoodie.enable.data.skipping": str(skips).lower(),
            # A job for each condition else.
            "hoodie.metadata.index.column.stats.processing.mode.override": "in-memory",
        }
        with settings(self._spark):
            self._spark.catalog.clearCache()
            return in_spark(self._spark.read.format("hudi").options(**options).load(str(self._base)), asked)

    def in_hudi_rs(self, asked: Sequence[Predicate]) -> list[Answer]:
        """What hudi-rs answers with filters, by which it skips files and row groups."""
        import hudi

        table = hudi.HudiTableBuilder.from_base_uri(str(self._base)).build()
        found = []
        for one in asked:
            batches = table.read(hudi.HudiReadOptions(filters=filters(self._drawn, one)))
            found.append(frozenset(row for batch in batches for row in pa.record_batch(batch)["id"].to_pylist()))
        return found

    def in_duckdb(self, asked: Sequence[Predicate]) -> list[Answer]:
        """What DuckDB answers of the live base files."""
        return in_duckdb(self._live(), asked)

    def in_pyarrow(self, asked: Sequence[Predicate]) -> list[Answer]:
        """What pyarrow answers of the live base files."""
        small = {pa.int8(): pa.int32(), pa.int16(): pa.int32()}
        kinds = [pa.field(field.name, stored(field.type, small)) for field in self._drawn.rows.schema]
        return in_pyarrow(files(self._live(), pa.schema(kinds)), asked)

    def _live(self) -> list[str]:
        """The base files that hudi-rs finds live; raises AssertionError where one has logs, which change its rows."""
        import hudi

        slices = hudi.HudiTableBuilder.from_base_uri(str(self._base)).build().get_file_slices()
        assert not any(one.has_log_files() for one in slices)
        return [str(self._base / one.base_file_relative_path()) for one in slices]


def stored(kind: pa.DataType, small: Mapping[pa.DataType, pa.DataType]) -> pa.DataType:
    """A type as Hudi stores it: small integers as larger ones, in whatever they are."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, stored(one.type, small)) for one in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, stored(kind.item_type, small))
    if pa.types.is_list(kind):
        return pa.list_(stored(kind.value_type, small))
    return small.get(kind, kind)


def filters(drawn: Batch, one: Predicate) -> list[tuple[str, str, str]]:
    """A condition in hudi-rs' words; raises ValueError where it has none for a value."""
    assert one.compared is not None
    told = []
    for comparison in one.compared:
        kind = drawn.rows.schema.field(comparison.column).type
        values = [_word(kind, value) for value in comparison.values]
        if len(values) > 1 and any("," in value for value in values):
            raise ValueError("hudi-rs separates values by commas")
        told.append((comparison.column, comparison.operator.upper(), ",".join(values)))
    return told


def is_for_hudi_rs(drawn: Batch, one: Predicate) -> bool:
    """Whether hudi-rs has words for a condition."""
    try:
        return one.compared is not None and bool(filters(drawn, one))
    except ValueError:
        return False


def _word(kind: pa.DataType, value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()  # of bytes that are no text hudi-rs can't be asked
    if isinstance(value, bool):
        return str(value).lower()
    if pa.types.is_date(kind):
        return _before_christ(str(pa.scalar(value, pa.int32()).cast(kind)))
    if pa.types.is_timestamp(kind):
        moment = pa.scalar(value, pa.int64()).cast(pa.timestamp("us"))
        return _before_christ(str(moment).replace(" ", "T")) + ("Z" if kind.tz else "")
    if pa.types.is_decimal(kind):
        return f"{value:f}"
    return str(value)


def _before_christ(text: str) -> str:
    if not text[:4].isdigit() or len(text.partition("-")[0]) != 4:
        raise ValueError(f"{text} is before the year 1 or after 9999")
    return text


def hides_from_hudi_rs(drawn: Batch, one: Predicate) -> bool:
    """Whether hudi-rs 0.5 may skip a file of several row groups wrongly.

    It takes the bounds of those that have any for the bounds of the file; one with NaN has none.
    """
    return any(pa.types.is_floating(drawn.rows.schema.field(told.column).type) for told in one.compared or ())


def in_hudi_rs_unskipped(drawn: Batch, asked: Sequence[Predicate]) -> list[Answer]:
    """What hudi-rs answers of all rows: NaN is greater than any number, and 0.0 is greater than -0.0."""
    ids = drawn.rows["id"].to_pylist()
    columns: dict[str, list[Any]] = {}

    def keys(column: str) -> list[Any]:
        if column not in columns:
            kind, values = drawn.rows.schema.field(column).type, drawn.rows[column]
            if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
                values = values.cast(pa.int32() if pa.types.is_date(kind) else pa.int64())
            columns[column] = [None if value is None else _key(value) for value in values.to_pylist()]
        return columns[column]

    def found(one: Comparison) -> set[int]:
        values = [_key(value) for value in one.values]
        if one.operator == "in":
            return {row for row, key in zip(ids, keys(one.column), strict=True) if key is not None and key in values}
        (value,) = values
        compare = COMPARISONS[one.operator]
        return {row for row, key in zip(ids, keys(one.column), strict=True) if key is not None and compare(key, value)}

    return [frozenset(set.intersection(*map(found, one.compared or ()))) for one in asked]


def _key(value: Any) -> Any:
    """What a value is ordered by; floating-point numbers by their bits."""
    if not isinstance(value, float):
        return value
    if math.isnan(value):
        return math.inf, 1
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return (value, 0 if value or bits >= 0 else -1)

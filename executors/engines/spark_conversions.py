# SPDX-License-Identifier: Apache-2.0
"""Detects values in files that Spark would convert when it reads them by the table's schema.

Footers can't verify a conversion, and another engine may convert differently. The engine ``spark`` therefore does not
rewrite a group with such a file.
"""

import json
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from executors.datafiles.orc_tail import OrcTail, zone_rules
from executors.datafiles.parquet import footer_statistics, schema_statistics
from executors.datafiles.statistics import LeafStatistics, LeafType
from executors.engines.inputs import ParquetInput
from executors.nested_types import leaf_arrays

_FLAT: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
#: the first day of the Gregorian calendar, in days since 1970
_GREGORIAN = (date(1582, 10, 15) - date(1970, 1, 1)).days
#: the time from which the zones of Java's two calendars agree, in seconds since 1970
_ZONES_AGREE = (date(1900, 1, 1) - date(1970, 1, 1)).days * 86_400
_PER_SECOND = {"ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_VERSION = b"org.apache.spark.version"


def find_conversion(
    schema: str, path: str, leaves: Mapping[str, LeafStatistics], *, in_orc: bool = False
) -> str | None:
    """Return a phrase about the first column of a file whose values Spark would convert. None if it converts none.

    ``leaves`` are the columns of the file at ``path``.
    """
    wanted = schema_statistics(_schema(schema)).leaves
    for name, leaf in leaves.items():
        if (known := wanted.get(name)) is None:
            continue
        kind, to = next(iter(leaf.types)), next(iter(known.types))
        if in_orc and kind.family == to.family == "timestamp":
            continue  # ORC has one unit, which is finer; ``find_orc_conversion`` checks the rest
        if not _is_unchanged(leaf, kind, to, in_orc=in_orc):
            return f"column {name} is {kind} in {path} and {to} in the table, and it would convert the values"
    return None


def _is_unchanged(leaf: LeafStatistics, kind: LeafType, to: LeafType, *, in_orc: bool) -> bool:
    if to.family == "float" and kind != to and not in_orc:
        return False  # Spark 3.5 can't read such a column of Parquet
    if kind.can_widen_to(to):
        return True
    if kind == LeafType("int", (32,)) and to.family == "int" and leaf.has_exact_bounds:
        # Impala and old releases of Hive do not mark a Parquet column as narrower than 32 bits.
        most = 1 << (int(to.detail[0]) - 1)
        return leaf.minimum is None or -most <= leaf.minimum <= leaf.maximum < most
    return False


def _schema(text: str) -> pa.Schema:
    return pa.schema(_arrow_field(one) for one in json.loads(text)["fields"] if _is_known_type(one["type"]))


def _arrow_field(field: Mapping[str, Any]) -> pa.Field:
    return pa.field(field["name"], _arrow_type(field["type"]))


def _is_known_type(kind: Any) -> bool:
    try:
        _arrow_type(kind)
    except KeyError:
        return False
    return True


def _arrow_type(kind: Any) -> pa.DataType:
    """Return the Arrow type of a type of Spark. Raises KeyError for a type that only Spark has."""
    if isinstance(kind, str):
        if kind.startswith("decimal("):
            precision, scale = kind.removeprefix("decimal(").rstrip(")").split(",")
            return pa.decimal128(int(precision), int(scale))
        return _FLAT[kind]
    nested = kind["type"]
    if nested == "struct":
        return pa.struct([_arrow_field(one) for one in kind["fields"]])
    if nested == "array":
        return pa.list_(_arrow_type(kind["elementType"]))
    if nested == "map":
        return pa.map_(_arrow_type(kind["keyType"]), _arrow_type(kind["valueType"]))
    raise KeyError(nested)


def find_calendar_rebase(source: ParquetInput) -> str | None:
    """Return a date or timestamp column of a Parquet file that Spark would rebase to another calendar, or None.

    Hive, and Spark before 3.0 (before 3.1 for INT96), wrote days before 1582 in the Julian calendar, and instants by
    the zones of Java's old classes. Spark rebases such values on reading, and refuses them if the file does not name
    its writer. Other readers do not rebase.
    """
    metadata = source.metadata.metadata or {}
    schema = source.metadata.schema
    for name, leaf in footer_statistics([source.metadata]).leaves.items():
        kind = next(iter(leaf.types))
        if kind.family not in ("date", "timestamp"):
            continue
        is_int96 = any(
            schema.column(index).physical_type == "INT96"
            and schema.column(index).path.split(".")[0] == _top_level_name(name)
            for index in range(len(schema))
        )
        if _uses_current_calendar(metadata, is_int96=is_int96):
            continue
        limit = _GREGORIAN if kind.family == "date" else _ZONES_AGREE * _PER_SECOND[str(kind.detail[0])]
        low = leaf.minimum if leaf.has_exact_bounds and not is_int96 else _read_minimum(source, name, is_int96=is_int96)
        if low is not None and low < limit:
            when = "1582-10-15" if kind.family == "date" else "1900-01-01"
            return (
                f"column {name} of {source.path} has values before {when} by the calendar of an older writer, which it "
                "would move into today's"
            )
    return None


def _top_level_name(name: str) -> str:
    return name.partition("[")[0].partition(".")[0]


def _uses_current_calendar(metadata: Mapping[bytes, bytes], *, is_int96: bool) -> bool:
    """True if the file states that Spark wrote it in the proleptic Gregorian calendar."""
    version = metadata.get(_VERSION, b"").split(b".")
    if len(version) < 2 or not (version[0].isdigit() and version[1].isdigit()):
        return False
    since, legacy = (
        ((3, 1), b"org.apache.spark.legacyINT96") if is_int96 else ((3, 0), b"org.apache.spark.legacyDateTime")
    )
    return (int(version[0]), int(version[1])) >= since and legacy not in metadata


def _read_minimum(source: ParquetInput, name: str, *, is_int96: bool) -> int | None:
    """Return the smallest value of the column that contains ``name``, read from the file. None if it has no values."""
    low: int | None = None
    with source.open("us") as file:
        for batch in file.iter_batches(columns=[_top_level_name(name)], use_threads=False):
            for leaf in leaf_arrays(batch.column(0)):
                is_moment = pa.types.is_timestamp(leaf.type) or pa.types.is_date(leaf.type)
                if not is_moment or leaf.null_count == len(leaf):
                    continue
                found = pc.min(leaf).value
                low = found if low is None else min(low, found)
    return low


def find_orc_conversion(path: str, tail: OrcTail, zone: Callable[[], str]) -> str | None:
    """Return the reason why Spark would change values of the ORC file at ``path``. None if it would not.

    ``zone`` returns the time zone of Spark's JVM, by which Spark reads and writes timestamps.
    """
    if tail.has_chars:
        return f"{path} has a column of type char, whose padding it would not write"
    if tail.is_proleptic and tail.has_dates:
        return f"{path} has dates by the proleptic calendar, and Spark writes them by the old one"
    if not tail.has_timestamps or not tail.writer_zones:
        return None
    if not tail.is_written_by_spark:
        return f"{path} has timestamps of another writer, whose nanoseconds it would cut"
    if not tail.has_timestamps_in_nanosecond_range:
        return f"{path} has timestamps before 1678 or after 2261, which pyarrow can't read to compare them"
    spark = zone()
    for one in sorted(tail.writer_zones):
        if not one:
            return f"{path} has timestamps without the time zone of their writer"
        if zone_rules(one) != zone_rules(spark):
            return (
                f"{path} has timestamps of the time zone {one} and Spark's JVM has {spark}, which lacks some hours of "
                "the other zone"
            )
    return None

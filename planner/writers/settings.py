# SPDX-License-Identifier: Apache-2.0
"""The settings of the modelled writers, with the writers' own names, defaults and units."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from lake.units import MIB
from planner.policy.aliases import ALIASES, DFS_BLOCK_BYTES, IGNORED_KEYS, IGNORED_PREFIXES
from planner.policy.parsing import (
    parse_binary_size,
    parse_bool,
    parse_integer,
    parse_lowercase,
    parse_number,
    strip_comment,
)
from planner.writers.model import SimulationError

_MAX_VALUE = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSetting:
    """A setting of a writer: the parser of its value, its default, and its meaning in the model."""

    parse: Callable[[Any], Any]
    default: Any
    meaning: str


_BASE_FILE_SETTINGS: Mapping[str, WriterSetting] = {
    "hoodie.parquet.max.file.size": WriterSetting(
        parse=parse_binary_size, default=120 * MIB, meaning="the size up to which a base file is filled"
    ),
    "hoodie.parquet.small.file.limit": WriterSetting(
        parse=parse_binary_size, default=100 * MIB, meaning="a base file strictly below takes inserts; 0: no file does"
    ),
    "hoodie.parquet.compression.ratio": WriterSetting(
        parse=parse_number, default=0.1, meaning="the share by which a file may exceed its maximum before it is closed"
    ),
    "hoodie.copyonwrite.record.size.estimate": WriterSetting(
        parse=parse_integer, default=1024, meaning="bytes of a row until a commit allows an estimate"
    ),
    "hoodie.record.size.estimation.threshold": WriterSetting(
        parse=parse_number, default=1.0, meaning="a commit counts if it wrote more than this × the small-file limit"
    ),
    "hoodie.copyonwrite.insert.auto.split": WriterSetting(
        parse=parse_bool, default=True, meaning="the rows of a new file are computed from the size of a row"
    ),
    "hoodie.copyonwrite.insert.split.size": WriterSetting(
        parse=parse_integer, default=500_000, meaning="rows of a new file without auto split"
    ),
    "hoodie.bulkinsert.shuffle.parallelism": WriterSetting(
        parse=parse_integer, default=200, meaning="tasks of a bulk_insert, unless its batch sets them"
    ),
}
HUDI_COW: Mapping[str, WriterSetting] = MappingProxyType(_BASE_FILE_SETTINGS)
HUDI_MOR: Mapping[str, WriterSetting] = MappingProxyType(
    {
        **_BASE_FILE_SETTINGS,
        "hoodie.merge.small.file.group.candidates.limit": WriterSetting(
            parse=parse_integer,
            default=1,
            meaning="how many small files of a partition take inserts, the smallest first",
        ),
        "hoodie.logfile.max.size": WriterSetting(
            parse=parse_binary_size,
            default=1024 * MIB,
            meaning="a log file is closed after the block that exceeds this size",
        ),
        "hoodie.logfile.data.block.max.size": WriterSetting(
            parse=parse_binary_size, default=256 * MIB, meaning="bytes of a block in a log file"
        ),
        "hoodie.logfile.to.parquet.compression.ratio": WriterSetting(
            parse=parse_number, default=0.35, meaning="bytes of a row in a base file ÷ its bytes in a log file"
        ),
        "hoodie.index.type": WriterSetting(
            parse=parse_lowercase,
            default="bloom",
            meaning="hbase and inmemory allow inserts into logs",
        ),
        "hoodie.compact.inline": WriterSetting(
            parse=parse_bool, default=True, meaning="the writer compacts by itself, as Spark's batch writer does"
        ),
        "hoodie.compact.inline.max.delta.commits": WriterSetting(
            parse=parse_integer, default=5, meaning="delta commits from one compaction to the next"
        ),
    }
)
BASE_BYTES_PER_LOG_BYTE: float = HUDI_MOR["hoodie.logfile.to.parquet.compression.ratio"].default
"""Bytes in a base file per byte of new rows in logs."""

HIVE: Mapping[str, WriterSetting] = MappingProxyType(
    {
        "spark.sql.shuffle.partitions": WriterSetting(
            parse=parse_integer, default=200, meaning="tasks of a batch, unless the batch sets them"
        ),
        "spark.sql.files.maxRecordsPerFile": WriterSetting(
            parse=parse_integer, default=0, meaning="rows of a file; 0: no maximum"
        ),
        "dfs.blocksize": WriterSetting(
            parse=parse_binary_size, default=DFS_BLOCK_BYTES, meaning="a block of the file system"
        ),
        "spark.hive.automerge.enabled": WriterSetting(
            parse=parse_bool,
            default=None,
            meaning="merge the files of a write; unset: true if any of these keys is set",
        ),
        "spark.hive.automerge.least.filenum": WriterSetting(
            parse=parse_integer, default=3, meaning="a partition with fewer written files is not merged"
        ),
        "spark.hive.automerge.block.percent": WriterSetting(
            parse=parse_number, default=0.25, meaning="the size of the ideal file ÷ the size of a block"
        ),
        "spark.hive.automerge.shuffle.enabled": WriterSetting(
            parse=parse_bool, default=False, meaning="repartition, which makes even files, instead of coalesce"
        ),
    }
)


def parse_settings(known: Mapping[str, WriterSetting], given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the value of every known key, and a line for each given key without effect in this model.

    Raises SimulationError for an unknown key and for a value that can't be parsed.
    """
    values = {key: setting.default for key, setting in known.items()}
    notes = []
    for key, raw in given.items():
        value = strip_comment(raw)
        if key in known:
            try:
                values[key] = known[key].parse(value)
            except ValueError as error:
                raise SimulationError(f"{key}: {error}") from None
            if isinstance(values[key], (int, float)) and not 0 <= values[key] <= _MAX_VALUE:
                raise SimulationError(f"{key} is {value} but must be from 0 to {_MAX_VALUE}; set {key}")
        elif key in ALIASES or key in IGNORED_KEYS or any(key.startswith(prefix) for prefix in IGNORED_PREFIXES):
            notes.append(f"{key} = {value} is not used: it changes none of this writer's files")
        else:
            close = get_close_matches(key, known, n=1, cutoff=0.6)
            hint = f"; did you mean {close[0]}?" if close else f"; its settings are {', '.join(known)}"
            raise SimulationError(f"{key} is not a setting of this writer{hint}")
    return values, notes


def require_positive(values: Mapping[str, Any], *keys: str) -> None:
    """Raise SimulationError for the first of ``keys`` whose value is 0."""
    for key in keys:
        if not values[key]:
            raise SimulationError(f"{key} is 0 but must be above 0; set {key}")

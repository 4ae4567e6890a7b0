# SPDX-License-Identifier: Apache-2.0
"""Hudi write settings: the settings for a table's indexes and for a plan."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from lake.errors import Rejected
from lake.formats.hudi.inputs.plan_engine import COPY_STRATEGY, EngineChoice
from lake.formats.hudi.read.flink_state import FLINK_STATE, INDEX_TYPE
from lake.formats.hudi.timeline.clocks import MAX_SKEW, max_skew_milliseconds
from lake.formats.hudi.timeline.metadata_table import RECORD_INDEX, IndexSettings
from lake.formats.hudi.timeline.timeline import SORT_COLUMNS
from lake.model import Concurrency, TableRef
from lake.plan import Plan, PlanKind

COMPRESSION = "hoodie.parquet.compression.codec"
STATISTICS_COLUMNS = "hoodie.metadata.index.column.stats.column.list"
NO_INDEX_SETTINGS = IndexSettings()


def java_options(table: TableRef) -> dict[str, str]:
    """Return the table's ``write_options`` without an index that Hudi's Spark client does not have.

    Rewrites look up no keys, and indexes in the metadata table have options of their own (``index_options``).
    """
    options = dict(table.write_options)
    if options.get(INDEX_TYPE, "").strip().upper() == FLINK_STATE:
        del options[INDEX_TYPE]
    return options


def index_options(
    partitions: Collection[str], settings: IndexSettings = NO_INDEX_SETTINGS, given_columns: str = ""
) -> dict[str, str]:
    """Return the options that keep and update every index of the table's metadata table.

    ``settings`` are those of the present indexes, ``given_columns`` the columns with statistics in the table's
    ``write_options``. A record index is kept by the option of its kind: by the other option Hudi would enter new
    locations where no writer looks for them. If a column with statistics were left out, the next writer would compute
    the bounds of a partition without the new files, and readers would skip their rows.
    """
    have = set(partitions)
    options = {
        "hoodie.metadata.auto.delete.partitions": "false",
        "hoodie.metadata.index.column.stats.enable": str(bool(have & {"column_stats", "partition_stats"})).lower(),
        "hoodie.metadata.index.partition.stats.enable": str("partition_stats" in have).lower(),
        "hoodie.metadata.index.bloom.filter.enable": str("bloom_filters" in have).lower(),
    }
    columns = dict.fromkeys([*settings.statistics_columns, *filter(None, map(str.strip, given_columns.split(",")))])
    if columns:
        options[STATISTICS_COLUMNS] = ",".join(columns)
    if RECORD_INDEX in have:
        is_global = str(not settings.is_record_index_partitioned).lower()
        options["hoodie.metadata.record.index.enable"] = is_global
        options["hoodie.metadata.global.record.level.index.enable"] = is_global
        options["hoodie.metadata.record.level.index.enable"] = str(settings.is_record_index_partitioned).lower()
    if any(name.startswith("expr_index_") for name in have):
        options["hoodie.metadata.index.expression.enable"] = "true"
    return options


def skew_options(table: TableRef) -> dict[str, str]:
    """Return the option that sets how long Hudi waits after it has taken a time: until no writer's clock is behind it.

    Without a lock provider that several processes share, Hudi waits for only one millisecond. That is too short if
    there are other writers.
    """
    if table.concurrency is Concurrency.OCC:
        return {MAX_SKEW: str(max_skew_milliseconds(table))}
    return {}


def key_options(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the options that name the keys of a table without meta columns: Hudi ignores the table's own settings."""
    if properties.get("hoodie.populate.meta.fields", "true").lower() == "true":
        return {}
    return {
        "hoodie.datasource.write.recordkey.field": properties.get("hoodie.table.recordkey.fields", ""),
        "hoodie.datasource.write.partitionpath.field": properties.get("hoodie.table.partition.fields", ""),
    }


def plan_options(plan: Plan, engine: EngineChoice, schema_json: str) -> dict[str, str]:
    """Return the write settings for executing ``plan`` by ``engine`` on a table with this Spark schema.

    Raises Rejected if the table can't be sorted by a sort column.
    """
    options = {
        "hoodie.clustering.plan.strategy.target.file.max.bytes": str(plan.options.target_file_max_bytes),
        "hoodie.clustering.max.parallelism": str(max(1, len(plan.groups))),
    }
    if plan.kind is PlanKind.CLUSTERING and plan.options.sort_columns:
        options |= _layout_options(plan, schema_json)
    if engine.is_copy:
        options["hoodie.clustering.execution.strategy.class"] = f"org.apache.hudi.{COPY_STRATEGY}"
    if plan.options.compression:
        options[COMPRESSION] = plan.options.compression
    return options


def _layout_options(plan: Plan, schema_json: str) -> dict[str, str]:
    """Return the layout settings: Hudi takes a curve's columns from them, a sort's columns from the published plan."""
    columns = plan.options.sort_columns
    curve = plan.options.layout != "linear" and len(columns) > 1
    fields = json.loads(schema_json)["fields"]
    for column in columns:
        kind = _type_of(column, fields)
        if kind is None or (curve and "." in column):
            known = ", ".join(field["name"] for field in fields)
            raise Rejected(f"{plan.table.name}: sort_columns names {column!r}, the table has {known}; set sort_columns")
        if not isinstance(kind, str):
            raise Rejected(
                f"{plan.table.name}: sort_columns names {column!r}, a {kind['type']}, which no layout supports; set "
                "sort_columns to columns of plain types"
            )
    options = {SORT_COLUMNS: ",".join(columns)}
    # Through one column every curve is a sort, and Hudi's Hilbert curve fails.
    if curve:
        options["hoodie.layout.optimize.strategy"] = plan.options.layout.upper()
        # By default Hudi interleaves the bits of the values themselves. A column of small numbers then has no
        # influence, since its leading bits are all equal. Sampled ranks give every column the same share.
        options["hoodie.layout.optimize.curve.build.method"] = "SAMPLE"
    return options


def _type_of(column: str, fields: Sequence[Any]) -> Any:
    """Return the Spark type of a column, with dots leading into structs; None if there is no such column."""
    kind: Any = None
    for name in column.split("."):
        kind = next((field["type"] for field in fields if field["name"] == name), None)
        fields = kind.get("fields", ()) if isinstance(kind, dict) else ()
    return kind

# SPDX-License-Identifier: Apache-2.0
"""Hudi write settings: what the table's indexes need and what a plan asks for."""

from collections.abc import Collection

from lake.errors import Rejected
from lake.formats.hudi.proof import QUERIES, VALIDATOR, VALIDATORS, equality_query
from lake.plan import Plan, PlanKind, ReceiptLevel

SORT_COLUMNS = "hoodie.clustering.plan.strategy.sort.columns"


def index_options(partitions: Collection[str]) -> dict[str, str]:
    """Options that keep and update every index which the table's metadata table has."""
    have = set(partitions)
    options = {
        "hoodie.metadata.auto.delete.partitions": "false",
        "hoodie.metadata.index.column.stats.enable": str(bool(have & {"column_stats", "partition_stats"})).lower(),
        "hoodie.metadata.index.partition.stats.enable": str("partition_stats" in have).lower(),
        "hoodie.metadata.index.bloom.filter.enable": str("bloom_filters" in have).lower(),
    }
    if "record_index" in have:
        options["hoodie.metadata.record.index.enable"] = "true"
        options["hoodie.metadata.global.record.level.index.enable"] = "true"
    if any(name.startswith("expr_index_") for name in have):
        options["hoodie.metadata.index.expression.enable"] = "true"
    return options


def check_plan(plan: Plan) -> None:
    """Raise Rejected where this adapter can't run ``plan`` as it is."""
    if plan.kind is not PlanKind.CLUSTERING:
        raise Rejected(f"{plan.table.name}: plans of kind {plan.kind} are not served for Hudi yet, only clustering")
    if plan.options.layout != "linear":
        raise Rejected(
            f"{plan.table.name}: layout = {plan.options.layout} is not served for Hudi: its curves ignore columns with "
            "small values; use layout = linear with sort_columns"
        )


def plan_options(plan: Plan, schema_json: str, *, meta_columns: bool) -> dict[str, str]:
    """Write settings for executing ``plan`` on a table with this Spark schema."""
    check_plan(plan)
    options = {
        "hoodie.clustering.plan.strategy.target.file.max.bytes": str(plan.options.target_file_max_bytes),
        "hoodie.clustering.max.parallelism": str(max(1, len(plan.groups))),
    }
    if plan.options.sort_columns:
        options[SORT_COLUMNS] = ",".join(plan.options.sort_columns)
    if plan.options.compression:
        options["hoodie.parquet.compression.codec"] = plan.options.compression
    has_logs = any(s.log_files for group in plan.groups for s in group.slices)
    # Hudi's validators read base files only, so they can't judge rows that came from logs.
    if plan.options.receipt is ReceiptLevel.HASH and not has_logs:
        options[VALIDATORS] = VALIDATOR
        options[QUERIES] = equality_query(schema_json, meta_columns=meta_columns)
    return options

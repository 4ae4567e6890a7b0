# SPDX-License-Identifier: Apache-2.0
"""The columns of a Hive table as Spark's JSON."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from lake.formats.hive.catalog.table_schema import spark_schema_json
from lake.metastore import MetastoreTable
from lake.metastore.thrift import LIST, STRING, STRUCT, ThriftList, string_map


def table(columns: Sequence[tuple[str, str]], properties: Mapping[str, str] | None = None) -> MetastoreTable:
    """One that is partitioned by ``dt``."""

    def listed(pairs: Sequence[tuple[str, str]]) -> Any:
        return LIST, ThriftList(STRUCT, [{1: (STRING, name), 2: (STRING, kind)} for name, kind in pairs])

    partitioned = listed([("dt", "string")])
    return MetastoreTable({7: (STRUCT, {1: listed(columns)}), 8: partitioned, 9: string_map(dict(properties or {}))})


def fields(text: str | None) -> dict[str, Any]:
    assert text is not None
    return {one["name"]: one["type"] for one in json.loads(text)["fields"]}


def noted(*columns: tuple[str, Any]) -> str:
    made = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns]
    return json.dumps({"type": "struct", "fields": made})


def test_each_of_hives_types_has_one_of_sparks():
    kinds = {
        "boolean": "boolean",
        "tinyint": "byte",
        "smallint": "short",
        "int": "integer",
        "bigint": "long",
        "float": "float",
        "double": "double",
        "string": "string",
        "varchar(7)": "string",
        "char(3)": "string",
        "binary": "binary",
        "date": "date",
        "timestamp": "timestamp",
        "decimal(10,2)": "decimal(10,2)",
        "decimal": "decimal(10,0)",
    }
    found = fields(spark_schema_json(table([(f"c{number}", kind) for number, kind in enumerate(kinds)])))
    assert list(found.values()) == list(kinds.values())


def test_types_within_types_are_read_as_deep_as_they_are():
    found = fields(spark_schema_json(table([("x", "array<struct<a:int,b:map<string,decimal(38,18)>>>")])))["x"]
    inner = found["elementType"]["fields"]
    assert (inner[0]["name"], inner[0]["type"]) == ("a", "integer")
    assert (inner[1]["type"]["keyType"], inner[1]["type"]["valueType"]) == ("string", "decimal(38,18)")


@pytest.mark.parametrize("kind", ["uniontype<int,string>", "timestamp with local time zone", "array<int", "struct<a>"])
def test_a_type_that_spark_does_not_know_leaves_the_schema_untold(kind: str):
    assert spark_schema_json(table([("x", kind)])) is None


def test_sparks_stored_schema_counts_with_its_capitals_and_without_partition_columns():
    text = noted(("eventId", "long"), ("at", "timestamp_ntz"), ("dt", "string"))
    parts = {"spark.sql.sources.schema.numParts": "2", "spark.sql.sources.provider": "parquet"}
    halves = {"spark.sql.sources.schema.part.0": text[:30], "spark.sql.sources.schema.part.1": text[30:]}
    found = fields(spark_schema_json(table([("col", "array<string>")], parts | halves)))
    assert found == {"eventId": "long", "at": "timestamp_ntz"}


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ([("eventid", "bigint"), ("name", "varchar(5)")], ["eventId", "name"]),
        ([("eventid", "bigint"), ("name", "varchar(5)"), ("added", "int")], ["eventid", "name", "added"]),
        ([("eventid", "string"), ("name", "varchar(5)")], ["eventid", "name"]),
    ],
)
def test_sparks_schema_of_a_table_that_hive_changes_counts_only_while_both_agree(
    columns: list[tuple[str, str]], names: list[str]
):
    text = noted(("eventId", "long"), ("name", "string"), ("dt", "string"))
    assert list(fields(spark_schema_json(table(columns, {"spark.sql.sources.schema": text})))) == names

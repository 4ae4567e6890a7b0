# SPDX-License-Identifier: Apache-2.0
"""Who likely writes a Hive table: the signs of each tool, and what init, explain and show say of them."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from databases import sqlite_at
from harness import Installation
from hive_case import DATABASE, Owner
from hive_metastore import MetastoreServer
from pyarrow import orc

from lake.capabilities import LikelyWriter
from lake.formats.hive import FORMAT
from lake.formats.hive.catalog.refusals import FileFormat
from lake.formats.hive.inspection import known_tools, likely_writers
from lake.metastore import MetastoreTable
from lake.model import CatalogRef, TableRef

ID = "0b6ab0e2-6f4e-4c0f-9d55-4b7a6b0f0c11"
BY_PATH = (
    "Flink",
    "Impala",
    "Trino",
    "Presto",
    "DuckDB",
    "Polars",
    "fastparquet",
    "Kafka Connect",
    "DataX",
    "hdfs dfs -put",
)


def names(signs: Any) -> list[str]:
    return [tool.name for tool, _ in signs]


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        ("spark.sql.create.version", "Spark"),
        ("spark.sql.sources.provider", "Spark"),
        ("spark.sql.sources.schema.numParts", "Spark"),
        ("spark.sql.partitionProvider", "Spark"),
        ("sink.partition-commit.policy.kind", "Flink"),
        ("sink.partition-commit.trigger", "Flink"),
        ("partition.time-extractor.timestamp-pattern", "Flink"),
        ("streaming-source.enable", "Flink"),
        ("flink.connector", "Flink"),
        ("connector", "Flink"),
        ("is_generic", "Flink"),
        ("impala.lastComputeStatsTime", "Impala"),
        ("impala.events.catalogVersion", "Impala"),
        ("impala_intermediate_stats_num_chunks", "Impala"),
        ("trino_version", "Trino"),
        ("trino_query_id", "Trino"),
        ("presto_version", "Presto"),
        ("presto_query_id", "Presto"),
        ("last_modified_by", "Hive"),
    ],
)
def test_a_property_names_the_tool_that_sets_it(name, tool):
    assert names(known_tools.match_properties({name: "1"})) == [tool]


def test_properties_of_every_metastore_are_no_evidence_of_a_tool():
    counted = ("numFiles", "numFilesErasureCoded", "totalSize", "numRows", "transient_lastDdlTime", "EXTERNAL")
    own = (
        "bucketing_version",
        "COLUMN_STATS_ACCURATE",
        "lakefold.plan",
        "comment",
        "connectors",
        "parquet.compression",
    )
    assert list(known_tools.match_properties(dict.fromkeys((*counted, *own), "1"))) == []


def test_the_value_of_a_property_is_shown_only_where_it_can_be_no_secret():
    found = {
        tool.name: said
        for tool, said in known_tools.match_properties(
            {
                "flink.properties.sasl.jaas.config": "password='x'",
                "spark.sql.create.version": "3.5.9",
                "spark.sql.sources.schema": "{}",
            }
        )
    }
    assert found == {
        "Spark": "table property spark.sql.create.version = 3.5.9",
        "Flink": "table property flink.properties.sasl.jaas.config",
    }
    (sign,) = known_tools.match_properties({"trino_query_id": "q"}, "dt=d0")
    assert sign[1] == "property of partition dt=d0 trino_query_id"


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        (f"part-{ID}-0-0", "Flink"),
        (f"part-{ID}-12-345.snappy.parquet", "Flink"),
        (f"part-{ID}-7.parquet", "Flink"),
        (f"compacted-part-{ID}-0-0", "Flink"),
        (f"part-{ID}-task-0-file-3", "Flink in batch mode"),
        (f"part-{ID}-cp-0-task-0-file-3.snappy.parquet", "Flink in batch mode"),
        ("000000_0", "Hive"),
        ("000012_0_copy_3.snappy.orc", "Hive"),
        ("fa461609e54c759e-28ff333100000000_1976891529_data.0.parq", "Impala"),
        ("part-m-00003.parquet", "a MapReduce job, such as Sqoop's"),
        (f"orders__{ID.replace('-', '_')}.snappy", "DataX"),
        ("clicks+3+0000001200+0000001299.parquet", "Kafka Connect"),
        ("orders.parquet._COPYING_", "hdfs dfs -put"),
    ],
)
def test_a_tool_is_recognized_by_the_names_of_its_files(name, tool):
    paths = pa.chunked_array([["dt=d0/other.parquet", f"dt=d0/{name}"]])
    ((found, said),) = known_tools.match_file_names(paths)
    assert found.name == tool
    assert said.startswith("1 of 2 files have its names, such as ")


@pytest.mark.parametrize(
    "name",
    [
        f"part-00000-{ID}-c000.snappy.parquet",
        f"part-00000-{ID}.c000",
        f"part-{ID}-e1-1795639723275842498-0-0.parquet",
        "data.parquet",
        "part-0.parquet",
    ],
)
def test_the_name_of_a_file_of_spark_or_lakefold_is_no_other_tools(name):
    assert list(known_tools.match_file_names(pa.chunked_array([[f"dt=d0/{name}", name]]))) == []


@pytest.mark.parametrize(
    ("created_by", "schema", "keys", "tool"),
    [
        ("parquet-mr version 1.13.1 (build x)", "spark_schema", ["org.apache.spark.version"], "Spark"),
        ("parquet-mr version 1.8.2", "spark_schema", ["org.apache.spark.sql.parquet.row.metadata"], "Spark"),
        ("parquet-mr version 1.10.1", "hive_schema", ["writer.time.zone"], "Hive"),
        ("parquet-mr version 1.13.1", "flink_schema", [], "Flink"),
        ("parquet-mr-trino version 483 (build n/a)", "trino_schema", [], "Trino"),
        ("Trino version 380 (build n/a)", "hive_schema", [], "Trino"),
        ("impala version 4.4.0-RELEASE (build 7a6f)", "schema", [], "Impala"),
        ("parquet-cpp-arrow version 20.0.0", "schema", ["ARROW:schema", "pandas"], known_tools.ARROW.name),
        ("parquet-cpp version 1.5.1-SNAPSHOT", "schema", [], known_tools.ARROW.name),
        ("DuckDB version v1.5.5 (build d8cdaa33fd)", "duckdb_schema", [], "DuckDB"),
        ("Polars", "root", ["ARROW:schema"], "Polars"),
        ("fastparquet-python version 2024.2.0 (build 0)", "schema", ["pandas"], "fastparquet"),
        ("parquet-rs version 58.3.0", "arrow_schema", [], "a program on parquet-rs"),
        (
            "parquet-mr version 1.12.0",
            "Order",
            ["parquet.avro.schema", "writer.model.name"],
            known_tools.AVRO_PARQUET.name,
        ),
        ("parquet-mr version 1.12.0", "Order", [], "another program"),
        ("", "schema", [], "another program"),
    ],
)
def test_a_parquet_footer_names_its_writer(created_by, schema, keys, tool):
    assert known_tools.match_parquet_footer(created_by, schema, keys)[0].name == tool


@pytest.mark.parametrize(
    ("writer", "keys", "tool"),
    [
        ("ORC_JAVA", ["org.apache.spark.version"], "Spark"),
        ("ORC_JAVA", [], None),
        ("ORC_CPP", [], known_tools.ARROW.name),
        ("TRINO", [], "Trino"),
        ("PRESTO", [], "Presto"),
        ("CUDF", [], "another program"),
    ],
)
def test_an_orc_footer_names_its_writer_except_the_library_that_many_writers_share(writer, keys, tool):
    sign = known_tools.match_orc_footer(writer, keys)
    assert (sign and sign[0].name) == tool


def test_footers_of_duckdb_and_pyarrow_are_read_and_unreadable_ones_are_no_evidence(tmp_path):
    table = pa.table({"id": [1]})
    by_duckdb, by_arrow, striped = (str(tmp_path / name) for name in ("duck.parquet", "arrow.parquet", "a.orc"))
    duckdb.sql(f"COPY (SELECT 1 AS id) TO '{by_duckdb}'")
    pq.write_table(table, by_arrow)
    orc.write_table(table, striped)
    (tmp_path / "cut").write_bytes(b"PAR1")
    footers = [by_duckdb, by_arrow, by_arrow, str(tmp_path / "cut"), str(tmp_path / "gone")]
    found = {tool.name: said for tool, said in likely_writers._match_footers(footers, FileFormat.PARQUET)}
    assert found.keys() == {"DuckDB", known_tools.ARROW.name}
    assert found["DuckDB"].startswith("1 of 5 footers: created_by = DuckDB version ")
    assert found[known_tools.ARROW.name].startswith("2 of 5 footers: created_by = parquet-cpp-arrow version ")
    assert names(likely_writers._match_footers([striped], FileFormat.ORC)) == [known_tools.ARROW.name]


def test_only_tools_that_access_tables_by_path_have_a_consequence_and_a_remedy():
    every = [one for one in vars(known_tools).values() if isinstance(one, known_tools.Tool)]
    assert {one.name for one in every if one.consequence is None} == {"Spark", "Hive", "Flink in batch mode"}
    assert all((one.consequence is None) == (one.remedy == "") for one in every)
    assert set(BY_PATH) <= {one.name for one in every if one.consequence is not None}


def test_the_page_names_every_tool_that_is_detected():
    page = (Path(__file__).parents[2] / "docs/hive.md").read_text()
    table = page.partition("\n## Access by path\n")[2].partition("\n## Overwrites of a partition")[0]
    for tool in (*BY_PATH, "Spark", "pyarrow", "pandas", "Sqoop", "MapReduce", "parquet-rs", "Avro", "distcp", "LOAD"):
        assert tool in table, tool
    assert str(likely_writers.MAX_FOOTERS) in table


class Made:
    """A table of the tests in the metastore, with properties and files as its owner's tools leave them."""

    def __init__(self, uri: str, name: str, location: Path) -> None:
        self.uri, self.name, self.location = uri, name, location
        with Owner(uri) as owner:
            owner.make_table(name, location)
        self.ref = TableRef(
            name=name,
            format="hive",
            location=str(location),
            catalog=CatalogRef(kind="metastore", name=uri, table=f"{DATABASE}.{name}"),
        )

    def with_properties(self, **properties: str) -> None:
        with Owner(self.uri) as owner:
            found = owner.table(DATABASE, self.name)
            assert isinstance(found, MetastoreTable)
            owner.alter_table(
                DATABASE, self.name, found.with_changes(found.storage, {**found.parameters, **properties})
            )

    def put(self, partition: str, *files: str, at: float = 1.7e9, properties: Mapping[str, str] | None = None) -> None:
        """Files by pyarrow in a partition of its own."""
        place = self.location / f"dt={partition}"
        place.mkdir(parents=True)
        for number, file in enumerate(files):
            pq.write_table(pa.table({"id": [1]}), place / file)
            os.utime(place / file, (at + number, at + number))
        with Owner(self.uri) as owner:
            owner.add(self.name, partition, place)
            if properties is not None:
                ((_, one),) = owner.partitions(DATABASE, self.name, [f"dt={partition}"])
                owner.alter_partitions(DATABASE, self.name, [one.with_changes(one.storage, properties)])

    def likely(self) -> dict[str, LikelyWriter]:
        return {one.tool: one for one in FORMAT.likely_writers(FORMAT.snapshot(self.ref))}


def test_detection_reads_each_kind_of_evidence_once_and_few_files(metastore, tmp_path, monkeypatch):
    made = Made(metastore.uri, "signs", tmp_path / "signs")
    made.with_properties(**{"sink.partition-commit.policy.kind": "metastore,success-file"})
    for day in range(10):
        properties = {"presto_query_id": "q1"} if day == 9 else {}
        files = (f"part-{ID}-0-{day}", f"other-{day}.parquet")
        made.put(f"d{day}", *files, at=1.7e9 + 100 * day, properties=properties)
        (made.location / f"dt=d{day}/_SUCCESS").touch()
    looked: list[str] = []
    read = likely_writers._match_footer
    monkeypatch.setattr(likely_writers, "_match_footer", lambda path, kind: (looked.append(path), read(path, kind))[1])
    found = made.likely()
    assert list(found) == ["Flink", "Presto", known_tools.ARROW.name]
    assert len(looked) == likely_writers.MAX_FOOTERS == 8
    newest = [
        f"{made.location}/dt=d{day}/{file}" for day in (9, 8) for file in (f"other-{day}.parquet", f"part-{ID}-0-{day}")
    ]
    assert set(newest) <= set(looked)
    assert any("dt=d0/" in path for path in looked)
    assert found["Flink"].evidence[:2] == (
        "table property sink.partition-commit.policy.kind = metastore,success-file",
        f"10 of 20 files have its names, such as part-{ID}-0-0",
    )
    assert re.fullmatch(
        r"_SUCCESS in (\d) of \1 directories, such as that of partition dt=d9", found["Flink"].evidence[2]
    )
    assert found["Presto"].evidence == ("property of partition dt=d9 presto_query_id",)
    assert (
        found[known_tools.ARROW.name].evidence[0].startswith("8 of 8 footers: created_by = parquet-cpp-arrow version ")
    )


def test_lakefolds_files_and_versions_are_no_evidence_of_a_tool(metastore, tmp_path):
    made = Made(metastore.uri, "own", tmp_path / "own")
    made.put("d0", f"part-{ID}-e1-1795639723275842498-0-0.parquet")
    assert made.likely() == {}
    assert FORMAT.describe(made.ref)["writers"] == ("the table's properties name none; tables explain also reads files")


def texts(home: Installation, table: str) -> tuple[str, Sequence[Mapping[str, Any]]]:
    """What explain prints besides its lines, and what it says of writers for scripts."""
    told = home.run("tables", "explain", table).stderr
    (total,) = [one for one in home.json("tables", "explain", table) if one.get("total")]
    return told, total["writers"]


def test_init_explain_and_show_warn_of_a_table_of_flinks_with_evidence_consequence_and_setting(metastore, tmp_path):
    made = Made(metastore.uri, "streamed", tmp_path / "streamed")
    made.with_properties(**{"sink.partition-commit.policy.kind": "metastore", "spark.sql.create.version": "3.5.9"})
    made.put("d0", f"part-{ID}-0-0", f"part-{ID}-0-1")
    home = Installation(home=tmp_path, url=sqlite_at(tmp_path))
    home.config.unlink()
    init = json.loads(home.run("init", metastore.uri, "--database", DATABASE, "--table", "streamed", "--json").stdout)
    (seen,) = init["tables"]
    assert [(one["tool"], one["has_warning"]) for one in seen["likely_writers"]] == [
        ("Flink", True),
        (known_tools.ARROW.name, True),
        ("Spark", False),
    ]
    written = home.config.read_text()
    at = written.splitlines()
    rule = at[at.index(f'# match = "{DATABASE}.streamed"') : at.index('# access = "?"  # "catalog"') + 1]
    said = " ".join(line.removeprefix("# #").strip() for line in rule[2:-1])
    assert rule[1] == '# mode = "compact"'
    assert "Warning: Flink seems to write or read the table (table property sink.partition-commit.policy.kind" in said
    assert "points a partition back there when it commits it" in said
    assert "Leave access unset while a streaming job writes the table." in said
    assert "Warning: Spark" not in said
    assert all(len(line) <= 120 for line in at)
    for text in (written, FORMAT.catalog_only_reason):
        assert "INSERT OVERWRITE … SELECT from the same partition" in text
    # A rule that is uncommented line by line, warnings included, is one.
    freed = [re.sub(r"^# ", "", line) for line in rule]
    written = f'[database]\nurl = "{home.url}"\n{written}'
    home.config.write_text(f"{written}\n[[tables]]\n" + "\n".join(freed).replace('"?"', '"catalog"') + "\n")
    assert json.loads(home.run("config", "check", "--json").stdout)["modes"]["compact"] == 1

    told, writers = texts(home, f"{DATABASE}.streamed")
    flink, _, spark = writers
    assert (flink["tool"], flink["has_warning"], flink["access"]) == ("Flink", True, "catalog")
    assert flink["evidence"][0] == "table property sink.partition-commit.policy.kind = metastore"
    assert flink["consequence"] == known_tools.FLINK.consequence
    assert 'Setting: access = "catalog", from ' in flink["text"]
    assert (spark["has_warning"], spark["consequence"], spark["remedy"]) == (False, None, None)
    for one in writers:
        assert one["text"] in told
    assert told.count("Warning: ") == 2
    facts = json.loads(home.run("tables", "show", f"{DATABASE}.streamed", "--json").stdout)["facts"]
    assert facts["writers"] == (
        "Flink (table property sink.partition-commit.policy.kind = metastore; may not see a move); "
        "Spark (table property spark.sql.create.version = 3.5.9)"
    )
    home.config.write_text(written)
    assert "Setting: access, which is not set." in texts(home, f"{DATABASE}.streamed")[0]


def test_tables_that_spark_made_and_writes_by_name_are_named_without_a_warning_and_by_path_with_one(
    hive: MetastoreServer, tmp_path
):
    found = {ref.name: ref for ref in FORMAT.discover_in_metastore(hive.uri, "shop", "*")}
    for name in ("shop.orders", "shop.clicks", "shop.events"):
        writers = FORMAT.likely_writers(FORMAT.snapshot(found[name]))
        assert [(one.tool, one.consequence) for one in writers if one.tool != "Hive"] == [("Spark", None)], name
        (spark,) = [one for one in writers if one.tool == "Spark"]
        assert spark.evidence[0] == "table property spark.sql.create.version = 3.5.9"
        assert any(re.search(r"\d of \d footers: org.apache.spark.version", said) for said in spark.evidence)
    home = Installation(home=tmp_path, url=sqlite_at(tmp_path))
    home.config.unlink()
    # Others touch a mark in a partition of shop.moved.
    home.run("init", hive.uri, "--database", "shop", "--table", "[!m]*")
    written = home.config.read_text()
    assert "Warning: " not in written
    assert "# observed writers: Spark (table property spark.sql.create.version = 3.5.9" in written
    home.config.write_text(f'[database]\nurl = "{home.url}"\n{written}')
    told, writers = texts(home, "shop.clicks")
    assert ("Warning" in told, [one["tool"] for one in writers]) == (False, ["Spark"])
    assert "Spark seems to write or read the table (table property spark.sql.create.version = 3.5.9; " in told

    hive.spark(
        "CREATE DATABASE IF NOT EXISTS by_path",
        "CREATE TABLE by_path.orders (id BIGINT, dt STRING) USING parquet PARTITIONED BY (dt)",
        "INSERT INTO by_path.orders SELECT id, concat('d', id % 2) FROM range(4)",
        f"INSERT OVERWRITE DIRECTORY '{hive.place}/warehouse/by_path.db/orders/dt=d1' USING parquet "
        "SELECT id FROM range(9)",
    )
    (ref,) = FORMAT.discover_in_metastore(hive.uri, "by_path", "*")
    by_path, spark = FORMAT.likely_writers(FORMAT.snapshot(ref))
    assert (by_path.tool, spark.tool) == (known_tools.PATH_JOB.name, "Spark")
    assert by_path.evidence == ("_SUCCESS in 1 of 2 directories, such as that of partition dt=d1",)

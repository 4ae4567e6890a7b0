# SPDX-License-Identifier: Apache-2.0
"""Whether base files have the table's current schema, so that a reader without knowledge of Hudi may decode them."""

import json
from typing import Any

from lake.formats.hudi.client.client import HudiClient

#: the leading columns, at the positions that Hudi's row writer expects
_META_COLUMNS = [
    "_hoodie_commit_time",
    "_hoodie_commit_seqno",
    "_hoodie_record_key",
    "_hoodie_partition_path",
    "_hoodie_file_name",
]


def find_schema_obstacle(client: HudiClient) -> str | None:
    """Return the feature of the table's schema that only Hudi's own reader and writer support; None if it has none."""
    resolver = client.jvm.org.apache.hudi.common.table.TableSchemaResolver(client.meta)
    if resolver.getTableInternalSchemaFromCommitMetadata().isPresent():
        return "the table's schema has a history (hoodie.schema.on.read.enable), in which columns are not found by name"
    if "timestamp-millis" in client.reader_schema.toString():
        return "Hudi corrects the units of timestamps in milliseconds"
    return None


def find_schema_difference(client: HudiClient, path: str) -> str | None:
    """Return how the schema of the base file at ``path`` differs from the table's; None if it does not."""
    expected = json.loads(client.bundle.spark_schema(client.reader_schema).json())
    if [field["name"] for field in expected["fields"][: len(_META_COLUMNS)]] != _META_COLUMNS:
        return "the table has no meta columns"
    if _comparable_type(json.loads(_read_spark_schema(client, path).json())) != _comparable_type(expected):
        return f"{path} has another schema than the table"
    return None


def _comparable_type(kind: Any) -> Any:
    """Return a Spark type (as JSON) without comments and nullability, which a Parquet file does not store."""
    if isinstance(kind, list):
        return [_comparable_type(item) for item in kind]
    if not isinstance(kind, dict):
        return kind
    ignored = {"nullable", "containsNull", "valueContainsNull", "comment"}
    return {key: _comparable_type(value) for key, value in kind.items() if key not in ignored}


def _read_spark_schema(client: HudiClient, path: str) -> Any:
    """Return the schema that Spark infers from a file."""
    jvm = client.jvm
    parquet = jvm.org.apache.parquet.hadoop
    conf = client.spark.sparkContext._jsc.hadoopConfiguration()
    file = parquet.util.HadoopInputFile.fromPath(jvm.org.apache.hadoop.fs.Path(f"{client.base}/{path}"), conf)
    reader = parquet.ParquetFileReader.open(file)
    try:
        schema = reader.getFileMetaData().getSchema()
    finally:
        reader.close()
    settings = client.context.getSqlContext().sparkSession().sessionState().conf()
    converter = jvm.org.apache.spark.sql.execution.datasources.parquet.ParquetToSparkSchemaConverter(settings)
    return converter.convert(schema)

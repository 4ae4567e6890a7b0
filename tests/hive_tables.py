# SPDX-License-Identifier: Apache-2.0
"""Tables in a Hive metastore, made by a Spark of another process: ``python hive_tables.py URI PLACE [SQL…]``.

Without statements all tables of the tests are made, in the databases ``shop`` and ``odd``. Everything is below PLACE.
"""

import sys
from typing import Any

DATABASES = ("shop", "odd")
MADE = (
    *(f"CREATE DATABASE {name}" for name in DATABASES),
    "SET hive.exec.dynamic.partition.mode=nonstrict",
    # As Hive's own writers make them.
    "CREATE TABLE shop.orders (id BIGINT, item STRING, price DECIMAL(10,2)) PARTITIONED BY (day DATE, city STRING) "
    "STORED AS PARQUET",
    "INSERT INTO shop.orders SELECT /*+ REPARTITION(3) */ id, concat('i', id), CAST(id AS DECIMAL(10,2)), "
    "date_add(DATE'2024-01-01', CAST(id % 5 AS INT)), "
    "element_at(array('K/L', 'São Paulo', 'a=b c', '100%', CAST(NULL AS STRING)), CAST(id % 5 AS INT) + 1) "
    "FROM range(0, 300)",
    # As Spark's own do.
    "CREATE TABLE shop.clicks (id BIGINT, dt STRING) USING parquet PARTITIONED BY (dt)",
    "INSERT INTO shop.clicks SELECT /*+ REPARTITION(2) */ id, concat('d', id % 2) FROM range(0, 40)",
    "CREATE TABLE shop.events (id BIGINT) PARTITIONED BY (dt STRING) STORED AS ORC",
    "INSERT INTO shop.events PARTITION (dt='d0') SELECT /*+ REPARTITION(1) */ id FROM range(7)",
    "CREATE TABLE shop.flat (id BIGINT) STORED AS PARQUET",
    "INSERT INTO shop.flat SELECT /*+ REPARTITION(1) */ id FROM range(5)",
    "CREATE EXTERNAL TABLE shop.moved (id BIGINT) PARTITIONED BY (dt STRING) STORED AS PARQUET "
    "LOCATION '{place}/moved'",
    "ALTER TABLE shop.moved ADD PARTITION (dt='d0') PARTITION (dt='d1') LOCATION '{place}/elsewhere'",
    "INSERT INTO shop.moved PARTITION (dt='d1') SELECT /*+ REPARTITION(1) */ id FROM range(4)",
    # What is not lakefold's.
    "CREATE VIEW odd.view AS SELECT 1 AS one",
    "CREATE TABLE odd.bucketed (id BIGINT) CLUSTERED BY (id) INTO 4 BUCKETS STORED AS PARQUET",
    "CREATE TABLE odd.spark_bucketed (id BIGINT) USING parquet CLUSTERED BY (id) INTO 4 BUCKETS",
    "CREATE TABLE odd.lines (line STRING) STORED AS TEXTFILE",
    "CREATE TABLE odd.json (id BIGINT) USING json",
    "CREATE TABLE odd.plain (id BIGINT) PARTITIONED BY (dt STRING) STORED AS PARQUET",
    "ALTER TABLE odd.plain ADD PARTITION (dt='d0') PARTITION (dt='d1')",
    "CREATE TABLE odd.shared (id BIGINT) PARTITIONED BY (dt STRING) STORED AS PARQUET",
    "ALTER TABLE odd.shared ADD PARTITION (dt='d0') LOCATION '{place}/shared' "
    "PARTITION (dt='d1') LOCATION '{place}/shared/inner'",
    "SET spark.sql.hive.manageFilesourcePartitions=false",
    "CREATE TABLE odd.by_directory (id BIGINT, dt STRING) USING parquet PARTITIONED BY (dt)",
)


def session_of(uri: str, place: str) -> Any:
    """A Spark session over the metastore, with its warehouse below ``place``."""
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .enableHiveSupport()
        .config("spark.hadoop.hive.metastore.uris", uri)
        .config("spark.sql.warehouse.dir", f"{place}/warehouse")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "700m")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def main(uri: str, place: str, *statements: str) -> None:
    session = session_of(uri, place)
    for statement in statements or MADE:
        session.sql(statement.format(place=place))
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

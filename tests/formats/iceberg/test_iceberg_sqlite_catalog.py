# SPDX-License-Identifier: Apache-2.0
"""lakefold's Spark session beside writers of other processes, in one JDBC catalog on SQLite."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from iceberg_tables import jdbc_settings, observing, only_table, owner_catalog, rows

from executors.spark import active_session, spark_session
from lake.errors import Rejected
from lake.formats.iceberg.jvm.java_table import JavaTable
from lake.model import CatalogRef, TableRef

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CATALOG = "shared_on_sqlite"


def test_an_open_table_does_not_lock_the_catalog_s_database(spark: Any, tmp_path: Path):
    """Iceberg leaves a query open in which it has looked for the catalog's own tables, and a lock with it."""
    owner = owner_catalog(tmp_path, CATALOG)
    owner.create_namespace("lake")
    table = owner.create_table("lake.t", schema=rows(0, 1).schema)
    owner.engine.dispose()
    settings = jdbc_settings(tmp_path, CATALOG)
    for key, value in settings.items():
        spark.conf.set(key, value)
    opened = JavaTable(spark, only_table(observing(settings), CATALOG))
    table.append(rows(0, 10))
    opened.table.refresh()
    assert dict(opened.table.currentSnapshot().summary())["total-records"] == "10"


def test_a_session_without_the_catalog_s_driver_is_told_the_package(spark: Any, tmp_path: Path):
    catalog = "without_driver"
    settings = jdbc_settings(tmp_path, catalog) | {f"spark.sql.catalog.{catalog}.uri": "jdbc:nodriver://host/db"}
    for key, value in settings.items():
        spark.conf.set(key, value)
    ref = TableRef(
        name="lake.t",
        format="iceberg",
        location="/lake/t",
        catalog=CatalogRef(kind="iceberg", name=catalog, table="lake.t"),
    )
    with pytest.raises(Rejected, match="lacks the catalog's JDBC driver") as caught:
        JavaTable(spark, ref)
    assert "org.xerial:sqlite-jdbc" in str(caught.value)
    assert "org.postgresql:postgresql" in str(caught.value)


@pytest.mark.parametrize("session_of", [active_session, spark_session])
@pytest.mark.usefixtures("spark")
def test_a_thread_that_did_not_start_the_session_is_the_first_to_open_a_catalog(session_of: Any, tmp_path: Path):
    """Spark looks for the settings of a catalog in the session that is active in the thread."""
    catalog = f"first_in_thread_{session_of.__name__}"
    owner = owner_catalog(tmp_path, catalog)
    owner.create_namespace("lake")
    owner.create_table("lake.t", schema=rows(0, 1).schema).append(rows(0, 10))
    owner.engine.dispose()
    settings = jdbc_settings(tmp_path, catalog)
    for key, value in settings.items():
        session_of().conf.set(key, value)
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(lambda: JavaTable(session_of(), only_table(observing(settings), catalog))).result()
    assert opened.table.name() == f"{catalog}.lake.t"

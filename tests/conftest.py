# SPDX-License-Identifier: Apache-2.0
"""Fixtures that every test may use: one Spark session a process, soak lengths, servers."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOAK = os.environ.get("LAKEFOLD_SOAK") == "1"


def needs_server(reason: str) -> None:
    """Skip with ``reason`` printed, or fail where skipping is not allowed (``CI=true``)."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must not skip this: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """The process's one Spark session: two cores, at most 3 GiB."""
    from executors.spark import spark_session

    session = spark_session(
        {"spark.master": "local[2]", "spark.driver.memory": "3g", "spark.sql.shuffle.partitions": "2"}
    )
    yield session
    session.stop()

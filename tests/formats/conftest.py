# SPDX-License-Identifier: Apache-2.0
"""Templates of real Hudi tables, built once a session."""

from typing import TYPE_CHECKING

import pytest
from hudi_templates import Templates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def templates(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Templates:
    """Tables that tests copy."""
    return Templates(spark, tmp_path_factory.mktemp("hudi"))

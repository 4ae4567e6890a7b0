# SPDX-License-Identifier: Apache-2.0
"""Templates of real Hudi tables, built once a session."""

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from hudi_templates import Templates

from lake.formats.hudi import clean_start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def templates(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Templates:
    """Tables that tests copy."""
    return Templates(spark, tmp_path_factory.mktemp("hudi"))


@pytest.fixture
def nothing_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test begins is on the timeline at once, so that cleans may start as late as the newest instant."""
    monkeypatch.setattr(clean_start, "UNSEEN", timedelta(0))

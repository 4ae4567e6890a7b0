# SPDX-License-Identifier: Apache-2.0
"""Real Hudi tables: templates, and copies of them that a test may change; a writer in another process."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hudi_other_writer import OtherWriter, OtherWriters
from hudi_templates import Templates
from hudi_writing import NewTable, Table, make_table

from lake.formats.hudi.plans import clean_bounds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def templates(spark: "SparkSession") -> Templates:
    """Tables that tests copy."""
    return Templates(spark)


@pytest.fixture
def table(spark: "SparkSession", tmp_path: Path) -> NewTable:
    """A private copy of a template of ``hudi_writing`` for each call."""

    def new(kind: str = "cow", **options: str) -> Table:
        return make_table(spark, tmp_path, kind, options)

    return new


@pytest.fixture
def nothing_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test begins is on the timeline at once, so that cleans may start as late as the newest instant."""
    monkeypatch.setattr(clean_bounds, "MAX_PUBLICATION_DELAY", timedelta(0))


@pytest.fixture(scope="session")
def others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtherWriters]:
    """Where ``other`` comes from."""
    writers = OtherWriters(tmp_path_factory.mktemp("others"))
    yield writers
    writers.end()


@pytest.fixture
def other(others: OtherWriters) -> OtherWriter:
    """A writer in a process of its own."""
    return others.get()

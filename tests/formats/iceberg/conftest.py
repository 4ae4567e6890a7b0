# SPDX-License-Identifier: Apache-2.0
"""Iceberg tables in catalogs of every kind, each a real file or process."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import iceberg_rest
import pytest
from hive_metastore import MetastoreServer, running
from iceberg_case import IcebergCase, NewCase
from postgres import drop_database, new_database

from lake.model import TableRef


@pytest.fixture(scope="session")
def rest_server() -> Iterator[str]:
    """The address of Iceberg's REST fixture server."""
    with iceberg_rest.running() as uri:
        yield uri


@pytest.fixture(scope="session")
def locking_metastore() -> Iterator[MetastoreServer]:
    """A Hive metastore that has the tables of locks, without which Iceberg can't commit."""
    with running(locks=True) as server:
        yield server


@pytest.fixture(scope="session")
def catalog_database(postgres_url: str) -> Iterator[str]:
    """The URL of a PostgreSQL database for catalogs."""
    name = "iceberg_catalogs"
    yield new_database(postgres_url, name)
    drop_database(postgres_url, name)


@pytest.fixture
def new_case(spark: Any, request: pytest.FixtureRequest) -> NewCase:
    """A case of a ``kind`` of catalog, whose server is started when the first test needs it."""

    def new(kind: str, **options: Any) -> IcebergCase:
        server = ""
        if kind == "rest":
            server = request.getfixturevalue("rest_server")
        elif kind == "hive":
            server = request.getfixturevalue("locking_metastore").uri
        elif kind == "postgresql":
            server = request.getfixturevalue("catalog_database")
        return IcebergCase(session=spark, kind=kind, server=server, **options)

    return new


@pytest.fixture(params=["hadoop", "jdbc", "postgresql", "hive", "rest"])
def case(new_case: NewCase, request: pytest.FixtureRequest) -> IcebergCase:
    """One of each kind of catalog; a module may have other ones."""
    return new_case(request.param)


@pytest.fixture
def table(case: IcebergCase, tmp_path: Path) -> TableRef:
    """The table ``lake.t`` of the case, with six small files."""
    return case.create(tmp_path / "lake" / "t", name="t")

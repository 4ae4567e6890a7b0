# SPDX-License-Identifier: Apache-2.0
"""Hive tables of Parquet and of ORC files keep the promise of the port, in a real metastore."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from contract.capabilities import CapabilityContract
from contract.port import PortContract
from contract.run import RunContract
from databases import sqlite_at
from hive_case import HiveCase
from hive_metastore import MetastoreServer
from toys.bench import Bench

from executors.engines.arrow import ArrowEngine
from executors.engines.places import InProcess
from service.store.views import StoreSettings

pytestmark = pytest.mark.slow


@pytest.fixture(params=["parquet", "orc"])
def case(metastore: MetastoreServer, request: pytest.FixtureRequest) -> HiveCase:
    """The engine ``arrow`` rewrites Parquet, as a daemon's does; what Spark does of ORC there, a copy does."""
    if request.param == "parquet":
        return HiveCase(uri=metastore.uri, engines=(ArrowEngine(InProcess()),))
    return HiveCase(uri=metastore.uri, kind=request.param)


class TestPort(PortContract):
    """Listing, journal, commit, withdrawal, writers, deletion."""


class TestCapabilities(CapabilityContract):
    """None is declared."""


class TestRun(RunContract):
    """Executors, rescuer, sweep and cleaner."""

    @pytest.fixture
    def bench(self, case: HiveCase, tmp_path: Path) -> Iterator[Bench]:
        made = Bench(tmp_path, sqlite_at(tmp_path), StoreSettings(backoff=timedelta(0), max_attempts=3), case)
        yield made
        made.store.close()

# SPDX-License-Identifier: Apache-2.0
"""Hive tables of Parquet and of ORC files keep the promise of the port, in a real metastore."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from contract import port, run
from contract.capabilities import CapabilityContract
from contract.port import PortContract
from contract.run import RunContract
from hive_case import HiveCase, WholeCase
from hive_metastore import MetastoreServer
from toys.bench import Bench, bench_at
from toys.engine import StitchAny

from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend

pytestmark = [pytest.mark.slow, pytest.mark.paired("case")]


@pytest.fixture(params=["parquet", "orc", "parquet stitched"])
def case(metastore: MetastoreServer, request: pytest.FixtureRequest) -> HiveCase:
    """The engine ``arrow`` rewrites Parquet, as a daemon's does; what Spark does of ORC there, a copy does."""
    if request.param == "parquet stitched":
        return HiveCase(uri=metastore.uri, engines=(StitchAny(InProcessBackend()),))
    if request.param == "parquet":
        return HiveCase(uri=metastore.uri, engines=(ArrowEngine(InProcessBackend()),))
    return HiveCase(uri=metastore.uri, kind=request.param)


class _Benched:
    @pytest.fixture
    def bench(self, case: HiveCase, tmp_path: Path) -> Iterator[Bench]:
        with bench_at(tmp_path, case) as made:
            yield made


class TestPort(PortContract):
    """Listing, journal, commit, withdrawal, writers, deletion."""


class TestCapabilities(CapabilityContract):
    """Rows are sorted where an engine can."""


@pytest.mark.shown_by("tests/contract/test_contract_run.py::TestRun")
class TestRun(_Benched, RunContract):
    """Executors, rescuer, sweep and cleaner."""


class _Whole:
    """Tables without partitions, made by Hive and by Spark."""

    @pytest.fixture(params=["parquet", "orc", "parquet by Spark", "orc by Spark"])
    def case(self, metastore: MetastoreServer, request: pytest.FixtureRequest) -> WholeCase:
        kind, _, by_spark = request.param.partition(" ")
        return WholeCase(uri=metastore.uri, kind=kind, by_spark=bool(by_spark))


class TestPortOfWholeTables(_Whole, port.WholeTables):
    """Listing, journal, commit, withdrawal, writers, deletion."""


@pytest.mark.shown_by("tests/contract/test_contract_run.py::TestRun")
class TestRunOfWholeTables(_Whole, _Benched, run.WholeTables):
    """Executors, rescuer, sweep and cleaner."""

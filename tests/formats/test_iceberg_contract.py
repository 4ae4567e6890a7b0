# SPDX-License-Identifier: Apache-2.0
"""Iceberg keeps the promise of the port: the suite of ``tests/contract`` on real tables of two catalogs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract import port, run
from contract.capabilities import CapabilityContract
from contract.port import PortContract
from contract.run import RunContract
from iceberg_case import IcebergCase
from toys.bench import Bench, bench_at
from toys.engine import StitchAny

from executors.engines.backends import InProcessBackend

pytestmark = [pytest.mark.spark, pytest.mark.paired("case")]

KINDS = ("hadoop 2", "jdbc 2 stitched", "hadoop 1", "jdbc 1 stitched")


@pytest.fixture(params=KINDS)
def case(spark: Any, request: pytest.FixtureRequest) -> IcebergCase:
    kind, version, *how = request.param.split()
    if how:
        return IcebergCase(session=spark, kind=kind, version=int(version), engines=(StitchAny(InProcessBackend()),))
    return IcebergCase(session=spark, kind=kind, version=int(version))


class _Benched:
    @pytest.fixture
    def bench(self, case: IcebergCase, tmp_path: Path) -> Iterator[Bench]:
        with bench_at(tmp_path, case) as made:
            yield made


class TestPort(PortContract):
    """Listing, journal, commit, withdrawal, writers, deletion."""


class TestCapabilities(CapabilityContract):
    """Rows are sorted where an engine can."""

    @pytest.fixture(params=["hadoop 2", "jdbc 1"])
    def case(self, spark: Any, request: pytest.FixtureRequest) -> IcebergCase:
        kind, version = request.param.split()
        return IcebergCase(session=spark, kind=kind, version=int(version))


@pytest.mark.shown_by("tests/contract/test_contract_run.py::TestRun")
class TestRun(_Benched, RunContract):
    """Executors, rescuer, sweep and cleaner."""


class _Whole:
    """Tables without partitions."""

    @pytest.fixture(params=["hadoop 2", "jdbc 1"])
    def case(self, spark: Any, request: pytest.FixtureRequest) -> IcebergCase:
        kind, version = request.param.split()
        return IcebergCase(session=spark, kind=kind, version=int(version), parts=("",))


class TestPortOfWholeTables(_Whole, port.WholeTables):
    """Listing, journal, commit, withdrawal, writers, deletion."""


@pytest.mark.shown_by("tests/contract/test_contract_run.py::TestRun")
class TestRunOfWholeTables(_Whole, _Benched, run.WholeTables):
    """Executors, rescuer, sweep and cleaner."""

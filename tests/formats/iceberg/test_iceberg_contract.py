# SPDX-License-Identifier: Apache-2.0
"""Iceberg keeps the promise of the port: the suite of ``tests/contract`` on real tables of every kind of catalog."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from contract import port, run
from contract.capabilities import CapabilityContract
from contract.port import PortContract
from contract.run import RunContract
from iceberg_case import IcebergCase, NewCase
from toys.bench import Bench, bench_at
from toys.engine import StitchAny

from executors.engines.backends import InProcessBackend

pytestmark = [pytest.mark.spark, pytest.mark.paired("case")]

KINDS = (
    *("hadoop 2", "jdbc 2 stitched", "postgresql 2", "hive 2 stitched", "rest 2"),
    *("hadoop 1 stitched", "jdbc 1", "postgresql 1 stitched", "hive 1"),
    *("hadoop 3", "jdbc 3", "postgresql 3", "hive 3", "rest 3"),
)
SOME = ("hadoop 2", "jdbc 1", "postgresql 3", "hive 1", "rest 2", "jdbc 3")
WITH_DELETES = ("hadoop 2", "jdbc 3", "postgresql 2", "hive 3", "rest 2")


@pytest.fixture(params=KINDS)
def case(new_case: NewCase, request: pytest.FixtureRequest) -> IcebergCase:
    kind, version, *how = request.param.split()
    if how:
        return new_case(kind, version=int(version), engines=(StitchAny(InProcessBackend()),))
    return _of_version(new_case, kind, int(version))


def _of_version(new_case: NewCase, kind: str, version: int) -> IcebergCase:
    """Iceberg 1.10.2 can't update partitioned tables of version 3 by copy-on-write (``Invalid length``)."""
    return new_case(kind, version=version, merge_on_read=version > 2)


class _Benched:
    @pytest.fixture
    def bench(self, case: IcebergCase, tmp_path: Path) -> Iterator[Bench]:
        with bench_at(tmp_path, case) as made:
            yield made


class TestPort(PortContract):
    """Listing, journal, commit, withdrawal, writers, deletion."""


class TestCapabilities(CapabilityContract):
    """Rows are sorted where an engine can, and row-level deletes are merged."""

    @pytest.fixture(params=WITH_DELETES)
    def case(self, new_case: NewCase, request: pytest.FixtureRequest) -> IcebergCase:
        kind, version = request.param.split()
        return new_case(kind, version=int(version), merge_on_read=True)


@pytest.mark.shown_by("tests/contract/test_contract_run.py::TestRun")
class TestRun(_Benched, RunContract):
    """Executors, rescuer, sweep and cleaner."""


class _Whole:
    """Tables without partitions."""

    @pytest.fixture(params=SOME)
    def case(self, new_case: NewCase, request: pytest.FixtureRequest) -> IcebergCase:
        kind, version = request.param.split()
        return new_case(kind, version=int(version), merge_on_read=int(version) > 2, parts=("",))


class TestPortOfWholeTables(_Whole, port.WholeTables):
    """Listing, journal, commit, withdrawal, writers, deletion."""


@pytest.mark.shown_by("tests/contract/test_contract_run.py::TestRun")
class TestRunOfWholeTables(_Whole, _Benched, run.WholeTables):
    """Executors, rescuer, sweep and cleaner."""

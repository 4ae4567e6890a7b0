# SPDX-License-Identifier: Apache-2.0
"""Hive tables on HDFS keep the promise of the port as those on local files do, in a real metastore and a real HDFS."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.capabilities import CapabilityContract
from contract.port import PortContract
from contract.run import RunContract
from hadoop import HadoopCluster
from hive_case import HiveCase
from hive_metastore import MetastoreServer
from toys.bench import Bench, bench_at

from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend

#: Parquet and ORC take turns; `make soak` runs each test with both
pytestmark = [pytest.mark.slow, pytest.mark.crossed]


@pytest.fixture(params=["parquet", "orc"])
def case(metastore: MetastoreServer, hdfs: HadoopCluster, request: pytest.FixtureRequest) -> HiveCase:
    """The engine ``arrow`` rewrites Parquet, as a daemon's does; what Spark does of ORC there, a copy does."""
    engines = (ArrowEngine(InProcessBackend()),) if request.param == "parquet" else ()
    return HiveCase(uri=metastore.uri, kind=request.param, root=hdfs.uri, engines=engines)


class TestPort(PortContract):
    """Listing, journal, commit, withdrawal, writers, deletion."""


@pytest.mark.shown_by("tests/formats/test_hive_contract.py::TestCapabilities")
class TestCapabilities(CapabilityContract):
    """Rows are sorted where an engine can."""


@pytest.mark.shown_by("tests/contract/test_contract_run.py::TestRun")
class TestRun(RunContract):
    """Executors, rescuer, sweep and cleaner."""

    @pytest.fixture
    def bench(self, case: HiveCase, tmp_path: Path) -> Iterator[Bench]:
        with bench_at(tmp_path, case) as made:
            yield made

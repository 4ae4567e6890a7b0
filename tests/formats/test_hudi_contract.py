# SPDX-License-Identifier: Apache-2.0
"""Hudi keeps the promise of the port: the suite of ``tests/contract`` on real tables."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract.capabilities import CapabilityContract
from contract.port import PortContract
from contract.run import RunContract
from hudi_case import HudiCase
from support import BUNDLE, ONE_BUNDLE, SOAK, passed_in_its_own_process, record_figure
from toys.bench import Bench, bench_at

from lake.formats.hudi.jvm.bundle import RELEASE_LINES, bundle_of

pytestmark = [pytest.mark.spark, pytest.mark.soak]


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tables are that all tests copy."""
    return tmp_path_factory.mktemp("contract")


@pytest.fixture
def case(spark: Any, templates: Path) -> HudiCase:
    assert bundle_of(spark).version == BUNDLE
    return HudiCase(spark, templates)


if not SOAK:

    class TestHudiPort(PortContract):
        """Listing, journal, commit, withdrawal, writers, deletion."""

    @pytest.mark.crossed(2)
    class TestHudiCapabilities(CapabilityContract):
        """All but an expiry of its own are declared; the oldest bundle refuses some."""


if ONE_BUNDLE:

    class TestHudiRun(RunContract):
        """Executors, rescuer, sweep and cleaner."""

        @pytest.fixture
        def bench(self, case: HudiCase, tmp_path: Path) -> Iterator[Bench]:
            with bench_at(tmp_path, case) as made:
                yield made


if SOAK:

    @pytest.mark.timeout(3600)
    @pytest.mark.parametrize("release", [line.release for line in RELEASE_LINES])
    def test_every_bundle_passes_this_suite_in_a_process_of_its_own(release: str) -> None:
        passed = passed_in_its_own_process(__file__, LAKEFOLD_TEST_BUNDLE=release, LAKEFOLD_SOAK="")
        record_figure(f"contract on Hudi bundle {release}", f"{passed} passed")

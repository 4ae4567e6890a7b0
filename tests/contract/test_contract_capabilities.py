# SPDX-License-Identifier: Apache-2.0
"""The test formats support the capabilities that they declare."""

import pytest
from toys.cases import VARIANTS

from contract.capabilities import EXERCISES, CapabilityContract
from contract.case import Case
from lake.ports import Capability


class TestCapabilities(CapabilityContract):
    """Every capability of each test format."""

    @pytest.fixture(params=VARIANTS)
    def case(self, request: pytest.FixtureRequest) -> Case:
        return VARIANTS[request.param]()


def test_every_capability_has_an_exercise():
    assert set(EXERCISES) == set(Capability)

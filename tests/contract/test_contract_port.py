# SPDX-License-Identifier: Apache-2.0
"""The three formats of the tests keep the promise of the port."""

import pytest
from toys.cases import CASES

from contract.case import Case
from contract.port import PortContract


class TestPort(PortContract):
    """Every promise, of each of them."""

    @pytest.fixture(params=CASES)
    def case(self, request: pytest.FixtureRequest) -> Case:
        return CASES[request.param]()

# SPDX-License-Identifier: Apache-2.0
"""The long run: each of the three test formats on each database."""

from pathlib import Path

import pytest
from support import SOAK, passed_in_its_own_process, record_figure
from toys.cases import CROSSED

SUITE = [str(Path(__file__).with_name(f"test_contract_{module}.py")) for module in ("run", "processes", "staged")]

if SOAK:

    @pytest.mark.soak
    @pytest.mark.timeout(1800)
    @pytest.mark.parametrize("pair", CROSSED)
    def test_the_suite_is_passed_on_every_database(pair: str):
        passed = passed_in_its_own_process(*SUITE, "-k", pair)
        record_figure(f"contract on the test format {pair.replace('-', ', ')}", f"{passed} passed")

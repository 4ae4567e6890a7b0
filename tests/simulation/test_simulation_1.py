# SPDX-License-Identifier: Apache-2.0
"""The first quarter of the simulated seeds; the other files are for whichever process is free."""

import pytest

from simulation.seeds import TESTS, hold


@pytest.mark.soak
@pytest.mark.parametrize("number", range(TESTS))
def test_rows_and_plans_hold_under_crashes_suspensions_and_failures(number):
    hold(number)

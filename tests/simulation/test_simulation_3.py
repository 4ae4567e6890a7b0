# SPDX-License-Identifier: Apache-2.0
"""The third quarter of the simulated seeds."""

import pytest

from simulation.seeds import TESTS, hold


@pytest.mark.soak
@pytest.mark.parametrize("number", range(2 * TESTS, 3 * TESTS))
def test_rows_and_plans_hold_under_crashes_suspensions_and_failures_in_the_third_quarter(number):
    hold(number)

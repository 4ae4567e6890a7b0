# SPDX-License-Identifier: Apache-2.0
"""The number of seeds, and their distribution over test files: each file is one process's part of a parallel run."""

import sys
import time
import typing
from functools import cache

from support import SOAK, record_figure

from simulation.shrink import explain, first_failure

#: the number of seeds of one test, and of tests in each of the four files
PER_TEST, TESTS = (10_000, 25) if SOAK else (250, 2)

_took: dict[int, float] = {}

if sys.version_info < (3, 12):
    # Each isinstance with a protocol looks up all its members, which would take a tenth of a run's time.
    typing._get_protocol_attrs = cache(typing._get_protocol_attrs)  # type: ignore[attr-defined]


def hold(number: int) -> None:
    """Check that all invariants hold in the seeds of test ``number``."""
    seeds, began = range(number * PER_TEST, (number + 1) * PER_TEST), time.process_time()
    failing = first_failure(seeds)
    assert failing is None, f"\n{explain(failing)}"
    _took[number] = time.process_time() - began
    first = number - number % TESTS
    if all(of in _took for of in range(first, first + TESTS)):
        each = sum(_took.values()) / len(_took) / PER_TEST * 1000
        subject = f"simulated seeds {first * PER_TEST:,} to {(first + TESTS) * PER_TEST - 1:,}"
        record_figure(subject, f"the rules for rows, plans and files were kept in each, {each:.1f} ms of CPU a seed")

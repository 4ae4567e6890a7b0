# SPDX-License-Identifier: Apache-2.0
"""The ways to rewrite data files that formats are handed, the fastest first."""

from executors.engines.arrow import ArrowEngine
from executors.engines.places import InProcess
from lake.engines import Engine


def engines() -> tuple[Engine, ...]:
    """Every engine there is."""
    return (ArrowEngine(InProcess()),)

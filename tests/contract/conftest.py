# SPDX-License-Identifier: Apache-2.0
"""Cases on databases; failed assertions in the suite's own modules are explained in full."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import SOAK
from toys.bench import Bench, bench_on
from toys.cases import CROSSED, VARIANTS

ASKING = ("attempts", "capabilities", "forgotten", "port", "processes", "run")
pytest.register_assert_rewrite(*(f"contract.{module}" for module in ASKING))

MINIMAL = ["minimal-sqlite"]
PAIRED = ["timeline-sqlite", "locations-postgresql", "versions-sqlite", *MINIMAL]


@pytest.fixture(params=[*CROSSED, *MINIMAL] if SOAK else PAIRED)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """A case on a database, with leases of a minute and retries without delay."""
    name, database = request.param.split("-")
    with bench_on(database, VARIANTS[name](), request, tmp_path) as made:
        yield made

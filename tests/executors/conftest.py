# SPDX-License-Identifier: Apache-2.0
"""A toy table, a real SQLite store, and plans that run without Spark."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from toys.bench import Bench, bench_at


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Leases of a minute, retries at once."""
    with bench_at(tmp_path) as made:
        yield made


@pytest.fixture
def short_leases(tmp_path: Path) -> Iterator[Bench]:
    """Leases of 0.3 s, retries at once."""
    with bench_at(tmp_path, lease=timedelta(seconds=0.3)) as made:
        yield made

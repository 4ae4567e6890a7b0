# SPDX-License-Identifier: Apache-2.0
"""A toy table, a real SQLite store, and plans that run without Spark."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from databases import sqlite_at
from toys.bench import Bench

from service.store.views import StoreSettings


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Leases of a minute, retries at once."""
    made = Bench(tmp_path, sqlite_at(tmp_path), StoreSettings(backoff=timedelta(0), max_attempts=3))
    yield made
    made.store.close()


@pytest.fixture
def short_leases(tmp_path: Path) -> Iterator[Bench]:
    """Leases of 0.3 s, retries at once."""
    settings = StoreSettings(lease=timedelta(seconds=0.3), backoff=timedelta(0), max_attempts=3)
    made = Bench(tmp_path, sqlite_at(tmp_path), settings)
    yield made
    made.store.close()

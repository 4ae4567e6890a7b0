# SPDX-License-Identifier: Apache-2.0
"""A toy table, a real SQLite store, and plans that run without Spark."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from toy_bench import Bench

from service.store import Store
from service.store.views import StoreSettings


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with our schema, to copy: migrating one for each test takes longer than most tests."""
    path = tmp_path_factory.mktemp("database") / "empty.db"
    store = Store(f"sqlite:///{path}")
    store.upgrade()
    store.close()
    return path


@pytest.fixture
def bench(tmp_path: Path, empty_database: Path) -> Iterator[Bench]:
    """Leases of a minute, retries at once."""
    made = Bench(tmp_path, empty_database, StoreSettings(backoff=timedelta(0), max_attempts=3))
    yield made
    made.store.close()


@pytest.fixture
def short_leases(tmp_path: Path, empty_database: Path) -> Iterator[Bench]:
    """Leases of 0.3 s, retries at once."""
    made = Bench(
        tmp_path, empty_database, StoreSettings(lease=timedelta(seconds=0.3), backoff=timedelta(0), max_attempts=3)
    )
    yield made
    made.store.close()

# SPDX-License-Identifier: Apache-2.0
"""Tables of Hive that a plan has moved, or not yet."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from databases import sqlite_at
from hive_case import HiveCase
from hive_metastore import MetastoreServer
from toys.bench import Bench

from executors.outcome import Result
from service.store.views import StoreSettings


@pytest.fixture
def case(metastore: MetastoreServer) -> HiveCase:
    return HiveCase(uri=metastore.uri)


@pytest.fixture
def unmoved(case: HiveCase, tmp_path: Path) -> Iterator[Bench]:
    """A table that no plan has moved yet."""
    made = Bench(tmp_path, sqlite_at(tmp_path), StoreSettings(backoff=timedelta(0), max_attempts=3), case)
    yield made
    made.store.close()


@pytest.fixture
def bench(unmoved: Bench) -> Bench:
    """A table that a completed plan has moved."""
    unmoved.request()
    assert unmoved.run().result is Result.COMPLETED
    return unmoved

# SPDX-License-Identifier: Apache-2.0
"""Tables of Hive that a plan has moved, or not yet."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hive_case import HiveCase
from hive_metastore import MetastoreServer
from toys.bench import Bench, bench_at

from executors.outcome import RunResult


@pytest.fixture
def case(metastore: MetastoreServer) -> HiveCase:
    return HiveCase(uri=metastore.uri)


@pytest.fixture
def unmoved(case: HiveCase, tmp_path: Path) -> Iterator[Bench]:
    """A table that no plan has moved yet."""
    with bench_at(tmp_path, case) as made:
        yield made


@pytest.fixture
def bench(unmoved: Bench) -> Bench:
    """A table that a completed plan has moved."""
    unmoved.request()
    assert unmoved.run().result is RunResult.COMPLETED
    return unmoved

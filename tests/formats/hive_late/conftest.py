# SPDX-License-Identifier: Apache-2.0
"""Tables of Hive that a plan has moved, or not yet.

Numbers in the names of tests are those of the rules in docs/decisions/0013-moving-a-partition.md.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hive_case import HiveCase, Owner
from hive_metastore import MetastoreServer
from other_table import OTHER
from toys.bench import Bench, bench_at

from executors.outcome import RunResult
from lake.capabilities import with_identity


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


@pytest.fixture
def known(unmoved: Bench) -> Bench:
    """A table that was scanned, with what tells it from others, and that a completed plan has moved."""
    bench = unmoved
    bench.table = with_identity(bench.format, bench.table)
    bench.store.register_table(bench.table, "compact")
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    return bench


@pytest.fixture
def other(metastore: MetastoreServer, tmp_path: Path) -> Iterator[Owner]:
    """A connection for the owner of another partitioned table in the same metastore."""
    with Owner(metastore.uri) as owner:
        owner.make_table(OTHER, tmp_path / "other")
        yield owner

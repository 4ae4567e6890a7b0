# SPDX-License-Identifier: Apache-2.0
"""Tables of Hive that a plan has moved, or not yet."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hive_case import DATABASE, HiveCase, Owner
from hive_metastore import MetastoreServer
from toys.bench import Bench, bench_at

from executors.outcome import RunResult
from lake.capabilities import with_identity


@pytest.fixture(autouse=True)
def _no_tables_are_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Drop the tables of a test: lakefold lists all tables, so each one that stays makes later tests slower."""
    yield
    if "metastore" not in request.fixturenames:
        return
    with Owner(request.getfixturevalue("metastore").uri) as owner:
        for name in owner.table_names(DATABASE) if DATABASE in owner.databases() else ():
            owner.drop_table(name)


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

# SPDX-License-Identifier: Apache-2.0
"""Sessions with an older Iceberg, which the owner's ``spark.jars.packages`` can name."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.plans import plan_all
from contract.run import ended
from iceberg_case import NewCase
from maven import Artifact, fetched
from toys.bench import Bench, bench_at
from toys.processes import start, wait
from uuid_utils import uuid7

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NAME, VERSION = "iceberg-spark-runtime-3.5_2.12", "1.10.1"


@pytest.fixture
def bench(new_case: NewCase, tmp_path: Path) -> Iterator[Bench]:
    jars = fetched(f"iceberg-runtime-{VERSION}", (Artifact("org.apache.iceberg", NAME, VERSION),))
    case = new_case("postgresql", version=3, runtime=f"file:{jars / f'{NAME}-{VERSION}.jar'}")
    case.properties = {"commit.manifest.min-count-to-merge": "2"}
    with bench_at(tmp_path, case) as made:
        yield made


def lineage(bench: Bench) -> list[tuple[int, ...]]:
    """The id of every row with its lineage."""
    rows = bench.case.sql(f"SELECT id, _row_id, _last_updated_sequence_number FROM {bench.case.name(bench.table)}")
    return sorted(tuple(row) for row in rows.collect())


def test_a_commit_that_would_number_rows_of_other_files_again_is_not_made(bench: Bench):
    """Iceberg 1.10.1 loses the row ids of a file that stays, if it filters the file's manifest and then merges it."""
    before, was = bench.rows(), lineage(bench)
    plan = bench.requested(plan_all(bench.format, bench.table, str(uuid7()), partitions=["dt=0"]))
    output = wait(start(bench, "once", lease=60))
    assert bench.state(plan) == "failed", output
    error = bench.store.plan(plan.plan_id).error or ""
    assert "would give new row ids (_row_id)" in error
    assert "spark.jars.packages, or set the table property commit.manifest-merge.enabled to false" in error
    assert lineage(bench) == was
    ended(bench, plan, before, commits=0)
    bench.case.sql(
        f"ALTER TABLE {bench.case.name(bench.table)} SET TBLPROPERTIES ('commit.manifest-merge.enabled' = 'false')"
    )
    plan = bench.requested(plan_all(bench.format, bench.table, str(uuid7()), partitions=["dt=0"]))
    output = wait(start(bench, "once", lease=60))
    assert bench.state(plan) == "completed", output
    assert lineage(bench) == was

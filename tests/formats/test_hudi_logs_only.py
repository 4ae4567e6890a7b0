# SPDX-License-Identifier: Apache-2.0
"""Slices of logs only: clustered like any other, with a proof although hudi-rs can't read them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hudi_tables import rows, write
from hudi_writing import FORMAT, Table, ignore, make_table

from executors.rowhash import Fingerprint
from executors.verification import verify_rewrite
from lake.errors import Integrity

pytestmark = pytest.mark.spark


@pytest.fixture
def trips(spark: Any, tmp_path: Path) -> Table:
    table = make_table(spark, tmp_path, "logs_only")
    bases = [row["path"] is not None for row in FORMAT.snapshot(table.ref).slices.to_pylist()]
    assert sorted(bases) == [False] * 4 + [True] * 2
    return table


def test_slices_of_logs_only_are_clustered_and_every_update_and_delete_in_them_stays(trips: Table) -> None:
    before = trips.rows()
    plan = trips.plan()
    logs = {f"{s.partition}/{name}" for g in plan.groups for s in g.slices for name in s.log_files}
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        verify_rewrite(rewrite, writer=writer)
        fewer = replace(rewrite, outputs=rewrite.outputs[:1])
        with pytest.raises(Integrity, match="partition 'dt=2026-01-02', rows: expected 116, found 0"):
            verify_rewrite(fewer, writer=writer)
        commit = writer.commit(rewrite)
    assert trips.rows() == before
    assert sum(trips.other_rows()[1].values()) == len(before), "hudi-rs reads them from now on"
    assert logs <= {version.path for version in commit.superseded}
    with trips.writer() as writer:
        writer.delete(commit.superseded)
    assert set(trips.data_files()) == {output.path for output in commit.outputs}
    assert trips.rows() == before
    trips.upsert(70_000, 70_200, 5, "id % 5 = 0 and id % 7 != 0")
    assert len(trips.rows()) == len(before)


def test_the_rows_read_of_slices_of_logs_only_are_the_planned_ones_despite_later_commits(trips: Table) -> None:
    plan = trips.plan(partitions=["dt=2026-01-01"])
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        write(rows(trips.spark, 71_000, 71_010), trips.base, merge_on_read=True)
        read, written = Fingerprint(), Fingerprint()
        for batch in writer.read_inputs(rewrite.prepared, "dt=2026-01-01"):
            read.add(batch, rewrite.prepared.volatile_columns)
        for output in rewrite.outputs:
            for batch in pq.ParquetFile(trips.base / output.path).iter_batches():
                written.add(batch, rewrite.prepared.volatile_columns)
        assert read == written
        writer.commit(rewrite)
    assert read.rows == 115
    assert len(trips.rows()) == 115 + 116 + 10

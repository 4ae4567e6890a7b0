# SPDX-License-Identifier: Apache-2.0
"""Tables on S3, written, rewritten and cleaned through S3A, listed and read through pyarrow and hudi-rs."""

from typing import Any

import pytest
from hudi_tables import METADATA, rows, write
from hudi_writing import FORMAT, Table, ignore
from s3_server import S3Server

from executors.receipt import prove
from lake.plan import Plan, ReceiptLevel

pytestmark = pytest.mark.spark


@pytest.fixture
def lake(bucket: str, s3_server: S3Server, spark: Any) -> str:
    """A location for tables that Spark and this process see."""
    s3_server.tell(spark)
    return f"s3a://{bucket}/lake"


def written(spark: Any, base: str, *, merge_on_read: bool) -> Table:
    """Two inserts by Spark; merge-on-read an upsert too, so that every slice has a log."""
    for commit in range(2):
        frame = rows(spark, commit * 60, (commit + 1) * 60, version=commit).coalesce(1)
        write(frame, base, merge_on_read=merge_on_read, options=METADATA)
    if merge_on_read:
        changed = rows(spark, 0, 120, version=2).where("id % 5 = 1").coalesce(1)
        write(changed, base, "upsert", merge_on_read=True)
    return Table(spark, base)


@pytest.mark.parametrize("merge_on_read", [False, True], ids=["copy-on-write", "merge-on-read"])
def test_a_table_on_s3_is_found_rewritten_committed_and_cleaned(lake: str, spark: Any, merge_on_read: bool) -> None:
    table = written(spark, f"{lake}/trips", merge_on_read=merge_on_read)
    location = table.ref.location.replace("s3a:", "s3:")
    assert [t.location for t in FORMAT.discover(lake)] == [t.location for t in FORMAT.discover(location)] == [location]
    FORMAT.check(table.ref)
    files, rows_before, others_before = table.data_files(), table.rows(), table.other_rows()
    plan: Plan = table.compaction() if merge_on_read else table.plan(receipt=ReceiptLevel.HASH)
    with table.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        prove(rewrite, writer=writer, volatile=FORMAT.volatile_columns)
        commit = writer.commit(rewrite)
    assert (table.rows(), table.other_rows()) == (rows_before, others_before)
    assert {version.path: version.bytes for version in commit.superseded} == files
    found = FORMAT.committed(table.ref, plan.plan_id)
    assert found is not None
    assert (found.instant, set(found.outputs)) == (commit.instant, set(commit.outputs))
    with table.writer() as writer:
        assert writer.delete(commit.superseded, ()) == sum(files.values())
    assert table.data_files() == {output.path: output.bytes for output in commit.outputs}
    assert (table.rows(), table.other_rows()) == (rows_before, others_before)
    verified = FORMAT.verify(table.ref, commit.superseded, rows=True)
    assert (verified.missing, verified.wrong_size, verified.resurrected, verified.unowned) == ((), (), (), ())
    assert verified.rows == verified.rows_expected == 120
    assert FORMAT.describe(table.ref)["pending"] == "nothing"

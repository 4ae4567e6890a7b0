# SPDX-License-Identifier: Apache-2.0
"""Tables on S3, written, rewritten and cleaned through S3A, listed and read through pyarrow and hudi-rs."""

from pathlib import Path
from typing import Any

import pytest
from harness import Installation
from hudi_tables import rows, write
from hudi_writing import FORMAT, Table, ignore, make_table
from s3_server import S3Server, policy

from executors.verification import verify_rewrite
from lake.errors import Conflict
from lake.formats.hudi.lock_settings.on_conflict import WRITER_WINS_OPTIONS
from lake.plan import VerificationLevel

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "object-stores.md"


@pytest.fixture
def lake(bucket: str, s3_server: S3Server, spark: Any) -> str:
    """A location for tables that Spark and this process see."""
    s3_server.tell(spark)
    return f"s3a://{bucket}/lake"


@pytest.fixture
def copied(lake: str, s3_server: S3Server, spark: Any, tmp_path: Path) -> Table:
    """A copy-on-write table with a metadata table, three files in each of two partitions."""
    local = make_table(spark, tmp_path, "metadata")
    return Table(spark, s3_server.upload(Path(local.base), f"{lake}/trips"))


def written(spark: Any, base: str) -> Table:
    """A merge-on-read table with a log in every slice, from the first commit on written by Spark."""
    for commit in range(2):
        frame = rows(spark, commit * 60, (commit + 1) * 60, version=commit).coalesce(1)
        write(frame, base, merge_on_read=True)
    changed = rows(spark, 0, 120, version=2).where("id % 5 = 1").coalesce(1)
    write(changed, base, "upsert", merge_on_read=True)
    return Table(spark, base)


@pytest.mark.parametrize("merge_on_read", [False, True], ids=["copy-on-write", "merge-on-read"])
@pytest.mark.crossed
@pytest.mark.shown_by(
    "tests/formats/test_hudi_s3.py::test_the_commands_serve_a_lake_on_s3_and_a_kill_in_a_commit_leaves_readers_as_they_were"
)
def test_a_table_on_s3_is_found_rewritten_committed_and_cleaned(
    lake: str, merge_on_read: bool, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    get = request.getfixturevalue
    table = written(get("spark"), f"{lake}/trips") if merge_on_read else get("copied")
    (found,) = FORMAT.discover(lake)
    assert found.location == f"{lake}/trips".replace("s3a:", "s3:")
    FORMAT.check(table.ref)
    whole = FORMAT.snapshot(table.ref).slices.to_pylist()
    partition = whole[0]["partition"]
    looked = FORMAT.snapshot(table.ref, [partition, "nowhere"]).slices.to_pylist()
    assert looked == [row for row in whole if row["partition"] == partition] != whole
    files, rows_before, others_before = table.data_files(), table.rows(), table.other_rows()
    plan = table.compaction() if merge_on_read else table.plan(receipt=VerificationLevel.HASH)
    with table.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        verify_rewrite(rewrite, writer=writer)
        commit = writer.commit(rewrite)
        assert "not read in batches" not in caplog.text
        assert (table.rows(), table.other_rows()) == (rows_before, others_before)
        assert {version.path: version.bytes for version in commit.superseded} == files
        assert FORMAT.find_commit(table.ref, plan.plan_id) is not None
        assert writer.delete(commit.superseded).bytes_freed == sum(files.values())
    assert table.data_files() == {output.path: output.bytes for output in commit.outputs}
    assert (table.rows(), table.other_rows()) == (rows_before, others_before)
    verified = FORMAT.verify(table.ref, commit.superseded, rows=True)
    assert (verified.missing, verified.wrong_size, verified.resurrected, verified.unowned) == ((), (), (), ())
    assert verified.rows == verified.rows_expected == len(rows_before)
    assert FORMAT.describe(table.ref)["pending"] == "nothing"


@pytest.mark.shown_by(
    "tests/formats/test_hudi_guards.py::test_trap_under_prefer_writer_an_upsert_into_the_plan_wins_and_nothing_is_lost"
)
def test_a_writer_that_was_faster_on_s3_keeps_its_rows_and_the_copied_files_go(copied: Table, spark: Any) -> None:
    plan = copied.plan(engine="stitch")
    with copied.writer() as writer:
        prepared = writer.prepare(plan, 1)
        assert prepared.notes == ("engine stitch: as set",)
        rewrite = writer.rewrite(prepared, ignore)
        # As a writer calls the table that takes its location from Glue.
        Table(spark, str(copied.base).replace("s3a:", "s3:")).upsert(0, 30, 9, **WRITER_WINS_OPTIONS)
        rows_now, files = copied.rows(), copied.data_files()
        with pytest.raises(Conflict, match=r"has base file .* now, the plan names"):
            writer.commit(rewrite)
        assert writer.withdraw(plan.plan_id, None) == 1
    outputs = {output.path for output in rewrite.outputs}
    assert outputs < set(files)
    assert set(copied.data_files()) == set(files) - outputs
    assert copied.rows() == rows_now
    assert not copied.timeline().pending


def test_the_commands_serve_a_lake_on_s3_and_a_kill_in_a_commit_leaves_readers_as_they_were(
    copied: Table, s3_server: S3Server, spark: Any, tmp_path: Path
) -> None:
    rows_before = copied.rows()
    location, before = str(copied.base), len(s3_server.requests())
    installation = Installation(
        home=tmp_path,
        url=f"sqlite:///{tmp_path}/lakefold.db",
        concurrency="single_writer",
        tables={"trips": location.replace("s3a:", "s3n:")},
        spark=s3_server.settings,
    )
    (listed,) = installation.json("tables", "list")
    assert listed["location"] == location.replace("s3a:", "s3:")
    (plan_id,) = installation.json("plans", "request", location)[0]["plan_ids"]
    killed = installation.run("worker", "--once", failpoints="in_commit=kill", expect=None)
    assert killed.returncode == -9, killed.stderr[-3000:]
    assert copied.rows() == rows_before
    installation.expire_leases()
    installation.work(spark)
    (plan,) = installation.json("plans", "show", plan_id)
    assert plan["state"] == "completed"
    assert copied.rows() == rows_before
    installation.run("verify", "trips", "--rows")
    assert "s3cret-of-the-tests" not in installation.run("config", "show").stdout
    asked = s3_server.actions(location.split("/")[2], since=before)
    assert {"s3:PutObject", "s3:DeleteObject"} < asked <= policy(PAGE), "as the page on S3 says"

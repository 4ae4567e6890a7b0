# SPDX-License-Identifier: Apache-2.0
"""The Hudi writer on real tables: prepare, rewrite, commit, and what goes wrong in each."""

import itertools
import os
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hudi_tables import small_files
from hudi_writing import FORMAT, QUICK_LOCK, NewTable, Table, ignore, superseded

from executors.receipt import prove
from lake.errors import CancelRequested, CommitUnknown, Conflict, Integrity, Rejected, Transient
from lake.formats.hudi import publish
from lake.formats.hudi.bundle import Bundle, bundle_of, probe
from lake.formats.hudi.outcomes import translate
from lake.formats.hudi.timeline import EPOCH_KEY, PLAN_KEY, extra_metadata
from lake.plan import Progress, ReceiptLevel

pytestmark = pytest.mark.spark


def test_a_clustered_table_has_the_same_rows_types_and_meta_columns_for_spark_and_hudi_rs(table: NewTable) -> None:
    trips = table()
    rows, other = trips.rows(), trips.other_rows()
    plan = trips.plan(receipt=ReceiptLevel.HASH)
    reports: list[Progress] = []
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 3)
        assert (prepared.groups, prepared.left_out) == ((0, 1), ())
        rewrite = writer.rewrite(prepared, reports.append)
        assert trips.rows() == rows, "a rewrite is invisible before its commit"
        written = {path: (trips.base / path).stat().st_mtime_ns for path in trips.files_of(prepared.instant)}
        assert set(written) == {output.path for output in rewrite.outputs}
        commit = writer.commit(rewrite)
    assert trips.rows() == rows
    assert trips.other_rows() == other
    assert {path: (trips.base / path).stat().st_mtime_ns for path in trips.files_of(commit.instant)} == written
    assert commit.outputs == rewrite.outputs
    for output in commit.outputs:
        path = trips.base / output.path
        assert (path.stat().st_size, pq.ParquetFile(path).metadata.num_rows) == (output.bytes, output.rows)
    assert sum(output.rows for output in commit.outputs) == len(rows)
    assert sorted(commit.superseded, key=lambda v: v.path) == sorted(
        superseded(plan, commit.instant), key=lambda v: v.path
    )
    assert FORMAT.committed(trips.ref, plan.plan_id) == commit
    timeline = trips.timeline()
    record = extra_metadata(timeline.metadata(timeline.commits[-1]))
    assert (record[PLAN_KEY], record[EPOCH_KEY]) == (plan.plan_id, "3")
    assert not timeline.pending
    assert trips.temporary() == []
    done = [report.bytes_done for report in reports]
    assert done == sorted(done)
    assert reports[-1] == Progress(bytes_done=plan.bytes, bytes_total=plan.bytes, rows_done=len(rows))


def test_slices_with_logs_are_clustered_without_losing_an_update_or_reviving_a_delete(table: NewTable) -> None:
    trips = table("mor")
    rows, other = trips.rows(), trips.other_rows()
    plan = trips.plan(receipt=ReceiptLevel.HASH)
    logs = {f"{s.partition}/{name}" for g in plan.groups for s in g.slices for name in s.log_files}
    assert logs
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        for partition in plan.partitions:
            merged = pa.Table.from_batches(writer.read_inputs(rewrite.prepared, partition)).to_pylist()
            written = [
                row
                for output in rewrite.outputs
                if output.partition == partition
                for row in pq.read_table(trips.base / output.path).to_pylist()
            ]
            for row in (*merged, *written):
                row.pop("_hoodie_file_name")
            assert sorted(map(repr, merged)) == sorted(map(repr, written))
        commit = writer.commit(rewrite)
    assert trips.rows() == rows
    assert trips.other_rows() == other
    assert logs <= {version.path for version in commit.superseded}
    assert all(version.bytes == (trips.base / version.path).stat().st_size for version in commit.superseded)
    assert FORMAT.committed(trips.ref, plan.plan_id) == commit
    with trips.writer() as writer:
        assert writer.delete(commit.superseded, ()).bytes_freed == sum(version.bytes for version in commit.superseded)
    assert set(trips.data_files()) == {output.path for output in commit.outputs}
    assert trips.rows() == rows
    trips.upsert(0, 120, 5, "id % 11 = 0 and id % 7 != 0")
    changed = [row for row in trips.rows() if row not in set(rows)]
    assert len(changed) == len([i for i in range(120) if i % 11 == 0 and i % 7 != 0])


def test_a_table_without_partitions_is_clustered(spark: Any, tmp_path: Path) -> None:
    small_files(spark, tmp_path / "flat", commits=2, rows_each=20, partitioned=False)
    flat = Table(spark, tmp_path / "flat")
    rows = flat.rows()
    commit = flat.run(flat.plan())
    assert flat.rows() == rows
    assert [output.partition for output in commit.outputs] == [""]


def test_sorted_groups_have_as_many_files_as_planned_each_with_its_own_range(table: NewTable) -> None:
    trips = table()
    rows = trips.rows()
    settings = {key: trips.spark.conf.get(key) for key in ("spark.sql.shuffle.partitions",)}
    commit = trips.run(trips.plan(partitions=["dt=2026-01-01"], outputs=3, sort_columns=("id",)))
    assert {key: trips.spark.conf.get(key) for key in settings} == settings
    ids = [pq.read_table(trips.base / output.path)["id"].to_pylist() for output in commit.outputs]
    assert len(ids) == 3
    assert all(part == sorted(part) for part in ids)
    ranges = sorted((part[0], part[-1]) for part in ids)
    assert all(low[1] < high[0] for low, high in itertools.pairwise(ranges))
    assert trips.rows() == rows


def test_a_group_that_went_stale_is_left_out_and_the_others_commit(table: NewTable) -> None:
    trips = table()
    plan = trips.plan()
    trips.upsert(0, 60, 9, "dt = '2026-01-01'")
    rows = trips.rows()
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        assert prepared.groups == (1,)
        assert [left.group for left in prepared.left_out] == [0]
        assert "has base file" in prepared.left_out[0].reason
        commit = writer.commit(writer.rewrite(prepared, ignore))
    assert {output.partition for output in commit.outputs} == {"dt=2026-01-02"}
    assert trips.rows() == rows


def _pending_commit(trips: Table, partition: str, operation: str = "UPSERT") -> None:
    """Leave the timeline as a writer does that is working on ``partition``."""
    directory = trips.base / ".hoodie/timeline"
    (directory / "29991231235959000.commit.requested").touch()
    stat = f'{{"fileId": "f", "path": null, "partitionPath": "{partition}"}}'
    (directory / "29991231235959000.inflight").write_text(
        f'{{"partitionToWriteStats": {{"{partition}": [{stat}]}}, "operationType": "{operation}"}}'
    )


def test_a_plan_waits_for_a_writer_that_is_inflight_on_its_partitions_only(
    table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "WRITER_WAIT", timedelta(seconds=1))
    trips = table()
    plan = trips.plan(partitions=["dt=2026-01-01"])
    _pending_commit(trips, "dt=2026-01-01")
    with trips.writer() as writer:
        with pytest.raises(Conflict, match=r"a writer is inflight \(commit 29991231235959000 on partition 'dt=2026"):
            writer.prepare(plan, 1)
        (trips.base / ".hoodie/timeline/29991231235959000.inflight").unlink()
        with pytest.raises(Conflict, match="partitions it does not name yet"):
            writer.prepare(plan, 1)
        _pending_commit(trips, "dt=2026-01-02")
        writer.prepare(plan, 1)
        assert writer.discard(plan.plan_id, None) == 1


def test_a_plan_takes_the_gap_that_a_writer_leaves(table: NewTable) -> None:
    trips = table()
    plan = trips.plan(partitions=["dt=2026-01-01"])
    _pending_commit(trips, "dt=2026-01-01")
    timeline = trips.base / ".hoodie/timeline"

    def end_the_write() -> None:
        (timeline / "29991231235959000.inflight").unlink()
        (timeline / "29991231235959000.commit.requested").unlink()

    writing = threading.Timer(1.5, end_the_write)
    writing.start()
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        assert not writing.is_alive()
        assert writer.discard(plan.plan_id, [prepared.instant]) == 1


def test_a_dead_writer_of_an_optimistic_table_does_not_hold_a_plan_up(
    table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "WRITER_WAIT", timedelta(seconds=1))
    trips = table(**QUICK_LOCK)
    rows = trips.rows()
    plan = trips.plan(partitions=["dt=2026-01-01"])
    _pending_commit(trips, "dt=2026-01-01")
    heartbeats = trips.base / ".hoodie/.heartbeat"
    heartbeats.mkdir(exist_ok=True)
    (heartbeats / "29991231235959000").touch()
    with trips.writer() as writer, pytest.raises(Conflict, match="a writer is inflight"):
        writer.prepare(plan, 1)
    (heartbeats / "29991231235959000").unlink()
    trips.run(plan)
    assert trips.rows() == rows
    assert trips.timeline().pending[0].time == "29991231235959000", "rolling it back is its owner's business"


def test_discard_with_instants_leaves_a_newer_instant_of_the_plan_alone(table: NewTable) -> None:
    trips = table()
    plan = trips.plan()
    with trips.writer() as fenced_out, trips.writer() as successor:
        old = fenced_out.prepare(plan, 1)
        assert successor.discard(plan.plan_id, None) == 1
        new = successor.prepare(plan, 2)
        assert fenced_out.discard(plan.plan_id, [old.instant]) == 0
        assert successor.discard(plan.plan_id, [new.instant]) == 1


@pytest.mark.parametrize("state", ["requested", "inflight", "written"])
def test_discard_leaves_no_file_and_no_instant(table: NewTable, state: str) -> None:
    trips = table()
    rows, files = trips.rows(), trips.data_files()
    plan = trips.plan()
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        if state == "inflight":
            assert writer._client is not None
            writer._client.worker.cluster(prepared.instant, False)
        if state == "written":
            assert writer.rewrite(prepared, ignore).outputs
            stray = trips.base / plan.groups[0].partition / f"stray-0_9-9-9_{prepared.instant}.parquet"
            stray.write_bytes(b"written by a task that outlived its job")
    instant = trips.timeline().find(prepared.instant)
    assert instant is not None
    assert instant.state == ("requested" if state == "requested" else "inflight")
    with trips.writer() as writer:
        assert writer.discard("another plan", [prepared.instant]) == 0
        assert trips.timeline().find(prepared.instant) is not None
        assert writer.discard(plan.plan_id, None) == 1
        assert writer.discard(plan.plan_id, [prepared.instant]) == 0
    assert trips.timeline().find(prepared.instant) is None
    assert trips.data_files() == files
    assert trips.temporary() == []
    assert trips.rows() == rows
    trips.run(plan)
    assert trips.rows() == rows


def test_cancel_from_another_thread_ends_the_rewrite_and_nothing_stays(table: NewTable) -> None:
    trips = table()
    files = trips.data_files()
    plan = trips.plan()
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)

        def report(_: Progress) -> None:
            thread = threading.Thread(target=writer.cancel)
            thread.start()
            thread.join()

        with pytest.raises(CancelRequested, match="cancelled during the rewrite"):
            writer.rewrite(prepared, report)
    with trips.writer() as writer:
        assert writer.discard(plan.plan_id, [prepared.instant]) == 1
    assert trips.data_files() == files


def test_a_truncated_input_is_named_and_quarantined_and_the_other_groups_commit(table: NewTable) -> None:
    trips = table()
    plan = trips.plan()
    victim = plan.groups[0].slices[1].path
    assert victim is not None
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        os.truncate(trips.base / victim, 1000)
        with pytest.raises(Conflict, match="can't be read") as caught:
            writer.rewrite(prepared, ignore)
        (left_out,) = caught.value.args[1]
        assert (left_out.group, left_out.quarantine) == (0, (victim,))
        assert victim in left_out.reason
        assert writer.discard(plan.plan_id, [prepared.instant]) == 1
    assert trips.files_of(prepared.instant) == set()
    commit = trips.run(trips.plan("second", partitions=[plan.groups[1].partition]))
    assert {output.partition for output in commit.outputs} == {plan.groups[1].partition}


def test_a_truncated_input_is_named_when_the_plan_is_published_and_the_other_groups_commit(table: NewTable) -> None:
    trips = table()
    plan = trips.plan()
    victim = plan.groups[0].slices[1].path
    assert victim is not None
    os.truncate(trips.base / victim, 1000)
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        (left_out,) = prepared.left_out
        assert (prepared.groups, left_out.group, left_out.quarantine) == ((1,), 0, ())
        assert left_out.reason.startswith(f"damaged: {victim} ")
        commit = writer.commit(writer.rewrite(prepared, ignore))
    assert {output.partition for output in commit.outputs} == {plan.groups[1].partition}


def test_a_damaged_page_in_the_middle_of_an_input_is_found_by_reading_it(table: NewTable) -> None:
    trips = table()
    plan = trips.plan()
    victim = plan.groups[1].slices[0].path
    assert victim is not None
    content = bytearray((trips.base / victim).read_bytes())
    column = pq.ParquetFile(trips.base / victim).metadata.row_group(0).column(5)
    start = column.dictionary_page_offset or column.data_page_offset
    content[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    (trips.base / victim).write_bytes(content)
    (trips.base / victim).with_name("." + Path(victim).name + ".crc").unlink()
    with trips.writer() as writer:
        with pytest.raises(Conflict) as caught:
            writer.rewrite(writer.prepare(plan, 1), ignore)
        assert [left.quarantine for left in caught.value.args[1]] == [(victim,)]
        writer.discard(plan.plan_id, None)


def test_an_input_deleted_underneath_is_named_but_not_quarantined(table: NewTable) -> None:
    trips = table()
    plan = trips.plan()
    victim = plan.groups[1].slices[0].path
    assert victim is not None
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        (trips.base / victim).unlink()
        with pytest.raises(Conflict, match="is gone from storage") as caught:
            writer.rewrite(prepared, ignore)
        (left_out,) = caught.value.args[1]
        assert (left_out.group, left_out.quarantine) == (1, ())
        assert writer.discard(plan.plan_id, [prepared.instant]) == 1


def _change_one_value(path: Path, column: str) -> None:
    table = pq.read_table(path)
    values = table[column].to_pylist()
    values[len(values) // 2] = values[0]
    position = table.schema.get_field_index(column)
    changed = table.set_column(
        position, table.schema.field(position), pa.array(values, table.schema.field(column).type)
    )
    pq.write_table(changed, path)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def _null_flipped(path: Path) -> None:
    table = pq.read_table(path)
    tips = table["tip"].to_pylist()
    gap = tips.index(None)
    tips[gap], tips[gap + 1] = tips[gap + 1], None
    position = table.schema.get_field_index("tip")
    pq.write_table(table.set_column(position, table.schema.field(position), pa.array(tips, pa.int32())), path)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize(("defect", "engine"), [("value", "spark"), ("null", "spark"), ("value", "stitch")])
def test_a_defect_in_a_new_file_is_caught_by_the_hash_before_the_commit(
    table: NewTable, defect: str, engine: str
) -> None:
    trips = table()
    rows = trips.rows()
    plan = trips.plan(partitions=["dt=2026-01-01"], receipt=ReceiptLevel.HASH, engine=engine)
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        path = trips.base / rewrite.outputs[0].path
        if defect == "value":
            _change_one_value(path, "fare")
        else:
            _null_flipped(path)
        with pytest.raises(Integrity, match="hash of" if defect == "value" else "values moved between rows|hash of"):
            prove(rewrite, writer=writer, volatile=FORMAT.volatile_columns)
        assert trips.rows() == rows
        assert FORMAT.committed(trips.ref, plan.plan_id) is None
        assert writer.discard(plan.plan_id, None) == 1
    assert trips.rows() == rows


def test_a_commit_that_landed_although_its_answer_was_lost_counts(
    table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    from py4j.protocol import Py4JNetworkError

    trips = table()
    rows = trips.rows()
    plan = trips.plan(partitions=["dt=2026-01-01"])
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        kind = type(bundle_of(trips.spark))
        call = kind.commit_clustering

        def lost(self: Bundle, *arguments: Any) -> None:
            call(self, *arguments)
            raise Py4JNetworkError("Answer from Java side is empty")

        monkeypatch.setattr(kind, "commit_clustering", lost)
        commit = writer.commit(rewrite)
    assert commit == FORMAT.committed(trips.ref, plan.plan_id)
    assert trips.rows() == rows


def test_a_commit_whose_end_nobody_saw_is_unknown(table: NewTable, monkeypatch: pytest.MonkeyPatch) -> None:
    from py4j.protocol import Py4JNetworkError

    trips = table()
    plan = trips.plan(partitions=["dt=2026-01-01"])

    def dead(self: Bundle, *arguments: Any) -> None:
        raise Py4JNetworkError("Answer from Java side is empty")

    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        monkeypatch.setattr(type(bundle_of(trips.spark)), "commit_clustering", dead)
        with pytest.raises(CommitUnknown, match="Java process ended while committing"):
            writer.commit(rewrite)
        monkeypatch.undo()
        assert writer.discard(plan.plan_id, None) == 1


def test_only_the_writer_that_wrote_the_files_can_commit_them(table: NewTable) -> None:
    trips = table()
    plan = trips.plan(partitions=["dt=2026-01-01"])
    with trips.writer() as first, trips.writer() as second:
        rewrite = first.rewrite(first.prepare(plan, 1), ignore)
        with pytest.raises(Rejected, match="not written by this process"):
            second.commit(rewrite)


def test_a_bundle_without_a_symbol_is_refused_by_its_name(spark: Any) -> None:
    with pytest.raises(
        Rejected, match=r"lacks what lakefold calls \(client.NoSuchClient, common.util.Option.gone\); set"
    ):
        probe(spark._jvm, {"client.NoSuchClient": ("a",)}, {"common.util.Option": ("of", "gone")})


def test_a_session_that_skips_corrupt_files_does_not_make_a_rewrite_skip_them(table: NewTable, spark: Any) -> None:
    trips = table()
    plan = trips.plan()
    victim = plan.groups[0].slices[1].path
    assert victim is not None
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        with trips.writer() as writer:
            prepared = writer.prepare(plan, 1)
            os.truncate(trips.base / victim, 1000)
            with pytest.raises(Conflict, match="can't be read"):
                writer.rewrite(prepared, ignore)
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")


@pytest.mark.parametrize(
    ("classes", "message", "before", "during"),
    [
        (["org.apache.hudi.exception.HoodieWriteConflictException"], "overlap", Conflict, Conflict),
        (["java.util.ConcurrentModificationException"], "overlap", Conflict, Conflict),
        (["org.apache.hudi.exception.HoodieValidationException"], "differs", Integrity, Integrity),
        (["java.io.IOException"], "No space left on device", Transient, CommitUnknown),
        (
            ["java.lang.IllegalStateException"],
            "Cannot call methods on a stopped SparkContext",
            Transient,
            CommitUnknown,
        ),
        (["java.lang.NullPointerException"], "x", Transient, CommitUnknown),
    ],
)
def test_java_causes_become_outcomes(
    table: NewTable, spark: Any, classes: list[str], message: str, before: type, during: type
) -> None:
    from py4j.protocol import Py4JJavaError

    cause = None
    for name in [*classes, "java.lang.RuntimeException"]:
        java_class = spark._jvm
        for part in name.split("."):
            java_class = getattr(java_class, part)
        cause = java_class(message) if cause is None else java_class("outer", cause)
    error = Py4JJavaError("An error occurred", cause)
    ref = table().ref
    for committing, expected in ((False, before), (True, during)):
        outcome = translate(error, ref, "testing", committing=committing)
        assert type(outcome) is expected
        assert message in str(outcome) or "Spark was stopped" in str(outcome)
        assert "\n" not in str(outcome)

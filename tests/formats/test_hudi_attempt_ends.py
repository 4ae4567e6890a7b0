# SPDX-License-Identifier: Apache-2.0
"""How an attempt ends that did not simply commit: withdrawn, cancelled, unknown, or with an error of Java's."""

import threading
from typing import Any

import pytest
from hudi_writing import FORMAT, NewTable, ignore

from lake.errors import CancelRequested, CommitUnknown, Conflict, Integrity, Transient
from lake.formats.hudi.jvm.bundle import Bundle, bundle_of
from lake.formats.hudi.jvm.errors import translate_error
from lake.formats.hudi.pending.late_files import _inflight_written_at, record_begin
from lake.plan import RewriteProgress

pytestmark = pytest.mark.spark


def test_discard_with_instants_leaves_a_newer_instant_of_the_plan_alone(table: NewTable) -> None:
    trips = table()
    plan = trips.plan()
    with trips.writer() as fenced_out, trips.writer() as successor:
        old = fenced_out.prepare(plan, 1)
        assert successor.withdraw(plan.plan_id, None) == 1
        new = successor.prepare(plan, 2)
        assert fenced_out.withdraw(plan.plan_id, [old.instant]) == 0
        assert successor.withdraw(plan.plan_id, [new.instant]) == 1


@pytest.mark.parametrize("state", ["inflight", "written"])
@pytest.mark.crossed
def test_discard_leaves_no_file_and_no_instant(table: NewTable, state: str) -> None:
    trips = table()
    rows, files = trips.rows(), trips.data_files()
    plan = trips.plan()
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        if state == "inflight":
            client = writer._client
            assert client is not None
            client.write_client.cluster(prepared.instant, False)
            written_at = _inflight_written_at(client.storage, client.read_timeline(), prepared.instant)
            record_begin(client.storage, prepared.instant, written_at)
        if state == "written":
            assert writer.rewrite(prepared, ignore).outputs
            stray = trips.base / plan.groups[0].partition / f"stray-0_9-9-9_{prepared.instant}.parquet"
            stray.write_bytes(b"written by a task that outlived its job")
    instant = trips.timeline().find(prepared.instant)
    assert instant is not None
    assert instant.state == "inflight"
    with trips.writer() as writer:
        assert writer.withdraw("another plan", [prepared.instant]) == 0
        assert trips.timeline().find(prepared.instant) is not None
        assert writer.withdraw(plan.plan_id, None) == 1
        assert writer.withdraw(plan.plan_id, [prepared.instant]) == 0
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

        def report(_: RewriteProgress) -> None:
            thread = threading.Thread(target=writer.cancel)
            thread.start()
            thread.join()

        with pytest.raises(CancelRequested, match="cancelled during the rewrite"):
            writer.rewrite(prepared, report)
    with trips.writer() as writer:
        assert writer.withdraw(plan.plan_id, [prepared.instant]) == 1
    assert trips.data_files() == files


def test_a_commit_with_a_lost_answer_counts(table: NewTable, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert commit == FORMAT.find_commit(trips.ref, plan.plan_id)
    assert trips.rows() == rows


def test_a_commit_without_an_answer_is_unknown(table: NewTable, monkeypatch: pytest.MonkeyPatch) -> None:
    from py4j.protocol import Py4JNetworkError

    trips = table()
    plan = trips.plan(partitions=["dt=2026-01-01"])

    def dead(self: Bundle, *arguments: Any) -> None:
        raise Py4JNetworkError("Answer from Java side is empty")

    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        monkeypatch.setattr(type(bundle_of(trips.spark)), "commit_clustering", dead)
        with pytest.raises(CommitUnknown, match="Java process did not answer while committing"):
            writer.commit(rewrite)
        monkeypatch.undo()
        assert writer.withdraw(plan.plan_id, None) == 1


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
        outcome = translate_error(error, ref, "testing", committing=committing)
        assert type(outcome) is expected
        assert message in str(outcome) or "Spark was stopped" in str(outcome)
        assert "\n" not in str(outcome)

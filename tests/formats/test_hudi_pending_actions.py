# SPDX-License-Identifier: Apache-2.0
"""Which pending actions of others lakefold waits for before it changes a Hudi table; tables made by hand, no JVM."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import fastavro
import pytest
from hudi_by_hand import T1, T2, T3, T4, ByHand, without_java

from lake.errors import Transient
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.plans.preconditions import (
    OwnInstant,
    check_preconditions,
    unchanged_instant_check,
    unchanged_timeline_check,
)
from lake.formats.hudi.timeline.timeline import Timeline

ROLLBACK = {
    "type": "record",
    "name": "rollback",
    "fields": [
        {
            "name": "instantToRollback",
            "type": {
                "type": "record",
                "name": "target",
                "fields": [{"name": "commitTime", "type": "string"}, {"name": "action", "type": "string"}],
            },
        },
        {
            "name": "RollbackRequests",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "request",
                    "fields": [
                        {"name": "partitionPath", "type": "string"},
                        {"name": "filesToBeDeleted", "type": {"type": "array", "items": "string"}},
                    ],
                },
            },
            "default": [],
        },
    ],
}


@pytest.fixture
def table(tmp_path: Path) -> ByHand:
    made = ByHand(tmp_path / "t")
    made.complete(T1, "commit", made.base_file(T1))
    return made


def request(table: ByHand, kind: str, time: str = T4) -> None:
    (table.base / f".hoodie/{time}.{kind}.requested").touch()


def request_rollback(table: ByHand, target: str, deleted: Sequence[str] = ()) -> None:
    """A pending rollback, which deletes files of partition ``p``."""
    buffer = io.BytesIO()
    requests = [{"partitionPath": "p", "filesToBeDeleted": [f"file:{table.base}/p/{name}" for name in deleted]}]
    record = {"instantToRollback": {"commitTime": target, "action": "commit"}, "RollbackRequests": requests}
    fastavro.writer(buffer, fastavro.parse_schema(ROLLBACK), [record])
    (table.base / f".hoodie/{T4}.rollback.requested").write_bytes(buffer.getvalue())


def timeline(table: ByHand) -> Timeline:
    return Timeline(TableStorage(str(table.base)))


@pytest.mark.parametrize(
    ("pending", "why", "withdrawal_goes_on"),
    [
        (lambda table: request(table, "restore"), "restores the table to an earlier state", False),
        (lambda table: request(table, "savepoint"), "is about to name the files to keep", True),
        (lambda table: request_rollback(table, T1), f"rolls back the completed commit {T1}", False),
        (lambda table: request_rollback(table, T3), f"rolls back {T3}, the instant of this plan", True),
        (lambda table: request(table, "rollback"), "does not name its target yet", True),
    ],
    ids=["restore", "savepoint", "rollback of a commit", "rollback of the plan", "rollback without a plan"],
)
def test_an_action_that_excludes_a_commit_is_waited_for(
    table: ByHand, pending: Callable[[ByHand], None], why: str, withdrawal_goes_on: bool
) -> None:
    pending(table)
    client = without_java(table)
    with pytest.raises(Transient, match=rf"committing waits for the pending .* {T4}, which {why}"):
        check_preconditions(client, "committing", own=OwnInstant(time=T3, is_pending=True))
    if withdrawal_goes_on:
        check_preconditions(client, "withdrawing a plan", is_withdrawal=True)
    else:
        with pytest.raises(Transient, match=rf"withdrawing a plan waits for the pending .* {T4}, which {why}"):
            check_preconditions(client, "withdrawing a plan", is_withdrawal=True)


@pytest.mark.parametrize(
    ("kind", "is_completed", "remedy"),
    [
        ("deltacommit", True, "the next write of the table's writer finishes it"),
        ("compaction", False, f"the next execution of compaction {T3} finishes it, .* lakefold tables rollback t {T3}"),
        ("compaction", True, f"roll compaction {T3} back .*rollback_to_instant.* instant_time => '{T3}'"),
    ],
)
def test_a_pending_rollback_is_finished_by_the_commands_that_hudi_accepts(
    table: ByHand, kind: str, is_completed: bool, remedy: str
) -> None:
    """A write finishes a dead writer's rollback, but skips those of compactions and clusterings."""
    if kind == "compaction":
        table.request_compaction(T3, table.base_file(T1), [])
    if is_completed:
        table.complete(T3, "commit" if kind == "compaction" else kind)
    request_rollback(table, T3)
    own = OwnInstant(time=T3, is_pending=True)
    with pytest.raises(Transient, match=rf"rollback {T4}, which rolls back .*If its process died, {remedy}"):
        check_preconditions(without_java(table), "committing", own=own)


def test_a_rollback_that_deletes_an_input_is_waited_for_although_its_target_is_gone(table: ByHand) -> None:
    request_rollback(table, T2, deleted=[table.log_file(T1, 2)])
    log = OwnInstant(time=T3, inputs=["p/.f-0_20260101000001000.log.2_0-1-1"])
    with pytest.raises(Transient, match=rf"which rolls back {T2} and with it rows of p/\.f-0_{T1}\.log\.2_0-1-1"):
        check_preconditions(without_java(table), "committing", own=log)


def test_no_row_of_a_file_is_copied_whose_writer_has_not_committed(table: ByHand) -> None:
    """Hudi's readers read it if its writer, which was killed, is older than all commits; plans of writers name it."""
    request(table, "commit", T2)
    own = OwnInstant(time=T3, inputs=[f"p/{table.base_file(T1)}", f"p/{table.base_file(T2)}"])
    why = (
        rf"commit {T2}, which has written p/f-0_0-1-1_{T2}\.parquet, .* lakefold tables rollback t {T2}, rolls it back"
    )
    with pytest.raises(Transient, match=why):
        check_preconditions(without_java(table), "committing", own=own)


@pytest.mark.parametrize(
    "pending",
    [
        lambda table: request(table, "clean"),
        lambda table: request(table, "deltacommit"),
        lambda table: request_rollback(table, T2),
    ],
    ids=["clean", "write", "rollback of a write that died"],
)
def test_no_plan_waits_for_a_pending_action_that_does_not_affect_it(
    table: ByHand, pending: Callable[[ByHand], None]
) -> None:
    request(table, "deltacommit", T2)
    pending(table)
    assert (
        check_preconditions(without_java(table), "committing", own=OwnInstant(time=T3, is_pending=True)).instants
        == timeline(table).instants
    )


def test_changes_during_the_check_of_the_plans_owner_are_checked_again(table: ByHand) -> None:
    with pytest.raises(Transient, match=r"waits for the pending restore"):
        check_preconditions(without_java(table), "committing", fence=lambda: request(table, "restore"))


def test_a_table_whose_timeline_keeps_changing_is_tried_again_later(table: ByHand) -> None:
    times = iter(range(int(T2), int(T3)))

    def write() -> None:
        request(table, "deltacommit", str(next(times)))

    with pytest.raises(Transient, match="timeline changed 5 times while committing"):
        check_preconditions(without_java(table), "committing", fence=write)


def test_nothing_is_done_by_a_timeline_on_which_something_completed_or_was_scheduled_since(table: ByHand) -> None:
    seen = timeline(table)
    check = unchanged_timeline_check(without_java(table), seen, "cleaning")
    request(table, "deltacommit", T2)
    check(timeline(table))
    table.request_compaction(T3, table.base_file(T1), [])
    with pytest.raises(Transient, match=f"compaction {T3} was scheduled while cleaning"):
        check(timeline(table))
    table.complete(T2, "deltacommit")
    with pytest.raises(Transient, match=f"deltacommit {T2} completed while cleaning"):
        check(timeline(table))


def test_nothing_is_withdrawn_that_is_not_as_it_was_seen(table: ByHand) -> None:
    table.request_compaction(T3, table.base_file(T1), [])
    instant = timeline(table).find(T3)
    assert instant is not None
    check = unchanged_instant_check(without_java(table), instant, "withdrawing a plan")
    check(timeline(table))
    inflight = table.base / f".hoodie/{T3}.compaction.inflight"
    inflight.touch()
    with pytest.raises(
        Transient, match=f"compaction {T3} was set to inflight by another process while withdrawing a plan"
    ):
        check(timeline(table))
    table.complete(T3, "commit")
    with pytest.raises(Transient, match=f"compaction {T3} was completed by another process while withdrawing a plan"):
        check(timeline(table))
    for path in (table.base / ".hoodie").glob(f"{T3}.*"):
        path.unlink()
    with pytest.raises(Transient, match=f"compaction {T3} was withdrawn by another process while withdrawing a plan"):
        check(timeline(table))

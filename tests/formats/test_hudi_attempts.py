# SPDX-License-Identifier: Apache-2.0
"""The files that say who works on a pending instant, and what is read from them without a JVM."""

import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import fastavro
import pytest
from hudi_by_hand import OPERATIONS, T1, T2, T3, T4, T5, ByHand, without_java
from hudi_templates import ref

from lake.capabilities import PendingAction
from lake.errors import Conflict, Transient
from lake.formats.hudi import FORMAT
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.pending.actions import plan_groups
from lake.formats.hudi.pending.attempt_files import (
    DIRECTORY,
    RunningAttempt,
    delete_ended_attempts,
    list_attempts,
    refuse_live_attempts,
)
from lake.formats.hudi.plans import adoption, compaction
from lake.formats.hudi.plans.withdrawal import withdraw_plan
from lake.formats.hudi.timeline.timeline import PLAN_KEY, Timeline
from lake.formats.hudi.writer import HudiWriter
from lake.plan import Plan, PlanKind, RewriteOptions, StagedWork
from lake.ports import PreparedPlan
from lake.process_identity import Process


@pytest.fixture
def table(tmp_path: Path) -> ByHand:
    """A slice with a base file and a log, a pending compaction of it, and a log named after that."""
    made = ByHand(tmp_path / "t")
    base = made.base_file(T1)
    made.complete(T1, "commit", base)
    log = made.log_file(T1, 1)
    made.complete(T2, "deltacommit", log)
    made.request_compaction(T3, base, [log])
    return made


PID = SimpleNamespace(pid=os.getpid)


def begin(
    table: ByHand, plan_id: str = "p", *, process: Process | None = None, epoch: int = 1, instant: str = T3
) -> RunningAttempt:
    storage = TableStorage(str(table.base))
    return RunningAttempt(storage, Timeline(storage), instant, plan_id, epoch, process or Process.of(os.getpid()))


def of_a_dead_process() -> Process:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        process = Process.of(other.pid)
        assert process is not None
        other.kill()
    return process


def test_attempts_at_one_instant_take_turns_and_the_last_one_owns_the_work(table: ByHand) -> None:
    storage = TableStorage(str(table.base))
    first = begin(table)
    assert not first.is_superseded()
    second = begin(table, "adopter")
    assert (first.is_superseded(), second.is_superseded()) == (True, False)
    assert [signed.attempt for signed in list_attempts(storage)[T3]] == [first.attempt, second.attempt]
    with pytest.raises(Transient, match=r"may still be writing \(process \d+ of host"):
        refuse_live_attempts(storage, "t", T3)
    for attempt in (second, first, first):
        attempt.end()
    assert list_attempts(storage) == {}
    refuse_live_attempts(storage, "t", T3)


def test_an_attempt_is_over_when_its_process_has_ended_or_after_half_an_hour_of_silence(table: ByHand) -> None:
    storage = TableStorage(str(table.base))
    begin(table, process=of_a_dead_process())
    begin(table)
    dead, living = list_attempts(storage)[T3]
    assert (dead.is_alive, living.is_alive) == (False, True)
    delete_ended_attempts(storage, T3)
    (left,) = list_attempts(storage)[T3]
    assert left.path == living.path
    os.utime(table.base / left.path, (1e9, 1e9))
    refuse_live_attempts(storage, "t", T3)
    delete_ended_attempts(storage, T3)
    assert list((table.base / DIRECTORY).iterdir()) == []


def test_an_attempt_whose_first_sign_is_reported_as_not_written_leaves_none_behind(
    table: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, write, before = TableStorage(str(table.base)), TableStorage.write, set(threading.enumerate())

    def write_and_hear_no_answer(storage: TableStorage, relative: str, content: bytes) -> None:
        write(storage, relative, content)
        raise Transient("no answer")

    monkeypatch.setattr(TableStorage, "write", write_and_hear_no_answer)
    with pytest.raises(Transient, match="no answer"):
        begin(table)
    assert list_attempts(storage) == {}
    assert set(threading.enumerate()) <= before, "no thread renews it"


def test_a_torn_file_is_ignored_and_a_dropped_table_stays_dropped(table: ByHand) -> None:
    storage = TableStorage(str(table.base))
    attempt = begin(table)
    (path,) = (table.base / DIRECTORY).iterdir()
    path.write_text("{")
    assert list_attempts(storage) == {}
    attempt.end()
    gone = TableStorage(str(table.base / "gone"))
    with pytest.raises((FileNotFoundError, Transient)):
        gone.write(f"{DIRECTORY}/x.json", b"")
    assert not (table.base / "gone").exists()


def test_a_request_that_logs_are_named_after_stays_and_is_the_adopters_while_it_works(table: ByHand) -> None:
    requested = table.base / f".hoodie/{T3}.compaction.requested"
    stamp(requested, "0198-ended")

    def look() -> PendingAction:
        (entry,) = FORMAT.pending_actions(ref(table.base))
        assert FORMAT.pending_instants(ref(table.base)) == {T3: entry.plan_id}
        return entry

    assert (look().plan_id, look().must_execute, look().is_alive) == ("0198-ended", False, True)
    table.log_file(T3, 1)
    assert look().must_execute
    os.utime(requested, (1e9, 1e9))
    assert not look().is_alive
    adopter = begin(table, "0198-adopter")
    assert (look().plan_id, look().is_alive) == ("0198-adopter", True)
    adopter.end()
    assert (look().plan_id, look().is_alive) == ("0198-ended", False)


def test_a_commit_belongs_to_the_plan_that_made_it_and_not_to_the_one_whose_request_it_executed(
    table: ByHand,
) -> None:
    stamp(table.base / f".hoodie/{T3}.compaction.requested", "0198-ended")
    table.complete(T3, "commit", table.base_file(T3))
    assert FORMAT.recent_commits(ref(table.base), {"0198-ended", "0198-adopter"}).keys() == {"0198-ended"}
    other = ByHand(table.base.parent / "other")
    base = other.base_file(T1)
    other.complete(T1, "commit", base)
    other.request_compaction(T3, base, [])
    stamp(other.base / f".hoodie/{T3}.compaction.requested", "0198-ended")
    other.complete(T3, "commit", other.base_file(T3))
    committed = other.base / f".hoodie/{T3}.commit"
    record = json.loads(committed.read_text())
    record["extraMetadata"][PLAN_KEY] = "0198-adopter"
    committed.write_text(json.dumps(record))
    assert FORMAT.recent_commits(ref(other.base), {"0198-ended", "0198-adopter"}).keys() == {"0198-adopter"}
    assert FORMAT.find_commit(ref(other.base), "0198-ended") is None


def stamp(requested: Path, plan_id: str) -> None:
    """Make a pending compaction one of the plan ``plan_id``."""
    (record,) = fastavro.reader(io.BytesIO(requested.read_bytes()))
    extra = {"name": "extraMetadata", "type": {"type": "map", "values": "string"}}
    schema = fastavro.parse_schema({**OPERATIONS, "fields": [*OPERATIONS["fields"], extra]})
    buffer = io.BytesIO()
    fastavro.writer(buffer, schema, [{**dict(record), "extraMetadata": {PLAN_KEY: plan_id}}])  # type: ignore[call-overload]
    requested.write_bytes(buffer.getvalue())


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_request_that_stayed_is_refused_before_the_rewrite_if_a_writer_did_not_see_it(
    table: ByHand, is_seen: bool
) -> None:
    """Two writers have committed logs since; the second one has seen the compaction, and the first one perhaps."""
    stamp(table.base / f".hoodie/{T3}.compaction.requested", "p")
    table.complete(T4, "deltacommit", table.log_file(T3, 1) if is_seen else table.log_file(T1, 2))
    table.complete(T5, "deltacommit", table.log_file(T3, 2))
    ((_, record),) = Timeline(TableStorage(str(table.base))).pending_plans()
    groups = tuple(plan_groups(TableStorage(str(table.base)), record))
    plan = Plan(
        plan_id="p",
        table=ref(table.base),
        kind=PlanKind.COMPACTION,
        groups=groups,
        options=RewriteOptions(target_file_max_bytes=1),
        snapshot_instant=T2,
    )
    client, chosen = without_java(table), list[str]()

    def publish() -> PreparedPlan:
        return compaction.publish_compaction(client, client.read_timeline(), plan, 2, chosen.append)

    if is_seen:
        assert (publish().instant, chosen) == (T3, [T3])
        return
    with pytest.raises(Conflict, match=rf"_{T1}\.log\.2_0-1-1 is not in compaction {T3} .* its writer did not see the"):
        publish()
    assert withdraw_plan(client, "p", None) == 0
    assert client.read_timeline().find(T3) is not None, "a log is named after it"
    (table.base / "p" / f".f-0_{T3}.log.2_0-1-1").unlink()
    assert withdraw_plan(client, "p", None) == 1
    assert client.read_timeline().find(T3) is None


def test_an_executor_suspended_during_its_withdrawal_leaves_its_successors_work_alone(
    table: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamp(table.base / f".hoodie/{T3}.compaction.requested", "p")
    withdrawn: list[str] = []
    monkeypatch.setattr(compaction, "withdraw_compaction", lambda _, instant, __: not withdrawn.append(instant.time))
    monkeypatch.setattr(adoption, "roll_back_rewrite", lambda *_: withdrawn.append("rolled back"))
    successor = begin(table, epoch=3)
    assert withdraw_plan(without_java(table), "p", None, epoch=1) == 0
    assert adoption.abort_adopted(without_java(table), T3, "p", epoch=1) == 0
    assert withdrawn == []
    assert withdraw_plan(without_java(table), "p", None, epoch=3) == 1
    assert withdraw_plan(without_java(table), "p", [T3]) == 1, "the sweep has no epoch"
    successor.end()
    begin(table, process=of_a_dead_process(), epoch=3)
    assert withdraw_plan(without_java(table), "p", None, epoch=1) == 1, "who is dead works on nothing"
    assert withdrawn == [T3] * 3


def test_an_attempt_that_wrongly_counted_as_ended_does_not_roll_back_the_next_one(table: ByHand) -> None:
    asleep = begin(table)
    for path in (table.base / DIRECTORY).iterdir():
        os.utime(path, (1e9, 1e9))
    delete_ended_attempts(TableStorage(str(table.base)), T3)
    assert asleep.is_superseded()
    successor = begin(table, epoch=2)
    assert (asleep.attempt.turn, successor.attempt.turn) == (1, 1)
    assert (asleep.is_superseded(), successor.is_superseded()) == (True, False)


def test_the_attempt_at_an_adopted_plan_is_opened_once_for_any_number_of_timeline_changes(table: ByHand) -> None:
    (entry,) = FORMAT.pending_actions(table.ref)
    plan = Plan(
        plan_id="0198-adopter",
        table=table.ref,
        kind=PlanKind.COMPACTION,
        groups=entry.groups,
        options=RewriteOptions(target_file_max_bytes=1 << 30),
        snapshot_instant=T2,
        adopted_instant=T3,
    )
    storage, looks, running = TableStorage(str(table.base)), list[StagedWork](), threading.active_count()
    client = without_java(table)
    client.jvm = SimpleNamespace(
        java=SimpleNamespace(lang=SimpleNamespace(ProcessHandle=SimpleNamespace(current=lambda: PID)))
    )
    client.plan, client.engine = plan, "Hudi's own"
    client.begin_rewrite = lambda kind, instant: (kind, instant)
    client.run_when_idle, client.close = lambda end: end(), lambda: None

    def write_meanwhile(staged: StagedWork) -> None:
        looks.append(staged)
        if len(looks) in (1, 2):
            (table.base / f".hoodie/2026010200000{len(looks)}000.deltacommit.requested").touch()

    for epoch in (1, 2):
        with HudiWriter(table.ref, lambda: None) as writer:
            writer._client, writer.journal = client, write_meanwhile
            assert writer.prepare(plan, epoch).instant == T3
            (signed,) = list_attempts(storage)[T3]
            assert (signed.attempt.epoch, signed.attempt.turn) == (epoch, 1)
        assert list_attempts(storage) == {}
        assert threading.active_count() == running, "nothing renews an attempt that has ended"
    assert len(looks) == 4, "the first look was taken three times"

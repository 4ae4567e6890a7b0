# SPDX-License-Identifier: Apache-2.0
"""Files that appear under an instant of lakefold's when that is over: which they are, how long they are looked for."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Timer

import pytest
from hudi_by_hand import T2, T3, T4, T5, ByHand, without_java
from hudi_templates import ref

from lake.errors import Transient
from lake.formats.hudi import FORMAT
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.pending import late_files
from lake.formats.hudi.pending.actions import is_executed_by_writer
from lake.formats.hudi.pending.late_files import (
    is_begun_by_writer,
    read_instant_record,
    record_begin,
    record_beginning,
    record_commit,
    record_instant,
    record_path,
    record_withdrawal,
)
from lake.formats.hudi.pending.request_copies import copy_request, write_back_requests
from lake.formats.hudi.pending.rollback_guard import write_rollback_guard
from lake.formats.hudi.plans import compaction
from lake.formats.hudi.plans.adoption import abort_adopted
from lake.formats.hudi.plans.inflight_writers import publication_check
from lake.formats.hudi.plans.publication import publish_plan
from lake.formats.hudi.plans.withdrawal import remove_late_files, withdraw_instant, withdraw_plan
from lake.formats.hudi.timeline.archive import ArchivedInstant
from lake.formats.hudi.timeline.clocks import MAX_SKEW
from lake.formats.hudi.timeline.timeline import Instant, Timeline
from lake.plan import STAGED_WATCH_PERIOD, ClusteringGroup, Plan, PlanKind, RewriteOptions
from lake.ports import PreparedPlan

#: between ``T4`` and ``T5``
AFTER = "20260101000004500"


@pytest.fixture
def table(tmp_path: Path) -> ByHand:
    """A commit of two file groups, after which an instant of lakefold's has come and gone."""
    made = ByHand(tmp_path / "t")
    made.complete(T2, "commit", made.base_file(T2), made.base_file(T2, "p/f-9"))
    noted(made, T4)
    return made


def noted(table: ByHand, instant: str) -> None:
    storage = TableStorage(str(table.base))
    record_instant(storage, Timeline(storage), instant, ["p", "q"])


def aged(table: ByHand, instant: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(table.base / record_path(instant), (then, then))


def files(table: ByHand) -> set[str]:
    return {path.name for path in table.base.rglob("*.parquet")}


def found(table: ByHand) -> list[str]:
    return list(FORMAT.instants_with_stragglers(ref(table.base)))


def test_files_written_after_a_withdrawal_are_found_and_deleted_with_their_markers(table: ByHand) -> None:
    before = files(table)
    assert found(table) == []
    aged(table, T4, 60)
    late_one = table.base_file(T4, "p/f-1")
    markers = table.base / f".hoodie/.temp/{T4}/p"
    markers.mkdir(parents=True)
    (markers / f"{late_one}.marker.CREATE").touch()
    assert found(table) == found(table) == [T4], "looked for until it is gone"
    assert remove_late_files(without_java(table), [T4]) == [f"p/{late_one}"]
    assert (files(table), markers.parent.exists(), found(table)) == (before, False, [])


def test_files_of_a_pending_or_unknown_instant_are_left_alone(table: ByHand) -> None:
    noted(table, T3)
    table.request_compaction(T3, table.base_file(T2), [])
    table.base_file(T3)
    table.base_file(T5, "p/f-5")  # of a writer whose commit is still to come
    before = files(table)
    assert found(table) == []
    assert remove_late_files(without_java(table), [T2, T3, T5]) == []
    assert files(table) == before


@pytest.mark.parametrize("begun_by", ["writer", "lakefold"])
def test_of_an_instant_that_a_writer_took_over_only_files_from_before_its_begin_are_deleted(
    table: ByHand, begun_by: str
) -> None:
    noted(table, T3)
    table.request_compaction(T3, table.base_file(T2), [])
    inflight = table.base / f".hoodie/{T3}.compaction.inflight"
    inflight.touch()
    began = inflight.stat().st_mtime
    names = [table.base_file(T3, f"p/f-{number}") for number in range(6)]
    # The second file and the third, which have markers, and the fourth were written by a host whose clock is behind.
    for name, seconds in zip(names, (-10, -10, -10, -3, 0, 1), strict=True):
        os.utime(table.base / "p" / name, (began + seconds, began + seconds))
    markers = table.base / f".hoodie/.temp/{T3}/p/{names[1]}.marker.MERGE"
    markers.parent.mkdir(parents=True)
    markers.touch()
    (markers.parents[1] / "MARKERS0").write_text(f"p/f-x.parquet.marker.CREATE\np/{names[2]}.marker.CREATE\n")
    before, storage = files(table), TableStorage(str(table.base))
    if begun_by == "lakefold":
        record_begin(storage, T3, late_files._inflight_written_at(storage, Timeline(storage), T3))
        assert found(table) == []
        return
    apart = replace(ref(table.base), write_options={MAX_SKEW: "15000"})
    assert FORMAT.instants_with_stragglers(apart) == [], "the clocks of the table's writers may differ by more"
    assert found(table) == [T3]
    assert remove_late_files(without_java(table), [T3]) == [f"p/{names[0]}"]
    assert (files(table), markers.exists(), found(table)) == (before - {names[0]}, True, [])


@pytest.mark.parametrize("archived", [False, True])
def test_only_files_that_its_commit_does_not_name_are_deleted_of_a_completed_instant(
    table: ByHand, monkeypatch: pytest.MonkeyPatch, archived: bool
) -> None:
    named, doubled = table.base_file(T4, "p/f-1"), table.base_file(T4, "p/f-2")
    table.complete(T4, "replacecommit", named)
    if archived:
        timeline = Timeline(TableStorage(str(table.base)))
        completed = timeline.find(T4)
        assert completed is not None
        record = timeline.metadata(completed)
        (table.base / f".hoodie/{T4}.replacecommit").unlink()
        row = ArchivedInstant(time=T4, completed_at=T4, action="replacecommit", plan=None, metadata=record)
        monkeypatch.setattr(Timeline, "archived", lambda *_, **wanted: iter([row]))
    assert found(table) == [T4]
    assert remove_late_files(without_java(table), [T4]) == [f"p/{doubled}"]
    assert named in files(table)


@pytest.mark.parametrize("pending", [False, True])
def test_no_file_of_an_instant_is_deleted_because_a_clean_of_a_writer_has_the_same_time(
    table: ByHand, pending: bool
) -> None:
    """Writers before Hudi 1.0 choose the times of their instants without the table's lock."""
    named = table.base_file(T4, "p/f-1")
    if pending:
        table.request_compaction(T4, table.base_file(T2), [])
        (table.base / f".hoodie/{T4}.compaction.inflight").touch()
    else:
        table.complete(T4, "replacecommit", named)
        record_commit(TableStorage(str(table.base)), T4)
    table.complete(T4, "clean")
    assert found(table) == []
    assert remove_late_files(without_java(table), [T4]) == []
    assert named in files(table)


@pytest.mark.parametrize("archived", [False, True])
def test_no_file_is_deleted_if_a_commit_of_a_writer_has_the_same_time(
    table: ByHand, monkeypatch: pytest.MonkeyPatch, archived: bool
) -> None:
    ours, theirs = table.base_file(T4, "p/f-1"), table.base_file(T4, "p/f-2")
    table.complete(T4, "replacecommit", ours)
    table.complete(T4, "commit", theirs)
    if archived:
        timeline = Timeline(TableStorage(str(table.base)))
        rows = [
            ArchivedInstant(
                time=T4, completed_at=T4, action=one.action, plan=None, metadata=timeline.commit_metadata(one)
            )
            for one in timeline.commits
            if one.time == T4
        ]
        for one in timeline.commits:
            if one.time == T4:
                (table.base / f".hoodie/{one.completed_file}").unlink()
        monkeypatch.setattr(Timeline, "archived", lambda *_, **__: iter(rows))
    assert found(table) == []
    assert remove_late_files(without_java(table), [T4]) == []
    assert {ours, theirs} <= files(table)


def test_the_withdrawal_of_a_request_deletes_no_file_of_a_write_with_the_same_time(table: ByHand) -> None:
    noted(table, T3)
    table.request_compaction(T3, table.base_file(T2), [])
    pending = Timeline(TableStorage(str(table.base))).find(T3)
    assert pending is not None
    (table.base / f".hoodie/{T3}.deltacommit.inflight").touch()
    theirs = table.base_file(T3, "p/f-1")
    withdraw_instant(without_java(table), pending, ["p"])
    assert theirs in files(table)


def begin_compaction(table: ByHand) -> Instant:
    noted(table, T3)
    table.request_compaction(T3, table.base_file(T2), [])
    (table.base / f".hoodie/{T3}.compaction.inflight").touch()
    storage = TableStorage(str(table.base))
    record_begin(storage, T3, late_files._inflight_written_at(storage, Timeline(storage), T3))
    begun = Timeline(storage).find(T3)
    assert begun is not None
    return begun


@pytest.mark.parametrize("undo", ["withdrawal", "rollback of an adopted plan"])
def test_begun_work_is_undone_without_hudi_beside_a_write_that_was_committed_with_the_same_time(
    table: ByHand, undo: str
) -> None:
    begun = begin_compaction(table)
    ours, theirs = table.base_file(T3, "p/f-0"), table.base_file(T3, "p/f-1")
    table.complete(T3, "deltacommit", theirs)
    if undo == "withdrawal":
        assert withdraw_instant(without_java(table), begun, ["p"])
    else:
        assert abort_adopted(without_java(table), T3) == 1
    left = {path.name for path in (table.base / ".hoodie").glob(f"{T3}*")}
    requests = {f"{T3}.compaction.requested"} if undo != "withdrawal" else set()
    assert left == {f"{T3}.deltacommit"} | requests
    assert theirs in files(table)
    assert ours not in files(table)


@pytest.mark.parametrize("undo", ["withdrawal", "rollback of an adopted plan"])
def test_begun_work_stays_until_the_end_of_a_write_with_the_same_time(table: ByHand, undo: str) -> None:
    begun = begin_compaction(table)
    (table.base / f".hoodie/{T3}.deltacommit.inflight").touch()
    before = files(table) | {table.base_file(T3, "p/f-0"), table.base_file(T3, "p/f-1")}
    waits = rf"waits for the end of deltacommit {T3}, which has the same time to the millisecond"
    client = without_java(table)
    with pytest.raises(Transient, match=waits):
        _ = withdraw_instant(client, begun, ["p"]) if undo == "withdrawal" else abort_adopted(client, T3)
    assert files(table) == before
    assert Timeline(TableStorage(str(table.base))).find(T3, action="commit") == begun


def test_the_markers_of_a_write_with_the_time_of_a_completed_plan_stay_until_it_ends(table: ByHand) -> None:
    table.complete(T4, "commit", table.base_file(T4, "p/f-1"))
    inflight = table.base / f".hoodie/{T4}.deltacommit.inflight"
    inflight.touch()
    marker = table.base / f".hoodie/.temp/{T4}/p/f-2.marker.CREATE"
    marker.parent.mkdir(parents=True)
    marker.touch()
    assert remove_late_files(without_java(table), [T4]) == []
    assert marker.exists()
    inflight.unlink()
    assert remove_late_files(without_java(table), [T4]) == []
    assert not marker.exists()


@pytest.mark.parametrize("marked", [False, True])
def test_the_rollback_guard_of_a_completed_instant_stays_when_its_late_markers_are_deleted(
    table: ByHand, marked: bool
) -> None:
    table.complete(T4, "replacecommit", table.base_file(T4, "p/f-1"))
    storage = TableStorage(str(table.base))
    record_commit(storage, T4)
    write_rollback_guard(storage, T4)
    guard = table.base / f".hoodie/.temp/{T4}/MARKERS.type"
    content = guard.read_bytes()
    marker = guard.parent / "p/f-2.marker.CREATE"
    if marked:
        marker.parent.mkdir()
        marker.touch()
    assert found(table) == ([T4] if marked else [])
    client = without_java(table)
    client.optimistic = client.has_metadata_table = True
    assert remove_late_files(client, [T4]) == []
    assert (guard.read_bytes(), marker.exists(), found(table)) == (content, False, [])


@pytest.mark.parametrize("why", ["committed", "archive lost", "too old", "empty commit", "savepoint"])
def test_nothing_is_deleted_if_its_owner_is_unknown(table: ByHand, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    storage = TableStorage(str(table.base))
    name = table.base_file(T4, "p/f-1")
    if why == "committed":  # and archived since, and the archived timeline was lost
        record_commit(storage, T4)
    elif why == "archive lost":  # and no lakefold has seen the commit, which a writer made
        (table.base / f".hoodie/{T2}.commit").unlink()
        table.complete(T5, "commit", table.base_file(T5, "p/f-5"))
        assert name in {str(entry["path"]).rpartition("/")[2] for entry in table.slices()}, "it counts as archived"
    elif why == "too old":
        rows = [ArchivedInstant(time=T5, completed_at=T5, action="commit", plan=None, metadata=None)]
        monkeypatch.setattr(Timeline, "archived", lambda *_, times=None, **__: iter([] if times is not None else rows))
    elif why == "empty commit":
        (table.base / f".hoodie/{T4}.replacecommit").touch()
    else:
        monkeypatch.setattr(Timeline, "savepoints", lambda _: {T2: frozenset({f"p/{name}"})})
    if why == "empty commit":
        with pytest.raises(Transient, match="is empty: the files that"):
            found(table)
    else:
        assert found(table) == []
        assert remove_late_files(without_java(table), [T4]) == []
    assert name in files(table)


def archive_commits(table: ByHand, monkeypatch: pytest.MonkeyPatch, archived: Sequence[str]) -> None:
    """Let the active timeline begin at ``T5``, and the archive have the commits of these times."""
    (table.base / f".hoodie/{T2}.commit").unlink()
    table.complete(T5, "commit", table.base_file(T5, "p/f-5"))

    def rows(*_: object, times: Sequence[str] | None = None, **__: object) -> Iterator[ArchivedInstant]:
        for at in archived if times is None else set(archived).intersection(times):
            yield ArchivedInstant(time=at, completed_at=at, action="commit", plan=None, metadata={})

    monkeypatch.setattr(Timeline, "archived", rows)


@pytest.mark.parametrize("ended", ["committed", "committed and seen", "withdrawn"])
def test_an_archive_that_may_have_lost_its_newest_file_does_not_show_that_an_instant_was_withdrawn(
    table: ByHand, monkeypatch: pytest.MonkeyPatch, ended: str
) -> None:
    """No lakefold has recorded the commit, which a writer or a killed executor made. The archive ends before it."""
    storage = TableStorage(str(table.base))
    name = table.base_file(T4, "p/f-1")
    if ended == "committed and seen":
        table.complete(T4, "replacecommit", name)
        assert found(table) == [T4], "to record it"
        assert remove_late_files(without_java(table), [T4]) == []
        assert found(table) == []
        (table.base / f".hoodie/{T4}.replacecommit").unlink()
    elif ended == "withdrawn":
        record_withdrawal(storage, T4, removed=True)
    # A newer commit in the archive shows nothing if the archiver went on after the loss; the record does.
    archive_commits(table, monkeypatch, [T2, AFTER] if ended == "committed and seen" else [T2])
    assert name in {str(entry["path"]).rpartition("/")[2] for entry in table.slices()}, "it counts as archived"
    assert found(table) == ([T4] if ended == "withdrawn" else [])
    assert remove_late_files(without_java(table), [T4]) == ([f"p/{name}"] if ended == "withdrawn" else [])


def test_an_older_commit_shows_nothing_while_a_savepoint_keeps_it_on_the_timeline(
    table: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers with ``hoodie.archive.beyond.savepoint`` archive later commits."""
    name = table.base_file(T4, "p/f-1")
    (table.base / f".hoodie/{T2}.savepoint").touch()
    monkeypatch.setattr(Timeline, "savepoints", lambda _: {})
    assert found(table) == []
    assert remove_late_files(without_java(table), [T4]) == []
    (table.base / f".hoodie/{T2}.savepoint").unlink()
    assert remove_late_files(without_java(table), [T4]) == [f"p/{name}"]


def test_a_removed_instant_whose_request_is_written_back_no_longer_counts_as_removed(table: ByHand) -> None:
    """A writer that began it at the same moment may commit it."""
    storage = TableStorage(str(table.base))
    noted(table, T3)
    table.request_compaction(T3, table.base_file(T2), [])
    request = table.base / f".hoodie/{T3}.compaction.requested"
    pending = Timeline(storage).find(T3)
    assert pending is not None
    copy_request(storage, Timeline(storage), pending)
    request.unlink()
    record_withdrawal(storage, T3, removed=True)
    (table.base / f".hoodie/{T3}.compaction.inflight").touch()
    assert write_back_requests(storage, Timeline(storage)) == [T3]
    known = read_instant_record(storage, T3)
    assert known is not None
    assert (request.exists(), known.removed) == (True, False)


def test_files_written_after_the_withdrawal_of_a_commit_that_its_owner_rolled_back_are_deleted(
    table: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From table version 8 on, the rollback makes the plan pending again."""
    storage = TableStorage(str(table.base))
    noted(table, T3)
    record_commit(storage, T3)
    table.request_compaction(T3, table.base_file(T2), [])
    before = files(table)

    def remove(*_: object) -> bool:
        for path in (table.base / ".hoodie").glob(f"{T3}.*"):
            path.unlink()
        return True

    monkeypatch.setattr(compaction, "withdraw_compaction", remove)
    pending = Timeline(storage).find(T3)
    assert pending is not None
    withdraw_instant(without_java(table), pending, ["p"])
    late = table.base_file(T3, "p/f-1")
    assert found(table) == [T3]
    assert remove_late_files(without_java(table), [T3]) == [f"p/{late}"]
    assert files(table) == before


def test_checks_become_rarer_with_the_time_since_the_instants_end_and_stop_after_a_week(
    table: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    monkeypatch.setattr(late_files, "list_files_of_instant", lambda *_: looks.append(1) or [])

    def looked() -> bool:
        del looks[:]
        found(table)
        return bool(looks)

    aged(table, T4, 1000)
    assert (looked(), looked()) == (True, False)
    key, (sign, _) = (
        (TableStorage(str(table.base)).location, T4),
        late_files._last_checks[TableStorage(str(table.base)).location, T4],
    )
    late_files._last_checks[key] = sign, timedelta(seconds=850)
    assert not looked()
    late_files._last_checks[key] = sign, timedelta(seconds=790)
    assert looked()
    aged(table, T4, 10)  # withdrawn just now
    assert looked()
    count, age = 0, 30.0
    while age < STAGED_WATCH_PERIOD.total_seconds():
        count, age = (
            count + 1,
            max(age, late_files._FIRST_CHECK_INTERVAL.total_seconds()) * late_files._CHECK_INTERVAL_GROWTH,
        )
    assert count < 50
    aged(table, T4, 8 * 86400)
    assert not looked()
    noted(table, T5)
    assert not (table.base / record_path(T4)).exists(), "forgotten with the next plan"


def test_an_attempt_that_a_withdrawal_finds_gone_is_checked_at_once(table: ByHand) -> None:
    before = files(table)
    table.base_file(T4, "p/f-1")
    assert withdraw_plan(without_java(table), "p", [T4]) == 0
    assert files(table) == before


def test_an_inflight_instant_is_in_other_hands_where_lakefold_did_not_begin_it(table: ByHand) -> None:
    storage = TableStorage(str(table.base))
    noted(table, T3)
    table.request_compaction(T3, table.base_file(T2), [])

    def looks() -> tuple[bool, bool]:
        timeline = Timeline(storage)
        instant = timeline.find(T3)
        assert instant is not None
        return is_begun_by_writer(storage, timeline, T3), is_executed_by_writer(
            ref(table.base), storage, timeline, instant
        )

    assert looks() == (False, False)
    inflight = table.base / f".hoodie/{T3}.compaction.inflight"
    inflight.touch()
    assert looks() == (True, True)
    record_begin(storage, T3, late_files._inflight_written_at(storage, Timeline(storage), T3))
    assert looks() == (False, False)
    inflight.unlink()
    inflight.touch()
    assert looks() == (True, True), "taken back and begun anew"
    for path in inflight.parent.glob(f"{T3}*"):
        os.utime(path, (1e9, 1e9))
    assert looks() == (True, False), "given up since"


@pytest.mark.parametrize("sign", ["none", "marker", "file", "before", "long after"])
def test_an_instant_that_lakefold_was_about_to_begin_is_its_own_without_evidence_of_a_writer(
    table: ByHand, sign: str
) -> None:
    storage = TableStorage(str(table.base))
    noted(table, T3)
    table.request_compaction(T3, table.base_file(T2), [])
    record_beginning(storage, T3)
    assert not is_begun_by_writer(storage, Timeline(storage), T3)
    inflight = table.base / f".hoodie/{T3}.compaction.inflight"
    inflight.touch()  # and the process dies, before it can record the time of this file
    if sign == "marker":
        markers = table.base / ".hoodie/.temp" / T3
        markers.mkdir(parents=True)
        (markers / "p.parquet.marker.CREATE").touch()
    elif sign == "file":
        table.base_file(T3)
    elif sign == "before":
        earlier = (table.base / record_path(T3)).stat().st_mtime - 1
        os.utime(inflight, (earlier, earlier))
    elif sign == "long after":
        later = inflight.stat().st_mtime + late_files._BEGIN_TIMEOUT.total_seconds() + 1
        os.utime(inflight, (later, later))
    assert is_begun_by_writer(storage, Timeline(storage), T3) == (sign != "none")
    record_begin(storage, T3, late_files._inflight_written_at(storage, Timeline(storage), T3))
    assert not is_begun_by_writer(storage, Timeline(storage), T3)


def plan_of(table: ByHand) -> Plan:
    return Plan(
        plan_id="p",
        table=table.ref,
        kind=PlanKind.CLUSTERING,
        groups=(ClusteringGroup(partition="p", slices=(), output_files=1),),
        options=RewriteOptions(target_file_max_bytes=1),
        snapshot_instant=T2,
    )


def test_a_writer_that_began_while_a_plan_was_published_makes_it_try_again_later(
    table: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = without_java(table)
    plan = plan_of(table)
    inflight = table.base / f".hoodie/{T5}.inflight"

    def make_known(*_: object) -> PreparedPlan:
        inflight.touch()
        return PreparedPlan(plan=plan, epoch=1, instant=T4, live_groups=(0,))

    client.optimistic = False
    with pytest.raises(
        Transient, match=rf"a writer \(commit {T5} on partitions .*\) began while {T4} was being published"
    ):
        publish_plan(client, plan, 1, make_known)
    inflight.unlink()
    assert publish_plan(
        client, plan, 1, lambda *_: PreparedPlan(plan=plan, epoch=1, instant=T4, live_groups=(0,))
    ).live_groups == (0,)


def test_a_writer_that_began_before_anything_was_published_is_waited_for(table: ByHand) -> None:
    """On a table whose writers begin every few seconds, each of them cost an attempt of the plan."""
    client, plan = without_java(table), plan_of(table)
    client.optimistic = False
    inflight = table.base / f".hoodie/{T5}.inflight"
    tries = []

    def publish(_: object, timeline: Timeline, *__: object) -> PreparedPlan:
        tries.append(1)
        if len(tries) == 1:
            inflight.touch()
            Timer(0.3, inflight.unlink).start()
        publication_check(client, timeline, ["p"])(client.read_timeline())
        return PreparedPlan(plan=plan, epoch=1, instant=T4, live_groups=(0,))

    assert publish_plan(client, plan, 1, publish).live_groups == (0,)
    assert len(tries) == 2

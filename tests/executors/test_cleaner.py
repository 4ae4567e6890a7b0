# SPDX-License-Identifier: Apache-2.0
"""What the cleaner deletes, when, in which order, and what it leaves alone."""

import os
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from toys import files, timeline, timeline_tables
from toys.bench import Bench, bench_at, bench_on, raising
from toys.cases import ExpiringCase, TimelineCase, no_spark

from executors.cleaner import CleanJob, CleanReport, clean_table, clean_tables
from executors.context import RunContext
from executors.outcome import RunResult
from lake.errors import Conflict, Rejected, Transient
from lake.model import TableRef
from lake.plan import LockOwner, LockOwnerKind, SupersededVersion
from lake.ports import Capability
from lake.relocation.capabilities import RelocatesPartitions
from service.control.store import PartitionsLocked

NOW = timedelta(0)


def clean(
    bench: Bench, retention: timedelta = NOW, *, skip_reason: str | None = None, dry_run: bool = False
) -> CleanReport:
    return clean_table(
        CleanJob(table=bench.table, retention=retention, skip_reason=skip_reason),
        RunContext(store=bench.store, spark=no_spark, observer=bench.recorder),
        format=bench.format,
        dry_run=dry_run,
    )


def compacted(bench: Bench, *, plans: int = 1) -> list[str]:
    """Run ``plans`` plans one after the other; the superseded paths, oldest first."""
    for number in range(plans):
        if number:
            timeline_tables.write(bench.table, "dt=0", files.rows(10_000 + number, 10_001 + number))
        bench.request()
        assert bench.run().result is RunResult.COMPLETED
    return [d.version.path for d in bench.store.awaiting_deletion(bench.table)]


def on_disk(bench: Bench) -> set[str]:
    folder = Path(bench.table.location)
    return {str(path.relative_to(folder)) for path in folder.rglob("*.parquet")}


def live(bench: Bench) -> set[str]:
    return {item["path"] for item in timeline.manifest(bench.table)["files"]}


def test_versions_past_the_retention_are_deleted_and_marked(bench: Bench):
    before = bench.rows()
    old = compacted(bench)
    size = sum((Path(bench.table.location) / path).stat().st_size for path in old)
    report = clean(bench)
    assert (report.deleted_files, report.bytes_freed, report.kept, report.error) == (6, size, (), None)
    assert {v.path for v in report.deleted} == set(old)
    assert (on_disk(bench), bench.rows()) == (live(bench), before)
    assert bench.store.awaiting_deletion(bench.table) == []
    assert bench.recorder.deletions == [("toy", 6, size)]
    assert clean(bench).deleted_files == 0


def test_the_check_before_a_deletion_knows_the_retention(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Otherwise a table whose files wait for other retained files is locked in each round, and nothing is deleted."""
    compacted(bench)
    seen: list[timedelta] = []
    find = bench.format.deletion_blockers

    def check(table: TableRef, versions: Sequence[SupersededVersion], retention: timedelta) -> Mapping[str, str | None]:
        seen.append(retention)
        return find(table, versions, retention)

    monkeypatch.setattr(bench.format, "deletion_blockers", check)
    clean(bench, timedelta(microseconds=1))
    assert seen == [timedelta(microseconds=1)]


def test_nothing_is_deleted_before_the_retention_in_force_now_has_passed(bench: Bench):
    compacted(bench)
    bench.format.hooks["open"] = raising(AssertionError("nothing is due"))
    assert clean(bench, timedelta(days=7)) == CleanReport(table="toy")
    bench.format.hooks.clear()
    assert clean(bench, NOW).deleted_files == 6  # the retention was shortened: that of now counts, not that of then


@pytest.mark.parametrize(("at_once", "calls"), [(1, [1, 1, 1]), (10, [2, 1]), (1000, [3])])
def test_instants_are_deleted_oldest_first_whole_and_several_at_once(bench: Bench, monkeypatch, at_once, calls):
    monkeypatch.setattr("executors.cleaner._MAX_FILES_PER_DELETION", at_once)
    old = compacted(bench, plans=3)
    order = [bench.store.plan(plan_id).instant for plan_id, _ in bench.case.commits(bench.table)]
    seen: list[list[str]] = []
    delete = timeline.ToyWriter.delete

    def spy(writer: Any, versions: Any) -> Any:
        seen.append([v.instant for v in versions])
        return delete(writer, versions)

    monkeypatch.setattr(timeline.ToyWriter, "delete", spy)
    assert clean(bench).deleted_files == len(old)
    handed = [instant for batch in seen for instant in batch]
    assert handed == sorted(handed, key=order.index), "none comes before an older one"
    assert len(handed) == len(old), "each file is in one deletion"
    assert [len(set(batch)) for batch in seen] == calls
    assert sum(calls) == len(order), "no instant is split"


def test_files_that_the_table_still_needs_are_kept_with_the_reason(bench: Bench):
    old = compacted(bench)
    (Path(bench.table.location) / "savepoint").write_text(old[0])
    report = clean(bench)
    assert [(kept.version.path, kept.reason) for kept in report.kept] == [(old[0], "kept by a savepoint")]
    assert report.deleted_files == 5
    assert old[0] in on_disk(bench)
    assert [d.version.path for d in bench.store.awaiting_deletion(bench.table)] == [old[0]]


def test_many_kept_versions_do_not_hide_the_next_versions(bench: Bench, monkeypatch):
    monkeypatch.setattr("executors.cleaner._PAGE", 2)
    old = compacted(bench)
    (Path(bench.table.location) / "savepoint").write_text(" ".join(old[:4]))
    report = clean(bench)
    assert (len(report.kept), {v.path for v in report.deleted}) == (4, set(old[4:]))


def test_a_dry_run_lists_the_files_to_delete_and_deletes_nothing(bench: Bench, monkeypatch):
    monkeypatch.setattr("executors.cleaner._PAGE", 2)
    old = compacted(bench)
    files = on_disk(bench)
    bench.format.hooks["open"] = raising(AssertionError("a dry run opens nothing for writing"))
    report = clean(bench, dry_run=True)
    assert ({v.path for v in report.deleted}, report.dry_run) == (set(old), True)
    assert (on_disk(bench), len(bench.store.awaiting_deletion(bench.table))) == (files, 6)
    assert bench.recorder.deletions == []


def test_a_halted_or_paused_table_is_left_alone(bench: Bench):
    compacted(bench)
    files = on_disk(bench)
    report = clean(bench, skip_reason="halted: rows differ")
    assert (report.skip_reason, report.deleted_files, on_disk(bench)) == ("halted: rows differ", 0, files)


def test_a_version_that_is_read_again_between_check_and_deletion_is_kept(bench: Bench):
    compacted(bench, plans=2)
    live = raising(Conflict("a version is live"))
    calls = iter([live, live, lambda: None])  # both instants at once, then one by one
    bench.format.hooks["delete"] = lambda: next(calls)()
    report = clean(bench)
    assert {kept.reason for kept in report.kept} == {"a version is live"}
    assert len(report.kept) == 6  # the older instant; the younger one was deleted
    assert report.deleted_files == 3
    assert report.error is None


def test_an_error_halfway_keeps_finished_work_and_the_next_round_finishes_the_rest(bench: Bench, monkeypatch):
    monkeypatch.setattr("executors.cleaner._MAX_FILES_PER_DELETION", 1)
    old = compacted(bench, plans=2)
    calls = iter([lambda: None, raising(Transient("the lock is taken"))])
    bench.format.hooks["delete"] = lambda: next(calls)()
    report = clean(bench)
    assert (report.deleted_files, report.error) == (6, "the lock is taken")
    assert bench.recorder.clean_failures == [("toy", "Transient")]
    bench.format.hooks.clear()
    assert clean(bench).deleted_files == len(old) - 6


def test_files_that_another_program_deleted_count_as_deleted(bench: Bench):
    old = compacted(bench)
    (Path(bench.table.location) / old[0]).unlink()
    report = clean(bench)
    assert (report.deleted_files, bench.store.awaiting_deletion(bench.table)) == (6, [])


@pytest.mark.parametrize("error", [Rejected("not a table"), RuntimeError("a bug")])
def test_a_failure_in_one_table_does_not_stop_the_others(bench: Bench, error: Exception):
    other = bench.add_table("other")
    compacted(bench)
    bench.request(other)
    assert bench.run().result is RunResult.COMPLETED
    broken = timeline.ToyFormat()
    broken.hooks["superseded_deletable"] = raising(error)
    jobs = [
        CleanJob(table=TableRef(name=table.name, format=name, location=table.location), retention=NOW)
        for table, name in ((bench.table, "broken"), (other, "toy"))
    ]
    reports = clean_tables(
        jobs,
        RunContext(
            store=bench.store,
            spark=no_spark,
            formats={"broken": broken, "toy": bench.format}.__getitem__,
            observer=bench.recorder,
        ),
    )
    assert [(r.table, r.deleted_files, r.error is None) for r in reports] == [("toy", 0, False), ("other", 6, True)]
    assert bench.recorder.clean_failures == [("toy", type(error).__name__)]
    assert bench.recorder.rounds == 1


def test_versions_with_an_undone_replacement_stop_waiting_before_their_retention(bench: Bench):
    old, newer = compacted(bench), compacted(bench, plans=2)[6:]
    waiting = bench.store.awaiting_deletion(bench.table)
    undone = {d.version.instant for d in waiting if d.version.path in old}
    (Path(bench.table.location) / "undone").write_text(" ".join(undone))
    report = clean(bench, timedelta(days=7), dry_run=True)
    assert [kept.version.path for kept in report.no_longer_awaiting] == old
    assert bench.store.awaiting_deletion(bench.table) == waiting, "a dry run changes nothing"
    report = clean(bench, timedelta(days=7))
    assert [(kept.version.path, kept.reason) for kept in report.no_longer_awaiting] == [
        (path, "undone") for path in old
    ]
    assert (report.deleted_files, report.kept) == (0, ())
    assert [d.version.path for d in bench.store.awaiting_deletion(bench.table)] == newer
    assert set(old) <= on_disk(bench), "they are not lakefold's to delete"
    report = clean(bench)
    assert (report.no_longer_awaiting, {v.path for v in report.deleted}) == ((), set(newer))


def test_versions_are_deleted_in_the_order_of_replacement_for_any_names_of_instants(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("executors.cleaner._MAX_FILES_PER_DELETION", 1)
    seen: list[str] = []
    names = iter(["9", "10", "11"])
    commit, delete = timeline.ToyWriter.commit, timeline.ToyWriter.delete

    def commit_as(writer: Any, rewrite: Any) -> Any:
        done, name = commit(writer, rewrite), next(names)
        return replace(done, instant=name, superseded=tuple(replace(v, instant=name) for v in done.superseded))

    def spy(writer: Any, versions: Any) -> Any:
        seen.extend(dict.fromkeys(v.instant for v in versions))
        return delete(writer, versions)

    monkeypatch.setattr(timeline.ToyWriter, "commit", commit_as)
    monkeypatch.setattr(timeline.ToyWriter, "delete", spy)
    compacted(bench, plans=3)
    clean(bench)
    assert seen == ["9", "10", "11"]


@pytest.mark.parametrize("same_size", [True, False])
def test_a_file_that_took_the_path_of_a_superseded_one_stays_and_its_row_waits_no_longer(bench, same_size):
    old = compacted(bench)
    path = Path(bench.table.location) / old[0]
    content = path.read_bytes() + (b"" if same_size else b"more")
    path.unlink()
    path.write_bytes(content)
    os.utime(path, ns=(0, 1_600_000_000_000_000_000))
    report = clean(bench)
    assert (report.deleted_files, path.read_bytes()) == (5, content)
    assert [kept.version.path for kept in report.no_longer_awaiting] == [old[0]]
    assert report.no_longer_awaiting[0].reason.startswith("another file is at its path")
    assert bench.store.awaiting_deletion(bench.table) == []
    assert sum(files for _, files, _ in bench.recorder.deletions) == 5


def test_files_left_to_the_tables_own_expiry_are_not_counted_as_freed_and_wait_no_longer(request, tmp_path, caplog):
    with bench_on("sqlite", ExpiringCase(), request, tmp_path) as bench:
        for _ in range(2):
            bench.request()
            assert bench.run().result is RunResult.COMPLETED
        *first, one, other = [due.version for due in bench.store.awaiting_deletion(bench.table)]
        rows, freed = bench.rows(), sum(version.bytes for version in first)
        caplog.set_level("INFO", logger="executors.cleaner")
        report = clean(bench)
        assert (report.deleted, report.bytes_freed, report.kept, report.error) == (tuple(first), freed, (), None)
        assert [(kept.version, kept.reason) for kept in report.no_longer_awaiting] == [
            (version, "left to the table's own expiry, which keeps 2 versions") for version in (one, other)
        ]
        (told,) = [line for line in caplog.records if "2 superseded files stay" in line.getMessage()]
        assert told.levelname == "INFO", "that is how such tables delete"
        assert bench.recorder.deletions == [("toy", len(first), freed)]
        assert bench.store.table_state("toy").freed_bytes == freed
        assert (bench.store.awaiting_deletion(bench.table), bench.store.deletion_days({NOW: ["toy"]})) == ([], [])
        assert bench.unowned() == ()
        assert clean(bench) == CleanReport(table="toy")
        bench.request()
        assert bench.run().result is RunResult.COMPLETED
        clean(bench)
        assert bench.stored().keys().isdisjoint({one.path, other.path}), "the next expiry has them"
        assert (bench.store.table_state("toy").freed_bytes, bench.rows()) == (freed, rows)


def test_a_row_without_time_or_size_from_before_is_deleted_by_its_path(bench: Bench):
    old = compacted(bench)
    with sqlite3.connect(bench.home / "lakefold.db") as connection:
        connection.execute("UPDATE superseded_version SET modified_at_ms = NULL, bytes = 0")
    connection.close()
    assert clean(bench).deleted_files == len(old)


def test_a_deletion_is_marked_before_the_first_file_goes_and_the_mark_outlives_a_crash(bench: Bench):
    compacted(bench)

    def crash() -> None:
        assert all(due.deletion_begun_at for due in bench.store.awaiting_deletion(bench.table)), "marked before"
        raise SystemExit("killed")

    assert not any(due.deletion_begun_at for due in bench.store.awaiting_deletion(bench.table))
    bench.format.hooks["delete_file"] = crash
    with pytest.raises(SystemExit):
        clean(bench)
    begun = [due.deletion_begun_at for due in bench.store.awaiting_deletion(bench.table)]
    assert len(begun) == 6
    bench.format.hooks.clear()
    assert clean(bench).deleted_files == 6


def test_a_cleaner_suspended_while_another_one_deleted_leaves_the_new_files_at_the_paths(bench: Bench):
    old = compacted(bench)
    path = Path(bench.table.location) / old[0]

    def sleep() -> None:
        bench.format.hooks.clear()
        assert clean(bench).deleted_files == len(old), "by another process"
        path.write_bytes(b"a writer uses the name again")

    bench.format.hooks["delete"] = sleep
    report = clean(bench)
    assert (report.deleted_files, path.read_bytes()) == (0, b"a writer uses the name again")
    assert {kept.reason for kept in report.kept} == {"another process has deleted some of these files meanwhile"}


def test_without_a_tables_lock_cleaner_and_plans_exclude_each_other_by_partition(bench: Bench):
    bench.format.capabilities -= {Capability.TABLE_LOCK}
    old = compacted(bench)
    timeline_tables.write(bench.table, "dt=0", files.rows(10_000, 10_001))
    plan = bench.request(partitions=["dt=0"])
    report = clean(bench)
    assert (report.deleted_files, len(report.kept)) == (0, 6), "what one commit replaced goes as a whole"
    assert {kept.reason for kept in report.kept} == {"partition dt=0 is held by a plan or the sweep"}
    assert bench.run().result is RunResult.COMPLETED

    def plan_there() -> None:
        with pytest.raises(PartitionsLocked, match="by the cleaner"):
            bench.request(partitions=["dt=1"])
        bench.format.hooks.clear()

    bench.format.hooks["delete_file"] = plan_there
    assert (clean(bench).deleted_files, bench.format.hooks) == (len(old) + 2, {})
    assert bench.request(partitions=["dt=1"]).plan_id != plan.plan_id, "the cleaner gave it back"


class Moving(timeline.ToyFormat):
    """Toy tables whose commits were said to move partitions, and without a lock."""

    capabilities = timeline.ToyFormat.capabilities - {Capability.TABLE_LOCK}

    def inspect_locations(self, table: TableRef, relocated: object) -> dict[str, Any]:
        return {}

    def named_relocations(self, table: TableRef, partitions: object) -> dict[str, Any]:
        return {}

    def other_readers(self, table: TableRef, locations: object, *, max_age: timedelta | None = None) -> dict[str, str]:
        return {}

    def applied_commits(self, table: TableRef, staged: object) -> tuple[()]:
        return ()


def test_where_plans_make_sure_to_be_alone_at_their_commit_one_that_waits_keeps_no_superseded_file(tmp_path: Path):
    assert isinstance(Moving(), RelocatesPartitions)
    with bench_at(tmp_path, case=TimelineCase(format=Moving())) as bench:
        old, during = compacted(bench), list[Any]()
        timeline_tables.write(bench.table, "dt=0", files.rows(10_000, 10_001))
        bench.request(partitions=["dt=0"])

        def claimed_meanwhile() -> None:
            during.append(bench.claim())
            assert bench.store.begin_commit(during[0]) == {"dt=0"}, "it waits"
            bench.format.hooks.clear()

        bench.format.hooks["delete_file"] = claimed_meanwhile
        assert clean(bench).deleted_files == len(old)
        assert bench.run(during[0]).result is RunResult.COMPLETED
        timeline_tables.write(bench.table, "dt=0", files.rows(20_000, 20_001))
        bench.request(partitions=["dt=0"])
        bench.claim()
        report = clean(bench)
        assert {kept.reason for kept in report.kept} == {"partition dt=0 is held by a plan or the sweep"}
        assert report.deleted_files == 0


def test_a_partition_that_the_sweep_needs_is_released_at_once_and_left_alone_for_the_round(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    bench.format.capabilities -= {Capability.TABLE_LOCK}
    for partition in ("dt=0", "dt=1"):
        bench.request(partitions=[partition])
        assert bench.run().result is RunResult.COMPLETED
    asked = list[set[str]]()

    def awaiting_sweep(*_: object, partitions: set[str], **__: object) -> dict[str, str]:
        asked.extend([set(partitions)] if partitions else [])
        return {"dt=0": "a file was added"} if "dt=0" in partitions else {}

    monkeypatch.setattr("executors.cleaner.partitions_awaiting_sweep", awaiting_sweep)
    others = list[set[str]]()
    keeper = LockOwner(kind=LockOwnerKind.SWEEP, name="a round")
    bench.format.hooks["delete_file"] = lambda: others.append(
        set(bench.store.lock_partitions(bench.table, ["dt=0", "dt=1"], keeper))
    )
    expected = clean(bench, dry_run=True)
    asked.clear()
    report = clean(bench)
    assert (expected.kept, expected.deleted) == (report.kept, report.deleted)
    assert {kept.reason for kept in report.kept} == {"the sweep comes first: a file was added"}
    assert {version.partition for version in report.deleted} == {"dt=1"}
    assert (asked[0], [one for one in asked[1:] if one != {"dt=1"}]) == ({"dt=0", "dt=1"}, [])
    assert others == [{"dt=0"}] * len(report.deleted)
    assert bench.store.lock_partitions(bench.table, ["dt=0", "dt=1"], keeper) == {"dt=0", "dt=1"}

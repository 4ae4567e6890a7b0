# SPDX-License-Identifier: Apache-2.0
"""Duties to what was moved, where the database does not know the table by its name, or does not know it any more."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest
from hive_case import HiveCase, Owner, table_name
from hive_metastore import MetastoreServer
from late_writing import (
    PARTITION,
    Killed,
    added_again,
    brought_home,
    data_files,
    dropped,
    halted,
    here,
    home,
    in_partition,
    killed_at,
    killed_before_it_records,
    overwrite,
    rows_in,
    swept,
    wait_a_tick,
    write,
)
from renaming import CHANGES, as_managed, lose_again, lose_database, prefixed, renamed, renamed_with_its_directory
from toys.bench import Bench, bench_at
from toys.cases import no_spark

from executors.observer import Observer
from executors.outcome import RunResult
from executors.relocation.partition_sweep import SweepReport
from lake.capabilities import with_identity
from lake.formats.hive import HiveFormat
from lake.formats.hive.commit import preconditions
from lake.model import TableRef
from lake.plan import Plan
from lake.relocation.model import FoundRelocations
from lake.stopwatch import Stopwatch
from service.control.config.loader import load_config
from service.server.daemon.maintenance import Maintenance

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]


@pytest.fixture(params=["parquet", "orc"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=list(CHANGES))
def changed(request: pytest.FixtureRequest, known: Bench) -> Bench:
    CHANGES[request.param](known)
    return known


def has_new_rows_only_after_a_drop(bench: Bench) -> None:
    """``DROP PARTITION``, ``INSERT``: no replaced row is read again, before the cleaner has run and after it."""
    dropped(bench)
    added_again(bench)
    rows = write(home(bench), 900, 910)
    bench.sweep()
    assert (in_partition(bench), halted(bench)) == (sorted(rows), None)
    bench.clean()
    bench.sweep()
    assert (in_partition(bench), swept(bench)) == (sorted(rows), SweepReport())


def test_rule_6_a_partition_that_is_dropped_after_the_change_and_written_again_has_the_new_rows_only(changed: Bench):
    """``ALTER TABLE … RENAME``, ``DROP PARTITION``, ``INSERT``: before that these were 110 rows instead of 10."""
    has_new_rows_only_after_a_drop(changed)


def test_rule_6_a_plan_that_runs_before_the_first_sweep_after_the_change_rewrites_no_replaced_file(changed: Bench):
    """Chaos found it: the replaced files were rewritten with the new rows, and so became rows of the partition."""
    bench = changed
    dropped(bench)
    added_again(bench)
    rows = write(home(bench), 900, 910)
    bench.request(partitions=[PARTITION])
    assert bench.run().result is not RunResult.COMPLETED
    assert (in_partition(bench), halted(bench)) == (sorted(rows), None)
    bench.sweep()
    bench.clean()
    assert (in_partition(bench), swept(bench)) == (sorted(rows), SweepReport())


def test_rule_2_late_files_after_the_change_are_copied_and_replaced_files_are_deleted(changed: Bench):
    bench, rows = changed, changed.rows()
    late = write(home(bench), 900, 910)
    bench.sweep()
    assert (sorted(bench.rows()), halted(bench)) == (sorted([*rows, *late]), None)
    replaced = {one.version.partition for one in bench.store.awaiting_deletion(bench.table)}
    assert replaced == {"dt=0", "dt=1"}
    bench.clean()
    assert (data_files(home(bench)), sorted(bench.rows())) == ([], sorted([*rows, *late]))
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    bench.sweep()
    assert (sorted(bench.rows()), halted(bench)) == (sorted([*rows, *late]), None)


def test_rule_5_files_copied_before_the_change_are_not_copied_again(known: Bench):
    bench = known
    rows = sorted([*bench.rows(), *write(home(bench), 900, 910)])
    bench.sweep()
    assert sorted(bench.rows()) == rows
    lose_database(bench)
    bench.sweep()
    assert (sorted(bench.rows()), swept(bench), halted(bench)) == (rows, SweepReport(), None)
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    lose_again(bench)
    bench.sweep()
    assert (sorted(bench.rows()), swept(bench), halted(bench)) == (rows, SweepReport(), None)
    bench.clean()
    bench.sweep()
    assert (sorted(bench.rows()), len(data_files(home(bench))), halted(bench)) == (rows, 0, None)


def test_rule_2_lakefolds_deletions_before_the_database_was_lost_do_not_count_as_an_overwrite(known: Bench):
    bench = known
    bench.clean()
    lose_database(bench)
    bench.sweep()
    bench.sweep()
    rows, place = in_partition(bench), here(bench)
    assert (swept(bench), halted(bench), bench.store.awaiting_deletion(bench.table)) == (SweepReport(), None, [])
    write(home(bench), 900, 910)
    bench.sweep()
    assert "after lakefold began to delete there" in why_halted(bench)
    assert (in_partition(bench), here(bench)) == (rows, place)


def test_rule_2_an_overwrite_that_ended_before_the_database_was_lost_takes_the_partition_back(known: Bench):
    bench = known
    anew = overwrite(home(bench), 500, 520)
    lose_database(bench)
    bench.sweep()
    assert (here(bench), in_partition(bench), halted(bench)) == (home(bench), sorted(anew), None)
    # The move back is told by the table, too.
    wait_a_tick(home(bench))
    lose_again(bench)
    bench.sweep()
    assert (here(bench), in_partition(bench), swept(bench), halted(bench)) == (
        home(bench),
        sorted(anew),
        SweepReport(),
        None,
    )
    bench.clean()
    assert in_partition(bench) == sorted(anew)


def test_rule_7_a_new_table_with_the_former_name_gets_nothing_of_the_renamed_one(known: Bench, tmp_path: Path):
    bench, before = known, known.table
    rows = bench.rows()
    old = renamed(bench)
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.make_table(old, tmp_path / "new")
        (tmp_path / "new" / PARTITION).mkdir(parents=True)
        owner.add(old, "0", tmp_path / "new" / PARTITION)
    mine, theirs = bench.table, replace(before, location=str(tmp_path / "new"), identity=None)
    theirs = with_identity(bench.format, theirs)
    bench.store.register_table(theirs, "compact")
    late = write(home(bench), 900, 910)
    rows_of_theirs = write(tmp_path / "new" / PARTITION, 0, 10)
    for table in (theirs, mine, theirs):
        bench.table = table
        bench.sweep()
        bench.clean()
    bench.table = mine
    assert sorted(bench.rows()) == sorted([*rows, *late])
    assert rows_in(tmp_path / "new" / PARTITION) == sorted(rows_of_theirs)
    assert (halted(bench), bench.store.table_state(theirs.name).halted_reason) == (None, None)


def test_rule_7_a_table_that_was_dropped_and_made_again_in_its_directory_is_another_one(known: Bench):
    bench = known
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.make_table(table_name(bench.table), Path(bench.table.location))
    added_again(bench)
    before = in_partition(bench)
    lose_database(bench)
    bench.sweep()
    bench.clean()
    assert (in_partition(bench), here(bench), bench.store.awaiting_deletion(bench.table)) == (before, home(bench), [])


@pytest.fixture
def unrecorded(unmoved: Bench) -> tuple[Bench, Plan]:
    """A table of Hive's own directory, and the plan that has moved it and whose executor died before the record."""
    bench = unmoved
    as_managed(bench)
    bench.table = with_identity(bench.format, bench.table)
    bench.store.register_table(bench.table, "compact")
    return bench, killed_before_it_records(bench)


UNRECORDED_CHANGES = {
    "renamed": renamed,
    "renamed with its directory": renamed_with_its_directory,
    "another prefix": prefixed,
}


@pytest.mark.parametrize("change", list(UNRECORDED_CHANGES))
def test_rule_3_a_commit_whose_executor_died_before_recording_it_is_recorded_under_the_new_name(
    unrecorded: tuple[Bench, Plan], change: str
):
    """The plan stayed inflight; of a table whose directory was renamed the late rows were lost for good."""
    bench, plan = unrecorded
    rows, before = bench.rows(), bench.table
    UNRECORDED_CHANGES[change](bench)
    late = write(home(bench), 900, 910)
    bench.sweep()
    assert (bench.state(plan), sorted(bench.rows()), halted(bench)) == ("completed", sorted([*rows, *late]), None)
    assert (bench.store.awaiting_deletion(before), bench.rescue()) == ([], None)
    assert bench.store.locked_partitions(before.name) == {}
    bench.clean()
    assert (data_files(home(bench)), sorted(bench.rows())) == ([], sorted([*rows, *late]))
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    assert (sorted(bench.rows()), halted(bench)) == (sorted([*rows, *late]), None)


@pytest.mark.parametrize("change", list(UNRECORDED_CHANGES))
def test_rule_6_replaced_rows_of_a_commit_recorded_under_the_new_name_stay_replaced(
    unrecorded: tuple[Bench, Plan], change: str
):
    """``DROP PARTITION``, ``INSERT``: after a rename with the directory these were 160 rows instead of 10."""
    bench, _ = unrecorded
    UNRECORDED_CHANGES[change](bench)
    bench.sweep()
    has_new_rows_only_after_a_drop(bench)


def test_rule_3_a_commit_that_was_recorded_under_the_new_name_is_the_table_s_when_it_has_its_name_again(
    unrecorded: tuple[Bench, Plan],
):
    """Its plan could neither be completed nor cancelled: the record of its replaced files was there already."""
    bench, plan = unrecorded
    rows, before = bench.rows(), bench.table
    old = renamed(bench)
    bench.sweep()
    renamed(bench, old)
    bench.table = before
    late = write(home(bench), 900, 910)
    bench.sweep()
    assert (bench.state(plan), bench.rescue()) == ("completed", None)
    assert (sorted(bench.rows()), halted(bench)) == (sorted([*rows, *late]), None)
    bench.clean()
    assert (data_files(home(bench)), sorted(bench.rows())) == ([], sorted([*rows, *late]))


@pytest.mark.parametrize("change", ["renamed", "renamed with its directory"])
def test_rule_3_a_process_that_takes_the_plan_over_after_the_change_keeps_no_late_row_waiting(
    unrecorded: tuple[Bench, Plan], change: str
):
    """It doesn't find the table, and had the plan for a minute each time: late rows came minutes later."""
    bench, plan = unrecorded
    rows = bench.rows()
    UNRECORDED_CHANGES[change](bench)
    outcome = bench.rescue()
    assert (outcome is not None and outcome.result, bench.state(plan)) == (RunResult.INFLIGHT, "inflight")
    late = write(home(bench), 900, 910)
    bench.sweep()
    assert (bench.state(plan), sorted(bench.rows()), halted(bench)) == ("completed", sorted([*rows, *late]), None)


def test_rule_3_an_executor_suspended_while_its_commit_was_recorded_under_the_new_name_has_lost_its_plan(
    unmoved: Bench, monkeypatch: pytest.MonkeyPatch
):
    bench = unmoved
    bench.table = with_identity(bench.format, bench.table)
    bench.store.register_table(bench.table, "compact")
    plan, rows, once = bench.request(), sorted(bench.rows()), iter(["before_record"])

    def at(name: str) -> None:
        if name == "before_record" and next(once, None):
            bench.expire()
            renamed(bench)
            bench.sweep()
            assert bench.state(plan) == "completed"

    monkeypatch.setattr("executors.run.failpoint", at)
    # No heartbeat comes while it sleeps.
    assert bench.run(heartbeat=timedelta(hours=1)).result is RunResult.LEASE_LOST
    assert next(once, None) is None, "it slept"
    waiting = len(bench.store.awaiting_deletion(bench.table))
    bench.sweep()
    assert (bench.state(plan), sorted(bench.rows()), halted(bench)) == ("completed", rows, None)
    assert len(bench.store.awaiting_deletion(bench.table)) == waiting > 0


def test_rule_7_a_late_commit_halts_the_table_by_its_present_name(unmoved: Bench, monkeypatch: pytest.MonkeyPatch):
    """Its source got another ``prefix``, and only the name before was halted, which nothing serves."""
    bench = unmoved
    bench.table = with_identity(bench.format, bench.table)
    bench.store.register_table(bench.table, "compact")
    plan, before, real = bench.request(), bench.table, preconditions.verify_call_in_time

    def verify(ref: TableRef, since_check: Stopwatch) -> None:
        bench.expire()
        prefixed(bench)
        bench.sweep()
        assert bench.state(plan) == "completed"
        monkeypatch.setattr(preconditions, "MAX_CALL_AGE", timedelta())
        real(ref, since_check)

    monkeypatch.setattr("lake.formats.hive.writer.verify_call_in_time", verify)
    assert bench.run(heartbeat=timedelta(hours=1)).result is RunResult.LEASE_LOST
    assert bench.table.name != before.name
    assert "process was suspended" in str(halted(bench))
    assert bench.store.table_state(before.name).halted_reason is None


def test_rule_3_a_search_that_meets_the_lease_of_a_killed_executor_is_repeated_at_the_next_sweep(
    unrecorded: tuple[Bench, Plan], tmp_path: Path
):
    """A rename is noticed within seconds, and the next search came ten minutes later: late rows waited for it."""
    (bench, plan), searches, real = unrecorded, list[str](), HiveFormat.find_relocations
    rows, upkeep = bench.rows(), maintenance(bench, tmp_path)
    bench.execute("UPDATE plan SET lease_until_ms = 99999999999999 WHERE state = 'inflight'")
    renamed(bench)
    late = write(home(bench), 900, 910)

    def search(format_: HiveFormat, table: TableRef, known: Collection[str]) -> Sequence[FoundRelocations]:
        if table.name == bench.table.name:
            searches.append(bench.state(plan))
        return real(format_, table, known)

    with mock.patch.object(HiveFormat, "find_relocations", search):
        upkeep.sweep()
        assert bench.state(plan) == "inflight"
        bench.expire()
        for _ in range(3):
            upkeep.sweep()
    assert (bench.state(plan), sorted(bench.rows()), halted(bench)) == ("completed", sorted([*rows, *late]), None)
    assert searches == ["inflight", "inflight"], "a complete search is repeated after ten minutes only"


def maintenance(bench: Bench, directory: Path) -> Maintenance:
    """The maintenance of a daemon on the bench's database."""
    (directory / "lakefold.toml").write_text(f'[database]\nurl = "{bench.url}"\n')
    return Maintenance(load_config(directory / "lakefold.toml"), bench.store, no_spark, Observer())


@pytest.mark.parametrize("point", ["after_prepare", "after_rewrite", "in_commit"])
def test_rule_7_a_table_that_is_renamed_while_a_plan_runs_is_not_moved_by_it(
    unmoved: Bench, point: str, monkeypatch: pytest.MonkeyPatch
):
    bench, rows = unmoved, unmoved.rows()
    bench.table = with_identity(bench.format, bench.table)
    bench.store.register_table(bench.table, "compact")
    plan, places = bench.request(), bench.case.places(bench.table)  # type: ignore[attr-defined]

    once = iter([point])

    def at(name: str) -> None:
        if name == point and next(once, None):
            renamed(bench)

    monkeypatch.setattr("executors.run.failpoint", at)
    monkeypatch.setattr("lake.formats.hive.commit.metastore_commit.failpoint", at)
    bench.run()
    assert bench.case.places(bench.table) == places  # type: ignore[attr-defined]
    assert bench.state(plan) != "completed"
    bench.sweep()
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    assert (sorted(bench.rows()), halted(bench)) == (sorted(rows), None)


def test_rule_3_a_sweep_under_the_new_name_leaves_a_commit_to_the_executor_that_has_not_recorded_it(
    known: Bench, monkeypatch: pytest.MonkeyPatch
):
    """Chaos found it: the table was halted, as if another lakefold had moved the partition."""
    bench = known
    rows = [*bench.rows(), *write(here(bench), 900, 910)]
    plan, once = bench.request(partitions=[PARTITION]), iter(["before_record"])

    def at(name: str) -> None:
        if name == "before_record" and next(once, None):
            renamed(bench)
            bench.sweep()

    monkeypatch.setattr("executors.run.failpoint", at)
    bench.run()
    assert next(once, None) is None, "renamed before the record"
    assert (bench.state(plan), sorted(bench.rows()), halted(bench)) == ("completed", sorted(rows), None)
    bench.sweep()
    bench.clean()
    assert (sorted(bench.rows()), halted(bench)) == (sorted(rows), None)


def test_rule_6_a_partition_is_restored_after_the_change(changed: Bench):
    bench, rows = changed, changed.rows()
    bench.sweep()
    bench.clean()
    assert brought_home(bench).relocated_back == 2
    assert (here(bench), sorted(bench.rows()), halted(bench)) == (home(bench), sorted(rows), None)


@pytest.fixture
def of_kind(metastore: MetastoreServer, tmp_path: Path, kind: str) -> Iterator[Bench]:
    with bench_at(tmp_path, HiveCase(uri=metastore.uri, kind=kind)) as made:
        yield made


def test_rule_6_relocations_of_several_plans_are_all_found(of_kind: Bench):
    bench = of_kind
    rows = bench.rows()
    for _ in range(3):
        bench.request()
        assert bench.run().result is RunResult.COMPLETED
    waiting = sorted((one.version.path, one.plan_id) for one in bench.store.awaiting_deletion(bench.table))
    lose_database(bench)
    bench.sweep()
    assert sorted((one.version.path, one.plan_id) for one in bench.store.awaiting_deletion(bench.table)) == waiting
    bench.clean()
    assert sorted(bench.rows()) == sorted(rows)
    (record,) = bench.store.relocated_partitions(bench.table, [PARTITION])
    assert (record.original_location, len(record.previous_locations)) == (PARTITION, 3)


def test_a_managed_table_takes_its_versions_along_when_it_is_renamed(unmoved: Bench):
    """Hive moves its directory, and the places of its partitions with it."""
    bench = unmoved
    as_managed(bench)
    bench.table = with_identity(bench.format, bench.table)
    bench.store.register_table(bench.table, "compact")
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    rows, identity = bench.rows(), bench.table.identity
    renamed_with_its_directory(bench)
    assert bench.table.identity != identity
    late = write(home(bench), 900, 910)
    bench.sweep()
    assert (sorted(bench.rows()), halted(bench)) == (sorted([*rows, *late]), None)
    bench.clean()
    assert (data_files(home(bench)), sorted(bench.rows())) == ([], sorted([*rows, *late]))


def why_halted(bench: Bench) -> str:
    """Why the table, or its partition, is halted."""
    return str(bench.store.halted_partitions(bench.table).get(PARTITION) or halted(bench))


def test_a_table_is_searched_for_once_when_the_sweep_misses_it(known: Bench, tmp_path: Path):
    """Its former places are looked at no more before it is found by its new name."""
    bench, searches = known, list[str]()
    (tmp_path / "lakefold.toml").write_text(f'[database]\nurl = "{bench.url}"\n')
    config = load_config(tmp_path / "lakefold.toml")
    upkeep = Maintenance(config, bench.store, no_spark, Observer(), on_missing=lambda: searches.append("missed"))
    upkeep.sweep_recent()
    assert searches == []
    renamed(bench)
    for _ in range(2):
        upkeep.sweep_recent()
    assert searches == ["missed"]


def test_a_halted_table_that_is_renamed_stays_halted_until_a_person_resumes_it(known: Bench):
    bench = known
    bench.store.halt_partition(bench.table, PARTITION, "which one is later?")
    bench.store.halt_table(bench.table, "rows differ")
    renamed(bench)
    bench.sweep()
    state = bench.store.table_state(bench.table.name)
    halts = {name: halt.reason for name, halt in state.halted_partitions.items()}
    assert (state.halted_reason, halts) == ("rows differ", {PARTITION: "which one is later?"})
    bench.store.resume(bench.table.name, "ada")
    bench.sweep()
    state = bench.store.table_state(bench.table.name)
    assert (state.halted_reason, state.halted_partitions) == (None, {})


@pytest.mark.parametrize("is_scanned", [True, False], ids=["scanned", "swept first"])
def test_a_commit_that_is_recorded_after_two_renames_repeats_no_halt_that_a_person_has_ended(
    known: Bench, is_scanned: bool
):
    bench = known
    if not is_scanned:
        renamed(bench, is_scanned=False)
        bench.sweep()
    plan = bench.request()
    with mock.patch("executors.run.failpoint", lambda name: killed_at(name, "before_record")), pytest.raises(Killed):
        bench.run()
    bench.store.halt_partition(bench.table, PARTITION, "which one is later?")
    first = bench.table.name
    renamed(bench, is_scanned=is_scanned)
    bench.sweep()
    state = bench.store.table_state(bench.table.name)
    assert (set(state.halted_partitions), bench.state(plan)) == ({PARTITION}, "inflight")
    assert bench.store.table_state(first).halted_partitions == {}
    bench.store.resume(bench.table.name, "ada")
    renamed(bench, is_scanned=is_scanned)
    bench.expire()
    bench.sweep()
    assert (bench.store.table_state(bench.table.name).halted_partitions, bench.state(plan)) == ({}, "completed")

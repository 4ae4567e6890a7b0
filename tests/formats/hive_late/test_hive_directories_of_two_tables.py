# SPDX-License-Identifier: Apache-2.0
"""Directories that partitions of two tables have left, outside of both tables, one after the other."""

import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest
from hive_case import Owner, table_name
from late_writing import (
    PARTITION,
    after_its_hold,
    brought_home,
    data_files,
    here,
    home,
    in_partition,
    killed_before_it_records,
    overwrite,
    point_at,
    rows_in,
    swept,
    wait_for_other_second,
    write,
)
from renaming import lose_database, renamed
from test_hive_restored_database import backup, set_back
from toys.bench import Bench

from executors.cleaner import CleanJob, CleanReport, clean_table
from executors.outcome import RunResult
from executors.relocation.partition_sweep import SweepReport
from executors.relocation.sweep import restore_original_locations, sweep_partitions
from executors.sweep import sweep_table
from lake.capabilities import with_identity
from lake.errors import Conflict
from lake.formats.hive.directories import directory_index
from lake.model import TableRef

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]

OTHER = "dt=7"


class TwoTables:
    """A table whose partition has left a directory, and another one whose partition is read from it."""

    def __init__(self, bench: Bench, directory: Path) -> None:
        self.bench, self.directory = bench, directory
        shutil.move(home(bench), directory)
        home(bench).mkdir()
        point_at(bench, directory)
        self.compact(bench.table, PARTITION)
        self.second = bench.add_table("second")
        with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
            owner.add(table_name(self.second), "7", directory)
        directory_index.clear_directory_caches()

    def compact(self, table: TableRef, partition: str) -> None:
        self.bench.request(table, partitions=[partition])
        assert self.bench.run().result is RunResult.COMPLETED

    @property
    def place(self) -> Path:
        """Where the second table's partition is."""
        return self.bench.case.places(self.second)[OTHER]  # type: ignore[attr-defined]

    def rows(self) -> tuple[list[str], list[str]]:
        """The rows that readers of the two partitions see."""
        return in_partition(self.bench), rows_in(self.place)

    def sweep(self, *, grace: timedelta = timedelta(hours=1)) -> tuple[SweepReport, SweepReport]:
        return swept(self.bench, grace=grace), self.sweep_second(grace=grace)

    def sweep_second(self, *, grace: timedelta = timedelta(hours=1)) -> SweepReport:
        return sweep_partitions(self.second, self.bench.context(), format=self.bench.format, grace=grace)

    def clean_second(self) -> CleanReport:
        job = CleanJob(table=self.second, retention=timedelta())
        return clean_table(job, self.bench.context(), format=self.bench.format)

    def halts(self) -> dict[str, str]:
        store = self.bench.store
        return {**store.halted_partitions(self.bench.table), **store.halted_partitions(self.second)}

    def drop_second(self) -> None:
        with Owner(self.bench.case.uri) as owner:  # type: ignore[attr-defined]
            owner.drop_table(table_name(self.second))
        directory_index.clear_directory_caches()


@pytest.fixture
def left_by_one(unmoved: Bench, tmp_path: Path) -> TwoTables:
    return TwoTables(unmoved, tmp_path / "landing")


@pytest.fixture
def left_by_both(left_by_one: TwoTables) -> TwoTables:
    left_by_one.compact(left_by_one.second, OTHER)
    assert left_by_one.place != left_by_one.directory
    return left_by_one


def killed(both: TwoTables) -> str:
    """The id of a plan of the second table whose executor was killed right after the commit."""
    plan = killed_before_it_records(both.bench, table=both.second, partitions=[OTHER])
    assert both.place != both.directory
    return plan.plan_id


def both_get_late_rows(both: TwoTables) -> None:
    """Write a late file, and check that each sweep leaves its rows in both partitions once."""
    place, (one, other) = both.place, both.rows()
    late = write(both.directory, 900, 910)
    for _ in range(2):
        both.sweep()
        assert (both.halts(), both.place) == ({}, place)
        assert both.rows() == (sorted([*one, *late]), sorted([*other, *late]))
        both.bench.clean()


def recorded(both: TwoTables) -> None:
    """The killed plan was recorded: its rows must be those of its commit, for good."""
    both_get_late_rows(both)
    both.clean_second()
    assert data_files(both.directory) == []
    assert (both.sweep(grace=timedelta()), both.halts()) == ((SweepReport(), SweepReport()), {})


def test_rule_2_files_that_a_killed_plan_of_another_table_has_replaced_are_kept_for_its_whole_retention(
    left_by_one: TwoTables,
):
    """The first table's retention was over: they were deleted at once, and a late file took the rows away."""
    both, bench = left_by_one, left_by_one.bench
    files, plan = data_files(both.directory), killed(left_by_one)
    kept = {one.reason for one in bench.clean().kept}
    assert [path for path in files if not path.exists()] == []
    assert f"plan {plan} of table second is inflight, and rewrites files in the same directory" in kept
    after_its_hold(bench)
    bench.rescue()
    assert bench.store.plan(plan).state.value == "completed"
    recorded(both)


def test_rule_2_files_in_a_tables_own_directory_are_kept_for_a_killed_plan_of_another_table(unmoved: Bench):
    """The plan does not see a table that was created or renamed a moment ago: directories are cached for ten minutes.

    The first table's cleaner deleted the files at once.
    """
    both, bench = TwoTables(unmoved, home(unmoved).with_name("landing")), unmoved
    files = data_files(both.directory)
    with mock.patch("lake.formats.hive.directories.shared_directories._find_other_directory", return_value=None):
        plan = killed(both)
    kept = {one.reason for one in bench.clean().kept}
    assert [path for path in files if not path.exists()] == []
    assert f"plan {plan} of table second is inflight, and rewrites files in the same directory" in kept
    after_its_hold(bench)
    bench.rescue()
    assert bench.store.plan(plan).state.value == "completed"
    both_get_late_rows(both)
    assert f" has the directory {home(bench).parent}" in " ".join(one.reason for one in both.clean_second().kept)


def test_rule_2_files_that_an_ended_plan_of_another_table_has_replaced_are_kept_until_its_commit_is_recorded(
    left_by_one: TwoTables,
):
    """The plan was cancelled while its table could not be read."""
    both, bench = left_by_one, left_by_one.bench
    files, plan = data_files(both.directory), killed(left_by_one)
    taken = bench.store.take_over_expired("a rescuer")
    assert taken is not None
    bench.store.cancel(taken, "it is not there", actor="ada")
    kept = " ".join(one.reason for one in bench.clean().kept)
    assert [path for path in files if not path.exists()] == []
    assert f"of plan {plan} of table second has replaced files in the same directory, and is not recorded yet" in kept
    bench.table, first = both.second, bench.table
    bench.sweep()
    bench.table = first
    assert bench.store.plan(plan).state.value == "completed"
    recorded(both)


def test_rule_2_a_cancelled_plan_of_another_table_that_made_no_commit_keeps_no_file(left_by_one: TwoTables):
    """Its staged files are watched for a week, since its executor may have been suspended."""
    both, bench = left_by_one, left_by_one.bench
    plan = bench.request(both.second, partitions=[OTHER])

    def point(name: str) -> None:
        if name == "after_rewrite":
            raise Conflict("a writer changed the partition")

    with mock.patch("executors.run.failpoint", point):
        bench.run()
    assert bench.state(plan) == "cancelled"
    (undecided,) = bench.store.undecided_plans_elsewhere(bench.table, {str(both.directory)})
    assert (undecided.plan_id, undecided.is_inflight) == (plan.plan_id, False)
    assert data_files(both.directory) != []
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.drop(table_name(both.second), "7")
    directory_index.clear_directory_caches()
    bench.clean()
    assert data_files(both.directory) == []


@pytest.mark.parametrize("first_sweep", ["first", "second"])
def test_rule_5_a_late_file_in_a_directory_that_two_tables_left_is_copied_to_both_once(
    left_by_both: TwoTables, first_sweep: str
):
    """It halted the table that had left the directory first; the deletion for one table halted the other one."""
    both, bench = left_by_both, left_by_both.bench
    one, other = both.rows()
    late = write(both.directory, 900, 910)
    if first_sweep == "second":
        both.sweep_second()
    for _ in range(2):
        both.sweep()
        assert (both.halts(), both.rows()) == ({}, (sorted([*one, *late]), sorted([*other, *late])))
    for clean in (bench.clean, both.clean_second):
        clean()
        assert (both.sweep(grace=timedelta()), both.halts()) == ((SweepReport(), SweepReport()), {})
    assert data_files(both.directory) == []
    assert both.rows() == (sorted([*one, *late]), sorted([*other, *late]))


def test_rule_2_replaced_files_stay_until_the_table_that_left_their_directory_too_is_swept(left_by_both: TwoTables):
    """The late file was deleted before the other table had copied it: its rows were lost there."""
    both, bench = left_by_both, left_by_both.bench
    one, other = both.rows()
    files, late = data_files(both.directory), write(both.directory, 900, 910)
    assert both.sweep_second().copied == 1
    kept = " ".join(one.reason for one in both.clean_second().kept)
    assert f"the sweep comes first: table {bench.table.name}: " in kept
    assert [path for path in files if not path.exists()] == []
    both.sweep()
    both.clean_second()
    bench.clean()
    assert data_files(both.directory) == []
    assert both.sweep(grace=timedelta()) == (SweepReport(), SweepReport())
    assert (both.halts(), both.rows()) == ({}, (sorted([*one, *late]), sorted([*other, *late])))


def test_rule_5_an_overwrite_of_a_directory_that_two_tables_left_moves_one_back_and_halts_the_other_one(
    left_by_both: TwoTables,
):
    both = left_by_both
    one, _ = both.rows()
    place, anew = here(both.bench), overwrite(both.directory, 500, 510)
    for _ in range(2):
        both.sweep()
        assert (both.place, both.rows()) == (both.directory, (one, sorted(anew)))
    assert (here(both.bench), both.halts()) == (place, {})
    reasons = both.sweep(grace=timedelta())[0].halt_reasons
    assert "which another partition has replaced since" in reasons[PARTITION]
    assert both.rows() == (one, sorted(anew))


def test_rule_2_a_partition_is_not_restored_to_a_directory_that_another_table_has_left_too(left_by_both: TwoTables):
    """The other table took the restored files for late files, and was halted."""
    both, bench = left_by_both, left_by_both.bench
    both.clean_second()
    assert data_files(both.directory) == []
    before, places = both.rows(), (here(bench), both.place)
    for _ in range(2):
        assert brought_home(bench).waiting >= 1
        older_than = timedelta()
        restore_original_locations(both.second, bench.context(), format=bench.format, older_than=older_than)
        assert both.sweep(grace=timedelta()) == (SweepReport(), SweepReport())
        assert ((here(bench), both.place), both.rows(), both.halts()) == (places, before, {})
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.drop(table_name(both.second), "7")
    brought_home(bench)
    assert (here(bench), in_partition(bench), both.halts()) == (both.directory, before[0], {})


def test_rule_2_a_table_that_was_dropped_hinders_no_deletion_of_another_one(left_by_both: TwoTables):
    both, bench = left_by_both, left_by_both.bench
    rows, late = in_partition(bench), write(both.directory, 900, 910)
    both.drop_second()
    swept(bench)
    report = bench.clean()
    assert (report.error, report.kept) == (None, ())
    assert not (both.directory / "part-late.parquet").exists()
    assert data_files(both.directory) != [], "the dropped table has replaced them last"
    assert (in_partition(bench), both.halts()) == (sorted([*rows, *late]), {})


def test_rule_2_a_table_that_was_dropped_hinders_no_restore_of_another_one(left_by_both: TwoTables):
    both, bench = left_by_both, left_by_both.bench
    rows = in_partition(bench)
    both.clean_second()
    both.drop_second()
    brought_home(bench)
    assert (here(bench), in_partition(bench), both.halts()) == (both.directory, rows, {})


def test_rule_2_a_table_whose_metastore_is_gone_hinders_only_work_on_the_directory_that_it_has_left_too(
    left_by_both: TwoTables,
):
    """No file of this table was deleted, and no partition returned to its own directory, for as long as it was gone."""
    both, bench = left_by_both, left_by_both.bench
    both.compact(bench.table, "dt=1")
    late = write(both.directory, 900, 910)
    assert swept(bench).copied == 1
    rows, place = in_partition(bench), here(bench)
    assert set(late) <= set(rows)
    assert both.second.catalog is not None
    gone = replace(both.second, catalog=replace(both.second.catalog, name="thrift://127.0.0.1:9"))
    bench.store.register_table(gone, "compact")
    report = bench.clean()
    assert (report.error, {one.partition for one in report.deleted}) == (None, {"dt=1"})
    assert {one.version.partition for one in report.kept} == {PARTITION}
    assert all(f"table {both.second.name}: it can't be inspected: " in one.reason for one in report.kept)
    bench.store.register_table(both.second, "compact")
    both.sweep()
    both.clean_second()
    bench.clean()
    assert data_files(both.directory) == []
    bench.store.register_table(gone, "compact")
    assert brought_home(bench).waiting >= 1
    places = bench.case.places(bench.table)  # type: ignore[attr-defined]
    assert (places["dt=1"], here(bench)) == (Path(bench.table.location) / "dt=1", place)
    assert (in_partition(bench), both.halts()) == (rows, {})


def test_rule_6_a_partition_that_is_added_again_over_files_that_stay_for_another_table_is_halted(
    left_by_both: TwoTables,
):
    """A plan merged the replaced rows with the new ones."""
    both, bench = left_by_both, left_by_both.bench
    _, other = both.rows()
    replaced = set(rows_in(both.directory))
    wait_for_other_second(bench)
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.drop(table_name(bench.table), "0")
        bench.sweep()
        owner.add(table_name(bench.table), "0", both.directory)
    directory_index.clear_directory_caches()
    anew = write(both.directory, 900, 910)
    both.sweep()
    assert "another partition has left this directory as well" in both.halts()[PARTITION]
    both.sweep()
    both.clean_second()
    assert set(in_partition(bench)) == replaced | set(anew)
    assert set(other) <= set(rows_in(both.place))


@pytest.mark.parametrize("what", ["partition", "table"])
@pytest.mark.parametrize("which", ["first", "second"])
def test_rule_5_a_late_file_is_copied_to_both_tables_if_one_or_its_partition_was_renamed(
    left_by_both: TwoTables, which: str, what: str
):
    both, bench = left_by_both, left_by_both.bench
    one, other = both.rows()
    late = set(write(both.directory, 900, 910))
    for table, value in ((bench.table, "0"), (both.second, "7")):
        if (which == "first") is not (table is bench.table):
            continue
        if what == "partition":
            with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
                owner.rename(table_name(table), value, "9")
        else:
            first, bench.table = bench.table, table
            renamed(bench)
            first, both.second = (bench.table, both.second) if which == "first" else (first, bench.table)
            bench.table = first
    directory_index.clear_directory_caches()
    for _ in range(3):
        sweep_table(bench.table, bench.context(), format=bench.format)
        sweep_table(both.second, bench.context(), format=bench.format)
        bench.clean()
        both.clean_second()
    places = [bench.case.places(table) for table in (bench.table, both.second)]  # type: ignore[attr-defined]
    name = "dt=9" if what == "partition" else None
    rows = [rows_in(at[name if name in at else kept]) for at, kept in zip(places, (PARTITION, OTHER), strict=True)]
    assert (both.halts(), rows) == ({}, [sorted([*one, *late]), sorted([*other, *late])])
    assert data_files(both.directory) == []


def test_rule_6_replaced_files_are_not_moved_aside_while_a_commit_of_another_table_is_not_recorded(
    left_by_one: TwoTables,
):
    """They were moved aside, and the other table was moved back by the next late file: its rows were lost."""
    both, bench = left_by_one, left_by_one.bench
    files, plan = data_files(both.directory), killed(left_by_one)
    wait_for_other_second(bench)
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.drop(table_name(bench.table), "0")
        owner.add(table_name(bench.table), "0", both.directory)
    directory_index.clear_directory_caches()
    assert swept(bench).deferred == [PARTITION]
    assert data_files(both.directory) == files
    after_its_hold(bench)
    bench.rescue()
    assert bench.store.plan(plan).state.value == "completed"
    place, rows = both.place, rows_in(both.place)
    late = write(both.directory, 900, 910)
    both.sweep()
    assert (both.place, rows_in(place), set(both.halts())) == (place, sorted([*rows, *late]), {PARTITION})


@pytest.mark.parametrize("found_first", ["first", "second"])
@pytest.mark.parametrize("is_deleted", [False, True], ids=["retained", "deleted"])
def test_rule_2_files_that_two_tables_have_replaced_stay_the_same_evidence_if_the_database_is_lost(
    left_by_both: TwoTables, found_first: str, is_deleted: bool
):
    """The table that was found last took the deletion for an overwrite: the next late file took its rows away."""
    both, bench = left_by_both, left_by_both.bench
    place, rows_before = (here(bench), both.place), both.rows()
    if is_deleted:
        both.clean_second()
        assert data_files(both.directory) == []
    lose_database(bench)
    both.second = with_identity(bench.format, replace(both.second, identity=None))
    bench.store.register_table(both.second, "compact")
    order = [bench.table, both.second] if found_first == "first" else [both.second, bench.table]
    for table in order:
        sweep_table(table, bench.context(), format=bench.format)
    assert (both.sweep(grace=timedelta()), both.halts()) == ((SweepReport(), SweepReport()), {})
    late = [] if is_deleted else write(both.directory, 900, 910)
    if is_deleted:
        write(both.directory, 900, 910)
    for _ in range(2):
        both.sweep()
        assert (here(bench), both.place) == place
        assert both.rows() == (sorted([*rows_before[0], *late]), sorted([*rows_before[1], *late]))
        bench.clean()
        both.clean_second()
    assert set(both.halts()) == ({PARTITION, OTHER} if is_deleted else set())


def test_rule_2_files_that_were_deleted_for_another_table_after_the_backup_are_waited_for_by_none(
    left_by_both: TwoTables,
):
    both, bench = left_by_both, left_by_both.bench
    to, rows_before = backup(bench), both.rows()
    both.clean_second()
    assert data_files(both.directory) == []
    set_back(bench, to)
    assert (both.sweep(grace=timedelta()), both.halts()) == ((SweepReport(), SweepReport()), {})
    write(both.directory, 900, 910)
    both.sweep()
    assert (set(both.halts()), both.rows()) == ({PARTITION, OTHER}, rows_before)


def test_rule_2_files_of_a_killed_plan_whose_table_is_gone_are_kept_until_its_commit_is_recorded(
    left_by_one: TwoTables,
):
    """The table may have another name now, under which its commit is found by the next sweep."""
    both, bench = left_by_one, left_by_one.bench
    files = data_files(both.directory)
    killed(both)
    taken = bench.store.take_over_expired("a rescuer")
    assert taken is not None
    bench.store.cancel(taken, "it is not there", actor="ada")
    both.drop_second()
    kept = " ".join(one.reason for one in bench.clean().kept)
    assert "may have replaced files in the same directory" in kept
    assert [path for path in files if not path.exists()] == []
    bench.execute("UPDATE staged SET staged_at_ms = staged_at_ms - 86400000 * 7")
    bench.clean()
    assert data_files(both.directory) == []

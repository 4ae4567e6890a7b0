# SPDX-License-Identifier: Apache-2.0
"""Directories that partitions of two tables share, as ``ADD PARTITION … LOCATION`` leaves them."""

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hive_case import DATABASE, HiveCase, Owner, table_name
from hive_metastore import MetastoreServer
from late_writing import (
    PARTITION,
    added_again,
    brought_home,
    dropped,
    halted,
    here,
    home,
    in_partition,
    point_at,
    rows_in,
    swept,
    write,
)
from other_table import OTHER, metastore_table, pointed, published, reasons
from toys.bench import Bench, bench_at

from executors.cleaner import CleanJob, clean_table
from executors.outcome import RunResult
from executors.relocation import sweep
from executors.relocation.partition_sweep import SweepReport
from executors.sweep import sweep_table
from lake.formats.hive.directories import directory_index, shared_directories
from lake.formats.hive.writer import HiveWriter
from lake.metastore import pooled_connection

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]


@pytest.fixture(params=["parquet", "orc"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def orc_or_parquet(metastore: MetastoreServer, tmp_path: Path, kind: str) -> Iterator[Bench]:
    with bench_at(tmp_path, HiveCase(uri=metastore.uri, kind=kind)) as made:
        yield made


@pytest.mark.crossed(2)
def test_rule_7_replaced_files_that_a_partition_of_another_table_is_read_from_are_not_deleted(
    orc_or_parquet: Bench, other: Owner
):
    bench = orc_or_parquet
    rows_before, files = bench.rows(), sorted(home(bench).iterdir())
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    published(other, home(bench))
    reports = bench.clean(), bench.clean()
    assert (sorted(home(bench).iterdir()), bench.rows()) == (files, rows_before)
    assert {one.partition for report in reports for one in report.deleted} == {"dt=1"}
    assert {kept.version.partition for kept in reports[1].kept} == {PARTITION}
    assert f"partition dt=0 of table {DATABASE}.{OTHER} is read from {home(bench)}" in reports[1].kept[0].reason
    other.drop(OTHER, "0")
    assert {one.partition for one in bench.clean().deleted} == {PARTITION}


def test_rule_7_a_partition_that_another_table_is_read_from_too_is_left_alone_and_the_others_are_rewritten(
    unmoved: Bench, other: Owner
):
    bench = unmoved
    directory_index.clear_directory_caches()
    published(other, home(bench))
    (reason,) = {reasons(bench)[PARTITION]}
    assert reasons(bench)["dt=1"] is None
    assert reason is not None
    assert f"partition dt=0 of table {DATABASE}.{OTHER}" in reason
    assert "give each one a directory of its own" in reason


def test_rule_7_a_partition_that_is_published_while_its_plan_runs_is_left_out_of_the_commit(
    unmoved: Bench, other: Owner, monkeypatch: pytest.MonkeyPatch
):
    bench, places = unmoved, unmoved.case.places(unmoved.table)  # type: ignore[attr-defined]
    bench.request()
    directory_index.clear_directory_caches()

    def point(name: str) -> None:
        if name == "after_rewrite":
            published(other, home(bench))
            directory_index.clear_directory_caches()

    monkeypatch.setattr("executors.run.failpoint", point)
    assert bench.run().result is RunResult.COMPLETED
    now = bench.case.places(bench.table)  # type: ignore[attr-defined]
    assert (now[PARTITION], now["dt=1"] != places["dt=1"]) == (places[PARTITION], True)


def test_rule_7_a_partition_in_the_directory_of_another_table_is_left_alone_and_its_files_stay(
    unmoved: Bench, other: Owner, tmp_path: Path
):
    """The table that publishes may be the one that lakefold compacts: its partition is in the source's directory."""
    bench = unmoved
    source = tmp_path / "other" / "dt=5"
    source.mkdir(parents=True)
    rows = write(source, 500, 510, "part-a.parquet") + write(source, 510, 520, "part-b.parquet")
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.add(table_name(bench.table), "5", source)
    directory_index.clear_directory_caches()
    assert f"table {DATABASE}.{OTHER} has the directory" in str(reasons(bench)["dt=5"])
    published(other, source, "5")
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    bench.clean()
    assert rows_in(source) == sorted(rows)


def test_rule_7_a_version_that_another_table_is_read_from_is_not_deleted(bench: Bench, other: Owner):
    version, rows = here(bench), in_partition(bench)
    bench.request(partitions=[PARTITION])
    claim = bench.claim()
    directory_index.clear_directory_caches()
    assert reasons(bench)[PARTITION] is None
    published(other, version)
    # The plan does not see it yet: neighbours are remembered for some minutes.
    assert bench.run(claim).result is RunResult.COMPLETED
    assert here(bench) != version
    bench.clean()
    assert rows_in(version) == rows
    other.drop(OTHER, "0")
    bench.clean()
    assert not version.exists()


def test_rule_7_replaced_files_of_a_dropped_partition_are_not_moved_aside_while_another_table_is_read_from_them(
    bench: Bench, other: Owner
):
    files = sorted(home(bench).iterdir())
    published(other, home(bench))
    directory_index.clear_directory_caches()
    dropped(bench)
    assert (swept(bench), halted(bench)) == (SweepReport(), None)
    assert sorted(home(bench).iterdir()) == files
    other.drop(OTHER, "0")
    assert swept(bench).superseded == len(files)


@pytest.mark.crossed(2)
@pytest.mark.parametrize("swept_between", [False, True])
def test_rule_7_replaced_files_of_a_partition_that_is_added_again_stay_while_another_table_is_read_from_them(
    bench: Bench, other: Owner, swept_between: bool
):
    """They were moved aside, and then deleted: the other table lost its rows."""
    files, row_count = sorted(home(bench).iterdir()), len(rows_in(home(bench)))
    published(other, home(bench))
    directory_index.clear_directory_caches()
    dropped(bench)
    if swept_between:
        bench.sweep()
    added_again(bench)
    rows = write(home(bench), 900, 910, "part-anew.parquet")
    for _ in range(2):
        bench.sweep()
        bench.clean()
    reason = str(halted(bench))
    assert f"partition dt=0 of table {DATABASE}.{OTHER} is read from {home(bench)}" in reason
    assert "give each one a directory of its own" in reason
    assert len(rows_in(home(bench))) == row_count + 10, "nothing was moved, and nothing merged"
    assert set(files) <= set(home(bench).iterdir())
    waiting = [one.version for one in bench.store.awaiting_deletion(bench.table)]
    assert {version.partition for version in waiting} == {PARTITION}
    bench.store.resume(bench.table.name, "ada")
    plan = bench.request(partitions=[PARTITION])
    assert (bench.run().result is RunResult.COMPLETED, bench.state(plan)) == (False, "cancelled")
    bench.sweep()
    assert halted(bench) == reason, "halted again, as long as the other table is read from there"
    other.drop(OTHER, "0")
    bench.sweep()
    assert (in_partition(bench), len(bench.store.awaiting_deletion(bench.table))) == (sorted(rows), len(files))
    bench.store.resume(bench.table.name, "ada")
    bench.clean()
    assert (in_partition(bench), halted(bench), swept(bench)) == (sorted(rows), None, SweepReport())
    assert bench.store.awaiting_deletion(bench.table) == []


def test_rule_7_a_partition_with_a_directory_of_its_own_leaves_replaced_files_to_the_table_that_is_read_from_them(
    bench: Bench, other: Owner
):
    files = sorted(home(bench).iterdir())
    published(other, home(bench))
    directory_index.clear_directory_caches()
    dropped(bench)
    added_again(bench)
    bench.sweep()
    assert halted(bench) is not None
    dropped(bench)
    elsewhere = home(bench).with_name("elsewhere")
    elsewhere.mkdir()
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.add(table_name(bench.table), "0", elsewhere)
    rows = write(elsewhere, 900, 910)
    bench.store.resume(bench.table.name, "ada")
    bench.sweep()
    bench.clean()
    assert (in_partition(bench), halted(bench), sorted(home(bench).iterdir())) == (sorted(rows), None, files)


def test_rule_7_replaced_files_of_a_partition_that_is_added_again_stay_while_another_partition_is_read_from_them(
    bench: Bench,
):
    files = sorted(home(bench).iterdir())
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.add(table_name(bench.table), "7", home(bench))
    dropped(bench)
    added_again(bench)
    bench.sweep()
    assert f"partition dt=7 is read from {home(bench)}" in str(halted(bench))
    bench.clean()
    assert sorted(home(bench).iterdir()) == files


def test_rule_7_another_partition_of_the_table_keeps_replaced_files_of_a_dropped_one_too(bench: Bench):
    files = sorted(home(bench).iterdir())
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.add(table_name(bench.table), "7", home(bench))
    dropped(bench)
    assert swept(bench) == SweepReport()
    bench.clean()
    assert sorted(home(bench).iterdir()) == files


@pytest.mark.parametrize("is_added", [False, True], ids=["dropped", "added again"])
def test_rule_7_replaced_files_are_not_moved_aside_where_another_table_was_pointed_to_them_in_the_last_hour(
    bench: Bench, other: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_added: bool
):
    """Its known partition was not read again: its readers missed the rows, and after the retention they were gone."""
    monkeypatch.setattr(shared_directories, "DELETION_MAX_AGE", timedelta())
    monkeypatch.setattr(shared_directories, "_LOAD_INTERVAL_FACTOR", 0)
    published(other, tmp_path / "other" / "dt=0")
    directory_index.clear_directory_caches()
    files = sorted(home(bench).iterdir())
    with pooled_connection(bench.case.uri) as metastore:  # type: ignore[attr-defined]
        assert shared_directories.foreign_readers(metastore, metastore_table(bench), [str(home(bench))]) == {}
    pointed(other, home(bench))
    dropped(bench)
    if is_added:
        added_again(bench)
    bench.sweep()
    assert sorted(home(bench).iterdir()) == files
    assert (f"partition dt=0 of table {DATABASE}.{OTHER} is read from" in str(halted(bench))) is is_added


def test_rule_7_files_that_were_moved_aside_are_not_deleted_while_another_table_is_read_from_their_directory(
    bench: Bench, other: Owner
):
    """It may have been read from there when they were moved, and the sweep did not know it yet."""
    files = len(list(home(bench).iterdir()))
    dropped(bench)
    assert swept(bench).superseded == files
    published(other, home(bench))
    directory_index.clear_directory_caches()
    reports = bench.clean(), bench.clean()
    assert {version.partition for report in reports for version in report.deleted} == {"dt=1"}
    assert [kept.version.partition for kept in reports[1].kept] == [PARTITION] * files
    assert f"is read from {home(bench)}" in reports[1].kept[0].reason
    other.drop(OTHER, "0")
    assert [version.partition for version in bench.clean().deleted] == [PARTITION] * files


def check_restored_after(bench: Bench, other: Owner, reader: str, directory: Path) -> None:
    """The partition is restored only once no other ``reader`` reads ``directory``."""
    place, rows = here(bench), in_partition(bench)
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        if reader == "another table":
            published(other, directory)
        else:
            owner.add(table_name(bench.table), "7", directory)
        directory_index.clear_directory_caches()
        report = brought_home(bench)
        assert (report.relocated_back, report.waiting, here(bench)) == (1, 1, place)
        assert (list(home(bench).iterdir()), in_partition(bench)) == ([], rows)
        if reader == "another table":
            other.drop(OTHER, "0")
        else:
            owner.drop(table_name(bench.table), "7")
    assert (brought_home(bench).relocated_back, here(bench), in_partition(bench)) == (1, home(bench), rows)


@pytest.mark.parametrize("reader", ["another table", "another partition"])
def test_rule_7_a_partition_does_not_return_to_a_directory_that_others_are_read_from(
    bench: Bench, other: Owner, reader: str
):
    """Their readers saw its rows from then on."""
    bench.clean()
    check_restored_after(bench, other, reader, home(bench))


@pytest.mark.parametrize("reader", ["another table", "another partition"])
def test_rule_7_a_partition_does_not_return_from_a_directory_that_others_are_read_from(
    bench: Bench, other: Owner, reader: str
):
    """Their readers missed what was written to it from then on."""
    bench.clean()
    check_restored_after(bench, other, reader, here(bench))


@pytest.mark.parametrize("reader", ["another table", "another partition"])
def test_rule_7_a_partition_does_not_return_to_a_directory_that_others_are_read_from_since_the_round_began(
    bench: Bench, other: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str
):
    """A round restores thousands of partitions one after the other; it checked their other readers only once."""
    monkeypatch.setattr(sweep, "_SEARCH_INTERVAL_FACTOR", 0)
    monkeypatch.setattr(shared_directories, "DELETION_MAX_AGE", timedelta())
    monkeypatch.setattr(shared_directories, "_LOAD_INTERVAL_FACTOR", 0)
    published(other, tmp_path / "other" / "dt=0")
    bench.clean()
    place, rows, sweep_each = here(bench), in_partition(bench), sweep._sweep_each

    def given_away_first(*arguments: Any, **options: Any) -> SweepReport:
        if reader == "another table":
            pointed(other, home(bench))
        else:
            with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
                owner.add(table_name(bench.table), "7", home(bench))
        return sweep_each(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(sweep, "_sweep_each", given_away_first)
        report = brought_home(bench)
    assert (report.relocated_back, report.waiting, here(bench)) == (1, 1, place)
    assert (list(home(bench).iterdir()), in_partition(bench), halted(bench)) == ([], rows, None)


@pytest.mark.parametrize("reader", ["another table", "another partition"])
def test_rule_7_a_reader_that_gets_the_directory_while_files_are_copied_back_there_sees_none_of_them(
    bench: Bench, other: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str
):
    """It saw the copies until the last look, which found it, had them removed."""
    monkeypatch.setattr(sweep, "_SEARCH_INTERVAL_FACTOR", 0)
    monkeypatch.setattr(shared_directories, "DELETION_MAX_AGE", timedelta())
    monkeypatch.setattr(shared_directories, "_LOAD_INTERVAL_FACTOR", 0)
    published(other, tmp_path / "other" / "dt=0")
    bench.clean()
    place, rows, shown = here(bench), in_partition(bench), list[str]()
    copy_hidden, publish_copies = HiveWriter.copy_hidden, HiveWriter.publish_copies

    def given_away_meanwhile(writer: HiveWriter, pairs: Any) -> Any:
        missing = copy_hidden(writer, pairs)
        if not pairs[0][1].startswith(f"{PARTITION}/"):
            pass
        elif reader == "another table":
            pointed(other, home(bench))
        else:
            with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
                owner.add(table_name(bench.table), "7", home(bench))
        return missing

    def publish(writer: HiveWriter, pairs: Any) -> None:
        shown.extend(target for _, target in pairs if target.startswith(f"{PARTITION}/"))
        publish_copies(writer, pairs)

    monkeypatch.setattr(HiveWriter, "copy_hidden", given_away_meanwhile)
    monkeypatch.setattr(HiveWriter, "publish_copies", publish)
    brought_home(bench)
    assert (shown, list(home(bench).iterdir()), here(bench)) == ([], [], place)
    assert (in_partition(bench), halted(bench)) == (rows, None)


def its_rows_are_not_those_of_its_former_directory(bench: Bench) -> None:
    rows, place = in_partition(bench), here(bench)
    added = write(home(bench), 900, 910)
    for _ in range(2):
        bench.sweep()
        bench.clean()
    assert (here(bench), in_partition(bench), halted(bench)) == (place, rows, None)
    assert set(added) <= set(rows_in(home(bench)))


def test_rule_7_a_partition_does_not_get_the_rows_of_one_that_its_owner_gave_its_former_directory(
    bench: Bench, tmp_path: Path
):
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(here(bench), elsewhere)
    point_at(bench, elsewhere)
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.add(table_name(bench.table), "7", home(bench))
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    its_rows_are_not_those_of_its_former_directory(bench)


@pytest.mark.parametrize("change", ["ADD PARTITION", "SET LOCATION"])
def test_rule_7_a_partition_does_not_get_the_rows_of_another_table_that_got_its_former_directory_a_moment_ago(
    bench: Bench, other: Owner, tmp_path: Path, change: str
):
    """The directories of all tables had been read before that, and the rows were copied for good."""
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(here(bench), elsewhere)
    point_at(bench, elsewhere)
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    if change == "SET LOCATION":
        published(other, tmp_path / "other" / "dt=0")
    directory_index.clear_directory_caches()
    with pooled_connection(bench.case.uri) as metastore:  # type: ignore[attr-defined]
        assert shared_directories.foreign_readers(metastore, metastore_table(bench), [str(home(bench))]) == {}
    (pointed if change == "SET LOCATION" else published)(other, home(bench))
    its_rows_are_not_those_of_its_former_directory(bench)


def test_rule_2_files_that_two_tables_have_replaced_are_deleted_when_the_retention_of_both_has_passed(
    unmoved: Bench, tmp_path: Path
):
    """Their deletion by one table was an overwrite for the other one, whose rows were lost when a late file came."""
    bench, elsewhere = unmoved, tmp_path / "elsewhere"
    shutil.move(home(bench), elsewhere)
    home(bench).mkdir()
    point_at(bench, elsewhere)
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    second = bench.add_table("second")
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.add(table_name(second), "7", elsewhere)
    directory_index.clear_directory_caches()
    bench.request(second, partitions=["dt=7"])
    assert bench.run().result is RunResult.COMPLETED
    place = bench.case.places(second)["dt=7"]  # type: ignore[attr-defined]
    rows, files = rows_in(place), sorted(elsewhere.iterdir())
    bench.execute(f"UPDATE superseded_version SET superseded_at_ms = 1 WHERE table_name = '{bench.table.name}'")
    bench.clean(timedelta(days=7))
    assert (sorted(elsewhere.iterdir()), place != elsewhere) == (files, True)
    late = write(elsewhere, 900, 910)
    for _ in range(2):
        sweep_table(second, bench.context(), format=bench.format)
    assert bench.case.places(second)["dt=7"] == place  # type: ignore[attr-defined]
    assert rows_in(place) == sorted([*rows, *late])
    bench.sweep()  # the files stay until the first table has copied the late file, too
    clean_table(CleanJob(table=second, retention=timedelta()), bench.context(), format=bench.format)
    assert not [path for path in files if path.exists()]


def test_rule_2_files_that_a_table_has_replaced_are_deleted_by_the_table_that_was_made_over_them_later(
    unmoved: Bench,
):
    """Its paths are below its own directory, and were compared with the full paths of the first table as texts."""
    bench, landing = unmoved, unmoved.home / "lake" / "second"
    elsewhere = landing / "d1"
    landing.mkdir()
    shutil.move(home(bench), elsewhere)
    home(bench).mkdir()
    point_at(bench, elsewhere)
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    place, rows = here(bench), in_partition(bench)
    second = bench.add_table("second")
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.add(table_name(second), "7", elsewhere)
    directory_index.clear_directory_caches()
    bench.request(second, partitions=["dt=7"])
    assert bench.run().result is RunResult.COMPLETED
    waiting = [one.version.path for one in bench.store.awaiting_deletion(bench.table)]
    assert not [path for path in waiting if path.startswith(str(elsewhere))], "the second table deletes them"
    files = sorted(elsewhere.iterdir())
    clean_table(CleanJob(table=second, retention=timedelta()), bench.context(), format=bench.format)
    assert not [path for path in files if path.exists()]
    for grace in (timedelta(hours=1), timedelta()):
        swept(bench, grace=grace)
    assert (here(bench), in_partition(bench), halted(bench)) == (place, rows, None)

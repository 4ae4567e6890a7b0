# SPDX-License-Identifier: Apache-2.0
"""What owners do to partitions that were moved, and the way home of these: rules 6, 7 and 11."""

import shutil
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hive_case import Owner, table_name
from late_writing import (
    PARTITION,
    Killed,
    added_again,
    alter_partitions,
    brought_home,
    counted,
    data_files,
    deletion_begun,
    dropped,
    halted,
    here,
    home,
    in_partition,
    killed_at,
    overwrite,
    point_at,
    resolved,
    rows_in,
    swept,
    true_counts,
    write,
)
from toys.bench import Bench
from toys.cases import no_spark
from waiting import wait_for

from executors.observer import Observer
from executors.outcome import RunResult
from executors.relocation.partition_sweep import SweepReport
from lake.capabilities import with_identity
from lake.formats.hive.catalog.tables import put_partitions
from lake.metastore import MetastoreClient, MetastorePartition
from lake.metastore.thrift import I32
from lake.relocation.decide import LocationChoice
from service.control.config.loader import load_config
from service.server.daemon.maintenance import Maintenance

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]


def plan_after_owner_move(bench: Bench, elsewhere: Path) -> None:
    """The owner moves the partition with its files, and then a plan rewrites it."""
    shutil.move(home(bench), elsewhere)
    home(bench).mkdir()
    point_at(bench, elsewhere)
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED


def test_rule_11_a_partition_that_its_owner_moves_while_the_sweep_is_about_to_change_it_stays_there(
    bench: Bench, tmp_path: Path
):
    (tmp_path / "elsewhere").mkdir()
    write(home(bench), 900, 910)
    with mock.patch(
        "lake.formats.hive.relocation.late_files.failpoint",
        side_effect=lambda _: point_at(bench, tmp_path / "elsewhere"),
    ):
        swept(bench)
    assert (here(bench), in_partition(bench), halted(bench)) == (tmp_path / "elsewhere", [], None)
    assert swept(bench) == SweepReport()


def moved_by_an_owner_who_read_the_partition_before(bench: Bench, elsewhere: Path) -> None:
    """A plan commits while its owner moves the partition: the owner's call has the properties from before."""
    before = bench.case.partitions(bench.table)[PARTITION]  # type: ignore[attr-defined]
    shutil.copytree(here(bench), elsewhere)
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    alter_partitions(bench, [before.with_changes(before.storage.with_location(f"file:{elsewhere}"), before.parameters)])


def test_rule_11_an_owner_s_move_that_meets_a_commit_of_lakefold_halts_nothing(bench: Bench, tmp_path: Path):
    """Spark reads a partition, and writes it with the new location and the properties that it has read."""
    elsewhere = tmp_path / "elsewhere"
    write(here(bench), 900, 910)
    rows_before = in_partition(bench)
    moved_by_an_owner_who_read_the_partition_before(bench, elsewhere)
    assert (swept(bench), halted(bench)) == (SweepReport(), None)
    assert (here(bench), in_partition(bench)) == (elsewhere, rows_before)
    more = write(elsewhere, 910, 920, "part-more.parquet")
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    assert (here(bench) != elsewhere, in_partition(bench)) == (True, sorted(rows_before + more))
    late = write(elsewhere, 920, 930, "part-late-there.parquet")
    assert (swept(bench).copied, halted(bench)) == (1, None)
    assert in_partition(bench) == sorted(rows_before + more + late)
    bench.clean()
    assert (swept(bench), in_partition(bench)) == (SweepReport(), sorted(rows_before + more + late))


def test_rule_11_a_late_file_in_a_version_that_its_owner_never_saw_is_no_row_of_the_partition(
    bench: Bench, tmp_path: Path
):
    """Without lakefold, too, a file that is written to the former directory after the owner's copy is not read."""
    elsewhere = tmp_path / "elsewhere"
    write(here(bench), 900, 910)
    rows_before = in_partition(bench)
    left = here(bench)
    moved_by_an_owner_who_read_the_partition_before(bench, elsewhere)
    write(left, 930, 940, "part-late-there.parquet")
    assert (swept(bench), halted(bench), in_partition(bench)) == (SweepReport(), None, rows_before)


def test_rule_11_a_call_after_a_suspension_halts_the_table_and_names_the_possibly_undone_change(
    unmoved: Bench, tmp_path: Path
):
    """Of the place that its owner gave a partition meanwhile nothing in the table tells."""
    bench, slept, rows_before = unmoved, [0.0], unmoved.rows()
    (tmp_path / "elsewhere").mkdir()

    def altered(*arguments: Any) -> None:
        point_at(bench, tmp_path / "elsewhere")
        slept[0] = 3600.0
        put_partitions(*arguments)

    with (
        mock.patch("lake.formats.hive.commit.metastore_commit.put_partitions", altered),
        mock.patch("lake.stopwatch.time.time", side_effect=lambda: time.time_ns() / 1e9 + slept[0]),
    ):
        plan = bench.request()
        bench.run()
    assert "the call has undone your change" in str(halted(bench))
    assert (bench.state(plan), bench.rows()) == ("completed", rows_before)


def test_rule_11_a_call_of_the_sweep_after_a_suspension_halts_its_partition(bench: Bench, tmp_path: Path):
    """Only commits were checked: the owner's move was undone without a word."""
    slept, alter = [0.0], MetastoreClient.alter_partitions
    (tmp_path / "elsewhere").mkdir()
    rows = sorted([*in_partition(bench), *write(home(bench), 900, 910)])

    def altered(*arguments: Any) -> None:
        with mock.patch.object(MetastoreClient, "alter_partitions", alter):
            point_at(bench, tmp_path / "elsewhere")
        slept[0] = 3600.0
        alter(*arguments)

    with (
        mock.patch.object(MetastoreClient, "alter_partitions", altered),
        mock.patch("lake.stopwatch.time.time", side_effect=lambda: time.time_ns() / 1e9 + slept[0]),
    ):
        swept(bench)
    assert "the call has undone your change" in str(halted(bench))
    assert in_partition(bench) == rows


def test_rule_11_a_change_that_meets_a_call_of_the_sweep_halts_the_table(bench: Bench, tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    write(home(bench), 900, 910)
    alter = MetastoreClient.alter_partitions

    def altered(*arguments: Any) -> None:
        alter(*arguments)
        with mock.patch.object(MetastoreClient, "alter_partitions", alter):
            point_at(bench, tmp_path / "elsewhere")

    with mock.patch.object(MetastoreClient, "alter_partitions", altered):
        assert swept(bench).first_halt_reason
    assert "one of the two may have undone the other" in str(halted(bench))
    assert here(bench) == tmp_path / "elsewhere"


def test_rule_11_a_partition_that_is_written_back_right_after_a_call_of_the_sweep_is_restored_by_the_next_one(
    bench: Bench,
):
    before, alter = in_partition(bench), MetastoreClient.alter_partitions
    bench.clean()
    entry = bench.case.partitions(bench.table)[PARTITION]  # type: ignore[attr-defined]

    def met(*arguments: Any) -> None:
        alter(*arguments)
        with mock.patch.object(MetastoreClient, "alter_partitions", alter):
            alter_partitions(bench, [entry])

    with mock.patch.object(MetastoreClient, "alter_partitions", met):
        brought_home(bench)
    assert (here(bench) != home(bench), halted(bench)) == (True, None)
    swept(bench)
    assert (here(bench), in_partition(bench), halted(bench)) == (home(bench), before, None)


def test_rule_6_a_partition_is_restored_once_replaced_files_are_deleted_and_late_writers_still_find_it(bench: Bench):
    before, place = in_partition(bench), here(bench)
    assert (brought_home(bench).waiting, here(bench)) == (2, place)
    bench.clean()
    assert (brought_home(bench).relocated_back, here(bench), in_partition(bench)) == (2, home(bench), before)
    assert counted(bench) == true_counts(bench)
    assert (brought_home(bench), swept(bench)) == (SweepReport(), SweepReport())
    late = write(place, 900, 910)
    assert (swept(bench).copied, in_partition(bench)) == (1, sorted(before + late))
    bench.clean()
    assert (data_files(place) if place.exists() else [], in_partition(bench)) == ([], sorted(before + late))
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    assert (swept(bench), in_partition(bench)) == (SweepReport(), sorted(before + late))


def test_rule_6_an_overwritten_partition_is_restored_and_the_overwritten_files_are_not_expected(
    bench: Bench,
):
    bench.clean()
    anew, left = overwrite(here(bench), 900, 910), here(bench)
    brought_home(bench)
    assert (here(bench), in_partition(bench), swept(bench)) == (home(bench), sorted(anew), SweepReport())
    # A writer that spanned this move, too, is followed.
    last = overwrite(left, 910, 920)
    assert (swept(bench).relocated_back, here(bench), in_partition(bench)) == (1, left, sorted(last))


@pytest.mark.crossed
@pytest.mark.parametrize("swept_between", [True, False])
def test_rule_6_a_partition_that_is_dropped_and_added_again_shows_no_replaced_file(bench: Bench, swept_between: bool):
    replaced = {path.name for path in data_files(home(bench))}
    dropped(bench)
    if swept_between:
        assert (swept(bench).superseded, data_files(home(bench))) == (3, [])
    added_again(bench)
    anew = write(home(bench), 800, 810, "000000_0")
    assert swept(bench).superseded == (0 if swept_between else 3)
    assert (in_partition(bench), swept(bench)) == (sorted(anew), SweepReport())
    aside = {path.name for path in (Path(bench.table.location) / ".lakefold/_aside").rglob("*") if path.is_file()}
    assert aside == replaced, "they are kept until their retention has passed"
    assert [entry.action for entry in bench.store.audit_entries() if entry.actor == "sweep"] == ["files moved aside"]
    write(home(bench), 810, 815, "000001_0")
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    rows_ = in_partition(bench)
    assert (len(rows_), swept(bench)) == (15, SweepReport())
    bench.clean()
    assert (in_partition(bench), swept(bench)) == (rows_, SweepReport())
    assert not [path for path in (Path(bench.table.location) / ".lakefold/_aside").rglob("*") if path.is_file()]


def test_rule_2_late_files_are_read_although_an_earlier_location_was_overwritten_before_the_partition_was_added_again(
    bench: Bench,
):
    """The overwrite counted as one that is at work, for an hour, and then halted the partition."""
    first = here(bench)
    write(first, 900, 910)
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    overwrite(first, 500, 520)
    second, ended = here(bench), int(time.time())
    wait_for(lambda: int(time.time()) > ended, "time stands still")  # creation times have whole seconds
    dropped(bench)
    shutil.rmtree(second)
    assert swept(bench).superseded == 3
    added_again(bench)
    anew = write(home(bench), 800, 810, "000000_0") + write(home(bench), 810, 815, "000001_0")
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    assert here(bench) != home(bench)
    late = write(home(bench), 920, 930) + write(first, 930, 940)
    assert (swept(bench).copied, halted(bench)) == (2, None)
    assert in_partition(bench) == sorted(anew + late)
    bench.clean()
    assert (swept(bench), in_partition(bench)) == (SweepReport(), sorted(anew + late))


@pytest.mark.parametrize("died", ["before the first file", "after a file", "without the metastore"])
def test_rule_6_a_partition_that_is_added_again_after_a_deletion_had_begun_shows_no_replaced_file(
    bench: Bench, died: str
):
    deletion_begun(bench, died)
    dropped(bench)
    added_again(bench)
    anew = write(home(bench), 800, 810, "000000_0")
    assert swept(bench).superseded == (2 if died == "after a file" else 3)
    assert (in_partition(bench), swept(bench), halted(bench)) == (sorted(anew), SweepReport(), None)
    bench.clean()
    assert (in_partition(bench), swept(bench), bench.store.awaiting_deletion(bench.table)) == (
        sorted(anew),
        SweepReport(),
        [],
    )
    assert not [path for path in (Path(bench.table.location) / ".lakefold/_aside").rglob("*") if path.is_file()]


@pytest.mark.crossed
@pytest.mark.parametrize("cleaned", [False, True])
def test_rule_6_a_partition_that_is_exchanged_leaves_its_rows_and_halts_the_table_until_they_are_where_they_should_be(
    bench: Bench, tmp_path: Path, cleaned: bool
):
    place, expected = here(bench), in_partition(bench)
    expected = sorted([*expected, *write(place, 800, 810, "part-since.parquet")])
    if cleaned:
        bench.clean()
    replaced = {path.name for path in data_files(home(bench))}
    assert bool(replaced) is not cleaned
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.make_table("other", tmp_path / "other")
        (tmp_path / "other").mkdir(exist_ok=True)
        owner.exchange(table_name(bench.table), "0", "other")
    taken = tmp_path / "other" / PARTITION
    assert {path.name for path in data_files(taken)} == replaced, "that is what readers of the other table find"
    assert (swept(bench), halted(bench), rows_in(place)) == (SweepReport(waiting=1), None, expected)
    reason = str(swept(bench, grace=timedelta()).first_halt_reason)
    assert f"its rows are in {place.relative_to(bench.table.location)}" in reason
    assert (halted(bench), rows_in(place)) == (reason, expected)
    for path in data_files(taken):
        path.unlink()
    for path in data_files(place):
        path.rename(taken / path.name)
    assert (swept(bench).first_halt_reason, rows_in(taken)) == (None, expected)


def test_rule_6_an_overwrite_of_a_dropped_partition_that_has_removed_its_directory_is_no_exchange(bench: Bench):
    left = in_partition(bench)
    dropped(bench)
    shutil.rmtree(home(bench))
    assert (swept(bench), halted(bench)) == (SweepReport(waiting=1), None)
    home(bench).mkdir()
    anew = write(home(bench), 800, 810, "part-new.parquet")
    added_again(bench)
    assert (swept(bench), in_partition(bench), halted(bench)) == (SweepReport(), anew, None)
    assert left != anew


@pytest.mark.parametrize("plans_first", [False, True], ids=["sweep", "plan"])
def test_rule_6_a_partition_that_its_owner_had_moved_shows_no_replaced_file_of_its_next_directory(
    unmoved: Bench, tmp_path: Path, plans_first: bool
):
    """Chaos found it: the directory before the first relocation was taken for the partition's own one for ever."""
    bench, elsewhere = unmoved, tmp_path / "elsewhere"
    plan_after_owner_move(bench, elsewhere)
    dropped(bench)
    added_again(bench)
    rows = [*write(home(bench), 900, 910, "part-1.parquet"), *write(home(bench), 910, 920, "part-2.parquet")]
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    assert in_partition(bench) == sorted(rows)
    dropped(bench)
    added_again(bench)
    rows = write(home(bench), 950, 960, "part-3.parquet")
    if plans_first:
        bench.request(partitions=[PARTITION])
        assert bench.run().result is not RunResult.COMPLETED
    bench.sweep()
    assert (in_partition(bench), halted(bench)) == (sorted(rows), None)
    bench.clean()
    assert (in_partition(bench), swept(bench)) == (sorted(rows), SweepReport())


@pytest.mark.parametrize("swept_between", [True, False])
def test_rule_6_a_partition_outside_of_its_table_that_is_added_again_there_shows_no_replaced_file(
    unmoved: Bench, tmp_path: Path, swept_between: bool
):
    """The record of the replaced files was closed, as if a writer had removed them, and readers saw them for good."""
    bench, elsewhere = unmoved, tmp_path / "elsewhere"
    plan_after_owner_move(bench, elsewhere)
    replaced = data_files(elsewhere)
    dropped(bench)
    if swept_between:
        assert (swept(bench), data_files(elsewhere)) == (SweepReport(), replaced), "no partition is read from there"
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.add(table_name(bench.table), "0", elsewhere)
    rows = write(elsewhere, 900, 910)
    bench.sweep()
    assert (in_partition(bench), halted(bench)) == (sorted(rows), None)
    assert len(bench.store.awaiting_deletion(bench.table)) == len(replaced) == 3
    rows += write(elsewhere, 910, 920, "part-more.parquet")
    bench.clean()
    assert (in_partition(bench), swept(bench)) == (sorted(rows), SweepReport())
    assert bench.store.awaiting_deletion(bench.table) == []
    assert {path.name for path in elsewhere.rglob("*")} == {"part-late.parquet", "part-more.parquet"}
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    assert (in_partition(bench), swept(bench)) == (sorted(rows), SweepReport())


def test_rule_6_replaced_files_outside_of_the_table_are_deleted_after_their_partition_was_dropped(
    unmoved: Bench, tmp_path: Path
):
    bench, elsewhere = unmoved, tmp_path / "elsewhere"
    plan_after_owner_move(bench, elsewhere)
    place = here(bench)
    dropped(bench)
    bench.sweep()
    bench.clean()
    assert (data_files(elsewhere), bench.store.awaiting_deletion(bench.table), swept(bench)) == ([], [], SweepReport())
    assert data_files(place), "the owner dropped the partition, and its files stay as those of any external table"


@pytest.mark.parametrize("keeps_properties", [True, False], ids=["after the commit", "over the commit"])
def test_rule_2_late_appends_are_visible_after_a_partition_that_its_owner_has_moved_is_relocated_again(
    bench: Bench, tmp_path: Path, keeps_properties: bool
):
    """Chaos found it: the owner had also removed the files that it had copied, and an overwrite was expected there."""
    elsewhere, left = tmp_path / "elsewhere", home(bench)
    shutil.copytree(here(bench), elsewhere)
    partition = bench.case.partitions(bench.table)[PARTITION]  # type: ignore[attr-defined]
    parameters = partition.parameters if keeps_properties else {}
    moved = partition.with_changes(partition.storage.with_location(f"file:{elsewhere}"), parameters)
    alter_partitions(bench, [moved])
    for path in data_files(left):
        path.unlink()
    write(elsewhere, 800, 810, "part-more.parquet")
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    rows = in_partition(bench)
    late = write(elsewhere, 900, 910)
    bench.sweep()
    assert (in_partition(bench), halted(bench)) == (sorted([*rows, *late]), None)
    # A writer that had begun before the owner moved the partition, or another program: this is unknown.
    write(left, 1000, 1010, "part-overwriting.parquet")
    bench.sweep()
    assert "it is unknown whether they are its rows" in (halted(bench) or "")
    assert in_partition(bench) == sorted([*rows, *late])


def test_rule_6_a_partition_dropped_and_added_again_at_its_original_location_is_an_ordinary_one(bench: Bench):
    bench.clean()
    left = here(bench)
    assert brought_home(bench).relocated_back == 2
    write(left, 700, 710)
    wait_for(lambda: time.time() > (left / "part-late.parquet").stat().st_ctime + 1, "time stands still")
    dropped(bench)
    shutil.rmtree(home(bench))
    home(bench).mkdir()
    added_again(bench)
    anew = write(home(bench), 800, 810, "000000_0") + write(home(bench), 810, 815, "000001_0")
    assert (swept(bench), brought_home(bench), halted(bench)) == (SweepReport(), SweepReport(), None)
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    assert (swept(bench), in_partition(bench)) == (SweepReport(), sorted(anew)), "what was late before it was dropped"
    late = write(home(bench), 900, 910) + write(left, 910, 920, "part-later.parquet")
    assert (swept(bench).copied, in_partition(bench), halted(bench)) == (2, sorted(anew + late), None)
    bench.clean()
    assert brought_home(bench).relocated_back == 1
    assert (here(bench), in_partition(bench), swept(bench)) == (home(bench), sorted(anew + late), SweepReport())


def test_rule_7_a_table_that_is_recreated_over_replaced_files_keeps_them(unmoved: Bench):
    bench = unmoved
    bench.table = with_identity(bench.format, bench.table)
    bench.store.register_table(bench.table, "compact")
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    replaced = {path.name for path in data_files(home(bench))}
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.make_table(table_name(bench.table), Path(bench.table.location))
    added_again(bench)
    before = in_partition(bench)
    assert swept(bench) == SweepReport()
    assert ({path.name for path in data_files(here(bench))}, here(bench)) == (replaced, home(bench))
    bench.clean()
    assert in_partition(bench) == before


def test_the_daemon_checks_often_for_an_hour_then_at_every_sweep_and_restores_after_the_retention(
    bench: Bench, tmp_path: Path
):
    settings = '[[tables]]\nmatch = "*"\nmode = "compact"\naccess = "catalog"\n[defaults]\nretention = "1d"\n'
    (tmp_path / "lakefold.toml").write_text(f'[database]\nurl = "{bench.url}"\n{settings}')
    upkeep = Maintenance(load_config(tmp_path / "lakefold.toml"), bench.store, no_spark, Observer())
    rows_ = sorted(in_partition(bench) + write(home(bench), 900, 910))
    assert (upkeep.sweep_recent(), in_partition(bench)) == (1, rows_)
    bench.execute("UPDATE place_move SET begun_at_ms = begun_at_ms - 3600000, made_at_ms = made_at_ms - 3600000")
    rows_ = sorted(rows_ + write(home(bench), 910, 915, "part-later.parquet"))
    assert (upkeep.sweep_recent(), len(in_partition(bench)) < len(rows_)) == (0, True)
    upkeep.sweep()
    assert in_partition(bench) == rows_
    bench.clean()
    assert upkeep.restore_locations() == 0, "its retention has not passed"
    bench.execute("UPDATE place_move SET made_at_ms = made_at_ms - 86400000")
    assert (upkeep.restore_locations(), here(bench), in_partition(bench)) == (2, home(bench), rows_)
    bench.store.halt_table(bench.table, "a test")
    bench.execute("UPDATE place_move SET made_at_ms = made_at_ms - 86400000")
    assert (upkeep.restore_locations(), upkeep.clean()[0].skip_reason) == (0, "halted: a test")


def created_in(bench: Bench, seconds: int) -> None:
    """What a metastore shows whose clock is ahead by these seconds."""
    before = bench.case.partitions(bench.table)[PARTITION]  # type: ignore[attr-defined]
    alter_partitions(bench, [MetastorePartition(before.raw | {4: (I32, before.created_at + seconds)})])


@pytest.mark.parametrize("is_compacted", [True, False], ids=["after the compaction", "before it"])
def test_rule_2_a_late_file_of_a_recreated_partition_is_not_lost_if_the_metastores_clock_is_ahead(
    bench: Bench, is_compacted: bool
):
    """It was taken for a file of the dropped partition, and stayed invisible for good."""
    left = here(bench)
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    dropped(bench)
    swept(bench)
    added_again(bench)
    created_in(bench, 3600)
    rows = write(home(bench), 700, 710, "part-1.parquet") + write(home(bench), 710, 720, "part-2.parquet")
    late = [] if is_compacted else write(left, 900, 910)
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    late += write(left, 900, 910) if is_compacted else []
    bench.sweep()
    if is_compacted:
        assert (in_partition(bench), halted(bench)) == (sorted([*rows, *late]), None)
        return
    assert "the metastore's clock is ahead of the storage's" in str(halted(bench))
    assert in_partition(bench) == sorted(rows)
    assert resolved(bench, LocationChoice.CURRENT).first_halt_reason is None
    bench.sweep()
    assert in_partition(bench) == sorted(rows)


def test_rule_6_a_partition_returns_to_the_directory_that_its_owner_set_last(bench: Bench, tmp_path: Path):
    """It returned to the directory that it had before its first move, which its owner had given up."""
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(here(bench), elsewhere)
    point_at(bench, elsewhere)
    write(elsewhere, 800, 810, "part-more.parquet")
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    rows, place = in_partition(bench), here(bench)
    assert place not in (home(bench), elsewhere)
    bench.clean()
    assert (brought_home(bench).relocated_back, here(bench), in_partition(bench)) == (2, elsewhere, rows)
    assert (brought_home(bench), swept(bench), halted(bench)) == (SweepReport(), SweepReport(), None)
    late = write(place, 900, 910)
    bench.sweep()
    assert in_partition(bench) == sorted([*rows, *late])
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    bench.clean()
    assert (brought_home(bench).relocated_back, here(bench)) == (1, elsewhere)
    assert (in_partition(bench), counted(bench)) == (sorted([*rows, *late]), true_counts(bench))


@pytest.mark.parametrize("died", [True, False], ids=["died before its sweep", "swept"])
def test_rule_6_a_file_in_the_former_directory_of_a_partition_that_was_added_elsewhere_takes_no_row_away(
    bench: Bench, tmp_path: Path, died: bool
):
    """Its replaced files had been moved aside there. It looked as if an overwrite had removed them.

    After a sweep they were never deleted.
    """
    dropped(bench)
    assert swept(bench).superseded == 3
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.add(table_name(bench.table), "0", elsewhere)
    rows = write(elsewhere, 700, 710, "part-1.parquet") + write(elsewhere, 710, 720, "part-2.parquet")
    bench.request(partitions=[PARTITION])
    point = "after_record" if died else ""
    with mock.patch("executors.run.failpoint", side_effect=lambda name: killed_at(name, point)), suppress(Killed):
        bench.run()
    place = here(bench)
    assert place != elsewhere
    if not died:
        rows += write(elsewhere, 720, 730, "part-3.parquet")
        bench.sweep()
    assert len([one for one in bench.store.awaiting_deletion(bench.table) if "_aside" in one.version.path]) == 3
    made = bench.case.partitions(bench.table)[PARTITION].created_at  # type: ignore[attr-defined]
    wait_for(lambda: time.time() > made + 1, "time stands still")
    write(home(bench), 900, 910)
    bench.sweep()
    assert (here(bench), in_partition(bench), halted(bench)) == (place, sorted(rows), None)

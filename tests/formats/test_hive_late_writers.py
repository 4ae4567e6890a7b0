# SPDX-License-Identifier: Apache-2.0
"""Writers that began before a partition was moved and ended afterwards: rules 1 to 5, on a real metastore.

The rules are those of docs/decisions/0013-moving-a-partition.md. Writers are plain files here, as those of Spark are
once its job has ended.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
import pytest
from databases import sqlite_at
from hive_case import DATABASE, HiveCase, Owner, table_name
from hive_metastore import MetastoreServer
from toys.bench import Background, Bench
from toys.cases import no_spark
from toys.files import rows, told
from waiting import wait_for

from executors.late import LateReport, bring_home, resolve_places, stirred, sweep_places
from executors.observer import Observer
from executors.outcome import Result
from lake.formats.hive.format import HiveFormat
from lake.formats.hive.writer import HiveWriter
from lake.local_files import LocalFiles
from lake.metastore import Metastore
from lake.optional import identified
from lake.places import Take
from lake.plan import Claim, Keeper, KeeperKind, Plan, PlanState, Step
from service.config.loader import load
from service.daemon.upkeep import Upkeep
from service.store.views import StoreSettings

pytestmark = pytest.mark.slow
PARTITION = "dt=0"


@pytest.fixture
def case(metastore: MetastoreServer) -> HiveCase:
    return HiveCase(uri=metastore.uri)


@pytest.fixture
def bench(case: HiveCase, tmp_path: Path) -> Iterator[Bench]:
    """A table whose partitions a completed plan has moved."""
    made = Bench(tmp_path, sqlite_at(tmp_path), StoreSettings(backoff=timedelta(0), max_attempts=3), case)
    made.request()
    assert made.run().result is Result.COMPLETED
    yield made
    made.store.close()


def home(bench: Bench) -> Path:
    return Path(bench.table.location) / PARTITION


def here(bench: Bench) -> Path:
    return bench.case.places(bench.table)[PARTITION]  # type: ignore[attr-defined]


def write(place: Path, low: int, high: int, name: str = "part-late.parquet") -> list[str]:
    pq.write_table(rows(low, high), place / name)
    return list(told(rows(low, high)))


def overwrite(place: Path, low: int, high: int) -> list[str]:
    """What ``INSERT OVERWRITE`` leaves: other files, and none of those before."""
    shutil.rmtree(place)
    place.mkdir()
    return write(place, low, high, "part-anew.parquet")


def wait_a_tick(place: Path) -> None:
    """Until what is written from now on is younger than what is in ``place``, in whole milliseconds."""
    newest = max(path.stat().st_ctime_ns for path in place.iterdir()) // 1_000_000
    wait_for(lambda: time.time_ns() // 1_000_000 > newest + 20, "time stands still", every=0.005)


class AtStep(Observer):
    """Does something when a step of a plan has ended."""

    def __init__(self, step: Step, action: Callable[[], object]) -> None:
        self._step, self._action = step, action

    def step_finished(self, claim: Claim, step: Step, seconds: float) -> None:
        if step is self._step:
            self._action()


def data_files(place: Path) -> list[Path]:
    return [path for path in place.iterdir() if not path.name.startswith((".", "_"))]


def in_partition(bench: Bench) -> list[str]:
    return sorted(row for path in data_files(here(bench)) for row in told(pq.read_table(path)))


def swept(bench: Bench, **options: timedelta) -> LateReport:
    return sweep_places(bench.table, format=bench.format, store=bench.store, spark=bench.case.spark, **options)


def brought_home(bench: Bench) -> LateReport:
    return bring_home(
        bench.table, format=bench.format, store=bench.store, spark=bench.case.spark, older_than=timedelta()
    )


def halted(bench: Bench) -> str | None:
    return bench.store.table_state(bench.table.name).halted_reason


def counted(bench: Bench) -> tuple[int, int]:
    """How many files and bytes the metastore says that the partition has."""
    parameters = bench.case.partitions(bench.table)[PARTITION].parameters  # type: ignore[attr-defined]
    assert not {"COLUMN_STATS_ACCURATE", "numRows", "rawDataSize"} & parameters.keys()
    return int(parameters["numFiles"]), int(parameters["totalSize"])


def true_counts(bench: Bench) -> tuple[int, int]:
    files = [path.stat().st_size for path in data_files(here(bench))]
    return len(files), sum(files)


def test_rule_2_a_late_append_is_carried_once_and_counted_and_its_file_waits_for_its_deletion(bench: Bench):
    before, place = in_partition(bench), here(bench)
    late = write(home(bench), 900, 910)
    assert swept(bench, within=timedelta(hours=1)).carried == 1
    assert (in_partition(bench), here(bench)) == (sorted(before + late), place)
    assert counted(bench) == true_counts(bench) == (2, sum(path.stat().st_size for path in place.glob("*.parquet")))
    assert [swept(bench).carried for _ in range(2)] == [0, 0]
    waiting = {due.version.path for due in bench.store.superseded(bench.table)}
    assert f"{PARTITION}/part-late.parquet" in waiting
    bench.clean()
    assert (list(home(bench).glob("*.parquet")), in_partition(bench)) == ([], sorted(before + late))


def test_rule_2_a_file_that_is_half_written_is_carried_when_it_is_whole(bench: Bench):
    before = in_partition(bench)
    late = write(home(bench), 900, 910)
    path, whole = half_written(home(bench))
    report = swept(bench)
    assert (report.carried, report.waiting, in_partition(bench)) == (0, 1, before)
    path.write_bytes(whole)
    assert (swept(bench).carried, in_partition(bench)) == (1, sorted(before + late))


def test_rule_2_an_overwrite_that_spanned_the_move_takes_the_partition_back(bench: Bench):
    left, anew = here(bench), overwrite(home(bench), 500, 520)
    assert swept(bench).moved_back == 1
    assert (here(bench), in_partition(bench)) == (home(bench), sorted(anew))
    assert counted(bench) == true_counts(bench)
    assert list(left.glob("*.parquet")), "readers that were there read on"
    assert swept(bench) == LateReport()
    bench.clean()
    assert (list(left.glob("*.parquet")), in_partition(bench)) == ([], sorted(anew))
    bench.request()
    assert bench.run().result is Result.COMPLETED
    assert (in_partition(bench), here(bench) != home(bench)) == (sorted(anew), True)
    late = write(home(bench), 900, 910)
    assert (swept(bench).carried, in_partition(bench)) == (1, sorted(anew + late))


def test_rule_2_an_overwrite_of_a_place_that_lakefold_has_begun_to_clean_halts_the_table_and_keeps_both(bench: Bench):
    before = in_partition(bench)
    bench.clean()
    write(home(bench), 500, 520)
    assert swept(bench).halted
    assert "began to delete there" in str(halted(bench))
    assert (in_partition(bench), len(list(home(bench).glob("*.parquet")))) == (before, 1)


def test_rule_2_two_overwrites_that_cannot_be_ordered_halt_the_table_and_nothing_moves(bench: Bench):
    theirs = overwrite(here(bench), 700, 720)
    overwrite(home(bench), 500, 520)
    assert swept(bench).halted
    assert "both overwritten" in str(halted(bench))
    assert (in_partition(bench), len(list(home(bench).glob("*.parquet")))) == (sorted(theirs), 1)


def test_rule_2_the_first_of_two_overwrites_is_kept_aside_and_nothing_moves(bench: Bench):
    overwrite(home(bench), 500, 520)
    wait_a_tick(home(bench))
    theirs = overwrite(here(bench), 700, 720)
    report = swept(bench)
    assert (report.aside, report.moved_back, report.halted) == (1, 0, None)
    assert in_partition(bench) == sorted(theirs)
    assert f"{PARTITION}/part-anew.parquet" in {due.version.path for due in bench.store.superseded(bench.table)}
    assert swept(bench) == LateReport()


def test_rule_3_what_was_added_to_the_new_place_after_the_overwrite_goes_back_along(bench: Bench):
    place, anew = here(bench), overwrite(home(bench), 500, 520)
    wait_a_tick(home(bench))
    added = write(place, 900, 910)
    assert swept(bench).moved_back == 1
    assert (here(bench), in_partition(bench)) == (home(bench), sorted(anew + added))
    assert swept(bench) == LateReport()
    bench.clean()
    assert in_partition(bench) == sorted(anew + added)


def test_rule_3_what_was_added_to_the_new_place_before_the_overwrite_is_kept_aside(bench: Bench):
    place = here(bench)
    write(place, 900, 910)
    wait_a_tick(place)
    anew = overwrite(home(bench), 500, 520)
    report = swept(bench)
    assert (report.moved_back, report.aside, in_partition(bench)) == (1, 0, sorted(anew))
    waiting = {due.version.path for due in bench.store.superseded(bench.table)}
    assert os.path.relpath(place / "part-late.parquet", bench.table.location) in waiting
    assert (place / "part-late.parquet").exists()


def test_rule_4_an_overwrite_of_nothing_or_one_at_work_is_waited_for_and_halts_the_table_after_the_grace(bench: Bench):
    before = in_partition(bench)
    next(home(bench).glob("*.parquet")).unlink()
    assert swept(bench).waiting == 1
    shutil.rmtree(home(bench))
    assert (swept(bench).waiting, halted(bench)) == (1, None)
    bench.execute("UPDATE place_move SET unsettled_since_ms = unsettled_since_ms - 3600000")
    assert swept(bench).halted
    assert "writer_grace" in str(halted(bench))
    assert in_partition(bench) == before


def test_rule_4_an_overwrite_that_also_empties_the_partitions_own_directory_is_no_riddle(bench: Bench):
    """Spark's static ``INSERT OVERWRITE`` removes ``TABLE/PARTITION``, wherever the partition is."""
    shutil.rmtree(home(bench))
    anew = overwrite(here(bench), 700, 720)
    assert (swept(bench), in_partition(bench)) == (LateReport(), sorted(anew))
    assert home_files_wait(bench) == 0
    more = write(here(bench), 720, 730, "part-more.parquet")
    bench.request(partitions=[PARTITION])
    assert bench.run().result is Result.COMPLETED
    assert (swept(bench), in_partition(bench)) == (LateReport(), sorted(anew + more))
    late = write(bench.case.places(bench.table)[PARTITION], 900, 910)  # type: ignore[attr-defined]
    assert (swept(bench), in_partition(bench)) == (LateReport(), sorted(anew + more + late))


def test_rule_4_an_overwrite_that_spanned_a_move_and_emptied_the_own_directory_takes_the_partition_back(bench: Bench):
    first = here(bench)
    write(first, 800, 810)
    bench.request(partitions=[PARTITION])
    assert bench.run().result is Result.COMPLETED
    shutil.rmtree(home(bench))
    anew = overwrite(first, 500, 520)
    assert (swept(bench).moved_back, here(bench), in_partition(bench)) == (1, first, sorted(anew))
    assert swept(bench) == LateReport()


def test_rule_1_an_overwrite_of_the_whole_table_is_followed_and_no_version_that_is_read_goes(bench: Bench):
    """Spark's removes the table's directory, with what says whose a version is, and writes where partitions are."""
    places, plan = bench.case.places(bench.table), bench.request()  # type: ignore[attr-defined]
    claim = bench.claim()
    bench.execute(f"UPDATE staged SET cleared_at_ms = NULL WHERE plan_id != '{plan.plan_id}'")
    shutil.rmtree(bench.table.location)
    anew = list[str]()
    for number, place in enumerate(places.values()):
        place.mkdir(parents=True)
        for part in (0, 5):
            low = number * 100 + part
            anew += write(place, low, low + 5, f"part-{part}.parquet")
    bench.sweep()
    assert bench.rows() == sorted(anew)
    assert bench.run(claim).result is Result.CANCELLED
    bench.request()
    assert bench.run().result is Result.COMPLETED
    assert (bench.rows(), swept(bench), halted(bench)) == (sorted(anew), LateReport(), None)
    bench.clean()
    bench.sweep()
    assert bench.rows() == sorted(anew)


def put(bench: Bench, partitions: Mapping[str, Any]) -> None:
    """A call that gives all of them what they had then."""
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        Metastore.alter_partitions(owner, DATABASE, table_name(bench.table), list(partitions.values()))


class Killed(BaseException):
    """What a process does not survive."""


def killed_before_it_records(bench: Bench, **options: Any) -> Plan:
    """A plan whose call was made, and whose executor has told nobody."""

    def point(name: str) -> None:
        if name == "before_record":
            raise Killed

    plan = bench.request(**options)
    with mock.patch("executors.run.failpoint", point), pytest.raises(Killed):
        bench.run()
    bench.expire()
    return plan


def made_anew(bench: Bench) -> None:
    """Partitions are dropped and added with their own directories, in another second than that of their making."""
    before = max(one.made_at for one in bench.case.partitions(bench.table).values())  # type: ignore[attr-defined]
    wait_for(lambda: int(time.time()) > before, "time stands still", every=0.05)
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        for value in ("0", "1"):
            owner.drop(table_name(bench.table), value)
            owner.add(table_name(bench.table), value, Path(bench.table.location) / f"dt={value}")


@pytest.mark.parametrize("times", [0, 1])
def test_rule_2_an_overwrite_that_removes_a_commit_which_nobody_has_recorded_halts_the_table_until_a_person_follows_it(
    unmoved: Bench, times: int
):
    """Spark's of the whole table empties its directory, and does not tell the metastore of partitions that it has."""
    bench = unmoved
    for _ in range(times):
        bench.request()
        assert bench.run().result is Result.COMPLETED
        write(here(bench), 800, 810)
    plan = killed_before_it_records(bench)
    shutil.rmtree(bench.table.location)
    home(bench).mkdir(parents=True)
    home(bench).with_name("dt=1").mkdir()
    anew = write(home(bench), 500, 520, "part-anew.parquet")
    assert bench.rescue() is not None
    assert (bench.state(plan), bench.rows()) == ("failed", [])
    there = here(bench)
    there.mkdir(parents=True)
    write(there, 920, 930)
    for _ in range(2):
        assert "drop such partitions and add them" in str(halted(bench))
        bench.store.resume(bench.table.name, actor="ada")
        bench.sweep()
    made_anew(bench)
    bench.store.resume(bench.table.name, actor="ada")
    bench.sweep()
    wait_a_tick(home(bench))
    bench.sweep()
    assert (halted(bench), bench.rows(), here(bench)) == (None, sorted(anew), home(bench))
    more = write(home(bench), 900, 910, "part-more.parquet")
    bench.request()
    assert bench.run().result is Result.COMPLETED
    bench.clean()
    assert (bench.rows(), swept(bench), halted(bench)) == (sorted(anew + more), LateReport(), None)
    assert data_files(there), "nobody but a writer can have written it, and nobody has moved it yet"


def test_rule_11_what_was_written_to_a_commit_that_was_undone_before_anybody_recorded_it_is_seen(unmoved: Bench):
    """As by an INSERT of Hive's, which ends with what it read before the commit, of an executor that died after it."""
    bench, before, rows_before = unmoved, as_is(unmoved), in_partition(unmoved)
    plan = killed_before_it_records(bench, partitions=[PARTITION])
    place = here(bench)
    late = write(place, 800, 810, "part-seen.parquet")
    written_back(bench, before)
    more = write(home(bench), 900, 910)
    bench.rescue()
    bench.sweep()
    assert (bench.state(plan), here(bench)) == ("completed", place)
    assert in_partition(bench) == sorted([*rows_before, *late, *more])
    assert (swept(bench), halted(bench)) == (LateReport(), None)


@pytest.mark.parametrize("again", [True, False])
def test_rule_11_what_is_written_to_a_commit_that_was_undone_is_seen_whatever_was_committed_since(
    unmoved: Bench, again: bool
):
    """By the plan itself, which was let go with no trace of its commit, or by another one."""
    bench, rows_before = unmoved, in_partition(unmoved)
    before = bench.case.partitions(bench.table)  # type: ignore[attr-defined]
    plan = killed_before_it_records(bench)
    place = here(bench)
    put(bench, before)
    bench.rescue()
    assert bench.state(plan) == "requested"
    if not again:
        bench.store.request_cancel(plan.plan_id, actor="ada", reason="no need")
        bench.request()
    assert bench.run().result is Result.COMPLETED
    assert here(bench) not in (place, home(bench))
    late = write(place, 800, 810)
    bench.sweep()
    assert in_partition(bench) == sorted([*rows_before, *late])
    assert (swept(bench), halted(bench)) == (LateReport(), None)
    bench.clean()
    assert in_partition(bench) == sorted([*rows_before, *late])


@pytest.mark.parametrize("lands", ["before", "after"])
def test_rule_1_a_commit_of_a_plan_that_had_ended_undoes_none_that_has_come_since(unmoved: Bench, lands: str):
    """It was not the table's when it was asked for; its executor slept, and its call landed before or after another."""
    bench, before = unmoved, unmoved.case.partitions(unmoved.table)  # type: ignore[attr-defined]
    plan = killed_before_it_records(bench)
    call = bench.case.partitions(bench.table)  # type: ignore[attr-defined]
    taken = bench.store.expired("a rescuer")
    assert taken is not None
    bench.store.cancel(taken, "it is not there", actor="ada")
    if lands == "after":
        put(bench, before)
    bench.request(partitions=[PARTITION])
    assert bench.run().result is Result.COMPLETED
    place = here(bench)
    write(place, 900, 910)
    expected = in_partition(bench)
    if lands == "after":
        put(bench, call)
    bench.sweep()
    assert (bench.state(plan), here(bench), in_partition(bench)) == ("completed", place, expected)
    late = write(bench.case.places(bench.table)["dt=1"].with_name(PARTITION), 910, 920)  # type: ignore[attr-defined]
    assert (swept(bench).carried, in_partition(bench)) == (1, sorted([*expected, *late]))
    bench.clean()
    assert (swept(bench), halted(bench), in_partition(bench)) == (LateReport(), None, sorted([*expected, *late]))


def home_files_wait(bench: Bench) -> int:
    return sum(due.version.path.startswith(f"{PARTITION}/") for due in bench.store.superseded(bench.table))


def relocated(bench: Bench, elsewhere: Path) -> None:
    partition = bench.case.partitions(bench.table)[PARTITION]  # type: ignore[attr-defined]
    moved = partition.changed(partition.storage.moved(f"file:{elsewhere}"), partition.parameters)
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        Metastore.alter_partitions(owner, DATABASE, table_name(bench.table), [moved])


def test_rule_11_a_partition_that_its_owner_moves_while_the_sweep_is_about_to_change_it_stays_there(
    bench: Bench, tmp_path: Path
):
    (tmp_path / "elsewhere").mkdir()
    write(home(bench), 900, 910)
    with mock.patch("lake.formats.hive.late.failpoint", side_effect=lambda _: relocated(bench, tmp_path / "elsewhere")):
        swept(bench)
    assert (here(bench), in_partition(bench), halted(bench)) == (tmp_path / "elsewhere", [], None)
    assert swept(bench) == LateReport()


def test_rule_11_a_change_that_meets_a_call_of_the_sweep_halts_the_table(bench: Bench, tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    write(home(bench), 900, 910)
    alter = Metastore.alter_partitions

    def altered(*arguments: Any) -> None:
        alter(*arguments)
        with mock.patch.object(Metastore, "alter_partitions", alter):
            relocated(bench, tmp_path / "elsewhere")

    with mock.patch.object(Metastore, "alter_partitions", altered):
        assert swept(bench).halted
    assert "one of the two may have undone the other" in str(halted(bench))
    assert here(bench) == tmp_path / "elsewhere"


def as_is(bench: Bench) -> Any:
    return bench.case.partitions(bench.table)[PARTITION]  # type: ignore[attr-defined]


def written_back(bench: Bench, before: Any) -> None:
    """What Hive does when it has brought the files of an INSERT in: all that it read before, with new counts."""
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        counted = before.changed(before.storage, {**before.parameters, "numFiles": "9"})
        Metastore.alter_partitions(owner, DATABASE, table_name(bench.table), [counted])


@pytest.fixture
def unmoved(case: HiveCase, tmp_path: Path) -> Iterator[Bench]:
    """A table that no plan has moved yet."""
    made = Bench(tmp_path, sqlite_at(tmp_path), StoreSettings(backoff=timedelta(0), max_attempts=3), case)
    yield made
    made.store.close()


@pytest.mark.parametrize("times", [1, 2])
def test_rule_11_a_partition_that_is_written_back_as_it_was_before_a_move_is_moved_again(unmoved: Bench, times: int):
    bench, late = unmoved, list[str]()
    for _ in range(times):
        before, home_then = as_is(bench), here(bench)
        bench.request()
        assert bench.run().result is Result.COMPLETED
    place, rows_before = here(bench), in_partition(bench)
    late += write(place, 800, 810, "part-seen.parquet")
    written_back(bench, before)
    reasons = stirred(bench.table, format=bench.format, store=bench.store, partitions=[PARTITION])
    assert "written back as it was before a move" in reasons[PARTITION]
    assert {version.partition for version in bench.clean().deleted} == {"dt=1"}
    assert stirred(bench.table, format=bench.format, store=bench.store, partitions=[PARTITION]) == reasons
    late += write(home_then, 900, 910)
    assert swept(bench).carried == 1
    assert (here(bench), in_partition(bench)) == (place, sorted([*rows_before, *late]))
    assert counted(bench) == true_counts(bench)
    written_back(bench, before)
    swept(bench)
    assert (here(bench), in_partition(bench), swept(bench)) == (place, sorted([*rows_before, *late]), LateReport())
    bench.clean()
    bench.request()
    assert bench.run().result is Result.COMPLETED
    assert (in_partition(bench), halted(bench)) == (sorted([*rows_before, *late]), None)


def test_rule_11_what_waits_where_a_partition_was_written_back_waits_on_though_the_sweep_comes_between_two_looks(
    unmoved: Bench,
):
    bench, before = unmoved, as_is(unmoved)
    bench.request()
    assert bench.run().result is Result.COMPLETED
    rows_, place = in_partition(bench), here(bench)
    waiting = bench.store.superseded(bench.table)
    written_back(bench, before)
    closed = HiveFormat.superseded_closed

    def looked(*arguments: Any) -> Any:
        found = closed(*arguments)
        swept(bench)
        return found

    with mock.patch.object(HiveFormat, "superseded_closed", looked):
        assert bench.clean(timedelta(days=1)).closed == ()
    assert (here(bench), bench.store.superseded(bench.table)) == (place, waiting)
    late = write(home(bench), 900, 910)
    assert (swept(bench).carried, in_partition(bench), halted(bench)) == (1, sorted(rows_ + late), None)


def test_rule_11_an_overwrite_that_ends_with_what_it_read_before_a_move_takes_the_partition_back(unmoved: Bench):
    bench, before = unmoved, as_is(unmoved)
    bench.request()
    assert bench.run().result is Result.COMPLETED
    anew = overwrite(home(bench), 500, 520)
    wait_a_tick(home(bench))
    late = write(here(bench), 800, 810, "part-seen.parquet")
    written_back(bench, before)
    assert swept(bench).moved_back == 1
    assert (here(bench), in_partition(bench)) == (home(bench), sorted([*anew, *late]))
    assert (swept(bench), halted(bench)) == (LateReport(), None)
    bench.clean()
    assert in_partition(bench) == sorted([*anew, *late])


def test_rule_1_a_partition_that_names_an_epoch_which_nobody_recorded_halts_its_table(bench: Bench):
    earlier = bench.case.partitions(bench.table)[PARTITION]  # type: ignore[attr-defined]
    bench.request()
    assert bench.run().result is Result.COMPLETED
    stored = bench.stored()
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        unknown = {**earlier.parameters, "lakefold.version": "another-e1-1"}
        owner.alter_partitions(DATABASE, table_name(bench.table), [earlier.changed(earlier.storage, unknown)])
    assert swept(bench).halted
    assert "an executor that slept has moved it" in str(halted(bench))
    assert bench.stored() == stored
    assert bench.store.claim("another") is None


def half_written(place: Path) -> tuple[Path, bytes]:
    """The file of ``write`` without its end, and the whole of it."""
    path = place / "part-late.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:-4])
    return path, whole


def test_rule_5_nothing_is_committed_or_deleted_where_a_late_file_is_being_written(bench: Bench):
    before, place = in_partition(bench), here(bench)
    plan = bench.request()
    late = write(home(bench), 900, 910)
    path, whole = half_written(home(bench))
    outcome = bench.run()
    assert outcome.result is Result.COMPLETED, "the other partition's group is as it was"
    assert [bench.store.plan(plan.plan_id).groups[0].left_out is None, here(bench) == place] == [False, True]
    assert PARTITION not in {one.partition for one in bench.clean().deleted}
    path.write_bytes(whole)
    assert (swept(bench).carried, in_partition(bench)) == (1, sorted(before + late))
    bench.request(partitions=[PARTITION])
    assert bench.run().result is Result.COMPLETED
    assert (in_partition(bench), swept(bench)) == (sorted(before + late), LateReport())


@pytest.mark.parametrize("runs", [True, False])
def test_rule_5_a_late_file_is_brought_in_while_a_plan_holds_its_partition_and_goes_along(bench: Bench, runs: bool):
    before, plan, place = in_partition(bench), bench.request(partitions=[PARTITION]), here(bench)
    claim = bench.claim() if runs else None
    late = write(home(bench), 900, 910)
    assert (swept(bench).carried, in_partition(bench)) == (1, sorted(before + late))
    assert bench.state(plan) == ("inflight" if runs else "requested")
    assert bench.run(claim).result is Result.COMPLETED
    assert (in_partition(bench), here(bench) != place, swept(bench)) == (sorted(before + late), True, LateReport())


@pytest.mark.parametrize("step", [Step.PREPARE, Step.REWRITE, Step.RECEIPT])
def test_rule_5_an_append_that_comes_while_a_plan_runs_is_part_of_its_commit(bench: Bench, step: Step):
    before, written, place = in_partition(bench), list[str](), here(bench)
    bench.request(partitions=[PARTITION])
    late = AtStep(step, lambda: written.extend(write(home(bench), 900, 910)))
    assert bench.run(observer=late).result is Result.COMPLETED
    assert (in_partition(bench), here(bench) != place) == (sorted(before + written), True)
    assert swept(bench) == LateReport()


def test_rule_5_an_append_that_comes_right_before_the_move_is_brought_in_right_after_it(bench: Bench):
    before, written = in_partition(bench), list[str]()
    bench.request(partitions=[PARTITION])
    place, metastore = here(bench), Metastore.alter_partitions

    def altered(*arguments: Any) -> None:
        if not written:
            written.extend(write(place, 900, 910))
        metastore(*arguments)

    with mock.patch.object(Metastore, "alter_partitions", altered):
        assert bench.run().result is Result.COMPLETED
    assert (in_partition(bench), swept(bench)) == (sorted(before + written), LateReport())


def test_rule_5_an_overwrite_that_ends_while_a_plan_runs_takes_the_partition_back_and_cancels_the_plan(bench: Bench):
    anew = list[str]()
    plan = bench.request(partitions=[PARTITION])
    late = AtStep(Step.REWRITE, lambda: anew.extend(overwrite(home(bench), 500, 520)))
    assert bench.run(observer=late).result is Result.CANCELLED
    assert (here(bench), in_partition(bench), bench.state(plan)) == (home(bench), sorted(anew), "cancelled")
    assert swept(bench) == LateReport()


def test_rule_5_a_plan_does_not_commit_while_a_round_is_in_its_partition_nor_is_one_let_in_at_its_commit(bench: Bench):
    keeper = Keeper(kind=KeeperKind.SWEEP, name="a round")
    before, place = in_partition(bench), here(bench)
    bench.request(partitions=[PARTITION])
    assert bench.store.keep(bench.table, [PARTITION], keeper, beside_plans=True) == {PARTITION}
    running = Background(bench.run)
    wait_for(lambda: inflight(bench) == Step.RECEIPT, "the plan came to its commit")
    time.sleep(0.5)
    assert (here(bench), in_partition(bench)) == (place, before)
    refused = list[int]()
    with mock.patch.object(HiveWriter, "commit", holding(bench, keeper, refused)):
        bench.store.release(keeper)
        assert running.join().result is Result.COMPLETED
    assert refused == [0]
    assert in_partition(bench) == before


def inflight(bench: Bench) -> str | None:
    return next((plan.step for plan in bench.store.plans(state=PlanState.INFLIGHT)), None)


def holding(bench: Bench, keeper: Keeper, held: list[int]) -> Any:
    commit = HiveWriter.commit

    def committed(writer: HiveWriter, rewrite: Any) -> Any:
        held.append(len(bench.store.keep(bench.table, [PARTITION], keeper, beside_plans=True)))
        return commit(writer, rewrite)

    return committed


def test_rule_4_a_cleaner_that_slept_deletes_nothing_where_a_person_has_sent_the_partition_back(bench: Bench):
    slept, monotonic, delete, expected = [0], time.monotonic, LocalFiles.delete, list[str]()

    def deleted(files: LocalFiles, path: str) -> None:
        delete(files, path)
        if not slept[0] and path.startswith(f"{home(bench)}/"):
            slept[0] = 3600
            after_its_hold(bench)
            write(home(bench), 900, 910)
            assert swept(bench).halted
            resolve_places(bench.table, Take.OLD, format=bench.format, store=bench.store, spark=bench.case.spark)
            bench.store.resume(bench.table.name, "ada")
            expected.extend(in_partition(bench))

    with (
        mock.patch.object(LocalFiles, "delete", deleted),
        mock.patch("time.monotonic", side_effect=lambda: monotonic() + slept[0]),
    ):
        report = bench.clean()
    assert (here(bench), in_partition(bench)) == (home(bench), expected)
    assert len(data_files(home(bench))) == 3, "one was deleted, and one is new"
    assert "is read from" in {kept.version.partition: kept.reason for kept in report.kept}[PARTITION]
    after_its_hold(bench)
    bench.clean()
    assert (in_partition(bench), swept(bench), halted(bench)) == (expected, LateReport(), None)


@pytest.mark.parametrize("take", list(Take))
def test_rule_4_a_person_says_which_place_holds_the_rows_and_nothing_of_the_other_is_deleted_before_its_retention(
    bench: Bench, take: Take
):
    before, place = in_partition(bench), here(bench)
    shutil.rmtree(home(bench))
    home(bench).mkdir()
    swept(bench)
    bench.execute("UPDATE place_move SET unsettled_since_ms = unsettled_since_ms - 3600000")
    assert swept(bench).halted
    resolve_places(bench.table, take, format=bench.format, store=bench.store, spark=bench.case.spark)
    bench.store.resume(bench.table.name, "ada")
    assert (here(bench), in_partition(bench)) == ((place, before) if take is Take.NEW else (home(bench), []))
    assert (swept(bench), len(data_files(place))) == (LateReport(), 1)
    bench.clean()
    assert in_partition(bench) == (before if take is Take.NEW else [])


def test_rule_6_a_partition_goes_home_when_what_was_replaced_there_is_gone_and_late_writers_still_find_it(bench: Bench):
    before, place = in_partition(bench), here(bench)
    assert (brought_home(bench).waiting, here(bench)) == (2, place)
    bench.clean()
    assert (brought_home(bench).moved_back, here(bench), in_partition(bench)) == (2, home(bench), before)
    assert counted(bench) == true_counts(bench)
    assert (brought_home(bench), swept(bench)) == (LateReport(), LateReport())
    late = write(place, 900, 910)
    assert (swept(bench).carried, in_partition(bench)) == (1, sorted(before + late))
    bench.clean()
    assert (data_files(place) if place.exists() else [], in_partition(bench)) == ([], sorted(before + late))
    bench.request()
    assert bench.run().result is Result.COMPLETED
    assert (swept(bench), in_partition(bench)) == (LateReport(), sorted(before + late))


def test_rule_6_a_partition_that_was_overwritten_where_it_is_goes_home_and_what_was_overwritten_is_not_missed(
    bench: Bench,
):
    bench.clean()
    anew, left = overwrite(here(bench), 900, 910), here(bench)
    brought_home(bench)
    assert (here(bench), in_partition(bench), swept(bench)) == (home(bench), sorted(anew), LateReport())
    # A writer that spanned this move, too, is followed.
    last = overwrite(left, 910, 920)
    assert (swept(bench).moved_back, here(bench), in_partition(bench)) == (1, left, sorted(last))


def dropped(bench: Bench) -> None:
    made = bench.case.partitions(bench.table)[PARTITION].made_at  # type: ignore[attr-defined]
    wait_for(lambda: time.time() > made + 1, "time stands still")
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.drop(table_name(bench.table), "0")


def added_again(bench: Bench) -> None:
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.add(table_name(bench.table), "0", home(bench))


@pytest.mark.parametrize("swept_between", [True, False])
def test_rule_6_a_partition_that_is_dropped_and_added_again_shows_no_replaced_file(bench: Bench, swept_between: bool):
    replaced = {path.name for path in data_files(home(bench))}
    dropped(bench)
    if swept_between:
        assert (swept(bench).aside, data_files(home(bench))) == (3, [])
    added_again(bench)
    anew = write(home(bench), 800, 810, "000000_0")
    assert swept(bench).aside == (0 if swept_between else 3)
    assert (in_partition(bench), swept(bench)) == (sorted(anew), LateReport())
    aside = {path.name for path in (Path(bench.table.location) / "_lakefold/_aside").rglob("*") if path.is_file()}
    assert aside == replaced, "they are kept until their retention has passed"
    assert [entry.action for entry in bench.store.audit() if entry.actor == "sweep"] == ["files moved aside"]
    write(home(bench), 810, 815, "000001_0")
    bench.request(partitions=[PARTITION])
    assert bench.run().result is Result.COMPLETED
    rows_ = in_partition(bench)
    assert (len(rows_), swept(bench)) == (15, LateReport())
    bench.clean()
    assert (in_partition(bench), swept(bench)) == (rows_, LateReport())
    assert not [path for path in (Path(bench.table.location) / "_lakefold/_aside").rglob("*") if path.is_file()]


def test_rule_6_a_partition_that_is_dropped_and_added_again_at_home_is_an_ordinary_one(bench: Bench):
    bench.clean()
    left = here(bench)
    assert brought_home(bench).moved_back == 2
    write(left, 700, 710)
    wait_for(lambda: time.time() > (left / "part-late.parquet").stat().st_ctime + 1, "time stands still")
    dropped(bench)
    shutil.rmtree(home(bench))
    home(bench).mkdir()
    added_again(bench)
    anew = write(home(bench), 800, 810, "000000_0") + write(home(bench), 810, 815, "000001_0")
    assert (swept(bench), brought_home(bench), halted(bench)) == (LateReport(), LateReport(), None)
    bench.request(partitions=[PARTITION])
    assert bench.run().result is Result.COMPLETED
    assert (swept(bench), in_partition(bench)) == (LateReport(), sorted(anew)), "what was late before it was dropped"
    late = write(home(bench), 900, 910) + write(left, 910, 920, "part-later.parquet")
    assert (swept(bench).carried, in_partition(bench), halted(bench)) == (2, sorted(anew + late), None)
    bench.clean()
    assert brought_home(bench).moved_back == 1
    assert (here(bench), in_partition(bench), swept(bench)) == (home(bench), sorted(anew + late), LateReport())


def test_rule_7_a_table_that_is_made_anew_over_replaced_files_keeps_them(case: HiveCase, tmp_path: Path):
    bench = Bench(tmp_path, sqlite_at(tmp_path), StoreSettings(backoff=timedelta(0), max_attempts=3), case)
    bench.table = identified(bench.format, bench.table)
    bench.store.register(bench.table, "compact")
    bench.request()
    assert bench.run().result is Result.COMPLETED
    replaced = {path.name for path in data_files(home(bench))}
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.make_table(table_name(bench.table), Path(bench.table.location))
    added_again(bench)
    before = in_partition(bench)
    assert swept(bench) == LateReport()
    assert ({path.name for path in data_files(here(bench))}, here(bench)) == (replaced, home(bench))
    bench.clean()
    assert in_partition(bench) == before
    bench.store.close()


def test_rule_6_a_round_that_is_killed_when_it_has_moved_files_aside_is_finished_by_the_next(bench: Bench):
    dropped(bench)
    killed_at(bench, "aside_moved")
    after_its_hold(bench)
    assert swept(bench).aside == 3
    waiting = [due.version.path for due in bench.store.superseded(bench.table) if due.version.partition == PARTITION]
    assert [path.startswith("_lakefold/_aside/") for path in waiting] == [True] * 3
    assert swept(bench) == LateReport()


def test_the_daemon_looks_often_for_an_hour_then_at_every_sweep_and_brings_home_after_the_retention(
    bench: Bench, tmp_path: Path
):
    settings = '[[tables]]\nmatch = "*"\nmode = "compact"\naccess = "catalog"\n[defaults]\nretention = "1d"\n'
    (tmp_path / "lakefold.toml").write_text(f'[database]\nurl = "{bench.url}"\n{settings}')
    upkeep = Upkeep(load(tmp_path / "lakefold.toml"), bench.store, no_spark, Observer())
    rows_ = sorted(in_partition(bench) + write(home(bench), 900, 910))
    assert (upkeep.sweep_hot(), in_partition(bench)) == (1, rows_)
    bench.execute("UPDATE place_move SET begun_at_ms = begun_at_ms - 3600000, made_at_ms = made_at_ms - 3600000")
    rows_ = sorted(rows_ + write(home(bench), 910, 915, "part-later.parquet"))
    assert (upkeep.sweep_hot(), len(in_partition(bench)) < len(rows_)) == (0, True)
    upkeep.sweep()
    assert in_partition(bench) == rows_
    bench.clean()
    assert upkeep.bring_home() == 0, "its retention has not passed"
    bench.execute("UPDATE place_move SET made_at_ms = made_at_ms - 86400000")
    assert (upkeep.bring_home(), here(bench), in_partition(bench)) == (2, home(bench), rows_)
    bench.store.halt_table(bench.table, "a test")
    write(home(bench), 990, 995)
    assert (upkeep.sweep_hot(), upkeep.sweep(), upkeep.bring_home()) == (0, 0, 0)


# A round that dies.

_ROUND = """
import sys
from executors.late import sweep_places
from lake.formats.hive import FORMAT
from service.store import Store
store = Store(sys.argv[1])
sweep_places(store.table_state(sys.argv[2]).ref, format=FORMAT, store=store, spark=None)
"""


def killed_at(bench: Bench, failpoint: str) -> None:
    """A round of the sweep in a process of its own, which is killed there."""
    environment = {**os.environ, "LAKEFOLD_FAILPOINTS": f"{failpoint}=kill"}
    died = subprocess.run([sys.executable, "-c", _ROUND, bench.url, bench.table.name], env=environment, check=False)
    assert died.returncode == -signal.SIGKILL


def after_its_hold(bench: Bench) -> None:
    bench.execute("UPDATE live_partition SET expires_at_ms = 1 WHERE keeper IS NOT NULL")


@pytest.mark.parametrize("failpoint", ["carry_recorded", "carry_copied", "carry_told"])
def test_rule_5_a_round_that_is_killed_while_it_carries_is_finished_once_by_the_next(bench: Bench, failpoint: str):
    rows_ = sorted(in_partition(bench) + write(home(bench), 900, 910) + write(home(bench), 910, 915, "000000_0"))
    killed_at(bench, failpoint)
    assert stirred(bench.table, format=bench.format, store=bench.store, partitions=[PARTITION])
    assert swept(bench) == LateReport(), "it may live: it holds the partition"
    after_its_hold(bench)
    assert (swept(bench).carried, in_partition(bench)) == (2, rows_)
    assert counted(bench) == true_counts(bench)
    assert (swept(bench), in_partition(bench)) == (LateReport(), rows_)
    bench.request(partitions=[PARTITION])
    assert bench.run().result is Result.COMPLETED
    assert (swept(bench), in_partition(bench)) == (LateReport(), rows_)


def overwrite_by_renames(place: Path, low: int, high: int) -> list[str]:
    """What Hive does: it writes elsewhere, removes what it finds in ``place`` then, and renames its own files in."""
    wait_a_tick(place)
    staging = place.parent.parent / ".hive-staging"
    staging.mkdir()
    anew = write(staging, low, high, "000000_0")
    wait_a_tick(staging)
    for path in data_files(place):
        path.unlink()
    (staging / "000000_0").rename(place / "000000_0")
    return anew


@pytest.mark.parametrize("failpoint", ["carry_copied", "carry_told"])
def test_rule_5_an_overwrite_after_a_round_that_was_killed_while_it_carried_removes_what_had_been_seen(
    bench: Bench, failpoint: str
):
    write(home(bench), 900, 910)
    killed_at(bench, failpoint)
    anew = overwrite_by_renames(here(bench), 700, 720)
    after_its_hold(bench)
    assert (swept(bench).carried, in_partition(bench), halted(bench)) == (0, sorted(anew), None)
    assert (swept(bench), in_partition(bench)) == (LateReport(), sorted(anew))
    assert f"{PARTITION}/part-late.parquet" in {due.version.path for due in bench.store.superseded(bench.table)}


@pytest.mark.parametrize("method", ["second_name", "rename"])
def test_rule_5_an_overwrite_while_a_late_file_is_copied_is_alone_there(bench: Bench, method: str):
    place, real, anew = here(bench), getattr(LocalFiles, method), list[str]()
    write(home(bench), 900, 910)

    def copied(files: LocalFiles, source: str, target: str) -> None:
        if method == "second_name":
            real(files, source, target)
        if not anew:
            anew.extend(overwrite_by_renames(place, 700, 720))
        if method == "rename":
            real(files, source, target)

    with mock.patch.object(LocalFiles, method, copied):
        assert swept(bench).carried == 0
    assert (in_partition(bench), len(list(place.iterdir()))) == (sorted(anew), 1)
    assert (swept(bench).aside, in_partition(bench), swept(bench), halted(bench)) == (
        1, sorted(anew), LateReport(), None,
    )  # fmt: skip
    assert f"{PARTITION}/part-late.parquet" in {due.version.path for due in bench.store.superseded(bench.table)}


@pytest.mark.parametrize("failpoint", ["carry_recorded", "carry_copied", "move_recorded", "move_told"])
def test_rule_5_a_round_that_is_killed_while_it_moves_back_is_finished_once_by_the_next(bench: Bench, failpoint: str):
    place, anew = here(bench), overwrite(home(bench), 500, 520)
    wait_a_tick(home(bench))
    rows_ = sorted(anew + write(place, 900, 910))
    killed_at(bench, failpoint)
    assert stirred(bench.table, format=bench.format, store=bench.store, partitions=[PARTITION])
    after_its_hold(bench)
    swept(bench)
    assert (here(bench), in_partition(bench)) == (home(bench), rows_)
    assert counted(bench) == true_counts(bench)
    assert (swept(bench), stirred(bench.table, format=bench.format, store=bench.store, partitions=[PARTITION])) == (
        LateReport(), {},
    )  # fmt: skip
    bench.request(partitions=[PARTITION])
    assert bench.run().result is Result.COMPLETED
    bench.clean()
    assert (swept(bench), in_partition(bench)) == (LateReport(), rows_)


def test_rule_5_what_was_to_go_along_back_and_is_overwritten_before_it_does_is_not_there_then(bench: Bench):
    overwrite(home(bench), 500, 520)
    wait_a_tick(home(bench))
    write(here(bench), 900, 910)
    killed_at(bench, "carry_copied")
    after_its_hold(bench)
    wait_a_tick(home(bench))
    # By a writer that has looked for what to remove before the copy came.
    (home(bench) / "part-anew.parquet").unlink()
    anew = write(home(bench), 600, 620, "part-later.parquet")
    assert (swept(bench).moved_back, here(bench), in_partition(bench)) == (1, home(bench), sorted(anew))
    assert (swept(bench), halted(bench)) == (LateReport(), None)


def test_rule_5_a_copy_that_a_sleeping_round_makes_when_its_partition_has_moved_on_doubles_no_row(bench: Bench):
    rows_, place = sorted(in_partition(bench) + write(home(bench), 900, 910)), here(bench)
    swept(bench)
    (copy,) = place.glob("carried-*")
    whole = copy.read_bytes()
    bench.request(partitions=[PARTITION])
    assert bench.run().result is Result.COMPLETED
    bench.clean()
    assert not copy.exists()
    place.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(whole)
    assert (swept(bench), in_partition(bench)) == (LateReport(), rows_)

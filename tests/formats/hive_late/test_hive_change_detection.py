# SPDX-License-Identifier: Apache-2.0
"""What a sweep costs follows what changed since the last one, and nothing that changed is missed."""

import shutil
from collections.abc import Callable, Collection
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest
from hive_case import Owner, table_name
from late_writing import PARTITION, dropped, here, home, in_partition, point_at, wait_a_tick, write
from toys.bench import Bench

from executors.context import RunContext
from executors.outcome import RunResult
from executors.relocation import watch
from executors.relocation.watch import PartitionWatch
from executors.sweep import sweep_table
from lake.errors import Transient
from lake.formats.hive.format import HiveFormat
from lake.formats.hive.relocation import change_detection
from lake.formats.hive.relocation.change_detection import HiveChangeDetector
from lake.relocation_store import RelocationStore
from lake.storage.local import LocalFileIO

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]

Swept = Callable[[], Collection[str]]


@pytest.fixture
def swept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Swept:
    """A sweep of one daemon, of no partition in turn: the partitions that it looked at. It has seen the table twice."""
    monkeypatch.setattr(watch, "_MIN_ROTATION_SIZE", 0)
    monkeypatch.setattr(change_detection, "_MIN_RELIABLE_AGE_SECONDS", -60)
    remembered, standing = PartitionWatch(), HiveFormat.inspect_locations

    def swept() -> Collection[str]:
        looked = set[str]()

        def stands(format_: Any, table: Any, moved: Any) -> Any:
            looked.update(one.partition for one in moved)
            return standing(format_, table, moved)

        with mock.patch.object(HiveFormat, "inspect_locations", stands):
            sweep_table(
                bench.table,
                RunContext(store=bench.store, spark=bench.case.spark),
                format=bench.format,
                watch=remembered,
            )
        return looked

    for _ in range(3):
        bench.request()
        assert bench.run().result is RunResult.COMPLETED
    wait_a_tick(home(bench))
    swept()
    return swept


def test_a_sweep_of_an_unchanged_table_checks_no_partition(bench: Bench, swept: Swept):
    assert [swept() for _ in range(3)] == [set()] * 3
    assert len(bench.store.relocated_partitions(bench.table)) == 2


def test_a_late_append_to_any_former_location_is_found_and_copied_by_the_next_sweep(bench: Bench, swept: Swept):
    before, expected = in_partition(bench), list[str]()
    record = next(one for one in bench.store.relocated_partitions(bench.table) if one.partition == PARTITION)
    places = [bench.home / "lake" / "toy" / former.location for former in record.previous_locations]
    assert len(places) == 4
    for number, place in enumerate(places):
        expected += write(place, 900 + number, 901 + number, f"late-{number}.parquet")
        assert swept() == {PARTITION}
        assert in_partition(bench) == sorted(before + expected)
    swept()
    assert swept() == set()


@pytest.mark.parametrize("since", ["before the process began", "afterwards"])
def test_a_late_append_to_a_former_location_outside_of_the_table_is_found_by_the_next_sweep(
    bench: Bench, swept: Swept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, since: str
):
    """Only the rotation found it, up to an hour later."""
    one = PartitionWatch()

    def chosen() -> Collection[str] | None:
        found = one.choose_partitions(bench.table, bench.format, cast(RelocationStore, bench.store))
        one.mark_swept(bench.table, ())
        return found

    if since == "afterwards":
        monkeypatch.setattr(watch, "_MIN_ROTATION_SIZE", 1)
        assert chosen() == {"dt=0"}
    elsewhere = tmp_path / "elsewhere" / "p"
    shutil.copytree(here(bench), elsewhere)
    point_at(bench, elsewhere)
    write(elsewhere, 700, 710, "part-more.parquet")
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    assert here(bench) != elsewhere
    while len(chosen() or ()) > (since == "afterwards"):
        pass
    for _ in range(6):
        chosen()
    in_turn = [chosen() for _ in range(3)]
    write(elsewhere, 900, 910)
    now = [chosen() for _ in range(3)]
    assert now[0] == {PARTITION, *(in_turn[0] or ())}
    assert now[1:] == in_turn[1:]


def test_a_late_append_to_a_removed_former_location_is_found_after_its_return(bench: Bench, swept: Swept):
    before, last = in_partition(bench), here(bench)
    bench.clean()
    record = next(one for one in bench.store.relocated_partitions(bench.table) if one.partition == PARTITION)
    removed = [
        path for one in record.previous_locations if not (path := bench.home / "lake" / "toy" / one.location).exists()
    ]
    assert removed
    swept()
    removed[0].mkdir(parents=True)
    write(removed[0], 900, 910)
    assert swept() == {PARTITION}
    assert (here(bench), in_partition(bench)) == (last, before), "what is added where all was deleted halts"
    assert bench.store.table_state(bench.table.name).halted_partitions.keys() == {PARTITION}


def test_an_owners_change_of_a_partition_in_the_metastore_is_seen_by_the_next_sweep(bench: Bench, swept: Swept):
    replaced = set(home(bench).glob("*.parquet"))
    assert replaced
    dropped(bench)
    assert PARTITION in swept()
    assert not set(home(bench).glob("*.parquet"))
    shutil.rmtree(home(bench))
    home(bench).mkdir()
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.add(table_name(bench.table), "0", home(bench))
    assert PARTITION in swept()


def test_a_partition_that_is_added_again_without_a_change_in_its_directory_is_found(bench: Bench, swept: Swept):
    """As ``MSCK`` adds one whose replaced files are in the directory: readers see them again."""
    one = HiveChangeDetector(bench.table)
    for _ in range(3):
        assert one.find_changed_partitions() == set()
    dropped(bench)
    assert one.find_changed_partitions() == {PARTITION}
    assert one.find_changed_partitions() == set()
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.add(table_name(bench.table), "0", home(bench))
    assert one.find_changed_partitions() == {PARTITION}
    assert one.find_changed_partitions() == set()


def test_every_partition_is_checked_in_turn_where_changes_leave_no_trace(
    bench: Bench, swept: Swept, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(watch, "_MIN_ROTATION_SIZE", 1)
    assert [swept() for _ in range(4)] == [{"dt=0"}, {"dt=1"}, set(), {"dt=0"}]


def test_a_check_that_read_a_part_continues_after_it(bench: Bench, swept: Swept, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(change_detection, "MAX_DIRECTORIES_PER_CHECK", 1)
    monkeypatch.setattr(change_detection, "MAX_PARTITIONS_PER_CHECK", 1)
    one, found = HiveChangeDetector(bench.table), set[str]()
    for _ in range(10):
        assert one.find_changed_partitions() == set()
    write(home(bench), 900, 910)
    dropped(bench)
    for _ in range(10):
        found |= one.find_changed_partitions()
    assert found == {PARTITION}


def test_findings_of_a_failed_check_are_reported_by_the_next_one(bench: Bench, swept: Swept):
    one = HiveChangeDetector(bench.table)
    for _ in range(3):
        one.find_changed_partitions()
    dropped(bench)
    with mock.patch.object(HiveChangeDetector, "_roots", side_effect=OSError(5, "no answer")), pytest.raises(Transient):
        one.find_changed_partitions()
    assert one.find_changed_partitions() == {PARTITION}
    assert one.find_changed_partitions() == set()


def test_a_directory_that_lakefold_may_not_list_hides_no_change_in_the_others(bench: Bench, swept: Swept):
    """Such as ``lost+found``, or one that a user made for himself, in a table of two partition columns."""
    one, root = HiveChangeDetector(bench.table), bench.home / "lake" / "toy"
    for name in ("a=1/b=1", "a=2/b=2", "lost+found/b=1"):
        (root / name).mkdir(parents=True)
    listed = LocalFileIO.list

    def list_all_but_one(files: LocalFileIO, directory: str) -> Any:
        if directory.endswith("lost+found"):
            raise PermissionError(13, "Permission denied", directory)
        return listed(files, directory)

    with mock.patch.object(LocalFileIO, "list", list_all_but_one):
        list(one._changed_in_directories(2))
        wait_a_tick(root / "a=1")
        write(root / "a=1/b=1", 900, 910)
        assert set(one._changed_in_directories(2)) == {"a=1/b=1"}


def test_a_file_that_is_written_slowly_is_checked_until_it_is_copied(
    bench: Bench, swept: Swept, monkeypatch: pytest.MonkeyPatch
):
    """Its directory's time is that of its beginning: nothing tells of its end, nor that it has settled."""
    place, before = home(bench), in_partition(bench)
    rows = write(bench.home, 900, 910)
    whole = (bench.home / "part-late.parquet").read_bytes()
    (place / "part-late.parquet").write_bytes(whole[:-4])
    assert (swept(), swept()) == ({PARTITION}, {PARTITION})
    with monkeypatch.context() as patched:
        patched.setattr("lake.formats.hive.files.incomplete.STABLE_AFTER", timedelta(minutes=1))
        (place / "part-late.parquet").write_bytes(whole)
        assert (swept(), swept()) == ({PARTITION}, {PARTITION})
        assert in_partition(bench) == before
    assert (swept(), in_partition(bench)) == ({PARTITION}, sorted([*before, *rows]))
    swept()
    assert swept() == set()


def test_a_partition_is_found_by_its_directory_whose_name_has_the_case_that_spark_keeps(bench: Bench, swept: Swept):
    one, root = HiveChangeDetector(bench.table), bench.home / "lake" / "toy"
    (root / "Dt=A/Hour=1").mkdir(parents=True)
    list(one._changed_in_directories(2))
    wait_a_tick(root / "Dt=A")
    write(root / "Dt=A/Hour=1", 900, 910)
    assert set(one._changed_in_directories(2)) == {"dt=A/hour=1"}


def test_a_partition_is_found_by_its_directory_if_the_name_of_its_column_begins_with_an_underscore(
    bench: Bench, swept: Swept
):
    """Late files in a location that it had left over an hour before were found by the rotation only."""
    one, root = HiveChangeDetector(bench.table), bench.home / "lake" / "toy"
    (root / "_dt=A/hour=1").mkdir(parents=True)
    list(one._changed_in_directories(2))
    wait_a_tick(root / "_dt=A")
    write(root / "_dt=A/hour=1", 900, 910)
    assert set(one._changed_in_directories(2)) == {"_dt=A/hour=1"}

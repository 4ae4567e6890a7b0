# SPDX-License-Identifier: Apache-2.0
"""What a sweep costs follows what changed since the last one, and nothing that changed is missed."""

import shutil
from collections.abc import Callable, Collection
from typing import Any
from unittest import mock

import pytest
from hive_case import Owner, table_name
from late_writing import PARTITION, dropped, here, home, in_partition, wait_a_tick, write
from toys.bench import Bench

from executors import watch
from executors.outcome import Result
from executors.rescue import sweep
from executors.watch import Watch
from lake.formats.hive import changes
from lake.formats.hive.changes import HiveChanges
from lake.formats.hive.format import HiveFormat

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]

Swept = Callable[[], Collection[str]]


@pytest.fixture
def swept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Swept:
    """A sweep of one daemon, of no partition in turn: the partitions that it looked at. It has seen the table twice."""
    monkeypatch.setattr(watch, "_IN_TURN", 0)
    monkeypatch.setattr(changes, "_SURE_AFTER_SECONDS", -60)
    remembered, standing = Watch(), HiveFormat.standing

    def swept() -> Collection[str]:
        looked = set[str]()

        def stands(format_: Any, table: Any, moved: Any) -> Any:
            looked.update(one.partition for one in moved)
            return standing(format_, table, moved)

        with mock.patch.object(HiveFormat, "standing", stands):
            sweep(bench.table, format=bench.format, store=bench.store, spark=bench.case.spark, watch=remembered)
        return looked

    for _ in range(3):
        bench.request()
        assert bench.run().result is Result.COMPLETED
    wait_a_tick(home(bench))
    swept()
    return swept


def test_a_sweep_of_a_table_in_which_nothing_changed_looks_at_no_partition(bench: Bench, swept: Swept):
    assert [swept() for _ in range(3)] == [set()] * 3
    assert len(bench.store.moved(bench.table)) == 2


def test_a_late_append_to_any_former_place_is_found_and_carried_by_the_next_sweep(bench: Bench, swept: Swept):
    before, expected = in_partition(bench), list[str]()
    record = next(one for one in bench.store.moved(bench.table) if one.partition == PARTITION)
    places = [bench.home / "lake" / "toy" / former.place for former in record.former]
    assert len(places) == 4
    for number, place in enumerate(places):
        expected += write(place, 900 + number, 901 + number, f"late-{number}.parquet")
        assert swept() == {PARTITION}
        assert in_partition(bench) == sorted(before + expected)
    swept()
    assert swept() == set()


def test_a_late_append_to_a_former_place_that_was_removed_is_found_when_it_is_there_again(bench: Bench, swept: Swept):
    before, last = in_partition(bench), here(bench)
    bench.clean()
    record = next(one for one in bench.store.moved(bench.table) if one.partition == PARTITION)
    removed = [path for one in record.former if not (path := bench.home / "lake" / "toy" / one.place).exists()]
    assert removed
    swept()
    removed[0].mkdir(parents=True)
    write(removed[0], 900, 910)
    assert swept() == {PARTITION}
    assert (here(bench), in_partition(bench)) == (last, before), "what is added where all was deleted halts"
    assert bench.store.table_state(bench.table.name).halted_partitions.keys() == {PARTITION}


def test_what_an_owner_does_to_a_partition_in_the_metastore_is_seen_by_the_next_sweep(bench: Bench, swept: Swept):
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


def test_every_partition_has_its_turn_where_nothing_tells_of_a_change(
    bench: Bench, swept: Swept, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(watch, "_IN_TURN", 1)
    assert [swept() for _ in range(4)] == [{"dt=0"}, {"dt=1"}, set(), {"dt=0"}]


def test_a_look_that_reads_a_part_goes_on_there(bench: Bench, swept: Swept, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(changes, "DIRECTORIES_AT_ONCE", 1)
    monkeypatch.setattr(changes, "PARTITIONS_AT_ONCE", 1)
    one, found = HiveChanges(bench.table), set[str]()
    for _ in range(10):
        assert one.look() == set()
    write(home(bench), 900, 910)
    dropped(bench)
    for _ in range(10):
        found |= one.look()
    assert found == {PARTITION}

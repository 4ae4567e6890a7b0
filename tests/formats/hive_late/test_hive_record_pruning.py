# SPDX-License-Identifier: Apache-2.0
"""What is kept of a partition does not grow with its rounds, and what was forgotten costs no row in any schedule."""

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest
from hive_case import Owner, table_name
from late_writing import (
    PARTITION,
    brought_home,
    data_files,
    dropped,
    halted,
    here,
    home,
    in_partition,
    resolved,
    swept,
    write,
)
from renaming import lose_database, renamed
from toys.bench import Bench

from executors.context import RunContext
from executors.outcome import RunResult
from executors.relocation.partition_sweep import SweepReport
from executors.relocation.pruning import PRUNE_AFTER, prune_relocations
from executors.relocation.watch import PartitionWatch
from executors.sweep import sweep_table
from lake.capabilities import with_identity
from lake.formats.hive.commit import commit_record
from lake.formats.hive.format import HiveFormat
from lake.relocation.decide import LocationChoice

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]

ROUNDS = 5


def forgotten(bench: Bench) -> int:
    done, last = prune_relocations(bench.table, format=bench.format, store=bench.store)
    assert last == ""
    return done


def rounds(bench: Bench, count: int) -> None:
    """Rewrites of all partitions, each followed by a cleaner's round."""
    for _ in range(count):
        bench.request()
        assert bench.run().result is RunResult.COMPLETED
        bench.clean()


def age(bench: Bench, by: timedelta = PRUNE_AFTER + timedelta(days=1)) -> None:
    ms = int(by.total_seconds() * 1000)
    bench.execute(f"UPDATE place_move SET begun_at_ms = begun_at_ms - {ms}, made_at_ms = made_at_ms - {ms}")
    bench.execute(f"UPDATE superseded_version SET deleted_at_ms = deleted_at_ms - {ms}")


def formers(bench: Bench) -> list[str]:
    record = next(one for one in bench.store.relocated_partitions(bench.table) if one.partition == PARTITION)
    assert record.original_location == PARTITION
    return [former.location for former in record.previous_locations]


def documents(bench: Bench) -> set[str]:
    return {path.name for path in (Path(bench.table.location) / ".lakefold" / "_commits").iterdir()}


def daemon_sweeps(bench: Bench) -> Callable[[], object]:
    """The sweeps of one daemon, which knows of no change but what directories and the metastore tell."""
    watch = PartitionWatch()

    def sweeps() -> object:
        with mock.patch("executors.relocation.watch._MIN_ROTATION_SIZE", 0):
            return sweep_table(
                bench.table, RunContext(store=bench.store, spark=bench.case.spark), format=bench.format, watch=watch
            )

    return sweeps


@pytest.fixture
def known(unmoved: Bench) -> Bench:
    """A table that was scanned."""
    unmoved.table = with_identity(unmoved.format, unmoved.table)
    unmoved.store.register_table(unmoved.table, "compact")
    return unmoved


@pytest.fixture
def worn(known: Bench) -> Bench:
    """A table of many rounds, the last one longer ago than places are remembered, of which the rest is forgotten."""
    rounds(known, ROUNDS)
    age(known)
    assert forgotten(known) == 2 * (ROUNDS - 4)
    return known


def test_the_records_of_a_partition_and_of_its_table_are_bounded(known: Bench):
    bench, rows = known, known.rows()
    sizes = []
    for count in (ROUNDS, 1, 1):
        rounds(bench, count)
        age(bench)
        forgotten(bench)
        sizes.append(
            (len(bench.store.known_relocation_tokens(bench.table)), len(documents(bench)), len(formers(bench)))
        )
    assert sizes[0] == sizes[1] == sizes[2] == (4, sizes[0][1], 4)
    assert sizes[0][1] <= 9, "a document of each commit, a note of what was deleted, and one of what is forgotten"
    assert (forgotten(bench), sorted(bench.rows()), swept(bench), halted(bench)) == (
        0,
        sorted(rows),
        SweepReport(),
        None,
    )


def test_a_table_works_as_before_after_former_locations_were_pruned(worn: Bench):
    bench, rows = worn, worn.rows()
    write(home(bench), 900, 910)
    bench.sweep()
    assert halted(bench) is not None, "what is added where all was deleted is for a person to tell, as before"
    (home(bench) / "part-late.parquet").unlink()
    bench.store.resume(bench.table.name, "a test")
    bench.sweep()
    rounds(bench, 1)
    assert (sorted(bench.rows()), swept(bench), halted(bench)) == (sorted(rows), SweepReport(), None)
    assert brought_home(bench).relocated_back == 2
    assert (here(bench), sorted(bench.rows())) == (home(bench), sorted(rows))


@pytest.mark.crossed(2)
@pytest.mark.parametrize("why", ["young", "waits", "there", "halted", "deleted lately", "begun"])
def test_nothing_that_may_be_needed_is_pruned(known: Bench, why: str):
    bench = known
    rounds(bench, ROUNDS)
    age(bench, timedelta(days=29) if why == "young" else PRUNE_AFTER + timedelta(days=1))
    versions = {former for former in formers(bench) if former != PARTITION}
    if why == "waits":
        bench.execute("UPDATE superseded_version SET deleted_at_ms = NULL")
    elif why == "there":
        for version in versions:
            (Path(bench.table.location) / version).parent.mkdir(parents=True, exist_ok=True)
    elif why == "halted":
        for partition in ("dt=0", "dt=1"):
            bench.store.halt_partition(bench.table, partition, "a test")
    elif why == "deleted lately":
        bench.execute("UPDATE superseded_version SET deleted_at_ms = deleted_at_ms + 5 * 86400000")
    elif why == "begun":
        bench.execute("UPDATE place_move SET made_at_ms = NULL WHERE id IN (SELECT max(id) FROM place_move)")
        bench.execute("UPDATE place_move SET made_at_ms = NULL WHERE id IN (SELECT max(id) - 1 FROM place_move)")
    before = documents(bench)
    assert (forgotten(bench), documents(bench)) == (0, before)


def test_nothing_of_a_table_is_pruned_while_its_storage_is_unavailable(known: Bench):
    bench = known
    rounds(bench, ROUNDS)
    age(bench)
    there = Path(bench.table.location)
    there.rename(there.with_name("unmounted"))
    assert forgotten(bench) == 0
    there.with_name("unmounted").rename(there)
    assert forgotten(bench) == 2 * (ROUNDS - 4)


@pytest.mark.crossed
@pytest.mark.parametrize("is_new", [False, True])
def test_a_writer_that_recreates_a_pruned_location_is_noticed_by_every_daemon(
    known: Bench, is_new: bool, monkeypatch: pytest.MonkeyPatch
):
    bench = known
    rounds(bench, ROUNDS)
    age(bench)
    places = formers(bench)
    sweeps = daemon_sweeps(bench)
    sweeps()
    assert forgotten(bench)
    lost = [place for place in places if place not in formers(bench)]
    assert lost
    sweeps = daemon_sweeps(bench) if is_new else sweeps
    sweeps()
    rows, place = in_partition(bench), Path(bench.table.location) / lost[0]
    place.mkdir(parents=True)
    sweeps()
    assert halted(bench) is None, "a directory is no row"
    write(place, 900, 910)
    sweeps()
    assert f"files were written to {lost[0]} after lakefold began to delete there" in (halted(bench) or "")
    assert (in_partition(bench), len(data_files(place))) == (rows, 1)
    before = documents(bench)
    assert (forgotten(bench), documents(bench)) == (0, before)
    resolved(bench, LocationChoice.CURRENT)
    bench.store.resume(bench.table.name, "a test")
    sweeps()
    assert (halted(bench), in_partition(bench), lost[0] in formers(bench)) == (None, rows, True)


def test_a_new_database_after_a_loss_gets_the_relocations_that_the_table_still_has(worn: Bench):
    bench, rows, before = worn, worn.rows(), formers(worn)
    lose_database(bench)
    bench.sweep()
    assert (formers(bench), sorted(bench.rows()), halted(bench), swept(bench)) == (
        before,
        sorted(rows),
        None,
        SweepReport(),
    )
    bench.clean()
    rounds(bench, 1)
    assert (sorted(bench.rows()), swept(bench), halted(bench)) == (sorted(rows), SweepReport(), None)


def test_a_partition_restored_in_between_keeps_its_original_location_if_the_database_is_lost(known: Bench):
    bench, rows = known, known.rows()
    for _ in range(3):
        rounds(bench, 2)
        age(bench)
        assert brought_home(bench).relocated_back == 2
        bench.clean()
    rounds(bench, 1)
    age(bench)
    assert forgotten(bench)
    before = formers(bench)
    lose_database(bench)
    bench.sweep()
    assert (formers(bench), sorted(bench.rows()), halted(bench)) == (before, sorted(rows), None)
    age(bench)
    bench.clean()
    assert brought_home(bench).relocated_back == 2
    assert (here(bench), sorted(bench.rows()), swept(bench)) == (home(bench), sorted(rows), SweepReport())


def test_a_partition_that_is_dropped_and_added_again_has_its_new_rows_only(worn: Bench):
    bench = worn
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    dropped(bench)
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.add(table_name(bench.table), "0", home(bench))
    rows = write(home(bench), 900, 910)
    bench.sweep()
    assert (in_partition(bench), halted(bench)) == (sorted(rows), None)
    age(bench)
    forgotten(bench)
    bench.sweep()
    assert (in_partition(bench), halted(bench), swept(bench)) == (sorted(rows), None, SweepReport())


def test_a_table_renamed_after_pruning_continues_under_its_new_name(worn: Bench):
    bench, rows, before = worn, worn.rows(), formers(worn)
    renamed(bench)
    bench.sweep()
    assert (formers(bench), sorted(bench.rows()), halted(bench), swept(bench)) == (
        before,
        sorted(rows),
        None,
        SweepReport(),
    )
    rounds(bench, 1)
    assert (sorted(bench.rows()), halted(bench)) == (sorted(rows), None)


def test_a_restored_backup_of_the_database_gets_later_relocations_from_the_table(known: Bench):
    bench, rows = known, known.rows()
    rounds(bench, 3)
    database = Path(bench.url.removeprefix("sqlite:///"))
    bench.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(database, bench.home / "backup")
    rounds(bench, ROUNDS)
    age(bench)
    assert forgotten(bench)
    bench.store.close()
    for name in (f"{database}-wal", f"{database}-shm"):
        Path(name).unlink(missing_ok=True)
    shutil.copy(bench.home / "backup", database)
    bench.store = type(bench.store)(bench.url)
    bench.sweep()
    record = next(one for one in bench.store.relocated_partitions(bench.table) if one.partition == PARTITION)
    assert Path(bench.table.location) / record.latest.location == here(bench)
    assert (record.original_location, sorted(bench.rows()), halted(bench)) == (PARTITION, sorted(rows), None)
    rounds(bench, 1)
    assert (sorted(bench.rows()), swept(bench), halted(bench)) == (sorted(rows), SweepReport(), None)


class Killed(BaseException):
    """What a process does not survive."""


def test_a_process_that_dies_between_documents_and_rows_has_pruned_none_of_the_rows(known: Bench):
    bench, rows = known, known.rows()
    rounds(bench, ROUNDS)
    age(bench)
    before = formers(bench)
    with mock.patch.object(type(bench.store), "prune_relocations", side_effect=Killed), pytest.raises(Killed):
        forgotten(bench)
    assert formers(bench) == before
    bench.sweep()
    assert (formers(bench), swept(bench), halted(bench)) == (before, SweepReport(), None)
    assert forgotten(bench) == 2 * (ROUNDS - 4)
    bench.sweep()
    assert (sorted(bench.rows()), swept(bench), halted(bench)) == (sorted(rows), SweepReport(), None)
    lose_database(bench)
    bench.sweep()
    assert (sorted(bench.rows()), swept(bench), halted(bench)) == (sorted(rows), SweepReport(), None)


def test_a_document_that_can_t_be_removed_keeps_its_moves(known: Bench):
    bench = known
    rounds(bench, ROUNDS)
    age(bench)
    before, count = formers(bench), len(documents(bench))
    with mock.patch.object(HiveFormat, "prune_relocations", return_value=()):
        assert forgotten(bench) == 0
    assert (formers(bench), len(documents(bench))) == (before, count)


def test_a_commit_that_another_partition_names_as_its_last_keeps_its_document(known: Bench):
    bench, rows = known, known.rows()
    rounds(bench, 3)
    for _ in range(4):
        bench.request(partitions=[PARTITION])
        assert bench.run().result is RunResult.COMPLETED
        bench.clean()
    age(bench)
    (last,) = [one.latest.token for one in bench.store.relocated_partitions(bench.table) if one.partition != PARTITION]
    assert forgotten(bench)
    assert commit_record.archived_record_of_token(bench.table, last) is not None
    assert last in bench.store.known_relocation_tokens(bench.table)
    lose_database(bench)
    bench.sweep()
    assert (sorted(bench.rows()), swept(bench), halted(bench)) == (sorted(rows), SweepReport(), None)

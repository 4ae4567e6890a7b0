# SPDX-License-Identifier: Apache-2.0
"""How lakefold learns which directories other tables are read from, since it does not list all tables each time."""

import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hive_case import DATABASE, Owner
from late_writing import PARTITION, home
from other_table import OTHER, RENAMED, metastore_table, pointed, published, reasons
from toys.bench import Bench

from lake.errors import Transient
from lake.formats.hive.directories import directory_index, shared_directories
from lake.metastore import MetastoreClient, MetastoreTable, pooled_connection
from lake.metastore.thrift import STRING

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]


def test_rule_7_a_partition_that_is_pointed_to_a_directory_is_seen_though_its_name_is_known(
    bench: Bench, other: Owner, tmp_path: Path
):
    published(other, tmp_path / "other" / "dt=0")
    directory_index.clear_directory_caches()
    with pooled_connection(bench.case.uri) as metastore:  # type: ignore[attr-defined]
        shared_directories.foreign_readers(metastore, metastore_table(bench), [str(home(bench))])
    pointed(other, home(bench))
    files = sorted(home(bench).iterdir())
    bench.clean()
    assert [kept.version.partition for kept in bench.clean().kept] == [PARTITION] * len(files)
    assert sorted(home(bench).iterdir()) == files


@pytest.mark.parametrize("rename", ["table", "partition"])
def test_rule_7_a_reader_that_is_renamed_after_the_directories_were_read_keeps_its_files(
    bench: Bench, other: Owner, rename: str
):
    published(other, home(bench))
    bench.execute("UPDATE superseded_version SET superseded_at_ms = 1")
    directory_index.clear_directory_caches()
    files = sorted(home(bench).iterdir())
    bench.clean(timedelta(days=7))
    assert sorted(home(bench).iterdir()) == files
    if rename == "table":
        raw = other.table(DATABASE, OTHER).raw  # type: ignore[union-attr]
        other.alter_table(DATABASE, OTHER, MetastoreTable(raw | {1: (STRING, RENAMED)}))
    else:
        other.drop(OTHER, "0")
        published(other, home(bench), "1")
    assert [kept.version.partition for kept in bench.clean(timedelta(days=7)).kept] == [PARTITION] * len(files)
    assert sorted(home(bench).iterdir()) == files


@pytest.mark.parametrize("call", ["tables", "partition_names"])
def test_rule_7_a_reader_that_is_renamed_while_the_directories_are_read_keeps_its_files(
    bench: Bench, other: Owner, call: str, monkeypatch: pytest.MonkeyPatch
):
    published(other, home(bench))
    answer = getattr(MetastoreClient, call)

    def renamed_first(self: MetastoreClient, *arguments: Any) -> Any:
        if (raw := getattr(other.table(DATABASE, OTHER), "raw", None)) is not None:
            other.alter_table(DATABASE, OTHER, MetastoreTable(raw | {1: (STRING, RENAMED)}))
        return answer(self, *arguments)

    monkeypatch.setattr(MetastoreClient, call, renamed_first)
    directory_index.clear_directory_caches()
    files = sorted(home(bench).iterdir())
    assert [kept.version.partition for kept in bench.clean().kept] == [PARTITION] * len(files)
    assert sorted(home(bench).iterdir()) == files


def test_rule_7_a_partition_of_another_table_that_is_set_to_a_directory_of_its_own_is_no_reader_from_then_on(
    bench: Bench, other: Owner, tmp_path: Path
):
    published(other, home(bench))
    directory_index.clear_directory_caches()
    with pooled_connection(bench.case.uri) as metastore:  # type: ignore[attr-defined]
        here_ = [str(home(bench))]
        assert list(shared_directories.foreign_readers(metastore, metastore_table(bench), here_)) == here_
        pointed(other, tmp_path / "other" / "dt=0")
        assert shared_directories.foreign_readers(metastore, metastore_table(bench), here_) == {}


def test_rule_7_readers_are_known_while_tables_and_partitions_are_made_all_the_time(
    bench: Bench, other: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    published(other, home(bench))
    lists, real_tables, real_names = [0], MetastoreClient.table_names, MetastoreClient.partition_names

    def with_a_new_table(self: MetastoreClient, database: str) -> Any:
        if database == DATABASE:
            lists[0] += 1
            other.make_table(f"made_{lists[0]}", tmp_path / f"made_{lists[0]}")
        return real_tables(self, database)

    def with_a_new_partition(self: MetastoreClient, database: str, table: str) -> Any:
        if table == OTHER:
            published(other, tmp_path / "other" / f"new-{lists[0]}", f"new-{lists[0]}")
        return real_names(self, database, table)

    directory_index.clear_directory_caches()
    with monkeypatch.context() as patch, pooled_connection(bench.case.uri) as metastore:  # type: ignore[attr-defined]
        patch.setattr(MetastoreClient, "table_names", with_a_new_table)
        patch.setattr(MetastoreClient, "partition_names", with_a_new_partition)
        found = shared_directories.foreign_readers(metastore, metastore_table(bench), [str(home(bench))])
        assert shared_directories.unreadable_reason(metastore) is None
    assert (list(found), lists[0] <= 3) == ([str(home(bench))], True)


def test_rule_7_nothing_is_deleted_while_a_table_of_a_database_can_not_be_read(
    bench: Bench, other: Owner, monkeypatch: pytest.MonkeyPatch
):
    names = MetastoreClient.partition_names

    def refused(self: MetastoreClient, database: str, table: str) -> Any:
        if table == OTHER:
            raise Transient("access to publisher is denied")
        return names(self, database, table)

    monkeypatch.setattr(MetastoreClient, "partition_names", refused)
    directory_index.clear_directory_caches()
    files = sorted(home(bench).iterdir())
    report = bench.clean()
    assert (report.deleted, sorted(home(bench).iterdir())) == ((), files)
    assert f"{DATABASE}.{OTHER}" in report.kept[0].reason
    assert "access to publisher is denied" in report.kept[0].reason
    assert set(reasons(bench).values()) == {None}


def test_the_partitions_of_other_tables_are_read_once_an_hour_and_only_their_names_before_that(
    bench: Bench, other: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[list[str]] = []
    partitions = MetastoreClient.partitions

    def counted(self: MetastoreClient, database: str, table: str, names: Any) -> Any:
        if table == OTHER:
            asked.append(list(names)) if names else None
        return partitions(self, database, table, names)

    monkeypatch.setattr(MetastoreClient, "partitions", counted)
    for value in ("1", "2"):
        published(other, tmp_path / "other" / f"dt={value}", value)
    directory_index.clear_directory_caches()

    def look(age: timedelta) -> None:
        with pooled_connection(bench.case.uri) as metastore:  # type: ignore[attr-defined]
            shared_directories.foreign_readers(metastore, metastore_table(bench), [str(home(bench))], max_age=age)

    look(timedelta())
    assert asked == [["dt=1", "dt=2"]]
    published(other, tmp_path / "other" / "dt=3", "3")
    look(timedelta(minutes=10))
    assert len(asked) == 1
    look(timedelta())
    assert asked[1:] == [["dt=3"]]
    look(timedelta())
    assert len(asked) == 2


def test_partitions_of_all_tables_are_not_read_again_at_each_check_if_that_takes_long(
    bench: Bench, other: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Each inspection waited for a load of its own, since the one before was too old when it ended."""
    seconds, asked, partitions = [0.0], list[float](), MetastoreClient.partitions

    def slow(self: MetastoreClient, database: str, table: str, names: Any) -> Any:
        if table == OTHER and names:
            asked.append(seconds[0])
            seconds[0] += 200
        return partitions(self, database, table, names)

    published(other, tmp_path / "other" / "dt=1", "1")
    directory_index.clear_directory_caches()
    monkeypatch.setattr(MetastoreClient, "partitions", slow)
    clock = SimpleNamespace(monotonic=lambda: seconds[0], time=lambda: seconds[0])
    monkeypatch.setattr("lake.stopwatch.time", clock)
    monkeypatch.setattr("lake.formats.hive.directories.directory_index.time", clock)

    def look() -> int:
        with pooled_connection(bench.case.uri) as metastore:  # type: ignore[attr-defined]
            age = shared_directories.DELETION_MAX_AGE
            assert (
                shared_directories.present_readers(metastore, metastore_table(bench), [str(home(bench))], max_age=age)
                == {}
            )
        return len(asked)

    assert [look(), look(), look()] == [1, 1, 1]
    seconds[0] += 390
    assert look() == 1
    seconds[0] += 20
    assert [look(), look()] == [2, 2], "read again after three times the duration of a load"


def test_rule_7_directories_that_were_read_before_a_machine_was_suspended_are_read_again(
    bench: Bench, other: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """CLOCK_MONOTONIC stands still meanwhile, so they counted as just read: files that a table reads were deleted."""
    slept = [0.0]
    clocks = SimpleNamespace(monotonic=time.monotonic, time=lambda: time.time() + slept[0])
    monkeypatch.setattr("lake.stopwatch.time", clocks)
    published(other, tmp_path / "other" / "dt=0")
    directory_index.clear_directory_caches()

    def readers() -> Any:
        with pooled_connection(bench.case.uri) as metastore:  # type: ignore[attr-defined]
            return shared_directories.foreign_readers(metastore, metastore_table(bench), [str(home(bench))])

    assert readers() == {}
    pointed(other, home(bench))
    slept[0] = 2 * 3600
    assert f"is read from {home(bench)}" in readers()[str(home(bench))]
    slept[0] = 0
    other.drop(OTHER, "0")
    assert readers() == {}


def test_rule_7_a_suspension_while_directories_are_read_does_not_count_as_the_duration_of_a_load(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    """A restore then accepted directories that had been read up to a day before."""
    slept, tables = [0.0], MetastoreClient.tables
    clocks = SimpleNamespace(monotonic=time.monotonic, time=lambda: time.time() + slept[0])

    def suspended(*arguments: Any) -> Any:
        slept[0] += 8 * 3600
        return tables(*arguments)

    monkeypatch.setattr("lake.stopwatch.time", clocks)
    monkeypatch.setattr(MetastoreClient, "tables", suspended)
    directory_index.clear_directory_caches()
    hour = timedelta(hours=1)
    with pooled_connection(bench.case.uri) as metastore:  # type: ignore[attr-defined]
        cache = directory_index.directory_cache(metastore.uri)
        before = cache.load(metastore, max_age=hour, max_partition_age=hour)
        assert cache.full_load_duration < timedelta(minutes=5)
        assert cache.load(metastore, max_age=hour, max_partition_age=hour) is not before, (
            "its age counts the suspension"
        )

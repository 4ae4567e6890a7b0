# SPDX-License-Identifier: Apache-2.0
"""Writers that began before a partition was relocated and ended afterwards.

They are plain files here, as those of Spark are once its job has ended. The rules that the tests are named after are
those of docs/decisions/0013-moving-a-partition.md.
"""

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
import pytest
from hive_case import DATABASE, Owner, table_name
from toys.bench import Bench
from toys.files import rows, told
from waiting import wait_for

from executors.context import RunContext
from executors.relocation.partition_sweep import SweepReport
from executors.relocation.sweep import resolve_partitions, restore_original_locations, sweep_partitions
from lake.errors import Transient
from lake.metastore import MetastoreClient, MetastorePartition
from lake.plan import Plan
from lake.relocation.decide import LocationChoice
from lake.storage.local import LocalFileIO

PARTITION = "dt=0"


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


def overwritten_after_a_late_file(bench: Bench, place: Path | None = None) -> list[str]:
    """Write a late file, then overwrite the partition, in ``place`` if it is given; returns the new rows."""
    write(home(bench), 900, 910)
    wait_a_tick(home(bench))
    place = place or here(bench)
    written = sorted(overwrite(place, 500, 520))
    wait_a_tick(place)
    return written


def overwritten_at_once(place: Path, low: int, high: int) -> list[str]:
    """Overwrite as Hive and Spark do: write new files, remove the files there, and give the new ones their names."""
    staging = place.with_name(".staging")
    staging.mkdir()
    written = write(staging, low, high, "part-anew.parquet")
    wait_a_tick(staging)
    for path in data_files(place):
        path.unlink()
    (staging / "part-anew.parquet").rename(place / "part-anew.parquet")
    staging.rmdir()
    return written


def data_files(place: Path) -> list[Path]:
    return [path for path in place.iterdir() if not path.name.startswith((".", "_"))]


def rows_in(place: Path) -> list[str]:
    return sorted(row for path in data_files(place) for row in told(pq.read_table(path)))


def in_partition(bench: Bench) -> list[str]:
    return rows_in(here(bench))


def swept(bench: Bench, **options: timedelta) -> SweepReport:
    return sweep_partitions(
        bench.table, RunContext(store=bench.store, spark=bench.case.spark), format=bench.format, **options
    )


def brought_home(bench: Bench) -> SweepReport:
    return restore_original_locations(
        bench.table, RunContext(store=bench.store, spark=bench.case.spark), format=bench.format, older_than=timedelta()
    )


def resolved(bench: Bench, take: LocationChoice) -> SweepReport:
    return resolve_partitions(
        bench.table, take, RunContext(store=bench.store, spark=bench.case.spark), format=bench.format
    )


def halted(bench: Bench) -> str | None:
    """Why the table is halted, or a partition of it."""
    state = bench.store.table_state(bench.table.name)
    return state.halted_reason or next((halt.reason for halt in state.halted_partitions.values()), None)


def counted(bench: Bench) -> tuple[int, int]:
    """How many files and bytes the metastore says that the partition has."""
    parameters = bench.case.partitions(bench.table)[PARTITION].parameters  # type: ignore[attr-defined]
    assert not {"COLUMN_STATS_ACCURATE", "numRows", "rawDataSize"} & parameters.keys()
    return int(parameters["numFiles"]), int(parameters["totalSize"])


def true_counts(bench: Bench) -> tuple[int, int]:
    files = [path.stat().st_size for path in data_files(here(bench))]
    return len(files), sum(files)


def wait_for_other_second(bench: Bench) -> None:
    """Until a partition that is added from now on has another creation time."""
    made = bench.case.partitions(bench.table)[PARTITION].created_at  # type: ignore[attr-defined]
    wait_for(lambda: time.time() > made + 1, "time stands still")


def dropped(bench: Bench) -> None:
    wait_for_other_second(bench)
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.drop(table_name(bench.table), "0")


def added_again(bench: Bench) -> None:
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.add(table_name(bench.table), "0", home(bench))


def alter_partitions(bench: Bench, partitions: Sequence[MetastorePartition]) -> None:
    """Have another program than lakefold give partitions these locations and properties."""
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        MetastoreClient.alter_partitions(owner, DATABASE, table_name(bench.table), partitions)


def point_at(bench: Bench, location: Path) -> None:
    """What an owner or Flink's sink does: the location is set, parameters and age stay."""
    partition = bench.case.partitions(bench.table)[PARTITION]  # type: ignore[attr-defined]
    moved = partition.with_changes(partition.storage.with_location(f"file:{location}"), partition.parameters)
    alter_partitions(bench, [moved])


def after_its_hold(bench: Bench) -> None:
    bench.execute("UPDATE live_partition SET expires_at_ms = 1 WHERE keeper IS NOT NULL")


class Killed(BaseException):
    """What a process does not survive."""


def deletion_begun(bench: Bench, died: str = "before the first file") -> None:
    """A cleaner that has recorded that it begins, and dies there, or is refused."""
    delete, deleted = LocalFileIO.delete_data_file, list[str]()

    def killed(files: LocalFileIO, path: str) -> None:
        if died == "before the first file" or deleted:
            raise Killed
        deleted.append(path)
        delete(files, path)

    def away(*arguments: Any) -> None:
        raise Transient("the metastore does not answer")

    if died == "without the metastore":
        with mock.patch("lake.formats.hive.deletion.check_no_foreign_readers", away):
            assert "does not answer" in str(bench.clean().error)
    else:
        with mock.patch.object(LocalFileIO, "delete_data_file", killed), pytest.raises(Killed):
            bench.clean()
        after_its_hold(bench)


def killed_before_it_records(bench: Bench, **options: Any) -> Plan:
    """A plan whose call was made, and whose executor was killed before it recorded the commit."""

    def point(name: str) -> None:
        if name == "before_record":
            raise Killed

    plan = bench.request(**options)
    with mock.patch("executors.run.failpoint", point), pytest.raises(Killed):
        bench.run()
    bench.expire()
    return plan


@contextmanager
def killed_in_sweep(point: str) -> Iterator[None]:
    """A round of the sweep dies there."""
    where = "executors.relocation.partition_sweep.failpoint"
    with mock.patch(where, side_effect=lambda name: killed_at(name, point)), pytest.raises(Killed):
        yield


def killed_at(name: str, point: str) -> None:
    if name == point:
        raise Killed

# SPDX-License-Identifier: Apache-2.0
"""Partitions that an owner renames before the sweep has copied late files: ``ALTER TABLE … PARTITION … RENAME TO``."""

import shutil
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from hive_case import DATABASE, Owner, table_name
from late_writing import (
    PARTITION,
    added_again,
    after_its_hold,
    brought_home,
    data_files,
    halted,
    home,
    killed_in_sweep,
    overwrite,
    resolved,
    rows_in,
    swept,
    write,
)
from toys.bench import Bench
from waiting import wait_for

from executors.outcome import RunResult
from executors.relocation.partition_sweep import SweepReport
from lake.formats.hive import format as hive_format
from lake.metastore import MetastoreTable
from lake.metastore.thrift import STRING
from lake.model import TableRef
from lake.relocation.decide import LocationChoice

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]

RENAMED = "dt=9"


def place_of(bench: Bench, partition: str = RENAMED) -> Path:
    return bench.case.places(bench.table)[partition]  # type: ignore[attr-defined]


def renamed(bench: Bench) -> None:
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.rename(table_name(bench.table), "0", "9")


def swept_to_the_end(bench: Bench) -> None:
    for _ in range(3):
        bench.sweep()


@pytest.mark.parametrize("since", ["nothing", "a plan", "a copy", "an added partition"])
def test_rule_2_late_files_of_a_renamed_partition_are_read_under_its_new_name(bench: Bench, since: str):
    """It stayed in the previous location for good: the partition counted as dropped."""
    rows = sorted([*rows_in(place_of(bench, PARTITION)), *write(home(bench), 900, 910)])
    if since == "a copy":
        with killed_in_sweep("carry_copied"):
            bench.sweep()
        after_its_hold(bench)
    renamed(bench)
    if since == "a plan":
        bench.request(partitions=[RENAMED])
        assert bench.run().result is RunResult.COMPLETED
    swept_to_the_end(bench)
    assert (rows_in(place_of(bench)), halted(bench)) == (rows, None)
    parameters = bench.case.partitions(bench.table)[RENAMED].parameters  # type: ignore[attr-defined]
    assert int(parameters["numFiles"]) == len(data_files(place_of(bench)))
    assert data_files(home(bench)) == [], "readers of a partition that is added under the name before see no such file"
    if since == "an added partition":
        made = bench.case.partitions(bench.table)[RENAMED].created_at  # type: ignore[attr-defined]
        wait_for(lambda: time.time() > made + 1, "time stands still")
        added_again(bench)
        added = write(home(bench), 700, 710, "part-added.parquet")
        swept_to_the_end(bench)
        assert (rows_in(place_of(bench, PARTITION)), rows_in(place_of(bench))) == (sorted(added), rows)
    bench.clean()
    bench.request(partitions=[RENAMED])
    assert bench.run().result is RunResult.COMPLETED
    swept_to_the_end(bench)
    bench.clean()
    assert (rows_in(place_of(bench)), swept(bench), halted(bench)) == (rows, SweepReport(), None)
    brought_home(bench)
    assert (place_of(bench), rows_in(place_of(bench))) == (Path(bench.table.location) / RENAMED, rows)
    assert (swept(bench), halted(bench)) == (SweepReport(), None)


@pytest.mark.parametrize("since", ["plan plan", "plan restore", "plan restore plan"])
@pytest.mark.parametrize("is_cleaned", [False, True], ids=["", "cleaned"])
def test_rule_2_late_files_are_found_although_the_renamed_partition_was_moved_more_than_once(
    bench: Bench, since: str, is_cleaned: bool
):
    """Only its last move was looked at, and the late file stayed invisible for good."""
    renamed(bench)
    for number, step in enumerate(since.split()):
        if step == "restore":
            brought_home(bench)
            assert place_of(bench) == Path(bench.table.location) / RENAMED
            continue
        for part in range(2):
            write(place_of(bench), 700 + 20 * number + 10 * part, 710 + 20 * number + 10 * part, f"part-{part}.parquet")
        bench.request(partitions=[RENAMED])
        assert bench.run().result is RunResult.COMPLETED
    if is_cleaned:
        bench.clean()
    rows, late = rows_in(place_of(bench)), write(home(bench), 900, 910)
    swept_to_the_end(bench)
    if is_cleaned:
        assert f"was renamed to {RENAMED}, and its directory was moved, before late files" in str(halted(bench))
        assert (rows_in(place_of(bench)), rows_in(home(bench))) == (rows, late)
    else:
        assert (rows_in(place_of(bench)), halted(bench)) == (sorted([*rows, *late]), None)


def test_rule_2_an_overwrite_that_ended_right_before_a_partition_was_renamed_is_left_to_a_person(bench: Bench):
    rows = rows_in(place_of(bench, PARTITION))
    anew = overwrite(home(bench), 900, 910)
    renamed(bench)
    swept_to_the_end(bench)
    reason = str(halted(bench))
    assert f"partition {PARTITION} was renamed to {RENAMED} after" in reason
    assert f"point {RENAMED} to {PARTITION}" in reason
    assert (rows_in(place_of(bench)), rows_in(home(bench))) == (rows, anew), "nothing was moved"
    assert "was chosen: point" in str(resolved(bench, LocationChoice.PREVIOUS).first_halt_reason)
    bench.clean()
    assert (rows_in(place_of(bench)), rows_in(home(bench))) == (rows, anew)


def test_rule_2_late_files_of_a_renamed_managed_partition_are_left_to_a_person(unmoved: Bench):
    """The metastore moves the directory of the version to that of the new name."""
    bench = unmoved
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        table = owner.table(DATABASE, table_name(bench.table))
        assert table is not None
        managed = MetastoreTable(table.raw | {12: (STRING, "MANAGED_TABLE")}).with_changes(table.storage, {})
        owner.alter_table(DATABASE, table_name(bench.table), managed)
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    rows = rows_in(place_of(bench, PARTITION))
    late = write(home(bench), 900, 910)
    renamed(bench)
    assert place_of(bench) == Path(bench.table.location) / RENAMED
    swept_to_the_end(bench)
    assert f"was renamed to {RENAMED}, and its directory was moved, before late files" in str(halted(bench))
    (path,) = (path for path in home(bench).iterdir() if path.name == "part-late.parquet")
    shutil.move(path, place_of(bench) / path.name)
    bench.store.resume(bench.table.name, "ada")
    swept_to_the_end(bench)
    assert (rows_in(place_of(bench)), halted(bench)) == (sorted([*rows, *late]), None)


def test_a_dropped_partition_with_a_late_file_lists_the_table_once(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Each turn of the sweep listed all partitions, since the late file stays."""
    listed, load = list[None](), hive_format._load_partitions

    def counted(table: TableRef, partitions: Collection[str] | None = None) -> Any:
        if partitions is None:
            listed.append(None)
        return load(table, partitions)

    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.drop(table_name(bench.table), "0")
    swept_to_the_end(bench)
    monkeypatch.setattr(hive_format, "_load_partitions", counted)
    late = write(home(bench), 900, 910)
    swept_to_the_end(bench)
    assert (len(listed), rows_in(home(bench))) == (1, late)
    write(home(bench), 910, 920, "part-later.parquet")
    swept_to_the_end(bench)
    assert len(listed) == 2, "other files may be of a partition that was renamed since then"


def test_rule_2_a_partition_that_was_dropped_with_late_files_does_not_count_as_another_one(bench: Bench):
    """Partitions that were created in the same second have the token of the same plan."""
    there = bench.case.partitions(bench.table)["dt=1"]  # type: ignore[attr-defined]
    rows = rows_in(place_of(bench, "dt=1"))
    write(home(bench), 900, 910)
    with Owner(bench.case.uri) as owner:  # type: ignore[attr-defined]
        owner.drop(table_name(bench.table), "0")
    bench.sweep()
    assert (rows_in(place_of(bench, "dt=1")), halted(bench)) == (rows, None)
    assert bench.case.partitions(bench.table)["dt=1"] == there  # type: ignore[attr-defined]

# SPDX-License-Identifier: Apache-2.0
"""Damage that a table's commits tell of is never planned and never rewritten, so that it can still be mended."""

import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hudi_writing import FORMAT, NewTable, Table, ignore, make_table

from lake.errors import Conflict, Rejected
from lake.formats.hudi.files.names import parse_file_name
from lake.model import Fault
from lake.plan import Plan
from planner.planner import plan_table
from planner.policy.policy import SizingPolicy

pytestmark = pytest.mark.spark
PARTITION = "dt=2026-01-01"
Harm = Callable[[Path], None]


def lost(file: Path) -> None:
    file.rename(file.parents[2] / "kept-elsewhere")


def cut(file: Path) -> None:
    shutil.copy(file, file.parents[2] / "kept-elsewhere")
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size // 2)


def doubled(file: Path) -> None:
    """Once more under the name that another attempt of its task would have had."""
    file.with_name(f"{other_attempt(file.name)}").hardlink_to(file)


def other_attempt(name: str) -> str:
    token = name.split("_")[-2] if name.endswith(".parquet") else name.rsplit("_", 1)[-1]
    return name.replace(token, f"{token}1")


def mend(file: Path) -> None:
    kept = file.parents[2] / "kept-elsewhere"
    if kept.exists():
        kept.replace(file)
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    file.with_name(other_attempt(file.name)).unlink(missing_ok=True)


CASES = [
    pytest.param("cow", ".parquet", lost, id="lost base file"),
    pytest.param("metadata", ".parquet", lost, id="lost base file, metadata table"),
    pytest.param("cow", ".parquet", cut, id="cut base file"),
    pytest.param("metadata", ".parquet", cut, id="cut base file, metadata table"),
    pytest.param("cow", ".parquet", doubled, id="doubled base file"),
    pytest.param("metadata", ".parquet", doubled, id="doubled base file, metadata table"),
    pytest.param("mor", ".log.", lost, id="lost log"),
    pytest.param("mor", ".log.", cut, id="cut log"),
    pytest.param("mor", ".log.", doubled, id="doubled log"),
    pytest.param("mor", ".parquet", lost, id="lost base file below logs"),
]


@pytest.fixture
def table(spark: Any, tmp_path: Path) -> NewTable:
    """A private copy of a template whose files in the first partition were written twice."""

    def build(kind: str) -> Table:
        trips = make_table(spark, tmp_path, kind)
        if kind != "mor":
            trips.upsert(0, 180, 7, "id % 3 = 0")
        return trips

    return build


def victim(trips: Table, ending: str, groups: set[tuple[str, str]] | None = None) -> Path:
    """The newest file of the kind in the first partition, of one of ``groups``."""
    files = [file for path in trips.data_files() if ending in path and (file := parse_file_name(path)) is not None]
    files = [file for file in files if file.partition == PARTITION and (groups is None or file.group_id in groups)]
    return Path(trips.base) / PARTITION / max(files, key=lambda file: file.instant).name


def planned(trips: Table) -> Plan | None:
    policy = SizingPolicy.from_settings({"quiet_period": "0s", "small_file_limit": "1MiB", "target_file_max": "1MiB"})
    return plan_table(FORMAT.snapshot(trips.ref), policy, now=datetime.now(UTC), plan_id="0198-planned").plan


def file_ids(plan: Plan | None) -> set[tuple[str, str]]:
    return {(s.partition, s.file_id) for group in (plan.groups if plan else ()) for s in group.slices}


@pytest.mark.parametrize(("kind", "ending", "harm"), CASES)
@pytest.mark.crossed
def test_only_groups_that_verify_reports_are_not_planned(table: NewTable, kind: str, ending: str, harm: Harm) -> None:
    trips = table(kind)
    before = file_ids(planned(trips))
    file = victim(trips, ending, before)
    hurt = parse_file_name(str(file.relative_to(trips.base)))
    assert hurt is not None
    assert hurt.group_id in before
    harm(file)
    after = file_ids(planned(trips))
    assert hurt.group_id not in after
    assert {group for group in before if group[0] != PARTITION} <= after
    (damage,) = FORMAT.snapshot(trips.ref).damaged
    assert (damage.partition, damage.file_id) == hurt.group_id
    assert damage.path.startswith(f"{PARTITION}/")
    assert damage.path in damage.text
    for rows in (False, True):
        verified = FORMAT.verify(trips.ref, (), rows=rows)
        assert damage.path in {*verified.missing, *verified.wrong_size, *verified.unowned}
    mend(file)
    assert FORMAT.snapshot(trips.ref).damaged == ()
    assert file_ids(planned(trips)) == before


@pytest.mark.parametrize(("kind", "ending", "harm"), CASES)
@pytest.mark.crossed
def test_damage_after_planning_is_left_out_under_the_lock_and_a_repair_restores_every_row(
    table: NewTable, kind: str, ending: str, harm: Harm
) -> None:
    trips = table(kind)
    rows, other = trips.rows(), trips.other_rows()
    plan = trips.plan()
    file = victim(trips, ending)
    harm(file)
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        (left_out,) = prepared.skipped
        assert plan.groups[left_out.group].partition == PARTITION
        assert left_out.reason.startswith(f"damaged: {PARTITION}/")
        commit = writer.commit(writer.rewrite(prepared, ignore))
    assert PARTITION not in {output.partition for output in commit.outputs}
    damaged = FORMAT.verify(trips.ref, commit.superseded, rows=False)
    assert damaged.missing or damaged.wrong_size or damaged.unowned
    mend(file)
    assert trips.rows() == rows
    assert trips.other_rows() == other
    sound = FORMAT.verify(trips.ref, commit.superseded, rows=True)
    assert (sound.missing, sound.wrong_size, sound.unowned, sound.resurrected) == ((), (), (), ())
    assert sound.rows == sound.rows_expected == len(rows)


@pytest.mark.parametrize("harm", [lost, cut])
def test_a_log_damaged_after_planning_is_not_compacted(table: NewTable, harm: Harm) -> None:
    trips = table("mor")
    rows = trips.rows()
    plan = trips.compaction(partitions=[PARTITION])
    file = victim(trips, ".log.")
    harm(file)
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        (left_out,) = prepared.skipped
        assert left_out.reason.startswith(f"damaged: {PARTITION}/{file.name} ")
        writer.commit(writer.rewrite(prepared, ignore))
    mend(file)
    assert trips.rows() == rows


def test_a_log_cut_while_it_is_being_compacted_is_not_committed(table: NewTable) -> None:
    trips = table("mor")
    rows = trips.rows()
    plan = trips.compaction(partitions=[PARTITION])
    file = victim(trips, ".log.")
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        rewrite = writer.rewrite(prepared, ignore)
        cut(file)
        with pytest.raises(Conflict, match=f"damaged: {file.parent.name}/{file.name}"):
            writer.commit(rewrite)
        mend(file)
        writer.withdraw(plan.plan_id, None)
    assert trips.rows() == rows


def test_a_file_group_without_any_file_is_reported(table: NewTable) -> None:
    trips = table("cow")
    group = FORMAT.snapshot(trips.ref).slices.to_pylist()[0]
    for file in (Path(trips.base) / PARTITION).glob(f"{group['file_id']}*"):
        file.unlink()
    found = FORMAT.snapshot(trips.ref)
    (damage,) = found.damaged
    assert (damage.fault, damage.path) == (Fault.MISSING, group["path"])
    assert group["path"] in found.slices["path"].to_pylist()
    assert (group["partition"], group["file_id"]) not in file_ids(planned(trips))


def test_a_table_that_may_not_be_written_to_is_refused_with_its_directory(
    table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips = table("cow")
    plan, timeline = trips.plan(), f"{trips.base}/.hoodie/timeline"
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, *args, **more: path != timeline and allowed(path, *args, **more))
    with (
        trips.writer() as writer,
        pytest.raises(Rejected, match=rf"{timeline} is read-only for .*; give lakefold write"),
    ):
        writer.prepare(plan, 1)
    assert trips.timeline().pending == ()

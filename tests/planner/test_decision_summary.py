# SPDX-License-Identifier: Apache-2.0
"""The summary of a planning's decisions is the same, added up in columns or slice by slice."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_inputs import GIB, MIB, NOW, File, plan, snapshot

from lake.model import Concurrency, OverlappingCommit
from planner.candidates import PlanningConstraints
from planner.planner import plan_table
from planner.policy.policy import SizingPolicy
from planner.reasons import PLANNABLE, Reason
from service.control.planning.decision_summary import DecisionSummary, make_scan_record, slice_documents
from service.control.store import PARTITION_SCHEMA
from service.former_names import both_names

LIMIT = 300 * MIB
SIZES = (0, 1, 10 * MIB, LIMIT - 1, LIMIT, 2 * GIB)


@st.composite
def tables(draw: st.DrawFn) -> list[File]:
    made = draw(
        st.lists(
            st.builds(
                dict,
                partition=st.sampled_from(["", "p", "a", "é", "a/b"]),
                bytes=st.sampled_from(SIZES),
                age=st.sampled_from([timedelta(minutes=1), timedelta(minutes=7), timedelta(hours=1)]),
                log_bytes=st.sampled_from([0, 0, 5 * MIB]),
                busy=st.sampled_from([None, None, "pending compaction 1", "pending clustering 2"]),
            ),
            max_size=30,
        )
    )
    return [File(id=f"f{n}", logs_only=bool(n % 7 == 3 and f["log_bytes"]), **f) for n, f in enumerate(made)]


def counted(files: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Slices, base files, bytes and logs, one by one."""
    files = list(files)
    return {
        "slices": len(files),
        "files": sum(file["path"] is not None for file in files),
        "bytes": sum(file["bytes"] for file in files),
        "log_files": sum(len(file["log_files"]) for file in files),
        "log_bytes": sum(file["log_bytes"] for file in files),
    }


def check_lines(lines: list[dict[str, Any]], files: list[dict[str, Any]], *key: str) -> None:
    """Each line is of the files with its key, and every file is in one."""
    ordered = sorted(files, key=lambda file: [file[name] for name in key])
    grouped = {k: list(found) for k, found in groupby(ordered, key=lambda file: tuple(file[name] for name in key))}
    assert [tuple(line[name] for name in key) for line in lines] == list(grouped)
    for line, alike in zip(lines, grouped.values(), strict=True):
        assert line.items() >= counted(alike).items()
        texts = {file["text"] for file in alike}
        assert line["text"] in texts
        assert line["setting"] == Reason(line["reason"]).setting
        if line["reason"] != Reason.BUSY and not line["has_several_values"]:
            assert len(texts) == 1


@settings(max_examples=60, deadline=None)
@given(files=tables(), held=st.sets(st.sampled_from(["", "a"])), chunks=st.integers(1, 4))
@pytest.mark.slow
def test_every_sum_is_that_of_the_files_one_by_one(files: list[File], held: set[str], chunks: int) -> None:
    policy = SizingPolicy.from_settings({})
    shot = snapshot(files, chunks=chunks)
    planning = plan_table(
        shot,
        policy,
        now=NOW,
        plan_id="p",
        constraints=PlanningConstraints(locked_partitions=dict.fromkeys(held, "live")),
    )
    account, found = DecisionSummary(planning), list(slice_documents(planning))
    check_lines([line.document() for line in account.by_partition], found, "partition", "reason")
    by_reason = [line.document() for line in account.by_reason]
    check_lines(by_reason, found, "reason")
    for line in by_reason:
        assert line["partitions"] == len({f["partition"] for f in found if f["reason"] == line["reason"]})

    layout, decisions = account.partition_table, planning.decisions
    reducible = dict(zip(decisions["file_id"].to_pylist(), decisions["reducible"].to_pylist(), strict=True))
    assert all(reducible[file["file_id"]] for file in found if file["reason"] in PLANNABLE)
    assert layout.schema.names == PARTITION_SCHEMA.names
    rows = layout.cast(PARTITION_SCHEMA).to_pylist()
    assert [row["partition"] for row in rows] == sorted({file["partition"] for file in found})
    for row in rows:
        inside = [file for file in found if file["partition"] == row["partition"]]
        small = [file for file in inside if file["path"] is not None and file["bytes"] < LIMIT]
        assert row.items() >= {name: n for name, n in counted(inside).items() if name != "slices"}.items()
        assert (row["small_files"], row["small_bytes"]) == (len(small), sum(file["bytes"] for file in small))
        worth_it = [file for file in inside if reducible[file["file_id"]]]
        assert row["reducible_files"] == sum(file in small for file in worth_it)
        assert row["reducible_bytes"] == sum(file["bytes"] + file["log_bytes"] for file in worth_it)
        check_lines([both_names("decision", line) for line in row["lines"]], inside, "reason")

    scan = make_scan_record(account, 1.5)
    assert (scan.partitions, scan.files, scan.bytes) == (len(rows), counted(found)["files"], counted(found)["bytes"])
    assert scan.reducible_files == sum(row["reducible_files"] for row in rows)
    assert scan.reducible_bytes == sum(row["reducible_bytes"] for row in rows)
    assert sum(scan.skipped.values()) == sum(file["reason"] != Reason.CHOSEN for file in found)


def test_each_of_many_partitions_is_explained_by_its_own_files() -> None:
    """Arrow groups a thousand keys in another order than they came in."""
    files = [File(id=f"f{n}", partition=f"day={n * 7919 % 1_000_003}", bytes=n + 1) for n in range(1_000)]
    rows = DecisionSummary(plan(files)).partition_table.to_pylist()
    assert [row["partition"] for row in rows] == sorted(file.partition for file in files)
    sizes = {file.partition: file.bytes for file in files}
    for row in rows:
        assert [line["bytes"] for line in row["lines"]] == [row["bytes"]] == [sizes[row["partition"]]]


def test_a_line_states_the_least_of_its_numbers_and_that_there_are_others() -> None:
    old, young = timedelta(minutes=12), timedelta(minutes=3)
    planning = plan(
        [
            File(id="older", bytes=1, age=old, partition="q"),
            File(id="younger", bytes=2, age=young, partition="q"),
            File(id="large", bytes=GIB),
            File(id="larger", bytes=2 * GIB),
            File(id="busy", bytes=3, busy="pending clustering 7"),
            File(id="held", bytes=4, partition="r"),
            File(id="held too", bytes=4, partition="r"),
        ],
        locked_partitions={"r": "0198"},
    )
    account = DecisionSummary(planning)
    lines = {line.reason: (line.text, line.varies, line.partitions) for line in account.by_reason}
    assert lines == {
        Reason.RECENT: ("waiting: modified 3 min ago, until 12:12 UTC (quiet_period is 15 min)", True, 1),
        Reason.ABOVE_LIMIT: ("above limit 1.0 GiB ≥ 300 MiB", True, 1),
        Reason.BUSY: ("pending clustering 7", False, 1),
        Reason.HELD: ("held by live plan 0198", False, 1),
    }
    assert {line.reason: line.text for line in account.by_partition} == {r: text for r, (text, _, _) in lines.items()}


def test_an_empty_table_has_an_empty_account() -> None:
    account = DecisionSummary(plan([]))
    assert account.by_reason == account.by_partition == []
    assert account.partition_table.num_rows == 0
    assert make_scan_record(account, 0).partitions == 0


def test_only_commits_of_the_last_day_on_a_table_of_a_single_writer_are_reported() -> None:
    planning = plan([File(id="f", partition="p", bytes=1)])
    now = planning.snapshot.taken_at
    met = tuple(
        OverlappingCommit(
            instant=f"i{hours}", action="commit", completed_at=now - timedelta(hours=hours), plan_id="0198"
        )
        for hours in (30, 20, 1)
    )

    def reported(concurrency: Concurrency) -> tuple[int, str | None]:
        snapshot = replace(
            planning.snapshot, overlaps=met, table=replace(planning.snapshot.table, concurrency=concurrency)
        )
        scan = make_scan_record(DecisionSummary(replace(planning, snapshot=snapshot)), 0)
        return scan.overlaps, scan.overlap

    assert reported(Concurrency.SINGLE_WRITER) == (2, "commit i1 of another process, while plan 0198 ran")
    assert reported(Concurrency.OCC) == (0, None)

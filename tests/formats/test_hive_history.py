# SPDX-License-Identifier: Apache-2.0
"""What the files of a Hive table tell of its past; no metastore is asked."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from lake.actions import ActionPage
from lake.errors import Rejected
from lake.formats.hive.commit.version_names import output_file_name
from lake.formats.hive.files.listing import ListedFile, PartitionListing
from lake.formats.hive.inspection.actions import list_actions
from lake.formats.hive.inspection.history import reconstruct_history
from lake.history import ChangeKind
from lake.plan import SupersededVersion
from planner.policy.policy import SizingPolicy
from planner.replay.events import writer_history
from planner.replay.policy_replay import replay_policy

MIB, LIMIT = 1 << 20, 300 << 20
NOW = datetime(2026, 3, 10, tzinfo=UTC)
SINCE = NOW - timedelta(days=2)
LAKE = "/lake/t"
V1, V2 = "0198-a-e1-17", "0198-b-e2-18"


@dataclass(frozen=True)
class Somewhere:
    """A partition, of which only its name is asked."""

    name: str


def at(hours: float) -> datetime:
    """So many hours after the beginning."""
    return SINCE + timedelta(hours=hours)


def live(path: str, size: int, hours: float) -> ListedFile:
    return ListedFile(f"{LAKE}/{path}", size, round(at(hours).timestamp() * 1000) * 1_000_000)


def output(version: str) -> str:
    """The file that a rewrite made, in its version."""
    return f".lakefold/{version}/dt=1/{output_file_name(version, 0, 0, 'parquet')}"


def replaced(path: str, size: int, hours: float, by: str) -> SupersededVersion:
    return SupersededVersion(partition="dt=1", path=path, bytes=size, instant=by, modified_at=at(hours))


def told(files: list[ListedFile], *superseded: SupersededVersion, partition: str = "dt=1"):
    listing = PartitionListing(partition=Somewhere(partition), files=tuple(files))
    return reconstruct_history(LAKE, [listing], superseded, SINCE, NOW)


def test_files_of_one_job_are_one_commit_and_older_files_are_the_initial_state():
    found = told(
        [live("dt=1/a", MIB, -5), live("dt=1/b", MIB, 3), live("dt=1/c", 2 * MIB, 3.005), live("dt=1/d", MIB, 4)]
    )
    assert [file.bytes for file in found.files] == [MIB]
    assert [(len(commit.written), commit.at) for commit in found.commits] == [(2, at(3.005)), (1, at(4))]
    assert found.writer_model == "hive"


def test_replaced_files_count_as_written_by_commits_and_copied_files_are_not_counted_again():
    """Two files were merged into a version, and a large one came along as a copy of the same age."""
    found = told(
        [live(output(V1), 3 * MIB, 9), live(f".lakefold/{V1}/dt=1/large", LIMIT, 2)],
        replaced("dt=1/a", MIB, 1, V1),
        replaced("dt=1/b", 2 * MIB, 3, V1),
        replaced("dt=1/large", LIMIT, 2, V1),
    )
    assert [(commit.change, len(commit.written), len(commit.removed_groups)) for commit in found.commits] == [
        (ChangeKind.WRITE, 1, 0),
        (ChangeKind.WRITE, 1, 0),
        (ChangeKind.WRITE, 1, 0),
        (ChangeKind.REWRITE, 1, 2),
    ]
    without = replay_policy(writer_history(found), None, small_file_limit_bytes=LIMIT)
    assert (without.final_totals.files, without.final_totals.bytes) == (3, LIMIT + 3 * MIB)
    again = replay_policy(writer_history(found), SizingPolicy(payback=timedelta()), small_file_limit_bytes=LIMIT)
    assert (again.final_totals.files, again.work.rewritten_bytes) == (2, 3 * MIB)


def test_a_version_that_a_later_one_replaced_is_still_a_rewrite():
    found = told(
        [live(output(V2), 7 * MIB, 20)],
        replaced("dt=1/a", MIB, 1, V1),
        replaced("dt=1/b", 2 * MIB, 3, V1),
        replaced(output(V1), 3 * MIB, 9, V2),
        replaced(f".lakefold/{V1}/dt=1/c", 4 * MIB, 12, V2),  # a writer wrote to the new place
    )
    rewrites = [commit for commit in found.commits if commit.change is ChangeKind.REWRITE]
    assert [commit.plan_id for commit in rewrites] == [V1, V2]
    assert sum(len(commit.written) for commit in found.commits if commit.change is ChangeKind.WRITE) == 3
    without = replay_policy(writer_history(found), None, small_file_limit_bytes=LIMIT)
    assert (without.final_totals.files, without.final_totals.bytes) == (3, 7 * MIB)


def test_a_version_counts_as_written_if_its_inputs_were_deleted_long_ago():
    found = told([live(output(V1), 3 * MIB, -9), live("dt=1/b", MIB, 3)])
    assert [file.bytes for file in found.files] == [3 * MIB]
    assert replay_policy(writer_history(found), None, small_file_limit_bytes=LIMIT).final_totals.bytes == 4 * MIB


def test_a_page_of_actions_names_writer_plan_and_files_newest_first():
    listing = PartitionListing(
        partition=Somewhere("dt=1"),
        files=(live("dt=1/000000_0", MIB, -5), live(output(V2), 3 * MIB, 5), live("dt=1/000001_0", MIB, 6)),
    )
    gone = replaced("dt=1/x", MIB, 1, V2), replaced("dt=1/y", 2 * MIB, 2, V2)

    def page(limit: int, before: str | None = None) -> ActionPage:
        return list_actions(LAKE, [listing], gone, limit=limit, max_files=1, before=before)

    whole = page(10)
    newest, rewrite, *rest = whole.actions
    assert [action.operation for action in whole.actions] == ["insert", "rewrite", "insert", "insert", "insert"]
    assert (newest.by, newest.added.files[0].file_id) == ("Hive", "000001_0")
    assert (rewrite.plan_id, rewrite.epoch, rewrite.by) == ("0198-b", 2, "lakefold")
    assert (rewrite.removed.count, rewrite.removed.bytes, len(rewrite.removed.files)) == (2, 3 * MIB, 1)
    assert rest[-1].by == "Hive"
    assert rest[0].by is None
    assert any("keeps no history" in note for note in whole.notes)
    seen, before = [], None
    while True:
        found = page(2, before)
        seen += [action.key for action in found.actions]
        before = found.next_key
        if before is None:
            break
    assert seen == [action.key for action in whole.actions]
    with pytest.raises(Rejected, match="is not an action of a Hive table"):
        page(1, "20260110.commit!")

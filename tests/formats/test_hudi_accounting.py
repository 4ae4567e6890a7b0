# SPDX-License-Identifier: Apache-2.0
"""``verify --rows`` finds what commits lost that knew nothing of each other, as two services without a common lock."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hudi_templates import edit_avro, timeline_file
from hudi_writing import FORMAT, NewTable, Table

from lake.ports import TableVerification

pytestmark = pytest.mark.spark


def verified(trips: Table) -> TableVerification:
    return FORMAT.verify(trips.ref, (), rows=True)


def as_if_unseen(trips: Table, elsewhere: Path, work: Callable[[Table], object]) -> str:
    """Do ``work`` on a copy of the table as it is now; gives the newest instant, which ``arrive`` brings here."""
    shutil.copytree(trips.base, elsewhere)
    there = Table(trips.spark, elsewhere, trips.options)
    work(there)
    return there.timeline().newest_commit_time


def arrive(trips: Table, elsewhere: Path, instant: str) -> None:
    for file in elsewhere.rglob(f"*{instant}*"):
        here = Path(trips.base) / file.relative_to(elsewhere)
        here.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, here)


def test_file_groups_that_two_clusterings_replaced_are_found_by_the_rows_of_the_commits(
    table: NewTable, tmp_path: Path
) -> None:
    trips = table()
    rows = len(trips.rows())
    other = as_if_unseen(trips, tmp_path / "other", lambda there: there.run(there.plan()))
    ours = trips.run(trips.plan()).instant
    assert verified(trips).contradictions == ()
    arrive(trips, tmp_path / "other", other)
    found = verified(trips)
    assert len(trips.rows()) == 2 * rows
    inputs = {path for path in trips.data_files() if other not in path and ours not in path}
    assert len(found.contradictions) == len(inputs)
    for sentence in found.contradictions:
        assert re.fullmatch(
            rf"{max(ours, other)} replaced file group \S+, which {min(ours, other)} had .* before", sentence
        )


def test_updates_that_a_clustering_did_not_see_are_found_by_the_rows_of_the_commits(
    table: NewTable, tmp_path: Path
) -> None:
    trips = table()
    other = as_if_unseen(trips, tmp_path / "other", lambda there: trips.upsert(0, 60, 9) or there.run(there.plan()))
    updated = [row for row in trips.rows() if row[5] == 9]
    assert updated
    assert verified(trips).contradictions == ()
    arrive(trips, tmp_path / "other", other)
    assert not [row for row in trips.rows() if row[5] == 9], "lost without an error"
    found = verified(trips)
    assert found.rows == found.rows_expected
    assert found.contradictions
    for sentence in found.contradictions:
        assert re.fullmatch(rf"clustering {other} replaced \S+ without \S+\.parquet", sentence)


def test_rows_that_readers_no_longer_see_are_missing_from_the_count(table: NewTable) -> None:
    trips = table("metadata")
    rows = len(trips.rows())
    found = verified(trips)
    assert (found.rows, found.rows_expected) == (rows, rows)
    # What two services leave that write to the metadata table without a common lock: the one takes back what the other
    # has written there for its commit.
    for told in (Path(trips.base) / ".hoodie/metadata/files").glob(f"*_{trips.timeline().newest_commit_time}.log.*"):
        told.unlink()
    left = len(trips.rows())
    assert left < rows, "lost without an error"
    found = verified(trips)
    assert (found.rows, found.rows_expected) == (left, rows)


def test_rows_that_do_not_add_up_from_one_commit_to_the_next_are_found(table: NewTable) -> None:
    trips = table()
    trips.upsert(0, 60, 9)
    assert verified(trips).contradictions == ()

    def one_more(record: dict[str, Any]) -> None:
        for stats in record["partitionToWriteStats"].values():
            for stat in stats:
                stat["numInserts"] = 1

    edit_avro(timeline_file(Path(trips.base), "*.commit"), one_more)
    for sentence in (found := verified(trips).contradictions):
        assert re.search(r"wrote \d+ rows to \S+, which had \d+, with 1 added and 0 deleted", sentence)
    assert found

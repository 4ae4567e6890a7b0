# SPDX-License-Identifier: Apache-2.0
"""The ledger of the chaos on Iceberg tables finds what it is to find, on metadata files made by hand."""

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from iceberg_chaos.ledger import ACT, PLAN, Ledger, as_read, difference
from iceberg_chaos.orphans import Orphans
from iceberg_tables import owner_catalog, rows
from sqlalchemy import create_engine, text

from lake.storage.locations import canonical_location


class Table:
    """Metadata files as Iceberg's catalogs write them, one a commit."""

    def __init__(self, home: Path) -> None:
        self._home, self._snapshots, self._number = home, dict[int, dict[str, Any]](), 0
        self._last = ""
        self.notes = home / "acts"
        self.ledger = Ledger(notes=self.notes, kept_seconds=20, kept_count=2)

    def act(self, number: int, act: str, **details: Any) -> None:
        with self.notes.open("a") as file:
            file.write(json.dumps({"number": number, "act": act, "snapshot": number, **details}) + "\n")

    def append(self, number: int, parent: int | None, *, at: float) -> None:
        self.act(number, "append", ids=(10 * number, 10 * number + 2), dts=["d0"], columns=[])
        self.commit(number, parent, {ACT: str(number), "operation": "append"}, at=at)

    def commit(self, snapshot: int, parent: int | None, summary: dict[str, str], *, at: float) -> None:
        one = {"snapshot-id": snapshot, "sequence-number": snapshot, "summary": summary}
        self._snapshots[snapshot] = one if parent is None else {**one, "parent-snapshot-id": parent}
        self.write(snapshot, at=at)

    def expire(self, snapshot: int, head: int, *, at: float) -> None:
        del self._snapshots[snapshot]
        self.write(head, at=at)

    def write(self, head: int, *, at: float, log: bool = True) -> None:
        self._number += 1
        path = self._home / f"{self._number}.metadata.json"
        document = {"current-snapshot-id": head, "snapshots": list(self._snapshots.values())}
        if self._last and log:
            document["metadata-log"] = [{"metadata-file": self._last}]
        path.write_text(json.dumps(document))
        os.utime(path, (at, at))
        self._last = str(path)

    def problems(self) -> list[str]:
        self.ledger.follow(self._last)
        self.ledger.judge_acts()
        return self.ledger.problems


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table(tmp_path)
    made.append(1, None, at=0)
    made.append(2, 1, at=1)
    return made


def replace(plan: str) -> dict[str, str]:
    return {PLAN: plan, "operation": "replace"}


def test_a_compaction_has_the_rows_of_its_parent_and_commits_between_readings_are_not_missed(table: Table):
    table.commit(3, 2, replace("p"), at=2)
    table.append(4, 3, at=3)
    assert table.problems() == []
    rows = {number: as_read(one.rows, []) for number, one in table.ledger.snapshots.items()}
    assert rows[2] == rows[3]
    assert sorted(key for key, *_ in rows[4]) == [10, 11, 20, 21, 40, 41]


def test_missing_doubled_and_foreign_rows_are_told_apart(table: Table):
    table.problems()
    wanted = as_read(table.ledger.snapshots[2].rows, [])
    row = next(iter(wanted))
    assert difference(wanted, wanted) == ""
    assert difference(wanted - Counter([row]), wanted).startswith("1 rows missing, 0 too many")
    doubled = wanted.copy()
    doubled[row] += 1
    assert difference(doubled, wanted).startswith("0 rows missing, 1 too many, of these 1 doubled")


def test_the_rows_of_each_act_are_those_that_spark_s_statement_leaves(table: Table):
    some = {"divisor": 2, "rest": 0, "dts": ["d0"]}
    table.act(3, "update", **some)
    table.commit(3, 2, {ACT: "3"}, at=2)
    table.act(4, "delete", divisor=10, rest=1, dts=["d0"])
    table.commit(4, 3, {ACT: "4"}, at=3)
    table.act(5, "merge", ids=(20, 23), dts=["d1"], columns=[7])
    table.commit(5, 4, {ACT: "5"}, at=4)
    assert table.problems() == []
    found = as_read(table.ledger.snapshots[5].rows, [7])
    assert sorted(found) == [
        (10, 3, "u10-3", "d0", None),
        (20, 5, "u20-5", "d0", None),
        (21, 5, "v21-5", "d1", None),
        (22, 5, "v22-5", "d1", "x7-5-22"),
    ]


def test_a_commit_that_hides_another_one_is_found(table: Table):
    table.problems()
    table.append(3, 2, at=2)
    table.problems()
    table.commit(4, 2, replace("p"), at=3)
    assert "snapshot 4 became main's and its parent is 2, not 3" in table.problems()[0]


def test_an_act_without_its_snapshot_and_a_metadata_file_without_its_predecessor_are_found(table: Table):
    table.problems()
    table.act(3, "append", ids=(30, 31), dts=["d0"], columns=[])
    table.write(2, at=2, log=False)
    assert any("a commit is lost" in one for one in table.problems())
    assert any("act 3 has been lost" in one for one in table.problems())


def test_two_commits_of_a_plan_and_a_move_of_main_that_its_owner_did_not_make_are_found(table: Table):
    table.commit(3, 2, replace("p"), at=2)
    table.commit(4, 3, replace("p"), at=3)
    table.write(2, at=4)
    found = table.problems()
    assert any("plan p has several commits: [3, 4]" in one for one in found)
    assert any("main moved 1 times, its owner did so 0 times" in one for one in found)


def test_snapshots_may_expire_once_they_are_old_and_not_the_newest(table: Table):
    table.append(3, 2, at=2)
    table.problems()
    table.expire(1, 3, at=30)
    assert table.problems() == []
    table.expire(2, 3, at=31)
    assert table.problems() == ["lakefold expired snapshot 2, one of the newest 2"]


def test_a_snapshot_that_expires_early_is_found_unless_the_writer_expired_it(table: Table):
    table.append(3, 2, at=2)
    table.append(4, 3, at=3)
    table.problems()
    table.act(5, "expire", snapshots=[1])
    table.expire(1, 4, at=4)
    assert table.problems() == []
    table.expire(2, 4, at=5)
    assert "lakefold expired snapshot 2 when it was 4.0 s old" in table.problems()


LOST, CLEARED, KNOWN, FOREIGN = (f"0f0e6d5c-1111-4222-8333-44445555666{digit}" for digit in range(4))


def database(
    home: Path, name: str, *attempts: tuple[str, int | None], superseded: Sequence[tuple[str, str]] = ()
) -> str:
    """A database with these attempts, the token of each and when its files were removed, and superseded files.

    The latter are pairs of a path and the snapshot that replaced the file.
    """
    engine = create_engine(url := f"sqlite:///{home}/{name}.db")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE staged (token TEXT, cleared_at_ms INTEGER)"))
        for token, cleared in attempts:
            connection.execute(text("INSERT INTO staged VALUES (:token, :at)"), {"token": token, "at": cleared})
        connection.execute(text("CREATE TABLE superseded_version (path TEXT, instant TEXT)"))
        for path, instant in superseded:
            connection.execute(text("INSERT INTO superseded_version VALUES (:p, :i)"), {"p": path, "i": instant})
    engine.dispose()
    return url


def files(token: str) -> list[str]:
    """A file that Iceberg wrote for an attempt of lakefold, and one that an engine wrote for it."""
    return [
        f"/t/data/lakefold-{token}/dt=d1/00000-1-{FOREIGN}-0-00001.parquet",
        f"/t/data/dt=d1/00003-2-{token}-00001.parquet",
    ]


def test_a_file_of_lakefold_that_no_snapshot_lists_may_only_stay_if_its_attempt_was_in_a_lost_database(
    table: Table, tmp_path: Path
):
    orphans = Orphans()
    orphans.lose(database(tmp_path, "lost", (LOST, None), (CLEARED, 1)))
    present = database(tmp_path, "present", (KNOWN, 1))
    of_writer = [f"/t/data/dt=d1/00000-60-{FOREIGN}-0-00001.parquet", f"/t/data/00000-60-{FOREIGN}-00001.parquet"]
    wrong = [*files(CLEARED), *files(KNOWN), files(FOREIGN)[0]]
    assert orphans.wrong([*of_writer, *files(LOST), *wrong], table.ledger, present) == wrong


def test_a_replaced_file_may_only_stay_if_an_expiry_was_cut_short_and_lakefold_can_t_know_it(
    table: Table, tmp_path: Path
):
    catalog = owner_catalog(tmp_path)
    catalog.create_namespace("lake")
    iceberg = catalog.create_table("lake.t", schema=rows(0, 1).schema)
    iceberg.append(rows(0, 10))
    table.ledger.location = iceberg.metadata_location
    orphans = Orphans()
    orphans.follow(table.ledger)
    (path,) = [canonical_location(task.file.file_path) for task in iceberg.scan().plan_files()]
    present = str(iceberg.metadata.current_snapshot_id)
    unknown, known = database(tmp_path, "unknown"), database(tmp_path, "known", superseded=[(path, present)])
    expired = database(tmp_path, "expired", superseded=[(path, "1")])
    assert [orphans.wrong([path], table.ledger, one) for one in (unknown, known, expired)] == [[], [path], []]
    table.act(9, "expire", snapshots=[1])
    assert orphans.wrong([path], table.ledger, known) == []

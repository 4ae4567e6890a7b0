# SPDX-License-Identifier: Apache-2.0
"""Tables whose versions an earlier release made, below the directory ``_lakefold``."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from contract.attempts import attempt, run
from contract.plans import plan_all
from hive_case import HiveCase, WholeCase
from hive_metastore import MetastoreServer

from lake.formats.hive import writer
from lake.formats.hive.commit import commit_record, version_names
from lake.model import TableRef
from lake.plan import Commit
from lake.storage.locations import DATA_DIR, LEGACY_DATA_DIR

pytestmark = pytest.mark.slow


@pytest.fixture(params=[HiveCase, WholeCase], ids=["partitioned", "whole"])
def case(metastore: MetastoreServer, request: pytest.FixtureRequest) -> HiveCase:
    made: HiveCase = request.param(uri=metastore.uri)
    return made


@contextmanager
def earlier_release() -> Iterator[None]:
    """Versions are made where earlier releases made them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(version_names, "DATA_DIR", LEGACY_DATA_DIR)
        patch.setattr(writer, "DATA_DIR", LEGACY_DATA_DIR)
        patch.setattr(commit_record, "migrate_legacy_data_dir", lambda ref: None)
        yield


def homes(case: HiveCase, table: TableRef) -> set[str]:
    """What the directories are called in which the versions are that the table is read from."""
    return {place.relative_to(table.location).parts[0] for place in case.places(table).values()}


def deleted(case: HiveCase, table: TableRef, commit: Commit) -> None:
    with attempt(case, plan_all(case.format, table, "deletion")) as one:
        assert not one.writer.delete(commit.superseded).retained


def test_versions_of_an_earlier_release_are_kept_until_they_are_replaced_and_then_deleted_entirely(
    case: HiveCase, tmp_path: Path
):
    table = case.create(tmp_path / "t", name="t")
    with earlier_release():
        first = run(case, plan_all(case.format, table, "p"))
        deleted(case, table, first)
    assert homes(case, table) == {LEGACY_DATA_DIR}
    partitions = sorted(case.places(table))
    for number, partition in enumerate(partitions):
        case.append(table, partition, 800 + 10 * number, 810 + 10 * number)
    rows = case.rows(table)
    assert case.format.find_commit(table, "p") is not None
    second = run(case, plan_all(case.format, table, "q"))
    assert (homes(case, table), case.rows(table)) == ({DATA_DIR}, rows)
    assert (Path(table.location) / LEGACY_DATA_DIR / first.instant).exists()
    found = [case.format.find_commit(table, plan) for plan in ("p", "q")]
    assert [one and one.instant for one in found] == [first.instant, second.instant]
    deleted(case, table, second)
    assert case.rows(table) == rows
    assert not (Path(table.location) / LEGACY_DATA_DIR).exists()
    assert [one and one.instant for one in (case.format.find_commit(table, plan) for plan in ("p", "q"))] == [
        first.instant,
        second.instant,
    ]


def test_an_attempt_of_an_earlier_release_that_was_killed_is_withdrawn(case: HiveCase, tmp_path: Path):
    table = case.create(tmp_path / "t", name="t")
    rows = case.rows(table)
    with earlier_release(), attempt(case, plan_all(case.format, table, "p")) as one:
        one.rewritten()
    assert list((Path(table.location) / LEGACY_DATA_DIR).iterdir())
    with attempt(case, plan_all(case.format, table, "p"), epoch=2) as other:
        other.journal = one.journal
        other.discarded(None)
    assert not list((Path(table.location) / LEGACY_DATA_DIR).iterdir())
    assert case.rows(table) == rows

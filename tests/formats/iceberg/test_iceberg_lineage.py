# SPDX-License-Identifier: Apache-2.0
"""The lineage of rows in format version 3: no commit of lakefold changes a ``_row_id``, also not of files it keeps."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from contract.attempts import attempt, run
from contract.plans import plan_all
from iceberg_case import IcebergCase, NewCase

from lake.errors import Conflict, Rejected
from lake.model import TableRef

pytestmark = pytest.mark.spark


@pytest.fixture
def case(new_case: NewCase) -> IcebergCase:
    return new_case("hadoop", version=3)


@pytest.fixture
def version_2(new_case: NewCase) -> IcebergCase:
    return new_case("hadoop", version=2)


def lineage(case: IcebergCase, table: TableRef) -> Sequence[tuple[int, ...]]:
    """The id of every row with its lineage."""
    rows = case.sql(f"SELECT id, _row_id, _last_updated_sequence_number FROM {case.name(table)}").collect()
    return sorted(tuple(row) for row in rows)


def upgrade(case: IcebergCase, table: TableRef) -> None:
    case.sql(f"ALTER TABLE {case.name(table)} SET TBLPROPERTIES ('format-version' = '3')")


def test_a_commit_that_would_number_rows_of_other_files_again_is_not_made(case: IcebergCase, tmp_path: Path):
    """Iceberg 1.10.1 loses the row ids of a file that stays, if it filters the file's manifest and then merges it."""
    case.properties = {"commit.manifest.min-count-to-merge": "2"}
    table = case.create(tmp_path / "lake" / "t", name="t")
    was = lineage(case, table)
    with attempt(case, plan_all(case.format, table, "p", partitions=["dt=0"])) as one:
        rewrite = one.rewritten()
        with pytest.raises(Rejected, match=r"new row ids .* property commit\.manifest-merge\.enabled to false"):
            one.writer.commit(rewrite)
        one.discarded(None)
    assert (lineage(case, table), case.commits(table)) == (was, [])
    case.sql(f"ALTER TABLE {case.name(table)} SET TBLPROPERTIES ('commit.manifest-merge.enabled' = 'false')")
    for partition in ("dt=0", "dt=1"):
        run(case, plan_all(case.format, table, partition, partitions=[partition]))
        assert lineage(case, table) == was


def test_a_plan_over_all_files_commits_although_manifests_are_merged(case: IcebergCase, tmp_path: Path):
    case.properties = {"commit.manifest.min-count-to-merge": "2"}
    table = case.create(tmp_path / "lake" / "t", name="t")
    was = lineage(case, table)
    run(case, plan_all(case.format, table, "p"))
    assert lineage(case, table) == was


def test_an_upgrade_to_version_3_between_preparation_and_commit_is_a_conflict(version_2: IcebergCase, tmp_path: Path):
    case, table = version_2, version_2.create(tmp_path / "lake" / "t", name="t")
    with attempt(case, plan_all(case.format, table, "p")) as one:
        rewrite = one.rewritten()
        upgrade(case, table)
        case.append(table, "dt=0", 1000, 1010)
        was = lineage(case, table)
        assert all(row_id is not None for _, row_id, _ in was)
        with pytest.raises(Conflict, match="format version 3 now, and had 2 when the plan was prepared"):
            one.writer.commit(rewrite)
        one.discarded(None)
    assert lineage(case, table) == was


@pytest.mark.parametrize("numbered", [False, True], ids=["no commit", "append"])
def test_rows_that_get_their_first_ids_between_preparation_and_commit_keep_them(
    version_2: IcebergCase, tmp_path: Path, numbered: bool
):
    """An upgrade gives no ids to the rows that are there; the first snapshot after it does."""
    case, table = version_2, version_2.create(tmp_path / "lake" / "t", name="t")
    upgrade(case, table)
    with attempt(case, plan_all(case.format, table, "p")) as one:
        rewrite = one.rewritten()
        if not numbered:
            one.writer.commit(rewrite)
            assert len({row_id for _, row_id, _ in lineage(case, table)} - {None}) == 300
            return
        case.append(table, "dt=0", 1000, 1010)
        was = lineage(case, table)
        with pytest.raises(Conflict, match="got their row ids since the plan was prepared"):
            one.writer.commit(rewrite)
        one.discarded(None)
    assert lineage(case, table) == was
    run(case, plan_all(case.format, table, "q"))
    assert [row[:2] for row in lineage(case, table)] == [row[:2] for row in was]


def test_files_rewritten_before_version_3_are_left_alone_and_named(version_2: IcebergCase, tmp_path: Path):
    """Iceberg 1.10.1 takes the number of the rewrite for the one of the rows, and its writer would store it."""
    case, table = version_2, version_2.create(tmp_path / "lake" / "t", name="t")
    commit = run(case, plan_all(case.format, table, "p"))
    upgrade(case, table)
    for low in (1000, 1010):
        case.append(table, "dt=0", low, low + 10)
    was = lineage(case, table)
    named = pytest.raises(Conflict, match="rewritten before the table had format version 3")
    with attempt(case, plan_all(case.format, table, "q")) as one, named as caught:
        one.prepared()
    skipped = caught.value.args[1]
    rewritten = {path for group in skipped for path in group.quarantine}
    assert {Path(path).name for path in rewritten} == {Path(output.path).name for output in commit.outputs}
    plan = plan_all(case.format, table, "r", partitions=["dt=0"])
    slices = tuple(one for one in plan.groups[0].slices if one.path not in rewritten)
    assert len(slices) == 2
    for turn in range(2):
        run(case, replace(plan, plan_id=f"r{turn}", groups=(replace(plan.groups[0], slices=slices),)))
        assert lineage(case, table) == was
        plan = plan_all(case.format, table, "r", partitions=["dt=0"])
        slices = tuple(one for one in plan.groups[0].slices if one.path not in rewritten)

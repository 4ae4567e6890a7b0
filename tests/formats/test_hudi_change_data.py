# SPDX-License-Identifier: Apache-2.0
"""Tables with change data (``hoodie.table.cdc.enabled``): their rewrites change no read of rows or changes."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hudi_tables import copy, rows, write
from hudi_writing import FORMAT, Table, delete
from kept_tables import kept

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("nothing_unseen")]


def _options(mode: str) -> Mapping[str, str]:
    return {"hoodie.table.cdc.enabled": "true", "hoodie.table.cdc.supplemental.logging.mode": mode}


def _build(spark: Any, base: Path, *, merge_on_read: bool, mode: str) -> None:
    """Two small file groups of one partition, with updates and deletes in one of them."""
    for low, high, version, operation in ((0, 20, 0, "upsert"), (20, 40, 0, "upsert"), (0, 10, 1, "upsert")):
        frame = rows(spark, low, high, version=version, partitions=1).coalesce(1)
        write(frame, base, operation, merge_on_read=merge_on_read, options=_options(mode))
    gone = rows(spark, 10, 12, version=1, partitions=1).coalesce(1)
    write(gone, base, "delete", merge_on_read=merge_on_read, options=_options(mode))


def _table(spark: Any, base: Path, *, merge_on_read: bool, mode: str) -> Table:
    build = partial(_build, spark, merge_on_read=merge_on_read, mode=mode)
    return Table(spark, copy(kept(f"change data {mode} {merge_on_read}", "trips", build, __file__), base))


def changes(trips: Table, begin: str = "0") -> list[tuple[str, str, str]]:
    """The changes after ``begin``, each with its operation, the row before it and the row after it."""
    trips.spark.catalog.clearCache()
    options = {
        "hoodie.datasource.query.type": "incremental",
        "hoodie.datasource.query.incremental.format": "cdc",
        "hoodie.datasource.read.begin.instanttime": begin,
    }
    found = trips.spark.read.format("hudi").options(**options).load(str(trips.base)).collect()
    return sorted((row.op, row.before or "", row.after or "") for row in found)


def update(trips: Table, high: int, version: int) -> None:
    """A new version of the ids below ``high``."""
    mor = trips.timeline().properties["hoodie.table.type"] == "MERGE_ON_READ"
    frame = rows(trips.spark, 0, high, version=version, partitions=1).coalesce(1)
    write(frame, trips.base, "upsert", merge_on_read=mor)


def _completed_at(trips: Table, instant: str) -> str:
    found = trips.timeline().find(instant)
    assert found is not None
    assert found.completed_at is not None
    return found.completed_at


@pytest.mark.parametrize("mode", ["data_before_after", "op_key_only"])
@pytest.mark.parametrize("merge_on_read", [False, True])
@pytest.mark.crossed(2)
def test_a_table_with_change_data_is_clustered_and_its_changes_stay_the_same(
    spark: Any, tmp_path: Path, mode: str, *, merge_on_read: bool
) -> None:
    trips = _table(spark, tmp_path / "trips", merge_on_read=merge_on_read, mode=mode)
    before, found = trips.rows(), changes(trips)
    assert len(before) == 38
    assert [op for op, _, _ in found].count("d") == 2
    if merge_on_read:
        trips.proved(trips.compaction())
        assert (trips.rows(), changes(trips)) == (before, found)
        update(trips, 5, 2)
        before, found = trips.rows(), changes(trips)
    commit = trips.proved(trips.plan("0198-clustering"))
    assert (trips.rows(), changes(trips)) == (before, found)
    assert changes(trips, _completed_at(trips, commit.instant)) == [], "a rewrite changes no row"
    found_again = FORMAT.find_commit(trips.ref, "0198-clustering")
    assert found_again is not None
    assert set(found_again.superseded) == set(commit.superseded)
    assert any(version.path.endswith("cdc") for version in commit.superseded)
    update(trips, 3, 9)
    assert len(trips.rows()) == 38
    assert [op for op, _, _ in changes(trips, _completed_at(trips, commit.instant))] == ["u"] * 3
    delete(trips, commit)
    assert not {version.path for version in commit.superseded} & trips.data_files().keys()
    assert [op for op, _, _ in changes(trips, _completed_at(trips, commit.instant))] == ["u"] * 3

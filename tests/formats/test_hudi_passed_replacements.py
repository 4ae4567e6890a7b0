# SPDX-License-Identifier: Apache-2.0
"""Clusterings that a clean of another process has passed: what the sweep reads to find them; by hand, no JVM."""

import json
from collections.abc import Collection
from pathlib import Path

import pytest
from hudi_by_hand import T1, T2, T3, T4, ByHand

from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.plans.clean_bounds import find_passed_replacements
from lake.formats.hudi.timeline.timeline import PLAN_KEY, Timeline


class Clustered(ByHand):
    """A file that the clustering ``T2`` replaced."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.replaced = self.base_file(T1)
        self.complete(T1, "commit", self.replaced)
        entry = {"partitionPath": "p", "fileId": "f-0", "dataFilePath": self.replaced, "deltaFilePaths": []}
        self.plan = {"clusteringPlan": {"inputGroups": [{"slices": [entry]}]}, "extraMetadata": {PLAN_KEY: "0198-plan"}}
        self.write_plan()
        self.complete(T2, "replacecommit", self.base_file(T2, "p/f-1"))

    def write_plan(self) -> None:
        (self.base / f".hoodie/{T2}.replacecommit.requested").write_text(json.dumps(self.plan))

    def clean(self, time: str) -> None:
        """A clean by another process that retains nothing before it."""
        plan = {"earliestInstantToRetain": {"timestamp": time}, "policy": "KEEP_LATEST_COMMITS"}
        (self.base / f".hoodie/{time}.clean.requested").write_text(json.dumps(plan))
        (self.base / f".hoodie/{time}.clean").write_text("{}")

    def save(self, path: str) -> Path:
        """A savepoint of the first commit that keeps the file at ``path``."""
        record = {"partitionMetadata": {"p": {"savepointDataFile": [path]}}}
        file = self.base / f".hoodie/{T1}.savepoint"
        file.write_text(json.dumps(record))
        return file

    def passed(self) -> list[str]:
        storage = TableStorage(str(self.base))
        return [commit.time for commit in find_passed_replacements(storage, Timeline(storage), {})]


@pytest.fixture
def table(tmp_path: Path) -> Clustered:
    return Clustered(tmp_path / "t")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is read that may be large: 'savepoints' and, of files in partitions, 'sizes'."""
    found: list[str] = []
    sizes, savepoints = TableStorage.sizes, Timeline.savepoints

    def counted_sizes(storage: TableStorage, paths: Collection[str]) -> dict[str, int]:
        found.append("sizes")
        return sizes(storage, paths)

    def counted_savepoints(timeline: Timeline) -> dict[str, frozenset[str]]:
        found.append("savepoints")
        return savepoints(timeline)

    monkeypatch.setattr(TableStorage, "sizes", counted_sizes)
    monkeypatch.setattr(Timeline, "savepoints", counted_savepoints)
    return found


def test_a_passed_clustering_is_found_until_its_replaced_files_are_gone(table: Clustered, reads: list[str]) -> None:
    assert table.passed() == []
    table.clean(T3)
    assert table.passed() == table.passed() == [T2]
    (table.base / "p" / table.replaced).unlink()
    del reads[:]
    assert (table.passed(), reads) == ([], ["sizes"])
    table.clean(T4)
    assert (table.passed(), reads) == ([], ["sizes"]), "files that are gone are not looked for after the next clean"


def test_neither_files_nor_savepoints_are_read_without_a_clustering_by_lakefold(
    table: Clustered, reads: list[str]
) -> None:
    del table.plan["extraMetadata"]
    table.write_plan()
    table.clean(T3)
    assert (table.passed(), reads) == ([], [])


def test_a_clustering_whose_replaced_files_a_savepoint_kept_is_found_once_the_savepoint_is_deleted(
    table: Clustered,
) -> None:
    savepoint = table.save(table.replaced)
    table.clean(T3)
    assert table.passed() == []
    savepoint.unlink()
    assert table.passed() == [T2]

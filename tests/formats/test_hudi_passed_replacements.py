# SPDX-License-Identifier: Apache-2.0
"""Clusterings that a clean of another process has passed: what the sweep reads to find them; by hand, no JVM."""

import json
from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hudi_by_hand import T1, T2, T3, T4, ByHand, without_java

from lake.errors import Transient
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.pending import retries
from lake.formats.hudi.plans.clean_bounds import find_passed_replacements, may_pass_unseen_replacement
from lake.formats.hudi.plans.cleaning import hold_back_passed_replacements
from lake.formats.hudi.timeline.timeline import PLAN_KEY, Timeline
from lake.model import Concurrency, TableRef


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

    def passed(self, concurrency: Concurrency = Concurrency.OCC) -> list[str]:
        storage = TableStorage(str(self.base))
        table = replace(self.ref, concurrency=concurrency)
        return [commit.time for commit in find_passed_replacements(table, storage, Timeline(storage))]


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


def test_no_clean_passes_a_clustering_of_a_table_with_a_single_writer(table: Clustered) -> None:
    table.clean(T3)
    assert table.passed(Concurrency.SINGLE_WRITER) == []


def test_a_correction_that_fails_is_tried_again_later(table: Clustered) -> None:
    """A correction takes the locks of lakefold and of the table's writers."""
    table.clean(T3)
    client = without_java(table)
    client.table = replace(table.ref, concurrency=Concurrency.OCC)
    locked = []

    def lock(*_: object) -> None:
        locked.append(1)
        raise Transient("the lock is taken")

    client.locked = lock
    with pytest.raises(Transient, match="the lock is taken"):
        hold_back_passed_replacements(client)
    hold_back_passed_replacements(client)
    assert (table.passed(), len(locked)) == ([], 1)
    table.clean(T4)
    assert table.passed() == [], "a streaming writer cleans all the time"
    (tries,) = [tries for key, tries in retries._tries.items() if key[0] == str(table.base)]
    assert tries.interval == timedelta(minutes=1)
    tries.interval = timedelta()
    assert table.passed() == [T2]


def test_a_clean_of_files_that_were_just_replaced_may_pass_a_replacement_that_is_not_on_the_timeline_yet(
    table: Clustered,
) -> None:
    """Where a clean has one bound, and writers run beside lakefold."""
    storage = TableStorage(str(table.base))
    occ = replace(table.ref, concurrency=Concurrency.OCC)
    soon, later = f"{T2[:10]}0959999", f"{T2[:10]}1002001"

    def may_pass(ref: TableRef, clean: str, superseded_by: str = T2) -> bool:
        return may_pass_unseen_replacement(ref, Timeline(storage), clean, superseded_by)

    assert may_pass(occ, soon)
    assert not may_pass(occ, later)
    assert not may_pass(occ, soon, "")
    assert not may_pass(replace(occ, concurrency=Concurrency.SINGLE_WRITER), soon)
    file = table.base / ".hoodie/hoodie.properties"
    file.write_text(file.read_text().replace("layout.version=1", "layout.version=2"))
    assert not may_pass(occ, soon)
    assert may_pass(replace(occ, write_options={"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS"}), soon)

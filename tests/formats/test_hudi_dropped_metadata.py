# SPDX-License-Identifier: Apache-2.0
"""A metadata table that its writer drops while lakefold reads it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hudi_by_hand import PROPERTIES, T2, ByHand, without_java

from lake.errors import Transient
from lake.formats.hudi import FORMAT
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.plans.preconditions import check_preconditions
from lake.formats.hudi.timeline import metadata_table
from lake.formats.hudi.timeline.timeline import Timeline

INDEXES = "hoodie.table.metadata.partitions"


@pytest.fixture
def table(tmp_path: Path) -> ByHand:
    """A table with a metadata table that is complete."""
    made = ByHand(tmp_path / "t", PROPERTIES | {INDEXES: "files"})
    made.complete(T2, "commit", made.base_file(T2))
    inner = ByHand(made.base / metadata_table.DIRECTORY)
    inner.complete(T2, "deltacommit", inner.base_file(T2, "files/f-0"), partition="files")
    assert list(metadata_table.find_faults(*observed(made))) == []
    return made


def observed(table: ByHand) -> tuple[TableStorage, Timeline]:
    storage = TableStorage(str(table.base))
    return storage, Timeline(storage)


def drop(table: ByHand, *, whole: bool) -> None:
    """As Hudi does: the properties first, then the directory, whose deletion takes a while."""
    properties = table.base / ".hoodie/hoodie.properties"
    properties.write_text("\n".join(f"{key}={value}" for key, value in PROPERTIES.items()))
    shutil.rmtree(table.base / metadata_table.DIRECTORY / ("" if whole else ".hoodie"))


@pytest.fixture(params=[True, False], ids=["deleted", "half deleted"])
def dropped(table: ByHand, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> list[str]:
    """The writer drops the metadata table right after lakefold has seen that there is one."""
    exists: Callable[[TableStorage], bool] = metadata_table.metadata_table_exists
    seen: list[str] = []

    def then_dropped(storage: TableStorage) -> bool:
        found = exists(storage)
        if found:
            seen.append(storage.location)
            drop(table, whole=request.param)
        return found

    monkeypatch.setattr(metadata_table, "metadata_table_exists", then_dropped)
    return seen


def test_a_table_is_not_gone_because_its_metadata_table_is_dropped_during_the_final_check(
    table: ByHand, dropped: list[str]
) -> None:
    client = without_java(table)
    with pytest.raises(Transient, match=f"a writer has changed {INDEXES}"):
        check_preconditions(client, "cleaning")
    assert dropped
    assert INDEXES not in check_preconditions(client, "cleaning").properties


def test_a_withdrawal_continues_although_the_metadata_table_is_dropped_during_its_final_check(
    table: ByHand, dropped: list[str]
) -> None:
    timeline = check_preconditions(without_java(table), "withdrawing a plan", is_withdrawal=True)
    assert (dropped, timeline.properties.get(INDEXES)) == ([str(table.base)], None)


def test_a_scan_refuses_no_table_whose_metadata_table_is_dropped_meanwhile(table: ByHand, dropped: list[str]) -> None:
    storage, before = observed(table)
    with pytest.raises(Transient, match=f"a writer has changed {INDEXES}"):
        list(metadata_table.find_faults(storage, before))
    assert dropped
    assert list(metadata_table.find_faults(storage, Timeline(storage))) == []


def test_a_missing_metadata_table_that_the_properties_name_is_still_a_fault(table: ByHand) -> None:
    shutil.rmtree(table.base / metadata_table.DIRECTORY)
    (fault,) = metadata_table.find_faults(*observed(table))
    assert "is not a metadata table" in fault
    with pytest.raises(Exception, match="is not a metadata table"):
        FORMAT.check(table.ref)

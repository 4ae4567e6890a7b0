# SPDX-License-Identifier: Apache-2.0
"""A table that is gone is told from one whose storage is not there."""

import shutil
from pathlib import Path

import pytest
from hudi_by_hand import T1, ByHand
from hudi_templates import ref

from lake.errors import Rejected, TableGone
from lake.formats.hudi import FORMAT


@pytest.fixture
def table(tmp_path: Path) -> Path:
    made = ByHand(tmp_path / "lake" / "t")
    made.complete(T1, "commit", made.base_file(T1))
    return made.base


def answer(table: Path) -> type[Exception]:
    with pytest.raises(Rejected, match="not a Hudi table") as caught:
        FORMAT.find_commit(ref(table), "plan")
    return caught.type


def test_a_table_that_was_dropped_beside_others_is_gone(table: Path) -> None:
    (table.parent / "another").mkdir()
    shutil.rmtree(table)
    assert answer(table) is TableGone
    assert list(table.parent.iterdir()) == [table.parent / "another"]


def test_a_table_without_its_hoodie_directory_is_gone(table: Path) -> None:
    shutil.rmtree(table / ".hoodie")
    assert answer(table) is TableGone


def test_an_empty_directory_may_be_a_lake_that_is_not_mounted(table: Path) -> None:
    shutil.rmtree(table)
    assert answer(table) is Rejected
    table.mkdir()
    assert answer(table) is Rejected
    shutil.rmtree(table.parent)
    assert answer(table) is Rejected


def test_a_table_that_lost_its_properties_is_not_gone(table: Path) -> None:
    (table / ".hoodie/hoodie.properties").unlink()
    assert answer(table) is Rejected

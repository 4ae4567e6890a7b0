# SPDX-License-Identifier: Apache-2.0
"""A file of the archived timeline that can't be read: what depends on it says so, and everything else goes on."""

import struct
from pathlib import Path

import pytest
from hudi_by_hand import T1, T3, ByHand
from hudi_templates import ref
from test_hudi_history import LAYOUT_TWO, archive

from lake.errors import Transient
from lake.formats.hudi import FORMAT
from lake.formats.hudi.audit.damage import find_damage, to_listed_slice
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.timeline.archive import ArchiveUnreadable
from lake.formats.hudi.timeline.timeline import Timeline
from lake.model import Fault, FileSlice


@pytest.fixture
def table(tmp_path: Path) -> ByHand:
    """One file group of an archived commit and one of the active timeline."""
    made = ByHand(tmp_path / "t")
    made.base_file(T1, "p/f-1")
    made.complete(T3, "commit", made.base_file(T3))
    (made.base / ".hoodie/archived").mkdir()
    (made.base / ".hoodie/archived/.commits_.archive.1_1-0-1").write_bytes(
        b"#HUDI#" + struct.pack(">qiiq", 16, 99, 0, 22)  # a block of an unknown version
    )
    return made


def test_a_scan_leaves_alone_only_file_groups_whose_commits_are_in_the_file_that_can_not_be_read(
    table: ByHand,
) -> None:
    found = FORMAT.snapshot(ref(table.base))
    assert sorted(found.slices["file_id"].to_pylist()) == ["f-0", "f-1"]
    (damage,) = found.damaged
    assert (damage.file_id, damage.fault) == ("f-1", Fault.UNKNOWN)
    assert damage.text == (
        "damaged: .hoodie/archived/.commits_.archive.1_1-0-1 can't be read, so it is unknown whether this file "
        "group is as its commits wrote it; put it back from a backup"
    )
    planned = [
        FileSlice(partition="p", file_id=f"f-{number}", path=f"p/f-{number}_0-1-1_{time}.parquet", bytes=1)
        for number, time in enumerate((T3, T1))
    ]
    storage = TableStorage(str(table.base))
    listed = {("p", entry.file_id): to_listed_slice(entry) for entry in planned}
    assert list(find_damage(storage, Timeline(storage), listed)) == [("p", "f-1")], "and publishing leaves it out"
    assert "number of archived instants unknown: " in FORMAT.describe(ref(table.base))["timeline"]


@pytest.mark.parametrize("ask", ["verify", "committed"])
def test_steps_that_need_the_archived_timeline_name_the_unreadable_file_and_the_remedy(table: ByHand, ask: str) -> None:
    with pytest.raises(
        Transient, match=r"/archived/\.commits_\.archive\.1_1-0-1 can't be read \(.*\); put it back from"
    ):
        FORMAT.verify(ref(table.base), (), rows=False) if ask == "verify" else FORMAT.find_commit(ref(table.base), "p")


def test_a_file_that_the_archives_manifest_names_and_that_is_gone_counts_as_unreadable(tmp_path: Path) -> None:
    tmp_path = ByHand(tmp_path / "t", LAYOUT_TWO).base
    archive(tmp_path, (T1, f"a_0_{T1}.parquet", {}))
    history = tmp_path / ".hoodie/timeline/history"
    (lost,) = history.glob("*.parquet")
    (history / "manifest_1").write_text(f'{{"files": [{{"fileName": "{lost.name}"}}]}}')
    (history / "_version_").write_text("1")
    timeline = Timeline(TableStorage(str(tmp_path)))
    assert [entry.time for entry in timeline.archived()] == [T1]
    lost.unlink()
    with pytest.raises(ArchiveUnreadable, match=rf"{lost.name} can't be read \(it is missing\); put it back"):
        list(timeline.archived())

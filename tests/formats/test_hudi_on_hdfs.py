# SPDX-License-Identifier: Apache-2.0
"""Hudi tables on HDFS are listed and verified as they are on local files, though hudi-rs knows no HDFS."""

import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from hadoop import HadoopCluster
from hdfs_paths import place, remove_tree, upload
from hudi_by_hand import PROPERTIES, T1, T2, T3, T4, ByHand

from lake.errors import Rejected, TableGone
from lake.formats.hudi import FORMAT
from lake.formats.hudi.files.storage import TableStorage
from lake.model import TableRef

pytestmark = pytest.mark.slow


@pytest.fixture
def made(tmp_path: Path) -> ByHand:
    """Two slices, one of them in a pending compaction, and a stray file."""
    table = ByHand(tmp_path / "t", PROPERTIES | {"hoodie.table.metadata.partitions": ""})
    base = table.base_file(T1)
    table.complete(T1, "deltacommit", base)
    log = table.log_file(T1, 1)
    table.complete(T2, "deltacommit", log)
    table.request_compaction(T3, base, [log])
    other = table.base_file(T4, "p/f-1")
    table.complete(T4, "deltacommit", other)
    return table


@pytest.fixture
def location(made: ByHand, hdfs: HadoopCluster) -> str:
    return upload(made.base, f"{hdfs.uri}/{uuid.uuid4().hex}/t")


def test_a_table_on_hdfs_is_found_listed_and_verified_as_its_local_copy_is(made: ByHand, location: str):
    (found,) = FORMAT.discover(location.rpartition("/")[0])
    assert found.location == location
    there = replace(made.ref, location=location)
    FORMAT.check(there)
    local, remote = (
        FORMAT.snapshot(ref).slices.drop_columns(["modified_at", "oldest_log_at"]) for ref in (made.ref, there)
    )
    assert remote.equals(local)
    assert {row["busy_reason"] for row in remote.to_pylist()} == {f"pending compaction {T3}", None}
    assert FORMAT.verify(there, (), rows=False) == FORMAT.verify(made.ref, (), rows=False)
    with pytest.raises(Rejected, match=r"hudi-rs does not merge .*it does not support HDFS"):
        FORMAT.verify(there, (), rows=True)


def test_lakefolds_records_in_a_table_on_hdfs_are_whole_and_do_not_recreate_a_dropped_table(location: str):
    storage, note = TableStorage(location), ".hoodie/.lakefold/deep/note.json"
    storage.write(note, b"{}")
    storage.write(note, b'{"again": 1}')
    storage.touch(note)
    assert (storage.read(note), storage.size(note)) == (b'{"again": 1}', 12)
    assert storage.list_file_names(".hoodie/.lakefold/deep") == ["note.json"]
    assert storage.display_path(note) == f"{location}/{note}"
    storage.delete(note)
    storage.delete(note)
    assert not storage.is_file(note)
    place(f"{location.rpartition('/')[0]}/beside").mkdir()
    remove_tree(location)
    with pytest.raises(FileNotFoundError):
        storage.write(note, b"{}")
    with pytest.raises(TableGone):
        FORMAT.snapshot(TableRef(name="t", format="hudi", location=location))

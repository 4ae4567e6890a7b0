# SPDX-License-Identifier: Apache-2.0
"""Sets of marks beside a Hive table's commits."""

from pathlib import Path
from unittest import mock

from lake.formats.hive.commit.marker_set import add_to_marker_set, read_marker_set
from lake.model import TableRef
from lake.storage.local import LocalFileIO


def test_a_mark_survives_a_power_failure_with_the_directory_that_was_made_for_it(tmp_path: Path) -> None:
    ref, path = TableRef(name="db.t", format="hive", location=str(tmp_path)), str(tmp_path / "marks")
    with mock.patch.object(LocalFileIO, "sync", autospec=True, side_effect=LocalFileIO.sync) as sync:
        add_to_marker_set(ref, path, ["a"])
    assert str(tmp_path) in [call.args[1] for call in sync.call_args_list]
    assert read_marker_set(ref, path) == {"a"}

# SPDX-License-Identifier: Apache-2.0
"""Sets of marks beside a Hive table's commits."""

from pathlib import Path
from unittest import mock

import pytest

from lake.formats.hive.commit.marker_set import add_to_marker_set, read_marker_set
from lake.formats.hive.files.listing import to_located_file
from lake.formats.hive.relocation import arrival_times
from lake.model import TableRef
from lake.plan import LocatedFile
from lake.storage.local import LocalFileIO


def test_a_mark_survives_a_power_failure_with_the_directory_that_was_made_for_it(tmp_path: Path) -> None:
    ref, path = TableRef(name="db.t", format="hive", location=str(tmp_path)), str(tmp_path / "marks")
    with mock.patch.object(LocalFileIO, "sync", autospec=True, side_effect=LocalFileIO.sync) as sync:
        add_to_marker_set(ref, path, ["a"])
    assert str(tmp_path) in [call.args[1] for call in sync.call_args_list]
    assert read_marker_set(ref, path) == {"a"}


def test_the_arrival_times_of_a_location_outlive_a_process_that_dies_while_it_removes_those_of_missing_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """All times were removed first: an overwrite that removed late files then made their copies look newer than it."""
    ref = TableRef(name="d.t", format="hive", location=str(tmp_path))
    monkeypatch.setattr(arrival_times, "_MAX_TIMES", 2)
    (tmp_path / "dt=0").mkdir()
    files = [late_file(ref, tmp_path / "dt=0" / name) for name in "abc"]
    arrival_times.record_arrivals(ref, files[:2])
    before = arrival_times.recorded_arrivals(ref, "dt=0")
    (tmp_path / "dt=0" / "a").unlink()

    killed = mock.Mock(side_effect=KeyboardInterrupt)
    with mock.patch.object(LocalFileIO, "write", killed), pytest.raises(KeyboardInterrupt):
        arrival_times.record_arrivals(ref, files[2:])
    assert arrival_times.recorded_arrivals(ref, "dt=0") == before
    arrival_times.record_arrivals(ref, files[2:])
    kept = {arrival_times.source_digest(file) for file in files[1:]}
    assert arrival_times.recorded_arrivals(ref, "dt=0").keys() == kept


def test_a_time_that_another_process_adds_while_those_of_missing_files_are_removed_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It was removed with the files of a later read, although only the names of an earlier read were written again."""
    ref, create = TableRef(name="d.t", format="hive", location=str(tmp_path)), arrival_times.create_record_archive
    monkeypatch.setattr(arrival_times, "_MAX_TIMES", 2)
    (tmp_path / "dt=0").mkdir()
    files = [late_file(ref, tmp_path / "dt=0" / name) for name in "abcd"]
    arrival_times.record_arrivals(ref, files[:2])
    digests = [arrival_times.source_digest(file) for file in files]

    def met(of: TableRef) -> None:
        create(of)
        add_to_marker_set(ref, arrival_times._times_path(ref, "dt=0"), [f"{digests[3]} 5"])

    with mock.patch.object(arrival_times, "create_record_archive", met):
        arrival_times.record_arrivals(ref, files[2:3])
    recorded = arrival_times.recorded_arrivals(ref, "dt=0")
    assert (recorded.keys(), recorded[digests[3]]) == (set(digests), 5)


def late_file(ref: TableRef, path: Path) -> LocatedFile:
    path.write_text(path.name)
    status = path.stat()
    return to_located_file(ref.location, str(path), status.st_size, status.st_mtime_ns)

# SPDX-License-Identifier: Apache-2.0
"""Locations that a sweep watches by the directories above them, also where other programs own these directories."""

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import pytest

from lake.formats.hive.relocation import change_detection
from lake.formats.hive.relocation.change_detection import HiveChangeDetector
from lake.model import TableRef
from lake.storage.files import FileEntry
from lake.storage.local import LocalFileIO

LONG_AGO = 1_000_000_000


@pytest.fixture
def detector(tmp_path: Path) -> HiveChangeDetector:
    location = tmp_path / "table"
    location.mkdir()
    return HiveChangeDetector(TableRef(name="db.t", format="hive", location=str(location)))


@pytest.fixture
def listed() -> Iterator[list[str]]:
    """The directories listed so far. Those named ``unreachable`` fail as a stale NFS handle does."""
    calls, list_ = list[str](), LocalFileIO.list

    def list_recorded(files: LocalFileIO, directory: str) -> Sequence[FileEntry]:
        calls.append(directory)
        if directory.endswith("/unreachable"):
            raise OSError(errno.ESTALE, "Stale file handle", directory)
        return list_(files, directory)

    with mock.patch.object(LocalFileIO, "list", list_recorded):
        yield calls


def make(path: Path) -> str:
    """A location whose last change was long ago."""
    path.mkdir(parents=True)
    os.utime(path, (LONG_AGO, LONG_AGO))
    return str(path)


def change(location: str) -> None:
    os.utime(location, (LONG_AGO + 1, LONG_AGO + 1))


def test_an_unreachable_directory_hides_no_change_elsewhere_and_is_logged_once(
    detector: HiveChangeDetector, listed: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The sweep of the whole table failed until the directory was back."""
    locations = [make(tmp_path / name / "p") for name in ("a", "unreachable", "z")]
    assert detector.find_changed_locations(locations) == set(locations), "all are passed for the first time"
    for _ in range(4):
        assert detector.find_changed_locations(locations) == set()
    for index in (0, 2):
        change(locations[index])
        found = [detector.find_changed_locations(locations) for _ in range(2)]
        assert sorted(found) == [set(), {locations[index]}], "a check ends where a listing failed; the next continues"
    (message,) = (record.getMessage() for record in caplog.records)
    assert message.startswith(f"table db.t: {tmp_path}/unreachable can't be listed: Stale file handle")


def test_a_directory_that_is_reachable_again_shows_its_changes_since_the_last_check(
    detector: HiveChangeDetector, tmp_path: Path
) -> None:
    location = make(tmp_path / "a" / "p")
    detector.find_changed_locations([location])
    change(location)
    with mock.patch.object(LocalFileIO, "list", side_effect=OSError(errno.EIO, "Input/output error")):
        assert [detector.find_changed_locations([location]) for _ in range(2)] == [set()] * 2
    found = [detector.find_changed_locations([location]) for _ in range(3)]
    assert set().union(*found) == {location}


def test_a_check_lists_a_bounded_number_of_directories_outside_of_the_table(
    detector: HiveChangeDetector, listed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_detection, "MAX_DIRECTORIES_PER_CHECK", 500)
    locations = [make(tmp_path / f"landing/{number:03d}/data") for number in range(20)]
    for number in range(4):
        found = detector.find_changed_locations(locations)
        assert found == (set(locations) if number == 0 else set()), "a first listing has nothing to compare with"
        assert len(listed) == 5 * (number + 1), "a listing and its only entry count as 50 directories each"
    assert listed == [str(Path(location).parent) for location in locations]
    change(locations[7])
    assert [detector.find_changed_locations(locations) for _ in range(4)] == [set(), {locations[7]}, set(), set()]


def test_a_large_directory_outside_of_the_table_is_listed_only_as_often_as_its_files_allow(
    detector: HiveChangeDetector, listed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_detection, "MAX_DIRECTORIES_PER_CHECK", 500)
    location = make(tmp_path / "landing/p")
    for number in range(98):
        (tmp_path / f"landing/{number}.json").touch()
    for _ in range(30):
        detector.find_changed_locations([location])
    assert len(listed) == 3, "one listing with 99 entries costs as much as ten checks may"
    inside = make(tmp_path / "table/.lakefold/v1/dt=1")
    for _ in range(10):
        detector.find_changed_locations([inside])
    assert listed[3:].count(str(Path(inside).parent)) == 10, "directories of the table itself are not weighted"

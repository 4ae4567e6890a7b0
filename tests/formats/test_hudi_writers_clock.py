# SPDX-License-Identifier: Apache-2.0
"""What the names and the times of a timeline's files tell of the writers' clock, without Spark."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.timeline.clocks import (
    format_instant_time,
    upcoming_clock_set_back,
    writer_clock_offset,
    zone_difference,
)
from lake.formats.hudi.timeline.timeline import Timeline

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
Zone = Callable[[str], None]


@pytest.fixture(autouse=True)
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Zone]:
    """Give this process another zone; without a call it is UTC."""

    def change(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    change("UTC")
    yield change
    monkeypatch.undo()
    time.tzset()


class Files:
    """The timeline files of a table, each with the time that storage gave it."""

    def __init__(self, base: Path, layout: int = 2) -> None:
        self.base, self.layout = base, layout
        self.directory = base / (".hoodie/timeline" if layout == 2 else ".hoodie")
        self.directory.mkdir(parents=True)
        (base / ".hoodie/hoodie.properties").write_text(
            f"hoodie.table.name=t\nhoodie.timeline.layout.version={layout}\n"
        )

    def write(
        self, begun: datetime, ahead: timedelta = timedelta(), lag: timedelta = SECOND / 20, action: str = "commit"
    ) -> None:
        """A commit of three seconds whose writer's times are ``ahead`` of UTC; storage has them ``lag`` later."""
        ended = begun + 3 * SECOND
        time, completed_at = format_instant_time(begun + ahead), format_instant_time(ended + ahead)
        self.put(f"{time}.{action}.requested", begun + lag)
        self.put(f"{time}.inflight" if action == "commit" else f"{time}.{action}.inflight", begun + lag)
        self.put(f"{time}_{completed_at}.{action}" if self.layout == 2 else f"{time}.{action}", ended + lag)

    def put(self, name: str, at: datetime) -> None:
        (self.directory / name).touch()
        nanoseconds = round(at.timestamp() * 1000) * 1_000_000
        os.utime(self.directory / name, ns=(nanoseconds, nanoseconds))

    def copied(self, at: datetime, each: timedelta) -> None:
        """As after a copy in the order of names that began at ``at`` and took ``each`` for each file."""
        for number, name in enumerate(sorted(os.listdir(self.directory))):
            self.put(name, at + number * each)

    def ahead(self) -> timedelta | None:
        found = writer_clock_offset(Timeline(TableStorage(str(self.base))))
        return None if found is None else found[0]


def minutes(files: Files, numbers: Sequence[int], ahead: timedelta = timedelta(), **lag: timedelta) -> None:
    for minute in numbers:
        files.write(NOON + minute * 60 * SECOND, ahead, **lag)


@pytest.mark.parametrize("layout", [1, 2])
@pytest.mark.parametrize(
    ("hours", "name"),
    [(9.0, "Asia/Tokyo"), (-5.0, "America/New_York"), (5.75, "Asia/Kathmandu"), (-9.5, "Pacific/Marquesas")],
)
def test_writers_in_another_zone_are_detected_and_writers_in_lakefolds_zone_are_accepted(
    tmp_path: Path, zone: Zone, layout: int, hours: float, name: str
) -> None:
    files = Files(tmp_path, layout)
    minutes(files, range(5), HOUR * hours)
    found = files.ahead()
    assert found is not None
    assert zone_difference(found) == HOUR * hours
    zone(name)
    assert not files.ahead() or not zone_difference(files.ahead() or HOUR)


@pytest.mark.parametrize("seconds", [-60, 60, -600])
def test_writers_whose_clock_is_off_are_detected_and_have_lakefolds_zone(tmp_path: Path, seconds: int) -> None:
    files = Files(tmp_path)
    minutes(files, range(2), seconds * SECOND)
    found = files.ahead()
    assert found is not None
    assert abs(found - seconds * SECOND) < SECOND
    assert not zone_difference(found)


@pytest.mark.parametrize(("seconds", "is_told"), [(-3600, True), (-60, True), (-20, False), (60, False)])
def test_requests_alone_reveal_a_clock_that_is_far_behind(tmp_path: Path, seconds: int, is_told: bool) -> None:
    """Whether the clock is a little behind, or the writer's request late, can't be told with layout 1."""
    files = Files(tmp_path, layout=1)
    minutes(files, range(3), seconds * SECOND)
    found = files.ahead()
    assert (found is not None and abs(found - seconds * SECOND) < SECOND) == is_told


@pytest.mark.parametrize("hours", [-9, 5.75])
def test_begin_and_end_of_a_single_write_show_the_zone_of_its_writer(tmp_path: Path, hours: float) -> None:
    files = Files(tmp_path)
    assert files.ahead() is None
    files.write(NOON, hours * HOUR)
    assert zone_difference(files.ahead() or SECOND) == hours * HOUR


def test_the_begin_of_a_single_write_shows_nothing_since_its_file_may_be_a_copy(tmp_path: Path) -> None:
    files = Files(tmp_path, layout=1)
    files.write(NOON, -9 * HOUR)
    assert files.ahead() is None


@pytest.mark.parametrize("layout", [1, 2])
@pytest.mark.parametrize("off", [timedelta(), -90 * SECOND, 60 * SECOND, -100 * 24 * HOUR])
def test_a_single_write_shows_no_wrong_clock(tmp_path: Path, layout: int, off: timedelta) -> None:
    files = Files(tmp_path, layout)
    files.write(NOON, off)
    assert files.ahead() is None


@pytest.mark.parametrize("layout", [1, 2])
@pytest.mark.parametrize("after", [900 * SECOND, 9 * HOUR])
def test_a_copied_table_with_a_single_write_shows_nothing(tmp_path: Path, layout: int, after: timedelta) -> None:
    files = Files(tmp_path, layout)
    files.write(NOON)
    files.write(NOON + 10 * SECOND, action="clean")
    files.copied(NOON + after, SECOND / 100)
    assert files.ahead() is None


@pytest.mark.parametrize("layout", [1, 2])
def test_after_a_restore_that_left_one_late_write_cleans_and_the_restore_show_the_zone(
    tmp_path: Path, layout: int
) -> None:
    files = Files(tmp_path, layout)
    files.write(NOON, -9 * HOUR, lag=14 * SECOND)
    assert files.ahead() is None
    for minute, action in enumerate(["clean", "clean", "restore"], start=1):
        files.write(NOON + minute * 60 * SECOND, -9 * HOUR, action=action)
    assert zone_difference(files.ahead() or SECOND) == -9 * HOUR


@pytest.mark.parametrize("layout", [1, 2])
@pytest.mark.parametrize("services", [["clean"], ["clean", "clean", "restore"]], ids=len)
def test_after_a_restore_that_left_one_write_the_write_and_the_services_show_a_wrong_clock(
    tmp_path: Path, layout: int, services: Sequence[str]
) -> None:
    """Chaos found it: lakefold committed with its own time, and the writer's next updates were hidden."""
    files = Files(tmp_path, layout)
    files.write(NOON, -90 * SECOND)
    for minute, action in enumerate(services, start=1):
        files.write(NOON + minute * 60 * SECOND, -90 * SECOND, action=action)
    assert abs((files.ahead() or SECOND) + 90 * SECOND) < SECOND
    files.write(NOON + 300 * SECOND)
    assert files.ahead() is None, "until the clock was set right and a write shows it"


def test_cleans_show_no_wrong_clock_since_they_may_be_lakefolds_own(tmp_path: Path) -> None:
    files = Files(tmp_path)
    for minute in range(4):
        files.write(NOON + minute * 60 * SECOND, -90 * SECOND, action="clean")
    assert files.ahead() is None


@pytest.mark.parametrize("lag", [0.0, 0.2, 0.999, 4.0])
def test_a_storage_that_takes_its_time_is_no_other_clock(tmp_path: Path, lag: float) -> None:
    files = Files(tmp_path)
    minutes(files, range(6), lag=SECOND * lag)
    found = files.ahead()
    assert found is not None
    assert timedelta(seconds=-5) < found <= timedelta()


def test_an_object_store_that_keeps_whole_seconds_is_no_other_clock(tmp_path: Path) -> None:
    files = Files(tmp_path)
    for minute in range(6):
        files.write(NOON + minute * 60 * SECOND + minute * SECOND / 7)
    for path in files.directory.iterdir():
        files.put(path.name, datetime.fromtimestamp(int(path.stat().st_mtime), UTC))
    found = files.ahead()
    assert found is not None
    assert abs(found) <= SECOND
    assert not zone_difference(found)


@pytest.mark.parametrize("layout", [1, 2])
@pytest.mark.parametrize("after", [60 * SECOND, HOUR, 9 * HOUR, 10 * HOUR + 7 * SECOND, 100 * 24 * HOUR])
@pytest.mark.parametrize("each", [0.001, 0.05, 0.5, 5.0])
def test_copied_and_restored_tables_give_no_evidence_of_a_clock(
    tmp_path: Path, layout: int, after: timedelta, each: float
) -> None:
    files = Files(tmp_path, layout)
    minutes(files, range(12))
    files.copied(NOON + after, each * SECOND)
    assert files.ahead() is None
    files.write(NOON + after + 600 * SECOND)
    assert files.ahead() is None, "nor with the first write after it"
    for minute in range(20, 25):
        files.write(NOON + after + minute * 60 * SECOND)
    found = files.ahead()
    assert layout == 1 or found is not None
    assert found is None or abs(found) < SECOND, "five writes later its clock is known, and right"


def test_a_small_table_copied_at_a_whole_hour_gives_no_evidence_of_a_clock(tmp_path: Path) -> None:
    files = Files(tmp_path)
    minutes(files, range(2))
    files.copied(NOON + 9 * HOUR, SECOND / 100)
    assert files.ahead() is None


@pytest.mark.parametrize("ahead", [-90 * SECOND, -9 * HOUR, 9 * HOUR])
@pytest.mark.parametrize("late", [range(1, 2), range(4, 5), range(1, 3), range(0, 5, 2)], ids=str)
@pytest.mark.parametrize("apart", [2, 60])
def test_writers_that_were_suspended_between_a_time_and_its_file_are_detected(
    tmp_path: Path, ahead: timedelta, late: Sequence[int], apart: int
) -> None:
    files = Files(tmp_path)
    for number in range(5):
        begun = NOON + number * apart * SECOND
        files.write(begun, ahead)
        if number in late:
            name = f"{format_instant_time(begun + ahead)}_{format_instant_time(begun + 3 * SECOND + ahead)}.commit"
            files.put(name, begun + (3 + 2 + 5 * number) * SECOND)
    found = files.ahead()
    assert found is not None
    assert abs(found - ahead) < SECOND


def test_the_writer_furthest_ahead_is_reported_if_writers_disagree(tmp_path: Path) -> None:
    files = Files(tmp_path)
    minutes(files, range(0, 6, 2))
    minutes(files, range(1, 6, 2), -90 * SECOND)
    found = files.ahead()
    assert found is not None
    assert abs(found) < SECOND


def test_writers_that_all_disagree_give_no_evidence_of_a_clock(tmp_path: Path) -> None:
    files = Files(tmp_path)
    for minute in range(6):
        minutes(files, [minute], -90 * minute * SECOND)
    assert files.ahead() is None


@pytest.mark.parametrize("layout", [1, 2])
def test_after_a_clock_was_set_right_an_overwrite_alone_ends_the_refusal(tmp_path: Path, layout: int) -> None:
    """INSERT OVERWRITE commits a replace commit without a clustering plan."""
    files = Files(tmp_path, layout)
    minutes(files, range(5), ahead=-90 * SECOND)
    assert files.ahead() == -90 * SECOND - SECOND / 20
    files.write(NOON + 6 * 60 * SECOND, action="replacecommit")
    assert files.ahead() is None


def test_instants_of_other_programs_give_no_evidence_of_a_clock(tmp_path: Path) -> None:
    """Compactions, clusterings and cleans may be lakefold's own, and some names are no times."""
    files = Files(tmp_path)
    for minute in range(6):
        at = NOON + minute * 60 * SECOND
        time, completed_at = format_instant_time(at - 9 * HOUR), format_instant_time(at + 3 * SECOND - 9 * HOUR)
        files.put(f"{time}.compaction.requested", at)
        files.put(f"{time}_{completed_at}.commit", at + 3 * SECOND)
    files.put("20269999999999999.commit.requested", NOON)
    files.put("00000000000000000_20260304030000000.deltacommit", NOON)
    files.put("00000000000000001_20260304030001000.deltacommit", NOON + SECOND)
    assert files.ahead() is None


def test_writers_in_our_zone_are_in_it_through_the_year(tmp_path: Path, zone: Zone) -> None:
    """Clocks of New York were set back on 1 November 2026 at 06:00 UTC, between two of the last writes."""
    zone("America/New_York")
    files = Files(tmp_path)
    for minute in range(-3, 3):
        begun = datetime(2026, 11, 1, 6, tzinfo=UTC) + minute * 60 * SECOND
        files.write(begun, begun.astimezone().utcoffset() or timedelta())
    assert files.ahead() is None or not zone_difference(files.ahead() or HOUR)


@pytest.mark.parametrize(
    ("name", "at", "minutes"),
    [
        ("America/New_York", "2026-11-01T04:59:59", 0),
        ("America/New_York", "2026-11-01T05:00:00", 60),
        ("America/New_York", "2026-11-01T05:59:59", 60),
        ("America/New_York", "2026-11-01T06:00:00", 0),
        ("America/New_York", "2026-03-08T06:59:59", 0),
        ("Australia/Lord_Howe", "2026-04-04T14:29:59", 0),
        ("Australia/Lord_Howe", "2026-04-04T14:30:00", 30),
        ("Australia/Lord_Howe", "2026-04-04T14:59:59", 30),
        ("Australia/Lord_Howe", "2026-04-04T15:00:00", 0),
        ("UTC", "2026-11-01T05:30:00", 0),
    ],
)
def test_a_repeated_hour_is_recognized_during_its_first_pass(zone: Zone, name: str, at: str, minutes: int) -> None:
    zone(name)
    moment = datetime.fromisoformat(f"{at}+00:00")
    assert upcoming_clock_set_back("LOCAL", moment) == timedelta(minutes=minutes)
    assert upcoming_clock_set_back("UTC", moment) == timedelta()

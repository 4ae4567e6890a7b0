# SPDX-License-Identifier: Apache-2.0
"""Hudi tables whose writers, or whose lakefold, have another zone or another clock.

A writer in another zone is a JVM whose default zone is that zone, and a table in LOCAL times does not tell it from one
whose clock is off: either has a ``LOCAL`` that is ahead of true times. So one JVM plays all of them, one after another.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hudi_other_writer import OtherWriter
from hudi_tables import METADATA, rows, write
from hudi_templates import edit_properties
from hudi_writing import COMPACTED, LOCK, SIX, NewTable, Table
from py4j.java_gateway import get_java_class

from lake.errors import Transient
from lake.formats.hudi.jvm.class_cache import cached_jvm
from lake.formats.hudi.jvm.time_zones import TimeZones, time_zones_of
from lake.formats.hudi.timeline.clocks import MAX_SKEW, parse_instant_time
from lake.plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]
LISTED = METADATA | COMPACTED
"""A table that is listed by its metadata table, which is compacted at each write."""
UTC_TIMES = {"hoodie.table.timeline.timezone": "UTC"}
WITHOUT_OWN = {key: value for key, value in LOCK.items() if key != MAX_SKEW}
"""Writers beside others, with Hudi's own wait for the skew of clocks and not the short one of the other tests."""
NEW_YORK, TOKYO, MINUTE = timedelta(hours=-5), timedelta(hours=9), timedelta(minutes=1)
Zone = Callable[[str], None]


class _Hudi:
    """The zone of Hudi in the JVM of the tests."""

    def __init__(self, spark: "SparkSession") -> None:
        jvm: Any = cached_jvm(spark)
        self._jvm = jvm
        self._zones = jvm.org.apache.hudi.common.model.HoodieTimelineTimeZone
        self.generator = jvm.org.apache.hudi.common.table.timeline.HoodieInstantTimeGenerator

    def set_local(self, offset: timedelta) -> None:
        """Give the JVM a default zone with this offset, as if it had been started there and formed no time yet."""
        minutes = round(offset.total_seconds() / 60)
        name = f"GMT{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
        self._jvm.java.util.TimeZone.setDefault(self._jvm.java.util.TimeZone.getTimeZone(name))
        self._field(self._zones.UTC.getClass(), "zoneId").set(self._zones.UTC, self._jvm.java.time.ZoneOffset.UTC)
        self.generator.setCommitTimeZone(self._zones.LOCAL)
        self._field(get_java_class(self.generator), "LAST_INSTANT_TIME").get(None).set("0")

    def default(self) -> Any:
        """The JVM's default zone."""
        return self._jvm.java.util.TimeZone.getDefault()

    def set_default(self, zone: Any) -> None:
        self._jvm.java.util.TimeZone.setDefault(zone)

    def _field(self, java_class: Any, name: str) -> Any:
        field = java_class.getDeclaredField(name)
        field.setAccessible(True)
        return field


@pytest.fixture
def hudi(spark: "SparkSession") -> Iterator[_Hudi]:
    """Hudi's zone, which after the test is what it was."""
    found = _Hudi(spark)
    default = found.default()
    yield found
    found.set_local(timedelta())
    found.set_default(default)


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Zone]:
    """Give this process, which is lakefold's, another zone (TZ)."""

    def change(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    change("UTC")
    yield change
    monkeypatch.undo()
    time.tzset()


class Elsewhere(Table):
    """A table with writers whose ``LOCAL`` is ``ahead`` of UTC."""

    def __init__(
        self, hudi: _Hudi, spark: "SparkSession", base: Path, ahead: timedelta, options: Mapping[str, str]
    ) -> None:
        super().__init__(spark, base)
        self._hudi, self.ahead, self._writing = hudi, ahead, LISTED | options

    @contextmanager
    def writers(self) -> Iterator[None]:
        """While the block runs the JVM is that of a writer; afterwards it is lakefold's, in UTC."""
        self._hudi.set_local(self.ahead)
        try:
            yield
        finally:
            self._hudi.set_local(timedelta())

    def build(self, *, merge_on_read: bool) -> "Elsewhere":
        """Two small files in each of two partitions; of merge-on-read with logs."""
        with self.writers():
            for low in (0, 60):
                frame = rows(self.spark, low, low + 60).coalesce(1)
                write(frame, self.base, merge_on_read=merge_on_read, options=self._writing)
        if merge_on_read:
            self.update(0, 120, 1)
        return self

    def update(self, low: int, high: int, version: int) -> None:
        """The writers' next upsert."""
        with self.writers():
            self.upsert(low, high, version, **self._writing)


@pytest.fixture
def elsewhere(hudi: _Hudi, spark: "SparkSession", tmp_path: Path, zone: Zone) -> Callable[..., Elsewhere]:
    """A table whose writers are elsewhere."""

    def new(ahead: timedelta, *, merge_on_read: bool = False, options: Mapping[str, str] = LISTED) -> Elsewhere:
        return Elsewhere(hudi, spark, tmp_path / "elsewhere", ahead, options).build(merge_on_read=merge_on_read)

    return new


def read(trips: Table) -> Counter[tuple[int, int]]:
    """How often Spark, which lists files by the metadata table, reads each id with which version."""
    frame = trips.spark.read.format("hudi").option("hoodie.metadata.enable", "true").load(str(trips.base))
    return Counter((row.id, row.ts) for row in frame.select("id", "ts").collect())


def refusal(trips: Table, plan: Plan) -> str:
    """Why lakefold did not do the plan; '' where it did."""
    try:
        trips.run(plan)
    except Transient as error:
        return str(error)
    return ""


def plan_of(trips: Table) -> Plan:
    """A compaction where there are logs, else a clustering."""
    compaction = trips.compaction()
    return compaction if compaction.groups else trips.plan()


def stamped(trips: Table, since: datetime, ahead: timedelta) -> None:
    """Assert that the newest instant and its completion have been formed since then in a zone this far ahead of UTC."""
    last = max(trips.timeline().completed, key=lambda instant: instant.completed_at or "")
    low, high = (f"{moment + ahead:%Y%m%d%H%M%S%f}"[:17] for moment in (since, datetime.now(UTC)))
    assert low <= last.time <= (last.completed_at or "") <= high


def refused_then_updated(trips: Elsewhere) -> str:
    """Lakefold tries a plan and the writers update twice; whatever lakefold did, readers see their rows."""
    before = read(trips)
    why = refusal(trips, plan_of(trips))
    assert read(trips) == before, "no row is lost or doubled by lakefold"
    for version in (5, 6):
        trips.update(0, 20, version)
        updated = Counter({(id_, version if id_ < 20 else ts): n for (id_, ts), n in before.items()})
        assert read(trips) == updated, "a later update is visible"
    assert {instant.action for instant in trips.timeline().completed} <= {"commit", "deltacommit"}
    return why


ZONES = pytest.mark.parametrize(
    ("merge_on_read", "ahead", "name", "shown"),
    [
        pytest.param(False, TOKYO, "Asia/Tokyo", "UTC+09:00", id="writers_ahead"),
        pytest.param(True, -TOKYO, "Etc/GMT+9", "UTC-09:00", id="writers_behind"),
    ],
)


@ZONES
def test_local_times_of_writers_in_another_zone_are_refused_and_in_theirs_all_rows_stay(
    elsewhere: Callable[..., Elsewhere], zone: Zone, merge_on_read: bool, ahead: timedelta, name: str, shown: str
) -> None:
    trips = elsewhere(ahead, merge_on_read=merge_on_read)
    why = refused_then_updated(trips)
    assert f"the table's writers use {shown} for instants" in why, "both zones and the settings are named"
    assert "lakefold uses UTC+00:00, its zone for hoodie.table.timeline.timezone = LOCAL" in why
    assert "(TZ)" in why
    zone(name)
    before, since = read(trips), datetime.now(UTC)
    assert refusal(trips, plan_of(trips)) == ""
    stamped(trips, since, ahead)
    assert read(trips) == before
    trips.update(0, 20, 7)
    assert read(trips) == Counter({(id_, 7 if id_ < 20 else ts): n for (id_, ts), n in before.items()})


@pytest.mark.paired("merge_on_read")
@pytest.mark.parametrize("merge_on_read", [False, True], ids=["copy_on_write", "merge_on_read"])
@pytest.mark.parametrize(
    ("ahead", "why"),
    [
        pytest.param(MINUTE, "and lakefold's clock says", id="ahead"),
        pytest.param(-MINUTE, "is 60 s behind the storage's", id="behind"),
    ],
)
def test_writers_whose_clock_is_a_minute_off_lose_no_row_and_no_update(
    elsewhere: Callable[..., Elsewhere], merge_on_read: bool, ahead: timedelta, why: str
) -> None:
    found = refused_then_updated(elsewhere(ahead, merge_on_read=merge_on_read))
    assert why in found
    assert "hoodie.time.generator.max_expected_clock_skew_ms" in found


def test_writers_a_minute_behind_lose_no_update_if_one_of_their_files_was_created_late(
    elsewhere: Callable[..., Elsewhere],
) -> None:
    """As where a writer was stopped between the time that it formed and the file that it named after that time."""
    trips = elsewhere(-MINUTE)
    last = trips.timeline().completed[-1]
    file = Path(trips.base) / ".hoodie/timeline" / last.completed_file
    late = file.stat().st_mtime + 8
    os.utime(file, (late, late))
    assert "is 60 s behind the storage's" in refused_then_updated(trips)


@pytest.mark.paired("merge_on_read")
@pytest.mark.parametrize("merge_on_read", [False, True], ids=["copy_on_write", "merge_on_read"])
def test_writers_of_a_table_of_version_6_that_are_minutes_behind_lose_no_row_and_no_update(
    elsewhere: Callable[..., Elsewhere], merge_on_read: bool
) -> None:
    """Its timeline has the times of requests only, so that less than half a minute says nothing."""
    trips = elsewhere(-MINUTE, merge_on_read=merge_on_read, options=SIX)
    assert "is 60 s behind the storage's" in refused_then_updated(trips)


@pytest.fixture
def new_york(tmp_path: Path) -> Iterator[OtherWriter]:
    """A lakefold in a process of its own, in New York."""
    process = OtherWriter(tmp_path / "new-york.log", {"TZ": "America/New_York"})
    yield process
    process.end()


def in_utc(trips: Table) -> Table:
    """The same table with times in UTC, as it has them already where tests run in UTC."""
    edit_properties(Path(trips.base), UTC_TIMES)
    return trips


def test_a_lakefold_in_new_york_commits_in_the_utc_of_the_table(table: NewTable, new_york: OtherWriter) -> None:
    trips = in_utc(table("metadata"))
    trips.upsert(0, 20, 5, **LISTED)
    before, since = read(trips), datetime.now(UTC)
    new_york.run_plan(trips.base, "0198-plan", ["dt=2026-01-01", "dt=2026-01-02"], {})
    assert new_york.answer() == "done"
    stamped(trips, since, timedelta())
    assert read(trips) == before
    trips.upsert(0, 20, 6, **LISTED)
    assert read(trips) == Counter({(id_, 6 if id_ < 20 else ts): n for (id_, ts), n in before.items()})
    assert trips.timeline().properties["hoodie.table.timeline.timezone"] == "UTC"


@pytest.mark.parametrize("off", [MINUTE, -MINUTE], ids=["ahead", "behind"])
def test_a_lakefold_whose_clock_is_off_the_storages_refuses_and_names_both_clocks(
    table: NewTable, monkeypatch: pytest.MonkeyPatch, off: timedelta
) -> None:
    trips = in_utc(table("mor"))
    now, files = TimeZones.now, trips.data_files()
    monkeypatch.setattr(TimeZones, "now", lambda zones: now(zones) + off)
    why = refusal(trips, trips.compaction())
    assert "the clock of lakefold's JVM says" in why
    assert "the storage's" in why
    assert "200 ms (hoodie.time.generator.max_expected_clock_skew_ms) is allowed" in why
    assert trips.data_files() == files
    assert trips.timeline().pending == ()


def set_back_at(moment: datetime) -> str:
    """A zone (TZ) one hour ahead of UTC until ``moment``, when its clocks are set back by an hour."""
    end, start = moment + timedelta(hours=1), moment - timedelta(days=100)
    day, first = (at.timetuple().tm_yday - 1 for at in (end, start))
    return f"AAA0BBB-1,{first}/0,{day}/{end:%H:%M:%S}"


def test_lakefold_does_nothing_in_an_hour_that_the_clock_repeats(
    elsewhere: Callable[..., Elsewhere], hudi: _Hudi, zone: Zone
) -> None:
    """Half an hour before clocks are set back; the writers' times are of half an hour ago and of half an hour later."""
    trips = elsewhere(timedelta(minutes=25))
    before = read(trips)
    zone(set_back_at(datetime.now(UTC) + timedelta(minutes=30)))
    hudi.set_local(timedelta(hours=1))
    why = refusal(trips, trips.plan())
    trips.ahead = timedelta(minutes=31)
    trips.update(0, 20, 5)
    assert read(trips) == Counter({(id_, 5 if id_ < 20 else ts): n for (id_, ts), n in before.items()})
    assert "the clocks of lakefold's time zone go back by 60 minutes" in why
    assert "hoodie.table.timeline.timezone = LOCAL" in why


def test_lakefold_does_nothing_while_the_repeated_hour_is_earlier_than_the_tables_last_instant(
    elsewhere: Callable[..., Elsewhere], zone: Zone
) -> None:
    """Ten minutes after clocks were set back; the writers wrote eleven minutes before that."""
    trips = elsewhere(timedelta(minutes=49))
    before = read(trips)
    zone(set_back_at(datetime.now(UTC) - timedelta(minutes=10)))
    why = refusal(trips, trips.plan())
    assert read(trips) == before
    trips.update(0, 20, 5)
    assert read(trips) == Counter({(id_, 5 if id_ < 20 else ts): n for (id_, ts), n in before.items()})
    assert "and lakefold's clock says" in why


def test_tables_in_two_zones_that_one_jvm_changes_at_once_have_each_its_own(
    elsewhere: Callable[..., Elsewhere], table: NewTable, zone: Zone
) -> None:
    tokyo, utc = elsewhere(TOKYO), in_utc(table("metadata"))
    both = (tokyo, utc)
    before, since = [read(trips) for trips in both], datetime.now(UTC)
    zone("Asia/Tokyo")
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(lambda trips: refusal(trips, trips.plan()), both)) == ["", ""]
    stamped(tokyo, since, TOKYO)
    stamped(utc, since, timedelta())
    assert [read(trips) for trips in both] == before
    tokyo.update(0, 20, 5)
    utc.upsert(0, 20, 5, **LISTED)
    after = [Counter({(id_, 5 if id_ < 20 else ts): n for (id_, ts), n in rows.items()}) for rows in before]
    assert [read(trips) for trips in both] == after


def test_sections_in_two_zones_never_mix(spark: "SparkSession", hudi: _Hudi, zone: Zone) -> None:
    zone("Asia/Tokyo")
    zones, generator = time_zones_of(spark), hudi.generator

    def form(timezone: str) -> list[timedelta]:
        found = []
        for _ in range(20):
            with zones.using_zone("trips", timezone) as offset:
                formed = parse_instant_time(str(generator.getCurrentInstantTimeStr()))
                found.append(formed - offset - zones.now().replace(tzinfo=None))
        return found

    with ThreadPoolExecutor(4) as pool:
        apart = [one for found in pool.map(form, ["UTC", "LOCAL", "UTC", "LOCAL"]) for one in found]
    assert len(apart) == 80
    assert max(map(abs, apart)) < MINUTE


@pytest.mark.parametrize(
    ("options", "expected"),
    [(WITHOUT_OWN, 200), (WITHOUT_OWN | {MAX_SKEW: "350"}, 350), ({}, 1)],
    ids=["occ", "occ with a setting of its own", "single_writer"],
)
def test_the_client_that_writes_waits_for_the_skew_of_clocks_that_the_tables_writers_wait_for(
    table: NewTable, options: dict[str, str], expected: int
) -> None:
    trips = table("metadata", **options)
    with trips.writer() as writer:
        writer.prepare(trips.plan(), 1)
        client = writer._open()
        followed = trips.timeline().properties | {"hoodie.table.metadata.partitions": "files,column_stats"}
        found: list[int] = []
        for _ in range(2):
            configs = (client.write_config, client.write_client.getConfig())
            found += [config.getTimeGeneratorConfig().getMaxExpectedClockSkewMs() for config in configs]
            client.follow_table_changes(followed, has_metadata_table=True, doing="a test")
        assert writer.withdraw("0198-plan", None) == 1
    assert found == [expected] * 4, "also where the client was opened anew to follow the table's properties"

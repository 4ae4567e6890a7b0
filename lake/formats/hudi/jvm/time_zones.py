# SPDX-License-Identifier: Apache-2.0
"""The zone of the times of Hudi's instants and completions, set while a table is changed.

A table's ``hoodie.table.timeline.timezone`` is UTC or LOCAL, the default, which means the zone of the machines that
write the table. Hudi keeps the zone in a static variable of the JVM, and LOCAL is the JVM's default zone. lakefold
serves many tables in one JVM, and the JVM's default zone may be fixed for other reasons (ORC timestamps).

The zone is therefore set at the beginning of each section that changes a table. In this process, sections of tables
with different zones never run at the same time. LOCAL means the zone of lakefold's process (``TZ``), regardless of the
JVM's default zone.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from lake.errors import Rejected
from lake.formats.hudi.jvm.class_cache import cached_jvm
from lake.formats.hudi.timeline.clocks import format_instant_time, utc_offset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOWEST = "0"


class _OffsetGate:
    """Admits sections of one offset at a time, in order of arrival."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._offset = timedelta()
        self._active_sections = 0
        self._queue: deque[object] = deque()

    def enter_section(self, offset: timedelta) -> bool:
        """Wait until sections of other offsets have ended. Returns whether this section is the only one inside."""
        turn = object()
        with self._condition:
            self._queue.append(turn)
            while self._queue[0] is not turn or (self._active_sections and self._offset != offset):
                self._condition.wait()
            self._queue.popleft()
            self._active_sections, self._offset = self._active_sections + 1, offset
            self._condition.notify_all()
            return self._active_sections == 1

    def exit_section(self) -> None:
        with self._condition:
            self._active_sections -= 1
            self._condition.notify_all()


class TimeZones:
    """The zone of Hudi's instants in one JVM; for any number of threads."""

    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm
        self._gate = _OffsetGate()
        self._zone_lock = threading.Lock()
        self._time_generator: Any = jvm.org.apache.hudi.common.table.timeline.HoodieInstantTimeGenerator
        self._zone_enum: Any = jvm.org.apache.hudi.common.model.HoodieTimelineTimeZone

    @contextmanager
    def using_zone(self, table: str, timezone: str) -> Iterator[timedelta]:
        """Make Hudi use the zone of a table with this ``timezone`` for its times while the block runs.

        Yields the zone's offset to UTC. Raises Rejected if this JVM still uses another zone.
        """
        offset = utc_offset(timezone, self.now())
        self._gate.enter_section(offset)
        try:
            with self._zone_lock:
                self._set_zone(table, timezone, offset)
            yield offset
        finally:
            self._gate.exit_section()

    def now(self) -> datetime:
        """Return the time of the JVM's clock, from which Hudi takes its times."""
        milliseconds = int(self._jvm.java.lang.System.currentTimeMillis())
        return datetime.fromtimestamp(milliseconds // 1000, UTC) + timedelta(milliseconds=milliseconds % 1000)

    def _set_zone(self, table: str, timezone: str, offset: timedelta) -> None:
        now = self.now()
        # Other sections of the same zone may be inside: they must never see another zone in between.
        by_local = bool(offset) and self._local_offsets(now) == {offset}
        # If LOCAL does not have this offset, Hudi has no other zone for it. Its UTC zone then gets the offset until the
        # next section sets it.
        lent = timedelta() if by_local else offset
        zone_of_utc = self._jvm.java.time.ZoneOffset.ofTotalSeconds(int(lent.total_seconds()))
        self._accessible_field(self._zone_enum.UTC.getClass(), "zoneId").set(self._zone_enum.UTC, zone_of_utc)
        self._time_generator.setCommitTimeZone(self._zone_enum.LOCAL if by_local else self._zone_enum.UTC)
        self._reset_later_times(format_instant_time(now + offset))
        formed, expected = self._format_time(now), format_instant_time(now + offset)
        if formed != expected:
            raise Rejected(
                f"{table}: hoodie.table.timeline.timezone = {timezone} asks for the time {expected}, but Hudi in this "
                f"JVM forms {formed}; give the JVM the zone of lakefold's process (TZ, or -Duser.timezone in "
                "spark.driver.extraJavaOptions)"
            )

    def _local_offsets(self, now: datetime) -> set[timedelta]:
        """Return the offsets that LOCAL has in Hudi: the JVM's default zone now, and when Hudi's class was loaded."""
        instant = self._jvm.java.time.Instant.ofEpochMilli(round(now.timestamp() * 1000))
        zones = (self._jvm.java.time.ZoneId.systemDefault(), self._zone_enum.LOCAL.getZoneId())
        return {timedelta(seconds=int(zone.getRules().getOffset(instant).getTotalSeconds())) for zone in zones}

    def _format_time(self, now: datetime) -> str:
        date = self._jvm.java.util.Date(round(now.timestamp() * 1000))
        return str(self._time_generator.formatDateBasedOnTimeZone(date))

    def _reset_later_times(self, now: str) -> None:
        """Reset Hudi's last time if it is later than ``now``, because Hudi created it in another zone.

        Hudi waits until its next time is later than the last one; this takes hours if the last one was formed in a zone
        further east. ``plans.preconditions`` verifies that the table's own times are earlier than ``now``.
        """
        from py4j.java_gateway import get_java_class

        last = self._accessible_field(get_java_class(self._time_generator), "LAST_INSTANT_TIME").get(None)
        if str(last.get()) > now:
            last.set(_LOWEST)

    def _accessible_field(self, java_class: Any, name: str) -> Any:
        field = java_class.getDeclaredField(name)
        field.setAccessible(True)
        return field


_time_zones_by_gateway: "WeakKeyDictionary[Any, TimeZones]" = WeakKeyDictionary()
_cache_lock = threading.Lock()


def time_zones_of(spark: "SparkSession") -> TimeZones:
    """Return the zones of the JVM of ``spark``, shared by all its sessions."""
    gateway = spark.sparkContext._gateway
    with _cache_lock:
        if gateway not in _time_zones_by_gateway:
            _time_zones_by_gateway[gateway] = TimeZones(cached_jvm(spark))
        return _time_zones_by_gateway[gateway]

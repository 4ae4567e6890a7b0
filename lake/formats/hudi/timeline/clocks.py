# SPDX-License-Identifier: Apache-2.0
"""Times on a timeline: in which zone they are, and which of them is the latest.

Hudi orders everything by these times: the newest base file of a file group, the logs that belong to it, and the entries
of the metadata table. A commit whose time is earlier than another's is older than it, whenever it was made.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from lake.formats.hudi.timeline.timeline import Timeline
from lake.model import TableRef

MAX_SKEW = "hoodie.time.generator.max_expected_clock_skew_ms"
_MAX_SKEW_DEFAULT = 200
#: the first instants of a metadata table that was made from what was there are no times
_BOOTSTRAP_PREFIX = "0000"
_TIME_DIGITS = 17
#: how many of the last writes tell the clock of the writers, and how many it takes
_MAX_WRITES, _MIN_WRITES = 5, 2
#: how many of their times it takes where others lag behind these
_MIN_STAMPS = 3
#: by how much a file is written after the time in its name was formed, beyond the skew of clocks that Hudi waits out
MAX_WRITE_DELAY = timedelta(seconds=5)
#: requests of layout 1 are written this long after their times, by writers that first take back what others have left
_MAX_REQUEST_DELAY = timedelta(seconds=30)
#: writes are this far apart, and this many times as far as what storage says of them, or files were copied
_MIN_SPAN, _MIN_SPAN_RATIO = timedelta(milliseconds=500), 5
#: every zone in use is a multiple of this from UTC; no two are further apart than the other, so that more is no zone
_ZONE_STEP, _MAX_ZONE_DIFFERENCE = timedelta(minutes=15), timedelta(hours=26)
#: no zone sets its clocks back by more
_MAX_SET_BACK = timedelta(hours=2)


class TimelineTime(NamedTuple):
    """One time on a timeline, 17 digits, with what has it."""

    time: str
    description: str


def utc_offset(timezone: str, moment: datetime) -> timedelta:
    """By how much times of a timeline are ahead of UTC at ``moment``; LOCAL is the zone of this process."""
    return timedelta() if timezone.upper() == "UTC" else moment.astimezone().utcoffset() or timedelta()


def max_skew_milliseconds(table: TableRef) -> int:
    """By how much clocks of the table's writers may differ, as its writers have it."""
    return int(table.write_options.get(MAX_SKEW, _MAX_SKEW_DEFAULT))


def format_instant_time(moment: datetime) -> str:
    """A moment as the time of an instant, to the millisecond."""
    return f"{moment:%Y%m%d%H%M%S%f}"[:_TIME_DIGITS]


def parse_instant_time(time: str) -> datetime:
    """The time of an instant as a naive moment. Raises ValueError where it is none."""
    return datetime.strptime(pad_instant_time(time), "%Y%m%d%H%M%S%f")


def pad_instant_time(time: str) -> str:
    """A time with its milliseconds; where it has none, the last one of its second, as Hudi reads it."""
    return time[:_TIME_DIGITS] if len(time) > 14 else f"{time}999"


def newest_time(timelines: Iterable[Timeline]) -> TimelineTime:
    """The latest time of any instant and any completion; '' where there is none."""
    return max((mark for timeline in timelines for mark in _timeline_times(timeline)), default=TimelineTime("", ""))


def _timeline_times(timeline: Timeline) -> Iterator[TimelineTime]:
    where = " of the metadata table" if timeline.storage.location.endswith("/.hoodie/metadata") else ""
    for instant in timeline.instants:
        if not instant.time.startswith(_BOOTSTRAP_PREFIX):
            yield TimelineTime(pad_instant_time(instant.time), f"{instant.kind} {instant.time}{where}")
        if instant.completed_at:
            yield TimelineTime(
                pad_instant_time(instant.completed_at), f"the completion of {instant.kind} {instant.time}{where}"
            )


def writer_clock_offset(timeline: Timeline) -> tuple[timedelta, str] | None:
    """By how much times of the table's last writes are ahead of what we would have formed then, and the last write.

    Negative where they are behind. A time in the name of a file, compared with when storage got that file, tells the
    clock and the zone that formed it. A file may come late, as where its writer was stopped between the two, never
    early: so times that lag behind the others are left out. Files of a table that was copied or restored have times
    that say nothing: there those differences are as far apart as the writes. Returns None where there are too few
    writes, and where no two of the last ones agree.
    """
    last = sorted(_read_write_stamps(timeline), key=lambda write: write[-1].written_at)[-_MAX_WRITES:]
    if len(last) < _MIN_WRITES:
        return None
    stamps = [
        (one.claimed_at - one.written_at - utc_offset(timeline.timezone, one.written_at), one, number)
        for number, write in enumerate(last)
        for one in write
    ]
    stamps.sort(key=lambda stamp: stamp[0], reverse=True)
    agree = next((some for some in _without_lagging(stamps) if _is_consistent(some)), None)
    if agree is None or abs(agree[0][0]) > _MAX_ZONE_DIFFERENCE:
        return None
    if timeline.layout == 1 and agree[0][0] > -_MAX_REQUEST_DELAY and not zone_difference(agree[0][0]):
        return None
    return agree[0][0], max((one for _, one, _ in agree), key=lambda one: one.written_at).description


_ClockOffsets = list[tuple[timedelta, "_WriteStamp", int]]


def _without_lagging(stamps: _ClockOffsets) -> Iterator[_ClockOffsets]:
    """All of them, and then without the one that lags most, down to as many as no coincidence makes agree."""
    yield stamps
    for count in range(len(stamps) - 1, _MIN_STAMPS - 1, -1):
        yield stamps[:count]


def _is_consistent(stamps: _ClockOffsets) -> bool:
    """Whether they are of several writes and say the same, so that they were not copied."""
    apart = stamps[0][0] - stamps[-1][0]
    formed = [one.claimed_at for _, one, _ in stamps]
    span = max(formed) - min(formed)
    writes = {number for _, _, number in stamps}
    return len(writes) >= _MIN_WRITES and apart <= MAX_WRITE_DELAY and span >= max(_MIN_SPAN, apart * _MIN_SPAN_RATIO)


def zone_difference(ahead: timedelta) -> timedelta:
    """What of ``ahead`` is a difference of zones: its quarters of an hour, or nothing where it is no whole number."""
    quarters = round(ahead / _ZONE_STEP) * _ZONE_STEP
    return quarters if abs(ahead - quarters) <= MAX_WRITE_DELAY else timedelta()


def upcoming_clock_set_back(timezone: str, moment: datetime) -> timedelta:
    """By how much clocks are set back soon, if a time that is formed at ``moment`` is formed once more then; else 0."""
    offset = utc_offset(timezone, moment)
    for quarters in range(1, _MAX_SET_BACK // _ZONE_STEP + 1):
        back = offset - utc_offset(timezone, moment + quarters * _ZONE_STEP)
        if quarters * _ZONE_STEP <= back:
            return back
    return timedelta()


class _WriteStamp(NamedTuple):
    """A time that a writer formed, as if in UTC, what has it, and when storage got the file with that name."""

    claimed_at: datetime
    description: str
    written_at: datetime


def _read_write_stamps(timeline: Timeline) -> Iterator[list[_WriteStamp]]:
    """The stamps of each write of a writer: that of the request, and that of the completion where it has one."""
    for instant in timeline.instants:
        if instant.kind not in ("commit", "deltacommit") or instant.time.startswith(_BOOTSTRAP_PREFIX):
            continue
        # Layout 1 has no time of the completion but that of the file itself.
        completed_at = None if timeline.layout == 1 else instant.completed_at
        named = ((instant.time, instant.requested_file), (completed_at, instant.completed_file))
        found = [
            _WriteStamp(formed.replace(tzinfo=UTC), f"{instant.kind} {instant.time}", written_at)
            for time, name in named
            if (written_at := timeline.modified_at(name)) is not None and (formed := _parse_or_none(time)) is not None
        ]
        if found:
            yield found


def _parse_or_none(time: str | None) -> datetime | None:
    """``moment_of``; None where the name of a file is no time."""
    with suppress(ValueError):
        return None if time is None else parse_instant_time(time)
    return None

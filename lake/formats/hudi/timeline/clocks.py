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
_NO_TIME = "0000"
_LENGTH = 17
#: how many of the last writes tell the clock of the writers, and how many it takes
_WRITES, _LEAST_WRITES = 5, 2
#: how many of their times it takes where others lag behind these
_LEAST_STAMPS = 3
#: by how much a file is written after the time in its name was formed, beyond the skew of clocks that Hudi waits out
WRITTEN_WITHIN = timedelta(seconds=5)
#: writes are this far apart, and this many times as far as what storage says of them, or files were copied
_LEAST_SPAN, _TIMES_APART = timedelta(milliseconds=500), 5
#: every zone in use is a multiple of this from UTC; no two are further apart than the other, so that more is no zone
_QUARTER, _FURTHEST = timedelta(minutes=15), timedelta(hours=26)
#: no zone sets its clocks back by more
_MOST_SET_BACK = timedelta(hours=2)


class Mark(NamedTuple):
    """One time on a timeline, 17 digits, with what has it."""

    time: str
    what: str


def offset_at(timezone: str, moment: datetime) -> timedelta:
    """By how much times of a timeline are ahead of UTC at ``moment``; LOCAL is the zone of this process."""
    return timedelta() if timezone.upper() == "UTC" else moment.astimezone().utcoffset() or timedelta()


def max_skew_milliseconds(table: TableRef) -> int:
    """By how much clocks of the table's writers may differ, as its writers have it."""
    return int(table.write_options.get(MAX_SKEW, _MAX_SKEW_DEFAULT))


def stamp(moment: datetime) -> str:
    """A moment as the time of an instant, to the millisecond."""
    return f"{moment:%Y%m%d%H%M%S%f}"[:_LENGTH]


def moment_of(time: str) -> datetime:
    """The time of an instant as a naive moment. Raises ValueError where it is none."""
    return datetime.strptime(padded(time), "%Y%m%d%H%M%S%f")


def padded(time: str) -> str:
    """A time with its milliseconds; where it has none, the last one of its second, as Hudi reads it."""
    return time[:_LENGTH] if len(time) > 14 else f"{time}999"


def newest(timelines: Iterable[Timeline]) -> Mark:
    """The latest time of any instant and any completion; '' where there is none."""
    return max((mark for timeline in timelines for mark in _marks(timeline)), default=Mark("", ""))


def _marks(timeline: Timeline) -> Iterator[Mark]:
    where = " of the metadata table" if timeline.storage.location.endswith("/.hoodie/metadata") else ""
    for instant in timeline.instants:
        if not instant.time.startswith(_NO_TIME):
            yield Mark(padded(instant.time), f"{instant.kind} {instant.time}{where}")
        if instant.completed_at:
            yield Mark(padded(instant.completed_at), f"the completion of {instant.kind} {instant.time}{where}")


def writers_ahead(timeline: Timeline) -> tuple[timedelta, str] | None:
    """By how much times of the table's last writes are ahead of what we would have formed then, and the last write.

    Negative where they are behind. A time in the name of a file, compared with when storage got that file, tells the
    clock and the zone that formed it. A file may come late, as where its writer was stopped between the two, never
    early: so times that lag behind the others are left out. Files of a table that was copied or restored have times
    that say nothing: there those differences are as far apart as the writes. Returns None where there are too few
    writes, and where no two of the last ones agree.
    """
    last = sorted(_writes(timeline), key=lambda write: write[-1].written_at)[-_WRITES:]
    if len(last) < _LEAST_WRITES:
        return None
    stamps = [
        (one.formed - one.written_at - offset_at(timeline.timezone, one.written_at), one, number)
        for number, write in enumerate(last)
        for one in write
    ]
    stamps.sort(key=lambda stamp: stamp[0], reverse=True)
    agree = next((some for some in _without_the_late(stamps) if _agree(some)), None)
    if agree is None or abs(agree[0][0]) > _FURTHEST:
        return None
    if timeline.layout == 1 and not zones_apart(agree[0][0]):
        return None
    return agree[0][0], max((one for _, one, _ in agree), key=lambda one: one.written_at).what


_Stamps = list[tuple[timedelta, "_Stamp", int]]


def _without_the_late(stamps: _Stamps) -> Iterator[_Stamps]:
    """All of them, and then without the one that lags most, down to as many as no coincidence makes agree."""
    yield stamps
    for count in range(len(stamps) - 1, _LEAST_STAMPS - 1, -1):
        yield stamps[:count]


def _agree(stamps: _Stamps) -> bool:
    """Whether they are of several writes and say the same, so that they were not copied."""
    apart = stamps[0][0] - stamps[-1][0]
    formed = [one.formed for _, one, _ in stamps]
    span = max(formed) - min(formed)
    writes = {number for _, _, number in stamps}
    return len(writes) >= _LEAST_WRITES and apart <= WRITTEN_WITHIN and span >= max(_LEAST_SPAN, apart * _TIMES_APART)


def zones_apart(ahead: timedelta) -> timedelta:
    """What of ``ahead`` is a difference of zones: its quarters of an hour, or nothing where it is no whole number."""
    quarters = round(ahead / _QUARTER) * _QUARTER
    return quarters if abs(ahead - quarters) <= WRITTEN_WITHIN else timedelta()


def comes_again(timezone: str, moment: datetime) -> timedelta:
    """By how much clocks are set back soon, if a time that is formed at ``moment`` is formed once more then; else 0."""
    offset = offset_at(timezone, moment)
    for quarters in range(1, _MOST_SET_BACK // _QUARTER + 1):
        back = offset - offset_at(timezone, moment + quarters * _QUARTER)
        if quarters * _QUARTER <= back:
            return back
    return timedelta()


class _Stamp(NamedTuple):
    """A time that a writer formed, as if in UTC, what has it, and when storage got the file with that name."""

    formed: datetime
    what: str
    written_at: datetime


def _writes(timeline: Timeline) -> Iterator[list[_Stamp]]:
    """The stamps of each write of a writer: that of the request, and that of the completion where it has one."""
    for instant in timeline.instants:
        if instant.kind not in ("commit", "deltacommit") or instant.time.startswith(_NO_TIME):
            continue
        # Layout 1 has no time of the completion but that of the file itself.
        completed_at = None if timeline.layout == 1 else instant.completed_at
        named = ((instant.time, instant.requested_file), (completed_at, instant.completed_file))
        found = [
            _Stamp(formed.replace(tzinfo=UTC), f"{instant.kind} {instant.time}", written_at)
            for time, name in named
            if (written_at := timeline.changed_at(name)) is not None and (formed := _formed(time)) is not None
        ]
        if found:
            yield found


def _formed(time: str | None) -> datetime | None:
    """``moment_of``; None where the name of a file is no time."""
    with suppress(ValueError):
        return None if time is None else moment_of(time)
    return None

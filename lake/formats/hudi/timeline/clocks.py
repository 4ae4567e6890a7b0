# SPDX-License-Identifier: Apache-2.0
"""The times on a timeline: their time zone, the latest of them, and the clocks of the writers.

Hudi orders everything by these times: the newest base file of a file group, the logs that belong to a base file, and
the entries of the metadata table. The commit with the earlier time counts as older, whenever it was really made.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import NamedTuple

from lake.formats.hudi.timeline.timeline import Instant, Timeline
from lake.model import TableRef

MAX_SKEW = "hoodie.time.generator.max_expected_clock_skew_ms"
_MAX_SKEW_DEFAULT = 200
#: the names of the first instants of a metadata table, which was initialized from existing files, are not times
_BOOTSTRAP_PREFIX = "0000"
_TIME_DIGITS = 17
#: the kinds of instants by which writers commit
_WRITE_KINDS = frozenset({"commit", "deltacommit", "replacecommit"})
#: other actions of writers; some may be lakefold's own, so they count only if too few writes show a clock
_SERVICE_KINDS = frozenset({"clean", "rollback", "restore"})
#: the largest number of last actions, and the smallest number of writes, from which the writers' clock is estimated
_MAX_ACTIONS, _MIN_WRITES = 5, 2
#: the number of timestamps that have to agree, also if lagging timestamps are left out
_MIN_AGREEING, _MIN_STAMPS = 2, 3
#: the longest delay between taking the time in a file's name and writing the file, beyond the skew that Hudi waits out
MAX_WRITE_DELAY = timedelta(seconds=5)
#: the longest delay for requests of layout 1, whose writers first roll back failed writes of other processes
_MAX_REQUEST_DELAY = timedelta(seconds=30)
#: minimum span of the writes' times, and its minimum ratio to the spread of the offsets; below them files may be copies
_MIN_SPAN, _MIN_SPAN_RATIO = timedelta(milliseconds=500), 5
#: the offset of every zone from UTC is a multiple of the first; no two zones are further apart than the second
_ZONE_STEP, _MAX_ZONE_DIFFERENCE = timedelta(minutes=15), timedelta(hours=26)
#: the largest step by which a zone sets its clocks back
_MAX_SET_BACK = timedelta(hours=2)


class TimelineTime(NamedTuple):
    """One time on a timeline, 17 digits, and the description of the instant or completion that has it."""

    time: str
    description: str


def utc_offset(timezone: str, moment: datetime) -> timedelta:
    """Return how far a timeline's times are ahead of UTC at ``moment``; LOCAL is the zone of this process."""
    return timedelta() if timezone.upper() == "UTC" else moment.astimezone().utcoffset() or timedelta()


def max_skew_milliseconds(table: TableRef) -> int:
    """Return the largest allowed difference between the clocks of the table's writers, from their settings."""
    return int(table.write_options.get(MAX_SKEW, _MAX_SKEW_DEFAULT))


def format_instant_time(moment: datetime) -> str:
    """Return a moment as the time of an instant, to the millisecond."""
    return f"{moment:%Y%m%d%H%M%S%f}"[:_TIME_DIGITS]


def parse_instant_time(time: str) -> datetime:
    """Return the time of an instant as a naive datetime. Raises ValueError if it isn't a time."""
    return datetime.strptime(pad_instant_time(time), "%Y%m%d%H%M%S%f")


def pad_instant_time(time: str) -> str:
    """Return a time with milliseconds: 999 if it has none, as Hudi reads it."""
    return time[:_TIME_DIGITS] if len(time) > 14 else f"{time}999"


def newest_time(timelines: Iterable[Timeline]) -> TimelineTime:
    """Return the latest time of any instant and any completion; its ``time`` is '' if there are no times."""
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
    """Return how far the writers' clock is ahead of this process's time, and the last write as evidence.

    The offset is negative if the writers' clock is behind. It is the difference between the time in a file's name and
    the file's modification time, which shows the clock and the zone that formed the name. A file may be written late
    (its writer was stopped in between) but never early, so lagging times are left out. The modification times of a
    copied or restored table are meaningless: the differences are then as far apart as the writes.

    If the last writes show no offset, as after a restore that removed most of them, the last cleans, rollbacks and
    restores count, too. Begin and end of one action then suffice to show another zone. A wrong clock is shown only if a
    write and another action agree: the other actions alone may be lakefold's own.

    Returns None if there are too few times, or if they don't agree.
    """
    found = _agreed_offset(timeline, _WRITE_KINDS, _MIN_WRITES)
    if found is None:
        found = _agreed_offset(timeline, _WRITE_KINDS | _SERVICE_KINDS, 1)
        if found is None or not (zone_difference(found.offset) or (found.actions > 1 and found.has_write)):
            return None
    return found.offset, found.last


_ClockOffsets = list[tuple[timedelta, "_WriteStamp", int]]


class _Agreement(NamedTuple):
    """The offset on which ``actions`` actions agree, the last of them, and whether a write is among them."""

    offset: timedelta
    last: str
    actions: int
    has_write: bool


def _agreed_offset(timeline: Timeline, kinds: Collection[str], min_actions: int) -> _Agreement | None:
    """Return the offset of the last actions of these kinds.

    Returns None if the stamps of at least ``min_actions`` actions don't agree.
    """
    stamps = [
        (one.claimed_at - one.written_at - utc_offset(timeline.timezone, one.written_at), one, number)
        for number, action in enumerate(islice(_read_stamps(timeline, kinds), _MAX_ACTIONS))
        for one in action
    ]
    stamps.sort(key=lambda stamp: stamp[0], reverse=True)
    agree = next((some for some in _without_lagging(stamps) if _is_consistent(some, min_actions)), None)
    if agree is None or abs(agree[0][0]) > _MAX_ZONE_DIFFERENCE:
        return None
    if timeline.layout == 1 and agree[0][0] > -_MAX_REQUEST_DELAY and not zone_difference(agree[0][0]):
        return None
    return _Agreement(
        offset=agree[0][0],
        last=max((one for _, one, _ in agree), key=lambda one: one.written_at).description,
        actions=len({number for _, _, number in agree}),
        has_write=any(one.is_write for _, one, _ in agree),
    )


def _without_lagging(stamps: _ClockOffsets) -> Iterator[_ClockOffsets]:
    """Yield all stamps, then all except the stamp that lags most, and so on, down to ``_MIN_STAMPS`` stamps.

    If fewer stamps agree, this may be chance.
    """
    yield stamps
    for count in range(len(stamps) - 1, _MIN_STAMPS - 1, -1):
        yield stamps[:count]


def _is_consistent(stamps: _ClockOffsets, min_actions: int) -> bool:
    """True if the stamps come from at least ``min_actions`` actions and agree: then their files were not copied."""
    if len(stamps) < _MIN_AGREEING:
        return False
    spread = stamps[0][0] - stamps[-1][0]
    formed = [one.claimed_at for _, one, _ in stamps]
    span = max(formed) - min(formed)
    actions = {number for _, _, number in stamps}
    return (
        len(actions) >= min_actions and spread <= MAX_WRITE_DELAY and span >= max(_MIN_SPAN, spread * _MIN_SPAN_RATIO)
    )


def zone_difference(ahead: timedelta) -> timedelta:
    """Return the difference of zones in ``ahead``, a multiple of a quarter of an hour; 0 if no multiple is near."""
    quarters = round(ahead / _ZONE_STEP) * _ZONE_STEP
    return quarters if abs(ahead - quarters) <= MAX_WRITE_DELAY else timedelta()


def upcoming_clock_set_back(timezone: str, moment: datetime) -> timedelta:
    """Return how far clocks are set back soon after ``moment`` if its local time recurs; else 0."""
    offset = utc_offset(timezone, moment)
    for quarters in range(1, _MAX_SET_BACK // _ZONE_STEP + 1):
        back = offset - utc_offset(timezone, moment + quarters * _ZONE_STEP)
        if quarters * _ZONE_STEP <= back:
            return back
    return timedelta()


class _WriteStamp(NamedTuple):
    """A time that a writer formed (read as UTC), the instant that has it, and when its file was written."""

    claimed_at: datetime
    description: str
    written_at: datetime
    is_write: bool


def _read_stamps(timeline: Timeline, kinds: Collection[str]) -> Iterator[list[_WriteStamp]]:
    """Yield the stamps of each action of these kinds, newest first: of its request, and of its completion if known."""
    writes = []
    for instant in timeline.instants:
        if instant.kind not in kinds or instant.time.startswith(_BOOTSTRAP_PREFIX):
            continue
        # In layout 1 the modification time of the file is the only completion time.
        completed_at = None if timeline.layout == 1 else instant.completed_at
        named = ((instant.time, instant.requested_file), (completed_at, instant.completed_file))
        found = [
            _WriteStamp(
                claimed_at=formed.replace(tzinfo=UTC),
                description=f"{instant.kind} {instant.time}",
                written_at=written_at,
                is_write=instant.kind in _WRITE_KINDS,
            )
            for time, name in named
            if (written_at := timeline.modified_at(name)) is not None and (formed := _parse_or_none(time)) is not None
        ]
        if found:
            writes.append((found[-1].written_at, instant, found))
    for _, instant, stamps in sorted(writes, key=lambda write: write[0], reverse=True):
        if not _has_clustering_plan(timeline, instant):
            yield stamps


def _has_clustering_plan(timeline: Timeline, instant: Instant) -> bool:
    """Return whether a replace commit is a clustering, which may be lakefold's own; INSERT OVERWRITE has no plan."""
    return instant.kind == "replacecommit" and bool((timeline.plan(instant) or {}).get("clusteringPlan"))


def _parse_or_none(time: str | None) -> datetime | None:
    """Return ``parse_instant_time(time)``; None if it isn't a time."""
    with suppress(ValueError):
        return None if time is None else parse_instant_time(time)
    return None

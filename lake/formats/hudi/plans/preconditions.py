# SPDX-License-Identifier: Apache-2.0
"""The last check of a table before an irrevocable change, under its lock, with the table's current state.

Publication, commit, clean, withdrawal and the table's services call ``check_preconditions`` right before they act:

- ``HudiClient.locked`` has taken the lock and has set the zone of Hudi's times (``jvm.time_zones``).
- ``check_preconditions`` adopts new properties of the table and a new or dropped metadata table. It refuses the act if
  a pending action of another process excludes it, if the metadata table is damaged, if a restore missed a rewrite, or
  if a clock is wrong: the new instant would then be older than existing instants, or newer than the writers' next ones.
- ``check`` verifies the caller's own conditions, ``prepare`` makes the caller's preparations, and ``fence`` checks that
  the plan still belongs to its executor. If the timeline changed while they ran, all of them run again.
- Last, the lock is verified: it has been held without a gap since it was taken, so no other commit happened in between.

A time can be wrong in two ways. If it is earlier than a time on the timeline, or on the metadata table's timeline, the
commit counts as older than that instant. Readers that list files by the metadata table then miss the commit's files. If
the time is later than the times of the writers' next commits, the commit hides their updates of a compacted file group.
"""

import time
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from lake.errors import TableRefused, Transient
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.files.names import parse_file_name, relative_path
from lake.formats.hudi.pending.actions import plan_kind
from lake.formats.hudi.pending.rollbacks import (
    describe_obsolete_rollback,
    find_obsolete_rollback,
    find_orphaned_rollbacks,
    find_running_rollback,
    rollback_target,
)
from lake.formats.hudi.read.refusals import rewrite_refusals
from lake.formats.hudi.read.undone_commits import describe_undone_rewrites
from lake.formats.hudi.read.unsafe_commits import describe_unrestored_rewrites
from lake.formats.hudi.timeline import metadata_table
from lake.formats.hudi.timeline.clocks import (
    MAX_SKEW,
    MAX_WRITE_DELAY,
    TimelineTime,
    format_instant_time,
    max_skew_milliseconds,
    newest_time,
    parse_instant_time,
    upcoming_clock_set_back,
    utc_offset,
    writer_clock_offset,
    zone_difference,
)
from lake.formats.hudi.timeline.timeline import COMMIT_ACTIONS, Instant, Timeline

PUBLISHING = "publishing a plan"
_ATTEMPTS = 5
_BASE_FILE_SUFFIX = ".parquet"
#: the smallest assumed difference between two clocks: a file system's clock advances in steps, and a file's time and
#: lakefold's are not taken at the same moment
_MIN_SKEW = timedelta(milliseconds=100)
_CLOCK_PROBE_FILE = ".hoodie/.lakefold/clock"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnInstant:
    """The caller's own instant.

    ``is_pending`` is True if the instant is on the timeline and the caller is about to complete it. Otherwise its time
    was chosen, and the caller is about to create it. ``inputs`` are the data files whose rows the act copies.
    """

    time: str
    is_pending: bool = False
    inputs: Collection[str] = ()


def check_preconditions(
    client: HudiClient,
    doing: str,
    *,
    own: OwnInstant | None = None,
    check: Callable[[Timeline], None] = lambda timeline: None,
    prepare: Callable[[], None] = lambda: None,
    fence: Callable[[], None] = lambda: None,
    is_withdrawal: bool = False,
) -> Timeline:
    """Return the timeline on which ``doing`` may happen now; call it inside ``client.locked`` and act right after it.

    ``own`` is the caller's instant, if the act has one. ``check`` gets the timeline and raises if the caller must not
    act on it. ``prepare`` makes all preparations, so that only the act itself remains. ``is_withdrawal`` is True if
    only uncommitted work is deleted, which is allowed beside a pending savepoint and on a damaged metadata table.

    Raises Transient for conditions that pass or are repaired outside of lakefold. Raises TableRefused if the metadata
    table is damaged or a restore missed a rewrite, or if the table's columns or indexes exclude a rewrite. The errors
    of ``check``, ``prepare`` and ``fence`` pass through.
    """
    for _ in range(_ATTEMPTS):
        observed = _observe_timelines(client)
        client.follow_table_changes(
            observed.timeline.properties, has_metadata_table=observed.metadata_timeline is not None, doing=doing
        )
        try:
            _refuse_excluding_actions(
                client,
                observed.timeline,
                doing,
                is_withdrawal=is_withdrawal,
                completed_instant=own.time if own is not None and own.is_pending else None,
                inputs=own.inputs if own is not None else (),
            )
        except FileNotFoundError:  # a pending action ended after the timeline was listed
            continue
        if not is_withdrawal:
            _refuse_faults(client, observed.timeline)
        if own is not None and own.inputs:
            _refuse_rewrites(client, observed.timeline)
        _refuse_clock(client, observed, doing, own.time if own is not None and not own.is_pending else None)
        check(observed.timeline)
        prepare()
        fence()
        if _observe_timelines(client).fingerprint == observed.fingerprint:
            client.assert_lock_held(doing)
            return observed.timeline
    raise Transient(f"{client.table.name}: the table's timeline changed {_ATTEMPTS} times while {doing}")


def unchanged_timeline_check(client: HudiClient, expected: Timeline, doing: str) -> Callable[[Timeline], None]:
    """Return a check for ``check_preconditions``: no instant completed and no plan was scheduled since ``expected``.

    The check raises Transient otherwise. ``expected`` is the timeline as the caller listed it.
    """

    def check(timeline: Timeline) -> None:
        completed = set(timeline.completed) - set(expected.completed)
        if completed:
            instant = min(completed, key=lambda entry: entry.time)
            raise Transient(f"{client.table.name}: {instant.kind} {instant.time} completed while {doing}")
        known = {(entry.time, entry.action) for entry in expected.pending}
        for instant, _ in timeline.pending_plans():
            if (instant.time, instant.action) not in known:
                raise Transient(f"{client.table.name}: {instant.kind} {instant.time} was scheduled while {doing}")

    return check


def unchanged_instant_check(client: HudiClient, expected: Instant, doing: str) -> Callable[[Timeline], None]:
    """Return a check for ``check_preconditions``: the pending instant ``expected`` is unchanged.

    The check raises Transient otherwise, or if another process is executing a rollback of the instant.
    """

    def check(timeline: Timeline) -> None:
        now = timeline.find(expected.time, action=expected.action)
        if now == expected:
            refuse_running_rollback(client, timeline, expected.time, doing)
            return
        became = "withdrawn" if now is None else "completed" if not now.pending else f"set to {now.state}"
        raise Transient(
            f"{client.table.name}: {expected.kind} {expected.time} was {became} by another process while {doing}"
        )

    return check


def refuse_running_rollback(client: HudiClient, timeline: Timeline, target: str, doing: str) -> None:
    """Raise Transient if a live process executes a rollback of ``target``; see ``find_running_rollback``."""
    rollback = find_running_rollback(client.table, client.storage, timeline, target)
    if rollback is not None:
        raise Transient(
            f"{client.table.name}: another process is executing rollback {rollback.time} of {target} (its heartbeat "
            f"is recent); {doing} waits until the rollback has ended"
        )


class _ObservedTimelines(NamedTuple):
    timeline: Timeline
    metadata_timeline: Timeline | None

    @property
    def timelines(self) -> Collection[Timeline]:
        return (self.timeline,) if self.metadata_timeline is None else (self.timeline, self.metadata_timeline)

    @property
    def fingerprint(self) -> Hashable:
        """A value that identifies everything that was observed."""
        properties = tuple(sorted(self.timeline.properties.items()))
        return properties, *(timeline.instants for timeline in self.timelines)


def _observe_timelines(client: HudiClient) -> _ObservedTimelines:
    return _ObservedTimelines(client.read_timeline(), metadata_table.read_metadata_timeline(client.storage))


def _refuse_excluding_actions(
    client: HudiClient,
    timeline: Timeline,
    doing: str,
    *,
    is_withdrawal: bool,
    completed_instant: str | None,
    inputs: Collection[str],
) -> None:
    """Raise Transient if an action that excludes the caller's is pending."""
    for instant in timeline.pending:
        why = _exclusion_reason(
            timeline, instant, is_withdrawal=is_withdrawal, completed_instant=completed_instant, inputs=inputs
        )
        if why is not None:
            raise Transient(
                f"{client.table.name}: {doing} waits for the pending {instant.kind} {instant.time}, {why}. If its "
                f"process died, {_how_to_finish(client.table.name, timeline, instant)}"
            )


def _exclusion_reason(
    timeline: Timeline, instant: Instant, *, is_withdrawal: bool, completed_instant: str | None, inputs: Collection[str]
) -> str | None:
    """Return why lakefold may not act while ``instant`` is pending; None if it may."""
    if instant.kind == "restore":
        return "which restores the table to an earlier state"
    if instant.kind == "savepoint" and not is_withdrawal:
        return "which is about to name the files to keep"
    if instant.action in COMMIT_ACTIONS and instant.time != completed_instant:
        # A log of layout 1 is named after its base file, or after a pending compaction.
        bases = (path for path in inputs if timeline.layout != 1 or path.endswith(_BASE_FILE_SUFFIX))
        if path := next((path for path in sorted(bases) if _is_written_by(path, instant.time)), None):
            return f"which has written {path}, has not committed it, and may be rolled back"
    if instant.kind == "rollback":
        plan = timeline.plan(instant)
        if plan is None:
            return None if is_withdrawal else "which does not name its target yet"
        target = rollback_target(plan)
        if target == completed_instant:
            return f"which rolls back {target}, the instant of this plan, and deletes its files"
        found = timeline.find(target)
        if found is not None and not found.pending:
            return f"which rolls back the completed {found.kind} {found.time}"
        # Hudi removes a completed instant from the timeline before it deletes the files, without the table's lock.
        if path := find_rolled_back(plan, target, inputs):
            return f"which rolls back {target} and with it rows of {path}"
    return None


def find_rolled_back(plan: Mapping[str, Any], target: str, paths: Collection[str]) -> str | None:
    """Return the first of ``paths`` that a rollback with this plan deletes, or one whose log block it undoes."""
    named = {
        relative_path(request.get("partitionPath") or "", str(path).rsplit("/", 1)[-1])
        for request in plan.get("RollbackRequests") or ()
        for path in (*(request.get("filesToBeDeleted") or ()), *(request.get("logBlocksToBeDeleted") or ()))
    }
    return next((path for path in sorted(paths) if path in named or _is_written_by(path, target)), None)


def _is_written_by(path: str, instant: str) -> bool:
    """True if ``instant`` wrote a data file, by the file's name."""
    file = parse_file_name(path)
    return file is not None and file.instant == instant


def _how_to_finish(name: str, timeline: Timeline, instant: Instant) -> str:
    """Describe, for a message, how to end a pending action on the table ``name`` whose process died."""
    if instant.kind == "restore":
        return "restore to the same savepoint again"
    if instant.kind == "rollback":
        return _how_to_finish_rollback(name, timeline, instant)
    if instant.action in COMMIT_ACTIONS:
        return f"the next write of the table's writer, or lakefold tables rollback {name} {instant.time}, rolls it back"
    file = instant.inflight_file or instant.requested_file
    return f"delete {timeline.storage.display_path(f'{timeline.directory}/{file}')}"


def _how_to_finish_rollback(name: str, timeline: Timeline, rollback: Instant) -> str:
    """Describe, for a message, how to end a pending rollback.

    Hudi's writes finish pending rollbacks, except those of clusterings and compactions.
    """
    if any(left.instant == rollback for left in find_orphaned_rollbacks(timeline)):
        return f"lakefold tables rollback {name} {rollback.time} finishes it"
    if (obsolete := find_obsolete_rollback(timeline, rollback)) is not None:
        return describe_obsolete_rollback(timeline, obsolete)
    target = timeline.find(rollback_target(timeline.plan(rollback)))
    if target is None or plan_kind(target, timeline.plan(target)) is None:
        return "the next write of the table's writer finishes it"
    if target.pending:
        return (
            f"the next execution of {target.kind} {target.time} finishes it, and so does lakefold tables rollback "
            f"{name} {target.time}"
        )
    return (
        f"roll {target.kind} {target.time} back with the table's own writer (CALL rollback_to_instant(table => …, "
        f"instant_time => '{target.time}'))"
    )


def _refuse_faults(client: HudiClient, timeline: Timeline) -> None:
    faults = (
        *describe_undone_rewrites(client.storage, timeline),
        *metadata_table.find_faults(client.storage, timeline),
        *describe_unrestored_rewrites(timeline),
    )
    for fault in faults:
        raise TableRefused(f"{client.table.name}: {fault}")


def _refuse_rewrites(client: HudiClient, timeline: Timeline) -> None:
    """Raise TableRefused if a column was renamed, or an index was built that no rewrite is verified to keep.

    Readers look the columns of a file up in the schema that was in force at the file's instant. New files would have
    the values of a renamed column under its former name.
    """
    for refusal in rewrite_refusals(client.storage, timeline.properties):
        raise TableRefused(f"{client.table.name}: {refusal}")


def _refuse_clock(client: HudiClient, observed: _ObservedTimelines, doing: str, instant: str | None) -> None:
    """Raise Transient if lakefold's instant would not be the newest on the table, or if the clock is wrong."""
    skew = max(timedelta(milliseconds=max_skew_milliseconds(client.table)), _MIN_SKEW)
    latest = newest_time(observed.timelines)
    if instant is not None and latest.time >= instant:
        raise Transient(
            f"{client.table.name}: {doing} waits: {latest.description} has the time {latest.time}, later than "
            f"{instant}, the time that was chosen for the new instant"
        )
    _refuse_storage_clock(client, doing, skew)
    _refuse_repeated_hour(client, observed.timeline, doing)
    _refuse_writers_clock(client, observed.timeline, doing, skew)
    while (now := _current_time(client, observed.timeline)) <= latest.time:
        lag = parse_instant_time(latest.time) - parse_instant_time(now)
        if lag > skew:
            raise Transient(_describe_clock_behind(client, observed.timeline, latest, now, doing, skew))
        time.sleep(lag.total_seconds() + 0.001)


def _current_time(client: HudiClient, timeline: Timeline) -> str:
    now = client.time_zones.now()
    return format_instant_time(now + utc_offset(timeline.timezone, now))


def _describe_clock_behind(
    client: HudiClient, timeline: Timeline, latest: TimelineTime, now: str, doing: str, skew: timedelta
) -> str:
    return (
        f"{client.table.name}: {doing} waits: {latest.description} has the time {latest.time}, and lakefold's clock "
        f"says {now} in {_describe_zone(client, timeline)}. Anything committed now would count as older. Synchronize "
        "the clocks, or run lakefold in the writers' zone (TZ). lakefold tolerates a difference of "
        f"{_milliseconds(skew)} ms ({MAX_SKEW})"
    )


def _describe_zone(client: HudiClient, timeline: Timeline) -> str:
    """Describe, for a message, the zone of lakefold's times."""
    offset = utc_offset(timeline.timezone, client.time_zones.now())
    return f"{_format_offset(offset)}, its zone for hoodie.table.timeline.timezone = {timeline.timezone}"


def _format_offset(offset: timedelta) -> str:
    minutes = round(offset.total_seconds() / 60)
    return f"UTC{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"


def _refuse_writers_clock(client: HudiClient, timeline: Timeline, doing: str, skew: timedelta) -> None:
    """Raise Transient if the writers' times have another zone than lakefold's, or if the writers' clock is behind.

    A writers' clock that is ahead blocks only until lakefold's clock has passed the times on the table.
    """
    found = writer_clock_offset(timeline)
    if found is None:
        return
    ahead, what = found
    if zones := zone_difference(ahead):
        writers_offset = utc_offset(timeline.timezone, client.time_zones.now()) + zones
        remedy = (
            "Have every writer use UTC for instants, or set LOCAL and run lakefold in the writers' zone (TZ)"
            if timeline.timezone.upper() == "UTC"
            else "Run lakefold in the writers' zone (TZ), or set UTC and have every writer use UTC for instants"
        )
        raise Transient(
            f"{client.table.name}: {doing} waits: the table's writers use {_format_offset(writers_offset)} for "
            f"instants ({what}, compared with the modification times of the table's files), and lakefold uses "
            f"{_describe_zone(client, timeline)}. {remedy}"
        )
    if -ahead > skew + MAX_WRITE_DELAY:
        raise Transient(
            f"{client.table.name}: {doing} waits: the clock of the table's writers is {-ahead.total_seconds():.0f} s "
            f"behind the storage's ({what}, compared with the modification times of the table's files), so the "
            "writers' next writes would count as older than anything committed now. Synchronize the clocks; lakefold "
            f"then continues after the writers' next write. A difference of {_milliseconds(skew)} ms ({MAX_SKEW}) is "
            "allowed"
        )


def _refuse_repeated_hour(client: HudiClient, timeline: Timeline, doing: str) -> None:
    """Raise Transient if clocks are about to be set back, so that writers would use the current times again."""
    set_back = upcoming_clock_set_back(timeline.timezone, client.time_zones.now())
    if set_back:
        minutes = round(set_back.total_seconds() / 60)
        raise Transient(
            f"{client.table.name}: {doing} waits: the clocks of lakefold's time zone go back by {minutes} minutes "
            f"within the next {minutes} minutes (end of daylight saving time), and hoodie.table.timeline.timezone = "
            f"{timeline.timezone}. Later writes would count as older than anything committed now. lakefold continues "
            "once the repeated time is over; with UTC no time is repeated"
        )


def _refuse_storage_clock(client: HudiClient, doing: str, skew: timedelta) -> None:
    """Raise Transient if the clock of lakefold's JVM differs from the storage's by more than the table's skew."""
    before = client.time_zones.now()
    client.storage.write(_CLOCK_PROBE_FILE, f"{before.isoformat()}\n".encode())
    after = client.time_zones.now()
    storage_time = client.storage.modified_times([_CLOCK_PROBE_FILE]).get(_CLOCK_PROBE_FILE)
    if storage_time is None:
        raise Transient(
            f"{client.table.name}: {client.storage.display_path(_CLOCK_PROBE_FILE)} was deleted while {doing}"
        )
    storage_time = storage_time.astimezone(UTC)
    step = timedelta(seconds=1) if storage_time.microsecond == 0 else timedelta()
    if storage_time - skew <= after and before <= storage_time + step + skew:
        return
    nearest = before if before > storage_time else after
    raise Transient(
        f"{client.table.name}: {doing} waits: the clock of lakefold's JVM says {_format_clock(nearest)} UTC, the "
        f"storage's {_format_clock(storage_time)} UTC (a file just written). Synchronize the clocks; a difference of "
        f"{_milliseconds(skew)} ms ({MAX_SKEW}) is allowed"
    )


def _format_clock(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]


def _milliseconds(skew: timedelta) -> int:
    return round(skew.total_seconds() * 1000)

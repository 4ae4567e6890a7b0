# SPDX-License-Identifier: Apache-2.0
"""The growing intervals between this process's tries of a repair that fails again and again.

The sweep runs every few seconds. Each of its repairs opens the table and takes the table's lock.
"""

from dataclasses import dataclass, field
from datetime import timedelta

from lake.formats.hudi.files.storage import TableStorage
from lake.stopwatch import Stopwatch

_FIRST_RETRY_INTERVAL, _MAX_RETRY_INTERVAL = timedelta(minutes=1), timedelta(hours=1)


@dataclass(slots=True)
class _Tries:
    """The failed tries of this process: the time from the last one to the next one, and the time since the last one."""

    interval: timedelta
    since: Stopwatch = field(default_factory=Stopwatch)


#: by table and the subject of the repair
_tries: dict[tuple[str, str], _Tries] = {}
_MAX_TRIES = 10_000


def is_try_due(storage: TableStorage, subject: str) -> bool:
    """True if the repair of ``subject``, an instant or a part of the table, did not fail last or may be tried again."""
    tries = _tries.get((storage.location, subject))
    return tries is None or tries.since.elapsed_seconds >= tries.interval.total_seconds()


def record_failed_try(storage: TableStorage, subject: str) -> None:
    """Record that a repair failed, which delays its next try: a minute, then twice as long, at most an hour."""
    if len(_tries) >= _MAX_TRIES:
        _tries.clear()
    key = storage.location, subject
    before = _tries.get(key)
    _tries[key] = _Tries(_FIRST_RETRY_INTERVAL if before is None else min(2 * before.interval, _MAX_RETRY_INTERVAL))


def record_success(storage: TableStorage, subject: str) -> None:
    """Record that a repair succeeded: a later one of the same ``subject`` is tried at once."""
    _tries.pop((storage.location, subject), None)

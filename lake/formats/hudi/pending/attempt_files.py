# SPDX-License-Identifier: Apache-2.0
"""The attempts at lakefold's pending instants: one small file in the table per attempt, renewed while it runs.

The timeline records that an instant is pending and which plan it belongs to. It does not record whether a process still
executes the instant, nor which attempt wrote the present files if several attempts share the instant. Both matter to a
lakefold whose database lacks the plan (a restored database, or another one), and to an executor that continues after a
successor has begun.

An attempt has ended when its file is deleted, when its process is verifiably dead (the Java process, which writes and
commits), or when the file has not been renewed for ``ATTEMPT_TIMEOUT``. Attempts at one instant take turns, counted
under the table's lock: the present files belong to the last turn. Attempt files are at ``.hoodie/.lakefold/attempts``,
beside the locks.
"""

import json
import logging
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta

from pyarrow import fs as pafs

from lake.errors import LakefoldError, Transient
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.timeline.timeline import Timeline
from lake.process_identity import Process
from lake.renewal import Renewer
from lake.units import format_rough_duration

log = logging.getLogger(__name__)
DIRECTORY = ".hoodie/.lakefold/attempts"
#: an attempt without renewal for this time counts as ended, wherever its process is
ATTEMPT_TIMEOUT = timedelta(minutes=30)
_RENEWAL_INTERVAL = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The content of an attempt file; ``process`` is None if the kernel does not identify processes."""

    instant: str
    plan_id: str
    epoch: int
    turn: int
    process: Process | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFile:
    """An attempt with the path of its file and when the file was last renewed."""

    attempt: Attempt
    path: str
    renewed_at: datetime

    @property
    def is_alive(self) -> bool:
        """True if the attempt may still write or commit."""
        process = self.attempt.process
        return not (process and process.is_dead) and datetime.now(UTC) - self.renewed_at <= ATTEMPT_TIMEOUT

    def __str__(self) -> str:
        owner = str(self.attempt.process or "a process")
        return f"{owner}, last active {format_rough_duration(datetime.now(UTC) - self.renewed_at)} ago"


def list_attempts(storage: TableStorage) -> dict[str, list[AttemptFile]]:
    """Return the attempts at each instant, sorted by turn."""
    found: dict[str, list[AttemptFile]] = {}
    for file in sorted(_read_attempt_files(storage), key=lambda s: (s.attempt.turn, s.path)):
        found.setdefault(file.attempt.instant, []).append(file)
    return found


def _read_attempt_files(storage: TableStorage) -> Iterator[AttemptFile]:
    for info in storage.children(DIRECTORY):
        path = f"{DIRECTORY}/{info.base_name}"
        if info.type != pafs.FileType.File or not path.endswith(".json"):
            continue
        # The attempt ended meanwhile, or a crash of the machine damaged the file.
        with suppress(FileNotFoundError, ValueError, TypeError, KeyError):
            values = json.loads(storage.read(path))
            process = values.pop("process")
            attempt = Attempt(**values, process=Process(**process) if process else None)
            yield AttemptFile(attempt=attempt, path=path, renewed_at=info.mtime)


def refuse_live_attempts(storage: TableStorage, table: str, instant: str) -> None:
    """Raise Transient if an earlier attempt at ``instant`` may still write under it."""
    for file in list_attempts(storage).get(instant, ()):
        if file.is_alive:
            raise Transient(f"{table}: an earlier attempt at {instant} may still be writing ({file})")


def delete_ended_attempts(storage: TableStorage, instant: str) -> None:
    """Delete the files of ended attempts at ``instant``; call it under the lock, after their work was rolled back."""
    for file in list_attempts(storage).get(instant, ()):
        if not file.is_alive:
            storage.delete(file.path)


class RunningAttempt:
    """An attempt of this process; call its constructor under the table's lock."""

    def __init__(
        self, storage: TableStorage, timeline: Timeline, instant: str, plan_id: str, epoch: int, process: Process | None
    ) -> None:
        before = list_attempts(storage)
        pending = {entry.time for entry in timeline.pending}
        for other in before.keys() - pending - {instant}:
            delete_ended_attempts(storage, other)
        turn = 1 + max((file.attempt.turn for file in before.get(instant, ())), default=0)
        self.attempt = Attempt(instant=instant, plan_id=plan_id, epoch=epoch, turn=turn, process=process)
        self._storage = storage
        self._path = f"{DIRECTORY}/{instant}-{uuid.uuid4().hex}.json"
        self._renewer = Renewer(f"the attempt at {instant}", self._renew, interval=_RENEWAL_INTERVAL)
        self._renewer.start()
        try:
            storage.write(self._path, json.dumps(asdict(self.attempt)).encode())
        except BaseException:
            self.end()  # the file may exist in spite of the error
            raise

    def is_superseded(self) -> bool:
        """True if another attempt at the same instant has, or may have, begun since; call it under the table's lock.

        If this attempt's file is missing, another process considered the attempt ended: it rolled back the attempt's
        work, and turns are counted from 1 again.
        """
        known = list_attempts(self._storage).get(self.attempt.instant, ())
        return not known or known[-1].path != self._path

    def end(self) -> None:
        """End the attempt: stop the renewal and delete the file. Never raises."""
        self._renewer.close()
        try:
            self._storage.delete(self._path)
        except (LakefoldError, OSError) as error:
            log.warning("%s can't be deleted now: %s", self._path, error)

    def _renew(self) -> None:
        # Never refused: only the table's lock shows whether the attempt is superseded. Without renewal it times out.
        self._storage.touch(self._path)

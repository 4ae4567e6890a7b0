# SPDX-License-Identifier: Apache-2.0
"""Which process of lakefold holds, or last held, the lock file of a table; and the removal of one left by a dead one.

Hudi's lock-file provider creates ``lock`` and deletes it. It writes no owner into it, so that a process killed in
between leaves a file which stops every writer for ever and which nobody can attribute. The journal attributes ours:
an entry is there before the lock is asked for and names the Java process that will hold it; once the lock is held the
entry gets the identity of the very file (inode and time of modification); it goes when the lock has been given back.

Entries are files of the table (``.hoodie/.lakefold/locks``), because that is what every lakefold that can meet the
lock shares, whatever database it uses. Hudi and its readers list no such directory.

A lock file is removed only where an entry has its identity and the entry's process is proved dead: on this host, in
this boot and process namespace, with no process of its id and start time. An entry without identity (the process died
in the milliseconds before it was noted, or while it waited) proves nothing, since the file may be another writer's.
"""

import fcntl
import json
import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from lake.identity import Process
from lake.units import format_duration

DIRECTORY = ".hoodie/.lakefold/locks"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockEntry:
    """One lock of ours. ``inode`` and ``mtime_ns`` are the lock file's, null until the lock is held.

    ``next_mtime_ns`` is its time once the renewal that has been begun is done.
    """

    lock: str
    doing: str
    written_at: float
    process: Process
    inode: int | None = None
    mtime_ns: int | None = None
    next_mtime_ns: int | None = None

    def is_entry_of(self, status: os.stat_result) -> bool:
        """Whether the lock file with this status is the one the entry was written for."""
        return self.inode == status.st_ino and status.st_mtime_ns in (self.mtime_ns, self.next_mtime_ns)


class LockJournal:
    """The entries of one table, and its lock file at ``lock``. Raises OSError where the table can't be written."""

    def __init__(self, base: str, lock: str) -> None:
        self.lock = Path(lock)
        self._directory = Path(base) / DIRECTORY

    def open_entry(self, process: Process, doing: str) -> "OpenLockEntry":
        """Write an entry for the lock that is about to be asked for."""
        self._directory.mkdir(parents=True, exist_ok=True)
        entry = LockEntry(lock=str(self.lock), doing=doing, written_at=time.time(), process=process)
        return OpenLockEntry(self._directory / f"{uuid.uuid4().hex}.json", entry)

    def _entries(self) -> Iterator[tuple[Path, LockEntry]]:
        for path in sorted(self._directory.glob("*.json")):
            # Given back meanwhile, or torn by a crash of the machine.
            with suppress(FileNotFoundError, ValueError, TypeError, KeyError):
                values = json.loads(path.read_text())
                entry = LockEntry(**values | {"process": Process(**values["process"])})
                if entry.lock == str(self.lock):
                    yield path, entry

    def remove_orphaned_lock(self) -> str | None:
        """Remove the lock file if a dead process of ours left it, saying whose it was; None where nothing was removed.

        Of several processes that try at once one does it. A lock that was given back and taken anew is left alone.
        """
        for path, entry in self._entries():
            if entry.process.is_dead:
                with _exclusive_entry(path) as alone:
                    if alone and self._remove_lock_file(entry):
                        path.unlink(missing_ok=True)
                        age = format_duration(max(0.0, time.time() - entry.written_at))
                        return f"{entry.process}, which died {entry.doing}; its lock was {age} old"
        return None

    def _remove_lock_file(self, entry: LockEntry) -> bool:
        status = _stat_or_none(self.lock)
        if status is None or not entry.is_entry_of(status):
            return False
        # Hadoop's checksum file; the next lock brings its own.
        self.lock.with_name(f".{self.lock.name}.crc").unlink(missing_ok=True)
        # Moved, not unlinked: a file that came in between can be put back.
        aside = self.lock.with_name(f".{self.lock.name}.{uuid.uuid4().hex}")
        try:
            os.rename(self.lock, aside)
        except FileNotFoundError:
            return False
        ours = entry.is_entry_of(aside.stat())
        if not ours:
            with suppress(FileExistsError):
                os.link(aside, self.lock)
        aside.unlink()
        return ours

    def delete_stale_entries(self) -> None:
        """Delete entries of dead processes whose lock is not there any more; call it while holding the lock."""
        held = _stat_or_none(self.lock)
        for path, entry in self._entries():
            if entry.process.is_dead and not (held and entry.is_entry_of(held)):
                path.unlink(missing_ok=True)

    def describe_lock(self) -> str:
        """Who holds the lock, how old it is, and how a person removes it."""
        status = _stat_or_none(self.lock)
        if status is None:
            return "no lock file is left, so its holder has finished by now"
        age = format_duration(max(0.0, time.time() - status.st_mtime))
        entry = next((entry for _, entry in self._entries() if entry.is_entry_of(status)), None)
        start = f"lock file {self.lock} is {age} old"
        if entry is None:
            return f"{start}; if no writer of this table is running it was left by a dead process: rm {self.lock}"
        if entry.process.is_dead:
            return (
                f"{start} and was left by lakefold, {entry.process}, which died {entry.doing}; the next plan removes it"
            )
        holder = f"{start} and held by lakefold, {entry.process}, {entry.doing}"
        if entry.process.is_local:
            return holder
        return f"{holder}; if that process is dead: rm {self.lock}"


class OpenLockEntry:
    """The entry of a lock that is being asked for or held.

    While the lock is held its file is kept open: until then the file system gives its inode to no other file.
    """

    def __init__(self, path: Path, entry: LockEntry) -> None:
        self._path = path
        self._entry = entry
        self._file: int | None = None
        self._acquired_at: tuple[int, float] = (0, 0.0)
        #: renewals come from two threads
        self._renewal_lock = threading.Lock()
        self._write()

    def record_lock_file(self) -> None:
        """Note the identity of the lock file, which is this entry's now."""
        with suppress(FileNotFoundError):
            self._file = os.open(self._entry.lock, os.O_RDONLY)
            status = os.fstat(self._file)
            self._acquired_at = status.st_mtime_ns, time.monotonic()
            self._entry = replace(self._entry, inode=status.st_ino, mtime_ns=status.st_mtime_ns)
            self._write()

    @property
    def is_held(self) -> bool:
        """Whether the lock file is still the one that was noted."""
        status = _stat_or_none(Path(self._entry.lock))
        if status is None or self._file is None:
            return False
        own = os.fstat(self._file)
        return (own.st_dev, own.st_ino) == (status.st_dev, status.st_ino)

    def renew(self) -> bool:
        """Make the lock file as young as one that is taken now; whether it still was, and is, the one that was noted.

        Its time goes on from the one that its file system gave it, by what has passed since on this host.
        """
        with self._renewal_lock:
            if self._file is None or not self.is_held:
                return False
            taken_ns, begun = self._acquired_at
            now_ns = taken_ns + round((time.monotonic() - begun) * 1e9)
            # Noted before and after: whenever the process dies the file is known to be its own.
            self._entry = replace(self._entry, next_mtime_ns=now_ns)
            self._write()
            os.utime(self._file, ns=(now_ns, now_ns))
            self._entry = replace(self._entry, mtime_ns=os.fstat(self._file).st_mtime_ns, next_mtime_ns=None)
            self._write()
            return self.is_held

    def close(self) -> None:
        """The lock has been given back or was not to be had."""
        with self._renewal_lock:
            file, self._file = self._file, None
            if file is not None:
                os.close(file)
            self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        # Replaced as a whole: a reader never sees half of one.
        draft = self._path.with_suffix(".draft")
        draft.write_text(json.dumps(asdict(self._entry)))
        os.replace(draft, self._path)


@contextmanager
def _exclusive_entry(path: Path) -> Iterator[bool]:
    """Whether nobody else holds the entry at ``path`` for removing its lock and nobody has; held inside."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        yield False
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield path.exists()


def _stat_or_none(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None

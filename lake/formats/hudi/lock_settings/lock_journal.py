# SPDX-License-Identifier: Apache-2.0
"""The journal of lakefold's lock files: which process holds a table's lock file, and removal of a dead process's file.

Hudi's lock-file provider creates ``lock`` and deletes it, but does not write the owner into it. A process killed in
between leaves a file that blocks every writer forever and that can't be attributed. The journal attributes lakefold's
lock files. Before the lock is requested, an entry names the Java process that will hold it. Once the lock is held, the
entry records the identity of the file (inode and modification time). The entry is deleted when the lock is released.

Entries are files in the table (``.hoodie/.lakefold/locks``). All lakefold processes that use the lock share them, even
with different databases. Hudi and its readers do not list this directory.

A lock file is removed only if an entry has its identity and the entry's process is verifiably dead: on this host, in
this boot and process namespace, no process has its id and start time. An entry without identity (the process died in
the milliseconds before recording it, or while waiting) proves nothing, since the file may be another writer's.
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

from lake.process_identity import Process
from lake.units import format_duration

DIRECTORY = ".hoodie/.lakefold/locks"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockEntry:
    """One lock taken by lakefold. ``inode`` and ``mtime_ns`` are the lock file's, None until the lock is held.

    ``next_mtime_ns`` is its modification time after the renewal in progress, None if no renewal is in progress.
    """

    lock: str
    doing: str
    written_at: float
    process: Process
    inode: int | None = None
    mtime_ns: int | None = None
    next_mtime_ns: int | None = None

    def is_entry_of(self, status: os.stat_result) -> bool:
        """True if the entry was written for the lock file with this status."""
        return self.inode == status.st_ino and status.st_mtime_ns in (self.mtime_ns, self.next_mtime_ns)


class LockJournal:
    """The entries of one table, whose lock file is ``lock``. Raises OSError if the table can't be written."""

    def __init__(self, base: str, lock: str) -> None:
        self.lock = Path(lock)
        self._directory = Path(base) / DIRECTORY

    def open_entry(self, process: Process, doing: str) -> "OpenLockEntry":
        """Write an entry for the lock that is about to be requested."""
        self._directory.mkdir(parents=True, exist_ok=True)
        entry = LockEntry(lock=str(self.lock), doing=doing, written_at=time.time(), process=process)
        return OpenLockEntry(self._directory / f"{uuid.uuid4().hex}.json", entry)

    def _entries(self) -> Iterator[tuple[Path, LockEntry]]:
        for path in sorted(self._directory.glob("*.json")):
            # The lock was released meanwhile, or a crash of the machine damaged the file.
            with suppress(FileNotFoundError, ValueError, TypeError, KeyError):
                values = json.loads(path.read_text())
                entry = LockEntry(**values | {"process": Process(**values["process"])})
                if entry.lock == str(self.lock):
                    yield path, entry

    def remove_orphaned_lock(self) -> str | None:
        """Remove the lock file of a dead lakefold process and describe its owner; None if nothing was removed.

        If several processes try at once, one of them removes the file. A lock released and acquired again is not
        removed.
        """
        for path, entry in self._entries():
            if entry.process.is_dead:
                with _exclusive_entry(path) as is_exclusive:
                    if is_exclusive and self._remove_lock_file(entry):
                        path.unlink(missing_ok=True)
                        age = format_duration(max(0.0, time.time() - entry.written_at))
                        return f"{entry.process}, which died {entry.doing}; its lock was {age} old"
        return None

    def _remove_lock_file(self, entry: LockEntry) -> bool:
        status = _stat_or_none(self.lock)
        if status is None or not entry.is_entry_of(status):
            return False
        # Hadoop's checksum file; the next lock creates its own.
        self.lock.with_name(f".{self.lock.name}.crc").unlink(missing_ok=True)
        # Moved, not unlinked: a lock file created in between can be put back.
        moved_file = self.lock.with_name(f".{self.lock.name}.{uuid.uuid4().hex}")
        try:
            os.rename(self.lock, moved_file)
        except FileNotFoundError:
            return False
        is_own = entry.is_entry_of(moved_file.stat())
        if not is_own:
            with suppress(FileExistsError):
                os.link(moved_file, self.lock)
        moved_file.unlink()
        return is_own

    def delete_stale_entries(self) -> None:
        """Delete entries of dead processes whose lock file no longer exists; call it while holding the lock."""
        held = _stat_or_none(self.lock)
        for path, entry in self._entries():
            if entry.process.is_dead and not (held and entry.is_entry_of(held)):
                path.unlink(missing_ok=True)

    def describe_lock(self) -> str:
        """Describe who holds the lock, how old it is, and how to remove it."""
        status = _stat_or_none(self.lock)
        if status is None:
            return "no lock file exists, so its holder has finished"
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
    """The entry of a lock that this process requests or holds.

    While the lock is held, its file stays open, so the file system can't give its inode to another file.
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
        """Record the identity of the lock file once the lock is held."""
        with suppress(FileNotFoundError):
            self._file = os.open(self._entry.lock, os.O_RDONLY)
            status = os.fstat(self._file)
            self._acquired_at = status.st_mtime_ns, time.monotonic()
            self._entry = replace(self._entry, inode=status.st_ino, mtime_ns=status.st_mtime_ns)
            self._write()

    @property
    def is_held(self) -> bool:
        """True if the lock file is still the recorded file."""
        status = _stat_or_none(Path(self._entry.lock))
        if status is None or self._file is None:
            return False
        own = os.fstat(self._file)
        return (own.st_dev, own.st_ino) == (status.st_dev, status.st_ino)

    def renew(self) -> bool:
        """Set the lock file's modification time to now. Returns True if it was, and still is, the recorded file.

        The new time is the original one from the file system plus the time elapsed on this host.
        """
        with self._renewal_lock:
            if self._file is None or not self.is_held:
                return False
            taken_ns, begun = self._acquired_at
            now_ns = taken_ns + round((time.monotonic() - begun) * 1e9)
            # Recorded before and after the change: whenever the process dies, the file can be attributed to it.
            self._entry = replace(self._entry, next_mtime_ns=now_ns)
            self._write()
            os.utime(self._file, ns=(now_ns, now_ns))
            self._entry = replace(self._entry, mtime_ns=os.fstat(self._file).st_mtime_ns, next_mtime_ns=None)
            self._write()
            return self.is_held

    def close(self) -> None:
        """Delete the entry, after the lock was released or could not be acquired."""
        with self._renewal_lock:
            file, self._file = self._file, None
            if file is not None:
                os.close(file)
            self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        # Replaced atomically: a reader never sees part of an entry.
        draft = self._path.with_suffix(".draft")
        draft.write_text(json.dumps(asdict(self._entry)))
        os.replace(draft, self._path)


@contextmanager
def _exclusive_entry(path: Path) -> Iterator[bool]:
    """Lock the entry at ``path`` to remove its lock file. Yields False if another process has locked or removed it."""
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

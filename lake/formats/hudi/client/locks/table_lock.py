# SPDX-License-Identifier: Apache-2.0
"""The locks under which lakefold changes a table: its own, then the lock that the table's writers share."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from lake.errors import Rejected, Transient
from lake.formats.hudi.client.locks.base import LakefoldLock
from lake.formats.hudi.client.locks.file import FileLock
from lake.formats.hudi.client.locks.hdfs import HdfsLock
from lake.formats.hudi.client.locks.hudi_lock import HudiLock, acquired_hudi_lock
from lake.formats.hudi.client.locks.object_store import ObjectStoreLock
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.jvm.bundle import Bundle
from lake.formats.hudi.jvm.class_cache import cached_jvm
from lake.formats.hudi.jvm.errors import is_unanswered, translate_error
from lake.formats.hudi.lock_settings.lock_journal import LockJournal, OpenLockEntry
from lake.formats.hudi.lock_settings.providers import LOCK_PROVIDER, has_lock_file_provider, lock_file_path
from lake.model import Concurrency, TableRef
from lake.process_identity import Process
from lake.stopwatch import Stopwatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
CONCURRENCY_MODE = "hoodie.write.concurrency.mode"
_LOCK_RETRIES = "hoodie.write.lock.client.num_retries"
_LOCK_WAIT = "hoodie.write.lock.client.wait_time_ms_between_retry"
#: space for a lock file and the timeline files written under it, with a margin
_MIN_FREE_BYTES = 64 << 10


def concurrency_options(table: TableRef) -> dict[str, str]:
    """Return the write options of a client that takes the lock of ``table``, beyond the table's own options.

    Raises Rejected if ``concurrency`` is "occ" and no lock provider is set.
    """
    if table.concurrency is Concurrency.SINGLE_WRITER:
        return {CONCURRENCY_MODE: "SINGLE_WRITER"}
    if not table.write_options.get(LOCK_PROVIDER):
        raise Rejected(
            f'{table.name}: concurrency = "occ" needs the lock of the writers: set {LOCK_PROVIDER} and its '
            "settings in the table's write_options"
        )
    # By default Hudi waits four minutes for the lock of a dead process.
    patience = {_LOCK_RETRIES: "15", _LOCK_WAIT: "1000"}
    return {
        **{key: value for key, value in patience.items() if key not in table.write_options},
        CONCURRENCY_MODE: "OPTIMISTIC_CONCURRENCY_CONTROL",
        "hoodie.clean.failed.writes.policy": "LAZY",
    }


def lakefold_lock_of(table: TableRef, storage: TableStorage, jvm: Any) -> LakefoldLock:
    """Return lakefold's own lock for the storage of the table."""
    if storage.is_local:
        return FileLock(table, storage.base, jvm)
    return HdfsLock(table, storage, jvm) if storage.has_directories else ObjectStoreLock(table, storage.base, jvm)


class TableLock:
    """The locks of one table; a Java write client with the table's own lock settings takes Hudi's lock.

    lakefold's own lock comes first. Otherwise two lakefold clients would compete for Hudi's lock, and one of them might
    give up. Hudi's lock file is journaled, so that the lock file of a dead lakefold process can be removed. Used by one
    thread.
    """

    def __init__(self, table: TableRef, spark: "SparkSession", guard: Any, bundle: Bundle) -> None:
        self.table = table
        self._spark = spark
        self._jvm: Any = cached_jvm(spark)
        self._lock_client = guard
        self._bundle = bundle
        self._storage = TableStorage(table.location)
        path = lock_file_path(table)
        self._journal = None if path is None else LockJournal(self._storage.base, path)
        self._lakefold_lock = lakefold_lock_of(table, self._storage, self._jvm)
        #: the acquisition of the writers' lock; None while it is not held, or if the table has no such lock
        self._hudi_lock: HudiLock | None = None
        self._is_held = False
        self._has_foreign_holder = False

    @property
    def is_held(self) -> bool:
        """True if this object holds both locks."""
        return self._is_held

    @contextmanager
    def locked(self, doing: str, owner: Any) -> Iterator[None]:
        """Hold both locks while the block runs; ``owner`` is Hudi's Option of the instant that holds them.

        A nested block takes no further lock. Raises Transient naming the location of the lock and its holder if the
        lock can't be taken.
        """
        if self._is_held:
            yield
            return
        self._refuse_full_disk(doing)
        with self.lakefold_locked(doing):
            self._remove_orphaned_lock()
            begun = Stopwatch()
            try:
                entry = self._acquire_hudi_lock(owner, doing)
            except Exception as error:
                if not self._remove_orphaned_lock():
                    raise translate_error(error, self.table, doing) from error
                begun = Stopwatch()
                try:
                    entry = self._acquire_hudi_lock(owner, doing)
                except Exception as again:
                    raise translate_error(again, self.table, doing) from again
            self._is_held = True
            try:
                self._hudi_lock = self._new_hudi_lock(entry, begun, doing)
                with nullcontext() if self._hudi_lock is None else self._hudi_lock.renewed():
                    yield
            finally:
                acquired, self._hudi_lock, self._is_held = self._hudi_lock, None, False
                self._lakefold_lock.run_when_idle(partial(self._release_hudi_lock, owner, entry, acquired))

    def _new_hudi_lock(self, entry: OpenLockEntry | None, since: Stopwatch, doing: str) -> HudiLock | None:
        """Return the object that verifies whether the writers' lock, which has just been taken, is still held."""
        if self.table.concurrency is Concurrency.SINGLE_WRITER:
            return None
        configuration = self._spark.sparkContext._jsc.hadoopConfiguration()
        try:
            return acquired_hudi_lock(self._bundle, self._lock_client, configuration, entry, since)
        except Exception as error:
            raise translate_error(error, self.table, doing) from error

    def _release_hudi_lock(self, owner: Any, entry: OpenLockEntry | None, hudi_lock: HudiLock | None) -> None:
        """Release the lock that the writers share."""
        is_file = has_lock_file_provider(self.table)
        lost = is_file and hudi_lock is not None and hudi_lock.loss_reason() is not None
        if lost or (entry is not None and not entry.is_held):
            self._has_foreign_holder = True  # Hudi would delete the file of the current holder
        else:
            release = self._bundle.release_lock_file if is_file else self._bundle.release_lock
            try:
                release(self._lock_client, owner)
            except Exception:
                # Some of Hudi's locks can be released only by the thread that took them, which may have ended.
                if hudi_lock is None or not hudi_lock.force_release():
                    raise
        # The entry stays open if the release failed: the journal then names the owner of the remaining lock.
        if entry is not None:
            entry.close()

    def run_when_idle(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when every call of the JVM under these locks has ended; see ``LakefoldLock``."""
        self._lakefold_lock.run_when_idle(callback)

    @contextmanager
    def lakefold_locked(self, doing: str) -> Iterator[None]:
        """Exclude every other lakefold, but not the table's writers, while the block runs.

        May be used inside ``locked``. Raises Transient naming the holder, Rejected if the storage offers no such lock.
        """
        if self._lakefold_lock.is_held:
            yield
            return
        try:
            self._lakefold_lock.acquire(doing)
        except Exception as error:
            raise translate_error(error, self.table, doing) from error
        try:
            yield
        finally:
            self._lakefold_lock.release()

    def assert_held(self, doing: str) -> None:
        """Raise Transient if a lock was lost: the last check before an irrevocable step."""
        self.assert_lakefold_held(doing)
        reason = self.loss_reason()
        if reason is not None:
            raise Transient(f"{self.table.name}: the table's lock was lost while {doing}: {reason}; {self._advice()}")

    def assert_lakefold_held(self, doing: str) -> None:
        """Raise Transient if lakefold's own lock was lost, regardless of the writers' lock."""
        self._lakefold_lock.assert_held(doing)

    def loss_reason(self) -> str | None:
        """Return how the writers' shared lock was lost; None if it is verified to have been held without a gap."""
        return None if self._hudi_lock is None else self._hudi_lock.loss_reason()

    def _advice(self) -> str:
        if has_lock_file_provider(self.table):
            # A writer of Hudi 1.2 that gives up waiting inside its own commit deletes the holder's lock file.
            return "let the writers wait longer for the lock (hoodie.write.lock.num_retries)"
        return "nothing was changed, and the plan is tried again"

    def _acquire_hudi_lock(self, owner: Any, doing: str) -> OpenLockEntry | None:
        entry = self._open_journal_entry(doing)
        try:
            self._bundle.acquire_lock(self._lock_client, owner, self._jvm.org.apache.hudi.common.util.Option.empty())
        except Exception as error:
            self._has_foreign_holder = True
            if entry is not None and not is_unanswered(error):
                entry.close()
            raise
        if entry is not None and self._journal is not None:
            entry.record_lock_file()
            self._journal.delete_stale_entries()
        return entry

    def _open_journal_entry(self, doing: str) -> OpenLockEntry | None:
        # The Java process holds the lock, and may outlive this one by seconds.
        process = self._journal and Process.of(self._jvm.java.lang.ProcessHandle.current().pid())
        return self._journal.open_entry(process, doing) if self._journal and process else None

    def _remove_orphaned_lock(self) -> bool:
        removed = self._journal.remove_orphaned_lock() if self._journal else None
        if removed is not None:
            log.warning("%s: removed the lock of %s", self.table.name, removed)
        return removed is not None

    def _refuse_full_disk(self, doing: str) -> None:
        """Raise Transient if the disk is full: Hudi would leave an empty lock file forever."""
        if not self._storage.is_local:
            return  # an object store is never full; a NameNode refuses before it creates a file
        path = self._jvm.org.apache.hadoop.fs.Path(self._storage.base)
        remaining = (
            path.getFileSystem(self._spark.sparkContext._jsc.hadoopConfiguration()).getStatus(path).getRemaining()
        )
        if remaining < _MIN_FREE_BYTES:
            raise Transient(
                f"{self.table.name}: the disk is full, {remaining} bytes are free while {doing}; free space"
            )

    def close(self) -> None:
        """Close the Java client; never raises."""
        # A lock-file provider that did not get the lock deletes the holder's file when it is closed.
        if self._has_foreign_holder and has_lock_file_provider(self.table):
            return
        with suppress(Exception):
            self._lock_client.close()

# SPDX-License-Identifier: Apache-2.0
"""One acquisition of the lock that a table's writers share, and the check that it is still held.

Hudi takes a lock and never checks it again. Yet every lock of Hudi's may be lost: a lock file expires; the lease of a
lock service ends while the Java process is stopped; a writer that gives up waiting deletes the holder's file. The
lock's store is therefore queried right before an irrevocable step. The query identifies this acquisition among all
others, also those of this process:

- Lock file: the same file. It stays open, so that no other file gets its inode number.
- ZooKeeper: a write to the node of this acquisition, which disappears with the session that created it.
- Hive metastore: the id of this lock.
- A conditionally replaced file or object, and DynamoDB: a renewal, which succeeds only if nothing has replaced the last
  write.

If the answer took more than half of the time for which the store keeps a lock without renewal, the lock counts as lost.
Hudi renews all of these locks except the lock file, which lakefold renews. The lock of another provider can't be
queried: it counts as held for ``UNKNOWN_VALIDITY`` after its acquisition began.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar

from lake.formats.hudi.jvm.bundle import Bundle
from lake.formats.hudi.jvm.errors import is_unanswered, java_cause_chain, root_message
from lake.formats.hudi.lock_settings.lock_journal import OpenLockEntry
from lake.renewal import Renewer
from lake.stopwatch import Stopwatch
from lake.units import format_duration

#: the shortest time for which Hudi's own providers keep a lock without renewal
UNKNOWN_VALIDITY = timedelta(seconds=60)
#: a ZooKeeper client may be between two servers, or have just lost its session, for a moment
_ZOOKEEPER_TRIES = 10
_EXPIRE_MINUTES = "hoodie.write.lock.filesystem.expire"


class HudiLock(ABC):
    """One acquisition. Used by the thread that took the lock, since Hudi's locks belong to threads."""

    #: how long the store keeps the lock without a renewal; None if forever, or unknown
    validity: timedelta | None = None
    #: whether only lakefold renews the lock
    is_renewed_here: ClassVar[bool] = False

    def loss_reason(self) -> str | None:
        """Return how the lock was lost; None if it is verified to have been held without a gap, and was renewed.

        Raises py4j's error if the Java process does not answer.
        """
        stopwatch = Stopwatch()
        try:
            reason = self._renew()
        except Exception as error:
            if is_unanswered(error):
                raise
            return root_message(error, java_cause_chain(error))
        took = timedelta(seconds=stopwatch.elapsed_seconds)
        if reason is None and self.validity is not None and took > self.validity / 2:
            kept = format_duration(self.validity)
            return (
                f"its renewal took {format_duration(took)}, more than half of the {kept} for which the store keeps it"
            )
        return reason

    @abstractmethod
    def _renew(self) -> str | None: ...

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Keep the lock from expiring while the block runs, from another thread."""
        if not self.is_renewed_here or self.validity is None:
            yield
            return
        # A failed renewal is only logged: a commit renews the lock itself before it begins, and gets the error then.
        with Renewer("the lock file of the writers", self._renew, interval=self.validity / 4):
            yield

    def force_release(self) -> bool:
        """Make the store release a lock that its thread can't release. Returns False if that is not possible."""
        return False


class _LocalLockFile(HudiLock):
    """Hudi's lock file on a file system that lakefold can access; lakefold renews it, since Hudi does not."""

    is_renewed_here = True

    def __init__(self, entry: OpenLockEntry, minutes: int) -> None:
        self._entry = entry
        self.validity = timedelta(minutes=minutes) if minutes else None

    def _renew(self) -> str | None:
        held = self._entry.is_held if self.validity is None else self._entry.renew()
        return None if held else "the lock file was taken away by another process"


class _HadoopLockFile(HudiLock):
    """Hudi's lock file on a Hadoop file system."""

    is_renewed_here = True

    def __init__(self, jvm: Any, configuration: Any, provider: Any, minutes: int) -> None:
        self._path = jvm.org.apache.hadoop.fs.Path(str(provider.getLock()))
        self._file_system = self._path.getFileSystem(configuration)
        self.validity = timedelta(minutes=minutes) if minutes else None
        status = self._file_system.getFileStatus(self._path)
        #: the file system's time and this process's monotonic time at the acquisition
        self._acquired_ms, self._acquired_monotonic = int(status.getModificationTime()), time.monotonic()
        self._has_file_ids = str(status.getClass().getName()).startswith("org.apache.hadoop.hdfs.")
        self._expected_identity = self._identity(status)
        #: the lock's own thread and the renewing thread both renew
        self._renewal_lock = threading.Lock()

    def _identity(self, status: Any) -> object:
        return int(status.getFileId()) if self._has_file_ids else int(status.getModificationTime())

    def _renew(self) -> str | None:
        with self._renewal_lock:
            return self._renew_exclusively()

    def _renew_exclusively(self) -> str | None:
        taken_away = "the lock file was taken away by another process"
        try:
            if self._identity(self._file_system.getFileStatus(self._path)) != self._expected_identity:
                return taken_away
            if self.validity is not None:
                now = self._acquired_ms + round((time.monotonic() - self._acquired_monotonic) * 1000)
                self._file_system.setTimes(self._path, now, -1)
                self._expected_identity = self._expected_identity if self._has_file_ids else now
                if self._identity(self._file_system.getFileStatus(self._path)) != self._expected_identity:
                    return taken_away
        except Exception as error:
            if any(name.endswith("FileNotFoundException") for name, _ in java_cause_chain(error)):
                return taken_away
            raise
        return None


class _ZooKeeperNode(HudiLock):
    """The node of this acquisition on ZooKeeper. ZooKeeper's own client renews the session that created it."""

    def __init__(self, bundle: Bundle, provider: Any) -> None:
        self._curator = bundle.private_field(provider, "curatorFrameworkClient")
        self._path = str(bundle.call_private(provider.getLock(), "getLockPath"))
        self._content = self._session().getData(self._path, False, None)
        self.validity = timedelta(milliseconds=int(self._session().getSessionTimeout()))

    def _session(self) -> Any:
        # Curator's own calls fail: py4j lists the methods of its classes, which need more classes than Spark has.
        return self._curator.getZookeeperClient().getZooKeeper()

    def _renew(self) -> str | None:
        for attempt in range(_ZOOKEEPER_TRIES):
            try:
                # A read does not suffice: a server that has not yet noticed the session's end still finds the node.
                self._session().setData(self._path, self._content, -1)
                return None
            except Exception as error:
                names = [name.rpartition("$")[2] for name, _ in java_cause_chain(error)]
                if {"NoNodeException", "SessionExpiredException"} & {*names}:
                    return f"its node {self._path} on ZooKeeper no longer exists, as after its session's end"
                if "ConnectionLossException" not in names or attempt == _ZOOKEEPER_TRIES - 1:
                    raise
            time.sleep(1.0)
        return None

    def force_release(self) -> bool:
        self._curator.close()
        return True


class _MetastoreLock(HudiLock):
    """A lock of the Hive metastore, renewed by Hudi; how long the metastore keeps the lock is unknown here."""

    def __init__(self, provider: Any) -> None:
        self._metastore = provider.getHiveClient()
        self._id = int(provider.getLock().getLockid())

    def _renew(self) -> str | None:
        try:
            state = str(self._metastore.checkLock(self._id).getState().name())
        except Exception as error:
            if any(name.endswith("NoSuchLockException") for name, _ in java_cause_chain(error)):
                return f"the metastore no longer has lock {self._id}; a lock that expires disappears"
            raise
        return None if state == "ACQUIRED" else f"lock {self._id} of the metastore is {state}"


class _StorageLock(HudiLock):
    """A conditionally replaced object, renewed by Hudi."""

    def __init__(self, bundle: Bundle, provider: Any) -> None:
        self._bundle, self._provider = bundle, provider
        self.validity = timedelta(seconds=int(bundle.private_field(provider, "lockValiditySecs")))

    def _renew(self) -> str | None:
        assert self.validity is not None
        if not self._bundle.call_private(self._provider, "renewLock"):
            return "its file was replaced by another process, or could not be replaced"
        # Hudi reports success even if the store did not answer.
        until = int(self._provider.getLock().getValidUntilMs())
        left = timedelta(milliseconds=until - int(self._bundle.jvm.java.lang.System.currentTimeMillis()))
        if left > self.validity / 2:
            return None
        return f"it could not be renewed and expires in {format_duration(max(left, timedelta()))}"


class _DynamoDbItem(HudiLock):
    """An item of DynamoDB, renewed by Hudi."""

    def __init__(self, provider: Any) -> None:
        self._item = provider.getLock()
        self.validity = timedelta(milliseconds=int(self._item.getLeaseDuration()))

    def _renew(self) -> str | None:
        self._item.sendHeartBeat()
        return "its lease has ended" if self._item.isExpired() else None


class _UnknownLock(HudiLock):
    """A lock whose store can't be queried."""

    def __init__(self, kind: str, begun: Stopwatch) -> None:
        self._provider_class, self._since = kind, begun

    def _renew(self) -> str | None:
        held_for = timedelta(seconds=self._since.elapsed_seconds)
        if held_for <= UNKNOWN_VALIDITY:
            return None
        return (
            f"a lock of {self._provider_class} can't be queried, and it was taken {format_duration(held_for)} ago, "
            f"more than {format_duration(UNKNOWN_VALIDITY)}"
        )


def acquired_hudi_lock(
    bundle: Bundle, guard: Any, configuration: Any, entry: OpenLockEntry | None, since: Stopwatch
) -> HudiLock:
    """Return the lock that the write client ``guard`` has just taken; ``since`` is the beginning of the acquisition.

    ``configuration`` is the Hadoop configuration. ``entry`` is the journal entry of a lock file that lakefold can
    access. Call it in the thread that took the lock.
    """
    provider = bundle.lock_provider(guard)
    names = []
    kind = provider.getClass()
    while kind is not None:
        names.append(str(kind.getName()).rpartition(".")[2])
        kind = kind.getSuperclass()
    if "FileSystemBasedLockProvider" in names:
        minutes = int(guard.getConfig().getProps().getProperty(_EXPIRE_MINUTES) or 0)
        if entry is not None:
            return _LocalLockFile(entry, minutes)
        return _HadoopLockFile(bundle.jvm, configuration, provider, minutes)
    if names[0].startswith("Zookeeper") or "BaseZookeeperBasedLockProvider" in names:
        return _ZooKeeperNode(bundle, provider)
    if "HiveMetastoreBasedLockProvider" in names:
        return _MetastoreLock(provider)
    if "StorageBasedLockProvider" in names:
        return _StorageLock(bundle, provider)
    if "DynamoDBBasedLockProviderBase" in names or "DynamoDBBasedLockProvider" in names:
        return _DynamoDbItem(provider)
    return _UnknownLock(str(provider.getClass().getName()), since)

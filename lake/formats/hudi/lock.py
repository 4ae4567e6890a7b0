# SPDX-License-Identifier: Apache-2.0
"""The lock that the writers of a table share, as lakefold takes it: the settings, the holding, the giving back."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from lake.errors import Rejected, Transient
from lake.formats.hudi.outcomes import translate
from lake.formats.hudi.storage import Storage
from lake.model import Concurrency, TableRef

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCK_PROVIDER = "hoodie.write.lock.provider"
CONCURRENCY_MODE = "hoodie.write.concurrency.mode"
_LOCK_RETRIES = "hoodie.write.lock.client.num_retries"
_LOCK_WAIT = "hoodie.write.lock.client.wait_time_ms_between_retry"
_FILE_LOCK = "FileSystemBasedLockProvider"
#: what a lock file and the timeline files written under it take, with a margin
_LOCK_ROOM_BYTES = 64 << 10

_local_locks: dict[str, threading.RLock] = {}
_registry = threading.Lock()


def concurrency_options(table: TableRef) -> dict[str, str]:
    """Write options of a client that takes the lock of ``table``, beside the table's own; Rejected without a lock."""
    if table.concurrency is Concurrency.SINGLE_WRITER:
        return {CONCURRENCY_MODE: "SINGLE_WRITER"}
    if not table.write_options.get(LOCK_PROVIDER):
        raise Rejected(
            f'{table.name}: concurrency = "occ" needs the lock of the writers: set {LOCK_PROVIDER} and its '
            "settings in the table's write_options"
        )
    # Hudi's own default waits four minutes for a lock that a dead process left behind.
    patience = {_LOCK_RETRIES: "15", _LOCK_WAIT: "1000"}
    return {
        **{key: value for key, value in patience.items() if key not in table.write_options},
        CONCURRENCY_MODE: "OPTIMISTIC_CONCURRENCY_CONTROL",
        "hoodie.clean.failed.writes.policy": "LAZY",
    }


class TableLock:
    """The lock of one table, taken through a Java write client that has the table's own lock settings.

    A lock of this process comes first: two clients of one process would otherwise meet in Hudi's, which one of them
    may then give up. Used by one thread.
    """

    def __init__(self, table: TableRef, spark: "SparkSession", guard: Any) -> None:
        self.table = table
        self._spark = spark
        self._guard = guard
        self._base = Storage(table.location).base
        self._was_busy = False

    @contextmanager
    def held(self, doing: str, owner: Any) -> Iterator[None]:
        """Hold the lock while the block runs; ``owner`` is Hudi's Option of the instant that it is held for.

        Raises Transient naming the lock file where the lock is not to be had.
        """
        with _registry:
            local = _local_locks.setdefault(self._base, threading.RLock())
        self._refuse_a_full_disk(doing)
        with local:
            manager = self._guard.getTableServiceClient().getTransactionManager()
            nobody = self._spark._jvm.org.apache.hudi.common.util.Option.empty()
            try:
                manager.beginStateChange(owner, nobody)
            except Exception as error:
                self._was_busy = True
                raise translate(error, self.table, doing) from error
            try:
                yield
            finally:
                manager.endStateChange(owner)

    def _refuse_a_full_disk(self, doing: str) -> None:
        """Hudi's lock-file provider leaves an empty lock file for ever where there is no room to write into it."""
        jvm: Any = self._spark._jvm
        path = jvm.org.apache.hadoop.fs.Path(self._base)
        remaining = (
            path.getFileSystem(self._spark.sparkContext._jsc.hadoopConfiguration()).getStatus(path).getRemaining()
        )
        if remaining < _LOCK_ROOM_BYTES:
            raise Transient(
                f"{self.table.name}: the disk is full, {remaining} bytes are free while {doing}; free space"
            )

    def close(self) -> None:
        """Close the Java client; never raises."""
        # A lock-file provider that did not get the lock deletes the holder's file when it is closed.
        if self._was_busy and _FILE_LOCK in self.table.write_options.get(LOCK_PROVIDER, ""):
            return
        with suppress(Exception):
            self._guard.close()

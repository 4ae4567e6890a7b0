# SPDX-License-Identifier: Apache-2.0
"""The proof that Hudi's storage-based lock is still held: its own provider, on an S3 with conditional writes.

The bundle has the provider, its lock file and its heartbeat. What writes the object to S3 is in Hudi's jar for AWS,
which the tests do not have: here it is this module's, with the same conditions.
"""

import re
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import obstore
import pytest
from obstore import exceptions
from obstore.store import S3Store
from pyspark.java_gateway import ensure_callback_server_started
from s3_server import S3Server
from waiting import wait_for

from lake.formats.hudi.client.locks.hudi_lock import HudiLock, acquired_hudi_lock
from lake.formats.hudi.jvm.bundle import bundle_of
from lake.formats.hudi.jvm.class_cache import cached_jvm
from lake.storage import s3

pytestmark = [pytest.mark.spark, pytest.mark.slow]
KEY = "trips/.hoodie/.locks/table_lock.json"
PROVIDER = "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider"
VALIDITY = timedelta(seconds=10)


class LockObject:
    """Reads and replaces the lock's object, for Hudi's provider."""

    def __init__(self, jvm: Any, store: S3Store) -> None:
        self.store, self._jvm = store, jvm
        self._models = jvm.org.apache.hudi.client.transaction.lock.models

    def _pair(self, result: Any, file: Any = None) -> Any:
        hudi = self._jvm.org.apache.hudi.common.util
        return hudi.collection.Pair.of(result, hudi.Option.empty() if file is None else hudi.Option.of(file))

    def tryUpsertLockFile(self, data: Any, previous: Any) -> Any:  # noqa: N802 - as in Java
        results, content = self._models.LockUpsertResult, bytes(self._models.StorageLockFile.toByteArray(data))
        mode: Any = {"e_tag": previous.get().getVersionId()} if previous.isPresent() else "create"
        try:
            tag = obstore.put(self.store, KEY, content, mode=mode)["e_tag"]
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError, FileNotFoundError):
            return self._pair(results.ACQUIRED_BY_OTHERS)
        except exceptions.BaseError:
            return self._pair(results.UNKNOWN_ERROR)
        return self._pair(results.SUCCESS, self._models.StorageLockFile(data, tag))

    def readCurrentLockFile(self) -> Any:  # noqa: N802
        results = self._models.LockGetResult
        try:
            found = obstore.get(self.store, KEY)
        except FileNotFoundError:
            return self._pair(results.NOT_EXISTS)
        except exceptions.BaseError:
            return self._pair(results.UNKNOWN_ERROR)
        stream = self._jvm.java.io.ByteArrayInputStream(bytearray(found.bytes()))
        return self._pair(
            results.SUCCESS, self._models.StorageLockFile.createFromStream(stream, str(found.meta["e_tag"]))
        )

    def readObject(self, path: str, check_first: bool) -> Any:  # noqa: N802
        return self._jvm.org.apache.hudi.common.util.Option.empty()

    def close(self) -> None:
        """Nothing to close."""

    class Java:
        implements = ("org.apache.hudi.client.transaction.lock.StorageLockClient",)


class Function3:
    """A function of three arguments for Java."""

    def __init__(self, function: Callable[[Any, Any, Any], Any]) -> None:
        self._function = function

    def apply(self, first: Any, second: Any, third: Any) -> Any:
        return self._function(first, second, third)

    class Java:
        implements = ("org.apache.hudi.common.util.Functions$Function3",)


class Holder:
    """A process that takes the lock: Hudi's provider, and lakefold's proof of the acquisition."""

    def __init__(self, spark: Any, store: S3Store, name: str) -> None:
        jvm = cached_jvm(spark)
        self.bundle, self.object = bundle_of(spark), LockObject(jvm, store)
        properties = jvm.org.apache.hudi.common.config.TypedProperties()
        for key, value in {
            "hoodie.base.path": "s3a://lake/trips",
            "hoodie.write.lock.storage.validity.timeout.secs": f"{VALIDITY.total_seconds():.0f}",
            # The same under its older and its newer name.
            "hoodie.write.lock.storage.heartbeat.poll.secs": "1",
            "hoodie.write.lock.storage.renew.interval.secs": "1",
        }.items():
            properties.setProperty(key, value)
        beats = jvm.org.apache.hudi.client.transaction.lock.models.LockProviderHeartbeatManager
        arguments = jvm.java.util.ArrayList()
        arguments.add(name)
        arguments.add(properties)
        arguments.add(Function3(lambda owner, milliseconds, renew: beats(owner, milliseconds, renew)))
        arguments.add(Function3(lambda owner, path, settings: self.object))
        arguments.add(jvm.org.slf4j.LoggerFactory.getLogger(PROVIDER))
        arguments.add(None)
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        (constructor,) = [
            one
            for one in jvm.java.lang.Class.forName(PROVIDER, True, loader).getDeclaredConstructors()
            if one.getParameterCount() == 6
        ]
        constructor.setAccessible(True)
        self.provider = constructor.newInstance(arguments.toArray())

    def take(self) -> HudiLock:
        assert self.provider.tryLock()
        stand_in = SimpleNamespace(
            lock_provider=lambda guard: self.provider,
            private_field=self.bundle.private_field,
            call_private=self.bundle.call_private,
            jvm=self.bundle.jvm,
        )
        return acquired_hudi_lock(stand_in, None, None, None, time.monotonic())  # type: ignore[arg-type]

    @property
    def valid_until(self) -> int:
        return int(self.provider.getLock().getValidUntilMs())


@pytest.fixture
def store(bucket: str, s3_server: S3Server) -> S3Store:
    return s3.access(bucket).conditional_store(bucket)


@pytest.fixture
def holder(spark: Any, store: S3Store) -> Iterator[Callable[[str], Holder]]:
    """Makes holders, and ends them."""
    ensure_callback_server_started(spark.sparkContext._gateway)
    made: list[Holder] = []

    def new(name: str) -> Holder:
        made.append(Holder(spark, store, name))
        return made[-1]

    yield new
    for one in made:
        one.provider.close()


def test_a_storage_lock_is_renewed_when_it_is_confirmed(holder: Callable[[str], Holder], store: S3Store) -> None:
    ours, theirs = holder("ours"), holder("theirs")
    lock = ours.take()
    assert (type(lock).__name__, lock.validity) == ("_StorageLock", VALIDITY)
    assert not theirs.provider.tryLock(), "the object says whose it is"
    tag, until = obstore.head(store, KEY)["e_tag"], ours.valid_until
    time.sleep(0.01)
    assert lock.loss_reason() is None
    assert obstore.head(store, KEY)["e_tag"] != tag, "for others to see"
    assert ours.valid_until > until
    ours.provider.unlock()
    assert theirs.take().loss_reason() is None


def test_a_storage_lock_that_another_holder_has_replaced_is_lost(
    holder: Callable[[str], Holder], store: S3Store
) -> None:
    ours, theirs = holder("ours"), holder("theirs")
    lock = ours.take()
    obstore.delete(store, KEY)  # or expired: another one takes it
    other = theirs.take()
    assert lock.loss_reason() == "its file was replaced by another process, or could not be replaced"
    assert other.loss_reason() is None, "its holder's renewal was not disturbed"


def test_a_storage_lock_that_its_store_does_not_let_renew_is_held_for_half_of_its_validity_only(
    holder: Callable[[str], Holder], store: S3Store
) -> None:
    ours = holder("ours")
    lock = ours.take()
    ours.object.store = S3Store(
        "lake",
        endpoint="http://127.0.0.1:1",
        region="us-east-1",
        access_key_id="a",
        secret_access_key="b",
        retry_config={"max_retries": 0},
        client_options={"allow_http": True, "connect_timeout": "500ms"},
    )
    taken_until = ours.valid_until
    assert lock.loss_reason() is None, "until then no other process may take it"
    wait_for(lambda: lock.loss_reason() is not None, "the loss", 15)
    assert re.fullmatch(r"it could not be renewed and expires in [\d.]+ m?s", str(lock.loss_reason()))
    assert ours.valid_until == taken_until
    ours.object.store = store
    assert lock.loss_reason() is None
    assert ours.valid_until > taken_until

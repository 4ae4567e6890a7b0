# SPDX-License-Identifier: Apache-2.0
"""The proof that a lock is still held, where the lock is an item of DynamoDB, and where nothing can be asked of it."""

import uuid
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from s3_server import S3Server

from lake import stopwatch
from lake.formats.hudi.client.locks.hudi_lock import UNKNOWN_VALIDITY, HudiLock, acquired_hudi_lock
from lake.stopwatch import Stopwatch

LEASE = timedelta(seconds=60)


class Clock:
    """The clocks by which a lock's age is told. They go on where a test says so."""

    def __init__(self) -> None:
        self.now, self.suspended = 1000.0, 0.0

    def monotonic(self) -> float:
        return self.now - self.suspended

    def time(self) -> float:
        return self.now

    def passes(self, span: timedelta, *, suspended: bool = False) -> None:
        """Let time pass; the monotonic clock of a machine that is ``suspended`` stands still meanwhile."""
        self.now += span.total_seconds()
        self.suspended += span.total_seconds() if suspended else 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(stopwatch, "time", made)
    return made


class LockNotGrantedError(Exception):
    """Amazon's ``LockNotGrantedException``."""


class LockItem:
    """One acquisition as Amazon's lock client for DynamoDB has it: its calls on the wire, and no more.

    Hudi's classes for AWS are in a jar that the tests do not have, so this double sends what Amazon's client sends to
    an emulator of DynamoDB: a put for a lock that is free or was silent for its whole lease, and an update under the
    condition that owner and version are those of the last one. The version is a new one each time.
    """

    def __init__(self, store: Any, clock: Clock, key: str = "trips") -> None:
        self.store, self._clock, self._key = store, clock, {"key": key}
        self._owner, self._version = uuid.uuid4().hex, uuid.uuid4().hex
        self._renewed = clock.now

    def acquire(self, silent: str | None = None) -> "LockItem":
        """Take the lock where there is none, or where the version ``silent`` has not changed for its lease."""
        condition: dict[str, Any] = {"ConditionExpression": "attribute_not_exists(#k)"}
        names = {"#k": "key"}
        if silent is not None:
            condition = {"ConditionExpression": "#v = :seen", "ExpressionAttributeValues": {":seen": silent}}
            names = {"#v": "recordVersionNumber"}
        item = self._key | {"ownerName": self._owner, "recordVersionNumber": self._version}
        self.store.put_item(Item=item, ExpressionAttributeNames=names, **condition)
        return self

    @property
    def version(self) -> str:
        """What others see of it."""
        return str(self.store.get_item(Key=self._key, ConsistentRead=True)["Item"]["recordVersionNumber"])

    def getLeaseDuration(self) -> int:  # noqa: N802 - as in Java
        return int(LEASE.total_seconds() * 1000)

    def isExpired(self) -> bool:  # noqa: N802
        return self._clock.now - self._renewed > LEASE.total_seconds()

    def sendHeartBeat(self) -> None:  # noqa: N802
        if self.isExpired():
            raise LockNotGrantedError("Cannot send heartbeat because lock is not granted")
        version, began = uuid.uuid4().hex, self._clock.now
        try:
            self.store.update_item(
                Key=self._key,
                UpdateExpression="SET recordVersionNumber = :new",
                ConditionExpression="recordVersionNumber = :known AND ownerName = :owner",
                ExpressionAttributeValues={":new": version, ":known": self._version, ":owner": self._owner},
            )
        except ClientError as error:
            if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
                raise
            text = "Someone else acquired the lock, so we will stop heartbeating it"
            raise LockNotGrantedError(text) from error
        self._version, self._renewed = version, began


def provider(name: str, lock: object = None, parent: str = "java.lang.Object") -> Any:
    """What is asked of a lock provider of the Java class ``name``."""

    def java_class(names: tuple[str, ...]) -> Any:
        if not names:
            return None
        return SimpleNamespace(getName=lambda: names[0], getSuperclass=lambda: java_class(names[1:]))

    return SimpleNamespace(getClass=lambda: java_class((name, parent)), getLock=lambda: lock)


def held(found: Any, begun: Stopwatch | None = None) -> HudiLock:
    return acquired_hudi_lock(
        SimpleNamespace(lock_provider=lambda guard: found), None, None, None, begun or Stopwatch()
    )  # type: ignore[arg-type]


def dynamodb(endpoint: str) -> Any:
    """The table of locks at ``endpoint``, asked once."""
    resource = boto3.resource(
        "dynamodb",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="AKIATESTS",
        aws_secret_access_key="s3cret-of-the-tests",
        config=Config(retries={"max_attempts": 0}, connect_timeout=2),
    )
    return resource.Table("locks")


@pytest.fixture
def locks(s3_server: S3Server) -> Iterator[Any]:
    table = dynamodb(s3_server.endpoint)
    table.meta.client.create_table(
        TableName="locks",
        KeySchema=[{"AttributeName": "key", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "key", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    yield table
    table.delete()


def of_dynamodb(item: LockItem) -> HudiLock:
    return held(
        provider(
            "org.apache.hudi.aws.transaction.lock.DynamoDBBasedLockProvider",
            item,
            "org.apache.hudi.aws.transaction.lock.DynamoDBBasedLockProviderBase",
        )
    )


def test_a_lock_of_dynamodb_is_renewed_when_it_is_confirmed(locks: Any, clock: Clock) -> None:
    item = LockItem(locks, clock).acquire()
    lock = of_dynamodb(item)
    assert (type(lock).__name__, lock.validity) == ("_DynamoDbItem", LEASE)
    before = item.version
    for _ in range(3):
        clock.passes(LEASE * 0.75)
        assert lock.loss_reason() is None
    assert item.version != before, "in the database, for others to see"


def test_a_lock_of_dynamodb_that_another_holder_has_replaced_is_lost(locks: Any, clock: Clock) -> None:
    item = LockItem(locks, clock).acquire()
    lock = of_dynamodb(item)
    other = LockItem(locks, clock).acquire(silent=item.version)
    assert "Someone else acquired the lock" in str(lock.loss_reason())
    assert of_dynamodb(other).loss_reason() is None, "its holder's renewal was not disturbed"


def test_a_lock_of_dynamodb_whose_lease_ended_unnoticed_is_lost_though_its_item_is_there(
    locks: Any, clock: Clock
) -> None:
    item = LockItem(locks, clock).acquire()
    lock = of_dynamodb(item)
    clock.passes(LEASE * 1.5)
    assert "lock is not granted" in str(lock.loss_reason())


def test_a_lock_of_dynamodb_is_lost_where_the_database_does_not_answer_or_answers_late(
    locks: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = LockItem(locks, clock).acquire()
    lock = of_dynamodb(item)
    there, item.store = item.store, dynamodb("http://127.0.0.1:1")
    assert "Could not connect" in str(lock.loss_reason())
    item.store = there
    assert lock.loss_reason() is None
    send = item.sendHeartBeat

    def late() -> None:
        send()
        clock.passes(LEASE * 0.6)

    monkeypatch.setattr(item, "sendHeartBeat", late)
    assert lock.loss_reason() == "its renewal took 36 s, more than half of the 60 s for which the store keeps it"


def test_a_lock_that_can_not_be_verified_counts_as_held_for_a_minute_after_its_request(
    clock: Clock,
) -> None:
    lock = held(provider("com.example.OwnLockProvider"), begun=Stopwatch())
    assert (UNKNOWN_VALIDITY, lock.validity) == (timedelta(minutes=1), None)
    assert lock.loss_reason() is None
    clock.passes(timedelta(seconds=60))
    assert lock.loss_reason() is None
    clock.passes(timedelta(seconds=1))
    assert lock.loss_reason() == (
        "a lock of com.example.OwnLockProvider can't be queried, and it was taken 61 s ago, more than 60 s"
    )
    with lock.renewed():
        assert lock.loss_reason() is not None, "nor can it be renewed"
    assert not lock.force_release()


def test_a_lock_is_lost_when_the_machine_was_suspended_for_longer_than_it_is_kept(clock: Clock) -> None:
    lock = held(provider("com.example.OwnLockProvider"), begun=Stopwatch())
    clock.passes(UNKNOWN_VALIDITY + timedelta(seconds=1), suspended=True)
    assert lock.loss_reason() is not None

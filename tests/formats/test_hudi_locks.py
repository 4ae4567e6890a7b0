# SPDX-License-Identifier: Apache-2.0
"""Locks and conflicts between lakefold and a writer in another JVM that is stopped in the middle of its write."""

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark
import pytest
from hive_metastore import MetastoreServer
from hudi_other_writer import OtherWriter
from hudi_writing import LOCK, NewTable, Table, ignore
from py4j.protocol import Py4JJavaError
from s3_server import S3Server
from support import free_port
from waiting import wait_for

from executors.spark import java_home
from lake.errors import Conflict, Rejected, Transient
from lake.formats.hudi.client import client as client_module
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.jvm.errors import java_cause_chain
from lake.formats.hudi.lock_settings.on_conflict import (
    CONFLICT_STRATEGY_KEY,
    PENDING_INGESTION,
    UPDATES_STRATEGY_KEY,
    WRITER_WINS_OPTIONS,
)
from lake.formats.hudi.rewrite import execute
from lake.formats.hudi.timeline.timeline import Timeline
from lake.model import OnConflict

pytestmark = pytest.mark.spark
PROVIDERS = "org.apache.hudi.client.transaction.lock."


def ingests(trips: Table) -> dict[str, str]:
    """Pending writes of others with their state."""
    return {i.time: i.state.value for i in trips.timeline().pending if i.kind != "clustering"}


def commit_beside_releases(writer: Any, rewrite: Any) -> Any:
    """Commit, and again after a lost lock, as an executor does.

    Hudi's ``LockManager.unlock()`` deletes the lock file twice. If lakefold, which waits for the writer, takes the lock
    in between, the second deletion takes it away.
    """
    while True:
        try:
            return writer.commit(rewrite)
        except Transient as error:
            if "the lock file was taken away by another process" not in str(error):
                raise


def test_trap_a_streaming_writer_in_the_middle_of_its_metadata_is_waited_for(
    table: NewTable, other: OtherWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips = table("metadata", **LOCK)
    rows_before = trips.rows()

    def between() -> bool:
        parts = {i.time for i in Timeline(TableStorage(str(trips.base / ".hoodie/metadata"))).pending}
        return bool(parts & set(ingests(trips)))

    plan = trips.plan()
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        options = LOCK | {"hoodie.metadata.streaming.write.enabled": "true"}
        other.write(trips.base, "bulk_insert", 1000, 1050, options, "true")
        other.stop_when(between, trips.base / ".hoodie/lock")
        rewrite = writer.rewrite(prepared, ignore)
        assert between(), "writing data files touches nothing of the metadata table"
        monkeypatch.setattr(client_module, "STREAMING_WRITER_TIMEOUT", timedelta(seconds=1))
        with pytest.raises(Transient, match="in the middle of its streaming write to the metadata table for 1 s while"):
            writer.commit(rewrite)
        assert between(), "the part that the writer has there was not rolled back"
        monkeypatch.setattr(client_module, "STREAMING_WRITER_TIMEOUT", timedelta(seconds=120))
        threading.Timer(1.0, other.go_on).start()
        commit = commit_beside_releases(writer, rewrite)
    assert other.answer() == "done"
    assert [row for row in trips.rows() if row in set(rows_before)] == rows_before
    assert len(trips.rows()) == len(rows_before) + 50
    assert {output.path for output in commit.outputs} <= set(trips.data_files())


TAKE_WHEN_FREE = """
import os, sys
for line in sys.stdin:
    print("waiting", flush=True)
    while True:
        try:
            os.close(os.open(sys.argv[1], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        break
    print("taken", flush=True)
"""


def test_a_release_deletes_the_lock_file_once_and_leaves_that_of_the_next_holder(table: NewTable) -> None:
    """Hudi's own release deletes the file again, perhaps when a writer has already taken the lock."""
    trips = table(**LOCK)
    lock, client = trips.base / ".hoodie/lock", HudiClient(trips.ref, trips.spark)
    command = [sys.executable, "-c", TAKE_WHEN_FREE, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as next_holder:
        assert next_holder.stdin is not None
        assert next_holder.stdout is not None
        for _ in range(20):
            with client.locked("testing"):
                next_holder.stdin.write("\n")
                assert next_holder.stdout.readline() == "waiting\n"
            assert next_holder.stdout.readline() == "taken\n"
            assert lock.exists()
            lock.unlink()
    with client.locked("testing"):
        assert lock.exists()
    client.close()
    assert not lock.exists()


@pytest.mark.parametrize("state", ["requested", "inflight"])
@pytest.mark.crossed
def test_trap_a_writer_that_is_inflight_at_our_commit_wins_under_prefer_writer(
    table: NewTable, other: OtherWriter, state: str
) -> None:
    trips = table(**LOCK)
    trips.on_conflict = OnConflict.WRITER_WINS
    rows_before = trips.rows()
    plan = trips.plan()
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        options = LOCK | WRITER_WINS_OPTIONS | {"hoodie.metadata.streaming.write.enabled": "false"}
        other.write(trips.base, "upsert", 0, 180, options, "id % 10 = 3")
        other.stop_when(lambda: state in ingests(trips).values(), trips.base / ".hoodie/lock")
        stopped = ingests(trips)
        with pytest.raises(Conflict, match="a writer was faster while committing"):
            writer.commit(rewrite)
        assert ingests(trips) == stopped
        other.go_on()
        assert other.answer() == "done"
        assert writer.withdraw(plan.plan_id, [rewrite.prepared.instant]) == 1
    rows = trips.rows()
    assert sum(row not in set(rows_before) for row in rows) == 18
    assert len(rows) == len(rows_before)
    trips.run(trips.plan("again"))
    assert trips.rows() == rows


def test_a_writer_that_was_inflight_before_the_plans_commit_loses_where_the_plan_wins(
    table: NewTable, other: OtherWriter
) -> None:
    trips = table(**LOCK)
    rows_before = trips.rows()
    plan = trips.plan()
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        other.write(trips.base, "upsert", 0, 180, LOCK, "id % 10 = 3")
        assert "HoodieClusteringUpdateException" in other.answer()
        writer.commit(rewrite)
    assert trips.rows() == rows_before


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[int]:
    """The port of a ZooKeeper server, started from the jars that Spark brings."""
    port = free_port()
    command = [f"{java_home()}/bin/java", "-Xmx256m", "-Dzookeeper.admin.enableServer=false"]
    command += ["-Dzookeeper.4lw.commands.whitelist=ruok,dump", "-cp", f"{Path(pyspark.__file__).parent / 'jars'}/*"]
    command += ["org.apache.zookeeper.server.ZooKeeperServerMain", str(port), str(tmp_path / "data")]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        log = tmp_path / "log"
        wait_for(lambda: "imok" in ask_zookeeper(port, "ruok"), lambda: f"ZooKeeper: {log.read_text()[-2000:]}", 120)
        yield port
    finally:
        server.kill()
        server.wait()


def check_exclusion(trips: Table, note: str) -> None:
    """lakefold gives up while another client has the lock, and the other way round."""
    other, ours = HudiClient(trips.ref, trips.spark), HudiClient(trips.ref, trips.spark)
    manager = other._lock_client.getTableServiceClient().getTransactionManager()
    manager.beginStateChange(other.empty_option, other.empty_option)
    with pytest.raises(Transient, match=f"not free while testing; {note}"), ours.locked("testing"):
        pass
    manager.endStateChange(other.empty_option)
    with ours.locked("testing"), pytest.raises(Py4JJavaError) as refused:
        manager.beginStateChange(other.empty_option, other.empty_option)
    assert "org.apache.hudi.exception.HoodieLockException" in dict(java_cause_chain(refused.value))
    for client in (other, ours):
        client.close()


def ask_zookeeper(port: int, word: str) -> str:
    """The answer to one of ZooKeeper's four-letter words; '' without a server."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(word.encode())
            return b"".join(iter(lambda: connection.recv(4096), b"")).decode()
    except OSError:
        return ""


def test_lakefold_and_a_writer_exclude_each_other_through_zookeeper(
    table: NewTable, other: OtherWriter, zookeeper: int
) -> None:
    lock = {
        "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
        "hoodie.clean.failed.writes.policy": "LAZY",
        "hoodie.write.lock.provider": f"{PROVIDERS}ZookeeperBasedLockProvider",
        "hoodie.write.lock.zookeeper.url": f"127.0.0.1:{zookeeper}",
        "hoodie.write.lock.zookeeper.base_path": "/hudi",
        "hoodie.write.lock.zookeeper.lock_key": "trips",
    }
    trips = table(**lock, **{"hoodie.write.lock.wait_time_ms": "500", "hoodie.write.lock.client.num_retries": "1"})

    def contenders() -> int:
        return ask_zookeeper(zookeeper, "dump").count("/hudi/trips/")

    rows_before = trips.rows()
    client = HudiClient(trips.ref, trips.spark)
    with client.locked("testing"):
        assert contenders() == 1
        other.write(trips.base, "bulk_insert", 1000, 1050, lock, "true")
        wait_for(lambda: contenders() >= 2, "the writer's own wish for the lock", 120)
        assert ingests(trips) == {}, "the writer waits for the lock that lakefold has"
    assert other.answer() == "done"
    client.close()
    check_exclusion(trips, "it is /hudi/trips on ZooKeeper")
    plan = trips.plan()
    trips.run(plan)
    rows = trips.rows()
    assert len(rows) == len(rows_before) + 50
    assert set(rows_before) < set(rows)
    assert contenders() == 0


def test_a_lock_whose_zookeeper_session_ended_is_lost_though_another_thread_of_the_process_has_it(
    table: NewTable, zookeeper: int
) -> None:
    lock = {
        "hoodie.write.lock.provider": f"{PROVIDERS}ZookeeperBasedLockProvider",
        "hoodie.write.lock.zookeeper.url": f"127.0.0.1:{zookeeper}",
        "hoodie.write.lock.zookeeper.base_path": "/hudi",
        "hoodie.write.lock.zookeeper.lock_key": "trips",
    }
    trips = table(**lock)
    rows, plan = trips.rows(), trips.plan()
    other = HudiClient(trips.ref, trips.spark)
    manager = other._lock_client.getTableServiceClient().getTransactionManager()

    def lose_session(client: HudiClient) -> None:
        """End the session as the server does when it has not heard of it for long, and give the lock to a writer."""
        provider = client.bundle.lock_provider(client._lock_client)
        curator = client.bundle.private_field(provider, "curatorFrameworkClient")
        session = curator.getZookeeperClient().getZooKeeper()
        kind = client.jvm.org.apache.zookeeper.ZooKeeper
        same = kind(f"127.0.0.1:{zookeeper}", 10_000, None, session.getSessionId(), session.getSessionPasswd())
        wait_for(lambda: same.getState().isConnected(), "a second connection of the session")
        same.close()
        manager.beginStateChange(other.empty_option, other.empty_option)

    client = HudiClient(trips.ref, trips.spark)
    with client.locked("testing"):
        client.assert_lock_held("testing")
        lose_session(client)
        with pytest.raises(
            Transient, match=r"lock was lost while testing: its node /hudi/trips/\S+ on ZooKeeper no longer exists"
        ):
            client.assert_lock_held("testing")
    client.close()
    manager.endStateChange(other.empty_option)
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        writer.fence = lambda: lose_session(writer._open())
        with pytest.raises(Transient, match="lock was lost while committing"):
            writer.commit(rewrite)
        manager.endStateChange(other.empty_option)
        writer.fence = lambda: None
        writer.commit(rewrite)
    other.close()
    assert trips.rows() == rows


@pytest.fixture
def locking(spark: Any) -> Iterator[MetastoreServer]:
    """A Hive metastore with the tables that its locks are in."""
    server, java = MetastoreServer(), spark.sparkContext._jvm
    url, conf = f"jdbc:derby:;databaseName={server.home}/derby", java.org.apache.hadoop.hive.conf.HiveConf()
    conf.set("javax.jdo.option.ConnectionURL", f"{url};create=true")
    java.org.apache.hadoop.hive.metastore.txn.TxnDbUtil.prepDb(conf)
    with suppress(Py4JJavaError):  # as Derby says that a database is closed, which only one process may have open
        java.org.apache.derby.jdbc.EmbeddedDriver().connect(f"{url};shutdown=true", java.java.util.Properties())
    try:
        server.start()
        yield server
    finally:
        server.remove()


def test_a_lock_that_the_metastore_has_let_expire_is_lost_and_ends_the_commit(
    table: NewTable, locking: MetastoreServer
) -> None:
    lock = {
        "hoodie.write.lock.provider": "org.apache.hudi.hive.transaction.lock.HiveMetastoreBasedLockProvider",
        "hoodie.write.lock.hivemetastore.database": "default",
        "hoodie.write.lock.hivemetastore.table": "trips",
        "hoodie.write.lock.hivemetastore.uris": locking.uri,
        "hoodie.write.lock.wait_time_ms": "20000",
        "hoodie.write.lock.client.num_retries": "1",
    }
    trips = table(**lock)
    rows, plan = trips.rows(), trips.plan()
    other = HudiClient(trips.ref, trips.spark)
    manager = other._lock_client.getTableServiceClient().getTransactionManager()

    def lose(client: HudiClient) -> None:
        """Free the lock as the metastore does when it has not heard of it for long, and give it to a writer."""
        provider = client.bundle.lock_provider(client._lock_client)
        provider.getHiveClient().unlock(provider.getLock().getLockid())
        manager.beginStateChange(other.empty_option, other.empty_option)

    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        writer.fence = lambda: lose(writer._open())
        reason = r"lock was lost while committing: the metastore no longer has lock \d+"
        with pytest.raises(Transient, match=reason):
            writer.commit(rewrite)
        manager.endStateChange(other.empty_option)
        writer.fence = lambda: None
        writer.commit(rewrite)
    other.close()
    assert trips.rows() == rows


@pytest.mark.shown_by(
    "tests/formats/test_hudi_locks.py::test_lakefold_and_a_writer_exclude_each_other_through_zookeeper"
)
def test_on_s3_the_lock_is_zookeepers_and_a_provider_whose_jar_is_missing_is_refused(
    table: NewTable, zookeeper: int, bucket: str, s3_server: S3Server
) -> None:
    local = table()
    s3_server.tell(local.spark)
    location = s3_server.upload(Path(local.base), f"s3a://{bucket}/trips")
    lock = {
        "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
        "hoodie.clean.failed.writes.policy": "LAZY",
        "hoodie.write.lock.provider": f"{PROVIDERS}ZookeeperBasedLockProvider",
        "hoodie.write.lock.zookeeper.url": f"127.0.0.1:{zookeeper}",
        "hoodie.write.lock.zookeeper.base_path": "/hudi",
        "hoodie.write.lock.zookeeper.lock_key": "trips",
        "hoodie.write.lock.wait_time_ms": "500",
        "hoodie.write.lock.client.num_retries": "1",
    }
    trips = Table(local.spark, location, lock)
    check_exclusion(trips, "it is /hudi/trips on ZooKeeper")
    trips.upsert(0, 30, 1)
    rows = trips.rows()
    trips.run(trips.plan())
    assert trips.rows() == rows
    without_jar = Table(local.spark, location, {"hoodie.write.lock.provider": f"{PROVIDERS}StorageBasedLockProvider"})
    with pytest.raises(Rejected, match=r"Spark lacks a class while .*; add the jar that has it"):
        without_jar.run(trips.plan())


@pytest.mark.parametrize(
    "provider",
    [
        f"{PROVIDERS}FileSystemBasedLockProvider",
        f"{PROVIDERS}ZookeeperBasedLockProvider",
        f"{PROVIDERS}StorageBasedLockProvider",
        "org.apache.hudi.hive.transaction.lock.HiveMetastoreBasedLockProvider",
    ],
)
def test_every_lock_setting_reaches_hudi_as_it_was_written(table: NewTable, provider: str) -> None:
    options = {
        "hoodie.write.lock.provider": provider,
        "hoodie.write.lock.filesystem.expire": "7",
        "hoodie.write.lock.zookeeper.url": "zk.internal",
        "hoodie.write.lock.zookeeper.base_path": "/hudi",
        "hoodie.write.lock.zookeeper.lock_key": "trips",
        "hoodie.write.lock.hivemetastore.database": "db",
        "hoodie.write.lock.hivemetastore.table": "trips",
        "hoodie.write.lock.storage.validity.timeout.secs": "77",
        "hoodie.write.lock.client.num_retries": "3",
    }
    trips = table(**options)
    trips.on_conflict = OnConflict.WRITER_WINS
    client = HudiClient(trips.ref, trips.spark)
    try:
        config = client._lock_client.getConfig()
        assert config.getLockProviderClass() == provider
        properties = config.getProps()
        assert {key: properties.getProperty(key) for key in options} == options
        assert properties.getProperty("hoodie.write.lock.client.wait_time_ms_between_retry") == "1000"
        chosen = {
            key: properties.getProperty(key) for key in (CONFLICT_STRATEGY_KEY, UPDATES_STRATEGY_KEY, PENDING_INGESTION)
        }
        assert chosen == WRITER_WINS_OPTIONS
        assert config.isClusteringBlockForPendingIngestion()
    finally:
        client.close()


@pytest.mark.parametrize("is_adopted", [False, True])
def test_the_inputs_of_a_sorted_plan_are_read_and_sorted_without_the_tables_lock(
    table: NewTable, monkeypatch: pytest.MonkeyPatch, is_adopted: bool
) -> None:
    """To build the write of a sort, Spark reads all rows."""
    trips = table("cow", **LOCK)
    before = trips.rows()
    plan = trips.plan(sort_columns=("fare",))
    if is_adopted:
        with trips.writer() as owner:
            plan = replace(plan, adopted_instant=owner.prepare(plan, 1).instant)
        plan = replace(plan, plan_id="0198-adopted")
    begin, sort, jobs = HudiClient.begin_rewrite, execute.sort_inputs, dict[str, int]()

    def counted(call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def count() -> int:
            return int(trips.spark.sparkContext._jsc.sc().statusStore().jobsList(None).size())

        def run(*arguments: Any) -> Any:
            assert (trips.base / ".hoodie/lock").exists() == (name == "begin")
            earlier = count()
            result = call(*arguments)
            jobs[name] = count() - earlier
            return result

        return run

    monkeypatch.setattr(HudiClient, "begin_rewrite", counted(begin, "begin"))
    monkeypatch.setattr(execute, "sort_inputs", counted(sort, "sort"))
    commit = trips.run(plan)
    assert jobs["begin"] == 0
    assert jobs["sort"] > 0
    assert trips.rows() == before
    for output in commit.outputs:
        fares = pq.read_table(trips.base / output.path, columns=["fare"])["fare"].to_pylist()
        assert fares == sorted(fares)

# SPDX-License-Identifier: Apache-2.0
"""The client of a Hive metastore against a real one, with tables that Spark has made."""

import signal
import time
from collections.abc import Iterator
from datetime import timedelta

import hive_metastore
import pytest
from hive_metastore import MetastoreServer
from waiting import suspend

from lake.errors import CommitUnknown, LakefoldError, Transient
from lake.metastore import MetastoreClient, MetastorePartition, partition_values, pool, pooled_connection
from lake.metastore.thrift import STRING

pytestmark = pytest.mark.slow

ODD_NAMES = [
    "day=2024-01-01/city=K%2FL",
    "day=2024-01-02/city=São Paulo",
    "day=2024-01-03/city=a%3Db c",
    "day=2024-01-04/city=100%25",
    "day=2024-01-05/city=__HIVE_DEFAULT_PARTITION__",
]


@pytest.fixture
def client(hive: MetastoreServer) -> Iterator[MetastoreClient]:
    with MetastoreClient(hive.uri) as opened:
        yield opened


def partition(client: MetastoreClient, table: str, name: str, database: str = "odd") -> MetastorePartition:
    ((found, one),) = client.partitions(database, table, [name])
    assert found == name
    return one


def test_databases_and_tables_are_listed_with_location_and_storage_format(
    client: MetastoreClient, hive: MetastoreServer
):
    assert {"default", "odd", "shop"} <= set(client.databases())
    assert {"orders", "clicks", "moved"} <= set(client.table_names("shop"))
    found = client.table("shop", "orders")
    assert found is not None
    assert (found.name, found.database, found.table_type) == ("orders", "shop", "MANAGED_TABLE")
    assert found.storage.location == f"file:{hive.place}/warehouse/shop.db/orders"
    assert found.partition_columns == (("day", "date"), ("city", "string"))
    assert found.storage.columns == (("id", "bigint"), ("item", "string"), ("price", "decimal(10,2)"))
    assert (found.storage.serde.split(".")[-1], found.storage.bucket_count) == ("ParquetHiveSerDe", -1)
    assert abs(time.time() - found.created_at) < 3600
    (view,) = client.tables("odd", ["view"])
    assert (view.table_type, view.storage.location) == ("VIRTUAL_VIEW", "")


def test_a_missing_table_database_or_partition_is_absent_from_the_answer(client: MetastoreClient):
    assert client.table("shop", "nothing") is None
    assert client.table("nowhere", "orders") is None
    assert list(client.tables("shop", ["nothing"])) == []
    assert list(client.partitions("shop", "orders", ["day=1999-01-01/city=x"])) == []
    with pytest.raises(Transient):
        client.partition_names("shop", "nothing")


def test_partitions_have_the_names_that_hive_gives_to_odd_values(client: MetastoreClient):
    assert sorted(client.partition_names("shop", "orders")) == ODD_NAMES
    found = dict(client.partitions("shop", "orders", ODD_NAMES))
    assert sorted(found) == ODD_NAMES
    for name, one in found.items():
        assert partition_values(name) == one.values
        assert one.storage.location.endswith(f"/orders/{name}")


def test_partitions_change_their_location_and_properties_together(client: MetastoreClient):
    names = ["dt=d0", "dt=d1"]
    before = {name: partition(client, "plain", name) for name in names}
    changed = [
        one.with_changes(
            one.storage.with_location(f"{one.storage.location}-moved"), {**one.parameters, "lakefold.plan": "p"}
        )
        for one in before.values()
    ]
    client.alter_partitions("odd", "plain", changed)
    for name in names:
        after = partition(client, "plain", name)
        assert after.storage.location == f"{before[name].storage.location}-moved"
        assert after.parameters["lakefold.plan"] == "p"
        assert (after.created_at, after.values) == (before[name].created_at, before[name].values)
        assert after.storage.columns == before[name].storage.columns
    client.alter_partitions("odd", "plain", list(before.values()))
    assert {name: partition(client, "plain", name).storage for name in names} == {
        name: one.storage for name, one in before.items()
    }


def test_a_joint_change_of_partitions_changes_none_if_one_was_dropped(client: MetastoreClient):
    before = partition(client, "plain", "dt=d0")
    moved = before.with_changes(before.storage.with_location("file:/tmp/elsewhere"), before.parameters)
    gone = MetastorePartition({**moved.raw, 1: (before.raw[1][0], type(before.raw[1][1])(STRING, ["never"]))})
    with pytest.raises(Transient):
        client.alter_partitions("odd", "plain", [moved, gone])
    assert partition(client, "plain", "dt=d0") == before


def test_a_table_changes_its_properties_and_keeps_all_else(client: MetastoreClient):
    before = client.table("shop", "flat")
    assert before is not None
    client.alter_table("shop", "flat", before.with_changes(before.storage, {**before.parameters, "lakefold.plan": "p"}))
    after = client.table("shop", "flat")
    assert after is not None
    assert after.parameters["lakefold.plan"] == "p"
    assert {**after.raw, 9: None} == {**before.raw, 9: None}
    client.alter_table("shop", "flat", before)


def test_errors_of_an_unavailable_metastore_differ_by_whether_the_call_may_have_taken_effect(
    monkeypatch: pytest.MonkeyPatch,
):
    with hive_metastore.running() as server:
        client = MetastoreClient(server.uri, timeout=timedelta(seconds=1))
        assert client.databases() == ["default"]
        with pooled_connection(server.uri) as kept:
            assert kept.databases() == ["default"]
        kept._socket.settimeout(1)
        suspend(server.pid)
        with pytest.raises(CommitUnknown):
            client.alter_partitions("default", "t", [])
        with pytest.raises(Transient):
            client.databases()
        with pooled_connection(server.uri) as unanswered, pytest.raises(CommitUnknown):
            unanswered.alter_partitions("default", "t", [])
        server.signal(signal.SIGCONT)
        with pooled_connection(server.uri) as other:
            assert (unanswered is kept, other is kept, other.databases()) == (True, False, ["default"])
        with monkeypatch.context() as old, pooled_connection(server.uri) as first:
            old.setattr(pool, "MAX_AGE_SECONDS", 0.0)
            with pooled_connection(server.uri) as another:
                assert first is other is not another
        with MetastoreClient(f"thrift://127.0.0.1:1,{server.uri}") as second:
            assert second.databases() == ["default"]
            server.stop()
            with pytest.raises(LakefoldError):
                second.databases()
        with pytest.raises(Transient, match="no metastore can be reached"):
            MetastoreClient(server.uri)
        with pytest.raises(Transient, match="no metastore can be reached"), pooled_connection(server.uri):
            pass
        client.close()


def test_a_connection_is_reused_by_one_caller_at_a_time_and_sees_changes_of_others(hive: MetastoreServer):
    with pooled_connection(hive.uri) as first, pooled_connection(hive.uri) as second:
        assert first is not second
        for known in (first, second):
            assert partition(known, "plain", "dt=d0").storage.location.endswith("dt=d0")
            assert known.table("shop", "flat") is not None
    with MetastoreClient(hive.uri) as other:
        before, flat = partition(other, "plain", "dt=d0"), other.table("shop", "flat")
        assert flat is not None
        other.alter_partitions(
            "odd", "plain", [before.with_changes(before.storage.with_location("file:/new"), {"a": "b"})]
        )
        other.alter_table("shop", "flat", flat.with_changes(flat.storage, {**flat.parameters, "a": "b"}))
    with pooled_connection(hive.uri) as one, pooled_connection(hive.uri) as another:
        assert {one, another} == {first, second}
        for known in (one, another):
            assert partition(known, "plain", "dt=d0").storage.location == "file:/new"
            changed = known.table("shop", "flat")
            assert changed is not None
            assert changed.parameters["a"] == "b"
        one.alter_partitions("odd", "plain", [before])
        another.alter_table("shop", "flat", flat)

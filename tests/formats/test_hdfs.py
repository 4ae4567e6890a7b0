# SPDX-License-Identifier: Apache-2.0
"""A real HDFS without a JVM of ours: names, errors, and the owners of new files.

Rule 13 is a rule of docs/decisions/0013-moving-a-partition.md.
"""

import os
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from contract.attempts import attempt, run
from contract.plans import plan_all
from hadoop import HadoopCluster
from hdfs_native import AclEntry, Client
from hdfs_paths import HdfsPath, place
from hive_case import HiveCase
from hive_metastore import MetastoreServer
from pyarrow import fs as pafs

from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from lake.errors import Rejected, Transient
from lake.storage import hdfs as native
from lake.storage.filesystems import file_io_of, filesystem_of
from lake.storage.locations import canonical_location, filesystem_key

pytestmark = pytest.mark.slow
ODD = "dt=K%2FL #1?é; b"


@pytest.fixture
def home(hdfs: HadoopCluster) -> HdfsPath:
    made = HdfsPath(f"{hdfs.uri}/of/{uuid.uuid4().hex}")
    made.mkdir(parents=True)
    return made


@pytest.fixture
def case(metastore: MetastoreServer, hdfs: HadoopCluster) -> HiveCase:
    return HiveCase(uri=metastore.uri, root=hdfs.uri, engines=(ArrowEngine(InProcessBackend()),))


def test_pyarrow_reads_writes_lists_and_moves_files_of_any_name(home: HdfsPath):
    filesystem, path = filesystem_of(str(home))
    rows = pa.table({"id": list(range(1000))})
    filesystem.create_dir(f"{path}/{ODD}")
    with filesystem.open_output_stream(f"{path}/{ODD}/a.parquet") as sink:
        pq.write_table(rows, sink)
    filesystem.move(f"{path}/{ODD}/a.parquet", f"{path}/{ODD}/b.parquet")
    (found,) = filesystem.get_file_info(pafs.FileSelector(f"{path}/{ODD}"))
    assert (found.path, found.type) == (f"{path}/{ODD}/b.parquet", pafs.FileType.File)
    assert found.size == (home / ODD / "b.parquet").stat().st_size
    with filesystem.open_input_file(found.path) as file:
        assert pq.read_table(file) == rows
    assert filesystem.get_file_info(f"{path}/nowhere").type is pafs.FileType.NotFound
    assert filesystem.get_file_info(pafs.FileSelector(f"{path}/nowhere", allow_not_found=True)) == []
    for ask in (lambda: filesystem.open_input_file(f"{path}/x"), lambda: filesystem.delete_file(f"{path}/x")):
        with pytest.raises(FileNotFoundError):
            ask()


def test_a_location_has_one_spelling_and_an_unknown_name_service_is_refused_with_the_setting(home: HdfsPath):
    assert canonical_location("HDFS://Name:8020//a//b/") == "hdfs://name:8020/a/b"
    assert filesystem_key("hdfs://name/a/b") == "hdfs://name"
    for location in ("hdfs:///lake/t", "hdfs://nowhere/lake/t"):
        with pytest.raises(Rejected, match=r"name service|HADOOP_CONF_DIR"):
            file_io_of(location).list(location)


def test_an_unreachable_cluster_is_an_error_with_a_number(home: HdfsPath):
    nowhere = "hdfs://127.0.0.1:1/lake"
    native.configure({"spark.hadoop.dfs.client.failover.max.attempts": "1"})
    try:
        with pytest.raises(OSError, match="refused") as told:
            file_io_of(nowhere).list(nowhere)
        assert told.value.errno is not None
    finally:
        native.configure({})


def test_sparks_settings_override_those_of_the_configuration_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "hdfs-site.xml").write_text(
        "<configuration><property><name>dfs.nameservices</name><value> lake </value></property>"
        "<property><name>dfs.replication</name><value>3</value></property></configuration>"
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    native.configure({"spark.hadoop.dfs.replication": "2", "spark.hadoop.fs.s3a.secret.key": "s", "spark.master": "x"})
    try:
        told = native.current_configuration()
        assert (told["dfs.nameservices"], told["dfs.replication"]) == ("lake", "2")
        assert "fs.s3a.secret.key" not in told
        (tmp_path / "core-site.xml").write_text("<configuration>")
        with pytest.raises(Rejected, match=r"core-site\.xml can't be read"):
            native.current_configuration()
    finally:
        native.configure({})


def test_rule_13_new_files_and_directories_on_hdfs_have_the_owners_of_the_replaced_ones(case: HiveCase, tmp_path: Path):
    table = case.create(tmp_path / "t", name="t")
    root = place(table.location)
    client = root.client
    directory = str(case.places(table)["dt=0"].path)
    files = [one.path for one in client.list_status(directory)]
    for path, mode in [(directory, 0o2770), *((path, 0o640) for path in files)]:
        client.set_owner(path, "alice", "analysts")
        client.set_permission(path, mode)
    client.set_acl(
        directory,
        [
            AclEntry("user", "access", "rwx"),
            AclEntry("user", "access", "r-x", "bob"),
            AclEntry("group", "access", "rwx"),
            AclEntry("mask", "access", "rwx"),
            AclEntry("other", "access", "---"),
            AclEntry("user", "default", "rwx"),
            AclEntry("user", "default", "r-x", "bob"),
            AclEntry("group", "default", "rwx"),
            AclEntry("mask", "default", "rwx"),
            AclEntry("other", "default", "---"),
        ],
    )
    rows = case.rows(table)
    run(case, plan_all(case.format, table, "p", partitions=["dt=0"]))
    moved = case.places(table)["dt=0"]
    assert str(moved.path) != directory
    assert told(client, str(moved.path)) == told(client, directory)
    (new,) = moved.iterdir()
    assert told(client, str(new.path)) == told(client, files[0])
    assert case.rows(table) == rows


def told(client: Client, path: str) -> object:
    """What a file or directory says of its owner and of who may do what."""
    status = client.get_file_info(path)
    lists = [(one.type, one.scope, one.permissions, one.name) for one in client.get_acl_status(path).entries]
    return status.owner, status.group, status.permission, lists


def test_rule_13_files_that_their_owner_could_not_overwrite_are_refused_with_the_owner_and_leave_nothing(
    case: HiveCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    table = case.create(tmp_path / "t", name="t")
    root = place(table.location)
    for path in [root, *root.rglob("*"), *case.places(table).values()]:
        root.client.set_owner(str(path.path), "alice", "analysts")
        root.client.set_permission(str(path.path), 0o777)
    before = case.rows(table), dict(case.stored(table))
    monkeypatch.setenv("HADOOP_USER_NAME", "mallory")
    native.configure({})
    try:
        with attempt(case, plan_all(case.format, table, "p")) as one:
            with pytest.raises(Rejected, match=r"belongs to alice:analysts .* lakefold runs as mallory"):
                one.prepared()
            one.discarded(None)
    finally:
        monkeypatch.undo()
        native.configure({})
    assert (case.rows(table), case.stored(table)) == before
    assert [path.name for path in (root / ".lakefold").iterdir()] == []


@pytest.mark.parametrize("room", [2, 8, 10], ids=["directories", "outputs", "the commit's document"])
def test_a_quota_that_is_exceeded_ends_the_attempt_with_the_namenodes_words_and_nothing_of_it_stays(
    case: HiveCase, hdfs: HadoopCluster, tmp_path: Path, room: int
):
    table = case.create(tmp_path / "t", name="t")
    root = place(table.location)
    before = case.rows(table), dict(case.stored(table))
    plan = plan_all(case.format, table, "p")
    hdfs.set_quota(str(root.path), names=root.client.get_content_summary(str(root.path)).file_count + room)
    with attempt(case, plan) as one:
        with pytest.raises(Transient, match="quota"):
            one.committed()
        one.discarded(None)
    hdfs.set_quota(str(root.path), names=None)
    assert (case.rows(table), case.stored(table)) == before
    with attempt(case, plan, 2) as again:
        again.committed()
    assert case.rows(table) == before[0]


def test_replaced_files_go_into_the_trash_of_a_cluster_that_has_one(case: HiveCase, tmp_path: Path):
    table = case.create(tmp_path / "t", name="t")
    commit = run(case, plan_all(case.format, table, "p"))
    with case.format.writer(table, case.spark, case.engines) as writer:
        writer.delete(commit.superseded)
    trash = place(f"hdfs://{place(table.location).authority}/user/{os.environ.get('USER') or 'root'}/.Trash/Current")
    kept = {path.name for path in trash.rglob("*.parquet")}
    assert {version.path.rpartition("/")[2] for version in commit.superseded} <= kept
    assert not any("/_attempts/" in str(path) for path in trash.rglob("*"))

# SPDX-License-Identifier: Apache-2.0
"""Rule 13 of docs/decisions/0013-moving-a-partition.md: new files have the owner and modes of replaced files."""

import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from contract.plans import plan_all
from contract.port import run
from hive_case import HiveCase
from hive_metastore import MetastoreServer

from lake.errors import Rejected
from lake.model import TableRef
from lake.storage.local import LocalFileIO

pytestmark = pytest.mark.slow


@pytest.fixture
def case(metastore: MetastoreServer) -> HiveCase:
    return HiveCase(uri=metastore.uri)


@pytest.fixture
def table(case: HiveCase, tmp_path: Path) -> TableRef:
    return case.create(tmp_path / "lake" / "t", name="t")


def test_rule_13_new_directories_and_files_are_their_owners_as_the_old_ones_were(case: HiveCase, table: TableRef):
    me = os.geteuid()
    user = group = 65534 if me == 0 else me
    group = group if me == 0 else os.getegid()
    for path in (Path(table.location), *Path(table.location).rglob("*")):
        os.chown(path, user, group)
        path.chmod(0o2775 if path.is_dir() else 0o640)
    commit = run(case, plan_all(case.format, table, "p"))
    place = case.places(table)["dt=0"]
    for path, mode in ((place, 0o2775), (place.parent, 0o2775), (Path(table.location, commit.outputs[0].path), 0o640)):
        status = path.stat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (user, group, mode), path


ACL_VERSION, ACL_ENTRY, NO_ID = struct.pack("<I", 2), struct.Struct("<HHI"), 0xFFFFFFFF


def access_list(user: int, permissions: int) -> bytes:
    """As the kernel keeps it: owner, this user, group, mask, others."""
    entries = [(1, 7, NO_ID), (2, permissions, user), (4, 5, NO_ID), (16, 7, NO_ID), (32, 0, NO_ID)]
    return ACL_VERSION + b"".join(ACL_ENTRY.pack(*entry) for entry in entries)


def test_rule_13_new_files_of_a_partition_have_its_access_lists_and_none_of_the_directory_above(
    case: HiveCase, table: TableRef
):
    lists = {"system.posix_acl_access": access_list(1234, 5), "system.posix_acl_default": access_list(1235, 7)}
    listed, bare = (Path(table.location, name) for name in ("dt=0", "dt=1"))
    for name, value in lists.items():
        os.setxattr(listed, name, value)
    os.setxattr(table.location, "system.posix_acl_default", access_list(1236, 7))
    commit = run(case, plan_all(case.format, table, "p"))
    places = case.places(table)
    assert {name: os.getxattr(places["dt=0"], name) for name in lists} == lists
    assert places["dt=0"].stat().st_mode == listed.stat().st_mode
    assert (os.listxattr(places["dt=1"]), places["dt=1"].stat().st_mode) == ([], bare.stat().st_mode)
    for output in commit.outputs:
        assert os.listxattr(Path(table.location, output.path)) == []


def as_nobody(action: Callable[[], None]) -> str:
    """What ``action`` is refused with by a user who is not root."""
    said, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
            action()
        except Rejected as error:
            os.write(tell, str(error).encode())
        finally:
            os._exit(0)
    os.close(tell)
    os.waitpid(child, 0)
    with open(said, encoding="utf-8") as pipe:
        return pipe.read()


def test_rule_13_a_process_without_root_refuses_files_whose_owner_it_could_not_restore():
    assert re.fullmatch(
        "t: / belongs to root, and lakefold runs as .*: its owner could not overwrite lakefold's files; run "
        "lakefold's executors as root",
        as_nobody(lambda: LocalFileIO().check_owner("t", "/")),
    )
    # Below /tmp itself, since the tests' own directory is for its owner only.
    with TemporaryDirectory(dir="/tmp") as name:
        owned = os.stat(name)
        user = 65534 if os.geteuid() == 0 else owned.st_uid
        os.chown(name, user, -1)
        assert as_nobody(lambda: LocalFileIO().check_owner("t", name)) == ""
        os.chmod(name, 0o500)
        assert f"t: lakefold may not write to {name}; allow" in as_nobody(lambda: LocalFileIO().check_owner("t", name))

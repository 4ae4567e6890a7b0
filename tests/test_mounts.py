# SPDX-License-Identifier: Apache-2.0
"""Mounts whose locks no other host sees, told from the kernel's own table."""

from pathlib import Path

import pytest

from lake.storage import mounts

_TABLE = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
40 27 0:50 / /lake rw,relatime shared:1 - nfs4 nas:/lake rw,vers=4.2,local_lock=none,addr=10.0.0.1
41 27 0:51 / /alone rw - nfs nas:/alone rw,vers=3,nolock,local_lock=all
42 27 0:52 / /flash rw - lustre mds@tcp:/f rw,localflock
43 27 0:53 / /remote rw - fuse.sshfs me@host:/ rw,user_id=0
44 27 0:54 / /cluster rw - fuse.glusterfs node:/vol rw
45 40 0:55 / /lake/with\\040blank rw - fuse.s3fs s3fs rw
46 27 0:56 / /twice rw - fuse.s3fs s3fs rw
47 27 254:1 / /twice rw - ext4 /dev/vdb rw
"""


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mountinfo").write_text(_TABLE)
    monkeypatch.setattr(mounts, "Path", lambda _: tmp_path / "mountinfo")


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/data/t", None),
        ("/lake/t", None),
        ("/lakeside/t", None),
        ("/alone/t", "nfs with local_lock=all"),
        ("/flash/t", "lustre with localflock"),
        ("/remote/t", "fuse.sshfs"),
        ("/cluster/t", None),
        ("/lake/with blank/t", "fuse.s3fs"),
        ("/twice", None),
    ],
)
def test_a_mount_whose_locks_other_hosts_do_not_see_is_known(path: str, found: str | None) -> None:
    assert mounts.mount_with_host_locks(path) == found

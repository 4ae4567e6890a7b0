# SPDX-License-Identifier: Apache-2.0
"""Hudi's lock file on HDFS: taken away from its holder, or about to expire."""

import uuid
from datetime import timedelta
from typing import Any

import pytest
from hadoop import HadoopCluster
from hdfs_paths import upload
from hudi_writing import QUICK_LOCK, Table, ignore, make_table
from waiting import wait_for

from lake.errors import Transient
from lake.formats.hudi.client.client import HudiClient

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_a_lock_file_on_hdfs_is_renewed_and_one_that_was_taken_away_ends_the_commit(
    spark: Any, hdfs: HadoopCluster, tmp_path: Any
) -> None:
    location = upload(make_table(spark, tmp_path).base, f"{hdfs.uri}/{uuid.uuid4().hex}/trips")
    trips = Table(spark, location, QUICK_LOCK | {"hoodie.write.lock.filesystem.expire": "1"})
    rows, plan = trips.rows(), trips.plan()
    jvm = spark.sparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path(f"{location}/.hoodie/lock")
    files = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    client = HudiClient(trips.ref, spark)
    with client.locked("testing"):
        acquired = client._lock._hudi_lock
        assert acquired is not None
        assert acquired.validity == timedelta(minutes=1)
        acquired.validity = timedelta(seconds=0.4)
        with acquired.renewed():
            files.setTimes(path, 1000, -1)
            wait_for(lambda: files.getFileStatus(path).getModificationTime() > 1000, "a renewal")
        acquired.validity = timedelta(minutes=1)
        client.assert_lock_held("testing")
    client.close()
    assert not files.exists(path)

    def take_away() -> None:
        files.delete(path, False)
        files.create(path, False).close()

    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        writer.fence = take_away
        with pytest.raises(Transient, match="lost while committing: the lock file was taken away by another process"):
            writer.commit(rewrite)
        assert files.exists(path), "the lock of the writer is left alone"
        files.delete(path, False)
        writer.fence = lambda: None
        writer.commit(rewrite)
    assert not files.exists(path)
    assert trips.rows() == rows

# SPDX-License-Identifier: Apache-2.0
"""Directories of partitions that the table's clean policy gives up, while a writer writes to them again."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hudi_tables import rows, write
from hudi_writing import LOCK, NewTable
from pyspark.sql import functions

from lake.formats.hudi.client.client import HudiClient

pytestmark = [pytest.mark.spark, pytest.mark.slow]
ONE = "dt=2026-01-01"


def test_a_clean_leaves_the_directory_of_a_deleted_partition_to_which_a_writer_has_begun_to_write(
    table: NewTable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trips = table(**LOCK, **{"hoodie.clean.commits.retained": "1"})
    to_delete = {
        "hoodie.datasource.write.operation": "delete_partition",
        "hoodie.datasource.write.partitions.to.delete": ONE,
    }
    trips.upsert(0, 1, 1, **to_delete)
    trips.upsert(0, 60, 2, "id % 2 = 1")
    expected = len(trips.rows())
    held, goes_on = tmp_path / "held", tmp_path / "goes-on"

    def slowly(number: int) -> int:
        Path(held).touch()
        while not Path(goes_on).exists():
            time.sleep(0.05)
        return number

    frame = rows(trips.spark, 1000, 1010, partitions=1).coalesce(1)
    frame = frame.withColumn("id", functions.udf(slowly, "long")(frame.id))
    writing = threading.Thread(target=write, args=(frame, trips.base, "bulk_insert"), kwargs={"options": trips.options})
    writing.start()
    wait_for(held.exists)
    clean, directory = HudiClient.run_clean, Path(trips.base) / ONE

    def meanwhile(client: HudiClient, instant: str) -> Any:
        before = set(directory.glob("*.parquet"))
        goes_on.touch()
        wait_for(lambda: set(directory.glob("*.parquet")) > before)
        return clean(client, instant)

    monkeypatch.setattr(HudiClient, "run_clean", meanwhile)
    with trips.writer() as writer:
        assert writer.maintain(["clean"], ()) == ["the table's clean policy deleted 3 files"]
    writing.join()
    assert len(trips.rows()) == expected + 10


def wait_for(reached: Callable[[], bool]) -> None:
    """Wait until ``reached()`` is true."""
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)

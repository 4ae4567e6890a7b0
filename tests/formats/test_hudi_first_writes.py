# SPDX-License-Identifier: Apache-2.0
"""Tables whose first write was killed, and whose later writes have committed."""

from pathlib import Path
from typing import Any

import pytest
from hudi_tables import rows, write
from hudi_writing import FORMAT, LOCK, Table

pytestmark = pytest.mark.spark
VERSIONS = {"6": {"hoodie.write.table.version": "6", "hoodie.write.auto.upgrade": "false"}, "9": {}}


class KilledFirst:
    """A table with two writes, of which the first has written its files and was killed before it committed."""

    def __init__(self, spark: Any, base: Path, version: str) -> None:
        self.trips = Table(spark, base, LOCK | VERSIONS[version])
        for low in (0, 20):
            write(rows(spark, low, low + 20).coalesce(1), base, options=self.trips.options)
        timeline = self.trips.timeline()
        self.first, second = (instant.time for instant in timeline.completed)
        (base / timeline.directory / str(timeline.completed[0].completed_file)).unlink()
        (base / ".hoodie/.heartbeat" / self.first).unlink(missing_ok=True)
        for path in self.trips.files_of(self.first):
            marker = base / f".hoodie/.temp/{self.first}/{path}.marker.CREATE"
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()
        assert [instant.time for instant in self.trips.timeline().pending] == [self.first]
        assert len(self.trips.rows()) == 40, "Hudi's readers take a write before the first commit for an archived one"
        self.committed = self.trips.files_of(second)

    def check_rows_after_rollback(self) -> None:
        with self.trips.writer() as owner:
            owner._open().write_client.rollback(self.first)
        ids = [row[4] for row in self.trips.rows()]
        assert len(ids) == len(set(ids)) == 20


@pytest.mark.parametrize("version", VERSIONS)
def test_rows_of_a_killed_first_write_are_not_rewritten(spark: Any, tmp_path: Path, version: str) -> None:
    made = KilledFirst(spark, tmp_path / "trips", version)
    listed = {str(path) for path in FORMAT.snapshot(made.trips.ref).slices["path"].to_pylist()}
    done = made.trips.run(made.trips.plan())
    made.check_rows_after_rollback()
    assert listed == {replaced.path for replaced in done.superseded} == made.committed

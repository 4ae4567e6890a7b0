# SPDX-License-Identifier: Apache-2.0
"""Writers that make a directory in a partition, as Hive on Tez does for UNION ALL, after the partition was scanned."""

from pathlib import Path
from unittest import mock

import pyarrow.parquet as pq
import pytest
from late_writing import data_files, halted, here, home, in_partition, write
from toys.bench import Bench
from toys.files import told

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]


@pytest.mark.parametrize("is_at_call", [False, True], ids=["before the run", "right before the call"])
def test_rule_2_a_partition_that_got_a_directory_after_its_scan_stays_with_the_rows_of_the_directory(
    unmoved: Bench, is_at_call: bool
):
    """The partition was moved without the directory: its rows vanished for good."""
    bench, rows = unmoved, in_partition(unmoved)
    bench.request()
    nested = home(bench) / "HIVE_UNION_SUBDIR_1"

    def union_all(name: str = "in_commit") -> None:
        if name == "in_commit" and not nested.exists():
            nested.mkdir()
            write(nested, 900, 910, "000000_0")

    if is_at_call:
        with mock.patch("lake.formats.hive.commit.metastore_commit.failpoint", union_all):
            bench.run()
    else:
        union_all()
        bench.run()
    bench.sweep()
    assert (here(bench), rows_of_files(bench), halted(bench)) == (home(bench), rows, None)
    assert bench.case.places(bench.table)["dt=1"] != Path(bench.table.location) / "dt=1"  # type: ignore[attr-defined]


def rows_of_files(bench: Bench) -> list[str]:
    files = (path for path in data_files(home(bench)) if path.is_file())
    return sorted(row for path in files for row in told(pq.read_table(path)))

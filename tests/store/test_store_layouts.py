# SPDX-License-Identifier: Apache-2.0
"""Layouts of partitions: one blob a table, as its last full scan found it."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from lake.model import TableRef
from service.control.store import PARTITION_SCHEMA, ScanRecord

pytestmark = pytest.mark.paired("database_url")

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def store(store):
    for name in ("a", "b"):
        store.register_table(TableRef(name=name, format="hudi", location=f"/lake/{name}"), "observe")
    return store


def layout(partitions, files=3):
    line = dict.fromkeys(("slices", "files", "bytes", "log_files", "log_bytes"), 1)
    line |= {"reason": "alone", "text": "alone in its partition", "varies": False, "knob": "min_input_files"}
    counts = {field.name: files for field in PARTITION_SCHEMA if field.type == pa.int64()}
    rows = [{"partition": f"dt={n:05d}", **counts, "lines": [line]} for n in range(partitions)]
    return pa.Table.from_pylist(rows, schema=PARTITION_SCHEMA)


def scan(minutes, **more):
    return ScanRecord(table="a", taken_at=NOW + timedelta(minutes=minutes), **more)


def test_the_last_scan_with_partitions_is_kept_and_no_other(store):
    assert store.partition_layout("a") is None
    store.record_scan(scan(0), layout(3))
    store.record_scan(scan(1), layout(2, files=7))
    store.record_scan(scan(2))
    store.record_scan(scan(3, outcome="error", error="down"))
    kept = store.partition_layout("a")
    assert (kept.table, kept.taken_at) == ("a", NOW + timedelta(minutes=1))
    assert kept.partitions.equals(layout(2, files=7))
    assert store.partition_layout("b") is None


def test_columns_are_returned_in_their_order_for_any_input_order(store):
    table = layout(2)
    store.record_scan(scan(0), table.select(list(reversed(table.column_names))))
    assert store.partition_layout("a").partitions.schema.equals(PARTITION_SCHEMA)


def test_ten_thousand_partitions_take_less_than_a_megabyte(store):
    store.record_scan(scan(0), layout(10_000))
    assert store.partition_layout("a").partitions.num_rows == 10_000
    with store._database.read() as connection:
        size = connection.exec_driver_sql("SELECT length(partitions) FROM partition_layout").scalar_one()
    assert size < 1_000_000

# SPDX-License-Identifier: Apache-2.0
"""The demo's ledger: what it replays, and every kind of difference it must find in a table."""

from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from service.cli.demo import trips
from service.cli.demo.hudi import HudiTrips
from service.cli.demo.ledger import LedgerBatch, WriterLedger, compare, replay
from service.cli.demo.writer import generate_batches


@pytest.fixture
def rows() -> pa.Table:
    return trips.new_trips(np.random.default_rng(7), 0, 500, 3, newest_day_only=False)


def with_value(table: pa.Table, row: int, column: str, value: object) -> pa.Table:
    """A copy of ``table`` with one value replaced."""
    index = table.column_names.index(column)
    values = table[column].to_pylist()
    values[row] = value
    return table.set_column(index, table.schema.field(column), pa.array(values, type=table.schema.field(column).type))


def test_a_table_equals_its_ledger_in_any_order_and_with_hudis_own_columns(rows):
    shuffled = rows.take(pa.array(np.random.default_rng(1).permutation(rows.num_rows)))
    marked = shuffled.append_column("_hoodie_commit_time", pa.array(["20260101000000000"] * rows.num_rows))
    result = compare(rows, marked)
    assert result.equal
    assert str(result) == "500 rows, equal to the writer's ledger in every value of every column"


def test_a_missing_row_an_extra_row_and_a_doubled_row_are_each_named(rows):
    stranger = trips.new_trips(np.random.default_rng(8), 9_000, 1, 3, newest_day_only=True)
    result = compare(rows, pa.concat_tables([rows.slice(1), stranger, rows.slice(20, 1)]))
    assert not result.equal
    assert result.missing == (rows["trip_id"][0].as_py(),)
    assert result.extra == (stranger["trip_id"][0].as_py(),)
    assert result.doubled == (rows["trip_id"][20].as_py(),)
    assert result.stale == ()
    assert result.rows == 501


@pytest.mark.parametrize("column", trips.TRIPS.names[1:])
def test_one_changed_value_in_any_column_is_stale(rows, column):
    arrived = rows.filter(pc.and_(pc.is_valid(rows["dropped_off_at"]), pc.is_valid(rows["tip"])))
    old = arrived[column][3].as_py()
    if column == "route":
        new: object = old | {"finish": old["finish"] | {"lat": old["finish"]["lat"] + 1e-9}}
    elif isinstance(old, Decimal):
        new = old + Decimal("0.01")
    elif old is None or isinstance(old, str):
        new = "something else"
    elif isinstance(old, (int, float)):
        new = old + 1
    else:
        new = old.replace(microsecond=(old.microsecond + 1) % 1_000_000)
    result = compare(arrived, with_value(arrived, 3, column, new))
    assert result.stale == (arrived["trip_id"][3].as_py(),)
    assert (result.missing, result.extra, result.doubled) == ((), (), ())


@pytest.mark.parametrize("column", ["tip", "route", "note", "dropped_off_at"])
def test_a_value_that_became_null_and_a_null_that_became_a_value_are_stale(rows, column):
    valued = int(np.flatnonzero(rows[column].is_valid().to_numpy())[0])
    assert compare(rows, with_value(rows, valued, column, None)).stale == (rows["trip_id"][valued].as_py(),)
    assert compare(with_value(rows, valued, column, None), rows).stale == (rows["trip_id"][valued].as_py(),)


def test_two_swapped_columns_are_stale_rows(rows):
    fare, tip = rows.column_names.index("fare"), rows.column_names.index("tip")
    swapped = rows.set_column(fare, "fare", rows["tip"]).set_column(tip, "tip", rows["fare"])
    assert len(compare(rows, swapped).stale) == rows.num_rows


def test_a_table_without_a_column_or_with_a_wider_type_is_refused_by_name(rows):
    with pytest.raises(ValueError, match="the table has no column tip, note"):
        compare(rows, rows.drop_columns(["tip", "note"]))
    index = rows.column_names.index("note")
    with pytest.raises(ValueError, match="types are not the ledger's"):
        compare(rows, rows.set_column(index, "note", rows["route"]))


def test_replay_keeps_the_last_batch_of_a_key_and_no_deleted_keys(rows):
    random = np.random.default_rng(3)
    updated = trips.next_versions(rows.slice(10, 20), random)
    again = trips.next_versions(updated.slice(0, 5), random)
    history = [
        LedgerBatch(number=0, operation="fill", rows=rows),
        LedgerBatch(number=1, operation="upsert", rows=updated),
        LedgerBatch(number=2, operation="delete", rows=rows.slice(25, 10)),
        LedgerBatch(number=3, operation="upsert", rows=again),
        LedgerBatch(number=4, operation="insert", rows=rows.slice(26, 1)),
    ]
    result = {row["trip_id"]: row for row in replay(trips.TRIPS.empty_table(), history).to_pylist()}
    expected = {row["trip_id"]: row for row in rows.to_pylist()}
    expected |= {row["trip_id"]: row for row in updated.to_pylist()}
    for row in rows.slice(25, 10).to_pylist():
        del expected[row["trip_id"]]
    expected |= {row["trip_id"]: row for row in again.to_pylist()}
    expected |= {row["trip_id"]: row for row in rows.slice(26, 1).to_pylist()}
    assert result == expected


def test_a_batch_counts_only_once_it_is_confirmed(rows, tmp_path: Path):
    ledger = WriterLedger(tmp_path / "ledger")
    fill = LedgerBatch(number=0, operation="fill", rows=rows.slice(0, 100))
    lost = LedgerBatch(number=1, operation="insert", rows=rows.slice(100, 100))
    ledger.propose(fill)
    assert ledger.rows().num_rows == 0
    ledger.confirm(fill)
    ledger.propose(lost)
    assert [batch.label for batch in ledger.pending()] == ["000001-insert"]
    assert ledger.pending()[0].rows.equals(lost.rows)
    ledger.withdraw(lost)
    assert ledger.pending() == []
    assert compare(ledger.rows(), fill.rows).equal
    assert WriterLedger(tmp_path / "ledger").rows().equals(ledger.rows())


def test_the_batches_of_a_seed_are_the_same_each_time_and_touch_only_rows_that_exist(rows):
    def history() -> list[LedgerBatch]:
        stream = generate_batches(np.random.default_rng(5), rows, 2, 60, 3, HudiTrips.operations)
        return [next(stream) for _ in range(12)]

    first, second = history(), history()
    assert [batch.label for batch in first] == [batch.label for batch in second]
    assert all(a.rows.equals(b.rows) for a, b in zip(first, second, strict=True))
    assert {batch.operation for batch in first} == {"upsert", "insert", "delete"}
    known = set(rows["trip_id"].to_pylist())
    for batch in first:
        keys = batch.rows["trip_id"].to_pylist()
        assert len(set(keys)) == len(keys)
        if batch.operation == "delete":
            assert set(keys) <= known
            known -= set(keys)
        else:
            assert batch.operation == "upsert" or not set(keys) & known
            known |= set(keys)
    newest = max(rows["day"].to_pylist())
    assert any(set(batch.rows["day"].to_pylist()) == {newest} for batch in first)
    assert any(len(set(batch.rows["day"].to_pylist())) == 3 for batch in first)

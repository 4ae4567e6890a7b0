# SPDX-License-Identifier: Apache-2.0
"""Verification of slices with logs whose rows a format reads in the order of the new files."""

import math
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from verification_case import Case, MergingWriter, set_value, table

from executors import verified_files
from executors.rowhash import Fingerprint
from lake.errors import Conflict, Integrity


class InOrder(MergingWriter):
    """A writer that reads the merged rows in the order in which engines write them."""

    reads_in_order = True


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows whose hashes are computed."""
    found: list[int] = []
    add = Fingerprint.add

    def counted(self: Fingerprint, batch: pa.RecordBatch, *more: Any) -> None:
        found.append(batch.num_rows)
        add(self, batch, *more)

    monkeypatch.setattr(Fingerprint, "add", counted)
    return found


def case_of(folder: Path, *outputs: pa.Table, **options: Any) -> Case:
    case = Case(folder)
    case.input(table(range(300)), logs=("a.log",))
    for rows in outputs:
        case.output(rows, **options)
    return case


def test_rows_in_order_need_no_hashes(tmp_path: Path, hashed: list[int]):
    rows = table(range(20, 300))
    new = rows.set_column(rows.schema.get_field_index("_file"), "_file", pa.array(["new"] * 280))
    case_of(tmp_path, new.slice(0, 33), new.slice(33, 0), new.slice(33), row_group_size=23).prove(InOrder(rows))
    assert hashed == []
    case_of(tmp_path / "unordered", new).prove(MergingWriter(rows))
    assert sum(hashed) == 4 * 280, "a writer that promises no order"


def test_rows_in_another_order_are_compared_by_their_hashes(tmp_path: Path, hashed: list[int]):
    rows = table(range(300))
    case_of(tmp_path, rows.sort_by([("id", "descending")])).prove(InOrder(rows))
    assert hashed


def test_values_that_are_stored_differently_are_compared_by_their_hashes_if_need_be(tmp_path: Path, hashed: list[int]):
    rows = pa.table({"f": [math.nan, 0.5, None], "s": ["a", None, "b"], "d": ["x", "x", "y"]})
    stored = pa.table({"f": rows["f"], "s": rows["s"].cast(pa.large_string()), "d": rows["d"].dictionary_encode()})
    for number, (merged, written) in enumerate(((rows, stored), (stored, rows))):
        case = Case(tmp_path / str(number))
        case.input(stored, logs=("a.log",))
        case.output(written)
        case.prove(InOrder(merged))
    assert hashed == []
    case = Case(tmp_path / "zero")
    case.input(pa.table({"f": [-0.0]}), logs=("a.log",))
    case.output(pa.table({"f": [0.0]}))
    case.prove(InOrder(pa.table({"f": [-0.0]})))
    assert hashed


def moved(rows: pa.Table) -> pa.Table:
    score = rows["score"].combine_chunks()
    swapped = pa.concat_arrays([score.slice(150), score.slice(0, 150)])
    return rows.set_column(rows.schema.get_field_index("score"), rows.schema.field("score"), swapped)


DEFECTS: dict[str, Callable[[pa.Table], pa.Table]] = {
    "a value": lambda rows: set_value(rows, "id", 250, 7_000_001),
    "a null": lambda rows: set_value(rows, "score", 250, None),
    "a value in a struct": lambda rows: set_value(rows, "stop", 250, {"lat": 0.1, "names": []}),
    "a row less": lambda rows: pa.concat_tables([rows.slice(0, 250), rows.slice(251)]),
    "the last row less": lambda rows: rows.slice(0, 299),
    "a deleted row": lambda rows: pa.concat_tables([table([1000]), rows]),
    "a deleted row instead of another one": lambda rows: pa.concat_tables([rows.slice(0, 299), table([1000])]),
    "a row twice": lambda rows: pa.concat_tables([rows, rows.slice(299)]),
    "no rows": lambda rows: rows.slice(0, 0),
    "values moved between rows": moved,
}


@pytest.mark.parametrize("what", DEFECTS)
def test_every_defect_is_found(tmp_path: Path, what: str):
    rows = table(range(300))
    with pytest.raises(Integrity):
        case_of(tmp_path, DEFECTS[what](rows)).prove(InOrder(rows))


class Gone(InOrder):
    """A writer one of whose inputs is deleted while it is read."""

    def read_inputs(self, *_: Any, **__: Any) -> Iterator[pa.RecordBatch]:
        yield from self._merged.slice(0, 100).to_batches(max_chunksize=17)
        raise Conflict("a.parquet was deleted")


def test_an_input_that_is_gone_is_a_conflict(tmp_path: Path):
    rows = table(range(300))
    with pytest.raises(Conflict, match="was deleted"):
        case_of(tmp_path, rows).prove(Gone(rows))


def test_batches_are_read_ahead_and_their_source_is_closed():
    closed = []

    def source() -> Generator[pa.RecordBatch, None, None]:
        try:
            for number in range(9):
                yield pa.record_batch({"a": [number]})
        finally:
            closed.append(True)

    with ThreadPoolExecutor(1) as pool:
        ahead = verified_files._read_ahead(pool, source())
        assert next(ahead).to_pylist() == [{"a": 0}]
        ahead.close()
        assert closed == [True]
        read = verified_files._read_ahead(pool, source())
        assert [batch["a"][0].as_py() for batch in read] == list(range(9))

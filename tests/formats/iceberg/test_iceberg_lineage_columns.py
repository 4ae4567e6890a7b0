# SPDX-License-Identifier: Apache-2.0
"""The lineage of rows that ``arrow`` stores in new files, compared with the verification's, without a JVM."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from lake.engines import FileSchema, RewriteTask
from lake.formats.iceberg.inputs import position_deletes, row_columns
from lake.formats.iceberg.read.delete_files import DeleteContent, DeleteFile
from lake.formats.iceberg.read.lineage import (
    FIELD_IDS,
    LAST_UPDATED,
    NOTHING,
    ROW_ID,
    Lineage,
    digest,
    files_without_lineage,
    files_without_numbers,
    stored_lineage,
)
from lake.formats.iceberg.read.live_files import DataFile
from lake.formats.iceberg.read.merged_rows import MergedReader
from lake.plan import RewriteOptions

OPTIONS = RewriteOptions(target_file_max_bytes=1 << 30)
ENGINE = ArrowEngine(InProcessBackend(1))
SCHEMA = FileSchema(
    optional_ids=frozenset({1}), root_name="table", removed_keys=frozenset({"ARROW:schema"}), entries={"k": "v"}
)


def field(name: str, field_id: int, nullable: bool = True) -> pa.Field:
    return pa.field(name, pa.int64(), nullable, metadata={b"PARQUET:field_id": str(field_id).encode()})


def write(path: Path, columns: Mapping[str, Sequence[int | None]], **options: Any) -> str:
    """A data file with the column ``key`` and some of those of the lineage."""
    fields = [field(name, {"key": 1, **FIELD_IDS}[name], None in values) for name, values in columns.items()]
    pq.write_table(pa.table(dict(columns), schema=pa.schema(fields)), path, **options)
    return str(path)


def data_file(path: Path, rows: int, number: int, *deletes: DeleteFile) -> DataFile:
    return DataFile(
        location=f"file:{path}",
        path=str(path),
        bytes=1,
        rows=rows,
        file_format="PARQUET",
        spec_id=0,
        partition="",
        partition_json="{}",
        sequence_number=number,
        file_sequence_number=number,
        snapshot_id=1,
        deletes=deletes,
    )


def position_deletes_of(path: Path, name: str, positions: Sequence[int]) -> DeleteFile:
    columns = {"file_path": pa.array([name] * len(positions), pa.string()), "pos": pa.array(positions, pa.int64())}
    pq.write_table(pa.table(columns), path)
    return DeleteFile(
        location=f"file:{path}",
        path=str(path),
        content=DeleteContent.POSITIONS,
        file_format="PARQUET",
        bytes=1,
        rows=1,
        spec_id=0,
        partition_json="{}",
        sequence_number=100,
        snapshot_id=1,
    )


@dataclass
class Inputs:
    """Data files of a snapshot, and the key and the lineage of each row that is left of them."""

    files: list[DataFile]
    firsts: dict[str, int | None]
    rows: list[tuple[int, int, int]]


@st.composite
def inputs(draw: Any, home: Path) -> Inputs:
    """Files of appends, of updates and of earlier compactions, in any order, some with deletes."""
    found, key = Inputs([], {}, []), 0
    for number in range(draw(st.integers(1, 4))):
        count, path = draw(st.integers(0, 30)), home / f"in{number}.parquet"
        first, sequence = draw(st.integers(0, 2**50)), draw(st.integers(0, 90))
        keys = list(range(key, key + count))
        key += count
        ids, numbers = [first + row for row in range(count)], [sequence] * count
        columns: dict[str, Sequence[int | None]] = {"key": keys}
        for name, values in ((ROW_ID, ids), (LAST_UPDATED, numbers)):
            kind = draw(st.sampled_from(["absent", "null", "stored", "some"]))
            one = st.integers(0, 2**60) if name == ROW_ID else st.integers(0, 90)
            drawn = {"null": st.none(), "stored": one, "some": st.none() | one}
            if kind != "absent":
                columns[name] = draw(st.lists(drawn[kind], min_size=count, max_size=count))
                values[:] = [old if new is None else new for old, new in zip(values, columns[name], strict=True)]
        write(path, columns, row_group_size=draw(st.sampled_from([4, 100])))
        gone, deletes = draw(st.sets(st.integers(0, 40), max_size=20)), []
        if draw(st.booleans()):
            deletes = [position_deletes_of(home / f"d{number}.parquet", f"file:{path}", sorted(gone))]
        found.files.append(data_file(path, count, sequence, *deletes))
        found.firsts[f"file:{path}"] = first
        found.rows += [(keys[row], ids[row], numbers[row]) for row in range(count) if not deletes or row not in gone]
    return found


def rewritten(files: Sequence[DataFile], firsts: Mapping[str, int | None], folder: Path, **options: Any) -> list[str]:
    folder.mkdir()
    task = RewriteTask(
        group=0,
        inputs=tuple(file.path for file in files),
        outputs=tuple(str(folder / f"{number}.parquet") for number in range(options.pop("outputs", 1))),
        bytes=1,
        file_schema=SCHEMA,
        omissions=position_deletes(files),
        row_columns=row_columns(files, firsts),
    )
    chosen = replace(OPTIONS, **options)
    assert ENGINE.unsupported_reason(task, chosen) is None
    return [one.path for one in ENGINE.rewrite([task], chosen, lambda _: None, threading.Event())]


def rows_of(paths: Sequence[str]) -> list[tuple[int, ...]]:
    names = ["key", *FIELD_IDS]
    tables = [pq.ParquetFile(path).read() for path in paths]
    return [tuple(row[name] for name in names) for table in tables for row in table.to_pylist()]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_each_row_keeps_its_lineage_through_two_rewrites_and_the_verification_finds_the_same(
    tmp_path_factory: pytest.TempPathFactory, data: Any
):
    home = tmp_path_factory.mktemp("lineage")
    case = data.draw(inputs(home))
    by = data.draw(st.sampled_from([(), ("key",)]))
    outputs = data.draw(st.integers(1, 3))
    paths = rewritten(case.files, case.firsts, home / "new", outputs=outputs, sort_columns=by)
    assert rows_of(paths) == case.rows, "the keys are in order, so a sort changes nothing"
    assert (files_without_lineage(paths), files_without_numbers(paths)) == ([], {})
    read = list(MergedReader(case.files).read_lineage(case.firsts))
    lineage = [pair for part in read for pair in zip(part.ids.tolist(), part.numbers.tolist(), strict=True)]
    assert lineage == [row[1:] for row in case.rows]
    for in_order in (True, False):
        assert digest(read, in_order=in_order) == digest(stored_lineage(paths), in_order=in_order)
    # The commit gives the new files numbers and first ids of their own, which no row gets.
    files = [data_file(Path(path), pq.read_metadata(path).num_rows, 1000 + number) for number, path in enumerate(paths)]
    if files:
        firsts = {file.location: 2**61 for file in files}
        assert rows_of(rewritten(files, firsts, home / "again")) == case.rows


def parts(ids: Sequence[int], numbers: Sequence[int], cut: int) -> list[Lineage]:
    pairs = [(ids[:cut], numbers[:cut]), (ids[cut:], numbers[cut:])]
    return [Lineage(np.array(one, dtype=np.int64), np.array(other, dtype=np.int64)) for one, other in pairs]


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_digests_are_equal_only_for_the_same_rows(data: Any):
    rows = data.draw(st.lists(st.tuples(st.integers(-1, 5) | st.integers(0, 2**62), st.integers(-1, 4)), max_size=8))
    other = data.draw(st.permutations(rows))
    if data.draw(st.booleans()):
        numbers = data.draw(st.permutations([number for _, number in other]))
        other = [(row_id, number) for (row_id, _), number in zip(other, numbers, strict=True)]
    cuts = data.draw(st.integers(0, len(rows))), data.draw(st.integers(0, len(rows)))

    def both(in_order: bool) -> list[Any]:
        return [
            digest(parts([row[0] for row in some], [row[1] for row in some], cut), in_order=in_order)
            for some, cut in zip((rows, other), cuts, strict=True)
        ]

    before, after = both(in_order=True)
    assert (before == after) == (rows == other)
    before, after = both(in_order=False)
    assert (before == after) == (sorted(rows) == sorted(other))
    assert (before.rows, before.ids) == (after.rows, after.ids), "only the pairs differ"


def test_rows_of_a_file_without_a_first_id_have_no_lineage(tmp_path: Path):
    """After an upgrade to format version 3 a file has no first id until the next commit, whatever it stores."""
    path = tmp_path / "a.parquet"
    write(path, {"key": [1, 2, 3], ROW_ID: [7, None, 9], LAST_UPDATED: [1, 2, None]})
    files = [data_file(path, 3, 5, position_deletes_of(tmp_path / "d.parquet", f"file:{path}", [1]))]
    for firsts in ({}, {f"file:{path}": None}):
        (part,) = MergedReader(files).read_lineage(firsts)
        assert (part.ids.tolist(), part.numbers.tolist()) == ([NOTHING] * 2, [NOTHING] * 2)
        assert row_columns(files, firsts) == ()
    other = data_file(tmp_path / "b.parquet", 3, 5)
    assert row_columns([*files, other], {other.location: 3}) == ()


def test_columns_that_readers_do_not_find_by_their_ids_are_named(tmp_path: Path):
    whole = write(tmp_path / "whole.parquet", {"key": [1], ROW_ID: [1], LAST_UPDATED: [1]})
    lacking = write(tmp_path / "lacking.parquet", {"key": [1], ROW_ID: [1]})
    fields = [field(ROW_ID, 5), field(LAST_UPDATED, FIELD_IDS[LAST_UPDATED])]
    wrong, without = str(tmp_path / "wrong.parquet"), str(tmp_path / "without.parquet")
    pq.write_table(pa.table({ROW_ID: [1], LAST_UPDATED: [1]}, schema=pa.schema(fields)), wrong)
    pq.write_table(pa.table({ROW_ID: [1], LAST_UPDATED: [1]}), without)
    assert files_without_lineage([whole, lacking, wrong, without]) == [lacking, wrong, without]


def test_files_that_may_inherit_a_number_are_named(tmp_path: Path):
    stored = write(tmp_path / "stored.parquet", {"key": [1, 2], LAST_UPDATED: [1, 2]}, row_group_size=1)
    empty = write(tmp_path / "empty.parquet", {"key": [], LAST_UPDATED: []})
    some = write(tmp_path / "some.parquet", {"key": [1, 2], LAST_UPDATED: [1, None]}, row_group_size=1)
    unknown = write(tmp_path / "unknown.parquet", {"key": [1], LAST_UPDATED: [1]}, write_statistics=False)
    absent = write(tmp_path / "absent.parquet", {"key": [1], ROW_ID: [1]})
    assert list(files_without_numbers([stored, empty, some, unknown, absent])) == [some, unknown, absent]

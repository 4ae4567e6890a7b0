# SPDX-License-Identifier: Apache-2.0
"""The rows that position delete files leave, as an engine gets them: without a JVM, and against the verification's."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.errors import Conflict, Transient
from lake.formats.iceberg.files import position_deletes
from lake.formats.iceberg.files.deletion_vectors import VectorLocation
from lake.formats.iceberg.files.position_deletes import DeletesOfFile, PositionDeletes
from lake.formats.iceberg.inputs import position_deletes as deletes_of
from lake.formats.iceberg.read import merged_rows
from lake.formats.iceberg.read.delete_files import DeleteContent, DeleteFile
from lake.formats.iceberg.read.live_files import DataFile
from lake.formats.iceberg.read.merged_rows import MergedReader

STRING = pa.string()


def data_file(path: Path, rows: int, *deletes: DeleteFile) -> DataFile:
    return DataFile(
        location=f"file:{path}",
        path=str(path),
        bytes=1,
        rows=rows,
        file_format="PARQUET",
        spec_id=0,
        partition="",
        partition_json="{}",
        sequence_number=1,
        file_sequence_number=1,
        snapshot_id=1,
        deletes=deletes,
    )


def delete_file(path: Path, content: DeleteContent = DeleteContent.POSITIONS) -> DeleteFile:
    return DeleteFile(
        location=f"file:{path}",
        path=str(path),
        content=content,
        file_format="PARQUET",
        bytes=1,
        rows=1,
        spec_id=0,
        partition_json="{}",
        sequence_number=2,
        snapshot_id=1,
    )


def write_deletes(
    path: Path, deleted: Sequence[tuple[str, int]], *, text: pa.DataType = STRING, rows: bool = False, **more: Any
) -> DeleteFile:
    columns: dict[str, Any] = {
        "file_path": pa.array([name for name, _ in deleted], text),
        "pos": pa.array([position for _, position in deleted], pa.int64()),
    }
    if rows:
        row = [{"file_path": name, "pos": position + 1} for name, position in deleted]
        columns["row"] = pa.array(row, pa.struct({"file_path": text, "pos": pa.int64()}))
    pq.write_table(pa.table(columns), path, **more)
    return delete_file(path)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_rows_left_are_those_that_no_delete_names_also_for_the_verification(
    tmp_path_factory: pytest.TempPathFactory, data: Any
):
    home = tmp_path_factory.mktemp("rows")
    sizes = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=4))
    paths = [home / f"{number}.parquet" for number in range(len(sizes))]
    for path, size in zip(paths, sizes, strict=True):
        pq.write_table(pa.table({"row": pa.array(range(size), pa.int64())}), path, row_group_size=7)
    # Positions of files that are not rewritten, positions that no file has, and repeated ones are among the deletes.
    # Readers compare the names of data files letter by letter, so another spelling names another file.
    names = [f"file:{path}" for path in paths] + ["file:/elsewhere/a.parquet", f"file:{paths[0]}.old", "file:"]
    names += [f"file://{paths[0]}", str(paths[0]), f"file:{paths[0]}".replace(".", "%2E")]
    deletes, named = [], {}
    for number in range(data.draw(st.integers(1, 3))):
        deleted = data.draw(st.lists(st.tuples(st.sampled_from(names), st.integers(0, 45)), max_size=40))
        if data.draw(st.booleans()):
            deleted.sort()
        options = {
            "row_group_size": data.draw(st.sampled_from([3, 100])),
            "write_statistics": data.draw(st.booleans()),
            "use_dictionary": data.draw(st.booleans()),
            "rows": data.draw(st.booleans()),
            "text": data.draw(st.sampled_from([pa.string(), pa.large_string(), pa.binary()])),
        }
        deletes.append(write_deletes(home / f"d{number}.parquet", deleted, **options))
        named[deletes[-1]] = deleted
    files = [
        data_file(path, size, *data.draw(st.lists(st.sampled_from(deletes), unique=True, max_size=3)))
        for path, size in zip(paths, sizes, strict=True)
    ]
    found = deletes_of(files)
    rows = {file.path: file.rows for file in files}
    remaining = {} if found is None else found.read_remaining(rows)
    assert remaining.keys() == {file.path for file in files if file.deletes}
    for file in files:
        gone = {position for delete in file.deletes for name, position in named[delete] if name == file.location}
        wanted = [row for row in range(file.rows) if row not in gone]
        assert [row for batch in MergedReader([file]).read() for row in batch.column("row").to_pylist()] == wanted
        kept = remaining.get(file.path, pa.array([True] * file.rows, pa.bool_()))
        assert len(kept) == file.rows
        assert [row for row, is_kept in enumerate(kept.to_pylist()) if is_kept] == wanted


def test_many_positions_take_one_bit_for_each_row(tmp_path: Path):
    rows = 1_000_003
    gone = np.flatnonzero(np.random.default_rng(1).random(rows) < 0.3)
    columns = {"file_path": pa.array(["file:/a.parquet"] * len(gone)), "pos": pa.array(gone)}
    pq.write_table(pa.table(columns), tmp_path / "d.parquet", row_group_size=100_000)
    deletes = DeletesOfFile(location="file:/a.parquet", delete_paths=(str(tmp_path / "d.parquet"),))
    (found,) = PositionDeletes(by_input={"/a.parquet": deletes}).read_remaining({"/a.parquet": rows}).values()
    assert found.nbytes == -(-rows // 8)
    assert np.array_equal(np.flatnonzero(~found.to_numpy(zero_copy_only=False)), gone)


def test_the_verification_keeps_no_name_for_each_deleted_row(tmp_path: Path):
    """With names, a million deletes took a quarter of a gigabyte."""
    rows, name = 400_000, f"file:/{'a' * 200}.parquet"
    names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), [name])
    pq.write_table(pa.table({"file_path": names, "pos": range(rows)}), tmp_path / "d.parquet", store_schema=False)
    before, most = pa.total_allocated_bytes(), 0
    batches = pq.ParquetFile.iter_batches

    def watched(self: pq.ParquetFile, *some: Any, **more: Any) -> Any:
        nonlocal most
        for batch in batches(self, *some, **more):
            most = max(most, pa.total_allocated_bytes() - before)
            yield batch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pq.ParquetFile, "iter_batches", watched)
        found = merged_rows._read_positions(delete_file(tmp_path / "d.parquet"), {name})
    assert np.array_equal(found[name], np.arange(rows))
    assert 0 < most < rows * 200 // 2


def test_row_groups_whose_bounds_exclude_the_inputs_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    deleted = [(f"file:/{name}.parquet", position) for name in "abcdef" for position in range(10)]
    delete = write_deletes(tmp_path / "d.parquet", deleted, row_group_size=10)
    read: list[Any] = []
    batches = pq.ParquetFile.iter_batches
    monkeypatch.setattr(
        pq.ParquetFile,
        "iter_batches",
        lambda self, *some, row_groups, **others: (
            read.append(row_groups) or batches(self, *some, row_groups=row_groups, **others)
        ),
    )
    deletes = DeletesOfFile(location="file:/c.parquet", delete_paths=(delete.path,))
    (found,) = PositionDeletes(by_input={"c": deletes}).read_remaining({"c": 12}).values()
    assert found.to_pylist() == [False] * 10 + [True] * 2
    assert read == [[2]]


def test_bounds_that_are_shortened_within_a_letter_exclude_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    name = "file:/größe.parquet"
    delete = write_deletes(tmp_path / "d.parquet", [(name, 1)])
    assert position_deletes._may_name(pq.read_metadata(delete.path).row_group(0), [name])

    class Shortened:
        has_min_max, min_raw, max_raw = True, name.encode()[:9], name.encode()[:8] + b"\xc4"

        @property
        def min(self) -> str:
            return self.min_raw.decode()

        max = min

    class Column:
        path_in_schema, statistics = "file_path", Shortened()

    class Group:
        num_columns = 1

        @staticmethod
        def column(_: int) -> Column:
            return Column()

    assert position_deletes._may_name(Group(), [name])  # type: ignore[arg-type]
    assert not position_deletes._may_name(Group(), ["file:/a.parquet"])  # type: ignore[arg-type]


def test_deletes_of_other_kinds_are_given_to_no_engine(tmp_path: Path):
    by_value = delete_file(tmp_path / "e.parquet", DeleteContent.EQUALITY)
    by_vector = replace(
        delete_file(tmp_path / "v.puffin", DeleteContent.VECTOR), content_offset=4, content_bytes=30, rows=2
    )
    at = delete_file(tmp_path / "d.parquet")
    path = tmp_path / "a.parquet"
    assert deletes_of([data_file(path, 3)]) is None
    for others in ((by_value,), (at, by_value), (by_vector, by_value)):
        assert deletes_of([data_file(path, 3, at), data_file(path, 3, *others)]) is None
    assert deletes_of([data_file(path, 3, at), data_file(path, 3)]) is not None
    found = deletes_of([data_file(path, 3, at, by_vector)])
    assert found is not None
    where = VectorLocation(path=by_vector.path, offset=4, bytes=30, rows=2)
    assert list(found.by_input.values()) == [DeletesOfFile(location=f"file:{path}", vector=where)]


def test_a_delete_file_that_can_t_be_read_is_named(tmp_path: Path):
    path = tmp_path / "d.parquet"
    deletes = PositionDeletes(by_input={"a": DeletesOfFile(location="file:/a", delete_paths=(str(path),))})
    with pytest.raises(Conflict, match=r"d\.parquet was deleted"):
        deletes.read_remaining({"a": 3})
    path.write_bytes(b"PAR1")
    with pytest.raises(Transient, match=r"d\.parquet can't be read"):
        deletes.read_remaining({"a": 3})
    pq.write_table(pa.table({"file_path": ["file:/a"], "position": [1]}), path)
    with pytest.raises(Transient, match=r"d\.parquet can't be read"):
        deletes.read_remaining({"a": 3})
    pq.write_table(pa.table({"file_path": ["file:/a"], "pos": pa.array([None], pa.int64())}), path)
    with pytest.raises(Transient, match="is null"):
        deletes.read_remaining({"a": 3})


def test_executors_need_no_other_module_of_the_package():
    """Spark's executors get only the modules that ``executors.engines.spark_tasks`` packs."""
    text = Path(position_deletes.__file__).read_text()
    imports = {line.split()[1] for line in text.splitlines() if line.startswith("from lake")}
    assert imports == {"lake.errors", "lake.formats.iceberg.files.deletion_vectors"}

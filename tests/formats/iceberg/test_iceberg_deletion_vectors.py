# SPDX-License-Identifier: Apache-2.0
"""Deletion vectors as an engine and as the verification read them, without a JVM: vectors of every form."""

import json
import struct
import tracemalloc
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from lake.errors import Conflict, Transient
from lake.formats.iceberg.files import deletion_vectors
from lake.formats.iceberg.files.deletion_vectors import VectorLocation, read_vector
from lake.formats.iceberg.inputs import position_deletes
from lake.formats.iceberg.read.delete_files import DeleteContent, DeleteFile
from lake.formats.iceberg.read.live_files import DataFile
from lake.formats.iceberg.read.merged_rows import MergedReader

MAGIC = bytes.fromhex("d1d33964")


def blob_of(positions: Collection[int], *, runs: bool = True) -> bytes:
    """A vector as the specification of Puffin describes it; the bitmaps are written by CRoaring."""
    keys: dict[int, list[int]] = {}
    for one in sorted(positions):
        keys.setdefault(one >> 32, []).append(one & 0xFFFFFFFF)
    body = struct.pack("<Q", len(keys))
    for key, values in keys.items():
        bitmap = BitMap(values)
        if runs:
            bitmap.run_optimize()
        body += struct.pack("<I", key) + bitmap.serialize()
    checked = MAGIC + body
    return struct.pack(">I", len(checked)) + checked + struct.pack(">I", zlib.crc32(checked))


def puffin(path: Path, blobs: Sequence[tuple[str, bytes, int]]) -> list[int]:
    """A Puffin file with the vectors of data files: names, contents, deleted rows. Returns their positions."""
    content, listed, offsets = b"PFA1", [], []
    for name, blob, rows in blobs:
        offsets.append(len(content))
        listed.append(
            {
                "type": "deletion-vector-v1",
                "fields": [2147483645],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(content),
                "length": len(blob),
                "properties": {"referenced-data-file": name, "cardinality": str(rows)},
            }
        )
        content += blob
    footer = json.dumps({"blobs": listed, "properties": {}}).encode()
    path.write_bytes(content + b"PFA1" + footer + struct.pack("<i", len(footer)) + bytes(4) + b"PFA1")
    return offsets


def read(path: Path, blob: bytes, rows: int, **other: Any) -> list[int]:
    """The positions of a vector that is behind other bytes in its file."""
    path.write_bytes(b"before" + blob + b"behind")
    location = VectorLocation(path=str(path), offset=6, bytes=len(blob), rows=rows)
    return [int(one) for part in read_vector(replace(location, **other)) for one in part]


FORMS: Mapping[str, Collection[int]] = {
    "none": [],
    "one": [0],
    "the last of a container": [65_535],
    "an array": range(0, 8192, 2),
    "a bitset": range(0, 9000, 2),
    "all of a container": range(65_536),
    "one less than all": range(1, 65_536),
    "runs": [*range(10), *range(500, 5000), 65_535],
    "runs across containers": range(60_000, 200_000),
    "two containers": [5, 65_541],
    "three containers with runs": [*range(100), *range(65_536, 65_700), *range(131_072, 131_300)],
    "five containers with runs": [one for start in range(5) for one in range(65_536 * start, 65_536 * start + 300)],
    "nine containers": [65_536 * one + one for one in range(9)],
    "containers far apart": [1, 1 << 20, (1 << 32) - 1],
    "more than 32 bits": [7, (1 << 32) + 7, *range(5 << 32, (5 << 32) + 100)],
    "all of these": [*range(5000), *range(65_536, 70_000, 3), 200_000, *range(1 << 18, (1 << 18) + 65_536), 9 << 32],
}


@pytest.mark.parametrize("runs", [True, False], ids=["runs", "no runs"])
@pytest.mark.parametrize("form", FORMS)
def test_a_vector_of_any_form_has_the_positions_that_were_written(tmp_path: Path, form: str, runs: bool):
    positions = FORMS[form]
    assert read(tmp_path / "v", blob_of(positions, runs=runs), len(positions)) == sorted(positions)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_positions_are_read(tmp_path_factory: pytest.TempPathFactory, data: Any):
    dense = data.draw(st.sets(st.integers(0, 300_000), max_size=30))
    ranges = data.draw(st.lists(st.tuples(st.integers(0, 300_000), st.integers(1, 70_000)), max_size=3))
    sparse = data.draw(st.sets(st.integers(0, (1 << 63) - 1), max_size=5))
    positions = dense.union(sparse, *(range(start, start + count) for start, count in ranges))
    blob = blob_of(positions, runs=data.draw(st.booleans()))
    assert read(tmp_path_factory.mktemp("v") / "v", blob, len(positions)) == sorted(positions)


def with_checksum(checked: bytes) -> bytes:
    return struct.pack(">I", len(checked)) + checked + struct.pack(">I", zlib.crc32(checked))


BROKEN = {
    "no vector": (b"\0" * 40, {}, "no deletion vector"),
    "another place": (blob_of(range(9)), {"offset": 5}, "no deletion vector"),
    "another size": (blob_of(range(9)), {"bytes": 20}, "no deletion vector"),
    "behind the end": (blob_of(range(9)), {"offset": 5000}, "no deletion vector"),
    "a byte": (blob_of(range(9))[:20] + b"\x55" + blob_of(range(9))[21:], {}, "checksum"),
    "another number of rows": (blob_of(range(9)), {"rows": 8}, "has 9 rows, and the table's metadata states 8"),
    "cut": (with_checksum(blob_of(range(0, 99, 2))[4:-10]), {}, "cut short"),
    "longer": (with_checksum(blob_of(range(9))[4:-4] + b"\0"), {}, "longer than its bitmaps"),
    "unknown bitmap": (with_checksum(MAGIC + struct.pack("<QIII", 1, 0, 1, 1)), {}, "unknown format"),
    "many containers": (with_checksum(MAGIC + struct.pack("<QIII", 1, 0, 12346, 1 << 20)), {}, "too many containers"),
    "order": (
        with_checksum(MAGIC + struct.pack("<QI", 2, 1) + BitMap([1]).serialize() + b"\0" * 4 + BitMap([1]).serialize()),
        {},
        "not in order",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_vector_that_is_not_what_the_metadata_states_is_not_applied(tmp_path: Path, what: str):
    blob, other, message = BROKEN[what]
    with pytest.raises(Transient, match=f"v can't be read now: .*{message}"):
        read(tmp_path / "v", blob, **{"rows": 9, **other})


def test_a_lost_file_of_vectors_is_a_conflict(tmp_path: Path):
    with pytest.raises(Conflict, match="was deleted while the plan ran"):
        list(read_vector(VectorLocation(path=str(tmp_path / "v"), offset=4, bytes=40, rows=1)))


def test_each_part_of_a_large_vector_is_small(tmp_path: Path):
    gone = np.flatnonzero(np.random.default_rng(1).random(3_000_000) < 0.5)
    path = tmp_path / "v"
    path.write_bytes(blob := blob_of(gone.tolist()))
    parts = list(read_vector(VectorLocation(path=str(path), offset=0, bytes=len(blob), rows=len(gone))))
    assert max(map(len, parts)) <= 65_536
    assert np.array_equal(np.concatenate(parts), gone)


def test_the_verification_reads_a_large_vector_in_little_memory(tmp_path: Path):
    """Four arrays of positions for a moment; Python objects would take forty bytes more for each deleted row."""
    gone = np.flatnonzero(np.random.default_rng(1).random(1_000_000) < 0.5)
    path, blob = tmp_path / "a.parquet", blob_of(gone.tolist())
    (offset,) = puffin(tmp_path / "v.puffin", [(f"file:{path}", blob, len(gone))])
    delete = vector(tmp_path / "v.puffin", f"file:{path}", offset, len(blob), len(gone))
    file = data_file(path, 1_000_000, delete)
    reader = MergedReader([file])
    tracemalloc.start()
    found = reader._deleted_positions(file)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.array_equal(found, gone)
    assert most < 36 * len(gone), most


def test_the_verification_reads_vectors_of_more_than_32_bits(tmp_path: Path):
    """Iceberg writes an empty bitmap for each value of the upper bits that has no position."""
    path, positions = tmp_path / "a.parquet", [(2 << 32) + 1, (2 << 32) + 9]
    parts = [struct.pack("<I", key) + BitMap(values).serialize() for key, values in enumerate([[], [], [1, 9]])]
    blob = with_checksum(MAGIC + struct.pack("<Q", 3) + b"".join(parts))
    assert read(tmp_path / "v", blob, 2) == positions
    (offset,) = puffin(tmp_path / "v.puffin", [(f"file:{path}", blob, 2)])
    file = data_file(path, 1, vector(tmp_path / "v.puffin", f"file:{path}", offset, len(blob), 2))
    assert MergedReader([file])._deleted_positions(file).tolist() == positions


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


def vector(path: Path, name: str, offset: int, size: int, rows: int) -> DeleteFile:
    return DeleteFile(
        location=f"file:{path}",
        path=str(path),
        content=DeleteContent.VECTOR,
        file_format="PUFFIN",
        bytes=1,
        rows=rows,
        spec_id=0,
        partition_json="{}",
        sequence_number=2,
        snapshot_id=1,
        data_location=name,
        content_offset=offset,
        content_bytes=size,
    )


def position_delete_file(path: Path, deleted: Sequence[tuple[str, int]]) -> DeleteFile:
    names, positions = [name for name, _ in deleted], [position for _, position in deleted]
    pq.write_table(pa.table({"file_path": pa.array(names, pa.string()), "pos": pa.array(positions, pa.int64())}), path)
    found = vector(path, "", 0, 0, len(deleted))
    return replace(
        found,
        content=DeleteContent.POSITIONS,
        file_format="PARQUET",
        data_location=None,
        content_offset=None,
        content_bytes=None,
    )


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_rows_left_are_those_that_no_vector_names_also_for_the_verification(
    tmp_path_factory: pytest.TempPathFactory, data: Any
):
    """Some files have a vector, some are left with the position deletes of an earlier format version."""
    home = tmp_path_factory.mktemp("rows")
    sizes = data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=5))
    paths = [home / f"{number}.parquet" for number in range(len(sizes))]
    names = [f"file:{path}" for path in paths]
    deleted = data.draw(st.lists(st.tuples(st.sampled_from(names), st.integers(0, 45)), max_size=40))
    old = position_delete_file(home / "d.parquet", deleted)
    blobs, gone = [], []
    for name, path, size in zip(names, paths, sizes, strict=True):
        pq.write_table(pa.table({"row": pa.array(range(size), pa.int64())}), path, row_group_size=7)
        # Positions behind the last row delete nothing.
        positions = data.draw(st.none() | st.sets(st.integers(0, 45), max_size=50))
        gone.append(positions)
        if positions is not None:
            if data.draw(st.booleans()):
                # An earlier vector of the same file, which the metadata no longer names.
                blobs.append((name, blob_of([0, 1, 2]), 3))
            blobs.append((name, blob_of(positions, runs=data.draw(st.booleans())), len(positions)))
    offsets = puffin(home / "v.puffin", blobs)
    last = {name: (offset, blob, rows) for offset, (name, blob, rows) in zip(offsets, blobs, strict=True)}
    files = []
    for name, path, size, positions in zip(names, paths, sizes, gone, strict=True):
        deletes = [old] if data.draw(st.booleans()) else []
        if positions is not None:
            offset, blob, rows = last[name]
            deletes.append(vector(home / "v.puffin", name, offset, len(blob), rows))
        files.append(data_file(path, size, *deletes))
    found = position_deletes(files)
    rows_of = {file.path: file.rows for file in files}
    remaining = {} if found is None else found.read_remaining(rows_of)
    assert remaining.keys() == {file.path for file in files if file.deletes}
    for file, positions in zip(files, gone, strict=True):
        if positions is None:
            positions = {position for name, position in deleted if name == file.location and file.deletes}
        wanted = [row for row in range(file.rows) if row not in positions]
        merged = [row for batch in MergedReader([file]).read() for row in batch.column("row").to_pylist()]
        assert merged == wanted
        kept = remaining.get(file.path, pa.array([True] * file.rows, pa.bool_()))
        assert [row for row, is_kept in enumerate(kept.to_pylist()) if is_kept] == wanted


def test_the_verification_does_not_read_another_vector_than_the_metadata_names(tmp_path: Path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"row": range(5)}), path)
    blob = blob_of([1])
    (offset,) = puffin(tmp_path / "v.puffin", [(f"file:{path}", blob, 1)])
    good = vector(tmp_path / "v.puffin", f"file:{path}", offset, len(blob), 1)
    for other in ({"content_offset": offset + 1}, {"content_bytes": len(blob) + 1}, {"rows": 2}):
        with pytest.raises(Transient, match=r"v\.puffin can't be read now"):
            list(MergedReader([data_file(path, 5, replace(good, **other))]).read())


@pytest.mark.parametrize("footer", ["of another file", "compressed", "without the vector"])
def test_the_verification_reads_a_vector_where_the_metadata_places_it_whatever_the_footer_says(
    tmp_path: Path, footer: str
):
    """Iceberg's reader does not read the footer."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"row": range(5)}), path)
    blob, where = blob_of([1]), tmp_path / "v.puffin"
    (offset,) = puffin(where, [("file:/b" if footer == "of another file" else f"file:{path}", blob, 1)])
    if footer == "compressed":
        where.write_bytes(where.read_bytes()[:-8] + b"\1\0\0\0PFA1")
    elif footer == "without the vector":
        size = where.stat().st_size
        puffin(where, [])
        where.write_bytes(b"PFA1" + blob + where.read_bytes()[4:])
        assert where.stat().st_size < size
    file = data_file(path, 5, vector(where, f"file:{path}", offset, len(blob), 1))
    assert [row for batch in MergedReader([file]).read() for row in batch.column("row").to_pylist()] == [0, 2, 3, 4]


def test_executors_need_no_other_module_of_the_package_and_not_pyiceberg():
    text = Path(deletion_vectors.__file__).read_text()
    imports = {line.split()[1] for line in text.splitlines() if line.startswith(("from ", "import "))}
    assert imports == {"zlib", "collections.abc", "dataclasses", "numpy", "numpy.typing", "lake.errors"}

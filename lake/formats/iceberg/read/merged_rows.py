# SPDX-License-Identifier: Apache-2.0
"""The rows of data files without those that delete files remove, and their lineage, read by pyarrow.

The verification compares them with the new files, so nothing here uses the code that writes these: neither that of
engines nor that of Iceberg's own reader and writer. Source of the rules: Iceberg's table specification, "Scan
Planning", "Row-level Deletes" and "Row Lineage".
"""

import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from lake.errors import Conflict, Transient, first_line
from lake.formats.iceberg.read.delete_files import DeleteContent, DeleteFile
from lake.formats.iceberg.read.lineage import FIELD_IDS, NOTHING, Lineage, Numbers, stored_in
from lake.formats.iceberg.read.live_files import DataFile

_FIELD_ID = b"PARQUET:field_id"
_BATCH_ROWS = 1 << 16
_VECTOR_MAGIC = bytes.fromhex("d1d33964")
"""The bytes between the length of a deletion vector and its bitmaps."""
_MIN_VECTOR_BYTES = 12
"""The bytes of a deletion vector without its bitmaps."""
Positions = npt.NDArray[np.int64]


class MergedReader:
    """Reads some data files of a table; each delete file is read once, for all of them."""

    def __init__(self, files: Sequence[DataFile]) -> None:
        self._files = files
        self._locations = frozenset(file.location for file in files)
        self._positions: dict[str, Mapping[str, Positions]] = {}
        self._equalities: dict[str, pa.Table] = {}

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the remaining rows of all files, with the columns of the files, except the row lineage.

        Before format version 3, a column of the table may have the name of a column of the lineage. Raises Conflict if
        a file is gone, Transient if it can't be read.
        """
        for file in self._files:
            for _, batch, keep in self._read_file(file, lambda name, field_id: FIELD_IDS.get(name, -1) != field_id):
                yield batch if keep.all() else batch.filter(pa.array(keep))

    def read_lineage(self, first_row_ids: Mapping[str, int | None]) -> Iterator[Lineage]:
        """Yield the lineage of the remaining rows of all files.

        ``first_row_ids`` are the ids of the files' first rows by location; the rows of a file without one have no
        lineage. A row has the id that its file stores, otherwise the sum of the file's first id and the row's position,
        and the number that its file stores, otherwise that of the file. Raises as ``read`` does.
        """
        for file in self._files:
            first_row_id = first_row_ids.get(file.location)
            compared = {field_id for delete in file.deletes for field_id in delete.equality_ids}
            for first, batch, keep in self._read_file(file, partial(_is_lineage_or_one_of, compared)):
                if first_row_id is None:
                    nothing: Numbers = np.full(int(keep.sum()), NOTHING)
                    yield Lineage(nothing, nothing)
                    continue
                stored, positions = stored_in(batch), np.arange(batch.num_rows, dtype=np.int64)
                ids = np.where(stored.ids == NOTHING, first_row_id + first + positions, stored.ids)
                numbers = np.where(stored.numbers == NOTHING, file.sequence_number, stored.numbers)
                yield Lineage(ids[keep], numbers[keep])

    def _read_file(
        self, file: DataFile, wants: Callable[[str, int | None], bool]
    ) -> Iterator[tuple[int, pa.RecordBatch, npt.NDArray[np.bool_]]]:
        """Yield each batch with the position of its first row and a mask of the remaining rows.

        A batch has the columns for which ``wants`` returns True; ``wants`` gets the name and the field id of a column.
        """
        deleted = self._deleted_positions(file)
        equalities = self._equality_deletes(file)
        first = 0
        with _translated(file.path), pq.ParquetFile(file.path) as opened:
            ids = {name: field_id for field_id, name in _names_by_id(opened.schema_arrow).items()}
            names = [name for name in opened.schema_arrow.names if wants(name, ids.get(name))]
            # `columns` takes dots for nesting; if a name contains a dot, all columns are read.
            columns = None if any("." in name for name in names) else names
            for batch in opened.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False):
                keep = np.ones(batch.num_rows, dtype=np.bool_)
                low, high = np.searchsorted(deleted, (first, first + batch.num_rows))
                keep[deleted[low:high] - first] = False
                by_id = {ids[name]: batch.column(name) for name in batch.schema.names if name in ids}
                for field_ids, table in equalities.items():
                    keep &= ~_rows_in([by_id[one] for one in field_ids], table)
                yield first, batch, keep
                first += batch.num_rows

    def _deleted_positions(self, file: DataFile) -> Positions:
        """Return the positions of the deleted rows of a file, sorted and each once.

        A deletion vector has all deletes of its data file, so Iceberg ignores position delete files beside it.
        """
        vectors = [_read_vector(one) for one in file.deletes if one.content is DeleteContent.VECTOR]
        found = [np.empty(0, dtype=np.int64), *vectors]
        for delete in file.deletes if not vectors else ():
            if delete.content is DeleteContent.POSITIONS:
                if delete.path not in self._positions:
                    self._positions[delete.path] = _read_positions(delete, self._locations)
                found.append(self._positions[delete.path].get(file.location, found[0]))
        return np.unique(np.concatenate(found))

    def _equality_deletes(self, file: DataFile) -> Mapping[tuple[int, ...], Sequence[pa.Table]]:
        """Return the deleted values of a file by the ids of the compared columns."""
        tables: dict[tuple[int, ...], list[pa.Table]] = defaultdict(list)
        for delete in file.deletes:
            if delete.content is DeleteContent.EQUALITY:
                if delete.path not in self._equalities:
                    self._equalities[delete.path] = _read_values(delete)
                tables[delete.equality_ids].append(self._equalities[delete.path])
        return tables


def _is_lineage_or_one_of(field_ids: Collection[int], name: str, field_id: int | None) -> bool:
    return name in FIELD_IDS or field_id in field_ids


def _read_positions(delete: DeleteFile, wanted: Collection[str]) -> Mapping[str, Positions]:
    """Return the deleted positions of the ``wanted`` data files, by their names."""
    found: dict[str, list[Positions]] = defaultdict(list)
    with _translated(delete.path), pq.ParquetFile(delete.path) as opened:
        # Each row has the whole name of its data file: a table of all rows would take a hundred bytes for each.
        for batch in opened.iter_batches(_BATCH_ROWS, columns=["file_path", "pos"], use_threads=False):
            locations = batch.column("file_path").dictionary_encode()
            codes, positions = locations.indices.to_numpy(), batch.column("pos").to_numpy()
            for code, location in enumerate(locations.dictionary.cast(pa.string()).to_pylist()):
                if location in wanted:
                    found[location].append(positions[codes == code].astype(np.int64))
    return {location: np.concatenate(parts) for location, parts in found.items()}


def _read_vector(delete: DeleteFile) -> Positions:
    """Return the positions in a deletion vector, from the bytes at which the table's metadata places it.

    Like Iceberg's reader (``BaseDeleteLoader``), it does not read the footer of the Puffin file.
    """
    from pyiceberg.table.deletion_vector import DeletionVector

    with _translated(delete.path):
        with open(delete.path, "rb") as opened:
            opened.seek(delete.content_offset or 0)
            blob = opened.read(delete.content_bytes or 0)
        bitmaps = DeletionVector._deserialize_bitmap(_vector_content(blob, delete))
        # PyIceberg's own `to_vector` makes a Python object of each position, and fails if the first bitmap is empty.
        parts = [np.asarray(one.to_array(), dtype=np.int64) + (key << 32) for key, one in enumerate(bitmaps) if one]
        positions = np.concatenate([np.empty(0, dtype=np.int64), *parts])
        if len(positions) != delete.rows:
            raise ValueError(f"the deletion vector at {delete.content_offset} has {len(positions)} rows")
    return positions


def _vector_content(blob: bytes, delete: DeleteFile) -> bytes:
    """Return the bitmaps in the blob of a vector: behind its length and magic bytes, before its checksum."""
    length, magic = int.from_bytes(blob[:4], "big"), blob[4:8]
    whole = _MIN_VECTOR_BYTES <= len(blob) == delete.content_bytes == length + 8 and magic == _VECTOR_MAGIC
    if not whole or zlib.crc32(blob[4:-4]) != int.from_bytes(blob[-4:], "big"):
        raise ValueError(f"there is no whole deletion vector at {delete.content_offset}")
    return blob[8:-4]


def _read_values(delete: DeleteFile) -> pa.Table:
    """Return the columns that an equality delete compares, in the order of its ids."""
    with _translated(delete.path), pq.ParquetFile(delete.path) as opened:
        names = _names_by_id(opened.schema_arrow)
        table = opened.read(use_threads=False)
    return table.select([names[field_id] for field_id in delete.equality_ids])


def _names_by_id(schema: pa.Schema) -> dict[int, str]:
    """Return the top-level columns of a file by their field ids."""
    return {int(one.metadata[_FIELD_ID]): one.name for one in schema if one.metadata and _FIELD_ID in one.metadata}


def _rows_in(columns: Sequence[pa.Array], deleted: Sequence[pa.Table]) -> npt.NDArray[np.bool_]:
    """Return which rows of ``columns`` are rows of a ``deleted`` table; null equals null, and NaN equals NaN."""
    rows = len(columns[0])
    codes = np.zeros(rows + sum(table.num_rows for table in deleted), dtype=np.int64)
    for index, column in enumerate(map(_without_extension, columns)):
        chunks = [_without_extension(chunk) for table in deleted for chunk in table.column(index).chunks]
        more = _codes(pa.concat_arrays([column, *(chunk.cast(column.type) for chunk in chunks)]))
        # Numbered anew for each column, so that products never overflow.
        codes = np.unique(codes * (int(more.max(initial=0)) + 1) + more, return_inverse=True)[1].astype(np.int64)
    found: npt.NDArray[np.bool_] = np.isin(codes[:rows], codes[rows:])
    return found


def _without_extension(values: pa.Array) -> pa.Array:
    """Return the values as they are stored: Arrow can't number values of its own types, such as UUIDs."""
    return values.storage if isinstance(values, pa.ExtensionArray) else values


def _codes(values: pa.Array) -> Positions:
    """Return a number for each value, the same for equal ones; zeros of different signs differ."""
    if pa.types.is_floating(values.type):
        numbers = np.array(values.fill_null(0).to_numpy(zero_copy_only=False))
        numbers[np.isnan(numbers)] = np.nan
        codes = np.unique(numbers.view(f"i{numbers.itemsize}"), return_inverse=True)[1].astype(np.int64) + 1
        codes[values.is_null().to_numpy(zero_copy_only=False)] = 0
        return codes
    encoded = values.dictionary_encode(null_encoding="encode")
    return np.asarray(encoded.indices.to_numpy(), dtype=np.int64)


@contextmanager
def _translated(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise Conflict(f"{path} was deleted while the plan ran") from error
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise Transient(f"{path} can't be read now: {first_line(error)}") from error

# SPDX-License-Identifier: Apache-2.0
"""The rows of data files that position delete files and deletion vectors leave, for an engine.

Nothing here is shared with ``lake.formats.iceberg.read.merged_rows``, by which the verification reads the same deletes:
an error here must not hide itself. Sources of the rules: Iceberg's table specification, "Position Delete Files" and
"Deletion Vectors".
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lake.errors import Conflict, Transient, first_line
from lake.formats.iceberg.files.deletion_vectors import VectorLocation, read_vector

_PATH, _POSITION = "file_path", "pos"
_BATCH_ROWS = 1 << 16
_Bits = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletesOfFile:
    """The deletes of one data file: the name of the data file in the delete files, and the paths of these.

    With a ``vector`` the delete files are ignored, as Iceberg does: a vector has all deletes of its data file.
    """

    location: str
    delete_paths: tuple[str, ...] = ()
    vector: VectorLocation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionDeletes:
    """The position deletes of the inputs of a task, by the path of each input. See ``lake.engines.RowOmissions``.

    Each delete file is read once, a batch at a time, and of a file with vectors only the wanted ones. The result takes
    one bit for each row of an input with deletes.
    """

    by_input: Mapping[str, DeletesOfFile]

    def read_remaining(self, rows: Mapping[str, int]) -> Mapping[str, pa.BooleanArray]:
        """See ``lake.engines.RowOmissions``. Positions after the last row delete nothing, as for every reader."""
        bits: dict[str, _Bits] = {}
        wanted: dict[str, dict[str, str]] = defaultdict(dict)
        for path, deletes in self.by_input.items():
            if path in rows and (deletes.vector or deletes.delete_paths):
                bits[path] = np.full(-(-rows[path] // 8), 0xFF, dtype=np.uint8)
                if deletes.vector is not None:
                    for positions in read_vector(deletes.vector):
                        _clear(bits[path], rows[path], positions)
                    continue
                for delete_path in deletes.delete_paths:
                    wanted[delete_path][deletes.location] = path
        for delete_path, inputs in wanted.items():
            for location, positions in _read(delete_path, inputs):
                path = inputs[location]
                _clear(bits[path], rows[path], positions)
        return {
            path: pa.Array.from_buffers(pa.bool_(), rows[path], [None, pa.py_buffer(found)])
            for path, found in bits.items()
        }


def _clear(bits: _Bits, rows: int, positions: npt.NDArray[np.int64]) -> None:
    inside = positions[(positions >= 0) & (positions < rows)]
    # One position after the other, since several of them may be in one byte.
    np.bitwise_and.at(bits, inside >> 3, ~(np.uint8(1) << (inside & 7).astype(np.uint8)))


def _read(path: str, wanted: Mapping[str, object]) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
    """Yield deleted positions of the ``wanted`` data files, each time with the name of the file.

    Raises Conflict if the delete file is gone, Transient if it can't be read.
    """
    try:
        with pq.ParquetFile(path, read_dictionary=[_PATH]) as opened:
            names = pa.array(list(wanted), pa.string())
            groups = [
                number
                for number in range(opened.metadata.num_row_groups)
                if _may_name(opened.metadata.row_group(number), wanted)
            ]
            batches = opened.iter_batches(_BATCH_ROWS, row_groups=groups, columns=[_PATH, _POSITION], use_threads=False)
            for batch in batches if groups else ():
                found = batch.column(_PATH)
                if batch.column(_POSITION).null_count or found.null_count:
                    raise Transient(f"{path} can't be read: a position or a path in it is null")
                codes = found.indices.to_numpy(zero_copy_only=False)
                positions = batch.column(_POSITION).to_numpy().astype(np.int64)
                locations = found.dictionary.cast(pa.string())
                for code in np.flatnonzero(_is_in(locations, names)):
                    chosen = positions[codes == code]
                    if len(chosen):
                        yield locations[int(code)].as_py(), chosen
    except FileNotFoundError as error:
        raise Conflict(f"{path} was deleted while the plan ran") from error
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        raise Transient(f"{path} can't be read now: {first_line(error)}") from error


def _is_in(values: pa.Array, wanted: pa.Array) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = pc.is_in(values, value_set=wanted).to_numpy(zero_copy_only=False)
    return found


def _may_name(group: pq.RowGroupMetaData, wanted: Mapping[str, object]) -> bool:
    """True unless the bounds of a row group's paths exclude all ``wanted`` ones; the rows are sorted by path."""
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema == _PATH:
            bounds = column.statistics
            if bounds is None or not bounds.has_min_max:
                return True
            # Bounds may be shortened anywhere, also in the middle of a letter.
            return any(bounds.min_raw <= location.encode() <= bounds.max_raw for location in wanted)
    return True

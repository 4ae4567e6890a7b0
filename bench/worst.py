# SPDX-License-Identifier: Apache-2.0
"""Files on which lakefold's engines gain least over Spark SQL.

``random``: random bytes and doubles, compressed by gzip. Encoding such values takes little time, and every program
spends most of it in zlib, which no engine that decodes can save. ``wide``: 600 columns of few values. Spark reads their
footers in compiled code; ``stitch`` reads each footer entry in Python.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FILES_A_PARTITION = 25
_ROWS_OF_RANDOM, _ROWS_OF_WIDE, _COLUMNS = 14_000, 200, 600


def write_random(folder: Path, files: int) -> None:
    """Write ``files`` files of about 1 MB, unless ``folder`` exists."""

    def rows(rng: np.random.Generator) -> pa.Table:
        payload = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(64), _ROWS_OF_RANDOM, [None, pa.py_buffer(rng.bytes(64 * _ROWS_OF_RANDOM))]
        )
        return pa.table({"payload": payload.cast(pa.binary()), "value": rng.random(_ROWS_OF_RANDOM)})

    _write(folder, files, rows, "gzip")


def write_wide(folder: Path, files: int) -> None:
    """Write ``files`` files of 600 columns and 200 rows, unless ``folder`` exists."""

    def rows(rng: np.random.Generator) -> pa.Table:
        return pa.table({f"c{number}": rng.integers(0, 1_000, _ROWS_OF_WIDE) for number in range(_COLUMNS)})

    _write(folder, files, rows, "snappy")


def _write(folder: Path, files: int, rows: Callable[[np.random.Generator], pa.Table], codec: str) -> None:
    if folder.exists():
        return
    part = folder.with_name(f"{folder.name}.part")
    rng = np.random.default_rng(7)
    for number in range(files):
        directory = part / f"part={number // FILES_A_PARTITION}"
        directory.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows(rng), directory / f"input-{number}.parquet", compression=codec, use_dictionary=False)
    part.rename(folder)

# SPDX-License-Identifier: Apache-2.0
"""Data files of every kind that a table may have: their statistics, and their rows.

The kind is the suffix of a file's name. If the name has no known suffix, such as Hive's ``000000_0``, the kind follows
from the first bytes of the content.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, Protocol

import pyarrow as pa

from executors.datafiles.orc import OrcFile
from executors.datafiles.parquet import ParquetFile
from executors.datafiles.statistics import FileStatistics
from lake.errors import Rejected


class FileFooter(Protocol):
    """The part of a file that is kept after it is closed."""

    @property
    def rows(self) -> int:
        """The number of rows in the file."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the file, as Arrow shows them."""

    @staticmethod
    def combine(footers: Sequence[Any], ignore: Collection[str]) -> FileStatistics:
        """Return the statistics of some footers of this kind, without the top-level columns in ``ignore``."""


class OpenDataFile(Protocol):
    """An open data file. Content that can't be read raises OSError or ``pa.ArrowException``."""

    def read_footer(self, ignore: Collection[str], check: Callable[[], None]) -> FileFooter:
        """Return the footer, without the top-level columns in ``ignore`` if that saves reading.

        If rows have to be read for it, ``check`` is called between batches, and may raise to end the work.
        """

    def read_batches(self, ignore: Collection[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows in bounded batches, without the top-level columns in ``ignore`` if that saves reading."""

    def close(self) -> None:
        """Close the file and the handle that it was opened from."""


READERS: Mapping[str, Callable[[pa.NativeFile], OpenDataFile]] = MappingProxyType(
    {"parquet": ParquetFile, "orc": OrcFile}
)
"""The reader of each kind of file, by the suffix of the file's name."""

_MAGIC_BYTES = {b"PAR1": "parquet", b"ORC": "orc", b"Obj\x01": "avro", b"SEQ": "sequence"}


def open_data_file(handle: pa.NativeFile, path: str) -> OpenDataFile:
    """Return the file at ``path``, with the content ``handle``, in the reader of its kind.

    Raises Rejected for a kind without a reader, and ``pa.ArrowInvalid`` if neither the name nor the content shows a
    kind.
    """
    kind = PurePosixPath(path).suffix.removeprefix(".").lower()
    if kind not in READERS:
        beginning = handle.read(4)
        handle.seek(0)
        kind = next((known for start, known in _MAGIC_BYTES.items() if beginning.startswith(start)), kind)
    if kind in READERS:
        return READERS[kind](handle)
    if not kind:
        raise pa.ArrowInvalid(f"neither its name nor its first bytes {beginning!r} show its kind")
    raise Rejected(
        f"{path} is a file of kind {kind}; lakefold can verify rewrites of {' and '.join(READERS)} files only"
    )


def collect_statistics(footers: Iterable[FileFooter], ignore: Collection[str]) -> FileStatistics:
    """Return the statistics of footers of any kinds together."""
    total = FileStatistics()
    for _, of_one_kind in groupby(footers, type):
        footers_of_kind = list(of_one_kind)
        total.merge(footers_of_kind[0].combine(footers_of_kind, ignore))
    return total

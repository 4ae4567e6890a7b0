# SPDX-License-Identifier: Apache-2.0
"""Data files of every kind that a table may have: what they say about their rows, and the rows themselves.

The kind is what a file's name ends in; where that tells nothing, as with Hive's ``000000_0``, how its content begins.
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
    """What is kept of a file when it is closed again."""

    @property
    def rows(self) -> int:
        """Rows of the file."""

    @property
    def schema(self) -> pa.Schema:
        """Columns of the file, as Arrow sees them."""

    @staticmethod
    def combine(footers: Sequence[Any], ignore: Collection[str]) -> FileStatistics:
        """The facts of some footers of this kind, without the top-level columns in ``ignore``."""


class OpenDataFile(Protocol):
    """An open data file. What it holds that can't be read raises OSError or ``pa.ArrowException``."""

    def read_footer(self, ignore: Collection[str], check: Callable[[], None]) -> FileFooter:
        """What the file says about its rows, without the top-level columns in ``ignore`` where that saves reading.

        ``check`` is called between batches where that takes reading rows, and may raise to end the work.
        """

    def read_batches(self, ignore: Collection[str]) -> Iterator[pa.RecordBatch]:
        """The rows in batches of bounded size, without the top-level columns in ``ignore`` where that saves reading."""

    def close(self) -> None:
        """Close the file and what it was opened from."""


READERS: Mapping[str, Callable[[pa.NativeFile], OpenDataFile]] = MappingProxyType(
    {"parquet": ParquetFile, "orc": OrcFile}
)
"""Every kind of file that can be read, by the end of its name."""

_MAGIC_BYTES = {b"PAR1": "parquet", b"ORC": "orc", b"Obj\x01": "avro", b"SEQ": "sequence"}


def open_data_file(handle: pa.NativeFile, path: str) -> OpenDataFile:
    """The file at ``path``, whose content is ``handle``, as its kind. Raises Rejected for a kind that has no reader.

    A file whose name tells no kind and whose content begins like none raises ``pa.ArrowInvalid``.
    """
    kind = PurePosixPath(path).suffix.removeprefix(".").lower()
    if kind not in READERS:
        beginning = handle.read(4)
        handle.seek(0)
        kind = next((known for start, known in _MAGIC_BYTES.items() if beginning.startswith(start)), kind)
    if kind in READERS:
        return READERS[kind](handle)
    if not kind:
        raise pa.ArrowInvalid(f"neither its name nor its first bytes {beginning!r} tell its kind")
    raise Rejected(
        f"{path} is a file of kind {kind}; lakefold can prove rewrites of {' and '.join(READERS)} files only"
    )


def collect_statistics(footers: Iterable[FileFooter], ignore: Collection[str]) -> FileStatistics:
    """The facts of footers of any kinds together."""
    total = FileStatistics()
    for _, alike in groupby(footers, type):
        some = list(alike)
        total.merge(some[0].combine(some, ignore))
    return total

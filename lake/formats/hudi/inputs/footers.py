# SPDX-License-Identifier: Apache-2.0
"""What the footers of a plan's base files say, read without a JVM."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from lake.formats.hudi.files.storage import Storage

_BLOOM_TYPE = b"hoodie_bloom_filter_type_code"
_NUMBERS = frozenset({"INT32", "INT64", "FLOAT", "DOUBLE"})
_BLOOM_FILTERS = (b"org.apache.hudi.bloomfilter", b"com.uber.hoodie.bloomfilter")


@dataclass(frozen=True, slots=True)
class Footer:
    """One file's footer: its Parquet schema as text, how its data is cut, the type of its bloom filter.

    ``file_bytes`` is the size of the file, ``data_bytes`` that of its compressed column chunks; ``numbers`` are the
    columns, nested ones by their dotted paths, that hold plain numbers.
    """

    path: str
    file_bytes: int
    schema: str
    row_groups: int
    data_bytes: int
    bloom_filter: str | None
    numbers: frozenset[str]


def read_footers(storage: Storage, paths: Sequence[str]) -> Iterator[Footer]:
    """The footers of ``paths`` in their order, read in parallel; files that are gone or damaged are passed over."""

    def read(path: str) -> Footer | None:
        try:
            with storage.open(path) as source:
                footer = pq.read_metadata(source)
                file_bytes = source.size()
        except (OSError, pa.ArrowException):
            return None
        metadata = footer.metadata or {}
        bloom = metadata.get(_BLOOM_TYPE, b"SIMPLE" if any(key in metadata for key in _BLOOM_FILTERS) else None)
        # Its first two lines are an address and the root's name, which depends on who wrote the file.
        schema = str(footer.schema).split("\n", 2)[2]
        data_bytes = sum(
            footer.row_group(i).column(j).total_compressed_size
            for i in range(footer.num_row_groups)
            for j in range(footer.num_columns)
        )
        leaves = map(footer.schema.column, range(footer.num_columns))
        return Footer(
            path,
            file_bytes,
            schema,
            footer.num_row_groups,
            data_bytes,
            bloom.decode() if bloom else None,
            frozenset(leaf.path for leaf in leaves if leaf.physical_type in _NUMBERS),
        )

    with ThreadPoolExecutor(min(8, 2 * (os.cpu_count() or 1)), "footers") as pool:
        yield from (footer for footer in pool.map(read, paths) if footer is not None)

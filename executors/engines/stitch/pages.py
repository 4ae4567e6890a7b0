# SPDX-License-Identifier: Apache-2.0
"""Verifies that a column chunk's bytes are whole pages with the values that its footer entry states.

The footer of a stitched file is built from the inputs' footers, which may be wrong about the copied bytes. For example,
the size of a chunk in files of parquet-mr before 1.2.9 lacks the header of the dictionary page (PARQUET-816).
"""

import pyarrow as pa

from executors.datafiles.thrift import find_values
from executors.engines.stitch.copying import RangeReader
from executors.engines.stitch.raw_file import ColumnChunk

# Fields of PageHeader, DataPageHeader and DataPageHeaderV2.
_PAGE_HEADER = {3: "size", 5: {1: "values"}, 8: {1: "values"}}
#: the sizes to read for a header, one after the other until it is complete: few have statistics with long values
_HEADER_BYTES = (256, 64 << 10, 16 << 20)


def verify_pages(path: str, chunk: ColumnChunk, source: RangeReader) -> None:
    """Read the headers of all pages of a chunk, which follow one another.

    Raises ``pa.ArrowInvalid`` if the last page does not end where the chunk ends, or if the pages have another number
    of values.
    """
    at, values = chunk.start, 0
    while at < chunk.end:
        size, header_end, count = _read_header(path, chunk, source, at)
        at, values = at + header_end + size, values + count
    if at != chunk.end:
        raise pa.ArrowInvalid(f"{path}: the pages of a column chunk end at {at} instead of {chunk.end}")
    if values != chunk.values:
        raise pa.ArrowInvalid(f"{path}: the pages of a column chunk have {values} values instead of {chunk.values}")


def _read_header(path: str, chunk: ColumnChunk, source: RangeReader, at: int) -> tuple[int, int, int]:
    """Return the size of a page without its header, the size of the header, and the number of values."""
    for wanted in _HEADER_BYTES:
        length = min(wanted, chunk.end - at)
        try:
            found, end = find_values(source.read(at, length), 0, _PAGE_HEADER)
        except ValueError as error:
            if length == chunk.end - at or wanted == _HEADER_BYTES[-1]:
                raise pa.ArrowInvalid(f"{path}: the header of a page at {at} can't be read: {error}") from error
            continue
        named = {name: value for name, _, _, value in found}
        if named.get("size", -1) < 0:
            break
        return named["size"], end, named.get("values", 0)
    raise pa.ArrowInvalid(f"{path}: the header of a page at {at} has no size")

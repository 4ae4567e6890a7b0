# SPDX-License-Identifier: Apache-2.0
"""Whether row groups of several Parquet files can be in one file, under the footer of the first one.

A footer applies to all row groups of its file. So the parts that determine how values and statistics are read must be
equal: schema, metadata, the order of each column's minima and maxima (``column_orders``), and the writer if readers
treat files of some of its versions differently.
"""

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from executors.datafiles.thrift import decode
from executors.engines.inputs import UnsupportedInput, adapt_footers, interpretation
from executors.engines.stitch.raw_file import RawParquetFile
from lake.engines import FileAdditions

# Fields of FileMetaData, SchemaElement and KeyValue.
_SCHEMA, _KEY_VALUES, _CREATED_BY = 2, 5, 6
_TYPE = 1
_KEY, _VALUE = 1, 2

_INT96 = 3
#: a placeholder with the field number of the row groups: the next field records only its distance from that number
_ROW_GROUPS_FIELD = b"\x45\x00"
_END = b"\x00"

#: The first version of each writer whose files readers trust. parquet-java ignores statistics that older
#: versions of parquet-java wrote (PARQUET-251, PARQUET-1025). Arrow ignores statistics of older versions of both
#: writers, and reads pages of older versions of Arrow differently (PARQUET-816, ARROW-10353). Versions of other writers
#: are not distinguished.
_TRUSTED_SINCE = {"parquet-mr": (1, 10, 0), "parquet-cpp": (3, 0, 0), "parquet-cpp-arrow": (3, 0, 0)}
_TREATED = ("parquet-mr", "parquet-cpp", "impala", "hive")


class _Footer:
    """The parts of a file's footer that its row groups depend on."""

    def __init__(self, file: RawParquetFile) -> None:
        try:
            self.schema = decode(file.head + _END)[_SCHEMA]
            remaining = decode(_ROW_GROUPS_FIELD + file.rest)
        except (KeyError, ValueError) as error:
            raise pa.ArrowInvalid(f"{file.path}: the footer can't be read: {error}") from error
        pairs = list(remaining.pop(_KEY_VALUES, (0, (0, [])))[1][1])
        self.created_by: bytes | None = remaining.pop(_CREATED_BY, (0, None))[1]
        self.metadata = {pair[_KEY][1]: pair[_VALUE][1] if _VALUE in pair else b"" for pair in pairs}
        self.has_int96 = any(element.get(_TYPE, (0, None))[1] == _INT96 for element in self.schema[1][1])
        #: the orders of minima and maxima, and unknown fields
        self.others: dict[int, Any] = remaining


def adapt_files(files: Sequence[RawParquetFile], additions: FileAdditions | None) -> Sequence[RawParquetFile]:
    """Return ``files`` with footers adapted by ``additions`` (see ``FileAdditions``); ``files`` if that is None.

    All adapted footers have the same root name, no key of a single input, and the shared keys. Only such footers can be
    compared, and the first one becomes the output's. Raises ``pa.ArrowInvalid`` for a broken footer.
    """
    if additions is None:
        return files
    footers = adapt_footers([(file.path, file.bare_footer) for file in files], additions)
    return [file.with_bare_footer(footer) for file, footer in zip(files, footers, strict=True)]


def verify_compatible(files: Sequence[RawParquetFile]) -> None:
    """Raise UnsupportedInput if the files can't be one file that all readers can read.

    Raises ``pa.ArrowInvalid`` if a footer is broken.
    """
    first = files[0]
    known = {(first.head, first.rest)}
    parsed: _Footer | None = None
    for other in files[1:]:
        # Almost always all files of a writer have these bytes in common.
        if (other.head, other.rest) in known:
            continue
        parsed = _Footer(first) if parsed is None else parsed
        difference = _difference(parsed, _Footer(other))
        if difference is not None:
            raise UnsupportedInput(f"{other.path} and {first.path} {difference}")
        known.add((other.head, other.rest))
    _verify_offset_indexes(files)


def _verify_offset_indexes(files: Sequence[RawParquetFile]) -> None:
    """Raise UnsupportedInput if some column chunks have an offset index and others do not.

    Releases of parquet-rs up to that of DataFusion 50 can't read a file with both kinds of chunks. A
    column index, in contrast, may be missing for some chunks: writers leave it out for a chunk with NaN.
    """
    found: dict[bool, str] = {}
    for file in files:
        for group in file.row_groups:
            for has_index in group.offset_indexes:
                found.setdefault(has_index, file.path)
    if len(found) > 1:
        raise UnsupportedInput(
            f"column chunks of {found[True]} have an offset index and others do not, such as in {found[False]}, and "
            "some readers can't read a file of both"
        )


def footer_difference(one: RawParquetFile, other: RawParquetFile) -> str | None:
    """Return the difference between two files' footers as the predicate of a sentence about both; None if equal.

    Raises ``pa.ArrowInvalid`` if a footer is broken.
    """
    return _difference(_Footer(one), _Footer(other))


def _difference(one: _Footer, other: _Footer) -> str | None:
    """Return the difference between two footers as the predicate of a sentence about both files; None if equal."""
    if one.schema != other.schema:
        return "have different schemas"
    meanings = [interpretation(footer.metadata, footer.created_by, footer.has_int96) for footer in (one, other)]
    keys = sorted(meanings[0].keys() | meanings[1].keys())
    key = next((key for key in keys if meanings[0].get(key) != meanings[1].get(key)), None)
    if key is not None:
        return f"differ in metadata {key.decode(errors='replace')}, which can change how values are read"
    if one.created_by != other.created_by and not (_is_trusted(one.created_by) and _is_trusted(other.created_by)):
        return "are of different writers, and readers treat one of these writers differently"
    if one.others != other.others:
        return "differ in column_orders, the order of minima and maxima, or in an unknown field"
    return None


def _is_trusted(created_by: bytes | None) -> bool:
    """True if readers give files of this writer and version no special treatment."""
    if created_by is None:
        return False
    match = re.match(r"(\S+)(?: version (\d+)\.(\d+)\.(\d+))?", created_by.decode(errors="replace").lower())
    if match is None:
        return False
    writer, *version = match.groups()
    if not writer.startswith(_TREATED):
        return True
    since = _TRUSTED_SINCE.get(writer)
    return since is not None and None not in version and tuple(map(int, version)) >= since

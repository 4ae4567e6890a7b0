# SPDX-License-Identifier: Apache-2.0
"""An experiment: small row groups of Parquet files merged without decoding values, against ``arrow`` and ``cat``.

Pages of one column can follow one another in one column chunk. A chunk has one dictionary page, so the dictionaries of
the merged chunks are united, and only the indexes of dictionary pages are decoded and encoded again; pages with plain
values are copied. Dictionaries that have few values in common are joined with their duplicates, since a search for
duplicates would take longer.

Merges 100 files of about 1 MB of TPC-H's lineitem into one file with ten row groups. The ways take turns, each in its
own process, and medians are compared. CPU seconds are those of the process. The file of each way is read by pyarrow and
DuckDB and compared with the inputs. Columns are neither null nor nested, which is the best case for ``splice``: its
levels are constant.

Sources: https://github.com/apache/parquet-format, parquet.thrift (PageHeader, ColumnMetaData) and Encodings.md (the
hybrid of runs and bit-packed values).
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # needed to run from a clone without an installation
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.lineitem import ROWS_A_SCALE, generate
from executors.datafiles.thrift import BINARY, I32, I64, LIST, STRUCT, Struct, decode, encode, find_values
from executors.engines.footer import MAGIC
from executors.engines.group_rewrite import rewrite_task
from executors.engines.stitch.parquet import stitch_task
from executors.engines.stitch.raw_file import RawParquetFile
from lake.engines import EngineOutput, RewriteTask
from lake.plan import RewriteOptions

FILES, ROWS_A_FILE, ROW_GROUPS = 100, 22_000, 10
BAR = 2.0
#: values of one page of the output, the number in parquet-mr's page of the default size of columns with dictionaries
PAGE_VALUES = 20_000
#: dictionaries with more values hardly ever repeat those of other files, and comparing them takes long
MAX_COMMON_ENTRIES = 5_000
_CODECS = {0: "uncompressed", 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
_PLAIN, _PLAIN_DICTIONARY, _RLE, _RLE_DICTIONARY = 0, 2, 3, 8
_INT32, _INT64, _DOUBLE, _BYTE_ARRAY = 1, 2, 5, 6
_TYPES: dict[int, np.dtype[Any]] = {_INT32: np.dtype("<i4"), _INT64: np.dtype("<i8"), _DOUBLE: np.dtype("<f8")}
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2

_PAGE_HEADER = {
    1: "type",
    2: "uncompressed_size",
    3: "compressed_size",
    5: {1: "values", 2: "encoding"},
    7: {1: "values"},
}


@dataclass(frozen=True, slots=True)
class Page:
    """A data page: its values, its encoding, the bytes with its header, and where its content begins in these bytes."""

    values: int
    encoding: int
    content: memoryview
    body_start: int
    uncompressed_size: int


@dataclass(slots=True)
class Chunk:
    """A column chunk of an input: the dictionary's plain values and their number, and the data pages."""

    dictionary: bytes = b""
    entries: int = 0
    pages: list[Page] = field(default_factory=list)


def read_chunk(content: memoryview, codec: pa.Codec | None) -> Chunk:
    """Return the pages of a column chunk with the bytes ``content``."""
    found, at, whole = Chunk(), 0, bytes(content)
    while at < len(content):
        values, end = find_values(whole, at, _PAGE_HEADER)
        header = {name: value for name, _, _, value in values}
        behind = end + header["compressed_size"]
        if header["type"] == _DICTIONARY_PAGE:
            found.entries = header["values"]
            found.dictionary = _decompress(content[end:behind], header["uncompressed_size"], codec)
        else:
            assert header["type"] == _DATA_PAGE, "pages of version 2 are not in these files"
            found.pages.append(
                Page(header["values"], header["encoding"], content[at:behind], end - at, header["uncompressed_size"])
            )
        at = behind
    return found


def _decompress(content: memoryview, size: int, codec: pa.Codec | None) -> bytes:
    return bytes(content) if codec is None else codec.decompress(content, size, asbytes=True)


def decode_indexes(pages: Sequence[tuple[bytes, int, int]]) -> np.ndarray:
    """Return the dictionary indexes of consecutive pages.

    Each page is given by its bit width with the runs, its number of values, and what is added to its indexes. numpy
    needs long for a call but little for a value, so the bit-packed runs of one width are decoded together.
    """
    packed: dict[int, list[bytes]] = {}
    counts: dict[int, int] = {}
    literals: list[tuple[int, int, int]] = []
    lengths, is_packed, repeated = list[int](), list[bool](), list[int]()
    for body, values, _ in pages:
        width, at, left, literal, excess = body[0], 1, values, 0, 0
        value_size, parts = -(-width // 8), packed.setdefault(width, [])
        while left > 0:
            head = body[at]
            at += 1
            if head > 127:
                head, shift = head & 127, 7
                while (byte := body[at]) > 127:
                    head |= (byte & 127) << shift
                    shift += 7
                    at += 1
                head |= byte << shift
                at += 1
            count = head >> 1
            if head & 1:
                parts.append(body[at : at + count * width])
                at += count * width
                # Only the last run of a page may have more values than the page.
                count, excess = min(left, count * 8), max(0, count * 8 - left)
                literal += count + excess
                repeated.append(0)
                is_packed.append(True)
            else:
                repeated.append(int.from_bytes(body[at : at + value_size], "little"))
                is_packed.append(False)
                at += value_size
            lengths.append(count)
            left -= count
        start = counts.get(width, 0)
        counts[width] = start + literal
        literals.append((width, start, start + literal - excess))
    decoded = {width: _unpack(b"".join(parts), width) for width, parts in packed.items()}
    per_run = np.array(lengths)
    found = np.repeat(np.array(repeated, np.uint64), per_run)
    if any(is_packed):
        found[np.repeat(np.array(is_packed), per_run)] = np.concatenate(
            [decoded[width][start:end] for width, start, end in literals]
        )
    return found + np.repeat(
        np.array([base for _, _, base in pages], np.uint64), np.array([values for _, values, _ in pages])
    )


def _unpack(content: bytes, width: int) -> np.ndarray:
    """Return the values of ``width`` bits, in groups of eight values that begin with the lowest bits."""
    if not width:
        return np.zeros(0, np.uint64)
    groups = np.frombuffer(content, np.uint8).reshape(-1, width)
    words = -(-width // 8)
    padded = np.zeros((len(groups), words * 8), np.uint8)
    padded[:, :width] = groups
    in_words = padded.view("<u8")
    values = np.empty((len(groups), 8), np.uint64)
    mask = np.uint64((1 << width) - 1)
    for number in range(8):
        word, bit = divmod(number * width, 64)
        value = in_words[:, word] >> np.uint64(bit)
        if bit + width > 64:
            value |= in_words[:, word + 1] << np.uint64(64 - bit)
        np.bitwise_and(value, mask, out=values[:, number])
    return values.reshape(-1)


def pack(values: np.ndarray, width: int) -> bytes:
    """Return the values as bits, whose number must be a multiple of eight; the inverse of ``_unpack``."""
    groups = values.reshape(-1, 8)
    in_words = np.zeros((len(groups), -(-width // 8)), "<u8")
    for number in range(8):
        word, bit = divmod(number * width, 64)
        in_words[:, word] |= groups[:, number] << np.uint64(bit)
        if bit + width > 64:
            in_words[:, word + 1] |= groups[:, number] >> np.uint64(64 - bit)
    return in_words.view(np.uint8).reshape(len(groups), -1)[:, :width].tobytes()


def unite(chunks: Sequence[Chunk], kind: int) -> tuple[bytes, int, np.ndarray | None]:
    """Return the united dictionary, its number of values, and the new index of each value of the joined dictionaries.

    The last is None if the dictionaries were joined with their duplicates: the new index is the position.
    """
    joined, count = b"".join(chunk.dictionary for chunk in chunks), sum(chunk.entries for chunk in chunks)
    if len(chunks) < 2 or max(chunk.entries for chunk in chunks) > MAX_COMMON_ENTRIES:
        return joined, count, None
    if kind in _TYPES:
        values = np.frombuffer(joined, f"<u{_TYPES[kind].itemsize}")
        distinct, mapping = np.unique(values, return_inverse=True)
        if len(distinct) * 2 > count:
            return joined, count, None
        return distinct.tobytes(), len(distinct), mapping.astype(np.uint64)
    parts = [_byte_arrays(chunk.dictionary) for chunk in chunks[:2]]
    if len(set(parts[0]).intersection(parts[1])) * 2 < min(map(len, parts)):
        return joined, count, None
    numbers: dict[bytes, int] = {}
    renumbered = [
        numbers.setdefault(entry, len(numbers)) for chunk in chunks for entry in _byte_arrays(chunk.dictionary)
    ]
    return b"".join(numbers), len(numbers), np.array(renumbered, np.uint64)


def _byte_arrays(dictionary: bytes) -> list[bytes]:
    """Return the entries, each with the four bytes of its length."""
    found, at = [], 0
    while at < len(dictionary):
        end = at + 4 + int.from_bytes(dictionary[at : at + 4], "little")
        found.append(dictionary[at:end])
        at = end
    return found


class Output:
    """The file that is being written."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "wb")  # noqa: SIM115 - closed by finish
        self.position = 0
        self.append(MAGIC)

    def append(self, content: bytes | memoryview) -> None:
        """Append bytes."""
        self._file.write(content)
        self.position += len(content)

    def finish(self, footer: bytes) -> None:
        """Append the footer, and sync the file."""
        self.append(footer + len(footer).to_bytes(4, "little") + MAGIC)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


def splice(paths: Sequence[str], path: str) -> None:
    """Merge the files of ``paths`` into one file with ``ROW_GROUPS`` row groups."""
    files = [RawParquetFile.read(one) for one in paths]
    first = decode(files[0].footer)
    optional = [element[3][1] == 1 for element in first[2][1][1][1:]]
    size = -(-len(files) // ROW_GROUPS)
    output, row_groups, rows = Output(path), [], 0
    for at in range(0, len(files), size):
        part = files[at : at + size]
        contents = [memoryview(Path(file.path).read_bytes()) for file in part]
        metas = [decode(file.footer)[4][1][1][0] for file in part]
        columns = [
            splice_column(output, contents, [meta[1][1][1][leaf] for meta in metas], is_optional=optional[leaf])
            for leaf in range(len(metas[0][1][1][1]))
        ]
        of_group = sum(meta[3][1] for meta in metas)
        rows += of_group
        row_groups.append(
            {
                1: (LIST, (STRUCT, columns)),
                2: (I64, sum(column[3][1][6][1] for column in columns)),
                3: (I64, of_group),
            }
        )
    footer = {**first, 3: (I64, rows), 4: (LIST, (STRUCT, row_groups))}
    output.finish(encode(footer))


def splice_column(
    output: Output, contents: Sequence[memoryview], metas: Sequence[Struct], *, is_optional: bool
) -> Struct:
    """Append one column chunk of the output. Returns its footer entry. ``metas`` are those of the inputs' chunks."""
    entries = [meta[3][1] for meta in metas]
    kind, name = entries[0][1][1], _CODECS[entries[0][4][1]]
    codec = None if name == "uncompressed" else pa.Codec(name)
    chunks = []
    for content, entry in zip(contents, entries, strict=True):
        start = min(entry[9][1], entry[11][1]) if 11 in entry else entry[9][1]
        chunks.append(read_chunk(content[start : start + entry[7][1]], codec))
    start, plain_size, width, mapping = output.position, 0, 0, None
    found: Struct = {}
    if any(chunk.entries for chunk in chunks):
        dictionary, count, mapping = unite(chunks, kind)
        header = {7: (STRUCT, {1: (I32, count), 2: (I32, _PLAIN)})}
        plain_size += _write_page(output, _DICTIONARY_PAGE, dictionary, header, codec)
        width = max(1, (count - 1).bit_length())
        found[11] = I64, start
    data_start = output.position
    base, pending = 0, list[tuple[bytes, int, int]]()
    for chunk in chunks:
        for page in chunk.pages:
            if page.encoding in (_PLAIN_DICTIONARY, _RLE_DICTIONARY):
                body = _decompress(page.content[page.body_start :], page.uncompressed_size, codec)
                levels = 4 + int.from_bytes(body[:4], "little") if is_optional else 0
                pending.append((body[levels:], page.values, base))
            else:
                plain_size += _write_indexes(output, pending, mapping, width, codec, is_optional=is_optional)
                pending = []
                output.append(page.content)
                plain_size += page.body_start + page.uncompressed_size
        base += chunk.entries
    plain_size += _write_indexes(output, pending, mapping, width, codec, is_optional=is_optional)
    encodings = sorted({value for entry in entries for value in entry[2][1][1]})
    merged = {
        1: entries[0][1],
        2: (LIST, (I32, encodings)),
        3: entries[0][3],
        4: entries[0][4],
        5: (I64, sum(entry[5][1] for entry in entries)),
        6: (I64, plain_size),
        7: (I64, output.position - start),
        9: (I64, data_start),
        **found,
    }
    if all(12 in entry for entry in entries):
        merged[12] = STRUCT, _merge_statistics([entry[12][1] for entry in entries], kind)
    return {2: (I64, 0), 3: (STRUCT, merged)}


def _write_indexes(
    output: Output,
    pending: Sequence[tuple[bytes, int, int]],
    mapping: np.ndarray | None,
    width: int,
    codec: pa.Codec | None,
    *,
    is_optional: bool,
) -> int:
    """Append the indexes of consecutive dictionary pages, in pages of ``PAGE_VALUES``. Returns their plain size."""
    if not pending:
        return 0
    indexes, size = decode_indexes(pending), 0
    if mapping is not None:
        indexes = mapping[indexes]
    count = len(indexes)
    padded = np.zeros(-(-count // 8) * 8, np.uint64)
    padded[:count] = indexes
    packed = pack(padded, width)
    for at in range(0, count, PAGE_VALUES):
        values = min(PAGE_VALUES, count - at)
        groups = -(-values // 8)
        body = bytes([width]) + _varint(groups << 1 | 1) + packed[at // 8 * width : (at // 8 + groups) * width]
        if is_optional:
            levels = _varint(values << 1) + b"\x01"
            body = len(levels).to_bytes(4, "little") + levels + body
        header = {5: (STRUCT, {1: (I32, values), 2: (I32, _RLE_DICTIONARY), 3: (I32, _RLE), 4: (I32, _RLE)})}
        size += _write_page(output, _DATA_PAGE, body, header, codec)
    return size


def _write_page(output: Output, kind: int, body: bytes, header: Struct, codec: pa.Codec | None) -> int:
    content = body if codec is None else codec.compress(body, asbytes=True)
    head = encode({1: (I32, kind), 2: (I32, len(body)), 3: (I32, len(content)), **header})
    output.append(head)
    output.append(content)
    return len(head) + len(body)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _merge_statistics(found: Sequence[Struct], kind: int) -> Struct:
    """Return the bounds and the number of nulls of all chunks."""
    merged: Struct = {3: (I64, sum(one[3][1] for one in found))}
    if all(5 in one and 6 in one for one in found):
        key: Callable[[bytes], Any] = (
            bytes if kind == _BYTE_ARRAY else lambda value: np.frombuffer(value, _TYPES[kind])[0]
        )
        merged[5] = BINARY, max((one[5][1] for one in found), key=key)
        merged[6] = BINARY, min((one[6][1] for one in found), key=key)
    return merged


def rewrite(way: str, paths: Sequence[str], path: str) -> None:
    """Rewrite the files of ``paths`` into ``path``."""
    if way == "splice":
        splice(paths, path)
        return
    if way == "cat":
        with open(path, "wb") as output:
            subprocess.run(["cat", *paths], stdout=output, check=True)
            os.fsync(output.fileno())
        return
    task = RewriteTask(group=0, inputs=tuple(paths), outputs=(path,), bytes=sum(map(os.path.getsize, paths)))
    options = RewriteOptions(target_file_max_bytes=4 << 30, engine=way)
    write: Callable[..., list[EngineOutput]] = {"arrow": rewrite_task, "stitch": stitch_task}[way]
    (written,) = write(task, options, lambda: None)
    os.rename(written.path, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--codec", default="snappy", choices=["snappy", "zstd", "none"])
    parser.add_argument("--measure", nargs=3, metavar=("WAY", "FOLDER", "OUTPUT"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        way, folder, path = asked.measure
        paths = sorted(map(str, Path(folder).glob("*.parquet")))
        begun, used = time.perf_counter(), os.times()
        rewrite(way, paths, path)
        now = os.times()
        print(json.dumps([time.perf_counter() - begun, sum(now[:4]) - sum(used[:4])]))
        return
    home = Path(tempfile.mkdtemp(prefix="lakefold-splice-"))
    try:
        compare(home, asked.rounds, asked.codec)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def compare(home: Path, rounds: int, codec: str) -> None:
    """Print the figures of each way. Exits 1 if ``splice`` is not twice as fast as ``arrow`` or changes rows."""
    inputs = home / "inputs"
    write_inputs(home, inputs, codec)
    ways = ("cat", "stitch", "splice", "arrow")
    figures: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            child = [sys.executable, __file__, "--measure", way, str(inputs), str(home / way)]
            printed = subprocess.run(child, check=True, stdout=subprocess.PIPE, text=True).stdout
            seconds, cpu = json.loads(printed)
            figures[way].append((seconds, cpu))
    medians = {
        way: [statistics.median(one[part] for one in found) for part in (0, 1)] for way, found in figures.items()
    }
    size = sum(one.stat().st_size for one in inputs.iterdir())
    print(f"{FILES} files, {size / 1e6:.0f} MB, {codec}; medians of {rounds} rounds")
    for way in ways:
        seconds, cpu = medians[way]
        times = medians["arrow"][1] / cpu
        print(
            f"{way:8} {seconds:6.2f} s, {cpu:5.2f} s of CPU, {times:5.2f} times as fast as arrow (CPU), "
            f"{(home / way).stat().st_size / 1e6:5.0f} MB"
        )
    is_same = have_equal_rows(inputs, home / "splice")
    print("rows of splice are equal in pyarrow and DuckDB" if is_same else "rows of splice DIFFER")
    sys.exit(not is_same or medians["arrow"][1] / medians["splice"][1] < BAR)


def write_inputs(home: Path, inputs: Path, codec: str) -> None:
    """Cut lineitem into files of about 1 MB."""
    generate(home, FILES * ROWS_A_FILE / ROWS_A_SCALE, 1)
    (whole,) = (home / "lineitem").glob("*.parquet")
    table = pq.read_table(whole)
    inputs.mkdir()
    for number in range(FILES):
        part = table.slice(number * table.num_rows // FILES, table.num_rows // FILES)
        pq.write_table(part, inputs / f"{number:03}.parquet", compression=codec, store_decimal_as_integer=True)


def have_equal_rows(inputs: Path, output: Path) -> bool:
    """Compare the rows of the output with those of the inputs, in their order."""
    if not pq.read_table(output).equals(pq.read_table(inputs)):
        return False
    both = f"SELECT * FROM '{inputs}/*.parquet' EXCEPT ALL SELECT * FROM read_parquet('{output}')"
    return duckdb.connect().execute(f"SELECT count(*) FROM ({both})").fetchall() == [(0,)]


if __name__ == "__main__":
    main()

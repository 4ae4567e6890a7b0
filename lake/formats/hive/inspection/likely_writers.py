# SPDX-License-Identifier: Apache-2.0
"""The programs that likely write and read a table: the signs of ``known_tools``, searched at a bounded cost."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from posixpath import dirname

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import orc

from lake.capabilities import LikelyWriter
from lake.errors import LakefoldError
from lake.formats.hive.catalog import refusals
from lake.formats.hive.catalog.refusals import FileFormat
from lake.formats.hive.catalog.tables import is_in_data_dir, list_partitions, load_table, open_metastore
from lake.formats.hive.commit.version_names import OUTPUT_FILE_PATTERN
from lake.formats.hive.inspection import known_tools
from lake.formats.hive.inspection.known_tools import FLINK, PATH_JOB, Tool, ToolMatch
from lake.metastore import MetastoreTable
from lake.model import Snapshot, partition_label
from lake.storage.filesystems import file_io_of, filesystem_of
from lake.storage.locations import relative_path, resolve_path

MAX_FOOTERS = 8
"""The number of files whose footers are read, and whose partitions' properties and directories are checked.

Half of them are the newest files. The others are spread evenly over the rest by modification time.
"""

_MAX_EVIDENCE = 3
"""How many pieces of evidence are shown for a tool, in the order properties, file names, footers, directories."""

_SUCCESS_MARKER = "_SUCCESS"


def writers_of_table(table: MetastoreTable) -> Sequence[LikelyWriter]:
    """Return the programs that likely write and read a table, by the table's own properties only."""
    return _to_likely_writers(known_tools.match_properties(table.parameters))


def describe_writers(writers: Sequence[LikelyWriter]) -> str:
    """Return the writers in words: the name, the evidence, and whether the writer may miss a relocation."""
    descriptions = [
        f"{one.tool} ({', '.join(one.evidence)}{'' if one.consequence is None else '; may not see a move'})"
        for one in writers
    ]
    return "; ".join(descriptions) or "the table's properties name none; tables explain also reads files"


def writers_of_snapshot(snapshot: Snapshot) -> Sequence[LikelyWriter]:
    """Return the programs that likely write and read a table.

    The signs are its properties, the names of its files, and footers and directories of ``MAX_FOOTERS`` files. Files
    that lakefold wrote and files that can't be read are ignored. Raises as ``snapshot`` does if the
    metastore can't be reached.
    """
    ref = snapshot.table
    slices = snapshot.slices.select(["partition", "path", "bytes", "modified_at"])
    slices = slices.filter(pc.invert(pc.match_substring_regex(slices["path"], f"(^|/){OUTPUT_FILE_PATTERN}$")))
    chosen = _sample_files(slices.filter(pc.greater(slices["bytes"], 0)))
    with open_metastore(ref) as metastore:
        table = load_table(metastore, ref)
        partitions = {partition for partition, _ in chosen if partition}
        catalog_partitions = list(list_partitions(metastore, table, partitions)) if partitions else []
    signs = list(known_tools.match_properties(table.parameters))
    for place in catalog_partitions:
        signs += known_tools.match_properties(place.parameters, place.name)
    signs += known_tools.match_file_names(slices["path"])
    kind = refusals.file_format_of(table)
    if kind is not None:
        signs += _match_footers([resolve_path(ref.location, path) for _, path in chosen], kind)
    signs += _match_success_markers(_partition_directories(ref.location, chosen), {tool for tool, _ in signs})
    return _to_likely_writers(signs)


def _sample_files(slices: pa.Table) -> Sequence[tuple[str, str]]:
    """Return partition and path of the files to read."""
    order = pc.sort_indices(slices, sort_keys=[("modified_at", "descending"), ("path", "ascending")])
    newest, count = MAX_FOOTERS // 2, len(order)
    rest = count - newest
    spread = [newest + (number + 1) * rest // (MAX_FOOTERS - newest) - 1 for number in range(MAX_FOOTERS - newest)]
    at = sorted({*range(min(newest, count)), *(position for position in spread if position >= newest)})
    rows = slices.take(order.take(pa.array(at, pa.int64())))
    return list(zip(rows["partition"].to_pylist(), rows["path"].to_pylist(), strict=True))


def _match_footers(paths: Sequence[str], file_format: FileFormat) -> Iterator[ToolMatch]:
    with ThreadPoolExecutor(MAX_FOOTERS) as pool:
        found = [sign for sign in pool.map(lambda path: _match_footer(path, file_format), paths) if sign is not None]
    for sign in dict.fromkeys(found):
        tool, evidence = sign
        yield tool, f"{found.count(sign)} of {len(paths)} footers: {evidence}"


def _match_footer(path: str, file_format: FileFormat) -> ToolMatch | None:
    # A file may be gone, half written, encrypted or damaged: scans and plans report it, and it is ignored here.
    with suppress(pa.ArrowException, OSError, LakefoldError):
        filesystem, fs_path = filesystem_of(path)
        with filesystem.open_input_file(fs_path) as file:
            if file_format is FileFormat.ORC:
                found = orc.ORCFile(file)
                return known_tools.match_orc_footer(str(found.writer), _metadata_keys(found.metadata))
            footer = pq.read_metadata(file)
            name = known_tools.schema_name(str(footer.schema))
            return known_tools.match_parquet_footer(footer.created_by or "", name, _metadata_keys(footer.metadata))
    return None


def _metadata_keys(metadata: Mapping[bytes, bytes] | None) -> Sequence[str]:
    return [key.decode(errors="replace") for key in metadata or {}]


def _partition_directories(table_location: str, sample: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    """Return the names of the partitions by directory.

    The table's own directory is left out, since every insert of Spark leaves a marker there.
    """
    at = {dirname(resolve_path(table_location, path)): partition for partition, path in sample if partition}
    return {
        directory: name
        for directory, name in at.items()
        if directory != table_location and not is_in_data_dir(relative_path(table_location, directory))
    }


def _match_success_markers(directories: Mapping[str, str], matched_tools: Iterable[Tool]) -> Iterator[ToolMatch]:
    """Yield the match for the markers that jobs leave in the directories they were given.

    Flink's policy success-file leaves the same marker.
    """
    marked = []
    for directory, name in directories.items():
        with suppress(OSError, LakefoldError):
            if file_io_of(directory).exists(f"{directory}/{_SUCCESS_MARKER}"):
                marked.append(name)
    if marked:
        example = partition_label(marked[0])
        evidence = f"{_SUCCESS_MARKER} in {len(marked)} of {len(directories)} directories, such as that of {example}"
        yield FLINK if FLINK in set(matched_tools) else PATH_JOB, evidence


def _to_likely_writers(matches: Iterable[ToolMatch]) -> Sequence[LikelyWriter]:
    """Return one writer for each tool, with its evidence; tools for which a relocation has a consequence come first."""
    by_tool: dict[Tool, list[str]] = {}
    for tool, evidence in matches:
        by_tool.setdefault(tool, []).append(evidence)
    found = [
        LikelyWriter(
            tool=tool.name, evidence=tuple(evidence[:_MAX_EVIDENCE]), consequence=tool.consequence, remedy=tool.remedy
        )
        for tool, evidence in by_tool.items()
    ]
    return sorted(found, key=lambda one: one.consequence is None)

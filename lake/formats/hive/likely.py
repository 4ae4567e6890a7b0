# SPDX-License-Identifier: Apache-2.0
"""Who likely writes and reads a table: the signs of ``tools``, looked for at a bounded cost."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from posixpath import dirname

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import orc

from lake.errors import LakefoldError
from lake.filesystems import files_of, filesystem_of
from lake.formats.hive import refusals, tools
from lake.formats.hive.catalog import is_in_home, open_metastore, places_of, table_of
from lake.formats.hive.commits import MADE
from lake.formats.hive.refusals import FileKind
from lake.formats.hive.tools import FLINK, MARKER, Sign, Tool
from lake.locations import file_at, path_in
from lake.metastore import Table
from lake.model import Snapshot, words_of
from lake.optional import LikelyWriter

FOOTERS = 8
"""How many files have their footers read, and their partitions' properties and directories looked at.

Half of them are the newest, the others are spread evenly over the rest by the time they were written.
"""

_EVIDENCE = 3
"""How many pieces of evidence are told for a tool: the first ones of properties, names, footers and directories."""

_MARK = "_SUCCESS"


def of_table(table: Table) -> Sequence[LikelyWriter]:
    """Who likely writes and reads a table, by its own properties only."""
    return _told(tools.of_properties(table.parameters))


def in_words(writers: Sequence[LikelyWriter]) -> str:
    """Writers by name, with the evidence and whether each asks the metastore."""
    said = [
        f"{one.tool} ({', '.join(one.evidence)}{'' if one.consequence is None else '; may not see a move'})"
        for one in writers
    ]
    return "; ".join(said) or "the table's properties name none; tables explain looks at files, too"


def of_snapshot(snapshot: Snapshot) -> Sequence[LikelyWriter]:
    """Who likely writes and reads a table, by its properties, the names of its files, and a look at ``FOOTERS`` files.

    Files that lakefold has made tell nothing. What can't be read is no evidence. Raises as ``snapshot`` does where the
    metastore can't be asked.
    """
    ref = snapshot.table
    slices = snapshot.slices.select(["partition", "path", "bytes", "modified_at"])
    slices = slices.filter(pc.invert(pc.match_substring_regex(slices["path"], f"(^|/){MADE}$")))
    chosen = _chosen(slices.filter(pc.greater(slices["bytes"], 0)))
    with open_metastore(ref) as metastore:
        table = table_of(metastore, ref)
        partitions = {partition for partition, _ in chosen if partition}
        places = list(places_of(metastore, table, partitions)) if partitions else []
    signs = list(tools.of_properties(table.parameters))
    for place in places:
        signs += tools.of_properties(place.parameters, place.name)
    signs += tools.of_names(slices["path"])
    kind = refusals.kind_of(table)
    if kind is not None:
        signs += _of_footers([file_at(ref.location, path) for _, path in chosen], kind)
    signs += _of_directories(_directories(ref.location, chosen), {tool for tool, _ in signs})
    return _told(signs)


def _chosen(slices: pa.Table) -> Sequence[tuple[str, str]]:
    """Partition and path of the files to look at."""
    order = pc.sort_indices(slices, sort_keys=[("modified_at", "descending"), ("path", "ascending")])
    newest, count = FOOTERS // 2, len(order)
    rest = count - newest
    spread = [newest + (number + 1) * rest // (FOOTERS - newest) - 1 for number in range(FOOTERS - newest)]
    at = sorted({*range(min(newest, count)), *(place for place in spread if place >= newest)})
    rows = slices.take(order.take(pa.array(at, pa.int64())))
    return list(zip(rows["partition"].to_pylist(), rows["path"].to_pylist(), strict=True))


def _of_footers(paths: Sequence[str], kind: FileKind) -> Iterator[Sign]:
    with ThreadPoolExecutor(FOOTERS) as pool:
        found = [sign for sign in pool.map(lambda path: _of_footer(path, kind), paths) if sign is not None]
    for sign in dict.fromkeys(found):
        tool, said = sign
        yield tool, f"{found.count(sign)} of {len(paths)} footers: {said}"


def _of_footer(path: str, kind: FileKind) -> Sign | None:
    # A file may be gone, half written, encrypted or damaged: then scans and plans say so, and it tells nothing here.
    with suppress(pa.ArrowException, OSError, LakefoldError):
        filesystem, place = filesystem_of(path)
        with filesystem.open_input_file(place) as file:
            if kind is FileKind.ORC:
                found = orc.ORCFile(file)
                return tools.of_orc(str(found.writer), _keys(found.metadata))
            footer = pq.read_metadata(file)
            name = tools.schema_name(str(footer.schema))
            return tools.of_parquet(footer.created_by or "", name, _keys(footer.metadata))
    return None


def _keys(metadata: Mapping[bytes, bytes] | None) -> Sequence[str]:
    return [key.decode(errors="replace") for key in metadata or {}]


def _directories(location: str, chosen: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    """The partitions' directories by their names: not the table's own, where every insert of Spark leaves a mark."""
    at = {dirname(file_at(location, path)): partition for partition, path in chosen if partition}
    return {place: name for place, name in at.items() if place != location and not is_in_home(path_in(location, place))}


def _of_directories(directories: Mapping[str, str], seen: Iterable[Tool]) -> Iterator[Sign]:
    """The mark that a job leaves in the directory which it was told to write; Flink's policy success-file does so."""
    marked = []
    for place, name in directories.items():
        with suppress(OSError, LakefoldError):
            if files_of(place).exists(f"{place}/{_MARK}"):
                marked.append(name)
    if marked:
        said = f"{_MARK} in {len(marked)} of {len(directories)} directories, such as that of {words_of(marked[0])}"
        yield FLINK if FLINK in set(seen) else MARKER, said


def _told(signs: Iterable[Sign]) -> Sequence[LikelyWriter]:
    """A tool each with its evidence, those that a move does something to first."""
    by_tool: dict[Tool, list[str]] = {}
    for tool, said in signs:
        by_tool.setdefault(tool, []).append(said)
    found = [
        LikelyWriter(tool=tool.name, evidence=tuple(said[:_EVIDENCE]), consequence=tool.consequence, remedy=tool.remedy)
        for tool, said in by_tool.items()
    ]
    return sorted(found, key=lambda one: one.consequence is None)

# SPDX-License-Identifier: Apache-2.0
"""The row ids of data files by the manifests of a snapshot, in format version 3.

PyIceberg leaves them out when it reads manifests. Source of the rules: Iceberg's table specification, "Row Lineage".
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from lake.formats.iceberg.catalog.tables import LoadedTable
from lake.formats.iceberg.read.live_files import read_or_raise

_VERSION = 3
"""The format version whose schemas of manifests and of their lists have row ids."""
_Manifests = Mapping[str, int | None]


def renumbered_files(
    table: LoadedTable, before: str | None, after: str, confirmed: set[Hashable] | None = None
) -> list[str]:
    """Return the data files in the metadata's spelling whose rows have other ids in one snapshot than in another.

    ``before`` and ``after`` are the manifest lists of the snapshots; None if there is no list. Files that are in only
    one of the snapshots, and files whose rows had no ids before, are left out. Only manifests that the snapshots don't
    share are read, and of these only those that ``confirmed`` does not show to keep all ids; it is filled for the next
    call, when the same commit is repeated. Raises Transient if storage can't read a manifest, Rejected if its content
    can't be parsed.
    """
    old = {} if before is None else _data_manifests(table, before)
    new = _data_manifests(table, after)
    replaced, created = dict(old.items() - new.items()), dict(new.items() - old.items())
    key = (frozenset(replaced.items()), frozenset(created))
    if confirmed is not None and key in confirmed:
        return []
    known, inherited = _first_row_ids(table, replaced), set[str]()
    found = [
        location
        for location, ids in _first_row_ids(table, created, inherited).items()
        if location in known and None not in known[location] and not ids <= known[location]
    ]
    # A repeated commit gives other ids to the rows of files that inherit them from the manifest.
    if confirmed is not None and not found and not inherited:
        confirmed.add(key)
    return found


def first_row_ids(table: LoadedTable, snapshot: Any | None) -> Mapping[str, int | None]:
    """Return the ids of the first rows of a snapshot's data files by location; None for a file whose rows have none.

    Files that are listed more than once are left out. Raises as ``renumbered_files`` does.
    """
    if snapshot is None:
        return {}
    found = _first_row_ids(table, _data_manifests(table, snapshot.manifest_list))
    return {location: next(iter(ids)) for location, ids in found.items() if len(ids) == 1}


def _data_manifests(table: LoadedTable, manifest_list: str) -> _Manifests:
    """Return the manifests of data files with the id of the first row of each; None if it has none."""
    from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS, ManifestContent

    schema = MANIFEST_LIST_FILE_SCHEMAS[_VERSION]
    path, content, first_row_id = _positions(schema.fields, "manifest_path", "content", "first_row_id")
    return {
        one[path]: one[first_row_id]
        for one in _records(table, manifest_list, schema)
        if one[content] == ManifestContent.DATA
    }


def _first_row_ids(
    table: LoadedTable, manifests: _Manifests, inherited: set[str] | None = None
) -> Mapping[str, AbstractSet[int | None]]:
    """Return the ids of the first rows of live data files by their names; a file may be listed several times.

    Files whose entries have no ids of their own are added to ``inherited``.
    """
    from pyiceberg.manifest import DATA_FILE_TYPE, MANIFEST_ENTRY_SCHEMAS, ManifestEntryStatus

    schema, found = MANIFEST_ENTRY_SCHEMAS[_VERSION], defaultdict[str, set[int | None]](set)
    status, data_file = _positions(schema.fields, "status", "data_file")
    path, rows, first_row_id = _positions(DATA_FILE_TYPE[_VERSION].fields, "file_path", "record_count", "first_row_id")
    for manifest, next_id in manifests.items():
        for entry in _records(table, manifest, schema):
            if entry[status] == ManifestEntryStatus.DELETED:
                continue
            file = entry[data_file]
            if inherited is not None and (next_id is None or file[first_row_id] is None):
                inherited.add(file[path])
            if next_id is None:  # then the rows have no ids, whatever the entry has
                found[file[path]].add(None)
            elif file[first_row_id] is None:
                found[file[path]].add(next_id)
                next_id += file[rows]
            else:
                found[file[path]].add(file[first_row_id])
    return found


def _positions(fields: Sequence[Any], *names: str) -> Iterator[int]:
    """Return the positions of the fields called ``names``."""
    known = [field.name for field in fields]
    return (known.index(name) for name in names)


def _records(table: LoadedTable, path: str, schema: Any) -> list[Any]:
    """Return the entries of an Avro file, read by ``schema``."""
    from pyiceberg.avro.file import AvroFile
    from pyiceberg.typedef import Record

    def read() -> list[Any]:
        with AvroFile[Record](table.io.new_input(path), schema) as entries:
            return list(entries)

    found: list[Any] = read_or_raise(table, path, read)
    return found

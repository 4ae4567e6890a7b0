# SPDX-License-Identifier: Apache-2.0
"""The delete files of a snapshot, and the data files to which each may apply."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from lake.formats.iceberg.catalog.tables import LoadedTable
from lake.formats.iceberg.read.partitions import Partition
from lake.storage.locations import canonical_location

_PATH_ID = 2147483546
"""The reserved field id of the column ``file_path`` of position delete files."""

_VERSION_OF_REFERENCES = 3
"""The format version whose schema of manifests has the fields of ``References``; earlier manifests may have some."""


class DeleteContent(StrEnum):
    """The content of a delete file; the value is its name in the singular."""

    POSITIONS = "position delete file"
    EQUALITY = "equality delete file"
    VECTOR = "deletion vector"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteFile:
    """A delete file of a snapshot.

    ``location`` is its name in the metadata, ``path`` the canonical spelling. Several vectors can be in one file; a
    vector starts at ``content_offset`` and has ``content_bytes``. ``rows`` is the number of deletes. ``data_location``
    is the one data file whose rows it deletes, None if there may be several. ``equality_ids`` are the field ids of the
    columns that an equality delete compares. ``snapshot_id`` is the snapshot that added it. ``problem`` is the reason
    why lakefold can't name the file to Iceberg; None if it can.
    """

    location: str
    path: str
    content: DeleteContent
    file_format: str
    bytes: int
    rows: int
    spec_id: int
    partition_json: str
    sequence_number: int
    snapshot_id: int | None
    data_location: str | None = None
    equality_ids: tuple[int, ...] = ()
    content_offset: int | None = None
    content_bytes: int | None = None
    problem: str | None = None


def read_delete_file(entry: Any, references: "References", partition: Partition) -> DeleteFile:
    """Return the delete file of a manifest entry; ``references`` are those of the entry."""
    from pyiceberg.manifest import DataFileContent

    file = entry.data_file
    if file.content == DataFileContent.EQUALITY_DELETES:
        content = DeleteContent.EQUALITY
    else:
        content = DeleteContent.POSITIONS if references.content_offset is None else DeleteContent.VECTOR
    return DeleteFile(
        location=file.file_path,
        path=canonical_location(file.file_path),
        content=content,
        file_format=str(getattr(file.file_format, "value", file.file_format)).upper(),
        bytes=file.file_size_in_bytes,
        rows=file.record_count,
        spec_id=file.spec_id,
        partition_json=partition.values,
        sequence_number=int(entry.sequence_number or 0),
        snapshot_id=entry.snapshot_id,
        data_location=None if content is DeleteContent.EQUALITY else references.data_location or _path_by_bounds(file),
        equality_ids=tuple(file.equality_ids or ()),
        content_offset=references.content_offset,
        content_bytes=references.content_bytes,
        problem=partition.problem,
    )


def _path_by_bounds(file: Any) -> str | None:
    """Return the data file of position deletes if the bounds of their paths are equal; None if there may be several."""
    lower, upper = (file.lower_bounds or {}).get(_PATH_ID), (file.upper_bounds or {}).get(_PATH_ID)
    return lower.decode() if lower and lower == upper else None


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """The fields of a manifest entry that PyIceberg's own reader leaves out: a delete file's data file and vector."""

    data_location: str | None = None
    content_offset: int | None = None
    content_bytes: int | None = None


def read_references(table: LoadedTable, manifest: Any) -> list[References]:
    """Return the references of all entries of a delete manifest, removed ones included, in their order.

    Raises as PyIceberg's reader of manifests does.
    """
    from pyiceberg.avro.file import AvroFile
    from pyiceberg.manifest import DATA_FILE_TYPE, MANIFEST_ENTRY_SCHEMAS
    from pyiceberg.typedef import Record

    schema = MANIFEST_ENTRY_SCHEMAS[_VERSION_OF_REFERENCES]
    data_file = [field.name for field in schema.fields].index("data_file")
    names = [field.name for field in DATA_FILE_TYPE[_VERSION_OF_REFERENCES].fields]
    positions = [names.index(one) for one in ("referenced_data_file", "content_offset", "content_size_in_bytes")]
    found = []
    with AvroFile[Record](table.io.new_input(manifest.manifest_path), schema) as entries:
        for entry in entries:
            data_location, offset, size = (entry[data_file][position] for position in positions)
            found.append(References(data_location=data_location, content_offset=offset, content_bytes=size))
    return found


def _lists() -> dict[Any, list[DeleteFile]]:
    return defaultdict(list)


@dataclass(slots=True, kw_only=True)
class DeleteIndex:
    """All delete files of a snapshot, by the data files to which they may apply.

    ``positions`` and ``equalities`` are those of one partition of one spec, ``by_location`` those of one data file.
    ``anywhere`` are equality deletes that apply to files of every partition and spec.
    """

    positions: dict[tuple[int, str], list[DeleteFile]] = field(default_factory=_lists)
    equalities: dict[tuple[int, str], list[DeleteFile]] = field(default_factory=_lists)
    by_location: dict[str, list[DeleteFile]] = field(default_factory=_lists)
    anywhere: list[DeleteFile] = field(default_factory=list)

    def add(self, file: DeleteFile, *, is_unpartitioned: bool) -> None:
        """Add a delete file, whose spec has no partitions if ``is_unpartitioned``."""
        key = (file.spec_id, file.partition_json)
        if file.content is not DeleteContent.EQUALITY:
            if file.data_location is not None:
                self.by_location[file.data_location].append(file)
            else:
                self.positions[key].append(file)
        elif is_unpartitioned:
            self.anywhere.append(file)
        else:
            self.equalities[key].append(file)

    def of(self, location: str, spec_id: int, partition_json: str, sequence_number: int) -> tuple[DeleteFile, ...]:
        """Return the delete files that may apply to a data file, the oldest first."""
        key = (spec_id, partition_json)
        by_position = [*self.by_location.get(location, ()), *self.positions.get(key, ())]
        by_value = [*self.anywhere, *self.equalities.get(key, ())]
        found = [one for one in by_position if one.sequence_number >= sequence_number]
        found += [one for one in by_value if one.sequence_number > sequence_number]
        return tuple(sorted(found, key=lambda one: (one.sequence_number, one.path)))

    def __iter__(self) -> Iterator[DeleteFile]:
        for lists in (self.positions, self.equalities, self.by_location):
            for files in lists.values():
                yield from files
        yield from self.anywhere

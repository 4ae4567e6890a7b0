# SPDX-License-Identifier: Apache-2.0
"""The names of Hudi's data files: file id, instant, and for log files their version."""

import re
from dataclasses import dataclass

from lake.model import FileSlice

_BASE = re.compile(r"(?P<file_id>.+)_[^_]+_(?P<instant>\d+)\.parquet")
#: a text file, or since Hudi 0.11 a file in the format of base files with their extension
PARTITION_MARKER = ".hoodie_partition_metadata"
MARKER_DIRECTORY = ".hoodie/.temp"
"""The directory of markers, by instant: a writer marks each file that it is about to write."""
_LOG = re.compile(r"\.(?P<file_id>.+)_(?P<instant>\d+)\.log\.(?P<version>\d+)(?:_[\d-]+?)?(?P<cdc>[.-]cdc)?")


CDC_SUFFIXES = (".cdc", "-cdc")
"""The endings of log files with change data."""
FileGroupId = tuple[str, str]
"""A file group: partition and file id, which all its versions share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFileName:
    """The parts of a base or log file's name.

    ``instant`` is the commit that wrote the file. For a log file of table version 6 it is the instant of the log's base
    file, or of the compaction that was pending when the log was written.
    """

    partition: str
    name: str
    file_id: str
    instant: str
    is_log: bool
    #: the file holds change data, not rows of the table, and belongs to no slice
    is_cdc: bool = False

    @property
    def group_id(self) -> FileGroupId:
        """The file group that the file belongs to."""
        return self.partition, self.file_id


def parse_file_name(path: str) -> DataFileName | None:
    """Parse the file name of ``path`` (relative to the table). Returns None if it isn't a data file's name."""
    partition, _, name = path.rpartition("/")
    match = _LOG.fullmatch(name)
    if match:
        return DataFileName(
            partition=partition,
            name=name,
            file_id=match["file_id"],
            instant=match["instant"],
            is_log=True,
            is_cdc=match["cdc"] is not None,
        )
    match = _BASE.fullmatch(name)
    if match is None:
        return None
    return DataFileName(
        partition=partition, name=name, file_id=match["file_id"], instant=match["instant"], is_log=False
    )


def is_foreign_file(path: str) -> bool:
    """True if ``path`` ends like a base file but its name isn't Hudi's, so another program wrote it."""
    name = path.rpartition("/")[2]
    return name.endswith(".parquet") and not name.startswith(PARTITION_MARKER) and parse_file_name(path) is None


def log_sort_key(name: str) -> tuple[str, int, str]:
    """Return the sort key that puts a slice's log files oldest first."""
    match = _LOG.fullmatch(name)
    return (match["instant"], int(match["version"]), name) if match else ("", 0, name)


def relative_path(partition: str, name: str) -> str:
    """Return a file's path relative to the table."""
    return f"{partition}/{name}" if partition else name


def marker_path(instant: str, path: str) -> str:
    """Return the path of the marker that ``instant`` creates the file ``path``, relative to the table.

    By the markers a rollback finds the files to delete, and a commit finds the files that it does not name.
    """
    return f"{MARKER_DIRECTORY}/{instant}/{path}.marker.CREATE"


def slice_paths(slice_: FileSlice) -> list[str]:
    """Return a slice's files relative to the table: the base file, if there is one, and the log files."""
    return [
        *([slice_.path] if slice_.path else []),
        *(relative_path(slice_.partition, name) for name in slice_.log_files),
    ]

# SPDX-License-Identifier: Apache-2.0
"""What Hudi's data file names say: file id, instant, and for log files their version."""

import re
from dataclasses import dataclass

from lake.model import FileSlice

_BASE = re.compile(r"(?P<file_id>.+)_[^_]+_(?P<instant>\d+)\.parquet")
#: a text file, or since Hudi 0.11 one in the format of base files with its extension
PARTITION_MARKER = ".hoodie_partition_metadata"
_LOG = re.compile(r"\.(?P<file_id>.+)_(?P<instant>\d+)\.log\.(?P<version>\d+)(?:_[\d-]+?)?(?P<cdc>[.-]cdc)?")


FileGroupId = tuple[str, str]
"""What is one over all its versions: partition and file id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFileName:
    """A base or log file's name taken apart.

    ``instant`` is the commit that wrote it; for a log file of table version 6 the one of the base file it belongs to,
    or of the compaction that was pending when it was written.
    """

    partition: str
    name: str
    file_id: str
    instant: str
    is_log: bool
    #: change data beside the table's own rows; belongs to no slice
    is_cdc: bool = False

    @property
    def group_id(self) -> FileGroupId:
        """Which one the file is a part of."""
        return self.partition, self.file_id


def parse_file_name(path: str) -> DataFileName | None:
    """The file at ``path`` (relative to the table), None when the name is none of Hudi's."""
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
    """Whether ``path`` ends as a base file does and its name is none of Hudi's, so that the file is of others."""
    name = path.rpartition("/")[2]
    return name.endswith(".parquet") and not name.startswith(PARTITION_MARKER) and parse_file_name(path) is None


def log_sort_key(name: str) -> tuple[str, int, str]:
    """Sort key that puts a slice's log files oldest first."""
    match = _LOG.fullmatch(name)
    return (match["instant"], int(match["version"]), name) if match else ("", 0, name)


def relative_path(partition: str, name: str) -> str:
    """A file's path relative to the table."""
    return f"{partition}/{name}" if partition else name


def slice_paths(slice_: FileSlice) -> list[str]:
    """A slice's files relative to the table: the base file, where it has one, and its log files."""
    return [
        *([slice_.path] if slice_.path else []),
        *(relative_path(slice_.partition, name) for name in slice_.log_files),
    ]

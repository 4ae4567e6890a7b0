# SPDX-License-Identifier: Apache-2.0
"""Markers: for each data file that an instant writes, Hudi first creates a marker in the instant's marker directory."""

from collections.abc import Collection

from lake.formats.hudi.files.names import MARKER_DIRECTORY, relative_path
from lake.formats.hudi.files.storage import TableStorage

#: the file that states how an instant's markers are stored
MARKER_TYPE_FILE = "MARKERS.type"
#: the prefix of the files in which Hudi's timeline server lists markers, one a line, instead of creating them
_LIST_PREFIX = "MARKERS"
#: a marker's name is the name of its file, this text, and how the file is written (such as CREATE)
_MARKER_SUFFIX = ".marker."


def list_marked_files(storage: TableStorage, instant: str, paths: Collection[str]) -> frozenset[str]:
    """Return those of ``paths``, relative to the table, that have a marker under ``instant``."""
    if not paths:
        return frozenset()
    directory = f"{MARKER_DIRECTORY}/{instant}"
    markers = {
        line
        for name in storage.list_file_names(directory)
        if name.startswith(_LIST_PREFIX) and name != MARKER_TYPE_FILE
        for line in storage.read(f"{directory}/{name}").decode().splitlines()
    }
    for partition in {path.rpartition("/")[0] for path in paths}:
        names = storage.list_file_names(relative_path(directory, partition) if partition else directory)
        markers.update(relative_path(partition, name) for name in names)
    marked = {marker.rpartition(_MARKER_SUFFIX)[0] for marker in markers}
    return frozenset(path for path in paths if path in marked)

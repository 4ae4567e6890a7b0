# SPDX-License-Identifier: Apache-2.0
"""Sets of names in a table's directory to which several processes add without a lock.

Each addition is a file of its own, and the set is their union, so no process loses the addition of another one.
"""

import json
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from lake.model import TableRef
from lake.storage.filesystems import file_io_of

_MAX_FILES = 8
"""If a set has this many files or more, an addition replaces the files that it has read by one."""

_MAX_READS = 10


def read_marker_set(ref: TableRef, path: str) -> frozenset[str]:
    """Return the names in the set at ``path``. Raises OSError."""
    return _read_whole_set(ref, path).union(_read_additions(ref, path)[1])


def add_to_marker_set(ref: TableRef, path: str, names: Collection[str]) -> None:
    """Add names to the set at ``path``, whose directory exists. Raises OSError."""
    present, added = _read_additions(ref, path)
    if _read_whole_set(ref, path).union(added).issuperset(names):
        return
    is_replacing = len(present) >= _MAX_FILES
    _write_addition(ref, path, added.union(names) if is_replacing else frozenset(names) - added)
    for file in present if is_replacing else ():
        file_io_of(ref.location).remove_own_file(file)


def replace_marker_set(ref: TableRef, path: str, replacement: Callable[[frozenset[str]], Collection[str]]) -> None:
    """Replace the names in the set at ``path``, whose directory exists, by their ``replacement``. Raises OSError.

    Only the files whose names were passed to ``replacement`` are removed, so additions made meanwhile stay. If the
    process dies, the set also has the former names.
    """
    files, (present, added) = file_io_of(ref.location), _read_additions(ref, path)
    _write_addition(ref, path, replacement(_read_whole_set(ref, path).union(added)))
    for file in (path, *present):
        files.remove_own_file(file)


def remove_marker_set(ref: TableRef, path: str) -> None:
    """Remove the set at ``path``."""
    files = file_io_of(ref.location)
    files.remove_own_file(path)
    files.remove_own_tree(_directory(path))


def _write_addition(ref: TableRef, path: str, names: Collection[str]) -> None:
    files, directory = file_io_of(ref.location), _directory(path)
    with suppress(FileExistsError):
        files.make_directory(directory)
        files.copy_permissions(directory, ref.location)
        files.sync(directory.rpartition("/")[0])
    files.write(f"{directory}/{uuid.uuid4().hex}", json.dumps(sorted(names)).encode())


def _read_whole_set(ref: TableRef, path: str) -> frozenset[str]:
    """Return the names in the one file to which earlier releases wrote the whole set."""
    with suppress(FileNotFoundError):
        return _read_names(ref, path)
    return frozenset()


def _read_additions(ref: TableRef, path: str) -> tuple[Sequence[str], frozenset[str]]:
    """Return the files of the set, and the names in them."""
    files = file_io_of(ref.location)
    for _ in range(_MAX_READS):
        try:
            # A name with a dot is that of a file that is being written.
            present = [entry.path for entry in files.list(_directory(path)) if not entry.name.startswith(".")]
        except FileNotFoundError:
            return (), frozenset()
        with suppress(FileNotFoundError):  # another process has just replaced the files
            return present, frozenset[str]().union(*(_read_names(ref, file) for file in present))
    raise OSError(f"the files in {_directory(path)} were replaced again and again while they were read")


def _read_names(ref: TableRef, file: str) -> frozenset[str]:
    return frozenset(json.loads(file_io_of(ref.location).read(file)))


def _directory(path: str) -> str:
    return f"{path}.d"

# SPDX-License-Identifier: Apache-2.0
"""Hadoop catalogs: a namespace is a directory of the warehouse, a table is a directory with numbered metadata files."""

import glob
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from lake.errors import Transient

#: a warehouse, namespaces and a table; no more directories of a level, because the search is only for a hint
_SEARCHED_LEVELS, _MAX_SEARCHED = 5, 1000
_VERSIONED = re.compile(r"v(?P<version>\d+)(?:\.gz)?\.metadata\.json(?:\.gz)?")


def find_table_names(warehouse: str) -> Iterator[str]:
    """Yield the tables of a warehouse, each as ``namespace.table``; a nested namespace has dots in its name.

    Raises FileNotFoundError if there is no such directory, Transient if a directory can't be read.
    """
    yield from _search(Path(warehouse), "")


def _search(directory: Path, namespace: str) -> Iterator[str]:
    try:
        below = sorted(entry.name for entry in os.scandir(directory) if entry.is_dir())
    except FileNotFoundError:
        if not namespace:
            raise
        return
    except OSError as error:
        raise Transient(f"{directory}: {error.strerror}") from error
    for name in below:
        if name.startswith((".", "_")):
            continue
        if newest_metadata_file(directory / name) is not None:
            # A table must be in a namespace: Spark can't name a table at the top of a warehouse.
            if namespace:
                yield f"{namespace}.{name}"
        elif name not in ("data", "metadata"):
            yield from _search(directory / name, f"{namespace}.{name}".lstrip("."))


def metadata_location(warehouse: str, table: str) -> str | None:
    """Return the newest metadata file of ``table`` (``namespace.table``); None if there is no such table."""
    found = newest_metadata_file(Path(warehouse, *table.split(".")))
    return None if found is None else str(found)


def newest_metadata_file(table: Path) -> Path | None:
    """Return the metadata file of the highest version in a table's directory; None if there is none.

    The file ``version-hint.text`` may be older than the newest version, since a writer updates it after its commit.
    """
    newest: tuple[int, Path] | None = None
    with suppress(FileNotFoundError, NotADirectoryError):
        for entry in os.scandir(table / "metadata"):
            match = _VERSIONED.fullmatch(entry.name)
            if match is not None and (newest is None or int(match["version"]) > newest[0]):
                newest = int(match["version"]), Path(entry.path)
    return None if newest is None else newest[1]


def find_table_directory(location: str) -> str | None:
    """Return a directory at or below ``location`` with Iceberg's metadata; None if there is none in the upper levels.

    The metadata may belong to any kind of catalog.
    """
    level = [location]
    for _ in range(_SEARCHED_LEVELS):
        below: list[str] = []
        for directory in level:
            if any(glob.iglob(f"{glob.escape(directory)}/metadata/*.metadata.json")):
                return directory
            with suppress(OSError):
                below += sorted(entry.path for entry in os.scandir(directory) if entry.is_dir())
        level = below[:_MAX_SEARCHED]
    return None

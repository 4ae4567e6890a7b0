# SPDX-License-Identifier: Apache-2.0
"""Local tables whose directory does not exist: catalogs and readers take such a table for an empty one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from lake.errors import LakefoldError, Rejected, TableGone, Transient
from lake.model import TableRef
from lake.storage.locations import is_local


def refuse_missing_directory(table: TableRef) -> None:
    """Raise Rejected if the local directory of a table, in which no file was found, does not exist."""
    if _lacks_directory(table):
        raise Rejected(missing_directory_text(table))


def _lacks_directory(table: TableRef) -> bool:
    return is_local(table.location) and not os.path.isdir(table.location)


@contextmanager
def naming_missing_directory(table: TableRef) -> Iterator[None]:
    """If the directory of a local table does not exist, replace any error of reading the table by that fact."""
    try:
        yield
    except (LakefoldError, OSError) as error:
        if not _lacks_directory(table):
            raise
        kind = next((kind for kind in (TableGone, Transient) if isinstance(error, kind)), Rejected)
        raise kind(missing_directory_text(table)) from error


def missing_directory_text(table: TableRef) -> str:
    """Return the line about a table whose local directory does not exist."""
    return f"{table.name}: its directory {table.location} does not exist"


def is_gone(table: TableRef, error: Exception) -> bool:
    """Return True if ``error`` of a scan means that the table or its directory no longer exists."""
    return isinstance(error, TableGone) or str(error) == missing_directory_text(table)

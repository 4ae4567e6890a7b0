# SPDX-License-Identifier: Apache-2.0
"""Errors of reading a Parquet file: the file is gone, storage fails at the moment, or the file's content is damaged.

Arrow reports damaged content as one of its own exceptions, or as an OSError without errno.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from lake.errors import Conflict, Integrity, Transient, first_line


@dataclass(frozen=True, slots=True)
class UnusableFile:
    """The reason why a data file can't be rewritten or committed.

    ``is_gone`` is True if storage has no such file. Every other reason lasts as long as the file.
    """

    reason: str
    is_gone: bool = False


def unreadable_file(path: str, error: OSError | pa.ArrowException) -> UnusableFile:
    """Return why the file can't be read after ``error``. Raises Transient if storage fails at the moment."""
    if isinstance(error, FileNotFoundError):
        return UnusableFile(f"{path} is gone from storage", is_gone=True)
    if isinstance(error, OSError) and error.errno is not None:
        raise Transient(f"{path} can't be read now: {first_line(error)}") from error
    return UnusableFile(f"{path} can't be read: {first_line(error)}")


@contextmanager
def reading_new_file(path: str) -> Iterator[None]:
    """Turn errors of reading a new file in the block into outcomes, none of which leaves its commit unknown.

    Raises Conflict if the file is gone, Transient if storage fails at the moment, Integrity if the file is damaged.
    """
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        found = unreadable_file(path, error)
        raise (Conflict if found.is_gone else Integrity)(f"the new file {found.reason}") from error

# SPDX-License-Identifier: Apache-2.0
"""Finds unfinished files of writers: ``LOAD DATA LOCAL`` and ``hdfs put`` write into files that readers see already.

A reader of Parquet or ORC begins at the end of a file. A file without that end is therefore not copied from a previous
location. While it is younger than an hour, it is not rewritten and not linked by a commit either.
"""

from datetime import timedelta

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from lake.errors import Transient
from lake.relocation.decide import WRITER_GRACE
from lake.relocation.evidence import MAX_CLOCK_DIFFERENCE_MS
from lake.relocation.model import UnreadyReason
from lake.storage.files import FileEntry, FileIO
from lake.storage.filesystems import filesystem_of

STABLE_AFTER = timedelta(seconds=5)
"""The minimum time since the last change of a file in a previous location, before the file is copied.

If a file is uploaded in parallel parts, its last part may arrive before other parts.
"""

#: the last bytes of a Parquet file, encrypted or not
_PARQUET_MAGICS = (b"PAR1", b"PARE")
_ORC_MAGIC = b"ORC"


def is_incomplete(storage: FileIO, path: str, modified_ns: int, now: float) -> bool:
    """True if a file has no footer at its end and was changed within the last hour. An older file is final.

    Raises the errors of ``storage``.
    """
    return now - modified_ns / 1e9 <= WRITER_GRACE.total_seconds() and not _has_end_magic(storage, path)


def unready_reason(storage: FileIO, entry: FileEntry, now: float, *, is_previous: bool) -> UnreadyReason | None:
    """Return why an unrecorded file is not yet treated as a file of the partition. None if it is.

    Files older than an hour are checked only in a previous location: elsewhere, readers read them as they are.
    """
    if entry.is_directory:
        return UnreadyReason.DIRECTORY
    age = now - entry.modified_ns / 1e9
    is_young = age <= WRITER_GRACE.total_seconds()
    if not is_young and not (is_previous and entry.bytes):
        return None
    try:
        if not _has_end_magic(storage, entry.path):
            if is_young:
                return UnreadyReason.WRITING
            return None if _is_readable(entry.path) else UnreadyReason.STALLED
    except FileNotFoundError:
        return UnreadyReason.WRITING
    # If this clock is far behind the storage's, every file would look young.
    is_recent = -MAX_CLOCK_DIFFERENCE_MS / 1000 <= age < STABLE_AFTER.total_seconds()
    return UnreadyReason.RECENT if is_recent else None


def _has_end_magic(storage: FileIO, path: str) -> bool:
    end = storage.read_tail(path, 4)
    return end in _PARQUET_MAGICS or end[:3] == _ORC_MAGIC


def _is_readable(path: str) -> bool:
    """True if a reader can open the file: ORC files of the first releases have no magic at the end.

    Raises Transient if the file can't be read.
    """
    try:
        filesystem, fs_path = filesystem_of(path)
        with filesystem.open_input_file(fs_path) as file:
            for read in (pq.read_metadata, orc.ORCFile):
                file.seek(0)
                try:
                    read(file)
                    return True
                except (pa.ArrowException, ValueError):
                    continue
                except OSError as error:
                    if error.errno is not None:  # errors of the reader about the content have no errno
                        raise
    except OSError as error:
        raise Transient(f"{path} can't be read: {error.strerror or error}") from error
    return False

# SPDX-License-Identifier: Apache-2.0
"""The delete files of the state on which a rewrite is committed: those that were added, and those no longer needed."""

from collections.abc import Collection, Iterable
from typing import Any

from lake.formats.iceberg.catalog.tables import LoadedTable
from lake.formats.iceberg.read.delete_files import DeleteContent, DeleteFile
from lake.formats.iceberg.read.live_files import DataFile, LiveFiles, has_delete_files, read_all_files


def read_files_with_deletes(table: LoadedTable, snapshot: Any | None) -> LiveFiles:
    """Return the files of ``snapshot``, or nothing if it has no delete files. Raises as ``read_all_files`` does."""
    if snapshot is None or not has_delete_files(table, snapshot):
        return LiveFiles()
    return read_all_files(table, snapshot)


def have_same_deletes(files: LiveFiles, inputs: Iterable[DataFile], sequence_number: int) -> bool:
    """Return True if the same deletes apply to ``inputs`` in a later state, of which ``files`` are the files.

    ``inputs`` are files as the rewrite has read them. Equality deletes with a number above ``sequence_number``, which
    is that of the new files, do not count: they apply to the new files as well. An input that the later state lacks has
    no deletes there; its commit fails for another reason.
    """
    now = {file.path: file for file in files.data}
    return all(
        _applied(file.deletes, sequence_number)
        == _applied(now[file.path].deletes if file.path in now else (), sequence_number)
        for file in inputs
    )


def _applied(deletes: Iterable[DeleteFile], sequence_number: int) -> set[tuple[str, int | None, int]]:
    return {
        (one.location, one.content_offset, one.sequence_number)
        for one in deletes
        if one.content is not DeleteContent.EQUALITY or one.sequence_number <= sequence_number
    }


def needless_deletes(files: LiveFiles, removed: Collection[str], sequence_number: int) -> list[DeleteFile]:
    """Return those of the delete files in ``files`` that apply to no data file outside of ``removed``.

    ``sequence_number`` is the number of the new files: an equality delete with a later number applies to them. Deletion
    vectors are among the delete files. Iceberg would also remove the vectors of removed files by itself. But version
    1.10.2 (``ManifestFilterManager``) filters manifests in several threads, and skips a manifest if another thread has
    just removed the first vector.

    Iceberg would refuse the removal of a delete file with a ``problem``; it stays until Iceberg drops it by its age.

    Files that other writers add meanwhile do not need these delete files either. A delete file applies to data files
    with a sequence number up to its own. An append gets a later number. A rewrite may set the number of the snapshot on
    which it began. But then its inputs needed the delete file, or the delete file did not exist yet.
    """
    # several vectors can be in one file
    needed = {
        (delete.location, delete.content_offset)
        for file in files.data
        if file.path not in removed
        for delete in file.deletes
    }
    return [
        one
        for one in files.deletes
        if one.sequence_number <= sequence_number and (one.location, one.content_offset) not in needed
    ]

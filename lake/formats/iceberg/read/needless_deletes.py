# SPDX-License-Identifier: Apache-2.0
"""The delete files that apply to no data file once a rewrite is committed."""

from collections.abc import Collection

from lake.formats.iceberg.catalog.tables import LoadedTable
from lake.formats.iceberg.read.delete_files import DeleteFile
from lake.formats.iceberg.read.live_files import has_delete_files, read_all_files, snapshot_of


def needless_deletes(table: LoadedTable, removed: Collection[str], sequence_number: int) -> list[DeleteFile]:
    """Return the delete files of the branch ``main`` that apply to no data file outside of ``removed``.

    ``sequence_number`` is the number of the new files: an equality delete with a later number applies to them. Deletion
    vectors are among the delete files. Iceberg would also remove the vectors of removed files by itself. But version
    1.10.2 (``ManifestFilterManager``) filters manifests in several threads, and skips a manifest if another thread has
    just removed the first vector.

    A delete file with a ``problem`` is left out, since Iceberg would refuse the commit; it stays until Iceberg drops
    it.

    Files that other writers add meanwhile do not need these delete files either. A delete file applies to data files
    with a sequence number up to its own. An append gets a later number. A rewrite may set the number of the snapshot on
    which it began. But then its inputs needed the delete file, or the delete file did not exist yet. Raises as
    ``read_all_files`` does.
    """
    snapshot = snapshot_of(table)
    if snapshot is None or not has_delete_files(table, snapshot):
        return []
    files = read_all_files(table, snapshot)
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
        if one.sequence_number <= sequence_number
        and (one.location, one.content_offset) not in needed
        and one.problem is None
    ]

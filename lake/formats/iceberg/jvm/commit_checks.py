# SPDX-License-Identifier: Apache-2.0
"""The checks of a commit that Iceberg does not make, on the metadata that the commit would replace."""

from collections.abc import Hashable, Mapping, Sequence

from lake.errors import Conflict, Rejected
from lake.formats.iceberg.catalog.settings import read_settings, unsafe_table_reason
from lake.formats.iceberg.catalog.tables import LoadedTable
from lake.formats.iceberg.jvm.exact_commit import BaseMetadata, NewSnapshot
from lake.formats.iceberg.read.delete_files import DeleteContent, DeleteFile
from lake.formats.iceberg.read.row_ids import renumbered_files
from lake.model import TableRef

_REMOVED_EQUALITY_DELETES = "removed-equality-delete-files"


def require_exclusion(ref: TableRef, settings: Mapping[str, str], base: BaseMetadata) -> None:
    """Raise Conflict if the commit and one of another process may replace each other without an error.

    The table's properties are part of the reason, and an owner may change them at any time. ``settings`` are Spark's.
    """
    if ref.catalog is not None:
        opened = read_settings(settings, ref.catalog.name)
        if (reason := unsafe_table_reason(opened, base.format_version, base.properties)) is not None:
            raise Conflict(f"{ref.name}: {reason}")


def require_history(
    name: str, base: BaseMetadata, *, format_version: int, snapshot_id: int, sequence_number: int
) -> None:
    """Raise Conflict if a snapshot since ``prepare`` was removed: it may have been the attempt's withdrawal.

    At ``prepare``, the table had this version, newest snapshot of ``main`` and sequence number.
    """
    text = f"{name}: the table has forgotten a snapshot since the plan was prepared"
    if format_version > 1:
        numbers = {int(one.get("sequence-number", 0)) for one in base.snapshots.values()}
        if not numbers.issuperset(range(sequence_number + 1, base.last_sequence_number + 1)):
            raise Conflict(text)
        return
    if not base.descends_from(snapshot_id):
        raise Conflict(text)


def require_equality_deletes(name: str, needless: Sequence[DeleteFile], new: NewSnapshot) -> None:
    """Raise Conflict if the snapshot ``new`` removes more equality deletes than are ``needless``.

    Iceberg (as of 1.10.2, ``MergingSnapshotProducer.apply``) drops delete files that are older than all data files, so
    also needless ones that lakefold can't name to it. If it drops a later one, it drops these as well.
    It ignores the new files, although an equality delete that was committed since ``prepare`` applies to them. If
    Iceberg dropped this delete, the deleted rows would be read again.
    """
    known = sum(one.content is DeleteContent.EQUALITY for one in needless)
    if int(new.summary.get(_REMOVED_EQUALITY_DELETES, 0)) > known:
        raise Conflict(
            f"{name}: Iceberg would remove an equality delete that was committed since the plan was prepared and "
            "applies to its new files"
        )


def require_lineage(
    name: str, base: BaseMetadata, format_version: int, has_no_ids_since: int | None, moment: str
) -> None:
    """Raise Conflict if the rows of the table may have row ids now that they did not have at a ``moment``.

    Then the table had ``format_version``. ``has_no_ids_since`` was its newest snapshot if its rows could have ids and
    had none: the next commit of any writer gives them ids.
    """
    if base.format_version != format_version:
        raise Conflict(
            f"{name}: the table has format version {base.format_version} now, and had {format_version} when {moment}"
        )
    if has_no_ids_since is not None and base.current_snapshot_id != has_no_ids_since:
        raise Conflict(f"{name}: the rows of its files got their row ids since {moment}")


def require_row_ids(
    table: LoadedTable,
    base: BaseMetadata,
    new: NewSnapshot,
    kept_by: str,
    confirmed: set[Hashable] | None = None,
) -> None:
    """Raise Rejected if a commit of ``new`` changes the row ids of a file that it keeps.

    The message names ``kept_by``, which makes the commit. See ``renumbered_files`` for ``confirmed``.

    The packages in the configuration may name an Iceberg before 1.10.2 (without its pull request 16263). Such a
    release loses the ids of a kept file if it rewrites the file's manifest without the replaced files, and then
    merges this manifest with others in the same commit.
    """
    if renumbered := renumbered_files(table, base.manifest_list, new.manifest_list, confirmed):
        raise Rejected(
            f"{table.ref.name}: the commit would give new row ids (_row_id) to the rows of {len(renumbered)} files "
            f"that {kept_by} keeps, such as {renumbered[0]}: Iceberg before 1.10.2 does so when it merges "
            "manifests; name a newer one in spark.jars.packages, or set the table property "
            "commit.manifest-merge.enabled to false"
        )

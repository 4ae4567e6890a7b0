# SPDX-License-Identifier: Apache-2.0
"""The reasons why lakefold does not rewrite a table, or single files of a table."""

from collections.abc import Mapping

from lake.errors import Rejected
from lake.formats.iceberg.catalog.tables import LoadedTable
from lake.formats.iceberg.read import lineage
from lake.formats.iceberg.read.delete_files import DeleteContent, DeleteFile
from lake.formats.iceberg.read.live_files import PARQUET, DataFile

PUFFIN = "PUFFIN"
MAX_VERSION = 3
"""The newest format version whose tables are rewritten."""


def check_table(table: LoadedTable) -> None:
    """Raise Rejected if the table can't even be observed."""
    name, properties = table.ref.name, table.metadata.properties
    if (key := properties.get("encryption.key-id")) is not None:
        raise Rejected(f"{name}: its files are encrypted (encryption.key-id = {key}), which lakefold does not support")


def table_reason(table: LoadedTable) -> str | None:
    """Return why no file of the table is rewritten, although the table is observed; None if files are rewritten."""
    metadata, properties = table.metadata, table.metadata.properties
    if metadata.format_version > MAX_VERSION:
        return (
            f"format version {metadata.format_version} is newer than lakefold supports; tables of version "
            f"{MAX_VERSION} and below are rewritten"
        )
    if (provider := properties.get("write.location-provider.impl")) is not None:
        return f"its files are placed by a class of its owner (write.location-provider.impl = {provider})"
    # Spark ignores the case of names.
    taken = [one.name for one in metadata.schema().fields if one.name.lower() in lineage.FIELD_IDS]
    if has_lineage(table) and taken:
        return (
            f"its column {min(taken)} has the name of a column that format version {metadata.format_version} adds to "
            "each row; rename it"
        )
    return table.unsafe_reason


class FileRefusals:
    """The reasons why single files of one table are not rewritten. Each delete file is checked once."""

    def __init__(self, table: LoadedTable) -> None:
        self._spec_id = table.metadata.default_spec_id
        self._columns = {one.field_id: one for one in table.metadata.schema().fields}
        self._of_deletes: dict[str, str | None] = {}

    def reason(self, file: DataFile) -> str | None:
        """Return why a file is not rewritten; None if it may be."""
        if file.file_format != PARQUET:
            return f"it is {file.file_format}; only {PARQUET} files are rewritten"
        if file.spec_id != self._spec_id:
            return f"it was written with partition spec {file.spec_id}; the table's spec is {self._spec_id}"
        return file.problem or next(filter(None, map(self._delete_reason, file.deletes)), None)

    def _delete_reason(self, delete: DeleteFile) -> str | None:
        """Return why a file to which ``delete`` may apply is not rewritten; None if it may be."""
        # All deletion vectors in one Puffin file have its format, and compare no columns.
        if delete.path not in self._of_deletes:
            self._of_deletes[delete.path] = self._check_delete(delete)
        return self._of_deletes[delete.path]

    def _check_delete(self, delete: DeleteFile) -> str | None:
        wanted = PUFFIN if delete.content is DeleteContent.VECTOR else PARQUET
        if delete.file_format != wanted:
            return f"its {delete.content} {delete.path} is {delete.file_format}; only {wanted} ones are merged"
        for field_id in delete.equality_ids:
            if (column := self._columns.get(field_id)) is None:
                return (
                    f"its {delete.content} {delete.path} compares field {field_id}, which is not one of the table's "
                    "top-level columns; only these are merged"
                )
            if not column.field_type.is_primitive:
                return (
                    f"its {delete.content} {delete.path} compares {column.name}, whose type is {column.field_type}; "
                    "only simple types are merged"
                )
        return None


def has_lineage(table: LoadedTable) -> bool:
    """True if the table's format version records the lineage of rows."""
    return bool(table.metadata.format_version >= lineage.MIN_VERSION)


def needs_iceberg(table: LoadedTable, file: DataFile, first_row_ids: Mapping[str, int | None]) -> str | None:
    """Return why only Iceberg's own reader and writer can rewrite a file; None if engines can.

    ``first_row_ids`` are the ids of the first rows of files by location, in a table whose rows have a lineage.
    """
    if has_lineage(table) and first_row_ids.get(file.location) is None:
        return (
            "rows of its files have no ids yet: the next commit after the upgrade to format version "
            f"{table.metadata.format_version} gives them ids"
        )
    if any(one.content is DeleteContent.EQUALITY for one in file.deletes):
        return f"an {DeleteContent.EQUALITY} may apply to its files"
    if sum(one.content is DeleteContent.VECTOR for one in file.deletes) > 1:
        return f"several deletion vectors delete rows of {file.path}"
    return None

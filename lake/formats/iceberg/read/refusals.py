# SPDX-License-Identifier: Apache-2.0
"""The reasons why lakefold does not rewrite a table, or single files of a table."""

from typing import Any

from lake.errors import Rejected
from lake.formats.iceberg.catalog.tables import LoadedTable
from lake.formats.iceberg.read.live_files import PARQUET, DataFile
from lake.model import DeltaKind

MAX_VERSION = 2


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
            f"format version {metadata.format_version} keeps the lineage of rows, which a rewrite by lakefold would "
            f"lose; tables of version {MAX_VERSION} and below are rewritten"
        )
    if (provider := properties.get("write.location-provider.impl")) is not None:
        return f"its files are placed by a class of its owner (write.location-provider.impl = {provider})"
    return table.unsafe_reason


def file_reason(table: LoadedTable, file: DataFile) -> str | None:
    """Return why a file is not rewritten; None if it may be."""
    if file.deletes:
        some = "" if len(file.deletes) == 1 else f" and {len(file.deletes) - 1} more"
        return f"row-level deletes may apply to it ({file.deletes[0]}{some}), which lakefold does not merge yet"
    if file.file_format != PARQUET:
        return f"it is {file.file_format}; only {PARQUET} files are rewritten"
    if file.spec_id != table.metadata.default_spec_id:
        return (
            f"it was written with partition spec {file.spec_id}; the table's spec is {table.metadata.default_spec_id}"
        )
    return file.problem


def delta_kind(deletes: tuple[str, ...]) -> DeltaKind | None:
    """Return the kind of a file's deletes; None without any."""
    if not deletes:
        return None
    return DeltaKind.VECTOR if all(path.endswith(".puffin") for path in deletes) else DeltaKind.DELETES


def spec_of(table: LoadedTable, spec_id: int) -> Any:
    """Return a partition spec of the table."""
    return table.metadata.specs()[spec_id]

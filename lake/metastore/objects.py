# SPDX-License-Identifier: Apache-2.0
"""Tables and partitions of a metastore: the fields that lakefold reads, over the raw struct with all fields.

The field ids in this module are those of ``hive_metastore.thrift``. No release of Hive since 2.3 has changed them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lake.metastore.thrift import STRING, STRUCT, Struct, ThriftList, ThriftMap, string_map

_SPARK_PATH = "path"
_HEX = re.compile("%([0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class StorageDescriptor:
    """Where and how a table or partition is stored (``StorageDescriptor``)."""

    raw: Struct

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Names and types of the columns, in order; a partition has the columns at its creation."""
        return read_columns(self.raw, 1)

    @property
    def location(self) -> str:
        """The directory, usually as a URI; '' if there is none, as for a view."""
        return _text(self.raw, 2)

    @property
    def input_format(self) -> str:
        """The class that reads the files."""
        return _text(self.raw, 3)

    @property
    def bucket_count(self) -> int:
        """The number of buckets; below one if rows are not bucketed."""
        return int(_value(self.raw, 6, 0))

    @property
    def serde(self) -> str:
        """The class that deserializes rows."""
        return _text(_value(self.raw, 7, {}), 2)

    @property
    def has_list_bucketing(self) -> bool:
        """True if frequent values have directories of their own (list bucketing)."""
        return bool(_value(self.raw, 12, False))

    @property
    def spark_path(self) -> str | None:
        """The directory that Spark recorded, and uses, for a table made by ``USING``; None if none was recorded."""
        return _string_map(_value(self.raw, 7, {}), 3).get(_SPARK_PATH)

    def with_location(self, location: str) -> "StorageDescriptor":
        """Return a copy with another location."""
        return StorageDescriptor(self.raw | {2: (STRING, location)})

    def with_spark_path(self, location: str) -> "StorageDescriptor":
        """Return a copy with another ``spark_path``."""
        serde = _value(self.raw, 7, {})
        noted = string_map({**_string_map(serde, 3), _SPARK_PATH: location})
        return StorageDescriptor(self.raw | {7: (STRUCT, {**serde, 3: noted})})


@dataclass(frozen=True, slots=True)
class MetastoreTable:
    """A table of the metastore; all other fields are retained for writing it back."""

    raw: Struct

    @property
    def name(self) -> str:
        """Its name in its database, in lower case."""
        return _text(self.raw, 1)

    @property
    def database(self) -> str:
        """The name of its database."""
        return _text(self.raw, 2)

    @property
    def created_at(self) -> int:
        """When it was created, in seconds since 1970."""
        return int(_value(self.raw, 4, 0))

    @property
    def storage(self) -> StorageDescriptor:
        """Its storage descriptor."""
        return StorageDescriptor(_value(self.raw, 7, {}))

    @property
    def partition_columns(self) -> tuple[tuple[str, str], ...]:
        """Names and types of the partition columns."""
        return read_columns(self.raw, 8)

    @property
    def parameters(self) -> Mapping[str, str]:
        """Its properties."""
        return _string_map(self.raw, 9)

    @property
    def table_type(self) -> str:
        """``MANAGED_TABLE``, ``EXTERNAL_TABLE``, ``VIRTUAL_VIEW``, …"""
        return _text(self.raw, 12)

    def with_changes(self, storage: StorageDescriptor, parameters: Mapping[str, str]) -> "MetastoreTable":
        """Return a copy with another storage descriptor and other properties."""
        return MetastoreTable(self.raw | {7: (STRUCT, storage.raw), 9: string_map(dict(parameters))})


@dataclass(frozen=True, slots=True)
class MetastorePartition:
    """A partition of the metastore; all other fields are retained for writing it back."""

    raw: Struct

    @property
    def values(self) -> tuple[str, ...]:
        """Its values, in the order of the table's partition columns."""
        found = _value(self.raw, 1, None)
        return tuple(_decoded(value) for value in found.items) if isinstance(found, ThriftList) else ()

    @property
    def created_at(self) -> int:
        """When it was created, in seconds since 1970."""
        return int(_value(self.raw, 4, 0))

    @property
    def storage(self) -> StorageDescriptor:
        """Its storage descriptor."""
        return StorageDescriptor(_value(self.raw, 6, {}))

    @property
    def parameters(self) -> Mapping[str, str]:
        """Its properties."""
        return _string_map(self.raw, 7)

    def with_changes(self, storage: StorageDescriptor, parameters: Mapping[str, str]) -> "MetastorePartition":
        """Return a copy with another storage descriptor and other properties."""
        return MetastorePartition(self.raw | {6: (STRUCT, storage.raw), 7: string_map(dict(parameters))})


def partition_values(name: str) -> tuple[str, ...]:
    """Return the values in a partition's name such as ``day=2024-01-01/city=K%2FL``."""
    return tuple(
        _HEX.sub(lambda code: chr(int(code[1], 16)), part.partition("=")[2]) for part in name.split("/") if part
    )


def read_columns(raw: Struct, number: int) -> tuple[tuple[str, str], ...]:
    """Return names and types in a list of columns."""
    found = _value(raw, number, None)
    return (
        tuple((_text(column, 1), _text(column, 2)) for column in found.items) if isinstance(found, ThriftList) else ()
    )


def _value(raw: Struct, number: int, absent: Any) -> Any:
    return raw[number][1] if number in raw else absent


def _text(raw: Struct, number: int) -> str:
    return _decoded(_value(raw, number, ""))


def _decoded(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")


def _string_map(raw: Struct, number: int) -> Mapping[str, str]:
    found = _value(raw, number, None)
    pairs = found.pairs if isinstance(found, ThriftMap) else {}
    return {_decoded(key): _decoded(value) for key, value in pairs.items()}

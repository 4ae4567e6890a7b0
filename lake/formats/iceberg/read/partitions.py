# SPDX-License-Identifier: Apache-2.0
"""The partitions of a table's files: their paths, their values, and why files of some partitions can't be rewritten."""

import json
import math
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus

from lake.formats.iceberg.catalog.tables import LoadedTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition of one spec.

    ``name`` is its path as Iceberg writes it. ``values`` are its values by field id, in Iceberg's JSON of single
    values, since two partitions can have the same path (null and the text ``null``). ``problem`` is the reason why
    lakefold can't pass ``values`` to Iceberg. If there is one, no file of the partition is rewritten.
    """

    name: str
    values: str
    problem: str | None = None


class PartitionNamer:
    """Names the partitions of a table's files, of every spec."""

    def __init__(self, table: LoadedTable) -> None:
        self._specs = table.metadata.specs()
        self._schemas = (table.metadata.schema(), *reversed(table.metadata.schemas))
        self._fields: dict[int, list[_Field]] = {}
        self._known: dict[tuple[int, str], Partition] = {}

    def is_unpartitioned(self, spec_id: int) -> bool:
        """Return True if files of this spec belong to no partition: it has no field but those with a void transform."""
        from pyiceberg.transforms import VoidTransform

        return all(isinstance(one.transform, VoidTransform) for one in self._specs[spec_id].fields)

    def describe(self, file: Any) -> Partition:
        """Return the partition of a data or delete file."""
        values = tuple(file.partition[position] for position in range(len(self._specs[file.spec_id].fields)))
        # Equal numbers of different types, such as 0.0 and -0.0, must not share an entry.
        key = (file.spec_id, repr(values))
        if key not in self._known:
            self._known[key] = self._describe(file.spec_id, values)
        return self._known[key]

    def _describe(self, spec_id: int, values: tuple[Any, ...]) -> Partition:
        if spec_id not in self._fields:
            self._fields[spec_id] = [self._field(one) for one in self._specs[spec_id].fields]
        names, document, problem = [], {}, None
        for one, value in zip(self._fields[spec_id], values, strict=True):
            text, as_json, reason = one.describe(value)
            names.append(f"{quote_plus(one.field.name, safe='')}={quote_plus(text, safe='')}")
            if value is not None:
                document[str(one.field.field_id)] = as_json
                problem = problem or reason
        return Partition(name="/".join(names), values=json.dumps(document, sort_keys=True), problem=problem)

    def _field(self, field: Any) -> "_Field":
        for number, schema in enumerate(self._schemas):
            try:
                kind = field.transform.result_type(schema.find_type(field.source_id))
            except (ValueError, KeyError):
                continue  # this schema does not have the column
            return _Field(field=field, kind=kind, is_dropped=number > 0)
        return _Field(field=field, kind=None, is_dropped=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """A field of a partition spec, with the type of its values; None if no known schema has its column."""

    field: Any
    kind: Any | None
    is_dropped: bool

    def describe(self, value: Any) -> tuple[str, Any, str | None]:
        """Return a value as text and as JSON, and why it can't be passed to Iceberg; None if it can."""
        from pyiceberg.conversions import to_json

        name = self.field.name
        if isinstance(value, float) and not math.isfinite(value):
            text = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
            return text, text, f"its partition has {name} = {text}, which JSON can't express"
        dropped = f"the column of its partition field {name} was dropped from the table" if self.is_dropped else None
        if value is None:
            return "null", None, None
        try:
            if self.kind is not None:
                return self.field.transform.to_human_string(self.kind, value), to_json(self.kind, value), dropped
        except (TypeError, ValueError, KeyError):
            dropped = dropped or f"lakefold can't name the values of its partition field {name} ({self.kind})"
        return str(value), repr(value), dropped

# SPDX-License-Identifier: Apache-2.0
"""The history of a table's schemas, which Hudi keeps if ``hoodie.schema.on.read.enable`` is set.

In these tables a number identifies a column, and its name may change. Hudi's rewrites nevertheless match columns by
name. A rewrite loses the values that older files hold under a former name, and assigns values under a reused name to
the wrong column.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from lake.formats.hudi.files.storage import TableStorage

DIRECTORY = ".hoodie/.schema"
_SUFFIX = ".schemacommit"


def find_misleading_columns(storage: TableStorage) -> Iterator[str]:
    """Yield a description of each column whose name does not identify it in all schemas of the table."""
    versions = [name for name in storage.list_file_names(DIRECTORY) if name.endswith(_SUFFIX)]
    if not versions:
        return
    # Each file repeats all schemas before its own, newest first.
    names: dict[int, list[str]] = defaultdict(list)
    numbers: dict[str, set[int]] = defaultdict(set)
    for schema in reversed(json.loads(storage.read(f"{DIRECTORY}/{max(versions)}"))["schemas"]):
        for name, number in _flatten_columns(schema, ""):
            numbers[name].add(number)
            if name not in names[number]:
                names[number].append(name)
    for known in names.values():
        if len(known) > 1:
            yield f"column {known[0]} was renamed to {known[-1]}"
    for name, known_as in sorted(numbers.items()):
        if len(known_as) > 1:
            yield f"column {name} was dropped and added again"


def _flatten_columns(schema_type: Any, path: str) -> Iterator[tuple[str, int]]:
    """Yield dotted names and numbers of all fields of a schema as Hudi writes it, nested fields included."""
    if not isinstance(schema_type, dict):
        return
    for field in schema_type.get("fields", ()):
        name = f"{path}{field['name']}"
        yield name, field["id"]
        yield from _flatten_columns(field["type"], f"{name}.")
    for part in ("element", "key", "value"):
        yield from _flatten_columns(schema_type.get(part), f"{path}{part}.")

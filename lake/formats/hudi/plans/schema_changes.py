# SPDX-License-Identifier: Apache-2.0
"""Changes of a table's columns while a plan runs.

A rewrite writes its files with the columns that the table has when the rewrite begins. A commit has to name the table's
columns as they are at the commit. If a column came back in between, or got an earlier type again, its values would be
in the replaced files only.
"""

import json
import struct
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from lake.errors import Conflict, Transient
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.files.names import relative_path
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.timeline.records import read_log_schemas
from lake.model import FileSlice
from lake.plan import Plan
from lake.ports import PreparedPlan

#: properties of an Avro type on which values depend, the last line those of Hudi's vectors (``HoodieSchema.Vector``).
#: Writers add properties of their own, such as "connect.type"
_COMPARED = frozenset(
    {"type", "logicalType", "precision", "scale", "size", "symbols", "items", "values", "fields"}
    | {"dimension", "elementType", "storageBacking"}
)


def refuse_stale_schema(client: HudiClient, schema: str) -> None:
    """Raise Transient unless ``schema``, Avro JSON, has the columns that the table had when the client was opened.

    Hudi writes some files with the columns as they were then, and others with the columns as they are at the begin of
    the rewrite or of its sort.
    """
    before, now = _columns(str(client.schema.toString())), _columns(schema)
    if before != now:
        raise Transient(
            f"{client.table.name}: {_describe_change(before, now)} since the table was opened; the plan is tried again "
            "with the table as it is now"
        )


def require_fitting_files(client: HudiClient, prepared: PreparedPlan, schema: str) -> None:
    """Raise Conflict unless the files of ``prepared`` fit ``schema``, the table's schema now; call it under the lock.

    The files have the columns that the table had when the client was opened (``refuse_stale_schema``). They fit a
    schema that has the same columns, and others that no input has. An adopted plan raises Transient: it can be tried
    again, but not planned again.
    """
    before, now = _columns(str(client.schema.toString())), _columns(schema)
    if before == now:
        return
    plan = prepared.plan
    added = {name: kind for name, kind in now.items() if name not in before}
    if {name: kind for name, kind in now.items() if name not in added} == before:
        slices = [slice_ for index in prepared.live_groups for slice_ in plan.groups[index].slices]
        known = {name.casefold() for name in added}
        if not known.intersection(name.casefold() for name in _input_columns(client, slices)):
            return
    raise _outcome(plan)(
        f"{plan.table.name}: {_describe_change(before, now)} while the plan ran, and its files have the earlier columns"
    )


def _outcome(plan: Plan) -> type[Conflict] | type[Transient]:
    return Conflict if plan.adopted_instant is None else Transient


def _describe_change(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe, for a message, the first change from the columns ``before`` to the columns ``now``."""
    for name in (*now, *before):
        if before.get(name) != now.get(name):
            change = "added" if name not in before else "dropped" if name not in now else "given another type"
            return f"column {name} was {change}"
    return "no column was changed"


def _input_columns(client: HudiClient, slices: Collection[FileSlice]) -> Iterator[str]:
    """Yield the columns of all files of ``slices``, with repetitions. Raises Transient if one of them can't be read."""
    for path in (slice_.path for slice_ in slices if slice_.path is not None):
        if path not in client.input_footers:
            raise Transient(f"{client.storage.display_path(path)}: the footer can't be read")
        yield from client.input_footers[path].columns
    logs = [relative_path(slice_.partition, name) for slice_ in slices for name in slice_.log_files]
    for schemas in client.storage.map_parallel(lambda path: _log_schemas(client.storage, path), logs):
        for schema in schemas:
            yield from _columns(schema)


def _log_schemas(storage: TableStorage, path: str) -> frozenset[str]:
    """Return the schemas of the blocks of a log. Raises Transient if the log can't be read."""
    try:
        with storage.open(path) as source:
            return frozenset(read_log_schemas(source, source.size()))
    except (OSError, ValueError, struct.error) as error:
        raise Transient(f"{storage.display_path(path)} can't be read ({error})") from error


def _columns(schema: str) -> dict[str, Any]:
    """Return the types of a table's columns by name, from Avro JSON, in a form in which equal types are equal.

    Names of types and whether values may be null do not count: they differ between writers, and no value depends on
    them.
    """
    columns: dict[str, Any] = _comparable_type(json.loads(schema), "", {})["fields"]
    return columns


def _comparable_type(kind: Any, namespace: str, named: dict[str, Any]) -> Any:
    """Return an Avro type without names; ``named`` are the types defined so far, which later ones may refer to."""
    if isinstance(kind, str):
        return named.get(_full_name(kind, namespace), kind)
    if isinstance(kind, list):
        branches = [_comparable_type(branch, namespace, named) for branch in kind if branch != "null"]
        return branches[0] if len(branches) == 1 else branches
    name = None
    if "name" in kind:
        name = _full_name(kind["name"], kind.get("namespace", namespace))
        namespace = name.rpartition(".")[0]
    comparable = {key: value for key, value in kind.items() if key in _COMPARED}
    for key in ("type", "items", "values"):
        if key in kind:
            comparable[key] = _comparable_type(kind[key], namespace, named)
    if "fields" in kind:
        comparable["fields"] = {
            field["name"]: _comparable_type(field["type"], namespace, named) for field in kind["fields"]
        }
    if comparable.keys() == {"type"}:  # {"type": "int"} is "int"
        comparable = comparable["type"]
    if name is not None:
        named[name] = comparable
    return comparable


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"

# SPDX-License-Identifier: Apache-2.0
"""The parts of Arrow's nested types: the fields of a struct, keys and values of a map, elements of a list of any kind.

Parquet stores all kinds of lists in the same way, and only the file's Arrow schema names the kind. An extension type
has the parts of its storage. All other types are leaves, in the order of Parquet's leaf columns.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

_LISTS = (pat.is_list, pat.is_large_list, pat.is_fixed_size_list, pat.is_list_view, pat.is_large_list_view)


def is_list(kind: pa.DataType) -> bool:
    """True for a list of any kind. A map is not a list."""
    return any(check(kind) for check in _LISTS)


def storage_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that stores values of ``kind``: the storage of an extension type, or ``kind`` itself."""
    return storage_type(kind.storage_type) if isinstance(kind, pa.BaseExtensionType) else kind


def parts(kind: pa.DataType) -> Sequence[tuple[str, pa.Field]]:
    """Return the parts of a type, each with the end of its path in a column: ``.name``, ``[]``, ``[key]``, ``[value]``.

    A leaf has no parts.
    """
    kind = storage_type(kind)
    if pat.is_struct(kind):
        return [(f".{field.name}", field) for field in kind]
    if pat.is_map(kind):
        return [("[key]", kind.key_field), ("[value]", kind.item_field)]
    return [("[]", kind.value_field)] if is_list(kind) else []


def replace_leaf_types(schema: pa.Schema, replace: Callable[[pa.DataType], pa.DataType]) -> pa.Schema:
    """Return the schema in which ``replace`` gives the type in place of each leaf's type.

    ``replace`` is called once for each leaf, in the order of Parquet's columns.
    """

    def of(kind: pa.DataType) -> pa.DataType:
        fields = [field.with_type(of(field.type)) for _, field in parts(kind)]
        return _with_parts(storage_type(kind), fields) if fields else replace(storage_type(kind))

    return pa.schema([column.with_type(of(column.type)) for column in schema])


def _with_parts(kind: pa.DataType, fields: Sequence[pa.Field]) -> pa.DataType:
    """Return a nested type with other parts."""
    if pat.is_struct(kind):
        return pa.struct(fields)
    if pat.is_map(kind):
        return pa.map_(*fields)
    (element,) = fields
    if pat.is_fixed_size_list(kind):
        return pa.list_(element, kind.list_size)
    if pat.is_large_list(kind):
        return pa.large_list(element)
    if pat.is_list_view(kind):
        return pa.list_view(element)
    return pa.large_list_view(element) if pat.is_large_list_view(kind) else pa.list_(element)


def storage(array: pa.Array) -> pa.Array:
    """Return the values that store those of an extension type, or ``array`` itself."""
    return storage(array.storage) if isinstance(array, pa.ExtensionArray) else array


def part_arrays(array: pa.Array) -> Sequence[pa.Array]:
    """Return the values of each of the ``parts``, without parts of null lists and maps.

    A null struct gives each of its parts a null.
    """
    array = storage(array)
    kind = array.type
    if pat.is_struct(kind):
        return list(array.flatten())
    if pat.is_map(kind):
        return list(map_entries(array).flatten().flatten())
    return [array.flatten()] if is_list(kind) else []


def map_entries(array: pa.Array) -> pa.Array:
    """Return maps as lists of structs."""
    return array.cast(pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])))


def without_view(array: pa.Array) -> pa.Array:
    """Return a list view as a list, in which a null is an empty list. Any other array stays as it is.

    Arrow's own cast of a list view with nulls or an offset returns an invalid array.
    """
    if not (pat.is_list_view(array.type) or pat.is_large_list_view(array.type)):
        return array
    lengths = np.asarray(pc.fill_null(pc.list_value_length(array), 0))
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))))
    return pa.LargeListArray.from_arrays(offsets, array.flatten(), pa.large_list(array.type.value_field))


def leaf_arrays(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the values of each leaf of a column, at any depth."""
    found = part_arrays(array)
    for part in found:
        yield from leaf_arrays(part)
    if not found:
        yield storage(array)


def leaf_types(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield the type of each leaf of a column, at any depth."""
    found = parts(kind)
    for _, field in found:
        yield from leaf_types(field.type)
    if not found:
        yield storage_type(kind)

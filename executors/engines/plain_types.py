# SPDX-License-Identifier: Apache-2.0
"""Arrow types that are replaced at any level of nesting, such as views and dictionaries by plain values."""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.types as pat


def without_views(schema: pa.Schema) -> pa.Schema:
    """Return the schema with strings and bytes in place of their views, for which Arrow can't reorder rows."""
    return replace_leaf_types(schema, _of_view)


def without_dictionaries(schema: pa.Schema) -> pa.Schema:
    """Return the schema with plain values in place of dictionaries, because a batch refers to its whole dictionary."""
    return replace_leaf_types(schema, lambda kind: kind.value_type if pat.is_dictionary(kind) else kind)


def _of_view(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pat.is_string_view(kind) else pa.binary() if pat.is_binary_view(kind) else kind


def replace_leaf_types(schema: pa.Schema, replace: Callable[[pa.DataType], pa.DataType]) -> pa.Schema:
    """Return the schema in which ``replace`` gives the type in place of each type without children.

    ``replace`` is called once for each, in the order of Parquet's columns.
    """

    def field(one: pa.Field) -> pa.Field:
        return one.with_type(of(one.type))

    def of(kind: pa.DataType) -> pa.DataType:
        if pat.is_struct(kind):
            return pa.struct([field(child) for child in kind])
        if pat.is_map(kind):
            return pa.map_(field(kind.key_field), field(kind.item_field))
        if pat.is_list(kind):
            return pa.list_(field(kind.value_field))
        if pat.is_large_list(kind):
            return pa.large_list(field(kind.value_field))
        if pat.is_fixed_size_list(kind):
            return pa.list_(field(kind.value_field), kind.list_size)
        return replace(kind)

    return pa.schema([field(column) for column in schema])

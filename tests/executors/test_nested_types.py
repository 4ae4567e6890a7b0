# SPDX-License-Identifier: Apache-2.0
"""The parts of Arrow's nested types."""

import pyarrow as pa
import pytest

from executors.nested_types import leaf_arrays, leaf_types, replace_leaf_types, without_view

NESTED = [
    pa.list_(pa.int32()),
    pa.large_list(pa.field("x", pa.int32(), nullable=False)),
    pa.list_(pa.int32(), 2),
    pa.list_view(pa.int32()),
    pa.large_list_view(pa.int32()),
    pa.map_(pa.int32(), pa.field("v", pa.int32(), nullable=False)),
    pa.struct([pa.field("a", pa.int32(), nullable=False), ("b", pa.list_view(pa.struct([("c", pa.int32())])))]),
]


@pytest.mark.parametrize("kind", NESTED)
def test_leaf_types_are_replaced_in_every_nested_type(kind: pa.DataType):
    asked = []

    def replace(leaf: pa.DataType) -> pa.DataType:
        asked.append(leaf)
        return pa.int64()

    found = replace_leaf_types(pa.schema([("x", kind)]), replace)
    assert str(found.field("x").type) == str(kind).replace("int32", "int64")
    assert asked == list(leaf_types(kind))
    assert {*leaf_types(found.field("x").type)} == {pa.int64()}


def test_an_extension_type_has_the_parts_of_its_storage():
    kind = pa.opaque(pa.list_(pa.struct([("a", pa.int32()), ("b", pa.string())])), "pairs", "test")
    assert list(leaf_types(kind)) == [pa.int32(), pa.string()]
    array = kind.wrap_array(pa.array([[{"a": 1, "b": "x"}], None, []], kind.storage_type))
    assert [leaf.to_pylist() for leaf in leaf_arrays(array)] == [[1], ["x"]]


@pytest.mark.parametrize("kind", [pa.list_view, pa.large_list_view])
def test_a_view_with_nulls_an_offset_and_elements_in_any_order_becomes_a_list(kind):
    made = {pa.list_view: pa.ListViewArray, pa.large_list_view: pa.LargeListViewArray}[kind]
    view = made.from_arrays(
        [4, 0, 9, 2, 0], [2, 3, 0, 2, 5], pa.array(range(6)), mask=pa.array([False, False, True, False, False])
    )
    for array in (view, view[1:], view[2:4]):
        found = without_view(array)
        found.validate(full=True)
        assert found.to_pylist() == [one or [] for one in array.to_pylist()]

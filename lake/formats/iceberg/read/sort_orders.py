# SPDX-License-Identifier: Apache-2.0
"""The sort order that the metadata of new files states: the table's order if their rows have it, else unsorted."""

from lake.formats.iceberg.catalog.tables import LoadedTable
from lake.plan import RewriteOptions

UNSORTED = 0
"""The id of Iceberg's order without columns, which Iceberg also assumes for a file without a sort order."""

#: the layout in which engines sort by the columns one after the other, ascending, with nulls first
_LINEAR = "linear"
#: types whose values Iceberg and the engines order differently: floating point by its two zeros, UUIDs by their bytes
_OTHER_ORDERS = ("float", "double", "uuid")


def written_order(table: LoadedTable, options: RewriteOptions) -> int:
    """Return the id of the sort order of files that are rewritten with ``options``.

    It is the table's present order if the columns of this order are the first columns by which rows are sorted, else
    ``UNSORTED``: rows of several sorted files, one behind the other, are not sorted.
    """
    from pyiceberg.table.sorting import NullOrder, SortDirection
    from pyiceberg.transforms import IdentityTransform

    order, schema = table.metadata.sort_order(), table.metadata.schema()
    top_level = {one.field_id: one for one in schema.fields}
    if not order.fields or options.layout != _LINEAR or len(options.sort_columns) < len(order.fields):
        return UNSORTED
    for wanted, name in zip(order.fields, options.sort_columns, strict=False):
        column = top_level.get(wanted.source_id)
        if (
            column is None
            or column.name.lower() != name.lower()
            or not isinstance(wanted.transform, IdentityTransform)
            or (wanted.direction, wanted.null_order) != (SortDirection.ASC, NullOrder.NULLS_FIRST)
            or str(column.field_type) in _OTHER_ORDERS
        ):
            return UNSORTED
    return int(order.order_id)

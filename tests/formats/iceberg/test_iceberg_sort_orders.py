# SPDX-License-Identifier: Apache-2.0
"""The sort order that new files of an Iceberg table state, and whether their rows are in it."""

from typing import Any

import pyarrow.parquet as pq
import pytest
from contract.attempts import run
from contract.plans import plan_all
from iceberg_case import IcebergCase, NewCase
from iceberg_readers import live_paths, rows_of_all_readers
from iceberg_writers import order_writes

from lake.model import TableRef

pytestmark = pytest.mark.spark


@pytest.fixture
def case(new_case: NewCase) -> IcebergCase:
    return new_case("jdbc", parts=("",))


@pytest.mark.parametrize(
    ("order", "options", "stated"),
    [
        ("value, id", {}, 0),
        ("value, id", {"sort_columns": ("value", "id")}, 1),
        ("tip", {"sort_columns": ("TIP", "id")}, 1),
        ("value, id", {"sort_columns": ("value",)}, 0),
        ("value, id", {"sort_columns": ("id", "value")}, 0),
        ("value DESC", {"sort_columns": ("value",)}, 0),
        ("value NULLS LAST", {"sort_columns": ("value",)}, 0),
        ("tip TRUNCATED", {"sort_columns": ("tip",)}, 0),
        ("stop.lat", {"sort_columns": ("value",)}, 0),
        ("value, id", {"sort_columns": ("value", "id"), "layout": "zorder"}, 0),
    ],
)
def test_new_files_state_the_table_s_order_only_if_their_rows_are_in_it(
    case: IcebergCase, table: TableRef, order: str, options: dict[str, Any], stated: int
):
    name = case.name(table)
    order_writes(case, table, order)
    for low in (1000, 1050):
        case.append(table, "", low, low + 50)
    rows = rows_of_all_readers(case, table)
    run(case, plan_all(case.format, table, "p", **options))
    assert rows_of_all_readers(case, table) == rows
    assert [row["sort_order_id"] for row in case.sql(f"SELECT sort_order_id FROM {name}.files").collect()] == [stated]
    if stated:
        (path,) = live_paths(case, table)
        values = pq.read_table(path)[options["sort_columns"][0].lower()].to_pylist()
        assert values == sorted(values, key=lambda value: (value is not None, value))

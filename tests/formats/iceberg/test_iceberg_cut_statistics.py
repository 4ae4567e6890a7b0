# SPDX-License-Identifier: Apache-2.0
"""Files whose writer cuts the bounds of long strings: Iceberg's bounds of new files hold, and aggregates are true."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from contract.attempts import attempt
from contract.plans import plan_all
from iceberg_case import NewCase
from iceberg_readers import live_paths
from iceberg_writers import add_file, merge_on_read_delete
from pyiceberg.conversions import from_bytes
from pyiceberg.table import StaticTable

from executors.datafiles.thrift import decode, encode
from executors.engines.arrow import ArrowEngine
from executors.engines.backends import InProcessBackend
from executors.engines.stitch.engine import HybridEngine, ParquetStitchEngine
from executors.verification import verify_rewrite
from lake.formats.iceberg.catalog.tables import load_table

pytestmark = pytest.mark.spark

ENGINES: dict[str, Any] = {"arrow": ArrowEngine, "stitch": ParquetStitchEngine, "hybrid": HybridEngine}
#: Row groups, columns, their metadata and statistics in a footer; whether the greatest and the least value are exact.
ROW_GROUPS, COLUMNS, METADATA, STATISTICS, IS_EXACT = 4, 1, 3, 12, (7, 8)
PREDICATES = (
    "s = concat(repeat('m', 300), '079')",
    "s > concat(repeat('m', 300), '117')",
    "s < concat(repeat('m', 300), '003')",
    "s LIKE concat(repeat('m', 300), '11%')",
    "u >= concat('m', repeat('\u6f22', 100), '118')",
    "u IN (concat('m', repeat('\u6f22', 100), '002'), 'n')",
    "NOT u < 'n'",
    "b > CAST(concat(repeat('m', 300), '117') AS binary)",
    "k <= 'k002'",
)


def written_by_duckdb(path: Path, ids: Mapping[str, int], low: int, high: int, *, marked: bool) -> None:
    """A file whose bounds are cut to 256 bytes. The footer says so, unless it is not ``marked``."""
    values = (
        "range AS id, repeat('m', 300) || lpad(range::varchar, 3, '0') AS s, "
        "'m' || repeat('\u6f22', 100) || lpad(range::varchar, 3, '0') AS u, s::blob AS b, "
        "'k' || lpad(range::varchar, 3, '0') AS k"
    )
    written = f"(FORMAT parquet, FIELD_IDS {dict(ids)})"
    duckdb.sql(f"COPY (SELECT {values} FROM range({low}, {high})) TO '{path}' {written}")
    bounds = [pq.read_metadata(path).row_group(0).column(column).statistics for column in (1, 2, 3)]
    assert [(len(one.min_raw), len(one.max_raw)) for one in bounds] == [(256, 256), (256, 1), (256, 256)]
    if marked:
        return
    raw = path.read_bytes()
    start = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    fields = decode(raw[start:-8])
    for group in fields[ROW_GROUPS][1][1]:
        for chunk in group[COLUMNS][1][1]:
            statistics = chunk[METADATA][1][STATISTICS][1]
            for number in IS_EXACT:
                del statistics[number]
    footer = encode(fields)
    path.write_bytes(raw[:start] + footer + len(footer).to_bytes(4, "little") + raw[-4:])


@pytest.mark.crossed(5, first="True-stitch-full")
@pytest.mark.parametrize("mode", ["full", "truncate(16)", "truncate(300)"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("marked", [True, False])
def test_bounds_that_a_writer_has_cut_are_neither_too_narrow_nor_taken_for_values(
    new_case: NewCase, tmp_path: Path, engine: str, mode: str, marked: bool
):
    """In the mode ``full`` Spark takes ``min`` and ``max`` of strings from bounds."""
    case = new_case("hadoop", parts=("",), merge_on_read=True, properties={"write.metadata.metrics.default": mode})
    case.engines = (ENGINES[engine](InProcessBackend()),)
    table = case.create(tmp_path / "lake" / "t", name="t")
    name = case.name(table)
    case.sql(f"CREATE OR REPLACE TABLE {name} (id bigint, s string, u string, b binary, k string) USING iceberg")
    static = StaticTable.from_metadata(load_table(case.format._settings, table).metadata_location)
    ids = {column.name: column.field_id for column in static.schema().fields}
    for low in range(0, 120, 40):
        path = Path(table.location) / "data" / f"{low}.parquet"
        written_by_duckdb(path, ids, low, low + 40, marked=marked)
        add_file(case, table, path)
    if engine == "arrow":
        merge_on_read_delete(case, table, "id IN (0, 1, 39, 119)")
    # A bound of one letter does not show that it was cut if the footer does not say so.
    bounded = [one for one in ("s", "u", "b", "k") if marked or one != "u" or engine == "arrow"]
    aggregates = ", ".join(f"min({one}), max({one}), count({one})" for one in bounded)
    columns = "id, " + ", ".join(PREDICATES)
    rows = case.sql(f"SELECT {columns} FROM {name}").collect()
    wanted = {one: sorted(row[0] for row in rows if row[number]) for number, one in enumerate(PREDICATES, start=1)}
    totals = [case.sql(f"SELECT {aggregates} FROM {name}").collect()]
    with attempt(case, plan_all(case.format, table, "p", engine=engine, min_row_group_bytes=1 << 12)) as one:
        rewrite = one.rewritten()
        verify_rewrite(rewrite, writer=one.writer)
        one.writer.commit(rewrite)
    assert len(live_paths(case, table)) == 1
    totals.append(case.sql(f"SELECT {aggregates} FROM {name}").collect())
    assert totals[1] == totals[0]
    for predicate in PREDICATES:
        found = case.sql(f"SELECT id FROM {name} WHERE {predicate}").collect()
        assert (predicate, sorted(row["id"] for row in found)) == (predicate, wanted[predicate])
    static = StaticTable.from_metadata(load_table(case.format._settings, table).metadata_location)
    assert sorted(static.scan("u >= 'm' and s < 'n'").to_arrow()["id"].to_pylist()) == [
        row["id"] for row in sorted(rows)
    ]
    (file,) = (task.file for task in static.scan().plan_files())
    present = pq.ParquetFile(live_paths(case, table)[0]).read()
    for column in static.schema().fields:
        values = present[column.name].to_pylist()
        assert file.null_value_counts[column.field_id] == 0
        assert file.value_counts[column.field_id] == len(values)
        low, high = (bounds.get(column.field_id) for bounds in (file.lower_bounds, file.upper_bounds))
        assert low is None or from_bytes(column.field_type, low) <= min(values)
        assert high is None or from_bytes(column.field_type, high) >= max(values)
        # Files can still be skipped by these.
        assert None not in (low, high) or (mode != "truncate(16)" and column.name in ("s", "u", "b"))

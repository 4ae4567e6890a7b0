# SPDX-License-Identifier: Apache-2.0
"""Tables with files that no plan can rewrite come to rest: the other files are compacted, and planning ends."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from iceberg_case import COLUMNS, IcebergCase, NewCase
from iceberg_readers import rows_of_all_readers
from iceberg_writers import equality_delete, merge_on_read_delete
from toys.bench import Bench, bench_at

from executors.outcome import RunResult
from service.control.config.loader import load_config
from service.control.config.table_settings import configure_table
from service.control.planning.planning_inputs import read_planning_inputs
from service.control.planning.planning_session import PlanningScope, PlanningSession

pytestmark = [pytest.mark.spark, pytest.mark.paired("case")]

MOST_ROUNDS = 6


@pytest.fixture
def bench(case: IcebergCase, tmp_path: Path) -> Iterator[Bench]:
    with bench_at(tmp_path, case) as made:
        yield made


def rounds_to_rest(bench: Bench, **settings: Any) -> list[list[RunResult]]:
    """Scan, plan and run until nothing is planned. Returns how the plans of each round ended."""
    table, policy = bench.table, {"quiet_period": "0s", "min_input_files": 2, **settings}
    (bench.home / "lakefold.toml").write_text(f'[database]\nurl = "{bench.url}"\n')
    config = load_config(bench.home / "lakefold.toml")
    rounds: list[list[RunResult]] = []
    while len(rounds) < MOST_ROUNDS:
        session = PlanningSession(
            store=bench.store,
            inputs=read_planning_inputs(
                bench.store,
                configure_table(config, table, policy),
                bench.store.table_state(table.name),
                bench.format.snapshot(table),
            ),
            scope=PlanningScope(),
            locked_partitions={},
        )
        session.plan_and_store(session.plan(), 10, dry_run=False, request=None, actor="test")
        if not session.plan_documents:
            return rounds
        rounds.append([bench.run().result for _ in session.plan_documents])
    raise AssertionError(f"planned again and again: {rounds}")


def files(bench: Bench, partition: str) -> list[str]:
    listed = bench.format.snapshot(bench.table, [partition]).slices.to_pylist()
    return sorted(row["path"] for row in listed)


def test_one_file_of_another_type_is_left_alone_and_the_others_are_compacted(bench: Bench):
    case: Any = bench.case
    name = case.name(bench.table)
    narrow = COLUMNS.replace("value bigint", "value int")
    case.sql(f"CREATE OR REPLACE TABLE {name} ({narrow}) USING iceberg PARTITIONED BY (dt)")
    case.append(bench.table, "dt=0", 0, 50)
    (odd,) = files(bench, "dt=0")
    case.sql(f"ALTER TABLE {name} ALTER COLUMN value TYPE bigint")
    for low in range(50, 350, 50):
        case.append(bench.table, f"dt={low % 100 // 50}", low, low + 50)
    rows = rows_of_all_readers(case, bench.table)
    rounds = rounds_to_rest(bench)
    assert len(rounds) <= 3, rounds
    assert bench.store.table_state(bench.table.name).quarantined.keys() == {odd}
    assert "value (id 2)" in bench.store.table_state(bench.table.name).quarantined[odd]
    assert len(files(bench, "dt=0")) == 2
    assert odd in files(bench, "dt=0")
    assert len(files(bench, "dt=1")) == 1
    assert rows_of_all_readers(case, bench.table) == rows


def test_files_from_before_a_column_was_added_are_left_alone_and_new_ones_compacted(bench: Bench):
    case: Any = bench.case
    old = [*files(bench, "dt=0"), *files(bench, "dt=1")]
    case.sql(f"ALTER TABLE {case.name(bench.table)} ADD COLUMN extra int")
    values = ("id", "id AS value", "'t' AS tip", "NULL AS stop", "'0' AS dt", "IF(id < 0, NULL, 7) AS extra")
    for low in (1000, 1010, 1020):
        case.session.range(low, low + 10, 1, 1).selectExpr(*values).writeTo(case.name(bench.table)).append()
    rows = case.rows(bench.table)
    rounds = rounds_to_rest(bench)
    assert len(rounds) <= 3, rounds
    assert set(bench.store.table_state(bench.table.name).quarantined) == set(old)
    assert len(files(bench, "dt=0")) == 4
    assert case.rows(bench.table) == rows


def test_partitions_of_nan_are_never_planned(bench: Bench):
    case: Any = bench.case
    name = case.name(bench.table)
    case.sql(f"CREATE OR REPLACE TABLE {name} (id bigint, x double) USING iceberg PARTITIONED BY (x)")
    for low in range(6):
        x = "double('NaN')" if low % 2 else "1.5D"
        case.session.range(low, low + 1, 1, 1).selectExpr("id", f"{x} AS x").writeTo(name).append()
    assert rounds_to_rest(bench) == [[RunResult.COMPLETED]]
    assert [len(files(bench, partition)) for partition in ("x=1.5", "x=NaN")] == [1, 3]


@pytest.fixture
def merging(new_case: NewCase, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    with bench_at(tmp_path, new_case("hadoop", version=request.param, merge_on_read=True)) as made:
        yield made


@pytest.mark.parametrize("merging", [2, 3], indirect=True)
def test_small_files_with_deletes_converge_to_files_without_deletes(merging: Bench):
    case: Any = merging.case
    for number in (7, 207):
        equality_delete(case, merging.table, number, str(number // 150))
        merge_on_read_delete(case, merging.table, f"id = {number + 1}")
    rows = case.rows(merging.table)
    rounds = rounds_to_rest(merging)
    assert [result for one in rounds for result in one] == [RunResult.COMPLETED] * sum(map(len, rounds))
    assert [len(files(merging, partition)) for partition in ("dt=0", "dt=1")] == [1, 1]
    slices = merging.format.snapshot(merging.table).slices.to_pylist()
    assert [row["log_files"] for row in slices] == [[], []]
    assert case.rows(merging.table) == rows
    by_spark, by_pyiceberg, by_duckdb = rows_of_all_readers(case, merging.table)
    assert (by_spark, by_pyiceberg) == (rows, by_duckdb)


@pytest.mark.parametrize("merging", [2, 3], indirect=True)
def test_large_files_are_merged_with_their_deletes_once_a_threshold_is_reached(merging: Bench):
    case: Any = merging.case
    old = {partition: files(merging, partition) for partition in ("dt=0", "dt=1")}
    merge_on_read_delete(case, merging.table, "id IN (0, 1, 2, 3, 4, 60)")
    rows = case.rows(merging.table)
    # None of the files is small, so none is clustered.
    policy = {"small_file_limit": "1B", "compact_log_ratio": 0, "compact_delete_ratio": "10%"}
    assert rounds_to_rest(merging, **policy) == [[RunResult.COMPLETED]]
    left = files(merging, "dt=0")
    assert len(left) == 3
    assert len(set(left) - set(old["dt=0"])) == 1, "5 of 50 rows of one file are deleted, 1 of 50 of another one"
    assert files(merging, "dt=1") == old["dt=1"]
    with_deletes = [row for row in merging.format.snapshot(merging.table).slices.to_pylist() if row["log_files"]]
    assert [row["deleted_rows"] for row in with_deletes] == [1]
    assert case.rows(merging.table) == rows
    for number in (61, 62):
        equality_delete(case, merging.table, number)
    rows = case.rows(merging.table)
    assert rounds_to_rest(merging, **policy | {"compact_delete_files": 2}) == [[RunResult.COMPLETED]]
    assert case.rows(merging.table) == rows
    slices = merging.format.snapshot(merging.table).slices.to_pylist()
    assert [row["log_files"] for row in slices] == [[]] * 6

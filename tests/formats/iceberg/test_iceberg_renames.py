# SPDX-License-Identifier: Apache-2.0
"""A table is renamed or dropped without its files, and another one is created under its name and at its location."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from contract.attempts import attempt
from contract.plans import plan_all
from contract.run import asleep
from iceberg_case import COLUMNS, IcebergCase, NewCase
from toys.bench import Bench, bench_at

from lake.capabilities import with_identity
from lake.model import TableRef

pytestmark = [pytest.mark.spark, pytest.mark.paired("case")]


@pytest.fixture(params=["jdbc", "postgresql", "hive", "rest"])
def case(new_case: NewCase, request: pytest.FixtureRequest) -> IcebergCase:
    """Of each kind of catalog that can rename tables."""
    return new_case(request.param)


@pytest.fixture
def bench(case: IcebergCase, tmp_path: Path) -> Iterator[Bench]:
    with bench_at(tmp_path, case) as made:
        made.table = with_identity(made.format, made.table)
        made.store.register_table(made.table, "compact")
        yield made


def replace_table(case: IcebergCase, table: TableRef) -> str:
    """Rename ``table``, and create another one under its name at its location. Returns the renamed table's name."""
    name, iceberg = case.name(table), case.session._jvm.org.apache.iceberg
    assert table.catalog is not None
    catalog = iceberg.spark.Spark3Util.loadIcebergCatalog(case.session._jsparkSession, table.catalog.name)
    parse = iceberg.catalog.TableIdentifier.parse
    catalog.renameTable(parse(table.catalog.table), parse(f"{table.catalog.table}_before"))
    location = f"LOCATION 'file:{table.location}'"
    case.sql(f"CREATE TABLE {name} ({COLUMNS}) USING iceberg PARTITIONED BY (dt) {location}")
    case.append(table, "dt=0", 0, 10)
    return f"{name}_before"


def rows(case: IcebergCase, name: str) -> Sequence[str]:
    case.sql(f"REFRESH TABLE {name}")
    return sorted(repr(row.asDict(recursive=True)) for row in case.session.table(name).collect())


def snapshots(case: IcebergCase, name: str) -> int:
    return int(case.sql(f"SELECT 1 FROM {name}.snapshots").count())


def test_a_withdrawal_on_a_recreated_table_deletes_no_file_of_the_renamed_one(case: IcebergCase, table: TableRef):
    one = with_identity(case.format, table)
    before = case.rows(table)
    with attempt(case, plan_all(case.format, one, "p")) as committed:
        committed.committed()
        renamed = replace_table(case, table)
        assert case.format.remaining_staged(one, committed.journal) == []
        assert committed.discarded(None) == 0
    assert rows(case, renamed) == before
    assert snapshots(case, case.name(table)) == 1, "the new table gets no commit either"


@pytest.mark.parametrize("by", ["take-over", "sweep"])
def test_files_of_a_commit_before_a_rename_are_left_alone(bench: Bench, by: str):
    case, before, plan = bench.case, bench.rows(), bench.request()
    assert isinstance(case, IcebergCase)
    with asleep(bench, plan, bench.claim()) as (sleeper, rewrite):
        sleeper.writer.commit(rewrite)
    renamed = replace_table(case, bench.table)
    bench.expire()
    if by == "sweep":
        ended = "state = 'cancelled', finalized_at_ms = claimed_at_ms, lease_until_ms = NULL"
        bench.execute(f"UPDATE plan SET {ended} WHERE id = '{plan.plan_id}'")
        bench.table = with_identity(bench.format, bench.table)
        bench.store.register_table(bench.table, "compact")
    else:
        bench.rescue()
        assert bench.state(plan) == "requested"
        bench.run()
        assert bench.state(plan) == "cancelled"
    bench.sweep()
    assert rows(case, renamed) == before
    assert snapshots(case, case.name(bench.table)) == 1

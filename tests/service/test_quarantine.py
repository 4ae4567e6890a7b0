# SPDX-License-Identifier: Apache-2.0
"""What is quarantined is a file, not its path: names are used again, as by an INSERT OVERWRITE of Hive."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from toys.bench import Bench, bench_at
from toys.cases import LocationsCase
from toys.files import rows

from executors.outcome import RunResult
from service.control.config.loader import load_config
from service.control.config.table_settings import configure_table
from service.control.planning.planning_inputs import read_planning_inputs
from service.control.planning.planning_session import PlanningScope, PlanningSession

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with bench_at(tmp_path, case=LocationsCase()) as made:
        yield made


def quarantined(bench: Bench) -> str:
    """A plan quarantines one file whose content can't be read; its path."""
    plan = bench.request()
    path = str(plan.groups[0].slices[0].path)
    file = Path(bench.table.location) / path
    file.write_bytes(b"x" * file.stat().st_size)
    assert bench.run().result is RunResult.COMPLETED
    assert list(bench.store.table_state("toy").quarantined) == [path]
    return path


def planned(bench: Bench, *, dry_run: bool = False) -> set[str]:
    """Quarantined paths as a round of planning takes them."""
    table, policy = bench.table, {"quiet_period": "0s", "min_input_files": 1}
    rounds = PlanningSession(
        store=bench.store,
        inputs=read_planning_inputs(
            bench.store,
            configure_table(load_config(), table, policy),
            bench.store.table_state("toy"),
            bench.format.snapshot(table),
        ),
        scope=PlanningScope(),
        locked_partitions={},
    )
    rounds.plan_and_store(rounds.plan(), 0, dry_run=dry_run, request=None, actor="test")
    return set(rounds.inputs.quarantined)


def test_a_file_of_another_size_at_the_path_of_a_quarantined_one_is_a_candidate_again(bench: Bench):
    path = quarantined(bench)
    assert planned(bench) == {path}, "it is what it was"
    pq.write_table(rows(0, 500), Path(bench.table.location) / path)
    assert planned(bench, dry_run=True) == set()
    assert list(bench.store.table_state("toy").quarantined) == [path], "a dry run changes nothing"
    assert planned(bench) == set()
    assert bench.store.table_state("toy").quarantined == {}


def test_files_quarantined_before_sizes_were_recorded_stay_until_a_person_resumes_the_table(bench: Bench):
    path = quarantined(bench)
    bench.execute("UPDATE table_state SET quarantined_bytes = '{}'")
    pq.write_table(rows(0, 500), Path(bench.table.location) / path)
    assert planned(bench) == {path}
    bench.store.resume("toy", "ada")
    assert planned(bench) == set()


def test_a_file_that_was_quarantined_again_since_a_scan_stays(bench: Bench):
    path = quarantined(bench)
    size = bench.store.table_state("toy").quarantined_bytes[path]
    bench.store.end_quarantine("toy", {path: size + 1})
    assert list(bench.store.table_state("toy").quarantined) == [path]
    bench.store.end_quarantine("toy", {path: size})
    state = bench.store.table_state("toy")
    assert (state.quarantined, state.quarantined_bytes) == ({}, {})

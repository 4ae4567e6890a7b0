# SPDX-License-Identifier: Apache-2.0
"""A table that has two names in one database: the prefix of its source, or the order of the sources, was changed."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
from hive_case import DATABASE, table_name
from late_writing import PARTITION, data_files, halted, home, write
from renaming import now, prefixed
from toys.bench import Background, Bench
from toys.cases import no_spark

from executors.observer import Observer
from executors.outcome import RunResult
from executors.relocation.sweep import sweep_partitions
from lake.capabilities import with_identity
from lake.plan import PlanState
from service.control import serializers
from service.control.config.catalog import Catalog
from service.control.config.loader import load_config
from service.control.lake_cache import read_lake_state
from service.control.planning.plan_request import PlanRequest
from service.control.planning.requests import submit_and_wait
from service.control.store import PartitionsLocked
from service.problems import ExitCode, ProblemError
from service.server.daemon.maintenance import Maintenance
from service.server.daemon.scheduler import Scheduler
from service.server.observability.metrics import Metrics

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("metastore")]

PREFIX = "lake."


def sources(bench: Bench, *prefixes: str, host: str = "127.0.0.1") -> Path:
    """A configuration with one source for each of ``prefixes``, all of which list the table."""
    file = bench.home / "lakefold.toml"
    assert "127.0.0.1" in bench.case.uri  # type: ignore[attr-defined]
    uri = bench.case.uri.replace("127.0.0.1", host)  # type: ignore[attr-defined]
    listed = f'[[sources]]\nmetastore = "{uri}"\ndatabase = "{DATABASE}"\n'
    listed += f'table = "{table_name(bench.table)}"\n'
    file.write_text(
        f'[database]\nurl = "{bench.url}"\n'
        + "".join(f'{listed}prefix = "{prefix}"\n' for prefix in prefixes)
        + '[defaults]\nquiet_period = "0s"\n[[tables]]\nmatch = "*"\nmode = "compact"\naccess = "catalog"\n'
    )
    return file


def scan(bench: Bench, file: Path) -> None:
    """What the scheduler of a daemon that was started with ``file`` does first."""
    config = load_config(file)
    catalog = Catalog(config, registered=bench.store.table_states)
    scheduler = Scheduler(config, bench.store, catalog, Metrics("scheduler"), is_leader=lambda: True, actor="scheduler")
    scheduler.tick(all_tables=True)
    scheduler.wait()
    scheduler.stop()


def maintenance(bench: Bench, file: Path) -> Maintenance:
    return Maintenance(load_config(file), bench.store, no_spark, Observer())


@pytest.fixture
def named(unmoved: Bench) -> Bench:
    """A table that was scanned under the name which a source without a prefix gives it."""
    assert unmoved.table.catalog is not None
    now(unmoved, name=unmoved.table.catalog.table)
    return unmoved


#: the prefixes of the sources that list the table, of which the first one names it; and the metastore's host
CONFIGURATIONS = {
    "another prefix": ((PREFIX,), "127.0.0.1"),
    "swapped sources": ((PREFIX, ""), "127.0.0.1"),
    "another prefix and address": ((PREFIX,), "localhost"),
}


@pytest.fixture(params=list(CONFIGURATIONS))
def changed(request: pytest.FixtureRequest, named: Bench) -> tuple[Bench, Path]:
    """The table, and a configuration that gives it another name."""
    prefixes, host = CONFIGURATIONS[request.param]
    return named, sources(named, *prefixes, host=host)


def test_a_table_is_not_planned_while_a_plan_runs_under_its_former_name(changed: tuple[Bench, Path]):
    """Both plans rewrote the same files, and two executors worked on one partition at once."""
    bench, file = changed
    old, new = bench.table.name, f"{PREFIX}{bench.table.name}"
    plan, config = bench.request(), load_config(file)
    claim = bench.claim()
    scan(bench, file)
    assert [one.plan_id for one in bench.store.plans()] == [plan.plan_id]
    (shown,) = [one for one in serializers.status(read_lake_state(bench.store))["attention"] if one["table"] == new]
    why = f"{old} is another name of the same table, and plan {plan.plan_id} holds partition"
    assert shown["not_planned_reason"].startswith(why)
    catalog = Catalog(config, registered=bench.store.table_states)
    with pytest.raises(ProblemError, match=why) as refused:
        submit_and_wait(config, bench.store, catalog.find(new), PlanRequest(), actor="ada", timeout_seconds=10)
    assert refused.value.problem.code is ExitCode.HALTED
    assert bench.run(claim).result is RunResult.CANCELLED, (
        "the scheduler asked for it, since the table has another name"
    )
    scan(bench, file)
    (planned,) = bench.store.plans(state=PlanState.REQUESTED)
    assert planned.table == new


def test_status_forgets_why_a_name_is_not_planned_that_the_configuration_gives_no_more(named: Bench):
    """The name was not scanned again, so status and alert showed the reason for ever."""
    bench, new = named, f"{PREFIX}{named.table.name}"
    bench.request()
    bench.claim()

    def unplanned() -> list[str]:
        attention = serializers.status(read_lake_state(bench.store))["attention"]
        return [one["table"] for one in attention if one["not_planned_reason"]]

    scan(bench, sources(bench, PREFIX, ""))
    assert unplanned() == [new]
    scan(bench, sources(bench, ""))
    assert unplanned() == []


def test_records_are_carried_over_once_to_the_name_that_the_configuration_gives(changed: tuple[Bench, Path]):
    """Each process's first sweep carried them to both names in turn."""
    bench, file = changed
    old, new = bench.table, with_identity(bench.format, bench.table)
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    rows = bench.rows()
    scan(bench, file)
    for _ in range(2):
        maintenance(bench, file).sweep()
    bench.table = bench.store.table_state(f"{PREFIX}{new.name}").ref
    assert {one.partition for one in bench.store.relocated_partitions(bench.table)} == {"dt=0", "dt=1"}
    assert bench.store.relocated_partitions(old) == []
    assert len(bench.store.audit_entries(action="moves found")) == 1
    late = write(home(bench), 900, 910)
    maintenance(bench, file).sweep()
    assert (sorted(bench.rows()), halted(bench)) == (sorted([*rows, *late]), None)
    bench.clean()
    assert data_files(home(bench)) == []


def test_late_files_are_read_while_a_plan_waits_under_the_former_name(changed: tuple[Bench, Path]):
    """The records were carried over, but the plan kept the sweep under the new name from the partition."""
    bench, file = changed
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    rows, old = bench.rows(), bench.table
    plan = bench.request(partitions=[PARTITION])
    prefixed(bench)
    maintenance(bench, file).sweep()
    late = write(home(bench), 900, 910)
    maintenance(bench, file).sweep()
    assert sorted(bench.rows()) == sorted([*rows, *late])
    bench.store.request_cancel(plan.plan_id, "ada")
    maintenance(bench, file).sweep()
    assert bench.store.relocated_partitions(old) == []
    assert sorted(bench.rows()) == sorted([*rows, *late])


@contextmanager
def suspended_sweep(bench: Bench) -> Iterator[None]:
    """A sweep under the table's present name, suspended after it has recorded the copy of a late file."""
    reached, go_on, sweeper = threading.Event(), threading.Event(), threading.Event()
    table, context = bench.table, bench.context(spark=no_spark)

    def at(name: str) -> None:
        if name == "carry_recorded" and not sweeper.is_set():
            sweeper.set()
            reached.set()
            assert go_on.wait(20)

    with mock.patch("executors.relocation.partition_sweep.failpoint", at):
        sweep = Background(lambda: sweep_partitions(table, context, format=bench.format))
        try:
            assert reached.wait(20)
            yield
        finally:
            go_on.set()
            sweep.join()


def test_a_sweep_under_another_name_leaves_a_partition_to_the_sweep_that_works_on_it(named: Bench):
    """Both copied the late file: the records were carried over meanwhile."""
    bench = named
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    rows, old = bench.rows(), bench.table
    late = write(home(bench), 900, 910)
    with suspended_sweep(bench):
        prefixed(bench)
        bench.sweep()
        assert bench.store.relocated_partitions(bench.table) == []
        with pytest.raises(PartitionsLocked):
            bench.request(partitions=[PARTITION])
    assert sorted(bench.rows()) == sorted([*rows, *late])
    bench.sweep()
    assert (sorted(bench.rows()), halted(bench)) == (sorted([*rows, *late]), None)
    assert bench.store.relocated_partitions(old) == []
    bench.request(partitions=[PARTITION])
    assert bench.run().result is RunResult.COMPLETED
    assert sorted(bench.rows()) == sorted([*rows, *late])

# SPDX-License-Identifier: Apache-2.0
"""Each planted defect is found by the seeds of one run, and the report of a failing seed can be acted on."""

import sys
import threading
import time

import pytest
from support import record_figure

from lake.plan_store import PlanStore
from lake.relocation_store import RelocationStore
from simulation.defects import DEFECTS
from simulation.script import SITES, draw
from simulation.shapes import SHAPES
from simulation.shrink import explain, first_failure
from simulation.store import ModelStore
from simulation.world import World, simulated

pytestmark = pytest.mark.slow

SEEDS = range(20_000)
#: where to begin to look for what few seeds find: the seeds that the last run printed, since a change of the simulation
#: moves them; wherever that is, all of them are gone through
_FIRST = {
    "call-sent-however-late": 370,
    "call-under-way-forgotten": 12_570,
    "concurrency-of-the-planning": 2_180,
    "first-retention-counts": 510,
    "halt-ends-the-duty": 1_660,
    "late-files-forgotten": 1_010,
    "left-by-the-log-alone": 450,
    "lock-of-one-process": 3_240,
    "moves-known-by-name": 790,
    "no-epochs": 970,
    "no-second-look-after-the-fence": 960,
    "old-cleans-run-without-a-look": 3_390,
    "sweep-takes-live-work": 590,
    "table-asked-once": 1_750,
    "withdrawn-without-a-version": 7_630,
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found(name):
    first = _FIRST.get(name, 0)
    seed = first_failure([*SEEDS[first:], *SEEDS[:first]], DEFECTS[name]())
    assert seed is not None, f"{name} is not found in {len(SEEDS):,} seeds"
    failure = explain(seed, DEFECTS[name](), name)
    assert failure is not None
    record_figure(f"simulation, planted: {name}", f"found at seed {seed}: {failure.what}, {len(failure.items)} items")


def test_a_failing_seed_prints_its_replay_command_and_the_fewest_items_that_fail():
    seed = first_failure(SEEDS, DEFECTS["no-receipt"]())
    assert seed is not None
    failure = explain(seed, DEFECTS["no-receipt"](), "no-receipt")
    assert failure is not None
    assert failure.command.endswith(f"-m simulation --seed {seed} --defect no-receipt")
    assert "spoil" in [item.what for item in failure.items]
    assert len(failure.items) < len(draw(seed).items)
    assert "VIOLATED rows" in failure.trace[-1]
    assert all(str(item) in str(failure) for item in failure.items)


def test_a_seed_gives_the_same_run_each_time():
    first, again = (
        explain(seed, DEFECTS["no-receipt"]()) for seed in [first_failure(SEEDS, DEFECTS["no-receipt"]())] * 2
    )
    assert first == again


def test_no_part_of_a_plans_run_keeps_real_time_or_real_threads():
    # sessions, jars, verification and engines are not simulated; another test may have imported these modules
    without = (
        "executors.spark",
        "executors.shared_session",
        "executors.jars",
        "executors.verification",
        "executors.verified_files",
        "executors.engines",
    )
    with simulated():
        real = [
            name
            for name, module in sys.modules.items()
            if name.startswith("executors.")
            and not name.startswith(without)
            and (vars(module).get("time") is time or vars(module).get("threading") is threading)
        ]
    assert real == []


def test_every_call_of_a_port_has_its_faults():
    with simulated():
        world = World(draw(0))
    formats = [shape.format(world) for shape in SHAPES.values()]
    table = next(iter(world.tables.values())).ref
    ports = [ModelStore, *(type(format_) for format_ in formats), *(type(f.writer(table, None)) for f in formats)]
    calls = {
        call.site for port in ports for kind in port.__mro__ for call in vars(kind).values() if hasattr(call, "site")
    }
    assert calls - SITES.keys() == {"request_cancel", "retry"}, "what only an operator calls, who would try again"


def test_the_database_in_memory_has_every_call_of_the_port():
    calls = {name for name in vars(PlanStore) if not name.startswith("_")}
    unasked = calls - set(dir(ModelStore))
    # What only a worker asks that ends when nothing is left, and halts: no format of the simulation is halted.
    assert unasked == {"halt_for_plan", "halt_partition", "halt_table", "time_until_due"}


def test_formats_that_move_no_partitions_run_on_a_database_without_a_call_about_moves():
    assert {name for name in vars(RelocationStore) if not name.startswith("_")}.isdisjoint(dir(ModelStore))

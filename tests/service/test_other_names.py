# SPDX-License-Identifier: Apache-2.0
"""A table that another prefix of its source gave another name is not planned while that name is in use."""

from dataclasses import replace

import pytest

from lake.model import CatalogRef, FileSlice, TableRef
from lake.plan import ClusteringGroup, LockOwner, LockOwnerKind, Plan, PlanKind, RewriteOptions
from service.control.config.loader import load_config
from service.control.config.table_settings import configure_table
from service.control.planning.refusals import planning_refusal
from service.control.planning.requests import raise_if_refused
from service.control.planning.scan import WrittenScan, scan_written_partitions
from service.problems import ExitCode, ProblemError

pytestmark = pytest.mark.usefixtures("clean_environment")

OLD = TableRef(
    name="sales.orders",
    format="hive",
    location="/lake/orders",
    catalog=CatalogRef(kind="metastore", name="thrift://meta:9083", table="sales.orders"),
    identity="1700000000 /lake/orders",
)
NEW = replace(OLD, name="lake.sales.orders")
RULES = '[[tables]]\nmatch = "*"\nmode = "compact"\naccess = "catalog"\n'


@pytest.fixture
def config(tmp_path):
    (tmp_path / "lakefold.toml").write_text(RULES)
    return load_config(tmp_path / "lakefold.toml")


def refusal(config, store, ref):
    return planning_refusal(config, store, configure_table(config, ref), store.table_state(ref.name))


def add_plan(store, ref):
    one = FileSlice(partition="dt=1", file_id="a", path="dt=1/a", bytes=1)
    group = ClusteringGroup(partition="dt=1", slices=(one, replace(one, file_id="b", path="dt=1/b")), output_files=1)
    plan = Plan(
        plan_id="0199-plan",
        table=ref,
        kind=PlanKind.CLUSTERING,
        groups=(group,),
        options=RewriteOptions(target_file_max_bytes=1 << 30),
        snapshot_instant="",
    )
    store.add_plan(plan, request_id=None, actor="test", estimate={})


def test_the_refusal_names_both_names_the_plan_and_the_settings(config, store):
    for ref in (OLD, NEW):
        store.register_table(ref, "compact")
    assert (refusal(config, store, OLD), refusal(config, store, NEW)) == (None, None)
    add_plan(store, OLD)
    refused = refusal(config, store, NEW)
    assert str(refused) == (
        "lake.sales.orders is not planned: sales.orders is another name of the same table, and plan 0199-plan holds "
        "partition dt=1 under that name; to end it: lakefold plans cancel 0199-plan; [[sources]] prefix and the order "
        "of the sources determine a table's only name; lake.sales.orders is planned once sales.orders has no live plan "
        "and no lock"
    )
    assert refused.problem.code is ExitCode.HALTED
    with pytest.raises(ProblemError, match=r"sales\.orders is another name of the same table"):
        raise_if_refused(config, store, configure_table(config, NEW), None)
    assert refusal(config, store, OLD) is None
    store.request_cancel("0199-plan", "ada")
    assert refusal(config, store, NEW) is None


def test_reports_of_writers_do_not_repeat_a_refused_scan_each_second(config, store):
    for ref in (OLD, NEW):
        store.register_table(ref, "compact")
    add_plan(store, OLD)
    table = configure_table(config, NEW)
    assert scan_written_partitions(config, store, table, ["dt=1"], actor="test") == WrittenScan()


def test_a_lock_of_the_sweep_under_the_other_name_refuses_as_well(config, store):
    for ref in (OLD, NEW):
        store.register_table(ref, "compact")
    owner = LockOwner(kind=LockOwnerKind.SWEEP, name="host/1")
    store.lock_partitions(OLD, ["dt=1"], owner)
    assert "and the sweep (host/1) holds partition dt=1 under that name; [[sources]]" in str(
        refusal(config, store, NEW)
    )
    store.release_partitions(owner)
    assert refusal(config, store, NEW) is None

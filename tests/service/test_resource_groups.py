# SPDX-License-Identifier: Apache-2.0
"""Resource groups: which executors take which tables, and what is said where no executor takes a plan."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from api_toys import client_of, context_at
from databases import store_at
from store_plans import TRIPS, add, lease_runs_out

from service.control.config.loader import ConfigError, load_config, with_resource_groups
from service.control.config.table_settings import configure_table
from service.control.store import ProcessFacts, StoreSettings
from service.control.wiring import store_settings

pytestmark = pytest.mark.usefixtures("clean_environment")

LARGE, PLAIN = (replace(TRIPS, name=name) for name in ("events.large", "ops.plain"))
RULES = '[[tables]]\nmatch = "events.*"\nresource_group = "large"\n'


@pytest.fixture
def context(tmp_path):
    """A waiting plan of a table in the group ``large``, and one of a table without a group."""
    found = context_at(tmp_path, rules=RULES)
    for ref in (LARGE, PLAIN):
        table = configure_table(found.config, ref)
        found.store.register_table(ref, "compact", table.owner, table.tags, table.resource_group)
        add(found.store, "dt=1", table=ref)
        found.store.register_table(ref, "compact", table.owner, table.tags, table.resource_group)
    yield found
    found.store.close()


def store_of(home, *groups):
    """The same database as an executor of these groups opens it; of all groups without any."""
    store = store_at(home)
    store.use_settings(StoreSettings(resource_groups=frozenset(groups) or None))
    return store


def register(store, name, groups=None, **facts):
    told = {"role": "executor", "host": "h", "version": "1", "slots": 1, "spark": "running", **facts}
    store.register_process(ProcessFacts(name=name, resource_groups=groups, **told), timedelta(seconds=30))


@pytest.mark.parametrize(
    ("groups", "taken"),
    [
        (("large",), ["events.large"]),
        (("default",), ["ops.plain"]),
        (("large", "default"), ["events.large", "ops.plain"]),
        ((), ["events.large", "ops.plain"]),
        (("other",), []),
    ],
)
def test_an_executor_claims_plans_of_its_groups_only(context, tmp_path, groups, taken):
    store, found = store_of(tmp_path, *groups), []
    assert (store.time_until_due() is not None) == bool(taken)
    while (claim := store.claim("e1")) is not None:
        found.append(claim.plan.table.name)
    assert sorted(found) == taken
    store.close()


def test_an_executor_of_another_group_takes_over_a_plan_whose_executor_died(context, tmp_path):
    large, other = store_of(tmp_path, "large"), store_of(tmp_path, "other")
    claim = large.claim("dead")
    lease_runs_out(f"sqlite:///{tmp_path}/lakefold.db", claim.plan.plan_id)
    taken = other.take_over_expired("e2")
    assert taken.plan.plan_id == claim.plan.plan_id
    large.close()
    other.close()


def test_a_group_without_a_live_executor_is_named_by_command_page_and_api(context, run):
    store = context.store
    register(store, "e1", "default", problem=None)
    register(store, "e2", "large", spark="broken", problem="no jars")
    says = "1 plan waits: no live executor serves the resource group large; start one with lakefold worker "
    _, text, _ = run("status")
    assert says + "--resource-group large." in text
    with client_of(context) as client:
        assert [one["group"] for one in client.get("/v1/status").json()["unserved_groups"]] == ["large"]
        page = client.get("/").text
        assert "no live executor serves the resource group large" in page
        (plan,) = client.get("/v1/plans", params={"table": "events.large"}).json()["items"]
        shown = client.get(f"/v1/plans/{plan['plan_id']}").json()
        assert "resource group large" in shown["no_executor_reason"]
        assert "resource group large" in client.get(f"/plans/{plan['plan_id']}").text
        (other,) = client.get("/v1/plans", params={"table": "ops.plain"}).json()["items"]
        assert client.get(f"/v1/plans/{other['plan_id']}").json()["no_executor_reason"] is None
        processes = {one["name"]: one["resource_groups"] for one in client.get("/v1/processes").json()["items"]}
        assert processes == {"e1": ["default"], "e2": ["large"]}


def test_no_group_is_named_while_an_executor_serves_all_or_none_runs(context, run):
    assert json.loads(run("status", "--json")[1])["unserved_groups"] == [], "no executor at all is the line"
    register(context.store, "e1", None)
    assert json.loads(run("status", "--json")[1])["unserved_groups"] == []


def test_the_option_of_a_worker_replaces_the_setting(tmp_path):
    path = tmp_path / "lakefold.toml"
    path.write_text('[daemon]\nresource_groups = ["a"]\n')
    config = load_config(path)
    assert store_settings(config).resource_groups == {"a"}
    assert store_settings(with_resource_groups(config, ["b", "c"])).resource_groups == {"b", "c"}
    with pytest.raises(ConfigError, match="--resource-group"):
        with_resource_groups(config, ["two words"])

# SPDX-License-Identifier: Apache-2.0
"""Tables that a changed configuration no longer names, or names differently, and their waiting plans."""

from dataclasses import replace

import pytest
from daemon_toys import write_config
from toys.timeline_tables import create

from executors.observer import Observer
from lake.plan import PlanState
from service.control.config.catalog import Catalog
from service.control.config.loader import load_config
from service.server.daemon.maintenance import Maintenance
from service.server.daemon.scheduler import Scheduler
from service.server.observability.metrics import Metrics


@pytest.fixture
def config_file(tmp_path):
    """A configuration that names one toy table, ``t1``, by its path, and has a rule for every table."""
    create(tmp_path / "lake" / "t1", name="t1")
    return write_config(tmp_path)


def without(file, *sections):
    """Take ``sections`` out of ``file``."""
    parts = file.read_text().split("\n\n")
    file.write_text("\n\n".join(part for part in parts if not part.strip().startswith(sections)))


def look(file, store):
    """What a scheduler does that was started with ``file``."""
    config = load_config(file)
    catalog = Catalog(config, registered=store.table_states)
    scheduler = Scheduler(config, store, catalog, Metrics("scheduler"), is_leader=lambda: True, actor="scheduler")
    scheduler.tick(all_tables=True)
    scheduler.answer_requests()
    scheduler.wait()
    scheduler.stop()


def planned(store):
    (plan,) = store.plans(state=PlanState.REQUESTED)
    return plan.plan_id


def test_plans_of_a_table_whose_source_is_removed_are_cancelled_with_that_reason(toys, config_file, store):
    look(config_file, store)
    plan = planned(store)
    without(config_file, "[[sources]]")
    look(config_file, store)
    ended = store.plan(plan)
    assert (ended.state, ended.error) == (PlanState.CANCELLED, "no source of the configuration covers t1")
    assert (store.plans(state=PlanState.REQUESTED), store.locked_partitions("t1")) == ([], {})
    assert store.table_state("t1").mode == "compact", "the rules still say so, of whatever is asked for by its path"


def test_a_plan_that_runs_meanwhile_is_cancelled(toys, config_file, store):
    look(config_file, store)
    claim = store.claim("an executor")
    without(config_file, "[[sources]]")
    look(config_file, store)
    assert store.heartbeat(claim), "a cancel was asked for"


def test_a_rule_that_is_removed_with_its_source_holds_no_longer(toys, config_file, store):
    look(config_file, store)
    without(config_file, "[[sources]]", "[[tables]]")
    look(config_file, store)
    assert store.table_state("t1").mode == "observe"
    assert store.plans(state=PlanState.REQUESTED) == []


def test_a_plan_requested_by_a_path_outside_all_sources_continues(toys, config_file, store, tmp_path, monkeypatch):
    monkeypatch.setattr("service.control.config.catalog.FORMATS", ("toy",))
    without(config_file, "[[sources]]")
    request = store.add_request(str(tmp_path / "lake" / "t1"), actor="ada")
    look(config_file, store)
    plan = planned(store)
    assert store.plan(plan).request_id == request
    look(config_file, store)
    assert planned(store) == plan


def test_no_plan_of_an_unreadable_source_is_cancelled(toys, config_file, store, tmp_path):
    look(config_file, store)
    (tmp_path / "lake").rename(tmp_path / "away")
    look(config_file, store)
    assert planned(store)


def test_only_plans_with_a_tables_present_name_run(toys, config_file, store):
    look(config_file, store)
    old = planned(store)
    config_file.write_text(config_file.read_text().replace("[[sources]]\n", '[[sources]]\nname = "trips"\n'))
    look(config_file, store)
    assert (store.plan(old).state, store.plan(old).error) == (PlanState.CANCELLED, "t1 is called trips now")
    assert store.plan(planned(store)).table == "trips"


def test_the_services_of_a_table_that_no_source_names_are_not_run(toys, config_file, store, monkeypatch):
    ran = []
    monkeypatch.setattr(
        "service.server.daemon.maintenance.capabilities.require_capability",
        lambda adapter, table, what: ran.append(table.name),
    )
    config_file.write_text(config_file.read_text().replace("[defaults]\n", '[defaults]\ntable_services = ["clean"]\n'))
    config = load_config(config_file)
    known = next(iter(Catalog(config).tables()))
    store.register_table(known.ref, "compact")
    store.register_table(replace(known.ref, name="elsewhere", location="/elsewhere"), "compact")
    Maintenance(config, store, lambda: None, Observer()).run_table_services()
    assert ran == ["t1"]

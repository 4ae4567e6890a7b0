# SPDX-License-Identifier: Apache-2.0
"""What executors do while a table is being scanned, on toy tables and a real database."""

import shutil

import daemon_toys
import pytest
from daemon_toys import write_config
from toys.files import base
from toys.timeline import ToyFormat
from toys.timeline_tables import create

from executors.context import RunContext
from executors.outcome import RunResult
from executors.worker import Worker
from lake.errors import Rejected
from lake.plan import PlanKind, PlanState
from service.control.config.catalog import Catalog
from service.control.config.loader import load_config
from service.control.config.table_settings import configure_table
from service.control.planning.requests import serve_request
from service.control.planning.scan import scan_and_plan
from service.control.store import DatabaseUnreachable, Store


def test_a_plan_that_ends_between_snapshot_and_planning_is_not_planned_again_from_the_files_it_replaced(
    toys, tmp_path, store, monkeypatch
):
    ref = create(tmp_path / "lake" / "t1", name="t1")
    config = load_config(write_config(tmp_path))
    table = configure_table(config, ref)
    scan_and_plan(config, store, table, actor="test")
    [plan] = store.plans()
    look = toys.snapshot

    def late(table, partitions=None):
        seen = look(table, partitions)
        assert Worker(RunContext(store=store, spark=lambda: None)).run_once() == {RunResult.COMPLETED: 1}
        return seen

    with monkeypatch.context() as patch:
        patch.setattr(toys, "snapshot", late)
        assert scan_and_plan(config, store, table, actor="test").plan_ids == ()
    assert scan_and_plan(config, store, table, actor="test").outcome == "nothing"
    assert [(view.plan_id, view.state) for view in store.plans()] == [(plan.plan_id, PlanState.COMPLETED)]


@pytest.mark.parametrize("meanwhile", ["nothing", "executed", "paused"])
@pytest.mark.parametrize("lost", ["the second plan", "the answer"])
def test_the_answer_to_a_request_names_the_plans_that_were_stored_before_a_database_outage(
    toys, tmp_path, store, monkeypatch, lost, meanwhile
):
    create(tmp_path / "lake" / "t1", name="t1")
    config = load_config(write_config(tmp_path))
    tables = Catalog(config)
    request_id = store.add_request("t1", overrides={"max_num_groups": 1}, actor="test")
    stored = []

    def lose(*args, **kwargs):
        raise DatabaseUnreachable("the database went away")

    def add(plan, **kwargs):
        if stored:
            lose()
        stored.append(plan)
        Store.add_plan(store, plan, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(store, *(("add_plan", add) if lost == "the second plan" else ("answer_request", lose)))
        with pytest.raises(DatabaseUnreachable):
            serve_request(config, store, tables, store.request(request_id))
    before = {plan.plan_id for plan in store.plans()}
    assert len(before) == (1 if lost == "the second plan" else 2)
    if meanwhile == "executed":
        done = Worker(RunContext(store=store, spark=lambda: None)).run_once()
        assert done == {RunResult.COMPLETED: len(before)}
    elif meanwhile == "paused":
        store.pause("t1", "ada")
    answer = serve_request(config, store, tables, store.request(request_id))
    assert (answer.outcome, answer.problem) == ("planned", None)
    assert f"created {len(before)} plan" in answer.text
    assert before <= set(answer.plan_ids) == {plan.plan_id for plan in store.plans()}
    assert len(answer.plan_ids) == (1 if (lost, meanwhile) == ("the second plan", "paused") else 2)
    assert store.request(request_id).plan_ids == answer.plan_ids


class Tagged(ToyFormat):
    """The toy format, whose tables carry who they are in a file."""

    def identity(self, table):
        return (base(table) / "uuid").read_text()


def test_a_recreated_table_is_recognized_by_the_next_scan_and_its_plans_are_for_the_new_one(
    toys, tmp_path, store, caplog
):
    ref = create(tmp_path / "lake" / "t1", name="t1")
    config = load_config(write_config(tmp_path))
    (base(ref) / "uuid").write_text("old")
    daemon_toys.install(Tagged())
    scan_and_plan(config, store, configure_table(config, ref), actor="test")
    worker = Worker(RunContext(store=store, spark=lambda: None))
    assert (store.table_state("t1").ref.identity, worker.run_once()) == ("old", {RunResult.COMPLETED: 1})
    shutil.rmtree(base(ref))
    create(tmp_path / "lake" / "t1", name="t1")
    (base(ref) / "uuid").write_text("new")
    scan_and_plan(config, store, configure_table(config, ref), actor="test")
    assert "t1 was made anew: its identity is new now, and was old" in caplog.text
    claim = store.claim("test")
    assert (store.table_state("t1").ref.identity, claim.plan.table.identity) == ("new", "new")
    assert {due.table_identity for due in store.awaiting_deletion(ref)} == {"old"}


def test_a_compaction_is_refused_to_a_table_whose_format_has_none(toys, tmp_path, store, monkeypatch):
    ref = create(tmp_path / "lake" / "t1", name="t1")
    config = load_config(write_config(tmp_path))
    request_id = store.add_request("t1", actor="test", kind=PlanKind.COMPACTION)
    monkeypatch.setattr(toys, "capabilities", frozenset())
    with pytest.raises(Rejected, match=r"^t1: toy tables have no compaction, lakefold can't do that here$"):
        scan_and_plan(config, store, configure_table(config, ref), request=store.request(request_id), actor="test")
    assert store.plans() == []

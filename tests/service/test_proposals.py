# SPDX-License-Identifier: Apache-2.0
"""Mode propose: what scans propose waits for approval, is replaced where it went stale, and a no is remembered."""

from datetime import timedelta
from pathlib import Path

import pytest
from daemon_toys import write_config
from databases import store_at
from store_plans import sql
from toy_homes import explained
from toys.files import rows
from toys.timeline_tables import append_log, create, table_rows, write

from lake.plan import PlanState, ProposalDecision
from service.control import serializers
from service.control.config.loader import load_config
from service.control.lake_cache import read_lake_state
from service.control.planning.plan_request import PlanRequest, PlanResponse
from service.control.planning.requests import raise_if_refused, submit_and_wait
from service.control.store import PlanView
from service.problems import ProblemError
from service.server.daemon.process import Daemon
from service.server.observability.stored_metrics import StoredFigures

pytestmark = pytest.mark.slow


class Home:
    """One toy table with a database and a configuration."""

    def __init__(self, path: Path) -> None:
        self.path, self.mode = path, "propose"
        self.concurrency: str | None = "single_writer"
        self.policy: dict[str, object] = {}
        self.ref = create(path / "lake" / "t1", name="t1")
        self.store = store_at(path)

    def daemon(self, role: str) -> Daemon:
        """A daemon under today's configuration."""
        file = write_config(self.path, mode=self.mode, concurrency=self.concurrency, policy=self.policy)
        return Daemon(load_config(file), role)

    def scan(self) -> list[PlanView]:
        """Scan once and run what may run; all plans, the newest first."""
        with self.daemon("all") as daemon:
            daemon.run_once()
        return self.store.plans()

    def request(self, *partitions: str, dry_run: bool = False) -> PlanResponse:
        """What a person's request is answered."""
        with self.daemon("scheduler") as daemon:
            table, config = daemon.scheduler._catalog.find("t1"), load_config(self.path / "lakefold.toml")
            raise_if_refused(config, self.store, table, partitions or None)
            wanted = PlanRequest(partitions=partitions or None, kind=None, overrides={}, dry_run=dry_run)
            return submit_and_wait(config, self.store, table, wanted, actor="ada", timeout_seconds=60)

    def explain(self) -> set[tuple[str, str]]:
        """Reasons, and what changes them, that ``tables explain`` prints."""
        with self.daemon("scheduler") as daemon:
            return explained(daemon)

    def change_a_file(self) -> str:
        """What a writer does to a file that is proposed; its path."""
        path = str(self.store.proposals("t1")[0].slices[0].path)
        append_log(self.ref, path, rows(0, 1))
        return path


@pytest.fixture
def home(toys, tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_a_proposal_runs_only_after_its_approval(home):
    before = table_rows(home.ref)
    (plan,) = home.scan()
    assert plan.waits_for_approval
    assert [found.plan_id for found in home.scan()] == [plan.plan_id], "nothing changed, so it is proposed once"
    assert home.explain() == {(f"held by live plan {plan.plan_id}", "")}
    home.store.approve(plan.plan_id, "ada")
    (done,) = home.scan()
    assert (done.state, done.decision) == (PlanState.COMPLETED, ProposalDecision.APPROVED)
    assert table_rows(home.ref) == before


def test_proposals_are_in_status_and_metrics(home):
    (plan,) = home.scan()
    lake = read_lake_state(home.store)
    found = serializers.status(lake)
    assert (found["requested"], found["proposed"], found["backlog_bytes"]) == (1, 1, 0)
    assert found["oldest_proposed_at"] == plan.proposed_at
    assert "0 waiting · 1 to approve" in serializers.summary_line(found)
    assert [(entry["table"], entry["proposed"]) for entry in found["attention"]] == [("t1", 1)]
    stored = StoredFigures()
    stored.publish(lake)
    samples = {family.name: family.samples for family in stored.collect()}
    (age,) = samples["lakefold_plan_oldest_proposal_timestamp_seconds"]
    assert age.value == plan.proposed_at.timestamp()
    (waiting,) = {spec.name: columns for spec, columns in stored.tables.families()}["lakefold_plan_proposals"]
    assert list(waiting.tables) == [("t1", "toy")]
    assert list(waiting.values) == [1]


def test_a_stale_proposal_is_replaced_by_its_successor(home):
    (old,) = home.scan()
    path = home.change_a_file()
    new, ended = home.scan()
    assert new.waits_for_approval
    assert (ended.plan_id, ended.state, ended.decision) == (old.plan_id, PlanState.CANCELLED, None)
    assert ended.cancel_reason == f"replaced by plan {new.plan_id}: 1 of its 6 files changed, such as {path}"


def test_other_settings_make_a_proposal_stale(home):
    (old,) = home.scan()
    home.policy = {"verification": "footer"}
    new, ended = home.scan()
    assert new.waits_for_approval
    assert ended.plan_id == old.plan_id
    assert ended.cancel_reason == f"replaced by plan {new.plan_id}: the settings of its table changed"


def test_new_files_beside_a_proposal_do_not_replace_it(home):
    (plan,) = home.scan()
    write(home.ref, "dt=0", rows(1000, 1010))
    assert [found.plan_id for found in home.scan()] == [plan.plan_id]
    home.store.approve(plan.plan_id, "ada")
    assert home.scan()[-1].state is PlanState.COMPLETED


def test_a_stale_proposal_without_a_successor_is_withdrawn(home):
    home.scan()
    home.policy = {"min_input_files": 50}
    (plan,) = home.scan()
    assert plan.state is PlanState.CANCELLED
    assert plan.cancel_reason == "withdrawn: the settings of its table changed"


def test_a_declined_proposal_is_not_made_again_until_its_files_change_and_explain_names_the_user(home):
    (plan,) = home.scan()
    home.store.decline(plan.plan_id, "ada", "month end")
    assert [found.plan_id for found in home.scan()] == [plan.plan_id]
    said = f"declined: month end (by ada, plan {plan.plan_id}); to rewrite it nevertheless: lakefold plans request"
    assert home.explain() == {(said, "lakefold plans request")}
    last = home.store.last_scan("t1")
    assert (last.skipped["declined"], last.reducible_files) == (6, 6)
    sql(home.store.url, f"UPDATE plan SET finalized_at_ms = finalized_at_ms - {91 * 86_400_000}")
    assert [found.plan_id for found in home.scan()] == [plan.plan_id]
    assert home.store.prune(timedelta(days=90)) == 0, "it is not forgotten while files are left alone for it"
    paths = [str(item.path) for item in home.store.declined_plans("t1", rounds_digest(home))[0].slices]
    for path in paths:
        append_log(home.ref, path, rows(0, 1))
    again, declined = home.scan()
    assert again.waits_for_approval
    assert (declined.state, declined.epoch) == (PlanState.CANCELLED, 0)


def rounds_digest(home: Home) -> str:
    """What declined plans of the table are remembered under."""
    with home.daemon("scheduler") as daemon:
        return daemon.scheduler._catalog.find("t1").settings_digest


def test_a_request_also_approves_declined_plans(home):
    (plan,) = home.scan()
    home.store.decline(plan.plan_id, "ada")
    answer = home.request()
    assert answer.outcome == "planned"
    made, declined = home.scan()
    assert (made.plan_id, made.state, made.proposed_at) == (answer.plan_ids[0], PlanState.COMPLETED, None)
    assert (declined.state, declined.epoch) == (PlanState.CANCELLED, 0)


def test_a_request_replaces_proposals_for_its_partitions_and_a_dry_run_does_not(home):
    (plan,) = home.scan()
    assert home.request("dt=0", dry_run=True).outcome == "dry_run"
    assert home.store.plan(plan.plan_id).waits_for_approval
    answer = home.request("dt=0")
    ended = home.store.plan(plan.plan_id)
    assert ended.cancel_reason == f"replaced by plan {answer.plan_ids[0]}: ada asked for plans"
    assert home.store.locked_partitions("t1") == {"dt=0": answer.plan_ids[0]}
    newest = home.scan()[0]
    assert newest.waits_for_approval, "what the request left is proposed"
    assert home.store.plan(newest.plan_id).partitions == ("dt=1",)


def test_a_proposal_that_fills_its_tables_budget_is_replaced_like_any_other(home):
    (first,) = home.scan()
    home.policy = {"budget_bytes_per_day": f"{first.input_bytes}B"}
    second, ended = home.scan()
    assert second.waits_for_approval
    assert ended.cancel_reason == f"replaced by plan {second.plan_id}: the settings of its table changed"
    write(home.ref, "dt=2", rows(1000, 1010))
    write(home.ref, "dt=2", rows(1010, 1020))
    assert [plan.waits_for_approval for plan in home.scan()] == [True, False], "no more than the budget is proposed"
    answer = home.request("dt=0")
    assert answer.outcome == "planned"
    ended = home.store.plan(second.plan_id)
    assert ended.cancel_reason == f"replaced by plan {answer.plan_ids[0]}: ada asked for plans"


@pytest.mark.parametrize("mode", ["compact", "observe"])
def test_another_mode_takes_proposals_back(home, mode):
    (plan,) = home.scan()
    home.mode = mode
    plans = home.scan()
    ended = home.store.plan(plan.plan_id)
    assert (ended.state, ended.epoch) == (PlanState.CANCELLED, 0)
    assert f"t1 is in mode {mode} now" in ended.cancel_reason
    assert [found.state for found in plans[:-1]] == ([PlanState.COMPLETED] if mode == "compact" else [])


def test_mode_compact_needs_no_approval_so_an_earlier_decline_does_not_apply(home):
    (plan,) = home.scan()
    home.store.decline(plan.plan_id, "ada")
    home.mode = "compact"
    made, declined = home.scan()
    assert made.state is PlanState.COMPLETED
    assert (declined.plan_id, declined.state) == (plan.plan_id, PlanState.CANCELLED)


def test_a_paused_table_keeps_its_proposals(home):
    (plan,) = home.scan()
    home.store.pause("t1", "ada")
    home.change_a_file()
    assert [found.waits_for_approval for found in home.scan()] == [True]
    home.store.resume("t1", "ada")
    assert home.scan()[0].plan_id != plan.plan_id


def test_the_writers_must_be_declared_in_mode_propose_too(home):
    home.concurrency = None
    assert home.scan() == []
    assert home.store.last_scan("t1").not_planned.startswith("mode propose needs concurrency to be set")
    with pytest.raises(ProblemError, match="mode propose needs concurrency to be set"):
        home.request()

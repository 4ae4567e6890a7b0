# SPDX-License-Identifier: Apache-2.0
"""Plans and requests past their time, on SQLite and PostgreSQL: what goes, what stays, and what must not shrink."""

from dataclasses import replace
from datetime import timedelta

import pytest
from store_plans import TRIPS, add, claimed, commit_of, figures_of, make_plan, sql

from lake.plan import LocatedFile, PlanState, Relocation, StagedWork
from service.control.store import NotFound, Store
from service.control.store.plan_creation import QueueEntry

pytestmark = pytest.mark.paired("database_url")

KEEP = timedelta(days=90)
LONG_AGO = 91 * 86_400_000


@pytest.fixture
def store(store: Store) -> Store:
    store.register_table(TRIPS, "compact")
    return store


def completed(store: Store, partition: str, *, deleted: bool = True) -> str:
    """A completed plan, its superseded versions deleted or not."""
    plan = add(store, partition)
    commit = commit_of(plan)
    store.complete(claimed(store), commit, figures_of(plan), {"rewrite": 5})
    if deleted:
        store.mark_deleted([due.row_id for due in store.awaiting_deletion(TRIPS) if due.plan_id == plan.plan_id])
    return plan.plan_id


def ages(url: str) -> None:
    """Everything there now ended a long time ago."""
    sql(url, f"UPDATE plan SET finalized_at_ms = finalized_at_ms - {LONG_AGO} WHERE finalized_at_ms IS NOT NULL")
    sql(url, f"UPDATE plan_request SET answered_at_ms = answered_at_ms - {LONG_AGO} WHERE answered_at_ms IS NOT NULL")


def prune(store: Store) -> int:
    """Until nothing is left to forget; how many went."""
    total = 0
    while pruned := store.prune(KEEP):
        total += pruned
    return total


def rows(url: str, table: str) -> int:
    return int(sql(url, f"SELECT count(*) FROM {table}")[0][0])


def test_a_plan_past_its_time_goes_with_all_that_belongs_to_it_and_the_figures_stay(
    store: Store, database_url: str
) -> None:
    old = [completed(store, f"dt={day}") for day in (1, 2)]
    failed = add(store, "dt=3").plan_id
    store.fail(claimed(store), "broken")
    ages(database_url)
    young, live = completed(store, "dt=4"), add(store, "dt=5").plan_id
    before = store.figures()
    assert prune(store) == 3
    for plan_id in (*old, failed):
        with pytest.raises(NotFound):
            store.plan(plan_id)
    assert {plan.plan_id for plan in store.plans()} == {young, live}
    assert store.plan_events(young)
    for table in ("plan_group", "plan_event", "superseded_version"):
        assert sql(database_url, f"SELECT count(*) FROM {table} WHERE plan_id NOT IN ('{young}', '{live}')")[0][0] == 0
    after = store.figures()
    assert after.plans == before.plans
    assert (after.files_removed, after.bytes_rewritten) == (before.files_removed, before.bytes_rewritten)
    assert after.count(PlanState.COMPLETED) == 3
    ages(database_url)
    assert prune(store) == 1
    assert store.figures().plans == before.plans, "totals add up"


def test_a_plan_whose_superseded_versions_wait_for_their_deletion_stays(store: Store, database_url: str) -> None:
    plan_id = completed(store, "dt=1", deleted=False)
    ages(database_url)
    assert prune(store) == 0
    store.mark_deleted([due.row_id for due in store.awaiting_deletion(TRIPS)])
    assert prune(store) == 1
    assert store.plan_state(plan_id) is None


def relocated(store: Store, number: int, left: str) -> Relocation:
    """A completed plan that has moved its partition from ``left`` to a version; its superseded version is deleted."""
    plan = add(store, "dt=1")
    token = f"v{number}"
    new = LocatedFile(path=f"{token}/dt=1/new.parquet", bytes=9, modified_ms=9_000)
    move = Relocation(
        partition="dt=1",
        token=token,
        previous_location=left,
        location=f"{token}/dt=1",
        files=(new,),
        partition_created_at=7,
    )
    commit = replace(commit_of(plan, token), relocations=(move,))
    store.complete(claimed(store), commit, figures_of(plan), {"rewrite": 5})
    store.mark_deleted([due.row_id for due in store.awaiting_deletion(TRIPS) if due.plan_id == plan.plan_id])
    return move


def test_the_plan_of_a_partitions_latest_relocation_stays_so_that_the_partition_can_leave_its_version(
    store: Store, database_url: str
) -> None:
    """Without the plan, the files that the partition leaves in its version were not recorded, so never deleted."""
    first = relocated(store, 1, "dt=1")
    ages(database_url)
    assert prune(store) == 0
    (known,) = store.relocated_partitions(TRIPS)
    assert known.latest == first
    home = LocatedFile(path="dt=1/carried.parquet", bytes=9, modified_ms=9_000)
    back = Relocation(
        partition="dt=1",
        token="back",
        previous_location=first.location,
        location="dt=1",
        files=(home,),
        partition_created_at=7,
    )
    store.begin_relocation(TRIPS, back, known.plan_id, first.files)
    assert prune(store) == 0
    store.end_relocation(TRIPS, back)
    assert [due.version.path for due in store.awaiting_deletion(TRIPS)] == [first.files[0].path]
    (former,) = store.relocated_partitions(TRIPS)[0].previous_locations
    assert former.expected_files == first.files, "a late append there is one, and no ambiguous file"


def test_the_plans_of_earlier_relocations_stay_so_that_late_files_in_former_directories_are_recorded(
    store: Store, database_url: str
) -> None:
    """Without the plan no such file was recorded, so a halt because of it came again after ``--keep current``."""
    left = "dt=1"
    for number in range(1, 6):
        left = relocated(store, number, left).location
    ages(database_url)
    assert prune(store) == 0
    home = store.relocated_partitions(TRIPS)[0].previous_locations[0]
    assert home.location == "dt=1"
    late = LocatedFile(path="dt=1/late.parquet", bytes=9, modified_ms=9_000)
    store.supersede_files(TRIPS, "dt=1", home, [late])
    assert [(due.version.path, due.plan_id) for due in store.awaiting_deletion(TRIPS)] == [(late.path, home.plan_id)]
    store.mark_deleted([due.row_id for due in store.awaiting_deletion(TRIPS)])
    sql(database_url, "UPDATE place_move SET begun_at_ms = 1, made_at_ms = 1")
    sql(database_url, "UPDATE superseded_version SET deleted_at_ms = 1")
    ((past,), _) = store.relocation_histories(TRIPS, timedelta(days=30), "", 10)
    assert store.prune_relocations(TRIPS, [past.relocations[1].relocation_id]) == 1
    assert prune(store) == 1, "no relocation names the second plan any longer"


def test_a_plan_stays_while_files_that_an_attempt_has_staged_may_be_left_or_appear(
    store: Store, database_url: str
) -> None:
    """The record of the staged files is deleted with the plan, and without it the sweep never finds these files."""
    plans = {}
    for partition, paths in {"dt=1": ("stage/a-",), "dt=2": ("stage/b-",), "dt=3": ()}.items():
        plans[partition] = add(store, partition).plan_id
        claim = claimed(store)
        store.record_staged(claim, StagedWork(token=partition, paths=paths))
        store.fail(claim, "broken")
    store.clear_stagings([one for one in store.orphaned_stagings(TRIPS) if one.plan_id == plans["dt=2"]])
    ages(database_url)
    assert prune(store) == 2, "the second one is cleared; a format with a timeline finds the files of the third itself"
    (left,) = store.orphaned_stagings(TRIPS)
    assert (left.plan_id, left.staged.paths) == (plans["dt=1"], ("stage/a-",))
    store.clear_stagings([left])
    assert (prune(store), rows(database_url, "staged")) == (1, 0)


def test_live_plans_of_any_age_stay(store: Store, database_url: str) -> None:
    add(store, "dt=1")
    add(store, "dt=2")
    claimed(store)
    sql(database_url, f"UPDATE plan SET created_at_ms = created_at_ms - {LONG_AGO}")
    assert prune(store) == 0


def test_an_answered_request_goes_after_its_plans_and_an_open_one_stays(store: Store, database_url: str) -> None:
    answered, planned, waiting = (store.add_request(TRIPS.name, actor="ada") for _ in range(3))
    for request_id in (answered, planned):
        store.answer_request(request_id, answer={"outcome": "nothing"})
    plan_id = completed(store, "dt=1", deleted=False)
    sql(database_url, f"UPDATE plan SET request_id = '{planned}' WHERE id = '{plan_id}'")
    ages(database_url)
    assert prune(store) == 1
    with pytest.raises(NotFound):
        store.request(answered)
    assert store.request(planned).answer is not None
    store.mark_deleted([due.row_id for due in store.awaiting_deletion(TRIPS)])
    assert prune(store) == 2
    assert [request.request_id for request in store.open_requests()] == [waiting]


def test_each_call_prunes_a_bounded_number(store: Store, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.control.store.pruning._BATCH_SIZE", 2)
    for day in range(5):
        completed(store, f"dt={day}")
    ages(database_url)
    assert [store.prune(KEEP) for _ in range(4)] == [2, 2, 1, 0]
    assert rows(database_url, "plan_total") == 1


def test_a_declined_proposal_is_kept_while_scans_leave_its_files_alone(store: Store, database_url: str) -> None:
    plans = [make_plan(f"dt={day}") for day in (1, 2)]
    for plan in plans:
        store.add_plan(
            plan,
            request_id=None,
            actor="scheduler",
            estimate={},
            settings_digest="s",
            queued=QueueEntry(needs_approval=True),
        )
        store.decline(plan.plan_id, "ada")
    ages(database_url)
    held = plans[0].plan_id
    store.record_declines_in_effect([held])
    spared = sql(database_url, f"SELECT spared_at_ms FROM plan WHERE id = '{held}'")[0][0]
    store.record_declines_in_effect([held])  # a scan in the same hour writes nothing
    assert sql(database_url, f"SELECT spared_at_ms FROM plan WHERE id = '{held}'")[0][0] == spared
    assert prune(store) == 1
    assert [plan.plan_id for plan in store.declined_plans(TRIPS.name, "s")] == [held]
    sql(database_url, f"UPDATE plan SET spared_at_ms = spared_at_ms - {LONG_AGO}")
    assert prune(store) == 1
    assert store.declined_plans(TRIPS.name, "s") == []

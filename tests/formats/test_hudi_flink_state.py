# SPDX-License-Identifier: Apache-2.0
"""Tables that a Flink job upserts, whose index is in its state: compacted, never clustered."""

import re
from pathlib import Path

import pytest
from hudi_writing import ARCHIVING, FORMAT, NewTable, insert

from lake.errors import Rejected
from lake.formats.hudi.read.flink_state import find_flink_index
from lake.formats.hudi.timeline.timeline import Timeline
from lake.plan import Plan, PlanKind
from planner.planner import plan_table
from planner.policy.policy import SizingPolicy
from planner.result import PlanningResult

pytestmark = pytest.mark.spark
#: what Flink's sink leaves in a table; a job with a client id adds it to the name
CHECKPOINTS = ".hoodie/.aux/ckp_meta"
REASON = (
    r"\.hoodie/\.aux/ckp_meta shows that Flink upserts the table: .*; leave the table out, or, .* hoodie\.index\.type"
)


def test_a_copy_on_write_table_that_flink_upserts_is_refused_unless_its_index_is_named(table: NewTable) -> None:
    trips = table()
    (Path(trips.base) / CHECKPOINTS).mkdir(parents=True)
    FORMAT.check(trips.ref)  # bulk inserts need no index
    trips.upsert(0, 60, 1, "id % 9 = 0")
    with pytest.raises(Rejected, match=REASON):
        FORMAT.check(trips.ref)
    trips.options["hoodie.index.type"] = "BLOOM"
    FORMAT.check(trips.ref)


def test_a_table_whose_upserts_by_flink_are_all_archived_is_refused_too(
    table: NewTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job may resume from a checkpoint of before: its keys are in the checkpoint's state."""
    trips = table()
    trips.upsert(0, 60, 1, "id % 9 = 0")
    insert(trips, 8, **ARCHIVING | {"hoodie.clean.automatic": "true"})
    active = [trips.timeline().metadata(commit) or {} for commit in trips.timeline().commits]
    assert {record.get("operationType") for record in active} == {"INSERT"}
    FORMAT.check(trips.ref)
    (Path(trips.base) / CHECKPOINTS).mkdir(parents=True)
    with pytest.raises(Rejected, match=REASON):
        FORMAT.check(trips.ref)
    monkeypatch.setattr(Timeline, "archived", None)
    assert find_flink_index(trips.timeline(), {}), "the archive is read once"


def test_a_merge_on_read_table_that_flink_upserts_is_compacted_and_not_clustered(table: NewTable) -> None:
    trips = table("mor")
    (Path(trips.base) / f"{CHECKPOINTS}_7").mkdir(parents=True)
    trips.upsert(0, 60, 3, "id % 9 = 0")
    FORMAT.check(trips.ref)
    before, instants = trips.rows(), trips.timeline().instants
    with pytest.raises(Rejected, match=REASON.replace("ckp_meta", "ckp_meta_7")):
        trips.run(trips.plan())
    assert trips.timeline().instants == instants
    trips.proved(trips.compaction())
    assert trips.rows() == before
    with pytest.raises(Rejected, match="Flink upserts the table"):
        trips.run(trips.plan("0198-after-the-compaction"))


def test_a_table_declared_to_have_flinks_index_is_compacted_and_not_clustered(table: NewTable) -> None:
    trips = table("mor", **{"hoodie.index.type": "FLINK_STATE"})
    before = trips.rows()
    FORMAT.check(trips.ref)
    why = FORMAT.snapshot(trips.ref).clustering_refusal
    assert why is not None
    assert why.startswith(
        "write_options hoodie.index.type = FLINK_STATE: the Flink job remembers each key's file group"
    )
    with pytest.raises(Rejected, match=r"hoodie\.index\.type = FLINK_STATE"):
        trips.run(trips.plan())
    trips.proved(trips.compaction())
    assert trips.rows() == before


def test_no_clustering_is_planned_of_a_merge_on_read_table_that_flink_upserts(table: NewTable) -> None:
    trips = table("mor")
    settings = {"min_input_files": 2, "quiet_period": 0, "compact_log_files": 1}
    policy = SizingPolicy.from_settings(settings)

    def planned() -> PlanningResult:
        snapshot = FORMAT.snapshot(trips.ref)
        return plan_table(snapshot, policy, now=snapshot.taken_at, plan_id="0198-planned")

    def plan_of(found: PlanningResult) -> Plan:
        assert found.plan is not None
        return found.plan

    (Path(trips.base) / CHECKPOINTS).mkdir(parents=True)
    before, compaction = trips.rows(), plan_of(planned())
    assert compaction.kind is PlanKind.COMPACTION
    trips.proved(compaction)
    found = planned()
    assert found.plan is None
    reasons = set(found.reason_texts(range(len(found.decisions))))
    assert len(reasons) == 1
    assert re.search(REASON, reasons.pop())
    assert trips.rows() == before
    trips.options["hoodie.index.type"] = "BLOOM"
    assert plan_of(planned()).kind is PlanKind.CLUSTERING

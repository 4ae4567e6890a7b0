# SPDX-License-Identifier: Apache-2.0
"""Tables of version 6 that their writer upgrades while a plan of lakefold is pending."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hudi_tables import rows, write
from hudi_writing import FORMAT, SIX, Table, ignore

from lake.errors import Transient
from lake.formats.hudi.timeline.timeline import InstantState

pytestmark = pytest.mark.spark
NINE = {"hoodie.write.table.version": "9", "hoodie.write.auto.upgrade": "true"}


def versions(trips: Table) -> Counter[object]:
    """How many rows there are of each version."""
    return Counter(row[5] for row in trips.rows())


@pytest.mark.parametrize("begun", [False, True])
def test_updates_in_logs_named_after_a_pending_compaction_are_read_again_after_an_upgrade_to_version_9(
    spark: Any, tmp_path: Path, begun: bool
) -> None:
    trips = Table(spark, tmp_path / "trips")
    write(rows(spark, 0, 60).coalesce(1), trips.base, merge_on_read=True, options=SIX)
    trips.upsert(0, 60, 1, "id % 3 = 0", **SIX)
    plan = trips.compaction()
    with trips.writer() as writer:
        prepared = writer.prepare(plan, 1)
        if begun:
            writer.rewrite(prepared, ignore)
        trips.upsert(0, 60, 2, "id % 5 = 0", **SIX)
        before = versions(trips)
        trips.upsert(1000, 1010, 0, **NINE)
        with pytest.raises(Transient, match="was opened"):
            writer.withdraw(plan.plan_id, None)
    assert trips.timeline().layout == 2
    with trips.writer() as writer:
        writer.withdraw(plan.plan_id, None)
        pending = trips.timeline().find(prepared.instant, action="commit")
        assert pending is not None
        assert pending.state is InstantState.REQUESTED
        assert [entry.must_execute for entry in FORMAT.pending_actions(trips.ref)] == [True]
        again = writer.prepare(plan, 2)
        assert again.instant == prepared.instant
        writer.commit(writer.rewrite(again, ignore))
    assert versions(trips) == before + Counter({0: 10})
    assert FORMAT.snapshot(trips.ref).damaged == ()
    trips.run(trips.compaction("0198-next"))
    assert versions(trips) == before + Counter({0: 10})

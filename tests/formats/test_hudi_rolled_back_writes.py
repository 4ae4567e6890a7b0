# SPDX-License-Identifier: Apache-2.0
"""An owner who takes completed writes back beside a rewrite of lakefold's.

Hudi plans the rollback of a completed write under the table's lock. It executes it without: it takes the write from the
timeline first, and deletes its files then. A restore looks at the timeline before it waits for the lock.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hudi_tables import rows, write
from hudi_writing import FORMAT, LOCK, SIX, NewTable, Table, ignore
from test_hudi_final_check import save

from lake.errors import Conflict, LakefoldError, Rejected
from lake.formats.hudi.client.client import HudiClient
from lake.plan import PlanKind

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def begin_to_unwrite(client: HudiClient) -> Callable[[], None]:
    """Schedule the rollback of the newest write and take that from the timeline, as Hudi does; what ends it."""
    create = client.jvm.org.apache.hudi.table.HoodieSparkTable.create
    table = create(client.write_config, client.context)
    written = table.getCompletedCommitsTimeline().lastInstant().get()
    time = client.new_instant()
    assert table.scheduleRollback(client.context, time, written, False, True, False).isPresent()
    inflight = client.meta.reloadActiveTimeline().revertToInflight(written)

    def end() -> None:
        create(client.write_config, client.context).rollback(client.context, time, inflight, True, False)

    return end


def test_no_compaction_is_committed_with_rows_that_an_owner_is_rolling_back(table: NewTable) -> None:
    trips = table("mor", **LOCK)
    before = trips.rows()
    trips.upsert(0, 120, 5, "id % 3 = 0")
    with trips.writer() as writer, trips.writer() as owner:
        rewrite = writer.rewrite(writer.prepare(trips.compaction(), 1), ignore)
        end = begin_to_unwrite(owner._open())
        refused = None
        try:
            writer.commit(rewrite)
        except LakefoldError as error:
            refused = error
        end()
    assert trips.rows() == before
    assert refused is not None, trips.timeline().instants


def restore_begun(client: HudiClient, saved: str) -> Callable[[], None]:
    """Load an owner's table as Hudi's restore does before it waits for the table's lock; what does the rest."""
    table = client.jvm.org.apache.hudi.table.HoodieSparkTable.create(client.write_config, client.context)
    table.getActiveTimeline()

    def end() -> None:
        time = client.new_instant()
        assert table.scheduleRestore(client.context, time, saved).isPresent()
        table.restore(client.context, time, saved)

    return end


@pytest.mark.parametrize(
    ("kind", "version"), [(PlanKind.CLUSTERING, "9"), (PlanKind.COMPACTION, "6"), (PlanKind.COMPACTION, "9")]
)
def test_a_table_is_refused_whose_restore_left_a_rewrite_that_completed_while_it_waited_for_the_lock(
    table: NewTable, spark: Any, tmp_path: Path, kind: PlanKind, version: str
) -> None:
    if version == "9":
        trips = table("mor", **LOCK)
    else:
        trips = Table(spark, tmp_path / "trips", LOCK | SIX)
        write(rows(spark, 0, 60).coalesce(1), trips.base, merge_on_read=True, options=trips.options)
        trips.upsert(0, 60, 1, "id % 5 = 1")
    before = trips.rows()
    saved = save(trips)
    trips.upsert(0, 60, 3)
    ends: list[Callable[[], None]] = []
    with trips.writer() as writer, trips.writer() as owner:
        plan = trips.plan() if kind is PlanKind.CLUSTERING else trips.compaction()
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        client = owner._open()
        writer.fence = lambda: ends.append(restore_begun(client, saved))
        commit = writer.commit(rewrite)
        ends[-1]()
    assert trips.rows() != before, "as long as Hudi leaves it"
    refused = rf"{kind} {commit.instant} completed while restore \d+ waited .* instant_time => '{commit.instant}'"
    with pytest.raises(Rejected, match=refused):
        FORMAT.check(trips.ref)
    with trips.writer() as writer, pytest.raises(Rejected, match=refused):
        writer.prepare(trips.plan("0198-after"), 1)
    with trips.writer() as cleaner, pytest.raises(Rejected, match=refused):
        cleaner.delete(commit.superseded)
    with trips.writer() as owner:
        owner._open().write_client.rollback(commit.instant)
    assert trips.rows() == before
    with trips.writer() as sweeper:
        sweeper.withdraw(plan.plan_id, None)  # of a clustering the request is there again
    assert not trips.timeline().pending
    trips.run(trips.plan("0198-after"))
    assert trips.rows() == before


def test_no_compaction_is_committed_that_lacks_a_log_which_counts_as_older_than_it(table: NewTable) -> None:
    """A writer whose clock is seconds behind completes a write after the publication, with an earlier time."""
    trips = table("mor", **LOCK)
    with trips.writer() as writer:
        prepared = writer.prepare(trips.compaction(), 1)
        trips.upsert(0, 120, 5, "id % 3 = 0")
        written = trips.timeline().commits[-1]
        assert written.completed_at is not None
        completed = Path(trips.base) / trips.timeline().directory / (written.completed_file or "")
        earlier = str(int(prepared.instant) - 1)
        completed.rename(completed.with_name(completed.name.replace(written.completed_at, earlier)))
        rows = trips.rows()
        rewrite = writer.rewrite(prepared, ignore)
        with pytest.raises(Conflict, match=f"not in compaction {prepared.instant} and was completed at {earlier}"):
            writer.commit(rewrite)
        writer.withdraw("0198-compaction", None)
    assert trips.rows() == rows

# SPDX-License-Identifier: Apache-2.0
"""An owner's rollback of a completed write, which has begun and has deleted nothing yet, beside a rewrite of lakefold's.

Hudi plans such a rollback under the table's lock. It executes it without: it takes the write from the timeline first,
and deletes its files then.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hudi_writing import LOCK, NewTable, Table, ignore

from test_hudi_last_look import save

from lake.errors import LakefoldError
from lake.formats.hudi.client.client import HudiClient

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def begin_to_unwrite(client: HudiClient) -> Callable[[], None]:
    """Schedule the rollback of the newest write and take that from the timeline, as Hudi does; what ends it."""
    create = client.jvm.org.apache.hudi.table.HoodieSparkTable.create
    table = create(client.worker_config, client.context)
    written = table.getCompletedCommitsTimeline().lastInstant().get()
    time = client.new_instant()
    assert table.scheduleRollback(client.context, time, written, False, True, False).isPresent()
    inflight = client.meta.reloadActiveTimeline().revertToInflight(written)

    def end() -> None:
        create(client.worker_config, client.context).rollback(client.context, time, inflight, True, False)

    return end


def test_no_compaction_is_committed_with_rows_that_an_owner_is_taking_back(table: NewTable) -> None:
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
    table = client.jvm.org.apache.hudi.table.HoodieSparkTable.create(client.worker_config, client.context)
    table.getActiveTimeline()

    def end() -> None:
        time = client.new_instant()
        assert table.scheduleRestore(client.context, time, saved).isPresent()
        table.restore(client.context, time, saved)

    return end


def test_a_restore_that_waits_for_the_lock_of_a_commit_restores(table: NewTable) -> None:
    trips = table(**LOCK)
    before = trips.rows()
    saved = save(trips)
    trips.upsert(0, 60, 3)
    ends: list[Callable[[], None]] = []
    with trips.writer() as writer, trips.writer() as owner:
        rewrite = writer.rewrite(writer.prepare(trips.plan(), 1), ignore)
        client = owner._open()
        writer.fence = lambda: ends.append(restore_begun(client, saved))
        commit = writer.commit(rewrite)
        ends[-1]()
    print([(i.time, i.kind, i.action, str(i.state)) for i in trips.timeline().instants], commit.instant)
    assert trips.rows() == before

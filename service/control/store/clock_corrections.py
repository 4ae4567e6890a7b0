# SPDX-License-Identifier: Apache-2.0
"""Corrects times that lie in the future because the database's clock was set back.

SQLite uses the clock of the host, which may be set back. A PostgreSQL server may replace another server whose clock was
ahead. Without a correction, the leases and roles of a process that has ended would last until the clock has caught up,
possibly for hours. A corrected lease is as long as a new one, so that its owner, if alive, renews it in time.
"""

from datetime import timedelta

from sqlalchemy import Connection, func, select, update

from lake.plan import PlanState
from service.control.store.database import db_now, timedelta_to_ms
from service.control.store.models import (
    ChargeRow,
    LeaderRow,
    LivePartitionRow,
    NotificationRow,
    PlanRow,
    ProcessRow,
    RelocationRow,
    WrittenPartitionRow,
)
from service.control.store.partition_locks import MAX_LOCK_TTL

#: the time for which a command holds a role without a renewal
_COMMAND_ROLE_TTL = timedelta(seconds=30)
#: smaller differences may be caused by the time between two statements of a transaction
_TOLERANCE_MS = 1000


def correct_future_times(connection: Connection, role_ttl: timedelta) -> None:
    """Shorten each lease, role, lock and wait that remains for longer than its full length.

    A charge to a budget counts from now on, for an hour and a day as a new one.
    ``role_ttl`` is the time for which the calling process holds a role without a renewal. The heartbeats of other
    processes show for how long they hold theirs.
    """
    now = db_now()
    beats = update(PlanRow).where(PlanRow.state == PlanState.INFLIGHT, PlanRow.heartbeat_at_ms > now + _TOLERANCE_MS)
    connection.execute(
        beats.values(lease_until_ms=now + PlanRow.lease_until_ms - PlanRow.heartbeat_at_ms, heartbeat_at_ms=now)
    )
    since = func.coalesce(PlanRow.heartbeat_at_ms, PlanRow.created_at_ms)
    waits = update(PlanRow).where(PlanRow.state == PlanState.REQUESTED, since > now + _TOLERANCE_MS)
    connection.execute(waits.values(not_before_ms=now + PlanRow.not_before_ms - since, heartbeat_at_ms=now))
    messages = update(NotificationRow).where(NotificationRow.created_at_ms > now + _TOLERANCE_MS)
    pause = NotificationRow.not_before_ms - NotificationRow.created_at_ms
    connection.execute(messages.values(not_before_ms=now + pause, created_at_ms=now))
    unsettled = update(RelocationRow).where(RelocationRow.unsettled_since_ms > now + _TOLERANCE_MS)
    connection.execute(unsettled.values(unsettled_since_ms=now))
    connection.execute(update(ChargeRow).where(ChargeRow.at_ms > now + _TOLERANCE_MS).values(at_ms=now))
    # The first condition has an index.
    reported = WrittenPartitionRow.due_at_ms > now, WrittenPartitionRow.reported_at_ms > now + _TOLERANCE_MS
    delay = WrittenPartitionRow.due_at_ms - WrittenPartitionRow.reported_at_ms
    connection.execute(update(WrittenPartitionRow).where(*reported).values(due_at_ms=now + delay, reported_at_ms=now))
    longest_role = connection.execute(select(func.max(ProcessRow.expires_at_ms - ProcessRow.seen_at_ms))).scalar()
    processes = update(ProcessRow).where(ProcessRow.seen_at_ms > now + _TOLERANCE_MS)
    connection.execute(
        processes.values(expires_at_ms=now + ProcessRow.expires_at_ms - ProcessRow.seen_at_ms, seen_at_ms=now)
    )
    role_ms = max(longest_role or 0, timedelta_to_ms(max(role_ttl, _COMMAND_ROLE_TTL)))
    for row, column, longest_ms in (
        (LeaderRow, LeaderRow.expires_at_ms, role_ms),
        (LivePartitionRow, LivePartitionRow.expires_at_ms, timedelta_to_ms(MAX_LOCK_TTL)),
        (LivePartitionRow, LivePartitionRow.guest_until_ms, timedelta_to_ms(MAX_LOCK_TTL)),
    ):
        end = now + longest_ms
        connection.execute(update(row).where(column > end + _TOLERANCE_MS).values({column: end}))

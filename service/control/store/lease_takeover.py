# SPDX-License-Identifier: Apache-2.0
"""Takeover: an executor gets a plan whose lease has expired, with the next epoch, which fences the former executor.

The states of a lease are in docs/lifecycle.md#leases.
"""

from sqlalchemy import select, update

from lake.plan import Claim, PlanState
from lake.process_identity import has_executor_ended
from service.control.store.base import StorePart, with_row_locks
from service.control.store.budget_ledger import step_times_until_heartbeat
from service.control.store.database import db_now
from service.control.store.leases import GRACE_MS, lease_ms, load_claim, record_claim
from service.control.store.models import PlanRow

#: maximum number of tries to take over a plan: a try fails if another executor takes it over first, which is rare
_MAX_TRIES = 50


class LeaseTakeover(StorePart):
    """The part of ``lake.plan_store.PlanStore`` by which executors take over plans with expired leases."""

    def take_over_expired(self, executor: str) -> Claim | None:
        """Take over one inflight plan whose lease has expired (epoch + 1, new lease). Returns None if there is none.

        The plan stays inflight. The new executor must first check in the table whether the plan was committed. During
        the grace that follows the lease, a plan is taken over only if its owner is ``executor`` itself, which lost its
        lease, or is known to have ended.
        """
        for _ in range(_MAX_TRIES):
            with self._database.read() as connection:
                candidates = connection.execute(
                    select(
                        PlanRow.id,
                        PlanRow.epoch,
                        PlanRow.executor,
                        (PlanRow.lease_until_ms + PlanRow.grace_ms <= db_now()).label("free"),
                    )
                    .where(PlanRow.state == PlanState.INFLIGHT, PlanRow.lease_until_ms <= db_now())
                    .order_by(PlanRow.lease_until_ms)
                ).all()
            silent = next(
                (c for c in candidates if c.free or c.executor == executor or has_executor_ended(c.executor)), None
            )
            if silent is None:
                return None
            with self._database.write() as connection:
                still = (
                    PlanRow.id == silent.id,
                    PlanRow.epoch == silent.epoch,
                    PlanRow.state == PlanState.INFLIGHT,
                    PlanRow.lease_until_ms <= db_now(),
                )
                found = connection.execute(with_row_locks(select(PlanRow.__table__).where(*still))).one_or_none()
                if found is None:
                    continue
                connection.execute(
                    update(PlanRow)
                    .where(*still)
                    .values(
                        epoch=PlanRow.epoch + 1,
                        executor=executor,
                        heartbeat_at_ms=db_now(),
                        lease_until_ms=db_now() + lease_ms(self._settings),
                        grace_ms=GRACE_MS,
                        milliseconds=step_times_until_heartbeat(found),
                        step_at_ms=db_now(),
                    )
                )
                reason = f"the lease of {silent.executor} expired; taken over"
                row = record_claim(connection, silent.id, PlanState.INFLIGHT, executor, reason)
            return load_claim(self._database, row)
        return None

# SPDX-License-Identifier: Apache-2.0
"""The store's errors. The text of each error is one line for people."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from service import problems
from service.problems import ServiceError


class StoreError(ServiceError):
    """Base class of the store's errors. Apart from these, the store raises only ``LeaseLost``."""


class DatabaseUnreachable(StoreError):
    """The database does not respond, or can't be opened."""

    problem = problems.DATABASE


class DatabaseReplaced(DatabaseUnreachable):
    """The SQLite file that this process has open was replaced by another file. The process must be restarted."""


class SchemaMismatch(StoreError):
    """The database does not have the schema of this release."""

    problem = problems.DATABASE


class ConstraintViolated(StoreError):
    """A key, CHECK or trigger of the database refused a write."""


class NotFound(StoreError):
    """The table, plan, request, notification or token does not exist."""

    problem = problems.NOT_FOUND


class AmbiguousId(StoreError):
    """Several ids contain the given part. ``candidates`` are some of these ids."""

    problem = problems.USAGE

    def __init__(self, text: str, candidates: Sequence[str]) -> None:
        self.facts = {"candidates": list(candidates)}
        super().__init__(text)


class InvalidCursor(StoreError):
    """The cursor was not returned by this list."""

    problem = problems.INVALID_FIELD


class WrongState(StoreError):
    """The state of the plan, token or notification does not allow the action."""

    problem = problems.CONFLICT


class IdempotencyMismatch(StoreError):
    """An idempotency key was used before for a different request."""

    problem = problems.BAD_SETTING


class PartitionsLocked(StoreError):
    """Partitions are locked by plans (``locking_plans``), or by the cleaner or the sweep (``lock_owners``)."""

    problem = problems.LIVE_PLAN

    def __init__(self, locking_plans: Mapping[str, str], lock_owners: Mapping[str, str] = MappingProxyType({})) -> None:
        self.locking_plans, self.lock_owners = dict(locking_plans), dict(lock_owners)
        self.facts = {"holders": self.locking_plans}
        taken = {partition: f"plan {plan_id}" for partition, plan_id in locking_plans.items()} | self.lock_owners
        named = ", ".join(f"{partition or 'the whole table'} by {by}" for partition, by in sorted(taken.items())[:3])
        more = f" and {len(taken) - 3} more" if len(taken) > 3 else ""
        super().__init__(f"only one live plan can hold a partition; held: {named}{more}")

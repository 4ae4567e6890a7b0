# SPDX-License-Identifier: Apache-2.0
"""What the store refuses, and what it says when its database can't be used. Each text is one line for a person."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from service import problems
from service.problems import ServiceError


class StoreError(ServiceError):
    """Base of what the store itself raises; ``LeaseLost`` is the only other error that leaves it."""


class DatabaseUnreachable(StoreError):
    """The database does not answer, or can't be opened."""

    problem = problems.DATABASE


class SchemaMismatch(StoreError):
    """The database has not the schema this lakefold works with."""

    problem = problems.DATABASE


class ConstraintViolated(StoreError):
    """A key, CHECK or trigger of the database refused a write."""


class NotFound(StoreError):
    """No such table, plan, request or notification."""

    problem = problems.NOT_FOUND


class AmbiguousId(StoreError):
    """Several ids have a word as their part; ``candidates`` are some of them."""

    problem = problems.USAGE

    def __init__(self, text: str, candidates: Sequence[str]) -> None:
        self.facts = {"candidates": list(candidates)}
        super().__init__(text)


class InvalidCursor(StoreError):
    """What a list is to go on behind is nothing that the list has given."""

    problem = problems.INVALID_FIELD


class WrongState(StoreError):
    """The plan, token or notification is in a state in which this can't be done."""

    problem = problems.CONFLICT


class IdempotencyMismatch(StoreError):
    """An idempotency key came again with a different request."""

    problem = problems.BAD_SETTING


class PartitionsLocked(StoreError):
    """Partitions are held: ``holders`` maps each to the plan that holds it, ``keepers`` to the cleaner or the sweep."""

    problem = problems.LIVE_PLAN

    def __init__(self, locking_plans: Mapping[str, str], lock_owners: Mapping[str, str] = MappingProxyType({})) -> None:
        self.locking_plans, self.lock_owners = dict(locking_plans), dict(lock_owners)
        self.facts = {"holders": self.locking_plans}
        taken = {partition: f"plan {plan_id}" for partition, plan_id in locking_plans.items()} | self.lock_owners
        named = ", ".join(f"{partition or 'the whole table'} by {by}" for partition, by in sorted(taken.items())[:3])
        more = f" and {len(taken) - 3} more" if len(taken) > 3 else ""
        super().__init__(f"a partition belongs to one live plan at a time; taken: {named}{more}")

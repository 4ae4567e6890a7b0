# SPDX-License-Identifier: Apache-2.0
"""What the store refuses, and what it says when its database can't be used. Each text is one line for a person."""

from collections.abc import Mapping

from lake.errors import LakefoldError


class StoreError(LakefoldError):
    """Base of what the store itself raises; ``LeaseLost`` is the only other error that leaves it."""


class DatabaseUnreachable(StoreError):
    """The database does not answer, or can't be opened."""


class SchemaBehind(StoreError):
    """The database has not the schema this lakefold works with."""


class ConstraintViolated(StoreError):
    """A key, CHECK or trigger of the database refused a write."""


class NotFound(StoreError):
    """No such table, plan, request or notification."""


class Ambiguous(StoreError):
    """Several plans have ids of which a word is the beginning or the end."""


class WrongState(StoreError):
    """The plan, token or notification is in a state in which this can't be done."""


class IdempotencyMismatch(StoreError):
    """An idempotency key came again with a different request."""


class PartitionsTaken(StoreError):
    """Live plans hold partitions; ``holders`` maps each such partition to the plan that holds it."""

    def __init__(self, holders: Mapping[str, str]) -> None:
        self.holders = dict(holders)
        named = ", ".join(
            f"{partition or 'the whole table'} by plan {plan_id}"
            for partition, plan_id in sorted(self.holders.items())[:3]
        )
        more = f" and {len(self.holders) - 3} more" if len(self.holders) > 3 else ""
        super().__init__(f"a partition belongs to one live plan at a time; taken: {named}{more}")

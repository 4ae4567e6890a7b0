# SPDX-License-Identifier: Apache-2.0
"""Fields that log lines carry for log collectors: the plan, table and epoch of the work that logs them."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import MappingProxyType

from lake.plan import Claim

_fields: ContextVar[Mapping[str, str | int]] = ContextVar("log_fields", default=MappingProxyType({}))


@contextmanager
def log_fields(**fields: str | int) -> Iterator[None]:
    """Add ``fields`` to every line that this thread logs inside the block, from any module."""
    token = _fields.set({**_fields.get(), **fields})
    try:
        yield
    finally:
        _fields.reset(token)


def claim_log_fields(claim: Claim) -> AbstractContextManager[None]:
    """Return ``log_fields`` for the work on one plan."""
    return log_fields(plan=claim.plan.plan_id, table=claim.plan.table.name, epoch=claim.epoch)


def current_log_fields() -> Mapping[str, str | int]:
    """Return the fields in force in this thread."""
    return _fields.get()

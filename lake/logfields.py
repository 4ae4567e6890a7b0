# SPDX-License-Identifier: Apache-2.0
"""What the log lines of a stretch of work are about, for whoever collects them: its plan, its table, its epoch."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from types import MappingProxyType

from lake.plan import Claim

_fields: ContextVar[Mapping[str, str | int]] = ContextVar("log_fields", default=MappingProxyType({}))


@contextmanager
def log_fields(**fields: str | int) -> Iterator[None]:
    """Every line that this thread logs inside the block, whoever logs it, is about ``fields``."""
    token = _fields.set({**_fields.get(), **fields})
    try:
        yield
    finally:
        _fields.reset(token)


def claim_log_fields(claim: Claim) -> AbstractContextManager[None]:
    """``log_fields`` of the work on one plan."""
    return log_fields(plan=claim.plan.plan_id, table=claim.plan.table.name, epoch=claim.epoch)


def current_log_fields() -> Mapping[str, str | int]:
    """The fields in force in this thread."""
    return _fields.get()

# SPDX-License-Identifier: Apache-2.0
"""A request for plans, the same from a command, a program over HTTP and the page."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from lake.plan import PlanKind


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The plans wanted of one table; with ``dry_run`` only what they would be.

    ``partitions`` and ``kind`` are None for all; ``overrides`` are policy settings for this request alone. A request
    with the ``idempotency_key`` of an earlier one is that request.
    """

    partitions: Collection[str] | None = None
    kind: PlanKind | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    dry_run: bool = False
    idempotency_key: str | None = None

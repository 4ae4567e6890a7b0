# SPDX-License-Identifier: Apache-2.0
"""What executors tell the outside while they work; ``service.metrics`` counts it, tests record it."""

from typing import Protocol

from executors.outcome import Outcome
from lake.plan import Claim, Step


class Observer(Protocol):
    """Every method returns at once and never raises."""

    def step_finished(self, claim: Claim, step: Step, seconds: float) -> None:
        """One step of a plan ended without an error."""

    def plan_finished(self, claim: Claim, outcome: Outcome) -> None:
        """A plan left inflight: completed, failed, cancelled or requeued."""

    def lease_expired(self, claim: Claim) -> None:
        """A plan of a silent executor was taken over."""

    def deleted(self, table: str, files: int, bytes_: int) -> None:
        """The cleaner removed superseded versions."""

    def clean_failed(self, table: str, reason: str) -> None:
        """The cleaner could not remove a table's superseded versions (``reason``: the error's class name)."""

    def clean_succeeded(self) -> None:
        """One round of the cleaner over all tables ended."""


class NullObserver:
    """Observes nothing."""

    def step_finished(self, claim: Claim, step: Step, seconds: float) -> None:
        """See Observer."""

    def plan_finished(self, claim: Claim, outcome: Outcome) -> None:
        """See Observer."""

    def lease_expired(self, claim: Claim) -> None:
        """See Observer."""

    def deleted(self, table: str, files: int, bytes_: int) -> None:
        """See Observer."""

    def clean_failed(self, table: str, reason: str) -> None:
        """See Observer."""

    def clean_succeeded(self) -> None:
        """See Observer."""

# SPDX-License-Identifier: Apache-2.0
"""The settings of the store itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from service.control.store.views.budgets import NoLimits, WorkLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """The policy settings that the store itself applies, with their documented defaults."""

    lease: timedelta = timedelta(seconds=60)
    max_attempts: int = 5
    backoff: timedelta = timedelta(seconds=30)
    backoff_max: timedelta = timedelta(minutes=30)
    max_inflight_per_table: int = 1
    limits: WorkLimits = field(default_factory=NoLimits)
    #: how many cores a plan keeps busy
    cores_per_plan: float = 1.0
    #: the number of scans that are kept for each table; one day at the default interval
    scans_kept: int = 288
    #: the resource groups whose plans this process claims; None for all
    resource_groups: frozenset[str] | None = None
    #: events that are sent to the webhook; empty without a webhook
    notify_events: frozenset[str] = frozenset()
    #: name of a channel → the events that it receives
    channel_events: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def receivers_of(self, event: str) -> tuple[str | None, ...]:
        """Return the receivers of an event: names of channels, and None for the webhook."""
        channels = (name for name, events in self.channel_events.items() if event in events)
        return (*((None,) if event in self.notify_events else ()), *channels)

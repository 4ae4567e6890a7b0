# SPDX-License-Identifier: Apache-2.0
"""The parts of one process that its executors, take-overs, sweeps and cleaner share."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from executors.observer import Observer
from lake.engines import RewriteEngine
from lake.formats import load_format
from lake.plan_store import PlanStore
from lake.ports import FormatLoader, SparkProvider
from lake.relocation_store import RelocationStore, relocation_store

HEARTBEAT_INTERVAL = timedelta(seconds=15)
#: seconds between checks of a table, or between attempts to record, after a commit
RETRY_DELAYS_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The database, Spark and other parts of the process, the same for all tables.

    A lease is renewed every ``heartbeat`` from a second thread, so ``store`` must be thread-safe. ``engines`` rewrite
    files for formats without engines of their own; the first engine that can rewrite a group is used.
    """

    store: PlanStore
    spark: SparkProvider
    formats: FormatLoader = load_format
    engines: Sequence[RewriteEngine] = ()
    observer: Observer = field(default_factory=Observer)
    heartbeat: timedelta = HEARTBEAT_INTERVAL
    retry_delays: Sequence[float] = RETRY_DELAYS_SECONDS

    @property
    def relocations(self) -> RelocationStore:
        """Return ``store`` with its records of relocations. Only for formats whose commits relocate partitions."""
        return relocation_store(self.store)

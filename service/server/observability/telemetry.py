# SPDX-License-Identifier: Apache-2.0
"""The observers that the configuration enables, and the trace around the planning of a table."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from executors.observer import Observer, Observers
from lake.trace import traced
from service.control.config.loader import Config, ConfigError

if TYPE_CHECKING:
    from service.server.observability.lineage import LineageObserver
    from service.server.observability.merge_events import MergeEventsObserver
    from service.server.observability.tracing import TracingObserver


class Telemetry:
    """The observers of one process. Raises ConfigError if the extra of an enabled observer is not installed."""

    def __init__(self, config: Config, process: str) -> None:
        self._tracing: TracingObserver | None = None
        self._lineage: LineageObserver | None = None
        self._merge_events: MergeEventsObserver | None = None
        try:
            if config.daemon.merge_events_file is not None:
                from service.server.observability import merge_events

                self._merge_events = merge_events.MergeEventsObserver(config.daemon.merge_events_file)
            if config.opentelemetry.traces_url is not None:
                from service.server.observability import tracing

                self._tracing = tracing.TracingObserver(config.opentelemetry, process)
            if config.openlineage.url is not None:
                from service.server.observability import lineage

                self._lineage = lineage.LineageObserver(config.openlineage)
        except ModuleNotFoundError as error:
            extra = "opentelemetry" if "opentelemetry" in str(error.name) else "openlineage"
            raise ConfigError(
                f"[{extra}] needs a package that is not installed: pip install 'lakefold[{extra}]'"
            ) from error

    def combined_with(self, observer: Observer) -> Observer:
        """Combine ``observer`` with the enabled observers, whose failures do not affect plans."""
        others = [other for other in (self._tracing, self._lineage, self._merge_events) if other is not None]
        return Observers(observer, *others) if others else observer

    @property
    def planning_trace(self) -> Callable[[str, str | None], AbstractContextManager[None]]:
        """The context of a planning, from the table's name and the request's trace: new plans carry the trace."""
        if self._tracing is not None:
            return self._tracing.planning_trace
        return lambda table, traceparent: traced(traceparent)

    def close(self) -> None:
        """Send the waiting spans and events, for a few seconds."""
        for part in (self._tracing, self._lineage):
            if part is not None:
                part.close()

# SPDX-License-Identifier: Apache-2.0
"""The OpenTelemetry spans of plannings, of runs of plans and of their steps, in the trace of the plan's request.

Spans wait in a bounded queue and are sent by the library's own thread; spans that do not fit are dropped.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from executors.observer import Observer
from executors.outcome import RunOutcome, RunResult
from lake.plan import Claim, Step
from lake.redaction import redact
from lake.trace import traced
from lake.version import __version__
from service.control.config.telemetry import OpenTelemetrySettings

_FLUSH_MILLISECONDS = 5_000
_W3C = TraceContextTextMapPropagator()


class TracingObserver(Observer):
    """The observer that exports a span for each run and step, and the scheduler's span around a planning."""

    def __init__(self, settings: OpenTelemetrySettings, process: str) -> None:
        assert settings.traces_url is not None, "traces need an address"
        exporter = OTLPSpanExporter(
            endpoint=settings.traces_url,
            headers={name: value.get_secret_value() for name, value in settings.headers.items()},
            timeout=settings.timeout.total_seconds(),
        )
        attributes = {
            "service.name": settings.service_name,
            "service.version": __version__,
            "service.instance.id": process,
        }
        self._provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("lakefold", __version__)
        self._run_spans: dict[tuple[str, int], Span] = {}
        self._lock = threading.Lock()

    @contextmanager
    def planning_trace(self, table: str, traceparent: str | None = None) -> Iterator[None]:
        """Open a span ``plan`` around the scan and planning of ``table``; plans stored inside continue the trace."""
        parent = _context_of(traceparent)
        begun = self._tracer.start_as_current_span("plan", parent, attributes={"lakefold.table": table})
        with begun as span, traced(_traceparent_of(span)):
            yield

    def run_started(self, claim: Claim) -> None:
        plan = claim.plan
        span = self._tracer.start_span(
            "lease",
            _context_of(claim.traceparent),
            kind=SpanKind.CONSUMER,
            attributes={
                "lakefold.plan": plan.plan_id,
                "lakefold.table": plan.table.name,
                "lakefold.kind": plan.kind.value,
                "lakefold.epoch": claim.epoch,
                "lakefold.attempt": claim.attempt,
                "lakefold.input.files": plan.input_files,
                "lakefold.input.bytes": plan.bytes,
            },
        )
        with self._lock:
            self._run_spans[plan.plan_id, claim.epoch] = span

    def step_finished(self, claim: Claim, step: Step, seconds: float) -> None:
        self._record_step(claim, step, seconds)

    def step_failed(self, claim: Claim, step: Step, seconds: float, error: str) -> None:
        self._record_step(claim, step, seconds, error)

    def run_ended(self, claim: Claim, outcome: RunOutcome) -> None:
        with self._lock:
            span = self._run_spans.pop((claim.plan.plan_id, claim.epoch), None)
        if span is None:
            return
        span.set_attribute("lakefold.result", outcome.result.value)
        if outcome.commit is not None:
            span.set_attribute("lakefold.instant", outcome.commit.instant)
            span.set_attribute("lakefold.output.files", len(outcome.commit.outputs))
            span.set_attribute("lakefold.output.bytes", sum(file.bytes for file in outcome.commit.outputs))
        if outcome.result is not RunResult.COMPLETED:
            span.set_status(Status(StatusCode.ERROR, redact(outcome.error)))
        span.end()

    def close(self) -> None:
        """Send the waiting spans, for at most 5 s."""
        self._provider.force_flush(_FLUSH_MILLISECONDS)
        self._provider.shutdown()

    def _record_step(self, claim: Claim, step: Step, seconds: float, error: str = "") -> None:
        with self._lock:
            lease = self._run_spans.get((claim.plan.plan_id, claim.epoch))
        if lease is None:
            return
        end = time.time_ns()
        span = self._tracer.start_span(step.value, set_span_in_context(lease), start_time=end - round(seconds * 1e9))
        if error:
            span.set_status(Status(StatusCode.ERROR, redact(error)))
        span.end(end)


def _context_of(traceparent: str | None) -> Context:
    return _W3C.extract({"traceparent": traceparent} if traceparent else {}, Context())


def _traceparent_of(span: Span) -> str:
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, set_span_in_context(span))
    return carrier.get("traceparent", "")

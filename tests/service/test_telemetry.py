# SPDX-License-Identifier: Apache-2.0
"""OpenLineage events and OpenTelemetry spans of the real daemon, as receivers in this process get them."""

import json
import logging
import subprocess
import sys
import threading
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from api_toys import add_token, client_of, context_at
from daemon_toys import running, write_config
from databases import store_at
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from receiver import receiving
from toys.files import rows
from toys.timeline import ToyFormat
from toys.timeline_tables import create, write
from waiting import wait_for

from executors.observer import Observer, Observers
from executors.outcome import RunOutcome, RunResult
from lake.errors import Transient
from lake.model import TableRef
from lake.plan import Claim, Plan, PlanKind, PlanState, RewriteOptions
from lake.trace import current_traceparent, traced
from service.control.config.loader import ConfigError, load_config
from service.server.daemon.process import Daemon
from service.server.observability.background_queue import BackgroundQueue
from service.server.observability.lineage import dataset_id, run_id
from service.server.observability.telemetry import Telemetry

pytestmark = pytest.mark.slow


ASKED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def receiver():
    with receiving() as receiver:
        yield receiver


def configured(home, receiver, **policy):
    """A daemon's configuration with both receivers; its database."""
    path = write_config(home, policy=policy)
    with path.open("a") as file:
        file.write(
            f'[openlineage]\nurl = "{receiver.url}"\napi_key = "pl4nted-key"\nnamespace = "tests"\n'
            f'[opentelemetry]\ntraces_url = "{receiver.url}/v1/traces"\n'
            'headers = {authorization = "Bearer pl4nted"}\n'
        )
    store_at(home).close()
    return load_config(path)


@pytest.fixture
def config(toys, tmp_path, receiver):
    """A daemon's configuration with one toy table and both receivers; its database."""
    create(tmp_path / "lake" / "t1", name="t1")
    return configured(tmp_path, receiver)


def lineage_of(receiver):
    return [json.loads(request.body) for request in receiver.requests if request.path == "/api/v1/lineage"]


def spans_of(receiver):
    """Every span received, with its resource's attributes."""
    spans = []
    for request in receiver.requests:
        if request.path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(request.body).resource_spans:
                about = {entry.key: entry.value.string_value for entry in resource.resource.attributes}
                spans += [(span, about) for scope in resource.scope_spans for span in scope.spans]
    return spans


def test_a_plan_requested_within_a_trace_is_part_of_it_from_the_request_to_the_commit(toys, tmp_path, receiver):
    table = create(tmp_path / "lake" / "t1", name="t1", partitions=1, files=1)
    with running(Daemon(configured(tmp_path, receiver, scan_interval="1h"), "all")) as daemon:
        wait_for(lambda: daemon.store.last_scan("t1"), "a scan that finds nothing to do")
        for low in (1000, 2000):
            write(table, "dt=0", rows(low, low + 50))
        with traced(ASKED):
            daemon.store.add_request("t1", actor="ada")
        wait_for(lambda: daemon.store.figures().count(PlanState.COMPLETED), "a completed plan")
        [plan] = daemon.store.plans()
    by_name = defaultdict(list)
    for span, about in spans_of(receiver):
        assert about["service.name"] == "lakefold"
        by_name[span.name].append(span)
    [lease] = by_name["lease"]
    planned = {span.span_id: span for span in by_name["plan"]}[lease.parent_span_id]
    assert lease.trace_id == planned.trace_id
    assert plan.actor == "ada"
    assert planned.trace_id.hex() == ASKED[3:35]
    assert planned.parent_span_id.hex() == ASKED[36:52]
    attributes = {entry.key: entry.value for entry in lease.attributes}
    assert attributes["lakefold.plan"].string_value == plan.plan_id
    assert attributes["lakefold.result"].string_value == "completed"
    for name in ("find_commit", "prepare", "rewrite", "verify", "commit", "record"):
        [step] = by_name[name]
        assert (step.trace_id, step.parent_span_id) == (lease.trace_id, lease.span_id)
        assert lease.start_time_unix_nano <= step.end_time_unix_nano <= lease.end_time_unix_nano
    [keyed] = {request.headers["authorization"] for request in receiver.requests if request.path == "/v1/traces"}
    assert keyed == "Bearer pl4nted"


def test_a_run_of_a_plan_is_a_lineage_run_with_the_table_as_input_and_output_and_the_files_written(config, receiver):
    with running(Daemon(config, "all")) as daemon:
        wait_for(lambda: daemon.store.figures().count(PlanState.COMPLETED), "a completed plan")
        [plan] = daemon.store.plans()
    start, end = lineage_of(receiver)
    assert (start["eventType"], end["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["runId"] == end["run"]["runId"] == run_id(plan.plan_id, 1)
    assert end["job"]["namespace"] == "tests"
    assert end["job"]["name"] == "clustering.t1"
    [source], [target] = end["inputs"], end["outputs"]
    assert (source["namespace"], source["name"]) == (target["namespace"], target["name"]) == ("file", plan.location)
    written = target["outputFacets"]["outputStatistics"]
    assert (written["fileCount"], written["size"]) == (plan.files_after, plan.bytes_after)
    assert written["rowCount"] == 300
    assert source["inputFacets"]["inputStatistics"]["fileCount"] == plan.files_before
    assert {r.headers["authorization"] for r in receiver.requests if "lineage" in r.path} == {"Bearer pl4nted-key"}


def test_incomplete_runs_report_their_result(config, receiver):
    telemetry = Telemetry(config, "test")
    observer = telemetry.combined_with(Observer())
    for epoch, result in enumerate(
        (RunResult.FAILED, RunResult.REQUEUED, RunResult.CANCELLED, RunResult.LEASE_LOST, RunResult.INFLIGHT), 1
    ):
        observer.run_started(claim_of(epoch))
        observer.run_ended(claim_of(epoch), RunOutcome(result=result, error="refused by https://u:hidden-pass@host/"))
    observer.lease_expired(claim_of(8))
    telemetry.close()
    ends = [event for event in lineage_of(receiver) if event["eventType"] != "START"]
    assert [event["eventType"] for event in ends] == ["FAIL", "FAIL", "ABORT", "ABORT", "ABORT", "ABORT"]
    assert ends[0]["run"]["facets"]["errorMessage"]["message"] == "refused by https://u:***@host/"
    assert ends[-1]["run"]["runId"] == run_id(claim_of(1).plan.plan_id, 7)
    statuses = [(span.name, span.status.code, span.status.message) for span, _ in spans_of(receiver)]
    assert statuses == [("lease", 2, "refused by https://u:***@host/")] * 5


def claim_of(epoch):
    plan = Plan(
        plan_id="019aa1c2-7b1e-7d52-9d0c-0a5c0f2f3c11",
        table=TableRef(name="t", format="toy", location="/lake/t"),
        kind=PlanKind.CLUSTERING,
        groups=(),
        options=RewriteOptions(target_file_max_bytes=1),
        snapshot_instant="1",
    )
    return Claim(plan=plan, epoch=epoch, attempt=1, executor="e", lease_until=datetime.now(UTC))


def test_receivers_that_are_away_or_hang_cost_the_plans_nothing(config, receiver, monkeypatch):
    monkeypatch.setattr("service.server.observability.lineage._FLUSH_SECONDS", 0.2)
    monkeypatch.setattr("service.server.observability.tracing._FLUSH_MILLISECONDS", 200)
    hanging = threading.Event()
    receiver.answer = lambda request: (hanging.wait(30), (404, {}))[1]
    with Daemon(config, "all") as daemon:
        assert daemon.run_once() == 0
        assert daemon.store.figures().count(PlanState.COMPLETED) == 1
        hanging.set()


def test_an_observer_that_raises_is_reported_once_and_the_others_are_still_called(caplog):
    class Broken(Observer):
        def clean_succeeded(self):
            raise Transient("no")

    class Counting(Observer):
        calls = 0

        def clean_succeeded(self):
            self.calls += 1

    counting = Counting()
    observers = Observers(Broken(), counting)
    for _ in range(3):
        observers.clean_succeeded()
    assert counting.calls == 3
    assert [record.getMessage() for record in caplog.records] == ["Broken: no; plans continue"]


def test_background_work_is_bounded_and_its_failures_are_reported_once(caplog):
    caplog.set_level(logging.WARNING)
    done, release = [], threading.Event()
    background = BackgroundQueue("sender", capacity=2)
    background.submit(lambda: release.wait(10) and done.append(0))
    wait_for(lambda: background._queue.empty(), "the first one under way")
    for number in range(1, 6):
        background.submit(lambda number=number: done.append(number))
    background.close(0.1)
    release.set()
    wait_for(lambda: done == [0, 1, 2], "what had room done, the rest dropped")
    failing = BackgroundQueue("sender")
    for _ in range(3):
        failing.submit(lambda: (_ for _ in ()).throw(OSError("no route")))
    failing.close(5)
    assert [record.getMessage() for record in caplog.records] == [
        "sender: too slow; events are dropped; plans continue",
        "sender: OSError: no route; plans continue",
    ]


def test_tables_are_called_as_other_producers_call_them():
    assert dataset_id("/data/lake/t") == dataset_id("file:/data/lake/t") == ("file", "/data/lake/t")
    assert dataset_id("s3://bucket/lake/t") == ("s3://bucket", "lake/t")
    assert dataset_id("hdfs://nn:8020/lake/t") == ("hdfs://nn:8020", "/lake/t")


@pytest.mark.parametrize(
    "given", [None, "", "00-0-0-00", ASKED.upper(), f"{ASKED}; DROP", f"00-{'0' * 32}-{'1' * 16}-01"]
)
def test_an_invalid_trace_context_is_not_passed_on(given):
    with traced(given):
        assert current_traceparent() is None


@pytest.mark.parametrize(("header", "kept"), [(ASKED, ASKED), ("nonsense", None)])
def test_a_request_over_http_keeps_its_caller_s_trace_context(config, tmp_path, header, kept):
    context = context_at(tmp_path)
    context.store.register_table(next(ToyFormat().discover(str(tmp_path / "lake" / "t1"))), "compact")
    with client_of(replace(context, config=config), add_token(context.store, "write")) as client:
        answer = client.post("/v1/requests", json={"table": "t1"}, headers={"traceparent": header})
    assert answer.status_code == 202
    assert [request.traceparent for request in context.store.open_requests()] == [kept]
    context.store.close()


def test_without_the_extra_the_configuration_names_the_package_to_install(config, monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    monkeypatch.delitem(sys.modules, "service.server.observability.tracing", raising=False)
    monkeypatch.delattr("service.server.observability.tracing", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'lakefold\[opentelemetry\]'"):
        Telemetry(config, "test")


def test_neither_library_is_loaded_where_nothing_is_configured():
    script = (
        "import sys\nfrom service.control.config.loader import load_config\n"
        "from service.server.observability.telemetry import Telemetry\n"
        "Telemetry(load_config(), 'x')\n"
        "print([m for m in ('openlineage', 'opentelemetry.sdk', 'opentelemetry.exporter') if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout == "[]\n"

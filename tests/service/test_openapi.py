# SPDX-License-Identifier: Apache-2.0
"""The description of the API is the one in the repository, and calls made up from it find no fault of the server."""

import copy
import json

import pytest
from api_toys import add_token, client_of, context_at
from fastapi.openapi.utils import get_openapi
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import one_of
from support import SOAK

from lake.model import TableRef
from service.server.http.openapi import PAGE, render
from service.server.web import actions, login, pages

#: streams are for their own test; their end is not in the hands of the caller
STREAMS = "/progress"
#: one call is some milliseconds; all routes together take seconds
CALLS_EACH = 30 if SOAK else 5


@pytest.fixture
def served(tmp_path):
    """A process with one table and a token to write."""
    context = context_at(
        tmp_path, rules='[[tables]]\nmatch = "*"\nmode = "compact"\nconcurrency = "single_writer"\n', rate_limit=0
    )
    context.store.register_table(TableRef(name="sales.orders", format="hudi", location=str(tmp_path)), "compact")
    yield context, add_token(context.store, "write")
    context.store.close()


def test_the_committed_description_is_current():
    assert PAGE.read_text() == render(), "run: make openapi"


def test_the_served_description_is_the_committed_one(served):
    context, token = served
    with client_of(context, token) as client:
        assert client.get("/openapi.json").json() == json.loads(PAGE.read_text())


def test_every_route_is_described_with_its_problems_and_no_other_kind_of_error():
    document = json.loads(PAGE.read_text())
    assert document["openapi"].startswith("3.1")
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["security"], f"{method} {path}"
            assert operation["summary"], f"{method} {path}"
            (kind,) = operation["responses"]["default"]["content"]
            assert kind == "application/problem+json"
            assert "422" not in operation["responses"], "the framework's own shape is never sent"
    assert "HTTPValidationError" not in document["components"]["schemas"]


@pytest.mark.slow
@pytest.mark.soak
def test_calls_made_up_from_the_description_find_no_fault_of_the_server(served):
    # Half a second to import, which only these two tests need.
    import schemathesis

    context, token = served
    schema = schemathesis.openapi.from_dict(json.loads(PAGE.read_text()))
    operations = [result.ok() for result in schema.get_all_operations()]
    with client_of(context, token) as client:
        called = [
            made_up_calls(client, operation, fine="application/json", wrong="application/problem+json")
            for operation in operations
            if not operation.path.endswith(STREAMS)
        ]
    assert len(called) > 15
    assert sum(called) > 3 * len(called)


@pytest.mark.slow
@pytest.mark.soak
def test_calls_of_the_page_made_up_from_its_routes_find_no_fault_of_the_server_either(served):
    import schemathesis

    context, token = served
    schema = schemathesis.openapi.from_dict(described_pages())
    operations = [result.ok() for result in schema.get_all_operations()]
    with client_of(context, token) as client:
        client.headers["Accept"], client.headers["Sec-Fetch-Site"] = "text/html", "same-origin"
        html = "text/html; charset=utf-8"
        called = [made_up_calls(client, operation, fine=html, wrong=html) for operation in operations]
    assert len(called) > 20
    assert sum(called) > 3 * len(called)


def described_pages():
    """A description of the page's routes, which the one of the API leaves out."""
    routes = [copy.copy(route) for router in (pages.router, login.router, actions.router) for route in router.routes]
    for route in routes:
        route.include_in_schema = True
    return get_openapi(title="pages", version="1", routes=routes)


def made_up_calls(client, operation, *, fine, wrong):
    """Call ``operation`` with what fits its description and with what does not; how often it was called.

    ``fine`` and ``wrong`` are the types of its answers.
    """
    from schemathesis import GenerationMode

    calls = []

    @settings(
        max_examples=CALLS_EACH,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(one_of(operation.as_strategy(mode) for mode in GenerationMode))
    def check(case):
        call = case.as_transport_kwargs(base_url="http://127.0.0.1")
        sent = {name: call.get(name) for name in ("method", "url", "params", "json")}
        body = call.get("data")
        sent["content" if isinstance(body, str | bytes) else "data"] = body
        # The client's own token and what it accepts stay, so that the calls get further than to the door.
        sent["headers"] = {
            name: value for name, value in call["headers"].items() if name.lower() not in ("authorization", "accept")
        }
        if operation.path.endswith("/requests"):
            sent["params"] = {**(sent["params"] or {}), "wait": 0}  # no scheduler is there to answer
        calls.append(sent)
        answer = client.request(**sent, follow_redirects=False)
        assert answer.status_code < 500, f"{sent} → {answer.status_code} {answer.text[:300]}"
        if answer.status_code != 303:  # the page that a form leads to
            assert answer.headers["Content-Type"] == (wrong if answer.status_code >= 400 else fine), sent

    check()
    return len(calls)

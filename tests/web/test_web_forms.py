# SPDX-License-Identifier: Apache-2.0
"""Odd forms: whatever stands in a body, the answer is a page with a status of the 400s, and the log has no fault."""

import logging

import pytest
from api_toys import add_token, client_of, context_at

from lake.model import TableRef
from service.server.web import actions, login

RULES = '[[tables]]\nmatch = "*"\nmode = "compact"\nconcurrency = "single_writer"\n'
A_PAGES_OWN = {"Sec-Fetch-Site": "same-origin", "Accept": "text/html"}
URLENCODED = {"Content-Type": "application/x-www-form-urlencoded"}
MULTIPART = {"Content-Type": "multipart/form-data; boundary=x"}
MOST_BODY = 80_000
#: what a form of the right shape may meet, whatever its fields hold
TAKEN = {303, 400, 403, 404, 409, 422}


def part(name, value, more=""):
    return f'--x\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n{value}\r\n'


def in_pieces(body):
    """A body whose length is not announced."""
    yield body[: len(body) // 2]
    yield body[len(body) // 2 :]


#: what is odd → headers, body, the statuses that are an answer to it
FORMS = {
    "1,001 fields": (URLENCODED, "&".join(["a=b"] * 1001), {400}),
    "1,001 parts": (MULTIPART, part("a", "") * 1001 + "--x--", {400, 413}),
    "multipart without boundary": ({"Content-Type": "multipart/form-data"}, part("reason", "x") + "--x--", {400}),
    "multipart without an end": (MULTIPART, part("reason", "x") + "--x\r\nContent-", TAKEN),
    "multipart that is none": (MULTIPART, "reason=x", {400}),
    "a part without a name": (MULTIPART, "--x\r\nContent-Disposition: form-data\r\n\r\nx\r\n--x--", {400}),
    "a file for a field": (
        MULTIPART,
        "".join(part(name, "x", '; filename="f"') for name in ("reason", "token", "next", "number", "key")) + "--x--",
        TAKEN,
    ),
    "a charset nobody has": (
        {"Content-Type": "multipart/form-data; boundary=x; charset=nope"},
        part("reason", "x") + "--x--",
        TAKEN,
    ),
    "too large, announced": (URLENCODED, "reason=" + "x" * MOST_BODY, {413}),
    "too large, in pieces": (URLENCODED, in_pieces(b"reason=" + b"x" * MOST_BODY), {413}),
    "too large, parts in pieces": (MULTIPART, in_pieces(part("reason", "x" * MOST_BODY).encode()), {413}),
    "too long": (URLENCODED, "&".join(f"{name}={'x' * 1500}" for name in ("reason", "token", "next")), TAKEN),
    "escapes cut short": (URLENCODED, "reason=%&token=%e&next=%%%", TAKEN),
    "bytes that are no text": (URLENCODED, b"reason=\xff\xfe%ff&token=\xff%ff&next=/%ff", TAKEN),
    "NUL": (URLENCODED, "reason=%00&token=%00&next=/%00&partition=%00&key=%00&value=%00", TAKEN),
    "line breaks": (URLENCODED, "next=/%0d%0aSet-Cookie:%20a=b&reason=%0d%0a&token=%0d%0a", TAKEN),
    "JSON": ({"Content-Type": "application/json"}, '{"reason": "x"}', TAKEN),
    "no type": ({}, "reason=x", TAKEN),
}
TARGETS = [
    route.path.replace("{name:path}", "sales.orders").replace("{plan_id}", "0198")
    for router in (actions.router, login.router)
    for route in router.routes
    if "POST" in route.methods
]


@pytest.fixture(scope="module")
def clerk(tmp_path_factory):
    """A browser signed in with a token that may write, on a database with one table."""
    context = context_at(tmp_path_factory.mktemp("forms"), rules=RULES, rate_limit=0, max_body_size=f"{MOST_BODY}B")
    context.store.register_table(TableRef(name="sales.orders", format="toy", location="/lake/orders"), "compact")
    with client_of(context, add_token(context.store, "write")) as client:
        yield client
    context.store.close()


def test_every_form_of_the_page_is_tried():
    assert {"/login", "/logout", "/pause/confirm", "/tables/sales.orders/request", "/plans/0198/retry"} <= set(TARGETS)


@pytest.mark.parametrize("odd", FORMS)
def test_an_odd_form_is_answered_with_a_page_and_leaves_no_fault_in_the_log(clerk, caplog, odd):
    headers, body, expected = FORMS[odd]
    body = list(body) if odd.endswith("in pieces") else body
    for target in TARGETS:
        content = iter(body) if isinstance(body, list) else body
        answer = clerk.post(target, content=content, headers=A_PAGES_OWN | headers, follow_redirects=False)
        # Signing out, cancelling, retrying and resuming a table read no fields.
        unread = TAKEN if target.endswith(("/logout", "/resume", "/cancel", "/retry")) else set()
        assert answer.status_code in expected | unread, (target, answer.text)
        if answer.status_code != 303:
            assert answer.headers["Content-Type"].startswith("text/html"), target
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []

# SPDX-License-Identifier: Apache-2.0
"""How often one client may ask over HTTP."""

import pytest
from api_toys import add_token, bearer, client_of, context_at, problem

from service.server.http.rate_limit import RateLimit


def test_a_client_over_the_rate_limit_gets_the_time_of_its_next_request(tmp_path, monkeypatch):
    monkeypatch.setattr("service.server.http.rate_limit.monotonic", lambda: 100.0)
    context = context_at(tmp_path, rate_limit=2)
    token = add_token(context.store, "read")
    with client_of(context) as client:
        answers = [client.get("/v1/plans") for _ in range(12)]
        assert [answer.status_code for answer in answers[:8]] == [200] * 8
        assert [answer.status_code for answer in answers[8:]] == [429] * 4
        late = answers[8]
        problem(late, 429, "too-many")
        assert late.headers["Retry-After"] == "1"
        assert client.get("/-/healthy").status_code == 200
        assert client.get("/v1/plans", headers=bearer(token)).status_code == 200, "a token has a limit of its own"
        wrong = [client.get("/v1/plans", headers=bearer(f"wrong{n}")).status_code for n in range(12)]
        assert 429 in wrong, "guessing tokens counts against the client"
    context.store.close()


def test_the_limit_refills_with_time_and_drops_idle_clients(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("service.server.http.rate_limit.monotonic", lambda: now[0])
    limit = RateLimit(1)
    assert [limit.take("a") for _ in range(5)] == [0, 0, 0, 0, 1]
    assert limit.take("b") == 0
    now[0] += 1.5
    assert limit.take("a") == 0
    assert limit.take("a") == pytest.approx(0.5)
    monkeypatch.setattr("service.server.http.rate_limit._MAX_CLIENTS", 2)
    limit.take("c")
    assert limit.take("d") == 0
    assert set(limit._buckets) == {"c", "d"}
    assert RateLimit(0).take("a") == 0

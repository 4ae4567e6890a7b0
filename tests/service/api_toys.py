# SPDX-License-Identifier: Apache-2.0
"""The HTTP application on a real database, without a server and without a daemon."""

from contextlib import contextmanager
from pathlib import Path
from typing import Any

from databases import store_at
from httpx import Response
from starlette.testclient import TestClient

from service.control.config.loader import load_config
from service.control.lake_cache import LakeCache
from service.control.store import Store
from service.server.api.context import Context
from service.server.api.token_cache import TokenCache, new_token, token_digest
from service.server.http.app import create_app
from service.server.observability.metrics import Metrics
from service.server.observability.metrics_page import MetricsPage


def context_at(home: Path, role: str = "all", rules: str = '[[tables]]\nmatch = "*"\n', **http: object) -> Context:
    """The context of a process whose configuration has ``rules`` and ``http``; its database is ``home/lakefold.db``."""
    url = f"sqlite:///{home}/lakefold.db"
    lines = [f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}" for key, value in http.items()]
    path = home / "lakefold.toml"
    path.write_text("\n".join([f"[database]\nurl = {url!r}", "[http]", *lines, rules]))
    store = store_at(home)
    metrics = Metrics(role)
    return Context(
        config=load_config(path),
        store=store,
        metrics=metrics,
        metrics_page=MetricsPage(metrics.process_registry, metrics.table_series),
        lake_cache=LakeCache(store),
        readiness_problem=lambda: None,
        role=role,
        tokens=TokenCache(store),
    )


@contextmanager
def client_of(context: Context, token: str | None = None, host: str = "127.0.0.1"):
    """A client of the application; it raises nothing, a fault of the application is a 500."""
    headers = {} if token is None else bearer(token)
    with TestClient(
        create_app(context), base_url=f"http://{host}", headers=headers, raise_server_exceptions=False
    ) as client:
        yield client


def add_token(store: Store, scope: str, name: str | None = None, expires_in=None) -> str:
    """A new token of ``scope``, stored."""
    token = new_token()
    store.add_token(name or scope, digest=token_digest(token), scope=scope, expires_in=expires_in, actor="test")
    return token


def bearer(token: str) -> dict[str, str]:
    """The header of a call with ``token``."""
    return {"Authorization": f"Bearer {token}"}


def problem(answer: Response, status: int, slug: str) -> dict[str, Any]:
    """The problem document that ``answer`` must be, with a type from docs/problems.md."""
    document = answer.json()
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert (answer.status_code, document["status"]) == (status, status), answer.text
    assert document["type"] == f"/docs/problems.md#{slug}"
    return document

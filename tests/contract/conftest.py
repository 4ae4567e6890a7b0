# SPDX-License-Identifier: Apache-2.0
"""Cases on databases, and assertions of the suite's own modules told in full."""

import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import postgres
import pytest
from databases import sqlite_at
from support import SOAK
from toys.bench import Bench
from toys.cases import CASES, CROSSED

from service.store.views import StoreSettings

pytest.register_assert_rewrite("contract.port", "contract.run", "contract.capabilities")

PAIRED = ["timeline-sqlite", "locations-postgresql", "versions-postgresql"]


@pytest.fixture(params=CROSSED if SOAK else PAIRED)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """A case on a database, with leases of a minute and retries at once."""
    name, database = request.param.split("-")
    if database == "sqlite":
        url = sqlite_at(tmp_path)
    else:
        server, template = (request.getfixturevalue(f"postgres_{what}") for what in ("url", "template"))
        own = f"lakefold_{uuid.uuid4().hex[:12]}"
        url = postgres.new_database(server, own, template)
    made = Bench(tmp_path, url, StoreSettings(backoff=timedelta(0), max_attempts=3), CASES[name]())
    yield made
    made.store.close()
    if database == "postgresql":
        postgres.drop_database(server, own)

# SPDX-License-Identifier: Apache-2.0
"""The page on a database with everything in it, and on an empty one; no server and no daemon."""

import pytest
from api_toys import add_token, client_of, context_at
from web_lake import RULES, fill, seven_day_lead, written
from web_pages import SAME_ORIGIN


@pytest.fixture(scope="session")
def lake(tmp_path_factory):
    """The context of a process whose database has every state, and its plans by what they are."""
    home = tmp_path_factory.mktemp("lake")
    context = context_at(home, rules=RULES)
    plans = fill(context.store, f"sqlite:///{home}/lakefold.db")
    plans["proposed"] = written(context.store, home)
    seven_day_lead(context.store)
    yield context, {name: plan.plan_id for name, plan in plans.items()}
    context.store.close()


@pytest.fixture
def page(lake):
    """A browser without a sign-in."""
    with client_of(lake[0]) as client:
        yield client


@pytest.fixture
def fresh(tmp_path):
    """The context of a process with an empty database."""
    context = context_at(tmp_path, rules=RULES)
    yield context
    context.store.close()


@pytest.fixture
def signed_in(fresh):
    """A browser on the empty database, signed in with a token that may write."""
    with client_of(fresh) as client:
        answer = client.post("/login", data={"token": add_token(fresh.store, "write")}, headers=SAME_ORIGIN)
        assert answer.status_code == 200
        yield client

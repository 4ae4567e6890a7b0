# SPDX-License-Identifier: Apache-2.0
"""The daemon while its database is away, or behind: it counts that, tells it once, and goes on."""

import logging
import time

import pytest
from daemon_toys import running
from databases import sqlite_at
from toy_homes import daemon_at, value
from toys.timeline_tables import create
from waiting import wait_for

from service.control.store import DatabaseUnreachable, SchemaMismatch, Store
from service.server.daemon.instrumented_store import OutageLog
from service.server.observability.metrics import Metrics

pytestmark = pytest.mark.slow


def test_a_database_outage_is_counted_and_its_end_is_noticed(toys, home, caplog):
    caplog.set_level(logging.INFO)
    folder, away = home / "database", home / "away"
    folder.mkdir()
    url = sqlite_at(folder)
    store = Store(url)
    with running(daemon_at(home, url=url, mode="observe")) as daemon:
        wait_for(lambda: store.last_scan("t1"), "a scan")
        store.close()
        folder.rename(away)
        daemon.store.close()  # a connection opened before still reaches the file in its new place
        wait_for(lambda: value(daemon, "database_errors_total") >= 3, "errors counted")
        wait_for(daemon.readiness_problem, "not ready")
        away.rename(folder)
        wait_for(lambda: daemon.readiness_problem() is None, "ready again")
        seen = store.last_scan("t1").taken_at
        wait_for(lambda: store.last_scan("t1").taken_at > seen, "scans going on")
    store.close()
    told = [one for one in caplog.messages if "lakefold continues and tries again" in one or "answers again" in one]
    # A call that was under way in another thread may still have reached the file once.
    assert [("answers" in one) for one in told] in ([False, True], [False, True] * 2), told


def test_a_call_that_began_before_an_outage_and_ends_well_does_not_end_it(caplog):
    caplog.set_level(logging.INFO)
    outages = OutageLog(Metrics("all"), "sqlite")
    before = time.monotonic()
    outages.call_failed(DatabaseUnreachable("gone"))
    outages.call_succeeded(before)
    outages.call_failed(DatabaseUnreachable("still gone"))
    assert caplog.messages == ["gone; lakefold continues and tries again"]
    outages.call_succeeded(time.monotonic() + 1)
    assert caplog.messages[1:] == ["database sqlite answers again"]


def test_a_database_that_is_unavailable_or_outdated_at_the_start_is_refused(toys, tmp_path):
    create(tmp_path / "lake" / "t1", name="t1")
    with pytest.raises(SchemaMismatch, match="lakefold db upgrade"):
        daemon_at(tmp_path)
    with pytest.raises(DatabaseUnreachable, match=r"database\.url"):
        daemon_at(tmp_path, url="postgresql+psycopg://nobody@127.0.0.1:1/nothing")

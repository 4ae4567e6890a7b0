# SPDX-License-Identifier: Apache-2.0
"""A real Hudi writer whose own commit callback has exactly the partitions of each commit scanned."""

from dataclasses import replace

import pytest
from api_toys import context_at
from daemon_toys import running
from hudi_tables import copy, rows, small_files, write
from kept_tables import kept
from pyspark.sql import functions as f
from waiting import wait_for

from lake.formats.hudi import FORMAT
from service.control.config.http import HttpSettings
from service.control.config.loader import load_config
from service.server.daemon.process import Daemon
from service.server.http.app import create_app
from service.server.http.server import HttpServer

pytestmark = pytest.mark.spark
KEY = "a key that nobody guesses"


def days(spark, low, high, *wanted):
    """Rows of the days ``wanted`` only."""
    return rows(spark, low, high, partitions=5).filter(f.col("dt").isin(*wanted)).coalesce(1)


def test_each_commit_of_a_hudi_writer_has_exactly_its_partitions_scanned(spark, tmp_path, monkeypatch):
    five = kept("callback", "trips", lambda base: small_files(spark, base, commits=1, partitions=5), __file__)
    base = copy(five, tmp_path / "lake" / "trips")
    path = tmp_path / "trips.toml"
    context = context_at(tmp_path)
    path.write_text(
        f'[database]\nurl = "sqlite:///{tmp_path}/lakefold.db"\n'
        f'[http]\nport = 0\nhudi_callback_key = "{KEY}"\n'
        '[daemon]\nrequest_interval = "100ms"\nreport_delay = "100ms"\n'
        f'[[sources]]\npath = "{tmp_path}/lake"\n'
        '[defaults]\nquiet_period = "0s"\nscan_interval = "1h"\n[[tables]]\nmatch = "*"\nmode = "compact"\n'
        'concurrency = "single_writer"\n'
    )
    looks, real = [], FORMAT.snapshot

    def snapshot(table, partitions=None):
        looks.append(None if partitions is None else sorted(partitions))
        return real(table, partitions)

    monkeypatch.setattr(FORMAT, "snapshot", snapshot, raising=False)
    config, store = load_config(path), context.store
    app = create_app(replace(context, config=config))
    with HttpServer(HttpSettings(port=0), app) as server, running(Daemon(config, "scheduler")):
        wait_for(lambda: store.last_scan("trips"), "the first scan")
        callback = {
            "hoodie.write.commit.callback.on": "true",
            "hoodie.write.commit.callback.http.url": f"{server.url}/v1/events/hudi",
            "hoodie.write.commit.callback.http.api.key": KEY,
        }
        write(days(spark, 1000, 1100, "2026-01-02", "2026-01-04"), base, "bulk_insert", options=callback)
        wait_for(lambda: len(looks) == 2, "a look after the bulk insert")
        write(days(spark, 0, 100, "2026-01-03"), base, "upsert", options=callback)
        wait_for(lambda: len(looks) == 3, "a look after the upsert")
        wait_for(lambda: store.write_reports() == [], "every report looked at")
    assert looks == [None, ["dt=2026-01-02", "dt=2026-01-04"], ["dt=2026-01-03"]]
    (plan,) = store.plans()  # the upsert has rewritten the file it changed, so that there is nothing to do after it
    assert store.plan(plan.plan_id).partitions == ("dt=2026-01-02", "dt=2026-01-04")
    store.close()

# SPDX-License-Identifier: Apache-2.0
"""A worker on toy tables in a process of its own: ``toy_worker.py DATABASE_URL LEASE_SECONDS once|serve SLOTS``."""

import logging
import sys
from datetime import timedelta
from typing import Any

from toy_format import ToyFormat

from executors.worker import Worker, WorkerSettings
from service.store import Store
from service.store.views import StoreSettings


def no_spark() -> Any:
    raise AssertionError("nothing here needs a Spark session")


def main() -> None:
    url, lease, how, slots = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    span = timedelta(seconds=float(lease))
    store = Store(url, StoreSettings(lease=span, backoff=timedelta(0), notify_events=frozenset({"plan.completed"})))
    toy = ToyFormat()
    worker = Worker(
        store=store,
        spark=no_spark,
        formats=lambda _: toy,
        settings=WorkerSettings(slots=int(slots), heartbeat=span / 4, idle=timedelta(seconds=0.1), patience=4 * span),
    )
    worker.install_signals()
    print(dict(worker.run_once() if how == "once" else worker.run()), flush=True)


if __name__ == "__main__":
    main()

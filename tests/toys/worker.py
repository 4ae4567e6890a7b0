# SPDX-License-Identifier: Apache-2.0
"""A worker in a separate process: ``python -m toys.worker CASE DATABASE_URL LEASE once|serve SLOTS MOST``.

``LEASE`` is in seconds, as is ``MOST``, the upper limit of the format's ``max_commit_duration``.
"""

import logging
import sys
from datetime import timedelta

from executors.context import RunContext
from executors.worker import Worker, WorkerSettings
from service.control.store import Store
from service.control.store.views import StoreSettings
from service.server.daemon import signals
from toys.processes import case_of


def main() -> None:
    name, url, lease, how, slots, most = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    span = timedelta(seconds=float(lease))
    store = Store(url, StoreSettings(lease=span, backoff=timedelta(0), notify_events=frozenset({"plan.completed"})))
    case = case_of(name)
    case.takes_at_most(timedelta(seconds=float(most)))
    worker = Worker(
        RunContext(
            store=store, spark=case.spark, formats=lambda _: case.format, engines=case.engines, heartbeat=span / 4
        ),
        settings=WorkerSettings(slots=int(slots), poll_interval=timedelta(seconds=0.1), drain_timeout=4 * span),
    )
    signals.install(drain=worker.drain, abort=worker.abort, reload=lambda: None)
    print(dict(worker.run_once() if how == "once" else worker.run()), flush=True)


if __name__ == "__main__":
    main()

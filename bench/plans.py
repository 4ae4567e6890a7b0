# SPDX-License-Identifier: Apache-2.0
"""Whole plans of lakefold: a scan, and a plan from its claim to its completion."""

import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from service.control.config.loader import Config


def configure(work: Path, tables: str) -> "Config":
    """Write a configuration with the sources and rules ``tables`` into ``work``, and create its database there."""
    from service.control.wiring import create_store, open_config

    file = work / "lakefold.toml"
    file.write_text(f'[database]\nurl = "sqlite:///{work}/lakefold.db"\n{tables}')
    config = open_config(file)
    with closing(create_store(config)) as store:
        store.upgrade()
    return config


def run_plan(config: "Config", spark: "SparkSession", table: str) -> dict[str, float]:
    """Scan the table called ``table`` and run the one plan that is planned.

    Returns the seconds of the scan (``plan``), from the claim to the completion (``run``), and of each step. Raises
    SystemExit unless there is one plan and it completes.
    """
    from executors.context import RunContext
    from executors.engines import create_engines
    from executors.worker import Worker
    from service.control.config.catalog import Catalog
    from service.control.planning.scan import scan_and_plan
    from service.control.wiring import create_store

    begun = time.perf_counter()
    with closing(create_store(config)) as store:
        answer = scan_and_plan(config, store, Catalog(config).find(table), actor="bench")
        if len(answer.plan_ids) != 1:
            raise SystemExit(f"expected one plan: {answer.text}")
        claimed = time.perf_counter()
        context = RunContext(store=store, spark=lambda: spark, engines=create_engines(lambda: spark))
        ended = Worker(context, executor="bench").run_once()
        ran = time.perf_counter() - claimed
        if dict(ended) != {"completed": 1}:
            raise SystemExit(f"the plan did not complete: {dict(ended)}")
        steps = store.plan(answer.plan_ids[0]).milliseconds
    return {"plan": claimed - begun, "run": ran, **{step: ms / 1000 for step, ms in steps.items()}}

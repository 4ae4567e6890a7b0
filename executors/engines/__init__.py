# SPDX-License-Identifier: Apache-2.0
"""The engines that formats use to rewrite data files, in the order of preference."""

from executors.engines.arrow import ArrowEngine
from executors.engines.orc_stitch import StitchEngine
from executors.engines.spark_sql import SparkEngine
from executors.engines.spark_tasks import SparkTasks
from lake.engines import RewriteEngine
from lake.ports import SparkProvider


def create_engines(spark: SparkProvider) -> tuple[RewriteEngine, ...]:
    """Return every engine. ``spark`` gives the session whose executors do the work."""
    return (ArrowEngine(SparkTasks(spark)), SparkEngine(spark), StitchEngine(spark))

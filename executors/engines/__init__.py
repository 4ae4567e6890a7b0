# SPDX-License-Identifier: Apache-2.0
"""The engines that formats use to rewrite data files, in the order of preference."""

from executors.engines.arrow import ArrowEngine
from executors.engines.spark_sql import SparkEngine
from executors.engines.spark_tasks import SparkTasks
from executors.engines.stitch.engine import HybridEngine, ParquetStitchEngine
from executors.engines.stitch.orc import OrcStitchEngine
from lake.engines import RewriteEngine
from lake.ports import SparkProvider


def create_engines(spark: SparkProvider) -> tuple[RewriteEngine, ...]:
    """Return every engine. ``spark`` gives the session in which they work.

    The engine that copies ORC stripes comes last, since small stripes stay small.
    """
    return (
        ParquetStitchEngine(SparkTasks(spark)),
        HybridEngine(SparkTasks(spark)),
        ArrowEngine(SparkTasks(spark)),
        SparkEngine(spark),
        OrcStitchEngine(spark),
    )

# SPDX-License-Identifier: Apache-2.0
"""What is reported of a rewrite while its jobs run, as Spark's status store has it."""

from unittest.mock import MagicMock

from lake.formats.hudi.rewrite.progress import ProgressReporter


def test_the_cpu_time_of_tasks_is_reported_while_their_jobs_run() -> None:
    spark = MagicMock()
    jvm = spark.sparkContext._jsc.sc()
    jvm.statusTracker().getJobIdsForTag.return_value = [1]
    jvm.statusTracker().getJobInfo().get().stageIds.return_value = [1, 2]
    stage = jvm.statusStore().lastStageAttempt()
    stage.inputBytes.return_value, stage.inputRecords.return_value = 10, 1
    reporter = ProgressReporter(spark, "tag", 100, lambda _: None)
    told = []
    for used in (3_000_000_000, 0):  # Spark may forget a stage
        stage.executorCpuTime.return_value = used
        told.append(reporter._next())
    assert [(progress.bytes_done, progress.cpu_seconds) for progress in told] == [(20, 6.0), (20, 6.0)]

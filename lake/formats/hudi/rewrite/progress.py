# SPDX-License-Identifier: Apache-2.0
"""The progress of a rewrite's jobs, as Spark counts it."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from lake.plan import RewriteProgress, sum_if_known
from lake.ports import ProgressCallback
from lake.spark_jobs import cpu_seconds, stage_ids

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REPORT_SECONDS = 0.5


class ProgressReporter:
    """Reports the input bytes read by the jobs of one tag, about twice a second, from its own thread.

    The progress of an engine, whose jobs do not have the tag, is added. The reported number of bytes never decreases
    and never exceeds the total; only ``finish`` reports the total itself. ``finish`` also reports the CPU time of all
    tasks; before, the CPU time covers the tasks that Spark has reported.
    """

    def __init__(self, spark: "SparkSession", tag: str, bytes_total: int, report: ProgressCallback) -> None:
        self._spark = spark
        self._tag = tag
        self._report = report
        self._last = RewriteProgress(bytes_done=0, bytes_total=bytes_total, spark_ui=spark.sparkContext.uiWebUrl)
        self._engine = self._last
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"progress {tag}", daemon=True)

    def __enter__(self) -> "ProgressReporter":
        self._report(self._last)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def add_engine(self, progress: RewriteProgress) -> None:
        """Add the progress of an engine."""
        self._engine = progress

    def finish(self, rows: int) -> None:
        """Report that everything is read and written."""
        self._stop.set()
        self._thread.join()
        last = self._last
        self._report(
            replace(
                last,
                bytes_done=last.bytes_total,
                rows_done=max(rows, last.rows_done),
                cpu_seconds=sum_if_known(
                    [cpu_seconds(self._spark.sparkContext, self._tag), self._engine.cpu_seconds or 0.0]
                ),
            )
        )

    def _run(self) -> None:
        while not self._stop.wait(_REPORT_SECONDS):
            # Spark may be stopping, or may have dropped a stage: this round is skipped.
            with contextlib.suppress(Exception):
                self._report(self._next())

    def _next(self) -> RewriteProgress:
        context, engine = self._spark.sparkContext, self._engine
        bytes_read, rows_read, cpu_ns = engine.bytes_done, engine.rows_done, int((engine.cpu_seconds or 0.0) * 1e9)
        store = context._jsc.sc().statusStore()
        for stage in stage_ids(context, self._tag):
            with contextlib.suppress(Exception):
                data = store.lastStageAttempt(stage)
                bytes_read += data.inputBytes()
                rows_read += data.inputRecords()
                cpu_ns += data.executorCpuTime()
        self._last = replace(
            self._last,
            bytes_done=min(self._last.bytes_total, max(self._last.bytes_done, bytes_read)),
            rows_done=max(self._last.rows_done, rows_read),
            cpu_seconds=max(self._last.cpu_seconds or 0.0, cpu_ns / 1e9),
        )
        return self._last


@contextlib.contextmanager
def tagged_jobs(spark: "SparkSession", tag: str) -> Iterator[None]:
    """Tag this thread's jobs within the block, so that they can be counted and cancelled."""
    context = spark.sparkContext
    context.addJobTag(tag)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            context.removeJobTag(tag)

# SPDX-License-Identifier: Apache-2.0
"""What completed plans did to partitions, in a file, as Spark's Hive auto-merge tells of it in an event log.

So whoever parses ``AutoMergeSmallFileEvent`` already goes on to do so, one line of JSON for each partition.
"""

import json
from pathlib import Path

from executors.observer import Observer
from executors.outcome import RunOutcome, RunResult
from lake.plan import Claim, partition_milliseconds

_EVENT = "org.apache.spark.sql.hive.execution.AutoMergeSmallFileEvent"


class MergeEventsObserver(Observer):
    """An ``executors.observer.Observer`` that adds to a file; several processes of one machine may share it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def plan_finished(self, claim: Claim, outcome: RunOutcome) -> None:
        """See Observer."""
        if outcome.result is not RunResult.COMPLETED:
            return
        spent = partition_milliseconds(outcome.figures, outcome.milliseconds)
        lines = (
            json.dumps(
                {
                    "Event": _EVENT,
                    "table": claim.plan.table.name,
                    "part": figures.partition,
                    "totalLenInByte": figures.bytes_before,
                    "numBefore": figures.files_before,
                    "numAfter": figures.files_after,
                    "diff": figures.files_before - figures.files_after,
                    "costInMillSec": cost,
                },
                separators=(",", ":"),
                ensure_ascii=False,
            )
            for figures, cost in zip(outcome.figures, spent, strict=True)
        )
        # One write of whole lines: those of another process do not come between.
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))

# SPDX-License-Identifier: Apache-2.0
"""The file of merge events: one JSON line for each partition of a completed plan.

The format is that of ``AutoMergeSmallFileEvent`` in the event log of Spark's Hive auto-merge, so that existing parsers
can read the file.
"""

import json
from pathlib import Path

from executors.observer import Observer
from executors.outcome import RunOutcome, RunResult
from lake.plan import Claim, partition_milliseconds

_EVENT = "org.apache.spark.sql.hive.execution.AutoMergeSmallFileEvent"


class MergeEventsObserver(Observer):
    """The observer that appends to the file; several processes of one machine may share it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def plan_finished(self, claim: Claim, outcome: RunOutcome) -> None:
        """See Observer."""
        if outcome.result is not RunResult.COMPLETED:
            return
        spent = partition_milliseconds(outcome.figures, sum(outcome.milliseconds.values()))
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
        # One write of whole lines, so that lines of other processes do not interleave.
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))

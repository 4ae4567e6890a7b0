# SPDX-License-Identifier: Apache-2.0
"""The common parts of the rewriting benchmarks: 19 narrow columns of a taxi company, and runs in other processes."""

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def trips(rows: "DataFrame") -> "DataFrame":
    """Return a trip for each id of ``rows``."""
    from pyspark.sql import functions as f

    def upto(limit: int, seed: int) -> "Column":
        return f.pmod(f.xxhash64("id", f.lit(seed)), f.lit(limit))

    def money(limit: int, seed: int) -> "Column":
        return upto(limit * 100, seed) / 100

    started = f.lit(1_767_225_600) + f.floor(f.col("id") / 4) + upto(300, 1)
    return rows.select(
        f.format_string("%012d", "id").alias("id"),
        f.lit("p00").alias("part"),
        (upto(2, 2) + 1).cast("int").alias("vendor"),
        f.timestamp_seconds(started).alias("at"),
        f.timestamp_seconds(started + 120 + upto(2400, 3)).alias("ended_at"),
        upto(6, 4).cast("int").alias("passengers"),
        money(20, 5).alias("distance"),
        f.floor(upto(20, 6) / 19 + 1).cast("int").alias("rate_code"),
        f.when(upto(100, 7) == 0, "Y").otherwise("N").alias("stored"),
        upto(265, 8).cast("int").alias("pickup_zone"),
        upto(265, 9).cast("int").alias("dropoff_zone"),
        (upto(4, 10) + 1).cast("int").alias("payment"),
        money(60, 11).alias("fare"),
        (upto(4, 12) / 2).alias("extra"),
        f.lit(0.5).alias("tax"),
        money(15, 13).alias("tip"),
        f.when(upto(20, 14) == 0, 6.55).otherwise(0.0).alias("tolls"),
        (money(60, 11) + money(15, 13) + 1.5).alias("total"),
        f.when(upto(10, 15) == 0, 0.0).otherwise(2.5).alias("congestion"),
    )


def child(program: str, *arguments: str) -> dict[str, Any]:
    """Run ``program`` with ``arguments`` and return the JSON of its last line. Raises SystemExit with its output."""
    done = subprocess.run([sys.executable, program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1]) if done.stdout.strip() else {}
    return answer

# SPDX-License-Identifier: Apache-2.0
"""The time machine against the real loop: a table is written and compacted, then its own history is replayed."""

import time

import pytest
from harness import Installation
from hudi_tables import SMALL_BLOOM, write

from lake.formats.hudi import FORMAT
from lake.model import TableRef

pytestmark = [pytest.mark.slow, pytest.mark.spark]

#: what is in a file must not shrink by being put together with others
PLAIN = SMALL_BLOOM | {"hoodie.parquet.compression.codec": "uncompressed", "hoodie.parquet.dictionary.enabled": "false"}
ROWS = 3000
TICK_SECONDS = 0.5


def frame(spark, low, high, version=0):
    """Rows of some 150 bytes that nothing compresses, two of three in the first of two partitions."""
    from pyspark.sql import functions as f

    return spark.range(low, high).select(
        f.format_string("%012d", "id").alias("id"),
        f.lit(version).cast("long").alias("ts"),
        f.when(f.col("id") % 3 == 0, "2026-01-02").otherwise("2026-01-01").alias("dt"),
        f.sha2(f.concat_ws("/", "id", f.lit(version)), 256).alias("letters"),
    )


@pytest.mark.parametrize("strategy", ["balanced", "hudi"])
@pytest.mark.crossed
def test_replay_of_the_policy_in_use_has_the_real_loops_files_and_its_bytes_within_a_twentieth(
    spark, tmp_path, strategy
):
    home = Installation(
        home=tmp_path,
        url=f"sqlite:///{tmp_path}/lakefold.db",
        policy={
            "strategy": strategy,
            "small_file_limit": "1MiB",
            "target_file_max": "4MiB",
            "min_input_files": 3,
            "scan_interval": f"{TICK_SECONDS}s",
            "verification": "footer",
            "payback": "0s",
        },
        write_options=PLAIN,
    )
    base = home.lake / "t"
    for number in range(9):
        if number == 5:
            write(frame(spark, 0, 900, version=1).coalesce(1), base, "upsert", options=PLAIN)
        else:
            write(frame(spark, number * ROWS, (number + 1) * ROWS).coalesce(1), base, options=PLAIN)
        time.sleep(TICK_SECONDS)  # what a tick sees of a commit is over before the next one
        home.run("plans", "request", "t")
        home.work(spark)
    plans = [plan for plan in home.json("plans", "list") if plan["state"] == "completed"]
    assert len(plans) >= 3
    for plan in plans:
        (shown,) = home.json("plans", "show", plan["plan_id"])
        assert shown["cost_benefit"]["actual"]["cpu_measured"], "its tasks were counted"
        assert 0 < shown["cost_benefit"]["actual"]["cpu_seconds"] < 60
    (found,) = home.json("tables", "replay", "t", "--days", "0.1")
    configured = next(policy for policy in found["policies"] if policy["name"] == "configured")
    slices = FORMAT.snapshot(TableRef(name="t", format="hudi", location=str(base))).slices
    live, rewritten = slices["bytes"].to_pylist(), sum(plan["input_bytes"] for plan in plans)
    print(f"\npredicted {configured['end']}, {configured['rewritten_bytes']} bytes rewritten by {configured['plans']}")
    print(f"real      {len(live)} files, {sum(live)} bytes, {rewritten} bytes rewritten by {len(plans)}")
    assert configured["final"]["files"] == len(live)
    assert configured["final"]["small_files"] == sum(size < 1 << 20 for size in live)
    assert configured["plans"] == len(plans)
    assert configured["final"]["bytes"] == pytest.approx(sum(live), rel=0.05)
    assert configured["rewritten_bytes"] == pytest.approx(rewritten, rel=0.05)

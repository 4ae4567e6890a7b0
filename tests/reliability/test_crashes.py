# SPDX-License-Identifier: Apache-2.0
"""kill -9 at each named failpoint, then another process: nothing lost, nothing twice, nothing left behind."""

import shutil

import pytest
from harness import Installation
from hudi_tables import table_rows
from invariants import check_plan_landed_once, ids_in_hudi_rs
from support import SOAK, record_figure

from lake.plan import Step

FAILPOINTS = [f"{when}_{step}" for step in Step for when in ("before", "after")]
#: under the table's lock, which then stays behind
FAILPOINTS.insert(FAILPOINTS.index("after_commit"), "in_commit")
#: plans that one executor has under way when it is killed, each at another step: what costs most is its JVM
TOGETHER = 1 if SOAK else len(FAILPOINTS)


@pytest.mark.spark
@pytest.mark.crossed
@pytest.mark.timeout(7200 if SOAK else 900)
def test_a_plan_whose_executor_is_killed_at_any_step_commits_exactly_once(
    database_url, spark, template, template_with_statistics, tmp_path
):
    database = "sqlite" if database_url.startswith("sqlite") else "postgresql"
    tables = {f"t.n{number}": tmp_path / "lake" / f"n{number}" for number in range(len(FAILPOINTS))}
    before = {}
    read = {made: table_rows(spark, made) for made in (template, template_with_statistics)}
    for (table, base), name in zip(tables.items(), FAILPOINTS, strict=True):
        # What a kill can tear in a metadata table it tears in a commit.
        made = template_with_statistics if SOAK or name.endswith("_commit") else template
        shutil.copytree(made, base)
        before[table] = read[made]
    # Leases outlast the kills, so that no worker takes over a plan before all are dead.
    installation = Installation(
        home=tmp_path, url=database_url, tables=tables, policy={"lease": "1h"}, daemon={"executor_slots": TOGETHER}
    )

    plans = {}
    for first in range(0, len(FAILPOINTS), TOGETHER):
        *held, last = FAILPOINTS[first : first + TOGETHER]
        victims = list(tables)[first : first + TOGETHER]
        for table in victims:
            plans[table] = installation.json("plans", "request", table)[0]["plan_ids"][0]
        # Each point but the last holds the first plan that comes by, so that the last is reached by the one plan left.
        failpoints = ",".join([*(f"{name}=hold" for name in held), f"{last}=kill"])
        killed = installation.run("worker", "--once", failpoints=failpoints, expect=None)
        assert killed.returncode == -9, f"{last} was not reached:\n{killed.stderr[-3000:]}"
        for table in victims:
            assert table_rows(spark, tables[table]) == before[table], (
                f"readers saw half a plan after a kill at {failpoints}"
            )

    installation.expire_leases()
    installation.work(spark)

    for table, base in tables.items():
        check_plan_landed_once(installation, table, base, plans[table])
        assert table_rows(spark, base) == before[table]
        assert ids_in_hudi_rs(base) == list(range(600))
    record_figure(
        f"kill -9 of an executor at {len(tables)} named failpoints, plans and leases on {database}",
        f"{len(tables)} kills, {len(tables)} plans committed exactly once, rows the same, no file without owner",
    )

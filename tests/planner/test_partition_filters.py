# SPDX-License-Identifier: Apache-2.0
"""Which partitions are planned."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from plan_inputs import NOW, File, groups, plan, reasons, texts

from planner.partition_selection import select_partitions
from planner.policy.policy import SizingPolicy

DAYS = [f"dt=2026-02-{day:02d}" for day in range(1, 29)]
PREFIX = "hoodie.clustering.plan.strategy."
MODE = "hoodie.clustering.plan.partition.filter.mode"


@pytest.mark.parametrize(
    ("settings", "chosen"),
    [
        ({}, DAYS),
        ({"skip_latest_partitions": 26}, DAYS[:2]),
        ({"skip_latest_partitions": 99}, []),
        ({"partition_filter": "recent_days"}, [DAYS[26], DAYS[27]]),
        ({"partition_filter": "recent_days", "recent_partitions": 0}, DAYS),
        ({MODE: "RECENT_DAYS", f"{PREFIX}daybased.skipfromlatest.partitions": 1}, [DAYS[25], DAYS[26]]),
        ({MODE: "RECENT_DAYS", f"{PREFIX}daybased.lookback.partitions": 99}, DAYS),
        ({"partition_filter": "day_rolling"}, [DAYS[12]]),
        (
            {
                MODE: "SELECTED_PARTITIONS",
                f"{PREFIX}cluster.begin.partition": "dt=2026-02-03",
                f"{PREFIX}cluster.end.partition": "dt=2026-02-05",
            },
            DAYS[2:5],
        ),
        ({"partition_filter": "selected", "partition_begin": "dt=2026-02-27"}, DAYS[26:]),
        ({f"{PREFIX}partition.selected": "dt=2026-02-09,dt=2026-02-02/,nowhere"}, [DAYS[1], DAYS[8]]),
        ({"partition_filter": "regex", "partition_regex": "dt=2026-02-0[12]"}, DAYS[:2]),
        ({"partition_filter": "regex", "partition_regex": "2026"}, []),
        ({f"{PREFIX}partition.regex.pattern": ".*-1[0-9]", MODE: "RECENT_DAYS"}, [DAYS[17], DAYS[18]]),
    ],
)
def test_a_filter_chooses_these_partitions_in_this_order(settings: dict[str, Any], chosen: list[str]) -> None:
    assert select_partitions(reversed(DAYS), SizingPolicy.from_settings(settings), now=NOW) == chosen


def test_day_rolling_takes_another_partition_each_hour_and_all_within_a_day() -> None:
    policy = SizingPolicy.from_settings({"partition_filter": "day_rolling"})
    midnight = datetime(2026, 3, 1, tzinfo=UTC)
    seen = [select_partitions(DAYS, policy, now=midnight + timedelta(hours=hour)) for hour in range(24)]
    assert seen[0] == [DAYS[0], DAYS[24]]
    assert sorted(path for paths in seen for path in paths) == DAYS
    tokyo = datetime(2026, 3, 1, 5, tzinfo=timezone(timedelta(hours=9)))
    assert select_partitions(DAYS, policy, now=tokyo) == [DAYS[5]]


def test_slices_of_other_partitions_have_the_reason_that_their_partition_was_not_selected() -> None:
    files = [File(id=f"{day}{i}", bytes=10, partition=day) for day in DAYS[:3] for i in range(2)]
    planning = plan(files, {"partition_filter": "recent_days", "recent_partitions": 1})
    assert groups(planning) == [[f"{DAYS[2]}0", f"{DAYS[2]}1"]]
    assert reasons(planning)[f"{DAYS[0]}1"] == "filtered"
    assert texts(planning)[f"{DAYS[0]}1"] == "partition not selected (recent_days)"


def test_partitions_requested_by_name_replace_the_filter() -> None:
    files = [File(id=f"{day}{i}", bytes=10, partition=day) for day in DAYS[:3] for i in range(2)]
    planning = plan(files, {"partition_filter": "recent_days"}, partitions=[DAYS[0], "nowhere"])
    assert groups(planning) == [[f"{DAYS[0]}0", f"{DAYS[0]}1"]]

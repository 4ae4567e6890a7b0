# SPDX-License-Identifier: Apache-2.0
"""Policy settings, objectives among them: each holds where it is set, is read by something, else it is refused."""

import ast
import json
from datetime import timedelta
from pathlib import Path

import pytest
from config_files import ORDERS, written

import service
from lake.model import TableRef
from planner.policy.fields import GLOBAL_FIELDS
from planner.policy.policy import DEFAULTS, FIELD_PARSERS, setting_name
from service.control.config.loader import ConfigError, load_config
from service.control.config.table_settings import (
    CLAIM_TIME_FIELDS,
    OBJECTIVE_FIELDS,
    OverrideError,
    check_rules,
    configure_table,
)

pytestmark = pytest.mark.usefixtures("clean_environment")

#: a valid value of each policy setting, none of them its default
SAMPLES = {
    "small_file_limit_bytes": "200MiB",
    "split_file_limit_bytes": "4GiB",
    "target_file_max_bytes": "900MiB",
    "min_input_files": 3,
    "quiet_period": "1min",
    "partition_filter": "recent_days",
    "recent_partitions": 3,
    "skip_latest_partitions": 1,
    "reads_per_day": 7,
    "payback": "30d",
    "priority_weight": 2,
    "budget_bytes_per_hour": "3GiB",
    "budget_bytes_per_day": "30GiB",
    "budget_cpu_hours_per_hour": 0.5,
    "budget_cpu_hours_per_day": 4,
    "run_windows": ["sat-sun"],
    "run_time_zone": "Europe/Berlin",
    "slo_small_file_share": "5%",
    "slo_files_per_gib": 6,
    "slo_oldest_small_file": "2h",
    "slo_goal": "99.5%",
    "slo_window": "7d",
    "partition_selected": ["a"],
    "partition_begin": "a",
    "partition_end": "b",
    "partition_regex": "a.*",
    "strategy": "hudi",
    "min_row_group_bytes": "4MiB",
    "max_bytes_per_group": "3GiB",
    "max_files_per_group": 9,
    "max_num_groups": 9,
    "max_bytes_per_plan": "70GiB",
    "file_slices_sort_by": ["instant_time"],
    "log_only_slice_size_bytes": "1MiB",
    "compaction": False,
    "compact_log_files": 9,
    "compact_delete_files": 8,
    "compact_log_bytes": "1MiB",
    "compact_log_ratio": 0.5,
    "compact_delete_ratio": "20%",
    "compact_age": "1h",
    "compact_delta_commits": 9,
    "max_slices_per_compaction": 9,
    "rewrite_first": "clustering",
    "engine": "spark",
    "compression": "zstd",
    "sort_columns": ["a"],
    "layout": "hilbert",
    "verification": "hash",
    "adopt_pending": True,
    "table_services": ["clean"],
    "table_services_interval": "1h",
    "retention": "1d",
    "scan_interval": "1min",
    "sweep_interval": "1min",
    "lease": "2min",
    "heartbeat": "10s",
    "max_attempts": 9,
    "backoff": "10s",
    "backoff_max": "1h",
    "max_inflight_per_table": 2,
}
#: what a setting says nothing without
TOGETHER = {
    "layout": {"sort_columns": ["a", "b"]},
    "partition_selected": {"partition_filter": "selected"},
    "partition_begin": {"partition_filter": "selected"},
    "partition_end": {"partition_filter": "selected"},
    "partition_regex": {"partition_filter": "regex"},
}


@pytest.mark.parametrize("knob", FIELD_PARSERS)
def test_each_policy_setting_of_a_rule_holds_for_its_tables_or_is_refused_there(knob):
    settings = {setting_name(knob): SAMPLES[knob], **TOGETHER.get(knob, {})}
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
    written(f'[[tables]]\nmatch = "sales.*"\n{lines}')
    if knob in GLOBAL_FIELDS:
        with pytest.raises(ConfigError, match=rf"lakefold\.toml:3: {setting_name(knob)} has one value for all tables"):
            check_rules(load_config())
        with pytest.raises(OverrideError, match=r"set it in \[defaults\]"):
            configure_table(load_nothing(), ORDERS, {setting_name(knob): SAMPLES[knob]})
        return
    table = configure_table(load_config(), ORDERS)
    assert getattr(table.policy, knob) != DEFAULTS[knob]
    assert table.origins[knob].source == 'lakefold.toml [[tables]] #1 match "sales.*"'
    elsewhere = configure_table(load_config(), TableRef(name="other", format="hudi", location="/other"))
    assert getattr(elsewhere.policy, knob) == DEFAULTS[knob]


def load_nothing():
    """The configuration without a file."""
    Path("lakefold.toml").unlink()
    return load_config()


@pytest.mark.slow
def test_each_policy_setting_is_read_by_something_that_acts_on_it():
    root = Path(service.__file__).parents[1]
    only_checked = {root / "planner" / name for name in ("knobs.py", "rules.py")}
    sources = {path for room in ("planner", "service", "executors") for path in (root / room).rglob("*.py")}
    read = {
        node.attr
        for path in sources - only_checked
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
    }
    assert set(FIELD_PARSERS) - read == set()


@pytest.mark.parametrize("knob", sorted(OBJECTIVE_FIELDS))
def test_an_objective_is_set_for_tables_and_not_by_a_request(knob):
    with pytest.raises(OverrideError, match=f"{knob} is an objective of a table; it is set for tables"):
        configure_table(load_config(), ORDERS, {knob: SAMPLES[knob]})


def test_objectives_are_a_table_of_a_rule_or_of_the_defaults_and_rules_win():
    written(
        """
        [defaults.slo]
        small_file_share = "10%"
        window = "7d"

        [[tables]]
        match = "sales.*"
        [tables.slo]
        small_file_share = 0.02
        oldest_small_file = "2h"

        [[tables]]
        match = "sales.o*"
        slo.small_file_share = 0
        """
    )
    check_rules(load_config())
    policy = configure_table(load_config(), ORDERS).policy
    assert (policy.slo_small_file_share, policy.slo_oldest_small_file) == (0, timedelta(hours=2))
    assert policy.slo_window == timedelta(days=7)
    items = configure_table(load_config(), TableRef(name="sales.items", format="hudi", location="/items"))
    assert items.policy.slo_small_file_share == 0.02
    assert items.origins["slo_small_file_share"].key == "slo.small_file_share"
    assert (
        configure_table(load_config(), TableRef(name="x", format="hudi", location="/x")).policy.slo_small_file_share
        == 0.1
    )


def test_a_fault_in_a_nested_table_is_named_with_its_line():
    written('[[tables]]\nmatch = "*"\n[tables.slo]\nsmall_file_share = 0.1\ngoal = 99\n')
    with pytest.raises(ConfigError, match=r"lakefold\.toml:5: slo_goal is 99 but must be above 0 and below 1"):
        check_rules(load_config())
    written("[defaults.slo]\nfiles_per_gib = -1\n")
    with pytest.raises(ConfigError, match=r"lakefold\.toml:2: slo_files_per_gib is -1 but must be"):
        check_rules(load_config())


@pytest.mark.parametrize("knob", sorted(CLAIM_TIME_FIELDS))
def test_a_setting_that_applies_at_the_claim_is_not_set_by_a_request(knob):
    with pytest.raises(OverrideError, match=f"{knob} applies when a plan is claimed"):
        configure_table(load_config(), ORDERS, {knob: SAMPLES[knob]})

# SPDX-License-Identifier: Apache-2.0
"""The knobs: defaults, aliases, and what is refused in which words."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_inputs import GIB, MIB

from planner.policy.aliases import ALIASES, IGNORED_KEYS
from planner.policy.policy import FIELD_PARSERS, PartitionFilter, PolicyError, SizingPolicy, setting_name


def test_the_defaults_are_those_of_the_documentation() -> None:
    policy = SizingPolicy()
    assert (policy.small_file_limit_bytes, policy.target_file_max_bytes) == (300 * MIB, GIB)
    assert (policy.max_bytes_per_group, policy.max_num_groups, policy.max_bytes_per_plan) == (2 * GIB, 30, 60 * GIB)
    assert (policy.min_input_files, policy.max_inflight_per_table) == (2, 1)
    assert (policy.quiet_period, policy.retention) == (timedelta(minutes=15), timedelta(days=7))
    assert (policy.scan_interval, policy.sweep_interval) == (timedelta(minutes=5), timedelta(seconds=15))
    assert (policy.lease, policy.heartbeat) == (timedelta(seconds=60), timedelta(seconds=15))
    assert (policy.max_attempts, policy.backoff, policy.backoff_max) == (
        5,
        timedelta(seconds=30),
        timedelta(minutes=30),
    )
    assert (policy.strategy, policy.engine, policy.layout, policy.verification) == (
        "balanced",
        "auto",
        "linear",
        "footer",
    )
    assert SizingPolicy.from_settings({}) == policy


@pytest.mark.parametrize(
    ("settings", "knob", "value"),
    [
        ({"small_file_limit": "250MiB"}, "small_file_limit_bytes", 250 * MIB),
        ({"small_file_limit_bytes": 5}, "small_file_limit_bytes", 5),
        ({"target_file_max": "1.5GiB"}, "target_file_max_bytes", 3 * GIB // 2),
        ({"quiet_period": "90s"}, "quiet_period", timedelta(seconds=90)),
        ({"retention": 0}, "retention", timedelta(0)),
        ({"max_bytes_per_group": "3221225472"}, "max_bytes_per_group", 3 * GIB),
        ({"max_num_groups": "7"}, "max_num_groups", 7),
        ({"sort_columns": "city, Day"}, "sort_columns", ("city", "Day")),
        ({"sort_columns": ["city"]}, "sort_columns", ("city",)),
        ({"strategy": "HUDI"}, "strategy", "hudi"),
        ({"hoodie.clustering.plan.strategy.small.file.limit": "314572800"}, "small_file_limit_bytes", 300 * MIB),
        ({"hoodie.clustering.plan.strategy.small.file.limit": "300 MB"}, "small_file_limit_bytes", 300 * MIB),
        ({"hoodie.clustering.plan.strategy.max.num.groups": "3"}, "max_num_groups", 3),
        ({"hoodie.clustering.plan.strategy.max.bytes.per.group": 3 * GIB}, "max_bytes_per_group", 3 * GIB),
        ({"hoodie.clustering.plan.strategy.sort.columns": "a,b"}, "sort_columns", ("a", "b")),
        (
            {"hoodie.clustering.plan.strategy.file.slices.sort.by": "INSTANT_TIME,SIZE"},
            "file_slices_sort_by",
            ("instant_time", "size"),
        ),
        (
            {"hoodie.clustering.plan.partition.filter.mode": "DAY_ROLLING"},
            "partition_filter",
            PartitionFilter.DAY_ROLLING,
        ),
        ({"hoodie.clustering.plan.strategy.partition.selected": "a,b"}, "partition_selected", ("a", "b")),
        ({"hoodie.clustering.plan.strategy.partition.regex.pattern": "dt=(1|2)"}, "partition_regex", "dt=(1|2)"),
        ({"hoodie.layout.optimize.strategy": "Z-ORDER", "sort_columns": "a"}, "layout", "zorder"),
        ({"clustering.plan.strategy.small.file.limit": 600}, "small_file_limit_bytes", 600 * MIB),
        ({"clustering.plan.strategy.small.file.limit": "600 (Optional)"}, "small_file_limit_bytes", 600 * MIB),
        ({"clustering.plan.strategy.target.file.max.bytes": "1073741824"}, "target_file_max_bytes", GIB),
        ({"spark.hive.automerge.least.filenum": "3"}, "min_input_files", 3),
        ({"spark.hive.automerge.block.percent": "0.25"}, "target_file_max_bytes", 32 * MIB),
        (
            {"spark.hive.automerge.block.percent": 0.5, "dfs.blocksize": "256MB"},
            "small_file_limit_bytes",
            128 * MIB,
        ),
    ],
)
def test_a_setting_sets_its_knob(settings: dict[str, object], knob: str, value: object) -> None:
    assert getattr(SizingPolicy.from_settings(settings), knob) == value


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"small_file_limit": "2GiB"}, ["small_file_limit 2.0 GiB", "above target_file_max 1.0 GiB", "lower"]),
        ({"target_file_max": "3GiB"}, ["target_file_max 3.0 GiB", "above max_bytes_per_group 2.0 GiB"]),
        ({"max_bytes_per_plan": "1GiB"}, ["max_bytes_per_group 2.0 GiB", "max_bytes_per_plan 1.0 GiB"]),
        (
            {"split_file_limit": "2047MiB"},
            ["split_file_limit 2.0 GiB (2146435072 B)", "below 2.0 GiB", "twice target_file"],
        ),
        ({"split_file_limit": "2GiB", "strategy": "hudi"}, ["split_file_limit has no effect with strategy hudi"]),
        ({"small_file_limit": 0}, ["small_file_limit is 0 B", "above 0"]),
        ({"small_file_limit": -1}, ["small_file_limit: -1 is not a size"]),
        ({"small_file_limit_bytes": -1}, ["small_file_limit_bytes: -1 is not a size"]),
        ({"small_file_limit": 300}, ["small_file_limit: 300 has no unit; write 300B or 300MiB"]),
        ({"small_file_limit": " 1.5 "}, ["1.5B or 1.5MiB"]),
        ({"retention": 7}, ["retention: 7 has no unit; write 7s or 7min"]),
        ({"quiet_period": "900"}, ["quiet_period: 900 has no unit"]),
        ({"quiet_period": 1.5}, ["1.5s or 1.5min"]),
        ({"small_file_limit": "-1"}, ["small_file_limit", "'-1' is not a size"]),
        ({"small_file_limit": "3 apples"}, ["'3 apples' is not a size", "300MiB"]),
        ({"small_file_limit": 2.5}, ["2.5 is not a size"]),
        ({"small_file_limit": True}, ["True is not a size"]),
        ({"small_file_limit": None}, ["None is not a size"]),
        ({"max_num_groups": 0}, ["max_num_groups is 0", "at least 1"]),
        ({"max_num_groups": "many"}, ["'many' is not a whole number"]),
        ({"min_input_files": 0}, ["min_input_files is 0", "at least 1"]),
        ({"compact_log_ratio": "nan"}, ["compact_log_ratio is nan"]),
        ({"quiet_period": "soon"}, ["quiet_period", "'soon' is not a duration"]),
        ({"quiet_period": -1}, ["quiet_period: -1 is not a duration"]),
        ({"heartbeat": "60s"}, ["heartbeat 60 s", "shorter than lease 60 s"]),
        ({"backoff": "1h"}, ["backoff 60 min", "above backoff_max 30 min"]),
        ({"strategy": "best"}, ["strategy is 'best' but must be one of balanced, hive, hudi"]),
        ({"engine": "duck"}, ["engine is 'duck'", "auto, stitch, hybrid, arrow, spark"]),
        ({"verification": "none"}, ["'none' is not one of footer, hash"]),
        ({"layout": "zorder"}, ["layout zorder", "sort_columns"]),
        ({"partition_filter": "regex"}, ["no pattern", "partition_regex"]),
        ({"partition_filter": "selected"}, ["names no partition", "partition_selected"]),
        ({"partition_begin": "a"}, ["no effect", "partition_filter = selected"]),
        ({"partition_regex": "("}, ["partition_regex '('", "not a regular expression"]),
        ({"smal_file_limit": 1}, ["smal_file_limit is not a setting", "did you mean small_file_limit?"]),
        (
            {"hoodie.clustering.plan.strategy.small.file.limits": 1},
            ["did you mean hoodie.clustering.plan.strategy.small.file.limit?"],
        ),
        ({"xyzzy": 1}, ["xyzzy is not a setting"]),
        ({"spark.hive.automerge.block.percent": "x"}, ["spark.hive.automerge.block.percent", "not a size"]),
        ({"hoodie.clustering.plan.partition.filter.mode": "WEEKS"}, ["'WEEKS'", "RECENT_DAYS"]),
    ],
)
def test_a_bad_setting_is_refused_in_one_line_with_rule_value_and_setting(
    settings: dict[str, object], words: list[str]
) -> None:
    with pytest.raises(PolicyError) as refusal:
        SizingPolicy.from_settings(settings)
    line = str(refusal.value)
    assert "\n" not in line
    for word in words:
        assert word in line


def test_flinks_dialect_has_flinks_default_limit() -> None:
    assert SizingPolicy.from_settings({}, dialect="flink").small_file_limit_bytes == 600 * MIB
    base = SizingPolicy()
    assert SizingPolicy.from_settings({}, dialect="flink", base=base) == base


def test_overrides_go_over_a_base_policy_and_the_later_key_wins_with_a_note() -> None:
    base = SizingPolicy.from_settings({"max_num_groups": 4, "small_file_limit": "10B"})
    policy = SizingPolicy.from_settings(
        {"small_file_limit": "20B", "hoodie.clustering.plan.strategy.small.file.limit": 30}, base=base
    )
    assert (policy.max_num_groups, policy.small_file_limit_bytes) == (4, 30)
    assert policy.notes == ("hoodie.clustering.plan.strategy.small.file.limit = 30 overrides small_file_limit",)


def test_nested_tables_are_read_as_dotted_keys() -> None:
    nested = {"hoodie": {"clustering": {"plan": {"strategy": {"max": {"num": {"groups": 9}}}}}}}
    assert SizingPolicy.from_settings(nested).max_num_groups == 9


def test_settings_without_effect_are_accepted_with_a_note_that_names_them() -> None:
    settings = {
        "hoodie.parquet.small.file.limit": 104857600,
        "hoodie.clustering.inline": "true",
        "hoodie.datasource.write.recordkey.field": "id",
        "spark.hive.automerge.enabled": "true",
        "dfs.blocksize": 1,
        "hoodie.clustering.plan.strategy.daybased.skipfromlatest.partitions": 3,
    }
    policy = SizingPolicy.from_settings(settings)
    assert policy == SizingPolicy()
    assert len(policy.notes) == len(settings)
    for key in settings:
        assert any(note.startswith(f"{key} = ") and "is not used" in note for note in policy.notes), key


def test_hudis_day_settings_count_in_their_own_filter_mode() -> None:
    policy = SizingPolicy.from_settings(
        {
            "hoodie.clustering.plan.strategy.daybased.skipfromlatest.partitions": 3,
            "hoodie.clustering.plan.strategy.daybased.lookback.partitions": 5,
            "hoodie.clustering.plan.partition.filter.mode": "RECENT_DAYS",
        }
    )
    assert (policy.skip_latest_partitions, policy.recent_partitions) == (3, 5)


def test_every_alias_names_a_knob_and_no_key_is_both_used_and_ignored() -> None:
    assert {alias.field_name for alias in ALIASES.values()} <= set(FIELD_PARSERS)
    assert not set(ALIASES) & set(IGNORED_KEYS)


def test_the_options_of_a_plan_are_those_of_its_policy() -> None:
    policy = SizingPolicy.from_settings(
        {
            "target_file_max": "1GiB",
            "sort_columns": "a",
            "layout": "hilbert",
            "verification": "hash",
            "compression": "ZSTD",
        }
    )
    options = policy.rewrite_options
    assert (options.target_file_max_bytes, options.sort_columns, options.layout) == (GIB, ("a",), "hilbert")
    assert (options.verification, options.compression, options.engine) == ("hash", "zstd", "auto")


@given(
    limit=st.integers(1, 4000),
    target=st.integers(0, 4000),
    group=st.integers(0, 4000),
    minutes=st.integers(0, 10**6),
    files=st.integers(1, 50),
)
def test_a_policys_settings_are_read_as_they_were_written(
    limit: int, target: int, group: int, minutes: int, files: int
) -> None:
    policy = SizingPolicy(
        small_file_limit_bytes=limit * 1000,
        target_file_max_bytes=(limit + target) * 1000,
        max_bytes_per_group=(limit + target + group) * 1000,
        quiet_period=timedelta(minutes=minutes),
        min_input_files=files,
        partition_selected=("a", "b"),
    )
    assert SizingPolicy.from_settings(policy.to_settings()) == policy
    assert set(policy.to_settings()) <= {setting_name(knob) for knob in FIELD_PARSERS}

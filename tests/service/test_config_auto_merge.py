# SPDX-License-Identifier: Apache-2.0
"""The settings of Spark's auto merge: which of ours each is, and which place wins."""

from dataclasses import replace

import pytest
from config_files import MIB, ORDERS, written

from service.control.config.loader import ConfigError, load_config
from service.control.config.table_settings import OverrideError, configure_table
from service.control.serializers import table_settings

pytestmark = pytest.mark.usefixtures("clean_environment")


def test_disabled_spark_auto_merge_turns_its_tables_off_and_names_the_line():
    written('[[tables]]\nmatch = "sales.*"\nspark.hive.automerge.enabled = "false ( off )"\n')
    table = configure_table(load_config(), ORDERS)
    assert table.mode == "off"
    origin = table.origins["mode"]
    assert (origin.source, origin.key) == (
        'lakefold.toml [[tables]] #1 match "sales.*"',
        "spark.hive.automerge.enabled",
    )
    (mode,) = [row for row in table_settings(table) if row["setting"] == "mode"]
    assert "spark.hive.automerge.enabled = 'false ( off )'" in mode["origin"]
    assert any("sets mode = off" in note for note in table.policy.notes)


@pytest.mark.parametrize(
    ("rules", "mode"),
    [
        ("spark.hive.automerge.enabled = true", "observe"),
        ('mode = "compact"\nspark.hive.automerge.enabled = true', "compact"),
        ('mode = "compact"\nspark.hive.automerge.enabled = false', "compact"),  # its own name wins beside it
        ('mode = "compact"\n[[tables]]\nmatch = "*"\nspark.hive.automerge.enabled = false', "off"),
        ('spark.hive.automerge.enabled = false\n[[tables]]\nmatch = "*"\nmode = "compact"', "compact"),
        (
            'mode = "compact"\n[[tables]]\nmatch = "*"\nspark.hive.automerge.enabled = false\n'
            '[[tables]]\nmatch = "sales.*"\nspark.hive.automerge.enabled = true',
            "compact",
        ),
    ],
)
def test_the_last_setting_of_a_mode_decides_by_its_name_or_by_the_switch_of_spark(rules, mode):
    written(f'[[tables]]\nmatch = "*"\n{rules}\n')
    assert configure_table(load_config(), ORDERS).mode == mode


def test_the_switch_of_spark_in_the_defaults_turns_all_tables_off_unless_a_rule_overrides_it():
    written('[defaults]\nspark.hive.automerge.enabled = false\n[[tables]]\nmatch = "sales.o*"\nmode = "compact"\n')
    assert configure_table(load_config(), ORDERS).mode == "compact"
    assert configure_table(load_config(), replace(ORDERS, name="logs.all")).mode == "off"


def test_the_switch_of_spark_is_neither_a_word_nor_a_setting_of_a_request():
    written('[[tables]]\nmatch = "*"\nspark.hive.automerge.enabled = "perhaps"\n')
    with pytest.raises(ConfigError, match="enabled: 'perhaps' is neither true nor false"):
        configure_table(load_config(), ORDERS)
    written("[defaults]\n")
    with pytest.raises(OverrideError, match="not by a request"):
        configure_table(load_config(), ORDERS, {"spark.hive.automerge.enabled": False})


def test_the_settings_of_spark_auto_merge_are_sizes_files_and_a_note():
    """The document's table as it stands there: 001_582934f838c8208f.txt."""
    written(
        '[[tables]]\nmatch = "sales.*"\nmode = "compact"\ndfs.blocksize = "256MB"\n'
        "spark.hive.automerge.enabled = true\nspark.hive.automerge.least.filenum = 3\n"
        "spark.hive.automerge.block.percent = 0.25\nspark.hive.automerge.shuffle.enabled = false\n"
    )
    policy = configure_table(load_config(), ORDERS).policy
    assert (policy.min_input_files, policy.target_file_max_bytes, policy.small_file_limit_bytes) == (
        3,
        64 * MIB,
        64 * MIB,
    )
    assert [note.split(" = ")[0] for note in policy.notes if "is not used" in note] == [
        "spark.hive.automerge.shuffle.enabled",
        "spark.hive.automerge.enabled",
    ]
    own = configure_table(load_config(), ORDERS, {"small_file_limit": "10MiB"}).policy
    assert (own.target_file_max_bytes, own.small_file_limit_bytes) == (64 * MIB, 10 * MIB)

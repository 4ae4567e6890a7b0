# SPDX-License-Identifier: Apache-2.0
"""Configuration: what wins over what, where each value came from, and the one line for each mistake."""

import ast
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

import service
from lake.model import Concurrency, OnConflict, TableRef
from planner.cost import Prices
from planner.knobs import FOR_ALL_TABLES
from planner.policy import DEFAULTS, KNOBS, setting_name
from service.config.limits import ConfiguredLimits
from service.config.loader import ConfigError, find_file, line_of, load
from service.config.reference_doc import PAGE, render
from service.config.tables import OBJECTIVES, WHEN_TAKEN, OverrideError, check_rules, configure, default_policy
from service.documents import table_settings

pytestmark = pytest.mark.usefixtures("clean_environment")

MIB = 1 << 20
ORDERS = TableRef(name="sales.orders", format="hudi", location="/lake/sales/orders")


def written(text: str, name: str = "lakefold.toml") -> Path:
    """A configuration file in the working directory."""
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def refused(text: str) -> str:
    """The one line that refuses ``text``, rules included."""
    written(text)
    with pytest.raises(ConfigError) as caught:
        check_rules(load())
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_without_a_file_everything_has_its_default(tmp_path):
    config = load()
    assert config.file is None
    assert config.database.url.get_secret_value() == f"sqlite:///{tmp_path}/.local/share/lakefold/lakefold.db"
    table = configure(config, ORDERS)
    assert table.mode == "observe"
    assert table.policy.small_file_limit_bytes == 300 * MIB
    assert {table.origins[knob].place for knob in KNOBS} == {"default"}


def test_the_file_is_looked_for_in_four_places_the_nearest_first(monkeypatch, tmp_path):
    user = written("", str(tmp_path / ".config/lakefold/lakefold.toml"))
    assert find_file() == user
    here = written("")
    assert find_file() == here
    by_variable = written("", "other.toml")
    monkeypatch.setenv("LAKEFOLD_CONFIG", str(by_variable))
    assert find_file() == by_variable
    by_option = written("", "option.toml")
    assert find_file(by_option) == by_option


def test_a_named_file_that_is_not_there_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match=r"--config names nowhere\.toml, which is not a file"):
        load(Path("nowhere.toml"))
    monkeypatch.setenv("LAKEFOLD_CONFIG", "gone.toml")
    with pytest.raises(ConfigError, match=r"LAKEFOLD_CONFIG names gone\.toml"):
        load()


def test_later_matching_rules_win_and_the_request_wins_over_all(monkeypatch):
    written(
        """
        [defaults]
        small_file_limit = "64MiB"
        target_file_max = "256MiB"
        quiet_period = "1min"
        retention = "1d"

        [[tables]]
        match = "sales.*"
        mode = "compact"
        small_file_limit = "100MiB"

        [[tables]]
        match = "logs.*"
        small_file_limit = "1MiB"

        [[tables]]
        match = "sales.o*"
        small_file_limit = "120MiB"
        concurrency = "occ"
        on_conflict = "writer_wins"
        [tables.write_options]
        "hoodie.write.lock.provider" = "x.Provider"
        hoodie.write.lock.num_retries = 5
        """
    )
    monkeypatch.setenv("LAKEFOLD_DEFAULTS__QUIET_PERIOD", "2min")
    monkeypatch.setenv("LAKEFOLD_DEFAULTS__SMALL_FILE_LIMIT", "77MiB")
    table = configure(load(), ORDERS, {"retention": "3d"})
    assert table.mode == "compact"
    assert table.ref.concurrency is Concurrency.OCC
    assert table.ref.on_conflict is OnConflict.WRITER_WINS
    assert table.ref.write_options == {
        "hoodie.write.lock.provider": "x.Provider",
        "hoodie.write.lock.num_retries": "5",
    }
    assert table.policy.small_file_limit_bytes == 120 * MIB, "an env default loses to a matching rule"
    assert table.policy.quiet_period == timedelta(minutes=2)
    assert table.policy.retention == timedelta(days=3)
    places = {key: origin.place for key, origin in table.origins.items() if origin.place != "default"}
    assert places == {
        "small_file_limit_bytes": 'lakefold.toml [[tables]] #3 match "sales.o*"',
        "target_file_max_bytes": "lakefold.toml [defaults]",
        "quiet_period": "env LAKEFOLD_DEFAULTS__QUIET_PERIOD",
        "retention": "request",
        "mode": 'lakefold.toml [[tables]] #1 match "sales.*"',
        "concurrency": 'lakefold.toml [[tables]] #3 match "sales.o*"',
        "on_conflict": 'lakefold.toml [[tables]] #3 match "sales.o*"',
        "write_options": 'lakefold.toml [[tables]] #3 match "sales.o*"',
    }
    assert default_policy(load()).small_file_limit_bytes == 77 * MIB, "the environment wins over [defaults]"


def test_a_pasted_hudi_key_and_our_own_name_are_one_knob():
    written(
        """
        [defaults]
        hoodie.clustering.plan.strategy.small.file.limit = 104857600
        "hoodie.clustering.plan.strategy.target.file.max.bytes" = "268435456"
        [[tables]]
        match = "sales.*"
        small_file_limit = "50MiB"
        """
    )
    table = configure(load(), ORDERS)
    assert table.policy.small_file_limit_bytes == 50 * MIB
    assert table.policy.target_file_max_bytes == 256 * MIB
    assert table.policy.notes == ()
    origin = table.origins["target_file_max_bytes"]
    assert (origin.key, origin.value) == ("hoodie.clustering.plan.strategy.target.file.max.bytes", "268435456")
    assert default_policy(load()).small_file_limit_bytes == 100 * MIB


def test_the_flink_dialect_changes_defaults_and_says_so():
    written('[defaults]\ndialect = "flink"\n')
    table = configure(load(), ORDERS)
    assert table.policy.small_file_limit_bytes == 600 * MIB
    assert table.origins["small_file_limit_bytes"].key == "dialect"


def test_the_environment_sets_every_section(monkeypatch):
    written('[database]\nurl = "sqlite:////tmp/a.db"\n[http]\nport = 1\n')
    for name, value in {
        "DATABASE__URL": "sqlite:////tmp/b.db",
        "HTTP__PORT": "9999",
        "DAEMON__CLEAN_INTERVAL": "2min",
        "SPARK__MASTER": "local[3]",
        "SOURCES": '[{"path": "/lake"}]',
    }.items():
        monkeypatch.setenv(f"LAKEFOLD_{name}", value)
    config = load()
    assert config.database.url.get_secret_value() == "sqlite:////tmp/b.db"
    assert (config.http.port, config.daemon.clean_interval) == (9999, timedelta(minutes=2))
    assert config.spark == {"spark.master": "local[3]"}
    assert [source.path for source in config.sources] == ["/lake"]
    assert config.origins["database.url"] == "env LAKEFOLD_DATABASE__URL"


def test_spark_settings_may_be_written_with_or_without_quotes():
    written('[spark]\nmaster = "yarn"\nspark.executor.memory = "4g"\n"spark.speculation" = false\n')
    assert load().spark == {"spark.master": "yarn", "spark.executor.memory": "4g", "spark.speculation": "false"}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[daemon]\n\nlog_format = "text\n', "lakefold.toml:3: not valid TOML"),
        ("[daemn]\nx = 1\n", "lakefold.toml:1: unknown key 'daemn'; did you mean 'daemon'?"),
        (
            "[http]\nprt = 1\n",
            "lakefold.toml:2: unknown key 'http.prt'; did you mean 'port'?",
        ),
        ("[http]\nport = 70000\n", "lakefold.toml:2: http.port = 70000: "),
        (
            '[daemon]\nclean_interval = "soon"\n',
            "lakefold.toml:2: daemon.clean_interval = 'soon': 'soon' is not a duration",
        ),
        ('[daemon]\nclean_interval = "0s"\n', "clean_interval must be above zero"),
        (
            '[[sources]]\npath = "/a"\n[[sources]]\npth = "/b"\n',
            "lakefold.toml:4: unknown key '[[sources]] #2 pth'; did you mean 'path'?",
        ),
        ('[[sources]]\nprefix = "a"\n', "a source has either path, metastore, or database"),
        ('[[sources]]\npath = "/a"\ndatabase = "b"\n', "a source has either path, metastore, or database"),
        ('[[tables]]\nmode = "compact"\n', "lakefold.toml:1: [[tables]] #1 match is missing"),
        ('[[tables]]\nmatch = "*"\nmode = "compat"\n', "lakefold.toml:3: [[tables]] #1 mode = 'compat': "),
        ('[spark]\nmster = "x"\n', "unknown key 'mster'"),
        (
            "[defaults]\nsmall_file_limt = 3\n",
            "lakefold.toml:2: small_file_limt is not a setting; did you mean small_file_limit?",
        ),
        ('[defaults]\nmode = "compact"\n', "lakefold.toml:2: mode is set for tables"),
        ("[defaults]\nsmall_file_limit = 0\n", "lakefold.toml:2: small_file_limit is 0 B but must be above 0"),
        ('[defaults]\nsmall_file_limit = "much"\n', "lakefold.toml:2: small_file_limit: 'much' is not a size"),
        ('[defaults]\nsmall_file_limit = "2GiB"\n', "lakefold.toml:2: small_file_limit 2.0 GiB"),
        (
            '[[tables]]\nmatch = "a"\n[[tables]]\nmatch = "b[xy]?*"\nengine = "warp"\n',
            "lakefold.toml:5: engine is 'warp' but must be one of auto, stitch, arrow, spark; set engine",
        ),
    ],
)
def test_a_mistake_is_one_line_with_place_rule_and_remedy(text, line):
    assert line in refused(text)


@pytest.mark.parametrize(
    ("setting", "readings"),
    [
        ("small_file_limit = 300", "300 has no unit; write 300B or 300MiB"),
        ("target_file_max = '60'", "60 has no unit; write 60B or 60MiB"),
        ("quiet_period = 15", "15 has no unit; write 15s or 15min"),
        ("retention = '1.5'", "1.5 has no unit; write 1.5s or 1.5min"),
    ],
)
def test_a_bare_number_is_refused_with_the_two_readings_it_could_have(setting, readings):
    name = setting.partition(" ")[0]
    assert f"lakefold.toml:2: {name}: {readings}, whichever is meant" in refused(f"[defaults]\n{setting}\n")


def test_a_contradiction_between_places_names_both():
    line = refused('[defaults]\ntarget_file_max = "2GiB"\n[[tables]]\nmatch = "*"\nsmall_file_limit = "3GiB"\n')
    assert "small_file_limit 3.0 GiB" in line
    assert "target_file_max from lakefold.toml [defaults]" in line
    assert 'small_file_limit from lakefold.toml [[tables]] #1 match "*"' in line


def test_a_mistake_in_the_environment_names_the_variable(monkeypatch):
    monkeypatch.setenv("LAKEFOLD_HTTP__PORT", "many")
    with pytest.raises(ConfigError, match=r"environment variable LAKEFOLD_HTTP__PORT: http\.port"):
        load()
    monkeypatch.delenv("LAKEFOLD_HTTP__PORT")
    monkeypatch.setenv("LAKEFOLD_DEFAULT__RETENTION", "1d")
    with pytest.raises(
        ConfigError, match=r"LAKEFOLD_DEFAULT__RETENTION: no section 'default'; did you mean 'defaults'\?"
    ):
        load()
    monkeypatch.delenv("LAKEFOLD_DEFAULT__RETENTION")
    monkeypatch.setenv("LAKEFOLD_DEFAULTS__RETENTON", "1d")
    with pytest.raises(ConfigError, match="env LAKEFOLD_DEFAULTS__RETENTON: retenton is not a setting"):
        check_rules(load())
    monkeypatch.delenv("LAKEFOLD_DEFAULTS__RETENTON")
    monkeypatch.setenv("LAKEFOLD_SOURCES", "[not json")
    with pytest.raises(ConfigError, match="environment: "):
        load()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('[defaults]\ntable_services = ["vacuum"]\n', "lakefold.toml"),
        ('[[tables]]\nmatch = "a.*"\ntable_services = ["vacuum"]\n', '[[tables]] #1 match "a.*"'),
    ],
)
def test_what_no_format_of_the_sources_offers_is_refused(text: str, place: str):
    line = refused(text)
    assert place in line
    assert "table_services is 'vacuum' but must list some of clean, archive, rollback for hudi tables" in line


def test_a_bad_override_is_the_requests_mistake_not_the_files():
    written('[defaults]\ntarget_file_max = "500MiB"\n')
    with pytest.raises(OverrideError, match=r"small_file_limit 2\.0 GiB"):
        configure(load(), ORDERS, {"small_file_limit": "2GiB"})
    with pytest.raises(OverrideError, match="mode is set for tables"):
        configure(load(), ORDERS, {"mode": "compact"})


def test_a_file_that_cannot_be_read_is_named():
    Path("lakefold.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"lakefold\.toml: can't be read: not UTF-8"):
        load()


def test_line_of_finds_keys_of_the_right_table_and_falls_back_to_its_header():
    text = '[[tables]]\nmatch = "a"\n\n[[tables]]  # second\nmatch = "b"\n[tables.write_options]\n"k.x" = 1\n'
    assert line_of(text, ("tables", 1, "match")) == 5
    assert line_of(text, ("tables", 1, "k.x")) == 7
    assert line_of(text, ("tables", 1, "absent")) == 4
    assert line_of(text, ("daemon", "x")) is None


def test_the_tables_of_the_configuration_page_are_those_of_the_settings():
    page = PAGE.read_text(encoding="utf-8")
    assert page == render(page), "run: make config-doc"
    assert "| `small_file_limit` | 300 MiB | a base file strictly below is small |" in page


def test_a_configuration_page_without_a_place_for_a_section_is_refused():
    with pytest.raises(ValueError, match=r"the page has places for .*; the sections are \[database\]"):
        render(PAGE.read_text(encoding="utf-8").replace("<!-- generated: [daemon] -->", ""))


#: a valid value of each policy setting, none of them its default
SAMPLES = {
    "small_file_limit_bytes": "200MiB", "target_file_max_bytes": "900MiB", "min_input_files": 3, "quiet_period": "1min",
    "partition_filter": "recent_days", "recent_partitions": 3, "skip_latest_partitions": 1,
    "reads_per_day": 7, "payback": "30d", "weight": 2,
    "budget_bytes_per_hour": "3GiB", "budget_bytes_per_day": "30GiB", "budget_cpu_hours_per_hour": 0.5,
    "budget_cpu_hours_per_day": 4, "run_windows": ["sat-sun"], "run_time_zone": "Europe/Berlin",
    "slo_small_file_share": "5%", "slo_files_per_gib": 6, "slo_oldest_small_file": "2h", "slo_goal": "99.5%",
    "slo_window": "7d",
    "partition_selected": ["a"], "partition_begin": "a", "partition_end": "b", "partition_regex": "a.*",
    "strategy": "hudi", "max_bytes_per_group": "3GiB", "max_files_per_group": 9, "max_num_groups": 9,
    "max_bytes_per_plan": "70GiB", "file_slices_sort_by": ["instant_time"], "missing_base_bytes": "1MiB",
    "compaction": False, "compact_log_files": 9, "compact_log_bytes": "1MiB", "compact_log_ratio": 0.5,
    "compact_age": "1h", "compact_delta_commits": 9, "max_slices_per_compaction": 9, "rewrite_first": "clustering",
    "engine": "spark", "compression": "zstd", "sort_columns": ["a"], "layout": "hilbert", "receipt": "hash",
    "adopt_pending": True, "table_services": ["clean"], "table_services_interval": "1h", "retention": "1d",
    "scan_interval": "1min", "sweep_interval": "1min", "lease": "2min", "heartbeat": "10s", "max_attempts": 9,
    "backoff": "10s", "backoff_max": "1h", "max_inflight_per_table": 2,
}  # fmt: skip
#: what a setting says nothing without
TOGETHER = {
    "layout": {"sort_columns": ["a", "b"]},
    "partition_selected": {"partition_filter": "selected"},
    "partition_begin": {"partition_filter": "selected"},
    "partition_end": {"partition_filter": "selected"},
    "partition_regex": {"partition_filter": "regex"},
}


@pytest.mark.parametrize("knob", KNOBS)
def test_each_policy_setting_of_a_rule_holds_for_its_tables_or_is_refused_there(knob):
    settings = {setting_name(knob): SAMPLES[knob], **TOGETHER.get(knob, {})}
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
    written(f'[[tables]]\nmatch = "sales.*"\n{lines}')
    if knob in FOR_ALL_TABLES:
        with pytest.raises(ConfigError, match=rf"lakefold\.toml:3: {setting_name(knob)} has one value for all tables"):
            check_rules(load())
        with pytest.raises(OverrideError, match=r"set it in \[defaults\]"):
            configure(load_nothing(), ORDERS, {setting_name(knob): SAMPLES[knob]})
        return
    table = configure(load(), ORDERS)
    assert getattr(table.policy, knob) != DEFAULTS[knob]
    assert table.origins[knob].place == 'lakefold.toml [[tables]] #1 match "sales.*"'
    elsewhere = configure(load(), TableRef(name="other", format="hudi", location="/other"))
    assert getattr(elsewhere.policy, knob) == DEFAULTS[knob]


def load_nothing():
    """The configuration without a file."""
    Path("lakefold.toml").unlink()
    return load()


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
    assert set(KNOBS) - read == set()


def test_spark_auto_merge_that_is_off_turns_its_tables_off_and_says_by_which_line():
    written('[[tables]]\nmatch = "sales.*"\nspark.hive.automerge.enabled = "false ( off )"\n')
    table = configure(load(), ORDERS)
    assert table.mode == "off"
    origin = table.origins["mode"]
    assert (origin.place, origin.key) == (
        'lakefold.toml [[tables]] #1 match "sales.*"',
        "spark.hive.automerge.enabled",
    )
    (mode,) = [row for row in table_settings(table) if row["setting"] == "mode"]
    assert "spark.hive.automerge.enabled = 'false ( off )'" in mode["origin"]
    assert any("turns tables off" in note for note in table.policy.notes)


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
def test_the_last_place_that_says_a_mode_decides_whether_by_its_name_or_by_the_switch_of_spark(rules, mode):
    written(f'[[tables]]\nmatch = "*"\n{rules}\n')
    assert configure(load(), ORDERS).mode == mode


def test_all_tables_are_off_by_the_switch_of_spark_in_the_defaults_until_a_rule_says_otherwise():
    written('[defaults]\nspark.hive.automerge.enabled = false\n[[tables]]\nmatch = "sales.o*"\nmode = "compact"\n')
    assert configure(load(), ORDERS).mode == "compact"
    assert configure(load(), replace(ORDERS, name="logs.all")).mode == "off"


def test_the_switch_of_spark_is_neither_a_word_nor_a_setting_of_a_request():
    written('[[tables]]\nmatch = "*"\nspark.hive.automerge.enabled = "perhaps"\n')
    with pytest.raises(ConfigError, match="enabled: 'perhaps' is neither true nor false"):
        configure(load(), ORDERS)
    written("[defaults]\n")
    with pytest.raises(OverrideError, match="not by a request"):
        configure(load(), ORDERS, {"spark.hive.automerge.enabled": False})


def test_the_settings_of_spark_auto_merge_are_sizes_files_and_a_note():
    """The document's table as it stands there: 001_582934f838c8208f.txt."""
    written(
        '[[tables]]\nmatch = "sales.*"\nmode = "compact"\ndfs.blocksize = "256MB"\n'
        "spark.hive.automerge.enabled = true\nspark.hive.automerge.least.filenum = 3\n"
        "spark.hive.automerge.block.percent = 0.25\nspark.hive.automerge.shuffle.enabled = false\n"
    )
    policy = configure(load(), ORDERS).policy
    assert (policy.min_input_files, policy.target_file_max_bytes, policy.small_file_limit_bytes) == (
        3,
        64 * MIB,
        64 * MIB,
    )
    assert [note.split(" = ")[0] for note in policy.notes if "is not used" in note] == [
        "spark.hive.automerge.shuffle.enabled",
        "spark.hive.automerge.enabled",
    ]
    own = configure(load(), ORDERS, {"small_file_limit": "10MiB"}).policy
    assert (own.target_file_max_bytes, own.small_file_limit_bytes) == (64 * MIB, 10 * MIB)


def test_plans_are_ordered_by_their_worth_unless_a_formats_own_order_is_asked_for():
    written('[work]\nageing = "30min"\n')
    assert configure(load(), ORDERS).ageing == timedelta(minutes=30)
    written('[work]\nobjective = "hudi"\n')
    assert configure(load(), ORDERS).ageing == timedelta()
    for wrong, words in (('objective = "newest"', "must be worth or hudi"), ('ageing = "0s"', "greater than 0")):
        written(f"[work]\n{wrong}\n")
        with pytest.raises(ConfigError, match=words):
            load()


def test_prices_of_requests_and_storage_need_one_of_cpu():
    written('[cost]\ncpu_hour = 0.05\ngib_month = 0.02\ncurrency = "EUR"\n')
    assert configure(load(), ORDERS).prices == Prices(cpu_hour=0.05, gib_month=0.02, currency="EUR")
    written("[cost]\nrequest_1000 = 0.005\n")
    with pytest.raises(ConfigError, match="need cpu_hour"):
        load()


@pytest.mark.parametrize("knob", sorted(OBJECTIVES))
def test_an_objective_is_set_for_tables_and_not_by_a_request(knob):
    with pytest.raises(OverrideError, match=f"{knob} is an objective of a table; it is set for tables"):
        configure(load(), ORDERS, {knob: SAMPLES[knob]})


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
    check_rules(load())
    policy = configure(load(), ORDERS).policy
    assert (policy.slo_small_file_share, policy.slo_oldest_small_file) == (0, timedelta(hours=2))
    assert policy.slo_window == timedelta(days=7)
    items = configure(load(), TableRef(name="sales.items", format="hudi", location="/items"))
    assert items.policy.slo_small_file_share == 0.02
    assert items.origins["slo_small_file_share"].key == "slo.small_file_share"
    assert configure(load(), TableRef(name="x", format="hudi", location="/x")).policy.slo_small_file_share == 0.1


def test_a_fault_in_a_nested_table_is_named_with_its_line():
    written('[[tables]]\nmatch = "*"\n[tables.slo]\nsmall_file_share = 0.1\ngoal = 99\n')
    with pytest.raises(ConfigError, match=r"lakefold\.toml:5: slo_goal is 99 but must be above 0 and below 1"):
        check_rules(load())
    written("[defaults.slo]\nfiles_per_gib = -1\n")
    with pytest.raises(ConfigError, match=r"lakefold\.toml:2: slo_files_per_gib is -1 but must be"):
        check_rules(load())


@pytest.mark.parametrize("knob", sorted(WHEN_TAKEN))
def test_what_holds_when_a_plan_is_taken_is_not_set_by_a_request(knob):
    with pytest.raises(OverrideError, match=f"{knob} holds for whoever takes plans"):
        configure(load(), ORDERS, {knob: SAMPLES[knob]})


def test_limits_are_those_of_all_tables_and_of_each():
    assert not ConfiguredLimits(load()).any
    written(
        '[work]\nbytes_per_day = "1TiB"\n[defaults]\nbudget_bytes_per_hour = "5GiB"\n[[tables]]\nmatch = "sales.*"\n'
        'budget_bytes_per_hour = "9GiB"\nrun_windows = ["sat-sun"]\n'
    )
    limits = ConfiguredLimits(load())
    assert (limits.any, limits.budget.day.bytes) == (True, 1 << 40)
    assert [limits.of(name).budget.hour.bytes for name in ("sales.orders", "other")] == [9 << 30, 5 << 30]
    assert [len(limits.of(name).hours.windows) for name in ("sales.orders", "other")] == [1, 0]

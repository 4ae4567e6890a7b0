# SPDX-License-Identifier: Apache-2.0
"""Configuration: what wins over what, where each value came from, and the one line for each mistake."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from config_files import MIB, ORDERS, refused, written

from lake.model import Concurrency, OnConflict
from planner.cost import Prices
from planner.policy.policy import FIELD_PARSERS
from service.control.config.claim_limits import ConfiguredLimits
from service.control.config.config_doc import PAGE, render
from service.control.config.loader import ConfigError, find_config_file, find_line, load_config
from service.control.config.table_settings import OverrideError, check_rules, configure_table, default_policy
from service.control.serializers import table_settings

pytestmark = pytest.mark.usefixtures("clean_environment")


def test_without_a_file_everything_has_its_default(tmp_path):
    config = load_config()
    assert config.file is None
    assert config.database.url.get_secret_value() == f"sqlite:///{tmp_path}/.local/share/lakefold/lakefold.db"
    table = configure_table(config, ORDERS)
    assert table.mode == "observe"
    assert table.policy.small_file_limit_bytes == 300 * MIB
    assert {table.origins[knob].source for knob in FIELD_PARSERS} == {"default"}


def test_the_file_is_searched_for_in_four_places_nearest_first(monkeypatch, tmp_path):
    user = written("", str(tmp_path / ".config/lakefold/lakefold.toml"))
    assert find_config_file() == user
    here = written("")
    assert find_config_file() == here
    by_variable = written("", "other.toml")
    monkeypatch.setenv("LAKEFOLD_CONFIG", str(by_variable))
    assert find_config_file() == by_variable
    by_option = written("", "option.toml")
    assert find_config_file(by_option) == by_option


def test_a_missing_named_file_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match=r"--config names nowhere\.toml, which is not a file"):
        load_config(Path("nowhere.toml"))
    monkeypatch.setenv("LAKEFOLD_CONFIG", "gone.toml")
    with pytest.raises(ConfigError, match=r"LAKEFOLD_CONFIG names gone\.toml"):
        load_config()


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
    table = configure_table(load_config(), ORDERS, {"retention": "3d"})
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
    places = {key: origin.source for key, origin in table.origins.items() if origin.source != "default"}
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
    assert default_policy(load_config()).small_file_limit_bytes == 77 * MIB, "the environment wins over [defaults]"


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
    table = configure_table(load_config(), ORDERS)
    assert table.policy.small_file_limit_bytes == 50 * MIB
    assert table.policy.target_file_max_bytes == 256 * MIB
    assert table.policy.notes == ()
    origin = table.origins["target_file_max_bytes"]
    assert (origin.key, origin.value) == ("hoodie.clustering.plan.strategy.target.file.max.bytes", "268435456")
    assert default_policy(load_config()).small_file_limit_bytes == 100 * MIB


def test_the_flink_dialect_changes_defaults_and_states_it():
    written('[defaults]\ndialect = "flink"\n')
    table = configure_table(load_config(), ORDERS)
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
    config = load_config()
    assert config.database.url.get_secret_value() == "sqlite:////tmp/b.db"
    assert (config.http.port, config.daemon.clean_interval) == (9999, timedelta(minutes=2))
    assert config.spark == {"spark.master": "local[3]"}
    assert [source.path for source in config.sources] == ["/lake"]
    assert config.origins["database.url"] == "env LAKEFOLD_DATABASE__URL"


def test_spark_settings_may_be_written_with_or_without_quotes():
    written('[spark]\nmaster = "yarn"\nspark.executor.memory = "4g"\n"spark.speculation" = false\n')
    assert load_config().spark == {"spark.master": "yarn", "spark.executor.memory": "4g", "spark.speculation": "false"}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[daemon]\n\nlog_format = "text\n', "lakefold.toml:3: not valid TOML"),
        (
            '[spark]\nspark.sql.catalog.a = "b"\nspark.sql.catalog.a.type = "c"\n',
            'lakefold.toml:3: not valid TOML: Cannot overwrite a value; write a setting of Spark as "spark.key" = ',
        ),
        ("[spark]\nspark.executor.memory 4g\n", "; write a setting of Spark as"),
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
        ('[[sources]]\nprefix = "a"\n', "a source has either path, metastore, catalog, or database"),
        ('[[sources]]\npath = "/a"\ndatabase = "b"\n', "a source has either path, metastore, catalog, or database"),
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
            "lakefold.toml:5: engine is 'warp' but must be one of auto, stitch, hybrid, arrow, spark; set engine",
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
        load_config()
    monkeypatch.delenv("LAKEFOLD_HTTP__PORT")
    monkeypatch.setenv("LAKEFOLD_DEFAULT__RETENTION", "1d")
    with pytest.raises(
        ConfigError, match=r"LAKEFOLD_DEFAULT__RETENTION: no section 'default'; did you mean 'defaults'\?"
    ):
        load_config()
    monkeypatch.delenv("LAKEFOLD_DEFAULT__RETENTION")
    monkeypatch.setenv("LAKEFOLD_DEFAULTS__RETENTON", "1d")
    with pytest.raises(ConfigError, match="env LAKEFOLD_DEFAULTS__RETENTON: retenton is not a setting"):
        check_rules(load_config())
    monkeypatch.delenv("LAKEFOLD_DEFAULTS__RETENTON")
    monkeypatch.setenv("LAKEFOLD_SOURCES", "[not json")
    with pytest.raises(ConfigError, match="environment: "):
        load_config()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('[defaults]\ntable_services = ["vacuum"]\n', "lakefold.toml"),
        ('[[tables]]\nmatch = "a.*"\ntable_services = ["vacuum"]\n', '[[tables]] #1 match "a.*"'),
    ],
)
def test_a_service_that_no_format_of_the_sources_has_is_refused(text: str, place: str):
    line = refused(text)
    assert place in line
    assert "table_services is 'vacuum' but must list some of clean, archive, rollback for hudi tables" in line


def test_a_bad_override_is_the_requests_mistake_not_the_files():
    written('[defaults]\ntarget_file_max = "500MiB"\n')
    with pytest.raises(OverrideError, match=r"small_file_limit 2\.0 GiB"):
        configure_table(load_config(), ORDERS, {"small_file_limit": "2GiB"})
    with pytest.raises(OverrideError, match="mode is set for tables"):
        configure_table(load_config(), ORDERS, {"mode": "compact"})


def test_a_file_that_cannot_be_read_is_named():
    Path("lakefold.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"lakefold\.toml: can't be read: not UTF-8"):
        load_config()


def test_line_of_finds_keys_of_the_right_table_and_falls_back_to_its_header():
    text = '[[tables]]\nmatch = "a"\n\n[[tables]]  # second\nmatch = "b"\n[tables.write_options]\n"k.x" = 1\n'
    assert find_line(text, ("tables", 1, "match")) == 5
    assert find_line(text, ("tables", 1, "k.x")) == 7
    assert find_line(text, ("tables", 1, "absent")) == 4
    assert find_line(text, ("daemon", "x")) is None


def test_the_tables_of_the_configuration_page_are_those_of_the_settings():
    page = PAGE.read_text(encoding="utf-8")
    assert page == render(page), "run: make config-doc"
    assert "| `small_file_limit` | 300 MiB | a base file strictly below this size is small |" in page


def test_a_configuration_page_that_lacks_a_section_is_refused():
    with pytest.raises(ValueError, match=r"the page has places for .*; the sections are \[database\]"):
        render(PAGE.read_text(encoding="utf-8").replace("<!-- generated: [daemon] -->", ""))


def test_plans_are_ordered_by_their_worth_unless_a_formats_own_order_is_configured():
    written('[work]\nageing = "30min"\n')
    assert configure_table(load_config(), ORDERS).ageing == timedelta(minutes=30)
    written('[work]\nobjective = "hudi"\n')
    assert configure_table(load_config(), ORDERS).ageing == timedelta()
    for wrong, words in (('objective = "newest"', "must be benefit or hudi"), ('ageing = "0s"', "greater than 0")):
        written(f"[work]\n{wrong}\n")
        with pytest.raises(ConfigError, match=words):
            load_config()


def test_prices_of_requests_and_storage_need_one_of_cpu():
    written('[cost]\ncpu_hour = 0.05\ngib_month = 0.02\ncurrency = "EUR"\n')
    assert configure_table(load_config(), ORDERS).prices == Prices(cpu_hour=0.05, gib_month=0.02, currency="EUR")
    written("[cost]\nrequest_1000 = 0.005\n")
    with pytest.raises(ConfigError, match="need cpu_hour"):
        load_config()


def test_limits_are_those_of_all_tables_and_of_each():
    assert not ConfiguredLimits(load_config()).is_limited
    written(
        '[work]\nbytes_per_day = "1TiB"\n[defaults]\nbudget_bytes_per_hour = "5GiB"\n[[tables]]\nmatch = "sales.*"\n'
        'budget_bytes_per_hour = "9GiB"\nrun_windows = ["sat-sun"]\n'
    )
    limits = ConfiguredLimits(load_config())
    assert (limits.is_limited, limits.budget.day.bytes) == (True, 1 << 40)
    assert [limits.for_table(name).budget.hour.bytes for name in ("sales.orders", "other")] == [9 << 30, 5 << 30]
    assert [len(limits.for_table(name).schedule.windows) for name in ("sales.orders", "other")] == [1, 0]


MANY_FAULTS = """
[daemn]
x = 1
[http]
port = 70000
[defaults]
retention = "soon"
small_file_limt = 3
[[tables]]
match = "a.*"
mode = "compat"
engine = "warp"
target_file_max = "1KiB"
[[tables]]
mode = "compact"
lease = "5s"
"""


def test_all_mistakes_are_reported_at_once_each_with_its_line(run):
    written(MANY_FAULTS)
    code, _, err = run("config", "check")
    assert code == 1
    lines = [line.removeprefix("lakefold: lakefold.toml:").partition(":") for line in err.splitlines()]
    assert [int(number) for number, _, _ in lines] == [2, 5, 7, 8, 11, 12, 13, 14, 16], err
    problem_by_line = {int(number): text for number, _, text in lines}
    for line, words in {
        2: "unknown key 'daemn'",
        7: "retention: 'soon' is not a duration",
        8: "small_file_limt is not a setting",
        11: "mode = 'compat'",
        12: "engine is 'warp'",
        13: "above target_file_max 1.0 KiB",
        14: "match is missing",
        16: "lease has one value for all tables",
    }.items():
        assert words in problem_by_line[line], err
    problem = json.loads(run("config", "check", "--json")[2])
    assert len(problem["problems"]) == 9


def test_a_rule_that_matches_nothing_is_a_warning_and_with_strict_an_exit_code(run, tmp_path):
    (tmp_path / "lake").mkdir()
    written('[[sources]]\npath = "lake"\n[[tables]]\nmatch = "orders"\nmode = "observe"\n')
    code, _, err = run("config", "check")
    assert (code, err) == (0, 'warning: lakefold.toml [[tables]] #1 match "orders" matches no table\n')
    assert run("config", "check", "--strict")[0] == 3


def test_settings_that_zero_turns_off_are_described_so(run):
    written("[defaults]\npayback = 0\nquiet_period = 0\n[database]\nplan_retention = 0\n")
    service = dict(line.split()[:2] for line in run("config", "show")[1].splitlines()[1:])
    assert (service["work.bytes_per_hour"], service["database.plan_retention"]) == ("off", "for")
    found = configure_table(load_config(), ORDERS)
    shown = {row["setting"]: row["text"] for row in table_settings(found)}
    off = {name for name, text in shown.items() if text == "off"}
    assert off >= {"payback", "quiet_period", "budget_bytes_per_day", "slo_files_per_gib", "compact_age"}
    assert (shown["skip_latest_partitions"], shown["retention"]) == ("0", "7 d")

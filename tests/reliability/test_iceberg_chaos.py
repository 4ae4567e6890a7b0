# SPDX-License-Identifier: Apache-2.0
"""Chaos from outside on Iceberg tables: faults of processes, clocks, database and catalog, and owners who do things.

``LAKEFOLD_CHAOS_SEED`` replays the choices of a run, ``LAKEFOLD_CHAOS_MINUTES`` sets its length.
"""

import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chaos import clocks
from hive_chaos.database import Database, new_database
from iceberg_chaos import catalogs
from iceberg_chaos.run import Fault, IcebergChaos, in_words
from support import SOAK, needs_server, record_figure

#: format version, catalog, and lakefold's database
KINDS = ((2, "postgresql", "postgresql"), (3, "rest", "sqlite"))
SEED = int(os.environ.get("LAKEFOLD_CHAOS_SEED") or random.SystemRandom().randrange(10**6))
#: an hour in the long run
MINUTES = float(os.environ.get("LAKEFOLD_CHAOS_MINUTES") or (60 if SOAK else 30) / len(KINDS))
COMMITS = 3
#: what happens besides faults
WANTED = (
    "commits of plans",
    "rewrites of manifests",
    "moves of main",
    "snapshots that lakefold expired",
    "snapshots that the writer expired",
    "deaths at a step",
)

_all: dict[int, Counter[str]] = {}


@pytest.fixture
def home() -> Path:
    """Where the table, the notes and the logs are; kept if the test fails."""
    return Path(tempfile.mkdtemp(prefix="lakefold-iceberg-chaos-"))


@pytest.fixture
def store(database: str, home: Path) -> Iterator[Database]:
    """An empty database of that kind."""
    with new_database(database, home) as made:
        yield made


def run(chaos: IcebergChaos) -> None:
    """Do it; a failed run keeps its files."""
    try:
        chaos.run()
    except BaseException:
        print(f"Iceberg chaos failed; its logs, table and database are in {chaos.home}; LAKEFOLD_CHAOS_SEED={SEED}")
        print(chaos.tail())
        raise
    shutil.rmtree(chaos.home)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("database", ["sqlite"])
def test_no_row_is_lost_doubled_or_restored_while_a_writer_writes_and_a_daemon_is_killed_and_stopped(
    spark: Any, home: Path, store: Database
):
    with catalogs.running("rest", home) as catalog:
        faults = (Fault.POINT, Fault.STOP)
        run(IcebergChaos(2, f"slice/{SEED}", 240, home, catalog, store, spark, enough=COMMITS, chosen=faults, gap=1))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("version", "catalog", "database"), KINDS)
@pytest.mark.shown_by(
    "tests/reliability/test_iceberg_chaos.py::"
    "test_no_row_is_lost_doubled_or_restored_while_a_writer_writes_and_a_daemon_is_killed_and_stopped"
)
def test_no_row_is_lost_doubled_or_restored_under_any_faults_and_acts_of_an_iceberg_table_s_owner(
    version: int, catalog: str, database: str, spark: Any, home: Path, store: Database
):
    if clocks.library() is None:
        needs_server(clocks.INSTALL)
    with catalogs.running(catalog, home) as server:
        chaos = IcebergChaos(version, f"{version}/{SEED}", 60 * MINUTES, home, server, store, spark)
        run(chaos)
    _all[version] = chaos.counts
    figure = f"seed {SEED}, {MINUTES:g} minutes: {in_words(chaos.counts)}; every row equal to the ledger"
    record_figure(f"chaos on Iceberg tables: version {version}, catalog {catalog}, database {database}", figure)


if SOAK:

    @pytest.mark.soak
    def test_chaos_on_iceberg_tables_was_long_enough_and_had_each_fault():
        if len(_all) < len(KINDS):
            pytest.skip(f"{len(_all)} of {len(KINDS)} runs were here")
        total = sum(_all.values(), Counter[str]())
        assert total["seconds"] >= 3600
        assert [name for name in (*Fault, *WANTED) if not total[name]] == []

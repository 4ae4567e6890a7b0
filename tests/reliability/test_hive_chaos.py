# SPDX-License-Identifier: Apache-2.0
"""Chaos from outside on Hive tables: faults of processes, clocks, database and metastore, and owners who do things.

``LAKEFOLD_CHAOS_SEED`` replays the choices of a run, ``LAKEFOLD_CHAOS_MINUTES`` sets its length.
"""

import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos import clocks
from hive_chaos.database import Database, new_database
from hive_chaos.faults import Fault
from hive_chaos.owner import ACTS
from hive_chaos.run import HiveChaos, in_words
from hive_metastore import running
from support import SOAK, needs_server, record_figure

KINDS, DATABASES = ("parquet", "orc"), ("sqlite", "postgresql")
SEED = int(os.environ.get("LAKEFOLD_CHAOS_SEED") or random.SystemRandom().randrange(10**6))
#: an hour for each kind in the long run, half of it on each database
MINUTES = float(os.environ.get("LAKEFOLD_CHAOS_MINUTES") or (60 if SOAK else 30) / len(DATABASES))
#: what happens besides faults and acts of the owner, and counts only where it does
WANTED = (
    "slow loads",
    "loads into previous locations",
    "drops during halts",
    "late loads during halts",
    "checks of shared directories",
    "plans completed",
)

_all: dict[tuple[str, str], Counter[str]] = {}


@pytest.fixture
def home(kind: str, database: str) -> Path:
    """Where the ledger and the logs are; kept where the test fails."""
    return Path(tempfile.mkdtemp(prefix=f"lakefold-hive-chaos-{kind}-{database}-"))


@pytest.fixture
def store(database: str, home: Path) -> Iterator[Database]:
    """An empty database of that kind."""
    with new_database(database, home) as made:
        yield made


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.shown_by(
    "tests/reliability/test_hive_races.py::"
    "test_every_row_that_a_reader_has_seen_stays_until_an_overwrite_while_partitions_move"
)
def test_no_row_is_lost_doubled_or_restored_under_any_faults_and_owner_actions(
    kind: str, database: str, home: Path, store: Database
):
    if clocks.library() is None:
        needs_server(clocks.INSTALL)
    with running() as metastore:
        chaos = HiveChaos(kind, f"{kind}/{database}/{SEED}", 60 * MINUTES, home, metastore, store)
        try:
            chaos.run()
        except BaseException:
            print(f"Hive chaos failed; its logs, table and database are in {home}; LAKEFOLD_CHAOS_SEED={SEED}")
            print(chaos.tail())
            shutil.copytree(metastore.place, home / "place", symlinks=True)
            raise
    _all[kind, database] = chaos.counts
    figure = f"seed {SEED}, {MINUTES:g} minutes: {in_words(chaos.counts)}; every row equal to the ledger"
    record_figure(f"chaos on Hive tables: {kind} on {database}", figure)
    shutil.rmtree(home)


if SOAK:

    @pytest.mark.soak
    def test_chaos_on_hive_tables_was_long_enough_and_had_each_fault_and_each_act_of_an_owner():
        if len(_all) < len(KINDS) * len(DATABASES):
            pytest.skip(f"{len(_all)} of {len(KINDS) * len(DATABASES)} runs were here")
        for kind in KINDS:
            total = sum((counts for (one, _), counts in _all.items() if one == kind), Counter[str]())
            assert total["seconds"] >= 3600, kind
            wanted = [*Fault, *(f"owner: {act}" for act in ACTS), *WANTED]
            assert [name for name in wanted if not total[name]] == [], kind

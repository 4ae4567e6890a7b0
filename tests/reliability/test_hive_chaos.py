# SPDX-License-Identifier: Apache-2.0
"""Chaos from outside on Hive tables: faults of processes, clocks, database and metastore, and owners who do things.

``LAKEFOLD_CHAOS_SEED`` replays the choices of a run, ``LAKEFOLD_CHAOS_MINUTES`` sets its length.
"""

import os
import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hive_chaos.run import HiveChaos, in_words
from hive_metastore import running
from support import record_figure

SEED = int(os.environ.get("LAKEFOLD_CHAOS_SEED") or random.SystemRandom().randrange(10**6))
MINUTES = float(os.environ.get("LAKEFOLD_CHAOS_MINUTES") or 30)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", ["parquet", "orc"])
@pytest.mark.shown_by(
    "tests/reliability/test_hive_races.py::"
    "test_every_row_that_a_reader_has_seen_stays_until_an_overwrite_while_partitions_move"
)
def test_no_row_is_lost_doubled_or_there_again_whatever_dies_and_whatever_owners_do(kind: str):
    home = Path(tempfile.mkdtemp(prefix=f"lakefold-hive-chaos-{kind}-"))
    with running() as metastore:
        chaos = HiveChaos(kind, SEED, 60 * MINUTES, home, metastore)
        try:
            chaos.run()
        except BaseException:
            print(f"Hive chaos failed; its logs, table and database are in {home}; LAKEFOLD_CHAOS_SEED={SEED}")
            print(chaos.tail())
            shutil.copytree(metastore.place, home / "place", symlinks=True)
            raise
    record_figure(f"chaos on Hive tables: {kind}", f"seed {SEED}, {MINUTES:g} minutes: {in_words(chaos.counts)}")
    shutil.rmtree(home)

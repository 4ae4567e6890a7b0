# SPDX-License-Identifier: Apache-2.0
"""Chaos from outside: faults at random moments in real processes, and a ledger that knows every row.

``LAKEFOLD_CHAOS_SEED`` replays the schedule of a run, ``LAKEFOLD_CHAOS_MINUTES`` sets its length.
"""

import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import postgres
import pytest
from chaos import clocks
from chaos.cells import CELLS, Cell, Setting
from chaos.run import Chaos, in_words
from support import SOAK, needs_server, record_figure

SEED = int(os.environ.get("LAKEFOLD_CHAOS_SEED") or random.SystemRandom().randrange(10**6))
MINUTES = float(os.environ.get("LAKEFOLD_CHAOS_MINUTES") or 4)

#: what a soak of all kinds must have contained at the least, by the names of the figures
FEWEST = {
    "daemons that worked with wrong clocks or zones": 6,
    "wrong clocks of writers": 1,
    "locks that expired": 2,
    "switches of the metadata table": 8,
    "savepoints": 8,
    "restores": 8,
    "restores while plans ran": 2,
    "older states read": 100,
    "incremental reads": 200,
}

_all: dict[str, Counter[str]] = {}


@pytest.fixture
def databases(cell: Cell, home: Path) -> Iterator[tuple[tuple[str, str], postgres.Server | None]]:
    """Two empty databases, and the server that they are on if there is one."""
    if not cell.postgres:
        yield (f"sqlite:///{home}/a.db", f"sqlite:///{home}/b.db"), None
        return
    if postgres.binaries() is None:
        needs_server(postgres.INSTALL)
    server = postgres.Server(durable=True)
    try:
        yield (postgres.new_database(server.url, "a"), postgres.new_database(server.url, "b")), server
    finally:
        server.remove()


@pytest.fixture
def home(cell: Cell) -> Path:
    """Where the table, the ledger and the logs are; kept where the test fails."""
    return Path(tempfile.mkdtemp(prefix=f"lakefold-chaos-{cell}-"))


@pytest.mark.spark
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("cell", CELLS, ids=str)
@pytest.mark.shown_by("tests/reliability/test_races.py::test_a_writers_ledger_equals_the_table_after_every_plan")
def test_no_row_is_lost_doubled_or_changed_and_nothing_is_stuck_under_any_crash(cell, spark, home, databases):
    urls, server = databases
    if Setting.of(cell, SEED).needs_faketime and clocks.library() is None:
        needs_server(clocks.INSTALL)
    chaos = Chaos(
        cell,
        seed=SEED,
        seconds=60 * MINUTES,
        home=home,
        urls=urls,
        server=server,
        spark=spark,
        damages=3,
    )
    try:
        chaos.run()
    except BaseException:
        again = f"LAKEFOLD_CHAOS_SEED={SEED} LAKEFOLD_CHAOS_MINUTES={MINUTES:g} … -k {cell}"
        print(f"chaos failed; its logs, table and database are in {home}\nthe same schedule again: {again}")
        print(chaos.stage.tail())
        raise
    figures = chaos.figures()
    record_figure(f"chaos from outside: {cell}", f"seed {SEED}, {in_words(figures)}")
    _all[str(cell)] = figures
    shutil.rmtree(home)


if SOAK:

    @pytest.mark.soak
    def test_chaos_from_outside_was_long_and_violent_enough():
        if len(_all) < len(CELLS):
            pytest.skip(f"{len(_all)} of {len(CELLS)} kinds ran here")
        total = sum(_all.values(), Counter())
        assert total["seconds"] >= 3600
        assert total["kills"] + total["pauses"] >= 200
        missing = {name: (total[name], fewest) for name, fewest in FEWEST.items() if total[name] < fewest}
        assert not missing, f"too few, of all kinds together: {missing}"
        record_figure(f"chaos from outside: all {len(CELLS)} kinds", in_words(total))

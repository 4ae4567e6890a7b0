# SPDX-License-Identifier: Apache-2.0
"""What Spark reads incrementally, and of older states, before and after lakefold rewrote the table."""

from random import Random

import pytest
from chaos.cells import Cell, Setting, writer_options
from chaos.clocks import RIGHT
from chaos.comparing import Comparing
from chaos.faults import TABLE
from chaos.ledger import Ledger
from chaos.processes import WriterProcess
from chaos.stage import Stage
from chaos.steps import draw
from chaos.writer import Writer
from harness import Installation

KINDS = [
    Cell(merge_on_read=merge_on_read, version=version, postgres=False, occ=False)
    for merge_on_read in (False, True)
    for version in (9, 6)
]
_STEPS = (
    ("bulk_insert", "bulk_insert", "upsert", "bulk_insert", "delete"),
    ("upsert", "insert_overwrite", "bulk_insert"),
)


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """A stage without processes: steps and plans are done in this one."""
    monkeypatch.setattr(WriterProcess, "_begin", lambda writer: None)
    return Stage(tmp_path, tmp_path / "lake" / "trips", WriterProcess(tmp_path, [], RIGHT), [])


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.crossed(1)
@pytest.mark.parametrize("cell", KINDS, ids=lambda cell: f"{'mor' if cell.merge_on_read else 'cow'}-v{cell.version}")
def test_incremental_reads_return_the_writers_changes_and_no_row_that_lakefold_copied(spark, tmp_path, stage, cell):
    setting = Setting.of(cell, 0)
    # Nothing is cleaned or archived, so that all that was can be read, and compared.
    options = writer_options(cell, setting) | {
        "hoodie.table.timeline.timezone": "UTC",
        "hoodie.clean.automatic": "false",
        "hoodie.archive.automatic": "false",
        "hoodie.metadata.enable": "true",
    }
    ledger = Ledger(tmp_path / "ledger")
    writer = Writer(spark, stage.base, ledger, options, 40)
    lakefold = Installation(
        home=tmp_path / "lakefold",
        url=f"sqlite:///{tmp_path}/lakefold.db",
        policy={"compact_log_files": 1, "retention": "1h"},
        concurrency="single_writer",
        tables={TABLE: stage.base},
    )
    comparing = Comparing(stage, ledger, spark, Random(0))
    for steps in _STEPS:
        for operation in steps:
            writer.send(draw(1, ledger.next_number(), writer.state, 40, only=(operation,)))
        comparing.compare()
        lakefold.run("plans", "request", TABLE)
        lakefold.work(spark)
        comparing.compare(everything=True)
    assert sum(plan["state"] == "completed" for plan in lakefold.json("plans", "list")) >= len(_STEPS)
    assert comparing.counts["incremental reads"] >= 20
    assert comparing.counts["older states read"] >= 20

# SPDX-License-Identifier: Apache-2.0
"""The writers' models end in the files of the documents that the project comes from; each is cited by its file name."""

from pathlib import Path
from typing import Any

import pytest

from planner.writers.model import FileAction, SimulationStep
from planner.writers.scenario import parse_scenario, parse_toml
from planner.writers.simulation import Simulation, simulate

SCENARIOS = Path(__file__).parents[2] / "docs" / "scenarios"
MIB = 1 << 20

#: 000_ecc5d2bc7628b643.txt, its tables of settings
COW_OF_NOTEBOOK = {
    "hoodie.parquet.max.file.size": "125829120 ( 120MB )",
    "hoodie.parquet.small.file.limit": "104857600 ( 100MB )",
    "hoodie.copyonwrite.record.size.estimate": "175",
}
MOR_OF_NOTEBOOK = {"hoodie.logfile.max.size": "262144000 ( 250MB )"}
#: 001_582934f838c8208f.txt, its table of settings
AUTOMERGE = {
    "spark.hive.automerge.enabled": "true",
    "spark.hive.automerge.least.filenum": "3",
    "spark.hive.automerge.block.percent": "0.25",
    "spark.hive.automerge.shuffle.enabled": "false",
}
#: 002_e85acf5acd29e22d.txt, its lists of settings
BEST_SIZE = {
    "hoodie.parquet.max.file.size": "120MB",
    "hoodie.parquet.block.size": "120MB",
    "hoodie.parquet.small.file.limit": "100MB",
    "hoodie.copyonwrite.insert.split.size": "500000",
    "hoodie.copyonwrite.record.size.estimate": "1024（1kb）",
}
#: 003_4a5d6f3a735ff5fc.txt, its table for Spark and merge-on-read
HUDI_PAGE = {
    "hoodie.parquet.small.file.limit": "104857600 (Optional)",
    "hoodie.parquet.max.file.size": "125829120 (Optional)",
    "hoodie.merge.small.file.group.candidates.limit": "1 (Optional)",
    "hoodie.logfile.max.size": "1073741824 (Optional)",
    "hoodie.logfile.to.parquet.compression.ratio": "0.35 (Optional)",
}


def shipped(name: str, **changed: Any) -> Simulation:
    document = parse_toml((SCENARIOS / f"{name}.toml").read_text())
    document["settings"] = document.get("settings", {}) | changed.pop("settings", {})
    return simulate(parse_scenario(document | changed))


def megabytes(step: SimulationStep, partition: str = "") -> list[float]:
    """Base files as a listing in decimal megabytes shows them."""
    return [round(file.bytes / 1e6, 1) for file in step.files if file.partition == partition]


def added(step: SimulationStep, action: FileAction, row_bytes: int = 1) -> list[int]:
    return [change.added_rows * row_bytes for change in step.changes if change.action is action]


def cow_notebook_four_inserts() -> None:
    found = shipped("hudi-cow", settings=COW_OF_NOTEBOOK)
    assert [megabytes(step) for step in found.steps] == [
        [96.0],
        [110.6],
        [110.6, 3.7],
        [110.6, 125.8, 66.4],  # 120 MiB, the maximum, and "the remaining 66 MB"
    ]
    limit = found.small_file_limit_bytes
    assert [[file.bytes < limit for file in step.files] for step in found.steps] == [
        [True],
        [False],
        [False, True],
        [False, False, True],
    ]
    assert found.steps[3].files[1].bytes == pytest.approx(120 * MIB, abs=175)


def cow_notebook_defaults() -> None:
    found = shipped("hudi-cow-defaults")
    rows = [file.rows for file in found.steps[0].files if file.partition == "parity=1"]
    assert rows == [122_880] * 4 + [86_044]
    assert [int(size) for size in megabytes(found.steps[0], "parity=1")] == [21, 21, 21, 21, 15]
    assert [step.row_bytes_estimate for step in found.steps] == [1024, 175]
    written = [change.file for change in found.steps[1].changes if change.file.partition == "parity=1"]
    assert sum(file.bytes for file in written) == pytest.approx(417e6, rel=0.001)
    assert [file.bytes >= found.small_file_limit_bytes for file in written] == [True, True, True, False]


def cow_notebook_defaults_in_a_partition_without_small_files() -> None:
    later = {"operation": "insert", "partition": "year=2004", "bytes": "417MB"}
    first = {"operation": "insert", "partition": "year=2003", "rows": 1_155_127}
    found = shipped("hudi-cow-defaults", batches=[first, later])
    assert megabytes(found.steps[1], "year=2004") == [125.8, 125.8, 125.8, 39.5]


def mor_notebook_four_batches() -> None:
    found = shipped("hudi-mor", settings=MOR_OF_NOTEBOOK)
    slices = [(megabytes(step), [round(log / 1e6, 3) for log in step.files[0].log_sizes]) for step in found.steps]
    assert slices == [([96.0], []), ([96.0], [0.804]), ([96.0], []), ([96.0], [268.435, 38.565])]
    assert [change.action for change in found.steps[2].changes] == [FileAction.LOGGED, FileAction.COMPACTED]
    assert found.steps[2].changes[0].file.log_sizes == (804_000, 1_200_000)


def mor_notebook_with_small_blocks_splits_where_it_meant_to() -> None:
    found = shipped("hudi-mor", settings=MOR_OF_NOTEBOOK | {"hoodie.logfile.data.block.max.size": "1MB"})
    assert [round(log / MIB) for log in found.steps[3].files[0].log_sizes] == [251, 42]


def automerge_of_three_files() -> None:
    found = shipped("hive-automerge", settings=AUTOMERGE)
    (merged,) = found.steps[0].changes
    # {"table": …, "totalLenInByte": 233, "numBefore": 3, "numAfter": 1, "diff": 2, …}
    assert merged.action is FileAction.MERGED
    assert (merged.file.partition, merged.file.bytes) == ("second=visit/third=visit_7d", 233)
    assert (merged.merged_files, len(found.steps[0].files)) == (3, 1)
    assert found.target_bytes == 32 * MIB


def automerge_leaves_two_files_alone_and_all_when_it_is_off() -> None:
    two = [{"operation": "insert", "rows": 2, "bytes": 155}]
    assert len(shipped("hive-automerge", batches=two).steps[0].files) == 2
    off = shipped("hive-automerge", settings=AUTOMERGE | {"spark.hive.automerge.enabled": "false"})
    assert len(off.steps[0].files) == 3


def dynamic_partitions_make_a_file_a_task_and_partition() -> None:
    batch = {"operation": "insert", "partitions": ["a", "b", "c"], "bytes": "300MiB"}
    plain = simulate(parse_scenario({"writer": "hive", "batches": [batch]}))
    assert len(plain.steps[0].files) == 200 * 3
    coalesced = shipped("hive-automerge", batches=[batch])
    shuffled = shipped("hive-automerge", batches=[batch], settings={"spark.hive.automerge.shuffle.enabled": True})
    assert len(coalesced.steps[0].files) == len(shuffled.steps[0].files) == 10 * 3


def five_files_take_150_mb_and_300_k_rows_make_three() -> None:
    found = shipped("hudi-best-size", settings=BEST_SIZE)
    (step,) = found.steps
    assert added(step, FileAction.REWRITTEN, 1024) == [80 * MIB, 40 * MIB, 30 * MIB]
    assert added(step, FileAction.CREATED) == [120 * 1024, 120 * 1024, 60 * 1024]
    assert [file.bytes // MIB for file in step.files] == [120, 120, 120, 130, 105, 120, 120, 60]
    assert found.notes == ("hoodie.parquet.block.size = 120MB is not used: it changes none of this writer's files",)


def small_file_limit_zero_and_bulk_insert_fill_nothing() -> None:
    off = shipped("hudi-best-size", settings={"hoodie.parquet.small.file.limit": 0})
    assert added(off.steps[0], FileAction.REWRITTEN) == []
    assert added(off.steps[0], FileAction.CREATED) == [120 * 1024] * 3 + [90 * 1024]
    split = {"hoodie.parquet.small.file.limit": 0, "hoodie.copyonwrite.insert.auto.split": "false"}
    tuned = shipped(
        "hudi-best-size", settings=split, row_bytes=100, batches=[{"operation": "insert", "rows": 1_150_000}]
    )
    assert added(tuned.steps[0], FileAction.CREATED) == [500_000, 500_000, 150_000]
    bulk = shipped("hudi-best-size", batches=[{"operation": "bulk_insert", "rows": 460_800, "tasks": 4}])
    assert added(bulk.steps[0], FileAction.CREATED) == [115_200] * 4


def one_small_file_of_a_merge_on_read_table_takes_inserts() -> None:
    found = shipped("hudi-mor-sizing", settings=HUDI_PAGE)
    assert [[file.bytes // MIB for file in step.files] for step in found.steps] == [
        [120, 80, 20],
        [120, 80, 20],
        [120, 80, 20, 10],  # not into a file with logs
    ]
    compacted = shipped("hudi-mor-sizing", settings=HUDI_PAGE | {"hoodie.compact.inline.max.delta.commits": 2})
    assert [file.bytes // MIB for file in compacted.steps[2].files] == [120, 80, 30]


def two_candidates_and_copy_on_write_fill_all_small_files() -> None:
    two = shipped("hudi-mor-sizing", settings={"hoodie.merge.small.file.group.candidates.limit": 2})
    cow = shipped("hudi-mor-sizing", writer="hudi-cow", files=_FILES, batches=_INSERT)
    assert [file.bytes // MIB for file in two.steps[0].files] == [120, 100]
    assert [file.bytes // MIB for file in cow.steps[0].files] == [120, 100]


def logs_take_inserts_where_the_index_finds_rows_in_them() -> None:
    found = shipped("hudi-mor-sizing", settings={"hoodie.index.type": "HBASE"}, batches=_INSERT)
    (step,) = found.steps
    assert [file.bytes // MIB for file in step.files] == [40, 80]
    assert [round(file.log_bytes * 0.35 / MIB) for file in step.files] == [80, 20]


_FILES = [{"bytes": "40MiB"}, {"bytes": "80MiB"}]
_INSERT = [{"operation": "insert", "bytes": "100MiB"}]

SEEDS = {
    "000_ecc5d2bc7628b643.txt": (
        cow_notebook_four_inserts,
        cow_notebook_defaults,
        cow_notebook_defaults_in_a_partition_without_small_files,
        mor_notebook_four_batches,
        mor_notebook_with_small_blocks_splits_where_it_meant_to,
    ),
    "001_582934f838c8208f.txt": (
        automerge_of_three_files,
        automerge_leaves_two_files_alone_and_all_when_it_is_off,
        dynamic_partitions_make_a_file_a_task_and_partition,
    ),
    "002_e85acf5acd29e22d.txt": (
        five_files_take_150_mb_and_300_k_rows_make_three,
        small_file_limit_zero_and_bulk_insert_fill_nothing,
    ),
    "003_4a5d6f3a735ff5fc.txt": (
        one_small_file_of_a_merge_on_read_table_takes_inserts,
        two_candidates_and_copy_on_write_fill_all_small_files,
        logs_take_inserts_where_the_index_finds_rows_in_them,
    ),
}


@pytest.mark.parametrize(("seed", "number"), [(seed, n) for seed, numbers in SEEDS.items() for n in numbers])
def test_the_numbers_of_a_source_document_are_reproduced(seed: str, number: Any) -> None:
    number()

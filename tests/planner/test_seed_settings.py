# SPDX-License-Identifier: Apache-2.0
"""The settings of the documents that the project comes from, as they stand there, make a policy that plans."""

from typing import Any

import pytest
from plan_inputs import GIB, MIB, File, groups, plan, reasons

from planner.policy.policy import SizingPolicy

#: notebooks on Hudi's file layouts and sizing, copy-on-write and merge-on-read
FILE_SIZING_NOTEBOOKS = {
    "hoodie.parquet.max.file.size": "125829120 ( 120MB )",
    "hoodie.parquet.small.file.limit": "104857600 ( 100MB )",
    "hoodie.copyonwrite.record.size.estimate": "175",
    "hoodie.logfile.max.size": "262144000 ( 250MB )",
}
#: automatic merging of small files in Spark's Hive writes
HIVE_AUTOMERGE = {
    "spark.hive.automerge.enabled": "true",
    "spark.hive.automerge.least.filenum": "3",
    "spark.hive.automerge.block.percent": "0.25",
    "spark.hive.automerge.shuffle.enabled": "false",
}
#: notes on how Hudi keeps files at their best size
BEST_SIZE_NOTES = {
    "hoodie.parquet.max.file.size": "120MB",
    "hoodie.parquet.block.size": "120MB",
    "hoodie.parquet.small.file.limit": "100MB",
    "hoodie.copyonwrite.insert.split.size": "500000",
    "hoodie.copyonwrite.insert.auto.split": "true",
    "hoodie.copyonwrite.record.size.estimate": "1024",
}
#: Hudi's page on file sizing, Spark
HUDI_SPARK = {
    "hoodie.parquet.small.file.limit": "104857600 (Optional)",
    "hoodie.parquet.max.file.size": "125829120 (Optional)",
    "hoodie.copyonwrite.record.size.estimate": "1024 (Optional)",
    "hoodie.merge.small.file.group.candidates.limit": "1 (Optional)",
    "hoodie.logfile.max.size": "1073741824 (Optional)",
    "hoodie.logfile.to.parquet.compression.ratio": "0.35 (Optional)",
    "hoodie.clustering.plan.strategy.small.file.limit": "314572800 (Optional)",
    "hoodie.clustering.plan.strategy.target.file.max.bytes": "1073741824 (Optional)",
}
#: the same page, Flink
HUDI_FLINK = {
    "write.parquet.max.file.size": "120 (Optional)",
    "write.log.max.size": "1024 (Optional)",
    "clustering.plan.strategy.small.file.limit": "600 (Optional)",
    "clustering.plan.strategy.target.file.max.bytes": "1073741824 (Optional)",
}


@pytest.mark.parametrize(
    ("settings", "dialect", "limit", "target", "least"),
    [
        (FILE_SIZING_NOTEBOOKS, "spark", 300 * MIB, GIB, 2),
        (HIVE_AUTOMERGE, "spark", 32 * MIB, 32 * MIB, 3),
        (BEST_SIZE_NOTES, "spark", 300 * MIB, GIB, 2),
        (HUDI_SPARK, "spark", 314_572_800, 1_073_741_824, 2),
        (HUDI_FLINK, "spark", 600 * MIB, 1_073_741_824, 2),
        (HUDI_FLINK, "flink", 600 * MIB, 1_073_741_824, 2),
    ],
)
def test_the_settings_of_a_source_document_plan_a_table(
    settings: dict[str, str], dialect: Any, limit: int, target: int, least: int
) -> None:
    policy = SizingPolicy.from_settings(settings, dialect=dialect)
    assert (policy.small_file_limit_bytes, policy.target_file_max_bytes) == (limit, target)
    assert policy.min_input_files == least
    files = [File(id=f"f{i}", bytes=10 * MIB) for i in range(3)]
    planning = plan([*files, File(id="at", bytes=limit), File(id="big", bytes=2 * GIB)], policy)
    assert groups(planning) == [["f0", "f1", "f2"]]
    assert reasons(planning)["at"] == reasons(planning)["big"] == "above_limit"
    assert (planning.estimate.files_removed, planning.estimate.bytes_to_move) == (2, 30 * MIB)


@pytest.mark.parametrize("settings", [FILE_SIZING_NOTEBOOKS, BEST_SIZE_NOTES, HUDI_SPARK, HUDI_FLINK, HIVE_AUTOMERGE])
def test_every_pasted_key_that_does_not_size_plans_is_noted(settings: dict[str, str]) -> None:
    notes = SizingPolicy.from_settings(settings).notes
    noted = {note.split(" = ")[0] for note in notes}
    sizing = {key for key in settings if "clustering.plan.strategy" in key}
    sizing |= {"spark.hive.automerge.least.filenum", "spark.hive.automerge.block.percent"} & set(settings)
    assert noted == set(settings) - sizing


def test_a_slice_of_logs_counts_as_hudis_size_of_a_written_file() -> None:
    for settings in (FILE_SIZING_NOTEBOOKS, BEST_SIZE_NOTES, HUDI_SPARK, HUDI_FLINK):
        assert SizingPolicy.from_settings(settings).log_only_slice_size_bytes == 125_829_120


def test_a_partition_of_two_files_is_left_alone_by_automerge_settings() -> None:
    files = [File(id="a", bytes=100), File(id="b", bytes=133)]
    assert reasons(plan(files, HIVE_AUTOMERGE)) == {"a": "few_files", "b": "few_files"}
    planning = plan([*files, File(id="c", bytes=0)], HIVE_AUTOMERGE)
    assert (planning.estimate.input_files, planning.estimate.output_files) == (3, 1)

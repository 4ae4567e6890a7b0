# SPDX-License-Identifier: Apache-2.0
"""Scenarios and their simulation: a writer, its settings, the existing files, and the batches."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from planner.writers import settings
from planner.writers.hive import SparkHiveWriter
from planner.writers.hudi import CopyOnWrite
from planner.writers.hudi_mor import MergeOnRead
from planner.writers.model import (
    MAX_FILES,
    SimulatedFile,
    SimulationError,
    SimulationStep,
    WriteBatch,
    WriterModel,
    check_file_count,
)


class WriterKind(StrEnum):
    """The modelled writers."""

    HUDI_COW = "hudi-cow"
    HUDI_MOR = "hudi-mor"
    HIVE = "hive"


SETTINGS_BY_WRITER: Mapping[WriterKind, Mapping[str, settings.WriterSetting]] = {
    WriterKind.HUDI_COW: settings.HUDI_COW,
    WriterKind.HUDI_MOR: settings.HUDI_MOR,
    WriterKind.HIVE: settings.HIVE,
}
"""The settings of each writer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A scenario; ``settings`` are not parsed yet, ``files`` exist before the first batch."""

    writer: WriterKind
    settings: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[SimulatedFile, ...] = ()
    batches: tuple[WriteBatch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """The result of a scenario; ``notes`` are lines about settings without effect."""

    scenario: Scenario
    steps: tuple[SimulationStep, ...]
    small_file_limit_bytes: int
    target_bytes: int
    notes: tuple[str, ...]


def make_writer(
    kind: WriterKind, configured: Mapping[str, Any], files: Sequence[SimulatedFile] = ()
) -> tuple[WriterModel, list[str]]:
    """Return a writer with these settings, and a line for each setting without effect. Raises SimulationError."""
    values, notes = settings.parse_settings(SETTINGS_BY_WRITER[kind], configured)
    if kind is WriterKind.HIVE:
        enabled = values["spark.hive.automerge.enabled"]
        is_set = any(key.startswith("spark.hive.automerge.") for key in configured)
        return SparkHiveWriter(values, files, merge_enabled=is_set if enabled is None else enabled), notes
    model = CopyOnWrite if kind is WriterKind.HUDI_COW else MergeOnRead
    return model(values, files), notes


def simulate(scenario: Scenario, max_files: int = MAX_FILES) -> Simulation:
    """Simulate all batches in order. Raises SimulationError, also for more than ``max_files`` in all steps."""
    writer, notes = make_writer(scenario.writer, scenario.settings, scenario.files)
    return Simulation(
        scenario=scenario,
        steps=tuple(_simulate_batches(writer, scenario.batches, max_files)),
        small_file_limit_bytes=writer.small_file_limit_bytes,
        target_bytes=writer.target_bytes,
        notes=tuple(notes),
    )


def _simulate_batches(writer: WriterModel, batches: Sequence[WriteBatch], max_files: int) -> Iterator[SimulationStep]:
    listed = 0
    for number, batch in enumerate(batches, 1):
        estimate = writer.row_bytes_estimate
        try:
            changes = []
            for change in writer.write(batch):
                changes.append(change)
                listed += 1
                check_file_count(listed, max_files)
        except SimulationError as error:
            raise SimulationError(f"batch {number}: {error}") from None
        files = tuple(writer.files)
        listed += len(files)
        check_file_count(listed, max_files)
        yield SimulationStep(
            number=number, batch=batch, changes=tuple(changes), files=files, row_bytes_estimate=estimate
        )

# SPDX-License-Identifier: Apache-2.0
"""The document of a simulation: the files that a writer leaves after each batch."""

from collections.abc import Mapping, Sequence
from typing import Any

from planner.writers.model import MAX_FILES, FileChange, SimulatedFile, SimulationError, SimulationStep
from planner.writers.scenario import parse_scenario
from planner.writers.simulation import simulate
from service.former_names import both_names
from service.problems import BAD_SETTING, ProblemError
from service.text import format_size, plural, share_of


def simulation(scenario: Mapping[str, Any], *, most_files: int = MAX_FILES) -> dict[str, Any]:
    """Simulate ``scenario``, a document with the keys of docs/planning.md. Raises ProblemError if it is not valid."""
    try:
        found = simulate(parse_scenario(scenario), most_files)
    except SimulationError as error:
        raise ProblemError(BAD_SETTING, str(error)) from error
    limit = found.small_file_limit_bytes
    return {
        "writer": found.scenario.writer,
        "settings": dict(found.scenario.settings),
        "small_file_limit_bytes": limit,
        "target_bytes": found.target_bytes,
        "notes": list(found.notes),
        "before": [_file_document(file, limit) for file in found.scenario.files],
        "steps": [_step_document(step, limit) for step in found.steps],
    }


def _step_document(step: SimulationStep, limit: int) -> dict[str, Any]:
    small = [file for file in step.files if file.bytes < limit]
    return {
        "batch": step.number,
        "writes": [
            {"operation": write.operation, "partition": write.partition, "rows": write.rows, "bytes": write.bytes}
            for write in step.batch.writes
        ],
        "row_bytes_estimate": step.row_bytes_estimate,
        "incoming_bytes": step.incoming_bytes,
        "written_bytes": step.written_bytes,
        "write_amplification": share_of(step.written_bytes, step.incoming_bytes),
        "files": len(step.files),
        "bytes": sum(file.bytes for file in step.files),
        "small_files": len(small),
        "small_share": share_of(len(small), len(step.files)),
        "log_files": sum(len(file.log_sizes) for file in step.files),
        "log_bytes": sum(file.log_bytes for file in step.files),
        "changes": [_change_document(change) for change in step.changes],
        "layout": [_file_document(file, limit) for file in step.files],
    }


def _change_document(change: FileChange) -> dict[str, Any]:
    document = {
        "action": change.action,
        "file": change.file.number,
        "partition": change.file.partition,
        "added_rows": change.added_rows,
        "written_bytes": change.written_bytes,
        "merged_files": change.merged_files,
    }
    return both_names("simulation.steps[].changes[]", document)


def _file_document(file: SimulatedFile, limit: int) -> dict[str, Any]:
    return {
        "file": file.number,
        "partition": file.partition,
        "bytes": file.bytes,
        "rows": file.rows,
        "logs": list(file.log_sizes),
        "small": file.bytes < limit,
    }


def describe_sizes(layout: Sequence[Mapping[str, Any]], limit: int = 6) -> str:
    """Return the sizes of files, equal neighbours as one: ``110 MiB, 3 × 21 MiB + 2 logs 1.9 MiB``."""
    runs: list[tuple[str, int]] = []
    for file in layout:
        words = format_size(file["bytes"])
        if file["logs"]:
            words += f" + {plural(len(file['logs']), 'log')} {format_size(sum(file['logs']))}"
        if runs and runs[-1][0] == words:
            runs[-1] = words, runs[-1][1] + 1
        else:
            runs.append((words, 1))
    parts = [words if count == 1 else f"{count:,} × {words}" for words, count in runs[:limit]]
    left = sum(count for _, count in runs[limit:])
    return ", ".join(parts) + (f" and {left:,} more" if left else "")

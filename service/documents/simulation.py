# SPDX-License-Identifier: Apache-2.0
"""The document of a simulation: the files that a writer leaves behind after each batch."""

from collections.abc import Mapping, Sequence
from typing import Any

from planner.writers.model import MOST_FILES, Change, SimulationError, Step, WrittenFile
from planner.writers.scenario import read_scenario
from planner.writers.simulation import simulate
from service.problems import SETTING, CommandError
from service.text import plural, share_of, size


def simulation(scenario: Mapping[str, Any], *, most_files: int = MOST_FILES) -> dict[str, Any]:
    """What comes of a scenario's document (docs/planning.md has its keys). Raises CommandError for a wrong one."""
    try:
        found = simulate(read_scenario(scenario), most_files)
    except SimulationError as error:
        raise CommandError(SETTING, str(error)) from error
    limit = found.small_file_limit_bytes
    return {
        "writer": found.scenario.writer,
        "settings": dict(found.scenario.settings),
        "small_file_limit_bytes": limit,
        "target_bytes": found.target_bytes,
        "notes": list(found.notes),
        "before": [_file(file, limit) for file in found.scenario.files],
        "steps": [_step(step, limit) for step in found.steps],
    }


def _step(step: Step, limit: int) -> dict[str, Any]:
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
        "log_files": sum(len(file.logs) for file in step.files),
        "log_bytes": sum(file.log_bytes for file in step.files),
        "changes": [_change(change) for change in step.changes],
        "layout": [_file(file, limit) for file in step.files],
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        "action": change.action,
        "file": change.file.name,
        "partition": change.file.partition,
        "added_rows": change.added_rows,
        "written_bytes": change.written_bytes,
        "of_files": change.of_files,
    }


def _file(file: WrittenFile, limit: int) -> dict[str, Any]:
    return {
        "file": file.name,
        "partition": file.partition,
        "bytes": file.bytes,
        "rows": file.rows,
        "logs": list(file.logs),
        "small": file.bytes < limit,
    }


def sizes_in_words(layout: Sequence[Mapping[str, Any]], most: int = 6) -> str:
    """The sizes of files, those alike and next to each other as one: ``110 MiB, 3 × 21 MiB + 2 logs 1.9 MiB``."""
    runs: list[tuple[str, int]] = []
    for file in layout:
        words = size(file["bytes"])
        if file["logs"]:
            words += f" + {plural(len(file['logs']), 'log')} {size(sum(file['logs']))}"
        if runs and runs[-1][0] == words:
            runs[-1] = words, runs[-1][1] + 1
        else:
            runs.append((words, 1))
    said = [words if count == 1 else f"{count:,} × {words}" for words, count in runs[:most]]
    left = sum(count for _, count in runs[most:])
    return ", ".join(said) + (f" and {left:,} more" if left else "")

# SPDX-License-Identifier: Apache-2.0
"""Parsers of scenarios: TOML files, CSV files with batches, and batches on the command line.

Each form is first converted to a document, which is also the body of ``POST /v1/simulate``.
"""

import csv
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.policy.parsing import enum_parser, flatten_settings, parse_byte_count, parse_integer, parse_number
from planner.writers.model import Operation, SimulatedFile, SimulationError, Write, WriteBatch
from planner.writers.simulation import Scenario, WriterKind

#: bytes of a row unless the scenario sets it: Hudi's default
_ROW_BYTES = 1024.0
_MAX_ROWS = 10**15
_MAX_BYTES = 1 << 60
_MAX_ROW_BYTES = 1 << 40
_MAX_BATCHES = 10_000
_AMOUNT_KEYS = ("rows", "bytes", "row_bytes")
_PARTITION_KEYS = ("partition", "partitions")
_WRITE_KEYS = ("operation", *_PARTITION_KEYS, *_AMOUNT_KEYS)
COLUMNS = ("batch", "operation", "partition", *_AMOUNT_KEYS, "tasks")
"""The columns of a CSV file; only ``operation`` and one of the amounts are needed."""


def parse_toml(text: str) -> dict[str, Any]:
    """Return the document of a TOML file. Raises SimulationError."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SimulationError(f"the scenario is not valid TOML: {error}") from None


def parse_csv(text: str) -> dict[str, Any]:
    """Return the document of a CSV file with a header. A line is a write; lines with one ``batch`` are one commit."""
    lines = csv.DictReader(text.splitlines(), restkey="", skipinitialspace=True)
    unknown = [name for name in lines.fieldnames or () if name not in COLUMNS]
    if unknown or not lines.fieldnames:
        raise SimulationError(f"column {unknown[0]!r} is not one of {', '.join(COLUMNS)}" if unknown else "no columns")
    batches: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(lines, 2):
        if "" in line:
            raise SimulationError(f"line {number} has more values than columns")
        cells = {name: value for name, value in line.items() if value}
        batch = batches.setdefault(cells.pop("batch", f"line {number}"), {"writes": []})
        batch |= {"tasks": cells.pop("tasks")} if "tasks" in cells else {}
        batch["writes"].append(cells)
    return {"batches": list(batches.values())}


def parse_batch_words(words: Sequence[str]) -> list[dict[str, Any]]:
    """Return the batches of words such as ``insert=96MB`` or ``update=5000`` (rows). Raises SimulationError."""
    batches = []
    for word in words:
        operation, equals, amount = word.partition("=")
        if not equals:
            raise SimulationError(
                f"{word!r} is not a batch; use the form insert=96MB for bytes, or insert=577564 for rows"
            )
        batches.append({"operation": operation, "rows" if amount.strip().isdigit() else "bytes": amount})
    return batches


def parse_scenario(document: Mapping[str, Any]) -> Scenario:
    """Return the scenario of a document. Raises SimulationError with the position, the value and the rule."""
    _check_keys(document, ("writer", "row_bytes", "settings", "files", "batches"), "the scenario")
    if "writer" not in document:
        raise SimulationError(f"writer is required: one of {', '.join(WriterKind)}")
    row_bytes = _parse_row_bytes(document, "the scenario") or _ROW_BYTES
    batches: list[WriteBatch] = []
    for number, entry in enumerate(_list_of_tables(document, "batches"), 1):
        batch, repeat = _parse_batch(entry, f"batch {number}", row_bytes)
        if len(batches) + repeat > _MAX_BATCHES:
            raise SimulationError(f"more than {_MAX_BATCHES:,} batches; simulate fewer")
        batches += [batch] * repeat
    if not batches:
        raise SimulationError("the scenario has no batch; add at least one")
    settings = document.get("settings", {})
    if not isinstance(settings, Mapping):
        raise SimulationError("settings is not a table of keys and values")
    return Scenario(
        writer=_parse_value("writer", document["writer"], enum_parser(WriterKind)),
        settings=dict(flatten_settings(settings)),
        files=tuple(_parse_files(_list_of_tables(document, "files"), row_bytes)),
        batches=tuple(batches),
    )


def _parse_files(entries: Sequence[Mapping[str, Any]], row_bytes: float) -> Iterator[SimulatedFile]:
    file_number = 0
    for number, entry in enumerate(entries, 1):
        position = f"file {number}"
        _check_keys(entry, (*_PARTITION_KEYS, *_AMOUNT_KEYS), position)
        amount = _parse_amount(entry, position, row_bytes)
        for partition in _parse_partitions(entry, position):
            file_number += 1
            yield SimulatedFile(number=file_number, partition=partition, rows=amount.rows, bytes=amount.bytes)


def _parse_batch(entry: Mapping[str, Any], position: str, row_bytes: float) -> tuple[WriteBatch, int]:
    """Return a batch and how often it is repeated."""
    if "writes" in entry:
        _check_keys(entry, ("writes", "tasks", "repeat"), position)
        parts = _list_of_tables(entry, "writes")
    else:
        _check_keys(entry, (*_WRITE_KEYS, "tasks", "repeat"), position)
        parts = [{key: value for key, value in entry.items() if key in _WRITE_KEYS}]
    writes: dict[tuple[Operation, str], Write] = {}
    for part in parts:
        for write in _parse_writes(part, position, row_bytes):
            key = write.operation, write.partition
            existing = writes.get(key)
            writes[key] = (
                replace(existing, rows=existing.rows + write.rows, bytes=existing.bytes + write.bytes)
                if existing
                else write
            )
    tasks = _parse_value(f"{position}: tasks", entry["tasks"], parse_integer) if "tasks" in entry else None
    if tasks is not None and tasks < 1:
        raise SimulationError(f"{position}: tasks is {tasks} but must be at least 1")
    repeat = _parse_value(f"{position}: repeat", entry.get("repeat", 1), parse_integer)
    if not 1 <= repeat <= _MAX_BATCHES:
        raise SimulationError(f"{position}: repeat is {repeat} but must be from 1 to {_MAX_BATCHES:,}")
    return WriteBatch(writes=tuple(writes.values()), tasks=tasks), repeat


def _parse_writes(part: Mapping[str, Any], position: str, row_bytes: float) -> Iterator[Write]:
    _check_keys(part, _WRITE_KEYS, position)
    if "operation" not in part:
        raise SimulationError(f"{position} has no operation; use one of {', '.join(Operation)}")
    operation = _parse_value(f"{position}: operation", part["operation"], enum_parser(Operation))
    amount = _parse_amount(part, position, row_bytes)
    if not amount.rows:
        raise SimulationError(f"{position} has no rows; remove it, or set rows or bytes")
    for partition in _parse_partitions(part, position):
        yield Write(operation=operation, partition=partition, rows=amount.rows, bytes=amount.bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowsAndBytes:
    rows: int
    bytes: int


def _parse_amount(entry: Mapping[str, Any], position: str, row_bytes: float) -> _RowsAndBytes:
    """Return rows and bytes from two of the three keys, or from one key and the default ``row_bytes``."""
    if all(key in entry for key in _AMOUNT_KEYS):
        raise SimulationError(f"{position} has rows, bytes and row_bytes; give two of them")
    row_size = _parse_row_bytes(entry, position) or row_bytes
    rows = _parse_value(f"{position}: rows", entry["rows"], parse_integer) if "rows" in entry else None
    size = _parse_value(f"{position}: bytes", entry["bytes"], parse_byte_count) if "bytes" in entry else None
    if rows is None and size is None:
        raise SimulationError(f"{position} has neither rows nor bytes")
    if size is not None and size > _MAX_BYTES:
        raise SimulationError(f"{position}: bytes is {size} but must not be above {_MAX_BYTES}")
    if rows is None:
        assert size is not None
        rows = max(round(size / row_size), 1) if size else 0
    if not 0 <= rows <= _MAX_ROWS:
        raise SimulationError(f"{position}: rows is {rows} but must be from 0 to {_MAX_ROWS:,}")
    return _RowsAndBytes(rows=rows, bytes=min(round(rows * row_size), _MAX_BYTES) if size is None else size)


def _parse_row_bytes(entry: Mapping[str, Any], position: str) -> float | None:
    if "row_bytes" not in entry:
        return None
    row_bytes: float = _parse_value(f"{position}: row_bytes", entry["row_bytes"], parse_number)
    if not 0 < row_bytes < _MAX_ROW_BYTES:
        raise SimulationError(f"{position}: row_bytes is {row_bytes:g} but must be above 0 and below {_MAX_ROW_BYTES}")
    return row_bytes


def _parse_partitions(entry: Mapping[str, Any], position: str) -> list[str]:
    if all(key in entry for key in _PARTITION_KEYS):
        raise SimulationError(f"{position} has partition and partitions; give one of them")
    paths = entry.get("partitions", [entry.get("partition", "")])
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) for path in paths):
        raise SimulationError(f"{position}: partitions is not a list of paths")
    return [path.strip("/") for path in paths]


def _list_of_tables(document: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    entries = document.get(key, [])
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise SimulationError(f"{key} is not a list of tables; write [[{key}]] above each")
    return entries


def _check_keys(entry: Mapping[str, Any], known: Sequence[str], position: str) -> None:
    unknown = next((key for key in entry if key not in known), None)
    if unknown is not None:
        raise SimulationError(f"{position}: {unknown!r} is not one of {', '.join(known)}")


def _parse_value(position: str, value: Any, parse: Any) -> Any:
    try:
        return parse(value)
    except ValueError as error:
        raise SimulationError(f"{position}: {error}") from None

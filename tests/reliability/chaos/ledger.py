# SPDX-License-Identifier: Apache-2.0
"""What the writer of a chaos run means to do, and what its table must therefore contain.

A ledger is a directory with two files a step: ``000012.parquet`` with its rows and ``000012.json`` with all else,
which is called ``000012.pending.json`` until the table is known to hold the step. Replaying the confirmed steps gives
the rows and the types that every reader must see.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_PENDING = ".pending.json"
_STOP = pa.struct([pa.field("lat", pa.float64()), pa.field("name", pa.string())])
_FIRST: Mapping[str, pa.DataType] = {
    "id": pa.int64(),
    "ts": pa.int64(),
    "dt": pa.string(),
    "fare": pa.decimal128(12, 3),
    "at": pa.timestamp("us", tz="UTC"),
    "tip": pa.int32(),
    "weight": pa.float32(),
    "stop": _STOP,
}
#: what a column added or widened in this order does to the schema
EVOLUTIONS: Sequence[tuple[str, pa.DataType]] = (
    ("note", pa.string()),
    ("tip", pa.int64()),
    ("score", pa.float64()),
    ("weight", pa.float64()),
    ("paid", pa.decimal128(10, 2)),
)
Row = dict[str, Any]


def schema(evolutions: int) -> pa.Schema:
    """The table's columns after the first so many evolutions."""
    columns = {**_FIRST, **dict(EVOLUTIONS[:evolutions])}
    return pa.schema([pa.field(name, type_) for name, type_ in columns.items()])


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that the writer does to its table.

    ``partitions`` are those that an overwrite or a deletion of partitions empties, ``instant`` the savepoint that is
    made, restored or removed, ``evolutions`` how many changes of the schema the rows have seen.
    """

    number: int
    operation: str
    evolutions: int = 0
    partitions: tuple[str, ...] = ()
    instant: str = ""
    rows: tuple[Row, ...] = field(default=(), repr=False)

    @property
    def label(self) -> str:
        """The step's name in the commit's metadata; no other label begins with it."""
        return f"chaos-step-{self.number:06d}-{self.operation}."


@dataclass(slots=True)
class State:
    """Rows by id, and how many evolutions of the schema they have seen."""

    rows: dict[int, Row] = field(default_factory=dict)
    evolutions: int = 0
    savepoints: dict[str, "State"] = field(default_factory=dict)

    def apply(self, step: Step) -> None:
        """The state after ``step``."""
        if step.operation == "savepoint":
            self.savepoints[step.instant] = State(dict(self.rows), self.evolutions)
            return
        if step.operation == "remove_savepoint":
            del self.savepoints[step.instant]
            return
        if step.operation == "restore":
            kept = self.savepoints[step.instant]
            self.rows, self.evolutions = dict(kept.rows), kept.evolutions
            # Hudi keeps the savepoint that it restored; younger ones are gone with their commits.
            self.savepoints = {at: state for at, state in self.savepoints.items() if at <= step.instant}
            return
        self.evolutions = max(self.evolutions, step.evolutions)
        if step.partitions:
            self.rows = {key: row for key, row in self.rows.items() if row["dt"] not in step.partitions}
        for row in step.rows:
            if step.operation == "delete":
                self.rows.pop(row["id"], None)
            else:
                self.rows[row["id"]] = row

    @property
    def schema(self) -> pa.Schema:
        """The table's columns, without Hudi's own."""
        return schema(self.evolutions)

    def multiset(self) -> Counter[str]:
        """Every row as ``canonical`` has it."""
        return canonical(list(self.rows.values()), self.schema)


def canonical(rows: Sequence[Mapping[str, Any]], columns: pa.Schema) -> Counter[str]:
    """Rows as a multiset of texts, each value in the type of its column."""
    table = pa.Table.from_pylist([{name: row.get(name) for name in columns.names} for row in rows], schema=columns)
    return multiset(table)


def multiset(table: pa.Table) -> Counter[str]:
    """The rows of ``table`` as a multiset of texts."""
    names = table.column_names
    return Counter(repr(values) for values in zip(*(table[name].to_pylist() for name in names), strict=True))


class Ledger:
    """Reads and writes one ledger directory. One writer at a time; any number of readers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def propose(self, step: Step) -> Path:
        """Write a step down before it is done; the path of its rows."""
        rows = self.directory / f"{step.number:06d}.parquet"
        columns = schema(step.evolutions)
        pq.write_table(pa.Table.from_pylist(list(step.rows), schema=columns), rows)
        entry = {key: value for key, value in asdict(step).items() if key != "rows"}
        draft = self.directory / f"{step.number:06d}.draft"
        draft.write_text(json.dumps(entry))
        draft.replace(self._pending(step))
        return rows

    def confirm(self, step: Step) -> None:
        """The table holds the step."""
        self._pending(step).replace(self.directory / f"{step.number:06d}.json")

    def withdraw(self, step: Step) -> None:
        """The table does not hold the step, and it will not be tried again."""
        self._pending(step).unlink()

    def pending(self) -> list[Step]:
        """Steps that were neither confirmed nor withdrawn, because their writer died."""
        return [self._read(path) for path in sorted(self.directory.glob(f"*{_PENDING}"))]

    def confirmed(self) -> list[Step]:
        """Every step that the table holds, in order."""
        paths = sorted(path for path in self.directory.glob("*.json") if not path.name.endswith(_PENDING))
        return [self._read(path) for path in paths]

    def state(self) -> State:
        """What the table must contain now."""
        state = State()
        for step in self.confirmed():
            state.apply(step)
        return state

    def states(self) -> dict[str, State]:
        """What the table contained after each confirmed step, by the label of the step."""
        state, found = State(), {}
        for step in self.confirmed():
            state.apply(step)
            found[step.label] = State(dict(state.rows), state.evolutions)
        return found

    def next_number(self) -> int:
        """The number of the next step; those of withdrawn ones are not used again."""
        return max((int(path.stem) for path in self.directory.glob("*.parquet")), default=-1) + 1

    def _pending(self, step: Step) -> Path:
        return self.directory / f"{step.number:06d}{_PENDING}"

    def _read(self, path: Path) -> Step:
        entry = json.loads(path.read_text())
        rows = pq.read_table(self.directory / f"{entry['number']:06d}.parquet").to_pylist()
        return Step(**entry | {"partitions": tuple(entry["partitions"]), "rows": tuple(rows)})

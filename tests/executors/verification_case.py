# SPDX-License-Identifier: Apache-2.0
"""Inputs and outputs of a rewrite without a table, and ways to damage them."""

import copy
import pickle
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq

from executors.verification import verify_rewrite
from lake.errors import LakefoldError
from lake.model import FileSlice, TableRef
from lake.plan import ClusteringGroup, OutputFile, Plan, PlanKind, RewriteOptions, VerificationLevel
from lake.ports import PreparedPlan, Rewrite

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("other", pa.int64()),
        ("name", pa.string()),
        ("fare", pa.decimal128(12, 3)),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("raw", pa.binary()),
        ("ok", pa.bool_()),
        ("score", pa.float32()),
        ("stop", pa.struct([("lat", pa.float64()), ("names", pa.list_(pa.string()))])),
        ("tags", pa.map_(pa.string(), pa.int32())),
        ("parts", pa.list_(pa.struct([("a", pa.int16()), ("b", pa.decimal128(30, 2))]))),
        ("_file", pa.string()),
    ]
)


def table(ids: range) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {
                "id": i,
                "other": 1000 - i,
                "name": f"name {i * 7919 % 100}",
                "fare": Decimal(i * 37) / 1000,
                "at": i * 1_000_003,
                "day": i % 400,
                "raw": bytes([i % 256, 7]) if i % 9 else None,
                "ok": i % 3 == 0,
                "score": i / 3,
                "stop": None if i % 11 == 0 else {"lat": i / 7, "names": [f"n{i}", None, ""][: i % 4]},
                "tags": [(f"k{k}", i + k) for k in range(i % 3)],
                "parts": [{"a": i % 100, "b": Decimal(i)}, None, {"a": None, "b": None}][: i % 4],
                "_file": "old",
            }
            for i in ids
        ],
        SCHEMA,
    )


class NoWriter:
    """A writer that reads no logs."""


class MergingWriter:
    """A writer that knows the merged rows."""

    def __init__(self, merged: pa.Table) -> None:
        self._merged = merged

    def read_inputs(self, prepared: PreparedPlan, partition: str, *, evolved: bool = False) -> Any:
        yield from self._merged.to_batches(max_chunksize=17)


class Case:
    """Inputs and outputs of one group, as files of one kind below ``base``."""

    def __init__(self, base: Path, level: VerificationLevel = VerificationLevel.HASH, kind: str = "parquet") -> None:
        self.base, self.level, self.kind = base, level, kind
        self.slices: list[FileSlice] = []
        self.outputs: list[OutputFile] = []

    def input(self, rows: pa.Table, logs: tuple[str, ...] = (), **options: Any) -> Path:
        path = self._write(f"p/in{len(self.slices)}.{self.kind}", rows, options)
        name = str(path.relative_to(self.base))
        self.slices.append(FileSlice(partition="p", file_id=name, path=name, bytes=1, log_files=logs))
        return path

    def output(self, rows: pa.Table, **options: Any) -> Path:
        path = self._write(f"p/out{len(self.outputs)}.{self.kind}", rows, options)
        size = path.stat().st_size
        name = str(path.relative_to(self.base))
        self.outputs.append(OutputFile(partition="p", path=name, bytes=size, rows=rows.num_rows))
        return path

    def moved(self, place: str) -> None:
        """The last input lies at ``place``, outside the table, from now on."""
        path = Path(place.removeprefix("file:"))
        path.parent.mkdir(parents=True)
        (self.base / str(self.slices[-1].path)).rename(path)
        self.slices[-1] = replace(self.slices[-1], path=place)

    def _write(self, name: str, rows: pa.Table, options: dict[str, Any]) -> Path:
        path = self.base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (orc if path.suffix == ".orc" else pq).write_table(rows, path, **options)
        return path

    def rewrite(self) -> Rewrite:
        group = ClusteringGroup(partition="p", slices=tuple(self.slices), output_files=1)
        plan = Plan(
            plan_id="x",
            table=TableRef(name="t", format="toy", location=str(self.base)),
            kind=PlanKind.CLUSTERING,
            groups=(group,),
            options=RewriteOptions(target_file_max_bytes=1 << 30, verification=self.level),
            snapshot_instant="",
        )
        prepared = PreparedPlan(
            plan=plan, epoch=1, instant="1", live_groups=(0,), volatile_columns=frozenset({"_file"})
        )
        return Rewrite(prepared=prepared, outputs=tuple(self.outputs))

    def prove(self, writer: Any = None, **options: Any) -> None:
        """Verify in this process, and with footers compared in another one, which must have the same result."""
        results: list[LakefoldError | None] = []
        # A copy of the writer, since it may record the calls.
        for run, used in ((in_another_process, copy.deepcopy(writer)), (None, writer)):
            try:
                verify_rewrite(self.rewrite(), writer=used or NoWriter(), run=run, **options)
                results.append(None)
            except LakefoldError as error:
                results.append(error)
        assert repr(results[0]) == repr(results[1])
        if results[1] is not None:
            raise results[1]


def in_another_process(function: Any, items: Any, *, files: int, check: Any) -> list[bool]:
    """Run a function as another process would, which receives and returns pickled objects."""
    received, arguments = pickle.loads(pickle.dumps((function, items)))
    return pickle.loads(pickle.dumps([received(one) for one in arguments]))


def set_value(rows: pa.Table, name: str, row: int, value: Any) -> pa.Table:
    values = rows[name].to_pylist()
    assert values[row] != value
    values[row] = value
    kind = rows.schema.field(name)
    return rows.set_column(rows.schema.get_field_index(name), kind, pa.array(values, kind.type))


def swapped(rows: pa.Table, one: str, two: str) -> pa.Table:
    changed = rows.set_column(rows.schema.get_field_index(one), one, rows[two])
    return changed.set_column(rows.schema.get_field_index(two), two, rows[one])


def swap_rows(rows: pa.Table, name: str, one: int, two: int) -> pa.Table:
    values = rows[name].to_pylist()
    return set_value(set_value(rows, name, one, values[two]), name, two, values[one])

# SPDX-License-Identifier: Apache-2.0
"""The proof before a commit: every planted defect is found, and no honest rewriting is called one."""

import math
import os
import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executors.datafiles.parquet import EXACT_BYTES, facts
from executors.receipt import prove
from lake.errors import Conflict, Integrity, Rejected, Transient
from lake.model import FileSlice, TableRef
from lake.plan import ClusteringGroup, OutputFile, Plan, PlanKind, ReceiptLevel, RewriteOptions
from lake.ports import Prepared, Rewrite

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

    def read_inputs(self, prepared: Prepared, partition: str, *, evolved: bool = False) -> Any:
        yield from self._merged.to_batches(max_chunksize=17)


class Case:
    """Inputs and outputs of one group, as files of one kind below ``base``."""

    def __init__(self, base: Path, level: ReceiptLevel = ReceiptLevel.HASH, kind: str = "parquet") -> None:
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
            options=RewriteOptions(target_file_max_bytes=1 << 30, receipt=self.level),
            snapshot_instant="",
        )
        prepared = Prepared(plan=plan, epoch=1, instant="1", groups=(0,))
        return Rewrite(prepared=prepared, outputs=tuple(self.outputs))

    def prove(self, writer: Any = None, **options: Any) -> None:
        prove(self.rewrite(), writer=writer or NoWriter(), volatile={"_file"}, **options)


def set_value(rows: pa.Table, name: str, row: int, value: Any) -> pa.Table:
    values = rows[name].to_pylist()
    assert values[row] != value
    values[row] = value
    kind = rows.schema.field(name)
    return rows.set_column(rows.schema.get_field_index(name), kind, pa.array(values, kind.type))


def swapped(rows: pa.Table, one: str, two: str) -> pa.Table:
    changed = rows.set_column(rows.schema.get_field_index(one), one, rows[two])
    return changed.set_column(rows.schema.get_field_index(two), two, rows[one])


Defect = Callable[[pa.Table], pa.Table]

SEEN_IN_FOOTERS: Sequence[tuple[str, Defect, str]] = [
    ("a row dropped", lambda t: t.slice(1), "rows: expected 300, found 299"),
    ("a row doubled", lambda t: pa.concat_tables([t, t.slice(7, 1)]), "rows: expected 300, found 301"),
    ("a null filled", lambda t: set_value(t, "raw", 9, b"\x09\x07"), "column raw, nulls: expected 34, found 33"),
    ("a value nulled", lambda t: set_value(t, "name", 9, None), "column name, nulls: expected 0, found 1"),
    ("columns swapped", lambda t: swapped(t, "id", "other"), "column id, min: expected 0, found 701"),
    ("the largest value changed", lambda t: set_value(t, "id", 299, 300), "column id, max: expected 299, found 300"),
    (
        "a nested null filled",
        lambda t: set_value(t, "stop", 11, {"lat": 1.5, "names": []}),
        "column stop.lat, nulls: expected 28, found 27",
    ),
    (
        "a list made longer",
        lambda t: set_value(t, "parts", 2, [{"a": 2, "b": Decimal(2)}, None, None]),
        "column parts[].a, nulls",
    ),
    ("a column gone", lambda t: t.drop_columns(["fare"]), "column fare: expected decimal(12, 3), found no such column"),
    (
        "a type changed",
        lambda t: t.set_column(0, "id", t["id"].cast(pa.string())),
        "column id: expected int(64), found string",
    ),
    (
        "a decimal's scale changed",
        lambda t: t.set_column(3, "fare", t["fare"].cast(pa.decimal128(12, 4))),
        "column fare: expected decimal(12, 3), found decimal(12, 4)",
    ),
    (
        "a time zone lost",
        lambda t: t.set_column(4, "at", t["at"].cast(pa.timestamp("us"))),
        "column at: expected timestamp(us, utc), found timestamp(us, local)",
    ),
]

SEEN_IN_HASHES: Sequence[tuple[str, Defect, str]] = [
    ("a value in the middle changed", lambda t: set_value(t, "other", 150, 849), "column other, hash"),
    ("a row doubled and another dropped", lambda t: pa.concat_tables([t.slice(1), t.slice(9, 1)]), "column"),
    (
        "two values of one column exchanged",
        lambda t: set_value(set_value(t, "id", 100, 101), "id", 101, 100),
        "values moved between rows",
    ),
    (
        "a nested value changed",
        lambda t: set_value(t, "stop", 150, {"lat": 150 / 7, "names": ["n150", "x"]}),
        "column stop",
    ),
    (
        "the order of a list changed",
        lambda t: set_value(t, "stop", 151, {"lat": 151 / 7, "names": [None, "n151", ""]}),
        "column stop, hash",
    ),
    (
        "a list emptied that was null-free",
        lambda t: set_value(t, "parts", 149, []),
        "column parts",
    ),
    ("a map's value changed", lambda t: set_value(t, "tags", 149, [("k0", 149), ("k1", 151)]), "column tags, hash"),
    ("an instant moved by a microsecond", lambda t: set_value(t, "at", 150, None), "column at"),
    (
        "null and empty string exchanged",
        lambda t: set_value(
            set_value(t, "stop", 5, {"lat": 5 / 7, "names": [""]}), "stop", 6, {"lat": 6 / 7, "names": [None, "n6"]}
        ),
        "column stop",
    ),
    ("neighbouring decimals exchanged", lambda t: swap_rows(t, "fare", 100, 101), "values moved between rows"),
]


def swap_rows(rows: pa.Table, name: str, one: int, two: int) -> pa.Table:
    values = rows[name].to_pylist()
    return set_value(set_value(rows, name, one, values[two]), name, two, values[one])


@pytest.mark.parametrize("kind", ["parquet", "orc"])
@pytest.mark.parametrize("level", list(ReceiptLevel))
@pytest.mark.parametrize(("defect", "message"), [d[1:] for d in SEEN_IN_FOOTERS], ids=[d[0] for d in SEEN_IN_FOOTERS])
def test_a_defect_that_footers_show_is_found(
    tmp_path: Path, kind: str, level: ReceiptLevel, defect: Defect, message: str
):
    case = Case(tmp_path, level, kind)
    case.input(table(range(100)))
    case.input(table(range(100, 300)))
    case.output(defect(table(range(300))))
    with pytest.raises(Integrity) as found:
        case.prove()
    assert str(found.value).startswith("partition 'p', ")
    assert (message if kind == "parquet" else message.replace("(us,", "(ns,")) in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("kind", ["parquet", "orc"])
@pytest.mark.parametrize(("defect", "message"), [d[1:] for d in SEEN_IN_HASHES], ids=[d[0] for d in SEEN_IN_HASHES])
def test_a_defect_that_only_the_values_show_is_found(tmp_path: Path, kind: str, defect: Defect, message: str):
    case = Case(tmp_path, ReceiptLevel.HASH, kind)
    case.input(table(range(100)))
    case.input(table(range(100, 300)))
    case.output(defect(table(range(300))))
    with pytest.raises(Integrity) as found:
        case.prove()
    assert message in str(found.value)


@pytest.mark.parametrize("kind", ["parquet", "orc"])
@pytest.mark.parametrize("column", [n for n in SCHEMA.names if n != "_file"])
def test_a_swap_of_the_values_of_two_rows_is_found_in_every_column(tmp_path: Path, kind: str, column: str):
    case = Case(tmp_path, kind=kind)
    case.input(table(range(20)))
    values = table(range(20))[column].to_pylist()
    other = next(i for i in range(3, 20) if values[i] != values[2])
    case.output(swap_rows(table(range(20)), column, 2, other))
    with pytest.raises(Integrity, match="values moved between rows"):
        case.prove()


SPARK_LIKE = {
    "version": "1.0",
    "data_page_version": "1.0",
    "store_decimal_as_integer": True,
    "compression": "snappy",
    "row_group_size": 70,
}


@pytest.mark.parametrize("level", list(ReceiptLevel))
@pytest.mark.parametrize(
    "options",
    [
        {"use_dictionary": False, "compression": "zstd"},
        {"row_group_size": 13, "data_page_version": "2.0"},
        {"version": "2.6", "store_decimal_as_integer": True, "write_page_index": True},
        {"write_statistics": False},
        {"write_statistics": ["id"]},
        {"store_schema": False, "use_compliant_nested_type": False},
        SPARK_LIKE,
    ],
    ids=["plain", "small row groups", "integer decimals", "no statistics", "few statistics", "old lists", "like Spark"],
)
def test_encodings_row_groups_and_order_do_not_matter(tmp_path: Path, level: ReceiptLevel, options: dict[str, Any]):
    case = Case(tmp_path, level)
    case.input(table(range(100)), compression="gzip")
    case.input(table(range(100, 300)), use_dictionary=["name"])
    rows = table(range(300)).sort_by([("id", "descending")])
    rows = rows.set_column(12, "_file", pa.array(["new"] * 300))
    case.output(rows.slice(0, 120), **options)
    case.output(rows.slice(120), **options)
    case.prove()


def test_statistics_that_writers_cut_short_are_not_compared(tmp_path: Path):
    # pyarrow leaves long bounds out; a writer that cuts them instead is imitated by bounds of the limit's length.
    long = "x" * (EXACT_BYTES + 1)
    for first, second in ((long, long + "y"), ("x" * 5000, long)):
        case = Case(tmp_path / f"{len(first)}", ReceiptLevel.FOOTER)
        case.input(pa.table({"s": [first]}))
        case.output(pa.table({"s": [second]}))
        case.prove()
    exact = Case(tmp_path / "exact", ReceiptLevel.FOOTER)
    exact.input(pa.table({"s": ["x" * EXACT_BYTES]}))
    exact.output(pa.table({"s": ["x" * (EXACT_BYTES - 1) + "y"]}))
    with pytest.raises(Integrity, match="column s, min"):
        exact.prove()


@pytest.mark.parametrize("level", list(ReceiptLevel))
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_nan_and_signed_zeros_raise_no_alarm(tmp_path: Path, level: ReceiptLevel, kind: pa.DataType):
    case = Case(tmp_path, level)
    case.input(pa.table({"f": pa.array([math.nan, -0.0, 2.0], kind)}))
    case.input(pa.table({"f": pa.array([math.nan], kind)}))
    case.input(pa.table({"f": pa.array([0.0, None, -3.5], kind)}))
    case.output(pa.table({"f": pa.array([0.0, -0.0, math.nan, -3.5, math.nan, None, 2.0], kind)}))
    case.prove()


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_a_nan_that_became_a_number_is_found(tmp_path: Path, kind: str):
    case = Case(tmp_path, kind=kind)
    case.input(pa.table({"f": [math.nan, 1.0, 3.0]}))
    case.output(pa.table({"f": [2.0, 1.0, 3.0]}))
    with pytest.raises(Integrity, match="column f"):
        case.prove()


@pytest.mark.parametrize("kind", ["parquet", "orc"])
@pytest.mark.parametrize("level", list(ReceiptLevel))
def test_a_column_added_after_the_inputs_were_written_reads_as_nulls(tmp_path: Path, kind: str, level: ReceiptLevel):
    case = Case(tmp_path, level, kind)
    case.input(pa.table({"id": [1, 2], "s": [{"a": 1}, None]}))
    case.input(pa.table({"id": [3], "new": ["x"], "s": [{"a": 3, "b": 4}]}))
    case.output(
        pa.table({"id": [3, 1, 2], "new": ["x", None, None], "s": [{"a": 3, "b": 4}, {"a": 1, "b": None}, None]})
    )
    case.prove()
    case.outputs.clear()
    case.output(
        pa.table({"id": [3, 1, 2], "new": ["x", "y", None], "s": [{"a": 3, "b": 4}, {"a": 1, "b": None}, None]})
    )
    with pytest.raises(Integrity, match="column new, nulls: expected 2, found 1"):
        case.prove()


@pytest.mark.parametrize("level", list(ReceiptLevel))
@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (pa.array([1, None, -7], pa.int32()), pa.int64()),
        (pa.array([1, None, -7], pa.int32()), pa.float64()),
        (pa.array([1.5, None, -7], pa.float32()), pa.float64()),
        (pa.array([Decimal("1.50"), None], pa.decimal128(5, 2)), pa.decimal128(38, 2)),
        (pa.array([1, None, -7], pa.timestamp("ms", "UTC")), pa.timestamp("us", "UTC")),
    ],
    ids=str,
)
def test_a_type_that_was_widened_holds_the_same_values(
    tmp_path: Path, level: ReceiptLevel, narrow: pa.Array, wide: pa.DataType
):
    case = Case(tmp_path, level)
    case.input(pa.table({"c": narrow}))
    case.input(pa.table({"c": narrow.cast(wide)}))
    case.output(pa.table({"c": pa.concat_arrays([narrow.cast(wide)] * 2)}))
    case.prove()
    case.outputs.clear()
    case.output(pa.table({"c": pa.concat_arrays([narrow] * 2)}))
    with pytest.raises(Integrity, match="column c"):
        case.prove()


@pytest.mark.parametrize("level", list(ReceiptLevel))
def test_an_old_timestamp_of_96_bits_equals_the_same_instant_in_64(tmp_path: Path, level: ReceiptLevel):
    rows = pa.table({"at": pa.array([0, 1_767_225_600_000_001, None, 253_402_300_799_000_000], pa.timestamp("us"))})
    utc = pa.table({"at": rows["at"].cast(pa.timestamp("us", "UTC"))})
    case = Case(tmp_path, level)
    case.input(rows, use_deprecated_int96_timestamps=True)
    case.output(utc, coerce_timestamps="us")
    case.prove()
    if level is ReceiptLevel.HASH:
        case.outputs.clear()
        case.output(set_value(utc, "at", 1, utc["at"][0].as_py()))
        with pytest.raises(Integrity, match="column at, hash"):
            case.prove()


def test_rows_of_slices_with_logs_are_compared_as_a_reader_merges_them(tmp_path: Path):
    for level in ReceiptLevel:
        case = Case(tmp_path / level, level)
        case.input(table(range(100)), logs=("a.log",))
        case.input(table(range(100, 200)))
        merged = table(range(5, 200))
        case.output(merged.sort_by([("name", "ascending")]))
        case.prove(MergingWriter(merged))
        with pytest.raises(Integrity, match="rows: expected 194, found 195"):
            case.prove(MergingWriter(merged.slice(1)))
        with pytest.raises(Integrity, match="column other, hash"):
            case.prove(MergingWriter(set_value(merged, "other", 100, 0)))
        with pytest.raises(Rejected, match="slices with logs"):
            case.prove()


@pytest.mark.parametrize("level", list(ReceiptLevel))
def test_c2_a_column_that_the_table_changed_or_dropped_is_compared_as_a_reader_sees_it(
    tmp_path: Path, level: ReceiptLevel
):
    old = pa.table({"id": [1, 2, 3], "x": [7, None, 9], "gone": ["a", "b", "c"]})
    new = pa.table({"id": [1, 2, 3], "x": ["7", None, "9"]})
    case = Case(tmp_path, level)
    case.input(old)
    case.output(new)
    case.prove(MergingWriter(new))
    for reader in (MergingWriter(old), NoWriter()):
        with pytest.raises(Integrity, match="column gone: expected string, found no such column"):
            case.prove(reader)
    with pytest.raises(Integrity, match=r"column x: expected int\(64\), found string"):
        case.prove(MergingWriter(new.set_column(1, "x", old["x"])))
    with pytest.raises(Integrity, match="column x, hash"):
        case.prove(MergingWriter(set_value(new, "x", 0, "8")))
    with pytest.raises(Integrity, match="rows: expected 2, found 3"):
        case.prove(MergingWriter(new.slice(1)))
    lost = new.set_column(1, "x", pa.nulls(3, pa.string()))
    case.outputs.clear()
    case.output(lost)
    with pytest.raises(Integrity, match="column x, nulls: expected 1, found 3"):
        case.prove(MergingWriter(lost))


def test_outputs_that_lie_about_their_rows_or_lie_elsewhere_are_found(tmp_path: Path):
    case = Case(tmp_path)
    case.input(table(range(10)))
    case.output(table(range(10)))
    honest = case.outputs[0]
    case.outputs = [OutputFile(partition="p", path=honest.path, bytes=honest.bytes, rows=11)]
    with pytest.raises(Integrity, match=r"rows reported for p/out0\.parquet: expected 10, found 11"):
        case.prove()
    case.outputs = [honest, OutputFile(partition="q", path=honest.path, bytes=honest.bytes, rows=10)]
    with pytest.raises(Integrity, match="partition 'q', files"):
        case.prove()
    case.outputs = [honest, honest]
    with pytest.raises(Integrity, match="rows: expected 10, found 20"):
        case.prove()
    case.outputs = []
    with pytest.raises(Integrity, match="rows: expected 10, found 0"):
        case.prove()


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_files_that_cannot_be_read_end_in_the_outcome_of_whose_they_are(tmp_path: Path, kind: str):
    case = Case(tmp_path, kind=kind)
    old = case.input(table(range(1000)))
    new = case.output(table(range(1000)))
    whole = new.read_bytes()
    new.write_bytes(whole[:-20])
    with pytest.raises(Integrity, match=r"file p/out0\.\w+: expected a readable file"):
        case.prove()
    new.write_bytes(whole[:200] + bytes(400) + whole[600:])  # broken pages below an intact footer
    with pytest.raises(Integrity, match=r"p/out0\.\w+|hash"):
        case.prove()
    new.unlink()
    with pytest.raises(Transient, match="gone before its commit"):
        case.prove()
    new.write_bytes(whole)
    old.write_bytes(old.read_bytes()[:-20])
    with pytest.raises(Conflict) as found:
        case.prove()
    assert [(item.group, item.quarantine) for item in found.value.args[1]] == [(0, (f"p/in0.{kind}",))]
    old.unlink()
    with pytest.raises(Conflict, match="was deleted while the plan ran"):
        case.prove()


def test_the_proof_ends_when_the_lease_says_so(tmp_path: Path):
    case = Case(tmp_path)
    case.input(table(range(100)))
    case.output(table(range(100)))
    calls = []

    def check() -> None:
        calls.append(1)
        if len(calls) > 2:
            raise Transient("stop")

    with pytest.raises(Transient, match="stop"):
        case.prove(check=check)


def test_two_thousand_footers_cost_less_than_two_seconds_of_one_core(tmp_path: Path):
    case = Case(tmp_path, ReceiptLevel.FOOTER)
    rows = table(range(5))
    first = case.input(rows)
    for number in range(1, 2000):
        name = f"p/link{number}.parquet"
        os.link(first, tmp_path / name)
        case.slices.append(FileSlice(partition="p", file_id=name, path=name, bytes=1))
    case.output(pa.concat_tables([rows] * 2000))
    begun = time.process_time()
    case.prove()
    assert time.process_time() - begun < 2


def test_a_location_may_be_a_uri(tmp_path: Path):
    case = Case(tmp_path / "a table #1")
    case.input(table(range(10)))
    case.output(table(range(10)))
    rewrite = case.rewrite()
    for location in (f"file://{case.base}", f"file:{case.base}"):
        object.__setattr__(rewrite.prepared.plan.table, "location", location)
        prove(rewrite, writer=NoWriter(), volatile={"_file"})  # type: ignore[arg-type]


@pytest.mark.parametrize("level", list(ReceiptLevel))
def test_files_of_different_kinds_with_the_same_rows_are_equal(tmp_path: Path, level: ReceiptLevel):
    case = Case(tmp_path, level)
    case.input(table(range(100)))
    case.kind = "orc"
    case.input(table(range(100, 300)), stripe_size=1 << 12, compression="zstd")
    case.output(table(range(300)), compression="snappy")
    case.prove()
    case.kind = "parquet"
    case.outputs.clear()
    case.output(table(range(300)).cast(pa.schema([f.with_type(_nanos(f.type)) for f in SCHEMA])))
    case.prove()


def _nanos(kind: pa.DataType) -> pa.DataType:
    """The one unit of timestamps that ORC files have."""
    return pa.timestamp("ns", kind.tz) if pa.types.is_timestamp(kind) else kind


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_a_file_whose_name_tells_no_kind_is_read_as_its_content_begins(tmp_path: Path, kind: str):
    case = Case(tmp_path, kind=kind)
    for number, path in enumerate([case.input(table(range(10))), case.input(table(range(10, 30)))]):
        path.rename(tmp_path / "p" / f"00000{number}_0")
    case.slices = [FileSlice(partition="p", file_id=f"{n}", path=f"p/00000{n}_0", bytes=1) for n in range(2)]
    case.output(table(range(30)))
    case.prove()
    (tmp_path / "p" / "000001_0").write_bytes(b"nothing that anybody knows")
    with pytest.raises(Conflict, match=r"p/000001_0 can't be read: neither its name nor its first bytes"):
        case.prove()


@pytest.mark.parametrize(("name", "content"), [("a.avro", b""), ("a.csv.gz", b"\x1f\x8b"), ("000000_0", b"Obj\x01...")])
def test_a_kind_of_file_that_has_no_reader_is_rejected_by_its_name(tmp_path: Path, name: str, content: bytes):
    case = Case(tmp_path)
    case.output(table(range(3)))
    (tmp_path / "p" / name).write_bytes(content)
    case.slices = [FileSlice(partition="p", file_id="a", path=f"p/{name}", bytes=1)]
    kind = "avro" if name == "000000_0" else name.rpartition(".")[2]
    with pytest.raises(
        Rejected, match=f"p/{name} is a file of kind {kind}; lakefold can prove rewrites of parquet and"
    ):
        case.prove()


def test_no_statistics_mean_no_opinion(tmp_path: Path):
    case = Case(tmp_path)
    path = case.input(table(range(10)), write_statistics=False)
    for leaf in facts([pq.read_metadata(path)]).leaves.values():
        assert (leaf.nulls, leaf.bounded) == (None, False)


# Any table, cut into files and row groups in any way, is itself.

_SCALARS = st.one_of(
    st.tuples(st.just(pa.int64()), st.just(st.integers(-(2**63), 2**63 - 1))),
    st.tuples(st.just(pa.uint64()), st.just(st.integers(0, 2**64 - 1))),
    st.tuples(st.just(pa.int8()), st.just(st.integers(-128, 127))),
    st.tuples(st.just(pa.float64()), st.just(st.floats())),
    st.tuples(st.just(pa.float32()), st.just(st.floats(width=32))),
    st.tuples(st.just(pa.string()), st.just(st.text(max_size=40))),
    st.tuples(st.just(pa.binary()), st.just(st.binary(max_size=40))),
    st.tuples(st.just(pa.binary(3)), st.just(st.binary(min_size=3, max_size=3))),
    st.tuples(st.just(pa.bool_()), st.just(st.booleans())),
    st.tuples(
        st.just(pa.decimal128(20, 4)),
        st.just(st.integers(-(10**20) + 1, 10**20 - 1).map(lambda n: Decimal(n).scaleb(-4))),
    ),
    st.tuples(st.just(pa.timestamp("us", "UTC")), st.just(st.integers(-(2**50), 2**50))),
    st.tuples(st.just(pa.timestamp("ns")), st.just(st.integers(-(2**62), 2**62))),
    st.tuples(st.just(pa.date32()), st.just(st.integers(-100_000, 100_000))),
)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def as_list(pair: tuple[pa.DataType, st.SearchStrategy[Any]]) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
        return pa.list_(pair[0]), st.lists(st.none() | pair[1], max_size=3)

    def as_struct(pair: tuple[pa.DataType, st.SearchStrategy[Any]]) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
        return pa.struct([("x", pair[0]), ("y", pa.int32())]), st.fixed_dictionaries(
            {"x": st.none() | pair[1], "y": st.none() | st.integers(-5, 5)}
        )

    return inner.map(as_list) | inner.map(as_struct)


_KINDS = st.recursive(_SCALARS, _nested, max_leaves=3)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    count = draw(st.integers(1, 12))
    columns = {}
    for index in range(draw(st.integers(1, 4))):
        kind, values = draw(_KINDS)
        columns[f"c{index}"] = pa.array(draw(st.lists(st.none() | values, min_size=count, max_size=count)), kind)
    return pa.table(columns)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=tables(), data=st.data())
def test_any_table_in_any_files_is_proved_and_a_dropped_or_doubled_row_never_is(
    tmp_path_factory: pytest.TempPathFactory, rows: pa.Table, data: st.DataObject
):
    case = Case(tmp_path_factory.mktemp("any"))
    cut = data.draw(st.integers(0, rows.num_rows))
    case.input(rows.slice(0, cut), row_group_size=data.draw(st.integers(1, 5)))
    case.input(rows.slice(cut), use_dictionary=data.draw(st.booleans()))
    order = data.draw(st.permutations(range(rows.num_rows)))
    shuffled = rows.take(order)
    case.output(shuffled, use_dictionary=data.draw(st.booleans()), row_group_size=data.draw(st.integers(1, 5)))
    case.prove()
    victim, twin = data.draw(st.integers(0, rows.num_rows - 1)), data.draw(st.integers(0, rows.num_rows - 1))
    keep = [i for i in range(rows.num_rows) if i != victim] + [twin]
    spoiled = rows.take(keep)
    same = _normal(rows.slice(victim, 1)) == _normal(rows.slice(twin, 1))
    case.outputs.clear()
    case.output(spoiled)
    if same:
        case.prove()
    else:
        with pytest.raises(Integrity):
            case.prove()


def _normal(rows: pa.Table) -> str:
    """A row's values as text, with one zero and one NaN."""

    def normal(value: Any) -> Any:
        if isinstance(value, float):
            return "nan" if math.isnan(value) else value + 0.0
        if isinstance(value, dict):
            return {key: normal(item) for key, item in value.items()}
        return [normal(item) for item in value] if isinstance(value, list) else value

    columns = [column.cast(_integers(column.type)) for column in rows.columns]
    return repr([[normal(value) for value in column.to_pylist()] for column in columns])


def _integers(kind: pa.DataType) -> pa.DataType:
    """``kind`` with timestamps as integers, since Python has none of nanoseconds."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_list(kind):
        return pa.list_(_integers(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(child.name, _integers(child.type)) for child in kind])
    return kind


@pytest.mark.spark
@pytest.mark.parametrize("timestamps", ["INT96", "TIMESTAMP_MICROS"])
@pytest.mark.parametrize("legacy", ["true", "false"])
def test_spark_rewriting_arrow_and_arrow_rewriting_spark_raise_no_alarm(
    tmp_path: Path, spark: Any, timestamps: str, legacy: str
):
    odd = {"score": [math.nan, -0.0, 0.0, None], "raw": [b"", None, b"x" * 100, b"\xff\xfe"]}
    rows = table(range(200))
    for name, values in odd.items():
        for row, value in enumerate(values):
            rows = set_value(rows, name, row, value) if rows[name][row].as_py() != value else rows
    tz = spark.conf.get("spark.sql.session.timeZone")
    changed = {
        "spark.sql.parquet.outputTimestampType": timestamps,
        "spark.sql.parquet.writeLegacyFormat": legacy,
        "spark.sql.session.timeZone": "America/New_York",
    }
    case = Case(tmp_path)
    case.input(rows)
    for key, value in changed.items():
        spark.conf.set(key, value)
    try:
        written = str(tmp_path / "spark")
        spark.read.parquet(str(tmp_path / "p" / "in0.parquet")).repartition(3).write.parquet(written)
    finally:
        for key in changed:
            spark.conf.unset(key)
        spark.conf.set("spark.sql.session.timeZone", tz)
    by_spark = sorted(Path(written).glob("*.parquet"))
    for number, path in enumerate(by_spark):
        target = tmp_path / "p" / f"spark{number}.parquet"
        path.rename(target)
        count = pq.read_metadata(target).num_rows
        case.outputs.append(OutputFile(partition="p", path=f"p/{target.name}", bytes=1, rows=count))
    assert len(case.outputs) == 3
    for level in ReceiptLevel:
        case.level = level
        case.prove()
    back = Case(tmp_path)
    back.slices = [FileSlice(partition="p", file_id=o.path, path=o.path, bytes=1) for o in case.outputs]
    back.outputs = [OutputFile(partition="p", path="p/in0.parquet", bytes=1, rows=200)]
    for level in ReceiptLevel:
        back.level = level
        back.prove()

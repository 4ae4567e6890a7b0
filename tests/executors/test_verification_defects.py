# SPDX-License-Identifier: Apache-2.0
"""Verification before a commit finds every planted defect."""

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from verification_case import SCHEMA, Case, set_value, swap_rows, swapped, table

from lake.errors import Conflict, Integrity, Transient
from lake.plan import OutputFile, VerificationLevel

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


@pytest.mark.parametrize("kind", ["parquet", "orc"])
@pytest.mark.parametrize("level", list(VerificationLevel))
@pytest.mark.parametrize(("defect", "message"), [d[1:] for d in SEEN_IN_FOOTERS], ids=[d[0] for d in SEEN_IN_FOOTERS])
def test_a_defect_that_footers_show_is_found(
    tmp_path: Path, kind: str, level: VerificationLevel, defect: Defect, message: str
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
    case = Case(tmp_path, VerificationLevel.HASH, kind)
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


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_a_nan_that_became_a_number_is_found(tmp_path: Path, kind: str):
    case = Case(tmp_path, kind=kind)
    case.input(pa.table({"f": [math.nan, 1.0, 3.0]}))
    case.output(pa.table({"f": [2.0, 1.0, 3.0]}))
    with pytest.raises(Integrity, match="column f"):
        case.prove()


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

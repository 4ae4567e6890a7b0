# SPDX-License-Identifier: Apache-2.0
"""Verification before a commit accepts every correct rewrite."""

import math
import os
import time
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from verification_case import SCHEMA, Case, MergingWriter, NoWriter, in_another_process, set_value, table

from executors.datafiles.parquet import MAX_EXACT_BOUND_BYTES, footer_statistics
from executors.verification import verify_rewrite
from lake.errors import Conflict, Integrity, Rejected, Transient
from lake.model import FileSlice
from lake.plan import VerificationLevel

SPARK_LIKE = {
    "version": "1.0",
    "data_page_version": "1.0",
    "store_decimal_as_integer": True,
    "compression": "snappy",
    "row_group_size": 70,
}


@pytest.mark.parametrize("level", list(VerificationLevel))
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
def test_encodings_row_groups_and_order_do_not_matter(
    tmp_path: Path, level: VerificationLevel, options: dict[str, Any]
):
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
    long = "x" * (MAX_EXACT_BOUND_BYTES + 1)
    for first, second in ((long, long + "y"), ("x" * 5000, long)):
        case = Case(tmp_path / f"{len(first)}", VerificationLevel.FOOTER)
        case.input(pa.table({"s": [first]}))
        case.output(pa.table({"s": [second]}))
        case.prove()
    exact = Case(tmp_path / "exact", VerificationLevel.FOOTER)
    exact.input(pa.table({"s": ["x" * MAX_EXACT_BOUND_BYTES]}))
    exact.output(pa.table({"s": ["x" * (MAX_EXACT_BOUND_BYTES - 1) + "y"]}))
    with pytest.raises(Integrity, match="column s, min"):
        exact.prove()


@pytest.mark.parametrize("level", list(VerificationLevel))
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_nan_and_signed_zeros_raise_no_alarm(tmp_path: Path, level: VerificationLevel, kind: pa.DataType):
    case = Case(tmp_path, level)
    case.input(pa.table({"f": pa.array([math.nan, -0.0, 2.0], kind)}))
    case.input(pa.table({"f": pa.array([math.nan], kind)}))
    case.input(pa.table({"f": pa.array([0.0, None, -3.5], kind)}))
    case.output(pa.table({"f": pa.array([0.0, -0.0, math.nan, -3.5, math.nan, None, 2.0], kind)}))
    case.prove()


@pytest.mark.parametrize("kind", ["parquet", "orc"])
@pytest.mark.parametrize("level", list(VerificationLevel))
def test_a_column_added_after_the_inputs_were_written_reads_as_nulls(
    tmp_path: Path, kind: str, level: VerificationLevel
):
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


@pytest.mark.parametrize("level", list(VerificationLevel))
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
    tmp_path: Path, level: VerificationLevel, narrow: pa.Array, wide: pa.DataType
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


WIDER = [
    (pa.array([1, None, -7], pa.int32()), pa.int64()),
    (pa.array([1, None, -7], pa.int32()), pa.float64()),
    (pa.array([1.5, None, -7], pa.float32()), pa.float64()),
    (pa.array([Decimal("1.50"), None], pa.decimal128(5, 2)), pa.decimal128(18, 2)),
    (pa.array([{"x": 1}, None], pa.struct([("x", pa.int32())])), pa.struct([("x", pa.float64())])),
]


@pytest.mark.parametrize("kind", ["parquet", "orc"])
@pytest.mark.parametrize("level", list(VerificationLevel))
@pytest.mark.parametrize(("narrow", "wide"), WIDER, ids=lambda kind: str(getattr(kind, "type", kind)))
def test_a_group_may_keep_a_narrower_type_than_another_group_of_its_partition(
    tmp_path: Path, kind: str, level: VerificationLevel, narrow: pa.Array, wide: pa.DataType
):
    """The files of one group all have the narrow type, and those of the other one both types."""
    case = Case(tmp_path, level, kind)
    narrow_rows, wide_rows = pa.table({"c": narrow}), pa.table({"c": narrow.cast(wide)})
    for rows in (narrow_rows, narrow_rows, narrow_rows, wide_rows):
        case.input(rows)
    one, two = (pa.concat_tables([rows] * 2) for rows in (narrow_rows, wide_rows))
    case.output(one)
    case.output(two)
    case.prove()
    case.outputs.reverse()
    case.prove()
    case.outputs.clear()
    case.output(one)
    case.output(pa.concat_tables([wide_rows] + [wide_rows.slice(0, 1)] * wide_rows.num_rows))
    with pytest.raises(Integrity, match="column c"):
        case.prove()


ZONES = [pa.timestamp("us"), pa.timestamp("us", "UTC")]


@pytest.mark.parametrize("level", list(VerificationLevel))
def test_one_group_of_a_partition_may_have_local_timestamps_and_another_group_utc_timestamps(
    tmp_path: Path, level: VerificationLevel
):
    local, utc = (
        pa.table({"id": [1, 2, 3], "at": pa.array([first, None, 7], kind)})
        for first, kind in zip((1, 5), ZONES, strict=True)
    )
    more = pa.table({"id": [7, 8, 9]})  # files of before the column was added
    other = utc.set_column(1, "at", pa.array([5, None, 8], ZONES[1]))

    def verified(*outputs: pa.Table) -> None:
        case = Case(tmp_path / f"{len(list(tmp_path.iterdir()))}", level)
        for rows in (local, local, utc, more):
            case.input(rows)
        for rows in outputs:
            case.output(rows)
        case.prove()

    utc_and_more = pa.concat_tables([utc, more], promote_options="default")
    verified(pa.concat_tables([local, local]), utc_and_more)
    verified(utc_and_more, local, local)
    for wrong in (
        [pa.concat_tables([local, local]).cast(utc.schema), utc_and_more],
        [local, local.cast(utc.schema), utc_and_more],
        [local, utc.cast(local.schema), utc, local.cast(utc.schema), more],
        [local, local, other, more],
    ):
        with pytest.raises(Integrity, match=r"column at( \((local|utc)\))?:|column at \(|rows"):
            verified(*wrong)


@pytest.mark.parametrize("level", list(VerificationLevel))
def test_a_writer_that_reads_its_inputs_in_the_tables_columns_may_write_one_kind_of_timestamps(
    tmp_path: Path, level: VerificationLevel
):
    """Hudi's row writer writes local and UTC timestamps of old files as the table's type."""
    local, utc = (pa.table({"id": [1, 2], "at": pa.array([1, None], kind)}) for kind in ZONES)
    case = Case(tmp_path, level)
    for rows in (local, utc):
        case.input(rows)
    merged = pa.concat_tables([local.cast(utc.schema), utc])
    case.output(merged)
    case.prove(MergingWriter(merged))
    with pytest.raises(Integrity):
        case.prove(MergingWriter(set_value(merged, "at", 1, 5)))
    with pytest.raises(Integrity):
        case.prove()


@pytest.mark.parametrize("level", list(VerificationLevel))
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ([pa.int64(), pa.int32()], [pa.int32(), pa.int16()]),
        ([pa.int32()], [pa.float32(), pa.float64()]),
        ([pa.int64()], [pa.int64(), pa.float64()]),
        ([pa.int32(), pa.float64()], [pa.int32(), pa.string()]),
        ([], [pa.int32(), pa.int64()]),
    ],
    ids=str,
)
def test_new_files_of_different_types_need_a_type_that_has_all_values(
    tmp_path: Path, level: VerificationLevel, old: list[pa.DataType], new: list[pa.DataType]
):
    case = Case(tmp_path, level)
    ids, values = pa.array([1, 2]), pa.array([1, 2])
    for kind in old or [None]:
        case.input(pa.table({"id": ids, "c": values.cast(kind)} if kind else {"id": pa.array([1, 2, 1, 2])}))
    if len(old) == 1:
        case.input(pa.table({"id": ids, "c": values.cast(old[0])}))
    for kind in new:
        case.output(pa.table({"id": ids, "c": values.cast(kind)}))
    with pytest.raises(Integrity, match=r"column c: expected"):
        case.prove()


@pytest.mark.parametrize("level", list(VerificationLevel))
def test_an_old_timestamp_of_96_bits_equals_the_same_instant_in_64(tmp_path: Path, level: VerificationLevel):
    rows = pa.table({"at": pa.array([0, 1_767_225_600_000_001, None, 253_402_300_799_000_000], pa.timestamp("us"))})
    utc = pa.table({"at": rows["at"].cast(pa.timestamp("us", "UTC"))})
    case = Case(tmp_path, level)
    case.input(rows, use_deprecated_int96_timestamps=True)
    case.output(utc, coerce_timestamps="us")
    case.prove()
    if level is VerificationLevel.HASH:
        case.outputs.clear()
        case.output(set_value(utc, "at", 1, utc["at"][0].as_py()))
        with pytest.raises(Integrity, match="column at, hash"):
            case.prove()


def test_rows_of_slices_with_logs_are_compared_as_a_reader_merges_them(tmp_path: Path):
    for level in VerificationLevel:
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


@pytest.mark.parametrize("level", list(VerificationLevel))
def test_a_column_that_the_table_changed_or_dropped_is_compared_as_a_reader_sees_it(
    tmp_path: Path, level: VerificationLevel
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


def test_the_verification_ends_when_its_lease_check_fails(tmp_path: Path):
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


@pytest.mark.slow
def test_two_thousand_footers_cost_little_more_than_reading_them(tmp_path: Path):
    case = Case(tmp_path, VerificationLevel.FOOTER)
    rows = table(range(5))
    first = case.input(rows)
    for number in range(1, 2000):
        name = f"p/link{number}.parquet"
        os.link(first, tmp_path / name)
        case.slices.append(FileSlice(partition="p", file_id=name, path=name, bytes=1))
    case.output(pa.concat_tables([rows] * 2000))
    begun = time.process_time()
    for slice_ in case.slices:
        pq.read_metadata(tmp_path / slice_.path)
    reading, begun = time.process_time() - begun, time.process_time()
    case.prove()
    # It is about three times as much; a second reading of each file, or a Python object a value, would be far more.
    assert time.process_time() - begun < 10 * reading


@pytest.mark.parametrize("level", list(VerificationLevel))
@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_inputs_may_lie_outside_the_location_of_the_table(tmp_path: Path, kind: str, level: VerificationLevel):
    case = Case(tmp_path / "t", level, kind)
    places = (
        f"{tmp_path}/moved/p/in.{kind}",
        f"file:{tmp_path}/uri/p/in.{kind}",
        f"file://{tmp_path}/uris/p/in.{kind}",
    )
    for number, place in enumerate(places):
        case.input(table(range(number * 30, number * 30 + 30)))
        case.moved(place)
    case.input(table(range(90, 120)))
    case.output(table(range(120)))
    case.prove()
    Path(places[0]).unlink()
    with pytest.raises(Conflict, match=f"^{places[0]} was deleted while the plan ran$"):
        case.prove()
    case.slices.pop(0)
    with pytest.raises(Integrity, match="expected 90, found 120"):
        case.prove()


def test_a_location_may_be_a_uri(tmp_path: Path):
    case = Case(tmp_path / "a table #1")
    case.input(table(range(10)))
    case.output(table(range(10)))
    rewrite = case.rewrite()
    for location in (f"file://{case.base}", f"file:{case.base}"):
        object.__setattr__(rewrite.prepared.plan.table, "location", location)
        verify_rewrite(rewrite, writer=NoWriter())  # type: ignore[arg-type]


@pytest.mark.parametrize("level", list(VerificationLevel))
def test_files_of_different_kinds_with_the_same_rows_are_equal(tmp_path: Path, level: VerificationLevel):
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


@pytest.mark.parametrize("level", VerificationLevel)
@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_texts_that_are_not_utf_8_are_compared_by_their_bytes(tmp_path: Path, kind: str, level: VerificationLevel):
    """Hive keeps the bytes of a text as they are."""

    def texts(*values: bytes | None) -> pa.Table:
        content = pa.array(values, pa.binary())
        return pa.table({"s": pa.Array.from_buffers(pa.string(), len(content), content.buffers())})

    case = Case(tmp_path, level, kind)
    case.input(texts(b"caf\xe9", None, b"b"))
    case.input(texts(b"\xff"))
    case.output(texts(b"\xff", b"b", None, b"caf\xe9"))
    case.prove()
    case.outputs.clear()
    case.output(texts(b"\xfe", b"b", None, b"caf\xe9"))
    with pytest.raises(Integrity, match="column s, "):
        case.prove()


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_a_file_without_a_known_suffix_is_read_by_its_first_bytes(tmp_path: Path, kind: str):
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
        Rejected, match=f"p/{name} is a file of kind {kind}; lakefold can verify rewrites of parquet and"
    ):
        case.prove()


def test_no_statistics_mean_no_opinion(tmp_path: Path):
    case = Case(tmp_path)
    path = case.input(table(range(10)), write_statistics=False)
    for leaf in footer_statistics([pq.read_metadata(path)]).leaves.values():
        assert (leaf.null_count, leaf.has_exact_bounds) == (None, False)


def test_a_partition_that_another_process_found_equal_is_not_read_again(tmp_path: Path):
    case = Case(tmp_path, VerificationLevel.FOOTER)
    case.input(table(range(100)))
    case.output(table(range(100)))
    verified = []

    def run(function: Any, items: Any, *, files: int, check: Any) -> list[bool]:
        found = in_another_process(function, items, files=files, check=check)
        verified.append((files, found))
        for path in tmp_path.rglob("*.parquet"):
            path.write_bytes(b"")
        return found

    verify_rewrite(case.rewrite(), writer=NoWriter(), run=run)  # type: ignore[arg-type]
    assert verified == [(2, [True])]


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_other_processes_settle_neither_a_difference_nor_orc_files(tmp_path: Path, kind: str):
    case = Case(tmp_path, VerificationLevel.FOOTER, kind)
    case.input(table(range(100)))
    case.output(table(range(100)) if kind == "orc" else set_value(table(range(100)), "id", 99, 100))
    found = []

    def run(function: Any, items: Any, *, files: int, check: Any) -> list[bool]:
        found.extend(in_another_process(function, items, files=files, check=check))
        return found

    with nullcontext() if kind == "orc" else pytest.raises(Integrity, match="column id, max: expected 99, found 100"):
        verify_rewrite(case.rewrite(), writer=NoWriter(), run=run)  # type: ignore[arg-type]
    assert found == [False]


@pytest.mark.parametrize("error", [Transient, Rejected])
def test_footers_are_compared_in_this_process_if_no_other_can(tmp_path: Path, error: type[Exception]):
    case = Case(tmp_path, VerificationLevel.FOOTER)
    case.input(table(range(100)))
    case.output(set_value(table(range(100)), "id", 99, 100))

    def run(*_: object, **__: object) -> list[bool]:
        raise error("Spark could not run the tasks")

    with pytest.raises(Integrity, match="column id, max"):
        verify_rewrite(case.rewrite(), writer=NoWriter(), run=run)  # type: ignore[arg-type]

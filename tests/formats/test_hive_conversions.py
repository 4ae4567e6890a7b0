# SPDX-License-Identifier: Apache-2.0
"""Hive tables whose files have other types than the table: compacted where values stay, else left alone, not halted."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from contract.attempts import attempt, run
from contract.plans import plan_all
from hive_case import HiveCase
from hive_metastore import MetastoreServer
from hive_session import Session, session
from py4j.java_gateway import get_field, set_field
from pyarrow import orc

from executors.datafiles.orc_tail import read_tail
from executors.engines import create_engines
from executors.verification import verify_rewrite
from lake.errors import Conflict
from lake.formats.hive import FORMAT
from lake.metastore import MetastoreClient
from lake.model import TableRef
from lake.plan import VerificationLevel

pytestmark = [pytest.mark.slow, pytest.mark.spark]

#: tables by name, with their columns and the kind of their files
TABLES = {
    "padded": ("id BIGINT, c CHAR(5), v VARCHAR(5)", "ORC"),
    "numbered": ("id BIGINT, name STRING", "ORC"),
    "numbered_in_part": ("id BIGINT, name STRING", "ORC"),
    "strings": ("id BIGINT, name STRING", "PARQUET"),
    "small": ("id BIGINT, n SMALLINT", "PARQUET"),
    "too_large": ("id BIGINT, n SMALLINT", "PARQUET"),
    "to_string": ("id BIGINT, n STRING", "PARQUET"),
    "one_type": ("id BIGINT, n STRING", "ORC"),
    "latin": ("id BIGINT, name STRING", "ORC"),
    "unpadded": ("id BIGINT, c CHAR(5), more INT", "PARQUET"),
    "patterns": ("id BIGINT, name STRING, more INT", "PARQUET"),
    "widened": ("x DOUBLE, id BIGINT, n BIGINT, d DECIMAL(12,2), more INT", "ORC"),
    "rescaled": ("id BIGINT, n DECIMAL(12,4)", "PARQUET"),
    "old_days": ("id BIGINT, d DATE, more INT", "PARQUET"),
    "half_doubles": ("id BIGINT, n DOUBLE, more INT", "ORC"),
    "half_ints": ("id BIGINT, n INT", "PARQUET"),
    "zones": ("id BIGINT, n TIMESTAMP", "PARQUET"),
    "zones_in_a_group": ("id BIGINT, n TIMESTAMP", "PARQUET"),
}


@pytest.fixture(scope="module")
def reader(metastore: MetastoreServer) -> Iterator[Session]:
    with session(metastore) as one:
        one.sql("CREATE DATABASE converted")
        for name, (columns, kind) in TABLES.items():
            one.sql(f"CREATE TABLE converted.{name} ({columns}) PARTITIONED BY (dt STRING) STORED AS {kind}")
            one.sql(f"ALTER TABLE converted.{name} ADD PARTITION (dt = 'd')")
        yield one


def table_of(metastore: MetastoreServer, name: str) -> TableRef:
    return next(FORMAT.discover_in_metastore(metastore.uri, "converted", name))


def directory(metastore: MetastoreServer, name: str) -> Path:
    with MetastoreClient(metastore.uri) as client:
        found = dict(client.partitions("converted", name, ["dt=d"]))
    return Path(found["dt=d"].storage.location.removeprefix("file:"))


def put(place: Path, *columns: dict[str, pa.Array]) -> None:
    """A file of three rows in the partition for each of ``columns``, numbered on."""
    for number, more in enumerate(columns):
        first = "_col0" if any(key.startswith("_col") for key in more) else "id"
        rows = pa.table({first: pa.array(range(3 * number, 3 * number + 3), pa.int64()), **more})
        is_orc = place.parent.name in {name for name, (_, kind) in TABLES.items() if kind == "ORC"}
        (orc if is_orc else pq).write_table(rows, place / f"{number:06}_0")


def answers(reader: Session, name: str) -> Counter[str]:
    return Counter(map(str, reader.sql(f"SELECT * FROM converted.{name}")))


def files(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if path.name[0] not in "._")


def compact(metastore: MetastoreServer, spark: Any, name: str, *, groups: int = 1) -> list[Path]:
    """The files of the partition after a whole plan with its verification, all of whose groups were committed."""
    case = HiveCase(uri=metastore.uri, engines=create_engines(lambda: spark))
    for level in VerificationLevel:
        plan = plan_all(FORMAT, table_of(metastore, name), f"{name}-{level.value}")
        (whole,) = plan.groups
        size = len(whole.slices) // groups
        parts = [whole.slices[first : first + size] for first in range(0, len(whole.slices), size)]
        plan = replace(plan, groups=tuple(replace(whole, slices=part) for part in parts))
        with attempt(case, replace(plan, options=replace(plan.options, verification=level))) as one:
            rewrite = one.rewritten()
            verify_rewrite(rewrite, writer=one.writer)
            if level is VerificationLevel.HASH:
                assert one.writer.commit(rewrite).skipped == ()
    return files(directory(metastore, name))


def test_chars_that_hive_padded_stay_padded(metastore: MetastoreServer, reader: Session, spark: Any):
    place = directory(metastore, "padded")
    for number in range(3):
        by_hives_library(spark, place / f"{number:06}_0", number)
    before = answers(reader, "padded")
    raw = Counter(str(row) for path in files(place) for row in orc.ORCFile(path).read().to_pylist())
    (new,) = compact(metastore, spark, "padded")
    assert answers(reader, "padded") == before
    assert before.total() == 6
    assert Counter(str(row) for row in orc.ORCFile(new).read().to_pylist()) == raw
    with new.open("rb") as file:
        assert read_tail(pa.PythonFile(file)).has_chars


def by_hives_library(spark: Any, path: Path, number: int) -> None:
    """Two rows as Hive writes them, with ``char`` and ``varchar``."""
    jvm = spark.sparkContext._jvm
    schema = jvm.org.apache.orc.TypeDescription.fromString("struct<id:bigint,c:char(5),v:varchar(5)>")
    options = jvm.org.apache.orc.OrcFile.writerOptions(spark.sparkContext._jsc.hadoopConfiguration()).setSchema(schema)
    writer = jvm.org.apache.orc.OrcFile.createWriter(jvm.org.apache.hadoop.fs.Path(str(path)), options)
    batch = schema.createRowBatch()
    numbers, chars, texts = get_field(batch, "cols")
    for row, text in enumerate((b"ab", b"c")):
        get_field(numbers, "vector")[row] = 2 * number + row
        chars.setVal(row, text.ljust(5))
        texts.setVal(row, text)
    set_field(batch, "size", 2)
    writer.addRowBatch(batch)
    writer.close()


def words(*texts: str) -> pa.Array:
    return pa.array(texts)


def raw_words(*texts: bytes | None) -> pa.Array:
    """Texts of these bytes, which may not be UTF-8."""
    content = pa.array(texts, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(content), content.buffers())


@pytest.mark.parametrize(
    ("name", "put_there"),
    [
        ("numbered", lambda place: put(place, *({"_col1": words("a", "b", "ä")} for _ in range(3)))),
        ("one_type", lambda place: put(place, *({"n": pa.array([1, 2, None], pa.int32())} for _ in range(3)))),
        ("latin", lambda place: put(place, *({"name": raw_words(b"caf\xe9", None, b"\xff")} for _ in range(3)))),
        (
            "strings",
            lambda place: put(
                place,
                {"name": words("a", "b", "ä")},
                {"name": pa.array([b"a", "ü".encode(), None], pa.binary())},
                {"name": words("x" * 100, "", "y")},
            ),
        ),
        (
            "small",
            lambda place: put(
                place, {"n": pa.array([1, -32_768, None], pa.int16())}, {"n": pa.array([7, 32_767, 0], pa.int32())}
            ),
        ),
    ],
)
def test_values_that_a_reader_of_the_table_sees_stay(
    metastore: MetastoreServer, reader: Session, spark: Any, name: str, put_there: Callable[[Path], None]
):
    place = directory(metastore, name)
    put_there(place)
    before = answers(reader, name)
    paths = files(place)
    by_duckdb = [rows_of(path) for path in paths] if TABLES[name][1] == "PARQUET" else []
    (new,) = compact(metastore, spark, name)
    assert answers(reader, name) == before
    assert before.total() == 3 * len(paths)
    if by_duckdb:
        assert rows_of(new) == sum(by_duckdb, Counter())


def test_a_file_whose_name_is_a_pattern_for_the_name_of_another_is_read_itself(
    metastore: MetastoreServer, reader: Session, spark: Any
):
    place = directory(metastore, "patterns")
    put(place, {"name": words("a", "b", "c")}, {"name": words("d", "e", "f"), "more": pa.array([1, 2, 3], pa.int32())})
    for path, name in zip(files(place), ("load1.parquet", "load[1].parquet"), strict=True):
        path.rename(place / name)
    before = answers(reader, "patterns")
    (new,) = compact(metastore, spark, "patterns")
    assert answers(reader, "patterns") == before
    assert sorted(pq.read_table(new)["id"].to_pylist()) == list(range(6))


def test_chars_that_another_writer_has_stored_without_blanks_stay_so(
    metastore: MetastoreServer, reader: Session, spark: Any
):
    """Spark pads them when it reads a table that it has made; Hive and Trino store them without blanks in Parquet."""
    place = directory(metastore, "unpadded")
    put(
        place,
        {"c": words("ab", "c", "")},
        {"c": words("ab   ", "c", "d"), "more": pa.array([1, 2, 3], pa.int32())},
    )
    before = answers(reader, "unpadded")
    (new,) = compact(metastore, spark, "unpadded")
    assert answers(reader, "unpadded") == before
    assert pq.read_table(new)["c"].to_pylist() == ["ab", "c", "", "ab   ", "c", "d"]


def test_orc_files_keep_the_types_and_the_order_of_their_columns_although_the_table_changed_them(
    metastore: MetastoreServer, reader: Session, spark: Any
):
    """A reader may use the columns of the partition, which Hive's ALTER TABLE does not change, or their positions."""
    place, old = directory(metastore, "widened"), {"x": pa.float32(), "n": pa.int32(), "d": pa.decimal128(10, 2)}
    values = {"x": [1.5, None, -0.0], "n": [1, None, -(1 << 31)], "d": [Decimal("1.25"), None, Decimal(-7)]}
    put(place, *({name: pa.array(values[name], kind) for name, kind in old.items()} for _ in range(3)))
    before = answers(reader, "widened")
    (new,) = compact(metastore, spark, "widened")
    assert answers(reader, "widened") == before
    assert before.total() == 9
    found = orc.ORCFile(new).schema
    assert [(one.name, one.type) for one in found] == [("id", pa.int64()), *old.items(), ("more", pa.int32())]


@pytest.mark.parametrize(
    ("name", "narrow", "wide"),
    [("half_doubles", pa.float32(), pa.float64()), ("half_ints", pa.int16(), pa.int32())],
)
def test_a_group_of_older_files_keeps_their_narrower_type_beside_a_group_of_both_types(
    metastore: MetastoreServer, reader: Session, spark: Any, name: str, narrow: pa.DataType, wide: pa.DataType
):
    place = directory(metastore, name)
    put(place, *({"n": pa.array([1, None, -7]).cast(kind)} for kind in (narrow, narrow, narrow, wide)))
    before = answers(reader, name)
    new = compact(metastore, spark, name, groups=2)
    assert (answers(reader, name), before.total()) == (before, 12)
    assert {column_type(path, "n") for path in new} == {narrow, wide}


LOCAL, UTC = pa.timestamp("us"), pa.timestamp("us", "UTC")


def test_a_group_of_local_timestamps_stays_so_beside_a_group_of_utc_timestamps(
    metastore: MetastoreServer, reader: Session, spark: Any
):
    """As of writers with and without ``isAdjustedToUTC``; the table was halted by each plan."""
    place = directory(metastore, "zones")
    put(place, *({"n": pa.array([1, None, -7], kind)} for kind in (LOCAL, LOCAL, UTC, UTC)))
    before = Counter(row for path in files(place) for row in map(str, pq.read_table(path).to_pylist()))
    new = compact(metastore, spark, "zones", groups=2)
    assert Counter(row for path in new for row in map(str, pq.read_table(path).to_pylist())) == before
    assert Counter(column_type(path, "n") for path in new) == {LOCAL: 1, UTC: 1}


def column_type(path: Path, name: str) -> pa.DataType:
    with path.open("rb") as file:
        schema = pq.read_schema(path) if file.read(3) == b"PAR" else orc.ORCFile(path).schema
    return schema.field(name).type


def rows_of(path: Path) -> Counter[str]:
    """Rows as DuckDB reads them, bytes as text."""
    with duckdb.connect() as connection:
        rows = connection.execute("SELECT * FROM read_parquet($path)", {"path": str(path)}).fetchall()
    return Counter(str([one.decode() if isinstance(one, bytes) else one for one in row]) for row in rows)


@pytest.mark.parametrize(
    ("name", "put_there", "why"),
    [
        (
            "numbered_in_part",
            lambda place: put(place, {"_col1": words("a", "b", "c")}, {"name": words("d", "e", "f")}),
            "names its columns by position",
        ),
        (
            "too_large",
            lambda place: put(
                place, {"n": pa.array([1, 2, 3], pa.int16())}, {"n": pa.array([4, 5, 70_000], pa.int32())}
            ),
            r"column n is int\(32\) in .* and int\(16\) in the table, and it would convert the values",
        ),
        (
            "to_string",
            lambda place: put(place, {"n": pa.array([1, 2, 3], pa.int32())}, {"n": words("4", "5", "6")}),
            r"column n is int\(32\) in .* and string in the table, and it would convert the values",
        ),
        (
            "rescaled",
            lambda place: put(
                place,
                {"n": pa.array([Decimal("1.25")] * 3, pa.decimal128(10, 2))},
                {"n": pa.array([Decimal("1.2345")] * 3, pa.decimal128(12, 4))},
            ),
            r"column n is decimal\(10, 2\) in .* and decimal\(12, 4\) in the table, and it would convert the values",
        ),
        (
            "zones_in_a_group",
            lambda place: put(place, *({"n": pa.array([1, None, -7], kind)} for kind in (LOCAL, UTC))),
            r"column n is timestamp\(us, local\) in .* and timestamp\(us, utc\) in the table, and it would convert",
        ),
        (
            "old_days",
            lambda place: put(
                place,
                {"d": pa.array([-200_000, 0, 1], pa.date32())},
                {"d": pa.array([2, 3, 4], pa.date32()), "more": pa.array([1, 2, 3], pa.int32())},
            ),
            "column d of .* has values before 1582-10-15 by the calendar of an older writer",
        ),
    ],
)
def test_a_group_whose_values_would_be_converted_is_left_alone_with_the_reason(
    metastore: MetastoreServer,
    reader: Session,
    spark: Any,
    name: str,
    put_there: Callable[[Path], None],
    why: str,
):
    place = directory(metastore, name)
    put_there(place)
    paths = files(place)
    case = HiveCase(uri=metastore.uri, engines=create_engines(lambda: spark))
    with pytest.raises(Conflict, match=why) as raised:
        run(case, plan_all(FORMAT, table_of(metastore, name), name))
    (left_out,) = raised.value.args[1]
    assert [Path(path).name for path in left_out.quarantine] == [path.name for path in paths]
    assert files(directory(metastore, name)) == paths

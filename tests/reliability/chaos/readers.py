# SPDX-License-Identifier: Apache-2.0
"""The table as readers see it that know nothing of lakefold, each as a multiset of rows in the ledger's types."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import duckdb
import fastavro
import pyarrow as pa

from chaos.ledger import State, multiset

#: what hudi-rs 0.5 says of a slice with logs from before a column was widened, which Hudi's own readers read
_OLD_LOGS = re.compile(r"partial-update column '\w+' has type|incompatible with target")
_NOTHING: Mapping[str, str] = MappingProxyType({})
_NO_ROWS: Counter[str] = Counter()
_DATA = re.compile(r"(?P<group>.+)_[^_]+_(?P<instant>\d{17})\.parquet")


def differences(
    expected: State, schema: pa.Schema, found: Counter[str], *, types: bool = True, optional: Counter[str] = _NO_ROWS
) -> list[str]:
    """What a reader sees otherwise than the ledger has it, as lines; without ``types`` the rows alone.

    ``optional`` are rows of the ledger that the reader may leave out.
    """
    lines = []
    wanted = {field.name: str(field.type) for field in expected.schema}
    there = {field.name: _type(field.type) for field in schema if field.name in wanted}
    if types and there != {name: _type(expected.schema.field(name).type) for name in wanted}:
        lines.append(f"types: {there} where the ledger has {wanted}")
    right = expected.multiset()
    missing, extra = right - found - optional, found - right
    if missing or extra:
        lines.append(f"{found.total()} rows for {right.total()}: {missing.total()} missing, {extra.total()} extra")
        lines += [f"missing {row}" for row in sorted(missing)[:3]] + [f"extra {row}" for row in sorted(extra)[:3]]
    return lines


def _type(type_: pa.DataType) -> str:
    return str(type_).replace("large_string", "string").replace("tz=+00:00", "tz=UTC").replace(" not null", "")


def _as(table: pa.Table, expected: State) -> tuple[pa.Schema, Counter[str]]:
    """The types as they were read, and the rows in those of the ledger."""
    known = [name for name in expected.schema.names if name in table.column_names]
    columns = pa.schema([expected.schema.field(name) for name in known])
    return table.schema, multiset(table.select(known).cast(columns))


def in_spark(
    spark: Any, base: Path, expected: State, options: Mapping[str, str] = _NOTHING
) -> tuple[pa.Schema, Counter[str]]:
    """The newest snapshot in Spark, or what ``options`` ask for."""
    from pyspark.sql.pandas.types import to_arrow_schema

    spark.catalog.clearCache()
    frame = spark.read.format("hudi").options(**options).load(str(base)).drop("_hoodie_is_deleted")
    frame = frame.select(*[name for name in frame.columns if not name.startswith("_hoodie")])
    schema = to_arrow_schema(frame.schema)
    batches = frame._collect_as_arrow()
    table = pa.Table.from_batches(batches) if batches else schema.empty_table()
    # Spark's time zone is the session's; the instants are the same.
    types = [pa.field(f.name, pa.timestamp("us", "UTC") if pa.types.is_timestamp(f.type) else f.type) for f in schema]
    _, rows = _as(table, expected)
    return pa.schema(types), rows


def groups_in_spark(spark: Any, base: Path) -> dict[int, str]:
    """The file group of each row of the newest snapshot, by the row's ``id``."""
    spark.catalog.clearCache()
    rows = spark.read.format("hudi").load(str(base)).select("id", "_hoodie_file_name").collect()
    # For rows of logs the name is that of the file group.
    return {row[0]: row[1].partition("_")[0] for row in rows}


def in_hudi_rs(base: Path, expected: State) -> tuple[pa.Schema, Counter[str]] | None:
    """The newest snapshot in hudi-rs; None where it can't tell (docs/hudi.md).

    It merges no logs from before a column was widened, and leaves out those that are written in a table of version 6
    while a compaction is pending.
    """
    from hudi import HudiTableBuilder

    if _has_logs_of_a_pending_compaction(base):
        return None
    try:
        batches = HudiTableBuilder.from_base_uri(str(base)).build().read()
    except Exception as error:
        if expected.evolutions and _OLD_LOGS.search(str(error)):
            return None
        raise
    table = pa.Table.from_batches([pa.record_batch(batch) for batch in batches]) if batches else None
    return _as(expected.schema.empty_table() if table is None else table, expected)


def in_duckdb(base: Path, expected: State) -> tuple[pa.Schema, Counter[str]]:
    """The base files that are live by the names of the files and by the timeline alone, read by DuckDB.

    Correct for copy-on-write tables without a running writer.
    """
    files = [str(path) for path in _live(base)]
    if not files:
        return expected.schema, Counter()
    query = "SELECT * FROM read_parquet(?, union_by_name = true, hive_partitioning = false)"
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        table = connection.sql(query, params=[files]).to_arrow_table()
    # DuckDB's union widens like Hudi, and has no column that no file has.
    for name in expected.schema.names:
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(table.num_rows, expected.schema.field(name).type))
    _, rows = _as(table, expected)
    return expected.schema, rows


def _has_logs_of_a_pending_compaction(base: Path) -> bool:
    """Whether logs of a table of version 6 are named by a compaction that has not ended."""
    home = base / ".hoodie"
    pending = {path.name.partition(".")[0] for path in home.glob("*.compaction.requested")}
    pending -= {path.name.partition(".")[0] for path in home.glob("*.commit")}
    return any(next(base.rglob(f".*_{instant}.log.*"), None) is not None for instant in pending)


def _live(base: Path) -> list[Path]:
    home = base / ".hoodie" / "timeline"
    home = home if home.is_dir() else base / ".hoodie"
    names = [path.name for path in home.iterdir() if path.is_file()]
    ended = {re.split(r"[._]", name)[0] for name in names if name.endswith((".commit", ".replacecommit"))}
    begun = {name.partition(".")[0] for name in names if name.endswith((".inflight", ".requested"))} - ended
    replaced = _replaced(home)
    newest: dict[tuple[str, str], tuple[str, Path]] = {}
    for path in base.rglob("*.parquet"):
        found = _DATA.fullmatch(path.name)
        partition = str(path.parent.relative_to(base))
        if found is None or partition.startswith(".hoodie") or found["instant"] in begun:
            continue
        key = (partition, found["group"])
        if key not in replaced:
            newest[key] = max(newest.get(key, ("", path)), (found["instant"], path))
    return [path for _, path in newest.values()]


def waits_for_the_writers_cleaner(request: Path) -> bool:
    """Whether all that a requested compaction of a table of version 6 names was replaced since.

    It stays for as long as logs carry its instant, and these go when the writer's cleaner deletes the replaced groups.
    """
    named = {(one["partitionPath"], one["fileId"]) for one in _record(request).get("operations") or ()}
    return request.parent.name == ".hoodie" and named <= _replaced(request.parent)


def _replaced(timeline: Path) -> set[tuple[str, str]]:
    """Partitions and ids of the file groups that completed commits of the active timeline replaced."""
    return {
        (partition, group)
        for path in timeline.glob("*.replacecommit")
        for partition, groups in (_record(path).get("partitionToReplaceFileIds") or {}).items()
        for group in groups
    }


def _record(path: Path) -> dict[str, Any]:
    if path.read_bytes()[:1] == b"{":  # table version 6
        return dict(json.loads(path.read_text()))
    with path.open("rb") as file:
        return next(iter(fastavro.reader(file)))  # type: ignore[arg-type]

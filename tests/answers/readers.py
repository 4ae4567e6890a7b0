# SPDX-License-Identifier: Apache-2.0
"""What DuckDB and pyarrow answer of files with everything that they skip by, and of rows of which they skip none."""

from collections.abc import Sequence

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from answers.kinds import Predicate

#: the numbers of the rows that one condition finds
Answer = frozenset[int]


def in_duckdb(paths: Sequence[str], predicates: Sequence[Predicate]) -> list[Answer]:
    """What DuckDB answers of files."""
    asked = " UNION ALL ".join(
        f"SELECT {number}, id FROM read_parquet({list(paths)}) WHERE {one.duckdb}"
        for number, one in enumerate(predicates)
    )
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'; SET threads = 1")
        return answers(connection.execute(asked).fetchall(), len(predicates))


def in_duckdb_unskipped(rows: pa.Table, predicates: Sequence[Predicate]) -> list[Answer]:
    """What DuckDB answers in one look at all rows."""
    asked = ", ".join(f"({one.duckdb})" for one in predicates)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'; SET threads = 1")
        connection.register("rows", rows)
        return of_each_row(connection.execute(f"SELECT id, {asked} FROM rows").fetchall(), len(predicates))


def in_pyarrow(source: pads.Dataset, predicates: Sequence[Predicate]) -> list[Answer]:
    """What pyarrow answers of files."""
    return [
        frozenset(source.to_table(columns=["id"], filter=one.arrow, use_threads=False)["id"].to_pylist())
        for one in predicates
    ]


def in_pyarrow_unskipped(rows: pa.Table, predicates: Sequence[Predicate]) -> list[Answer]:
    """What pyarrow answers in one look at all rows."""
    asked = {str(number): one.arrow for number, one in enumerate(predicates)}
    found = pads.dataset(rows).to_table(columns={"id": pc.field("id"), **asked}, use_threads=False)
    return of_each_row(list(zip(*(column.to_pylist() for column in found.columns), strict=True)), len(predicates))


def files(paths: Sequence[str], schema: pa.Schema) -> pads.Dataset:
    """Files as pyarrow reads them; INT96, which reaches beyond nanoseconds, as microseconds."""
    return pads.dataset(list(paths), schema, format=pads.ParquetFileFormat(coerce_int96_timestamp_unit="us"))


def answers(pairs: Sequence[Sequence[int]], count: int) -> list[Answer]:
    """The answers to ``count`` conditions, of pairs of the number of a condition and that of a row."""
    found: list[set[int]] = [set() for _ in range(count)]
    for number, row in pairs:
        found[number].add(row)
    return [frozenset(one) for one in found]


def of_each_row(rows: Sequence[Sequence[object]], count: int) -> list[Answer]:
    """The answers to ``count`` conditions, of rows that begin with their number and tell of each condition."""
    return [frozenset(int(str(row[0])) for row in rows if row[number + 1]) for number in range(count)]

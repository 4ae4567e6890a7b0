# SPDX-License-Identifier: Apache-2.0
"""The writer's own record of its table's expected rows, and the comparison of a table with this record.

A ledger is a directory with one Parquet file per batch: ``000012-upsert.pending.parquet`` before the batch is sent,
``000012-upsert.parquet`` once the batch is known to be in the table. Replaying the files in order gives the rows that
the table must contain, with all columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from service.cli.demo.trips import TRIPS

KEY = "trip_id"
_PENDING = ".pending.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerBatch:
    """One batch: its number, its operation (``fill``, ``insert``, ``upsert`` or ``delete``) and its rows."""

    number: int
    operation: str
    rows: pa.Table

    @property
    def label(self) -> str:
        """The batch's name in the ledger and in the commit's metadata, such as ``000012-upsert``."""
        return f"{self.number:06d}-{self.operation}"


class WriterLedger:
    """One ledger directory. One writer at a time; any number of readers."""

    def __init__(self, directory: Path) -> None:
        """Open or create the ledger in ``directory``."""
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def propose(self, batch: LedgerBatch) -> Path:
        """Record a batch before it is sent, and return the path of its file."""
        path = self.directory / f"{batch.label}{_PENDING}"
        half_written = path.with_suffix(".tmp")
        pq.write_table(batch.rows, half_written)
        return half_written.replace(path)

    def confirm(self, batch: LedgerBatch) -> None:
        """Record that the table contains the batch."""
        (self.directory / f"{batch.label}{_PENDING}").replace(self.directory / f"{batch.label}.parquet")

    def withdraw(self, batch: LedgerBatch) -> None:
        """Remove a batch that the table does not contain and that will not be sent again."""
        (self.directory / f"{batch.label}{_PENDING}").unlink(missing_ok=True)

    def pending(self) -> list[LedgerBatch]:
        """Return the batches that were neither confirmed nor withdrawn because the writer died, oldest first."""
        return [_read(path, path.name.removesuffix(_PENDING)) for path in sorted(self.directory.glob(f"*{_PENDING}"))]

    def confirmed(self) -> list[LedgerBatch]:
        """Return every batch that the table contains, in order."""
        paths = sorted(path for path in self.directory.glob("*.parquet") if not path.name.endswith(_PENDING))
        return [_read(path, path.name.removesuffix(".parquet")) for path in paths]

    def rows(self) -> pa.Table:
        """Return the rows that the table must contain now, one per key, in no particular order."""
        return replay(TRIPS.empty_table(), self.confirmed())


def _read(path: Path, label: str) -> LedgerBatch:
    number, _, operation = label.partition("-")
    return LedgerBatch(number=int(number), operation=operation, rows=pq.read_table(path, schema=TRIPS))


def replay(rows: pa.Table, batches: Sequence[LedgerBatch]) -> pa.Table:
    """Apply ``batches`` to ``rows``: for each key the last batch wins, and a delete removes the key."""
    if not batches:
        return rows
    tables = [rows, *(batch.rows for batch in batches)]
    order = np.repeat(np.arange(len(tables)), [table.num_rows for table in tables])
    deletes = np.array([False, *(batch.operation == "delete" for batch in batches)])
    everything = pa.concat_tables(tables).append_column("order", pa.array(order))
    numbered = everything.select([KEY, "order"]).append_column("row", pa.array(np.arange(everything.num_rows)))
    # Within one batch keys are unique, so the greatest (batch, row) of a key is its newest row.
    newest = numbered.group_by(KEY).aggregate([("row", "max")])["row_max"]
    kept = newest.to_numpy()[~deletes[order[newest.to_numpy()]]]
    return everything.take(pa.array(np.sort(kept))).drop_columns(["order"])


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerComparison:
    """The differences between a table's rows and the ledger's. Each tuple holds sorted keys.

    ``missing`` keys are in the ledger only, ``extra`` keys in the table only, ``doubled`` keys more than once in the
    table. ``stale`` keys are once in both, with a different value in some column.
    """

    rows: int
    expected_rows: int
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    doubled: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """True if both are the same multiset of rows."""
        return not (self.missing or self.extra or self.doubled or self.stale) and self.rows == self.expected_rows

    def __str__(self) -> str:
        """Return one line of text, with up to three keys of each kind of difference."""
        if self.equal:
            return f"{self.rows:,} rows, equal to the writer's ledger in every value of every column"
        kinds = {"missing": self.missing, "extra": self.extra, "doubled": self.doubled, "stale": self.stale}
        parts = [f"{len(keys):,} {kind} ({', '.join(keys[:3])} …)" for kind, keys in kinds.items() if keys]
        return f"{self.rows:,} rows, but {self.expected_rows:,} in the ledger: {'; '.join(parts)}"


def compare(expected: pa.Table, actual: pa.Table) -> LedgerComparison:
    """Compare two tables of trips as multisets of all columns. ``actual`` may have more columns (Hudi's own).

    Raises ValueError if a column is missing or a conversion to the ledger's type would lose data.
    """
    actual = _as_trips(actual)
    keys, counts = np.unique(actual[KEY].to_numpy(zero_copy_only=False).astype(str), return_counts=True)
    wanted = expected[KEY].to_numpy(zero_copy_only=False).astype(str)
    doubled = keys[counts > 1]
    once = np.intersect1d(keys[counts == 1], wanted)
    expected_rows = expected.take(pc.index_in(pa.array(once), expected[KEY].combine_chunks()))
    actual_rows = actual.take(pc.index_in(pa.array(once), actual[KEY].combine_chunks()))
    differs = np.zeros(len(once), dtype=bool)
    for field in TRIPS:
        differs |= _rows_differ(expected_rows[field.name].combine_chunks(), actual_rows[field.name].combine_chunks())
    return LedgerComparison(
        rows=actual.num_rows,
        expected_rows=expected.num_rows,
        missing=_keys(np.setdiff1d(wanted, keys)),
        extra=_keys(np.setdiff1d(keys, wanted)),
        doubled=_keys(doubled),
        stale=_keys(once[differs]),
    )


def _keys(found: np.ndarray) -> tuple[str, ...]:
    return tuple(cast("list[str]", found.tolist()))


def _as_trips(table: pa.Table) -> pa.Table:
    """Return the ledger's columns of ``table`` in the ledger's types.

    Raises ValueError if a column is missing or a conversion would lose data.
    """
    missing = [name for name in TRIPS.names if name not in table.column_names]
    if missing:
        raise ValueError(f"the table has no column {', '.join(missing)}")
    try:
        return table.select(TRIPS.names).cast(TRIPS)
    except pa.ArrowException as error:
        raise ValueError(f"the table's types are not the ledger's: {error}") from error


def _rows_differ(left: pa.Array, right: pa.Array) -> np.ndarray:
    """Return for each row whether two arrays of one type differ. Null equals only null; structs compare by field."""
    nulls = pc.xor(left.is_null(), right.is_null()).to_numpy(zero_copy_only=False)
    if pa.types.is_struct(left.type):
        # A field below a null parent has no value: flatten() applies the parent's nulls to the fields.
        for left_field, right_field in zip(left.flatten(), right.flatten(), strict=True):
            nulls = nulls | _rows_differ(left_field, right_field)
        return cast("np.ndarray", nulls)
    values = pc.fill_null(pc.not_equal(left, right), False).to_numpy(zero_copy_only=False)
    return cast("np.ndarray", nulls | values)

# SPDX-License-Identifier: Apache-2.0
"""A real writer in its own process: ``python -m service.cli.demo.writer --table DIR --ledger DIR``.

The writer fills the table with many small files. Then it upserts, inserts and deletes, concurrently with compaction,
until it has made ``--commits`` commits or receives a SIGTERM. It records each batch in the ledger before it writes the
batch, and confirms the batch once the table contains it. It prints one JSON object per line on stdout:

- ``{"event": "commit", "batch": "000012-upsert", "rows": 300, "attempts": 2, "seconds": 1.4}``
- ``{"event": "conflict", "batch": …, "error": "HoodieClusteringUpdateException"}``: a conflict with a plan; the writer
  repeats the write
- ``{"event": "unknown", "batch": …, "committed": true, "error": …}``: another failure; ``committed`` is true if the
  table contains the batch
- ``{"event": "holding"}`` and ``{"event": "resumed"}``: the writer waits while the ``--hold`` file exists
- ``{"event": "stopped", "commits": 31, "conflicts": 2}``: the last line
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.errors import LakefoldError
from service.cli.demo import trips
from service.cli.demo.ledger import LedgerBatch, WriterLedger, replay

_MAX_ATTEMPTS = 60


class WriterError(LakefoldError):
    """The writer gave up, for the reason in the text."""


class WriteTarget(Protocol):
    """The writer's view of a table."""

    @property
    def conflicts(self) -> Collection[str]:
        """The simple names of the Java exceptions that report a conflict; the writer repeats such a write."""

    @property
    def operations(self) -> Sequence[str]:
        """The cycle of operations after the fill, one batch each."""

    def write(self, batch: LedgerBatch, batch_file: Path, files: int) -> None:
        """Write the rows of the batch, which are in ``batch_file``, from ``files`` Spark partitions."""

    def has_batch(self, batch: LedgerBatch) -> bool:
        """Return True if the table contains the batch; the preceding write may have failed at any point."""


class TripsWriter:
    """The writer that sends batches to the table and records them in the ledger; for one thread and Spark session."""

    def __init__(
        self,
        target: WriteTarget,
        ledger: WriterLedger,
        *,
        emit: Callable[..., None],
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Report events through ``emit(event, **facts)``.

        Once ``should_stop()`` is true, a failed batch is not repeated.
        """
        self._target = target
        self._ledger = ledger
        self._emit = emit
        self._should_stop = should_stop
        self.commits = 0
        self.conflicts = 0

    def resolve_pending(self) -> None:
        """Confirm the pending batches of an earlier process that are in the table, and withdraw the others."""
        for batch in self._ledger.pending():
            is_committed = self._target.has_batch(batch)
            self._emit("unknown", batch=batch.label, committed=is_committed, error="the writer had stopped")
            if is_committed:
                self._ledger.confirm(batch)
            else:
                self._ledger.withdraw(batch)

    def send(self, batch: LedgerBatch, *, files: int = 2) -> bool:
        """Write one batch until the table contains it, and confirm it in the ledger.

        ``files`` is the number of Spark partitions. Returns False if the writer was stopped first. Raises WriterError
        after 60 failures.
        """
        proposed = self._ledger.propose(batch)
        started = time.monotonic()
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            try:
                self._target.write(batch, proposed, files)
            except Exception as error:  # py4j's types may not be imported here: the Java cause decides below
                names, message = _causes(error)
                conflict = next((name for name in names if name in self._target.conflicts), None)
                # The commit may have succeeded although the call failed. Only the table shows whether it did.
                is_committed = self._target.has_batch(batch)
                if conflict and not is_committed:
                    self.conflicts += 1
                    self._emit("conflict", batch=batch.label, error=conflict)
                else:
                    self._emit("unknown", batch=batch.label, committed=is_committed, error=message)
                if not is_committed:
                    if self._should_stop():
                        self._ledger.withdraw(batch)
                        return False
                    if not names:
                        raise WriterError(f"batch {batch.label}: {message}") from error
                    time.sleep(min(4.0, 0.5 * 2 ** (attempt - 1)))
                    continue
            self._ledger.confirm(batch)
            self.commits += 1
            seconds = round(time.monotonic() - started, 3)
            self._emit("commit", batch=batch.label, rows=batch.rows.num_rows, attempts=attempt, seconds=seconds)
            return True
        raise WriterError(f"batch {batch.label} was not committed in {_MAX_ATTEMPTS} attempts")


def _causes(error: Exception) -> tuple[list[str], str]:
    """Return the simple class names along the Java cause chain, and the deepest message.

    The names are empty if the error has no Java exception.
    """
    names: list[str] = []
    message = f"{type(error).__name__}: {error}".splitlines()[0]
    cause = getattr(error, "java_exception", None)
    while cause is not None and len(names) < 20:
        name = str(cause.getClass().getSimpleName())
        names.append(name)
        message = f"{name}: {str(cause.getMessage()).splitlines()[0]}"
        cause = cause.getCause()
    return names, message


def generate_batches(
    random: np.random.Generator, rows: pa.Table, first_number: int, size: int, days: int, operations: Sequence[str]
) -> Iterator[LedgerBatch]:
    """Yield batches without end for a table that contains ``rows``; their operations cycle through ``operations``.

    Most batches change the newest day of one city. Every eighth batch, unless it inserts, changes trips of all days.
    """
    number = first_number
    next_id = 1 + max((int(key.rsplit("-")[-1]) for key in rows["trip_id"].to_pylist()), default=-1)
    newest_day = max(rows["day"].to_pylist(), default="")
    while True:
        operation = operations[number % len(operations)]
        fresh = trips.new_trips(random, next_id, max(1, size // 4), days, newest_day_only=True)
        city = trips.CITIES[number % len(trips.CITIES)]
        today = np.flatnonzero(pc.and_(pc.equal(rows["day"], newest_day), pc.equal(rows["city"], city)))
        pool = np.arange(rows.num_rows) if number % 8 == 0 or not len(today) else today
        chosen = rows.take(pa.array(np.sort(random.choice(pool, min(size, len(pool)), replace=False))))
        if operation == "insert":
            batch_rows = fresh
        elif operation == "delete":
            batch_rows = chosen.slice(0, max(1, size // 10))
        else:
            batch_rows = pa.concat_tables([trips.next_versions(chosen, random), fresh])
        if operation != "delete":
            next_id += fresh.num_rows
        batch = LedgerBatch(number=number, operation=operation, rows=batch_rows.combine_chunks())
        yield batch
        rows = replay(rows, [batch])
        number += 1


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m service.cli.demo.writer", description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=Path, required=True, help="directory of the Hudi table, created by the fill")
    parser.add_argument("--metastore", metavar="URI", help="write demo.trips of this metastore, below --table")
    parser.add_argument("--iceberg", action="store_true", help="write demo.trips of the Iceberg catalog below --table")
    parser.add_argument("--ledger", type=Path, required=True, help="directory of the ledger")
    parser.add_argument("--seed", type=int, default=2026, help="makes the rows repeatable (default %(default)s)")
    parser.add_argument("--fill-rows", type=int, default=96_000, help="rows of the first fill (default %(default)s)")
    parser.add_argument(
        "--fill-files", type=int, default=12, help="files per partition and commit (default %(default)s)"
    )
    parser.add_argument("--fill-commits", type=int, default=2, help="commits of the first fill (default %(default)s)")
    parser.add_argument("--days", type=int, default=4, help="days the trips span (default %(default)s)")
    parser.add_argument("--rows", type=int, default=120, help="rows of a later batch (default %(default)s)")
    parser.add_argument("--commits", type=int, help="stop after this number of commits after the fill (default: never)")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between batches (default %(default)s)")
    parser.add_argument("--hold", type=Path, help="write nothing while this file exists")
    parser.add_argument("--merge-on-read", action="store_true", help="a MERGE_ON_READ table with log files")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="one more Hudi option")
    parser.add_argument("--spark", action="append", default=[], metavar="KEY=VALUE", help="one Spark setting")
    return parser.parse_args(argv)


def _parse_key_values(texts: Sequence[str]) -> dict[str, str]:
    return dict(text.split("=", 1) for text in texts)


def _emit_event(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, **facts}, ensure_ascii=False), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the writer; returns 0 after a requested stop, 1 after an error."""
    arguments = _arguments(argv)
    from executors.spark import spark_session

    spark = {"spark.master": "local[2]", "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
    try:
        session = spark_session(
            spark | {"spark.app.name": "lakefold demo writer"} | _parse_key_values(arguments.spark),
            formats=["iceberg" if arguments.iceberg else "hudi" if arguments.metastore is None else "hive"],
        )
    except LakefoldError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    stop: list[int] = []
    # Set after Spark started: it installs a SIGINT handler of its own.
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda number, _frame: stop.append(number))
    ledger = WriterLedger(arguments.ledger)
    try:
        target = _target(arguments, session, ledger)
        writer = TripsWriter(target, ledger, emit=_emit_event, should_stop=lambda: bool(stop))
        _run(arguments, writer, target.operations, ledger, stop)
    except LakefoldError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        session.stop()
    _emit_event("stopped", commits=writer.commits, conflicts=writer.conflicts)
    return 0


def _target(arguments: argparse.Namespace, session: Any, ledger: WriterLedger) -> WriteTarget:
    table = arguments.table.absolute()
    if arguments.metastore is not None:
        from service.cli.demo.hive import HiveTrips

        return HiveTrips(session, arguments.metastore, table, ledger)
    if arguments.iceberg:
        from service.cli.demo.iceberg import IcebergTrips

        return IcebergTrips(session, table)
    from service.cli.demo.hudi import HudiTrips, table_options

    return HudiTrips(
        session, table, table_options(merge_on_read=arguments.merge_on_read) | _parse_key_values(arguments.option)
    )


def _run(
    arguments: argparse.Namespace, writer: TripsWriter, operations: Sequence[str], ledger: WriterLedger, stop: list[int]
) -> None:
    writer.resolve_pending()
    done = ledger.confirmed()
    number = max((batch.number for batch in done), default=-1) + 1
    random = np.random.default_rng([arguments.seed, number])
    rows = replay(trips.TRIPS.empty_table(), done)
    while number < arguments.fill_commits and not stop:
        count = arguments.fill_rows // arguments.fill_commits
        new = trips.new_trips(random, number * count, count, arguments.days, newest_day_only=False)
        batch = LedgerBatch(number=number, operation="fill", rows=new)
        if not writer.send(batch, files=arguments.fill_files):
            return
        rows, number = replay(rows, [batch]), number + 1
    last = None if arguments.commits is None else writer.commits + arguments.commits
    for batch in generate_batches(random, rows, number, arguments.rows, arguments.days, operations):
        _wait_while_held(arguments.hold, stop)
        if stop or writer.commits == last:
            return
        if not writer.send(batch):
            return
        _sleep(arguments.pause, stop)


def _wait_while_held(hold: Path | None, stop: list[int]) -> None:
    if hold is None or not hold.exists():
        return
    _emit_event("holding")
    while hold.exists() and not stop:
        time.sleep(0.1)
    _emit_event("resumed")


def _sleep(seconds: float, stop: list[int]) -> None:
    until = time.monotonic() + seconds
    while not stop and time.monotonic() < until:
        time.sleep(min(0.1, max(0.0, until - time.monotonic())))


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Reads of tables that query logs show: their number, and their rate, which replaces the configured rate."""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from lake.storage.locations import canonical_location
from service.control.config.tables import ConfiguredTable, Origin
from service.control.planning.hdfs_audit_logs import KEY_PREFIX, HdfsPaths, find_audit_logs, log_key, read_minutes
from service.control.planning.spark_event_logs import LogReading, TableScan, find_logs, read_scans
from service.control.store.reads import HDFS, ReadLog
from service.text import plural

if TYPE_CHECKING:
    from service.control.store import Store
    from service.control.store.reads import ObservedReads

logger = logging.getLogger(__name__)

SPARK = "Spark event logs"
TRINO = "Trino's event listener"
#: uncompressed bytes of one round; the rest is read in the next round
_MAX_ROUND_BYTES = 256 << 20
#: the position of a log of lakefold's own application
_IGNORED = -1


class TableIndex:
    """Finds the registered table of a scan: by the location if the scan has one, else by the name."""

    def __init__(self, tables: Iterable[tuple[str, str]]) -> None:
        """``tables`` are names and locations."""
        known = list(tables)
        self._by_location = {canonical_location(location).rstrip("/"): name for name, location in known}
        self._by_name = {name.lower(): name for name, _ in known}

    def find(self, scan: TableScan) -> str | None:
        """Return the name of the scanned table; None if it is not registered."""
        for path in scan.paths:
            location = canonical_location(path).rstrip("/")
            while location and not location.endswith((":", ":/")):
                if location in self._by_location:
                    return self._by_location[location]
                parent = location.rpartition("/")[0]
                location = parent if parent != location else ""
        words = scan.name.lower().split(".")
        names = [".".join(words[start:]) for start in range(max(1, len(words) - 1))]  # with and without a catalog
        return next((self._by_name[name] for name in names if name in self._by_name), None)


def observe_spark_reads(store: "Store", directories: Iterable[str], max_bytes: int = _MAX_ROUND_BYTES) -> int:
    """Count the reads in new parts of the event logs below ``directories``; returns how many were found.

    A directory or log that can't be read is logged and left for the next round. Raises StoreError.
    """
    index = TableIndex((state.name, state.location) for state in store.table_states())
    known, present, found = store.read_logs(), set[str](), 0
    for directory in directories:
        try:
            logs = list(find_logs(directory))
        except OSError as error:
            logger.warning("reads.spark_event_logs %s can't be listed: %s", directory, error.strerror)
            continue
        for key, path in logs:
            present.add(key)
            try:
                size = path.stat().st_size
                before = known.get(key) or ReadLog(log=key, bytes=0, position=0)
                if size == before.bytes or _is_ignored(key, known) or max_bytes <= 0:
                    continue
                reading, counts = LogReading(position=before.position), Counter[tuple[str, date]]()
                for scan in read_scans(path, reading, max_bytes):
                    if (table := index.find(scan)) is not None:
                        counts[table, scan.at.date()] += 1
            except OSError as error:
                logger.warning("Spark event log %s can't be read: %s", path, error.strerror or error)
                continue
            max_bytes = max_bytes - (reading.position - before.position) if reading.is_finished else 0
            # If the round ends within the log, the recorded size stays, so that the next round continues.
            log = ReadLog(log=key, bytes=size if reading.is_finished else before.bytes, position=reading.position)
            if reading.is_own:
                log, counts = ReadLog(log=key, bytes=size, position=_IGNORED), Counter()
            known[key] = log
            store.record_reads(log, SPARK, counts)
            found += counts.total()
    store.forget_read_logs(present | {key for key in known if key.startswith(KEY_PREFIX)})
    return found


def observe_hdfs_reads(
    store: "Store", logs: Iterable[str], ignored_users: Collection[str], max_bytes: int = _MAX_ROUND_BYTES
) -> int:
    """Count the reads in new parts of the audit ``logs`` and of their rotated files; returns how many were found.

    A query opens many files, in tasks on many hosts, and the log names no query. So all opens of a table by one user in
    one minute count as one read. Opens by ``ignored_users`` do not count. A log that can't be read is left for the next
    round, with a warning. Raises StoreError.
    """
    index = HdfsPaths((state.name, state.location) for state in store.table_states())
    known, present, found = store.read_logs(), set[str](), 0
    for log in logs:
        try:
            paths = find_audit_logs(log)
        except OSError as error:
            logger.warning("reads.hdfs_audit_logs %s can't be listed: %s", log, error.strerror)
            continue
        if not paths:
            logger.warning("reads.hdfs_audit_logs %s does not exist", log)
        for path in paths:
            try:
                if (key := log_key(path)) is None:
                    continue
                present.add(key)
                size = path.stat().st_size
                before = known.get(key) or ReadLog(log=key, bytes=0, position=0)
                if size == before.bytes or max_bytes <= 0:
                    continue
                reading, counts = LogReading(position=before.position), Counter[tuple[str, date]]()
                for minute in read_minutes(path, reading, max_bytes):
                    readers = {(user, index.find(file)) for user, file in minute.opens if user not in ignored_users}
                    counts.update((table, minute.at.date()) for _, table in readers if table is not None)
            except (OSError, EOFError) as error:
                logger.warning("HDFS audit log %s can't be read: %s", path, getattr(error, "strerror", None) or error)
                continue
            max_bytes -= reading.position - before.position
            # Until the last minute is complete, the recorded size stays, so that the next round continues.
            place = ReadLog(log=key, bytes=size if reading.is_finished else before.bytes, position=reading.position)
            if place != before:
                known[key] = place
                store.record_reads(place, HDFS, counts)
                found += counts.total()
    store.forget_read_logs(present | {key for key in known if not key.startswith(KEY_PREFIX)})
    return found


def record_trino_reads(store: "Store", query_id: str, tables: Iterable[tuple[str, str]]) -> list[str]:
    """Count one read of each registered table among ``tables``, each a schema and a name; returns their names.

    A query that is reported again counts once.
    """
    index = TableIndex((state.name, f"/{state.name}") for state in store.table_states())
    now = datetime.now(UTC)
    scans = (TableScan(at=now, name=f"{schema}.{table}", paths=()) for schema, table in set(tables))
    found = sorted({name for scan in scans if (name := index.find(scan)) is not None})
    if found:
        store.record_query_reads(query_id, TRINO, found, now.date())
    return found


def _is_ignored(key: str, known: Mapping[str, ReadLog]) -> bool:
    """True for a log of lakefold's own application; of rolling logs only the first names the application."""
    if key in known and known[key].position == _IGNORED:
        return True
    parent = PurePosixPath(key).parent
    return parent.name.startswith("eventlog_v2_") and any(
        log.position == _IGNORED and PurePosixPath(other).parent == parent for other, log in known.items()
    )


def with_observed_reads(store: "Store", table: ConfiguredTable, window: timedelta | None = None) -> ConfiguredTable:
    """Return ``table`` with the observed rate of reads; unchanged if no read of it was observed."""
    found = store.observed_reads(table.name, window or table.reads_window)
    if found is None:
        return table
    origins = {**table.origins, "reads_per_day": Origin(source=describe_observation(found))}
    return replace(
        table,
        policy=replace(table.policy, reads_per_day=found.per_day),
        configured_reads_per_day=table.policy.reads_per_day,
        origins=origins,
    )


def describe_observation(found: "ObservedReads") -> str:
    """Return ``observed: 12 reads since 2026-01-31, Spark event logs``."""
    return f"observed: {plural(found.reads, 'read')} since {found.since:%Y-%m-%d}, {', '.join(found.sources)}"


def describe_reads(table: ConfiguredTable) -> str:
    """Return the rate of reads in force, and whether it was observed or configured."""
    rate = f"{table.policy.reads_per_day:g} reads a day"
    source = table.origins["reads_per_day"].source
    return f"{rate} ({source if table.has_observed_reads else f'configured: {source}'})"

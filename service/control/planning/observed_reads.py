# SPDX-License-Identifier: Apache-2.0
"""Reads of tables that query logs show: their number, and their rate, which replaces the configured rate."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from lake.storage.locations import canonical_location
from service.control.config.table_settings import ConfiguredTable, Origin
from service.control.planning.hdfs_audit_logs import KEY_PREFIX, HdfsPaths, find_audit_logs, log_key, read_minutes
from service.control.planning.spark_event_logs import LogReading, TableScan, find_logs, read_scans
from service.control.store.observed_reads import HDFS, ReadLog
from service.text import plural

if TYPE_CHECKING:
    from service.control.store import Store
    from service.control.store.observed_reads import ObservedReads

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


@dataclass(frozen=True, kw_only=True)
class _LogSource:
    """One kind of log that shows reads."""

    name: str
    #: the setting that names the locations of the logs
    setting: str
    #: True for the keys of this kind of logs
    has_key: Callable[[str], bool]
    #: returns the logs at a location with their keys; raises OSError
    find: Callable[[str], Iterable[tuple[str, Path]]]
    #: counts the reads by table and day in at most this many bytes of a log, and moves the position; raises OSError
    count: Callable[[Path, LogReading, int], Counter[tuple[str, date]]]


def observe_spark_reads(store: "Store", directories: Iterable[str], max_bytes: int = _MAX_ROUND_BYTES) -> int:
    """Count the reads in new parts of the event logs below ``directories``; returns how many were found.

    A directory or log that can't be read is logged and left for the next round. Raises StoreError.
    """
    index = TableIndex((state.name, state.location) for state in store.table_states())

    def count(path: Path, reading: LogReading, most: int) -> Counter[tuple[str, date]]:
        scans = [(index.find(scan), scan.at.date()) for scan in read_scans(path, reading, most)]
        return Counter((table, day) for table, day in scans if table is not None)

    source = _LogSource(
        name=SPARK,
        setting="reads.spark_event_logs",
        has_key=lambda key: not key.startswith(KEY_PREFIX),
        find=find_logs,
        count=count,
    )
    return _observe(store, source, directories, max_bytes)


def observe_hdfs_reads(
    store: "Store", logs: Iterable[str], ignored_users: Collection[str], max_bytes: int = _MAX_ROUND_BYTES
) -> int:
    """Count the reads in new parts of the audit ``logs`` and of their rotated files; returns how many were found.

    A query opens many files, in tasks on many hosts, and the log names no query. So all opens of a table by one user in
    one minute count as one read. Opens by ``ignored_users`` do not count. A log that can't be read is left for the next
    round, with a warning. Raises StoreError.
    """
    index = HdfsPaths((state.name, state.location) for state in store.table_states())

    def count(path: Path, reading: LogReading, most: int) -> Counter[tuple[str, date]]:
        counts = Counter[tuple[str, date]]()
        for minute in read_minutes(path, reading, most):
            readers = {(user, index.find(file)) for user, file in minute.opens if user not in ignored_users}
            counts.update((table, minute.at.date()) for _, table in readers if table is not None)
        return counts

    source = _LogSource(
        name=HDFS,
        setting="reads.hdfs_audit_logs",
        has_key=lambda key: key.startswith(KEY_PREFIX),
        find=_audit_logs_with_keys,
        count=count,
    )
    return _observe(store, source, logs, max_bytes)


def _audit_logs_with_keys(log: str) -> Iterator[tuple[str, Path]]:
    paths = find_audit_logs(log)
    if not paths:
        logger.warning("reads.hdfs_audit_logs %s does not exist", log)
    for path in paths:
        try:
            key = log_key(path)
        except (OSError, EOFError) as error:
            _warn_unreadable(path, error)
            continue
        if key is not None:
            yield key, path


def _observe(store: "Store", source: _LogSource, locations: Iterable[str], max_bytes: int) -> int:
    known = {key: log for key, log in store.read_logs().items() if source.has_key(key)}
    present, found = set[str](), 0
    for location in locations:
        try:
            logs = list(source.find(location))
        except OSError as error:
            logger.warning("%s %s can't be listed: %s", source.setting, location, error.strerror)
            continue
        for key, path in logs:
            present.add(key)
            before = known.get(key) or ReadLog(log=key, bytes=0, position=0)
            reading = LogReading(position=before.position)
            try:
                size = path.stat().st_size
                if size == before.bytes or max_bytes <= 0 or _is_ignored(key, known):
                    continue
                counts = source.count(path, reading, max_bytes)
            except (OSError, EOFError) as error:
                _warn_unreadable(path, error)
                continue
            max_bytes -= reading.position - before.position
            # If the log has more to read, the recorded size stays, so that the next round continues.
            log = ReadLog(log=key, bytes=size if reading.is_finished else before.bytes, position=reading.position)
            if reading.is_own:
                log, counts = ReadLog(log=key, bytes=size, position=_IGNORED), Counter()
            if log != before:
                known[key] = log
                store.record_reads(log, source.name, counts)
                found += counts.total()
    store.forget_read_logs(known.keys() - present)
    return found


def _warn_unreadable(path: Path, error: Exception) -> None:
    logger.warning("log %s can't be read: %s", path, getattr(error, "strerror", None) or error)


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


def with_observed_reads(store: "Store", table: ConfiguredTable) -> ConfiguredTable:
    """Return ``table`` with the observed rate of reads; unchanged without observed reads, or if it has it already."""
    if table.has_observed_reads:
        return table
    found = store.observed_reads(table.name, table.reads_window)
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

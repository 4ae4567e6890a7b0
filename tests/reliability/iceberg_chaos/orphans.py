# SPDX-License-Identifier: Apache-2.0
"""Who left a file that no snapshot lists: a dead writer, an expiry that was cut short, or a lost database.

Iceberg's writers and expirations leave such files when they die, for ``remove_orphan_files``. lakefold finds its own by
its database. So of lakefold's files only those may stay whose attempt was in a database that the test has lost.
"""

import re
from collections.abc import Collection, Iterable

from pyiceberg.table import StaticTable
from sqlalchemy import create_engine, text

from iceberg_chaos.ledger import Ledger
from lake.storage.locations import canonical_location

_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
#: the directory of an attempt whose files Iceberg writes; the name of an engine's file, which Spark's may have too
_DIRECTORY, _NAME = re.compile(rf"/lakefold-({_UUID})/"), re.compile(rf"/\d+-\d+-({_UUID})-\d+\.parquet$")


class Orphans:
    """The files of a table that were committed once, and the attempts that databases knew."""

    def __init__(self) -> None:
        self._committed: set[str] = set()
        self._read: set[int] = set()
        self._attempts: set[str] = set()
        self._lost: set[str] = set()

    def lose(self, url: str) -> None:
        """Note the attempts of a database that is lost next, and those of them whose files were not removed."""
        self._lost.update(self._note_attempts(url, "cleared_at_ms IS NULL"))

    def _note_attempts(self, url: str, condition: str = "TRUE") -> Collection[str]:
        """Note all attempts of a database, and return those of a condition."""
        engine = create_engine(url)
        with engine.connect() as connection:
            self._attempts.update(connection.scalars(text("SELECT token FROM staged")))
            chosen = list(connection.scalars(text(f"SELECT token FROM staged WHERE {condition}")))
        engine.dispose()
        return chosen

    def follow(self, ledger: Ledger) -> None:
        """Note the files that snapshots since the last call added, unless they have expired meanwhile."""
        static = StaticTable.from_metadata(ledger.location)
        for snapshot in static.metadata.snapshots:
            if snapshot.snapshot_id in self._read:
                continue
            self._read.add(snapshot.snapshot_id)
            try:
                for manifest in snapshot.manifests(static.io):
                    if manifest.added_snapshot_id == snapshot.snapshot_id:
                        entries = manifest.fetch_manifest_entry(static.io, discard_deleted=True)
                        self._committed.update(canonical_location(one.data_file.file_path) for one in entries)
            except FileNotFoundError:
                continue

    def wrong(self, unowned: Iterable[str], ledger: Ledger, url: str) -> Collection[str]:
        """Those of the ``unowned`` files that nothing explains; ``url`` is the present database."""
        self._note_attempts(url)
        is_cut_short = any(act["act"] == "expire" and "ended" not in act for act in ledger.acts().values())
        return [path for path in unowned if not self._is_explained(path, is_cut_short)]

    def _is_explained(self, path: str, is_cut_short: bool) -> bool:
        if path in self._committed:
            return is_cut_short
        if directory := _DIRECTORY.search(path):
            return directory[1] in self._lost
        name = _NAME.search(path)
        return name is None or name[1] not in self._attempts or name[1] in self._lost

# SPDX-License-Identifier: Apache-2.0
"""Explains files that no snapshot lists: a killed writer, an interrupted expiry or a lost database left them.

Iceberg's writers and expirations leave such files to ``remove_orphan_files`` when they are killed. lakefold finds its
own files by its database. So a file of lakefold may stay only if its attempt was in a database that the test has lost.
A file that lakefold has replaced may stay only if the database does not name it, or a later expiry has removed the
snapshot that replaced it.
"""

import re
from collections.abc import Collection

from pyiceberg.table import StaticTable
from sqlalchemy import create_engine, text

from iceberg_chaos.ledger import Ledger
from lake.storage.locations import canonical_location, resolve_path

_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
#: the directory of an attempt whose files Iceberg writes; the form of an engine's file name, which Spark uses too
_DIRECTORY, _NAME = re.compile(rf"/lakefold-({_UUID})/"), re.compile(rf"/\d+-\d+-({_UUID})-\d+\.parquet$")


class Orphans:
    """The files of a table that were ever committed, and the attempts that databases have recorded."""

    def __init__(self) -> None:
        self._committed: set[str] = set()
        self._read: set[int] = set()
        self._attempts: set[str] = set()
        self._lost: set[str] = set()

    def lose(self, url: str) -> None:
        """Record the attempts of a database that the test is about to lose, and which of them have files left."""
        self._lost.update(self._note_attempts(url, "cleared_at_ms IS NULL"))

    def _note_attempts(self, url: str, condition: str = "TRUE") -> Collection[str]:
        """Record all attempts of a database, and return those that meet a condition."""
        engine = create_engine(url)
        with engine.connect() as connection:
            self._attempts.update(connection.scalars(text("SELECT token FROM staged")))
            chosen = list(connection.scalars(text(f"SELECT token FROM staged WHERE {condition}")))
        engine.dispose()
        return chosen

    def follow(self, ledger: Ledger) -> None:
        """Record the files that snapshots have added since the last call, unless the snapshots have expired."""
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

    def wrong(self, unowned: Collection[str], ledger: Ledger, url: str) -> Collection[str]:
        """Return the ``unowned`` files that have no explanation; ``url`` is the present database."""
        self._note_attempts(url)
        is_cut_short = any(act["act"] == "expire" and "ended" not in act for act in ledger.acts().values())
        superseded = set() if self._committed.isdisjoint(unowned) else self._superseded(url, ledger)
        return [path for path in unowned if not self._is_explained(path, is_cut_short or path not in superseded)]

    def _superseded(self, url: str, ledger: Ledger) -> Collection[str]:
        """Return the superseded files that the database names and the table still has the superseding snapshot of."""
        metadata = StaticTable.from_metadata(ledger.location).metadata
        engine = create_engine(url)
        with engine.connect() as connection:
            rows = connection.execute(text("SELECT path, instant FROM superseded_version")).all()
        engine.dispose()
        present = {str(one.snapshot_id) for one in metadata.snapshots}
        return {
            resolve_path(canonical_location(metadata.location), path) for path, made_by in rows if made_by in present
        }

    def _is_explained(self, path: str, is_cut_short: bool) -> bool:
        if path in self._committed:
            return is_cut_short
        if directory := _DIRECTORY.search(path):
            return directory[1] in self._lost
        name = _NAME.search(path)
        return name is None or name[1] not in self._attempts or name[1] in self._lost

# SPDX-License-Identifier: Apache-2.0
"""The test formats as cases of the contract suite: they create tables, write to them as others do, and read them."""

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lake.engines import RewriteEngine
from lake.model import TableRef
from lake.ports import Capability
from toys import expiring, locations, minimal, timeline, timeline_tables, versions
from toys.engine import CopyRows
from toys.files import FilesFormat, base, item_of, read, rows, stored, told

Change = Callable[[pa.Table], pa.Table]
PARTITIONS, FILES, ROWS_EACH = 2, 3, 50
PARTS = ("dt=0", "dt=1")


def no_spark() -> Any:
    raise AssertionError("nothing here needs a Spark session")


def with_other_values(data: pa.Table) -> pa.Table:
    return data.set_column(1, "value", pc.add(data["value"], 1))


def without_first_row(data: pa.Table) -> pa.Table:
    return data.slice(1)


@dataclass(kw_only=True)
class _ToyCase:
    format: FilesFormat
    engines: Sequence[RewriteEngine] = field(default_factory=lambda: (CopyRows(),))
    lacks: Mapping[Capability, str] = field(default_factory=dict)
    parts: Sequence[str] = PARTS
    spark = staticmethod(no_spark)
    stored = staticmethod(stored)

    def takes_at_most(self, span: timedelta) -> None:
        """Limit the format's ``max_commit_duration``."""
        self.format.max_commit_duration = min(self.format.max_commit_duration, span)

    def append(self, table: TableRef, partition: str, low: int, high: int) -> bool:
        self.add(table, partition, rows(low, high))
        return True

    def update(self, table: TableRef, partition: str) -> bool:
        self.change(table, partition, with_other_values)
        return True

    def delete(self, table: TableRef, partition: str) -> bool:
        self.change(table, partition, without_first_row)
        return True

    def forget(self, table: TableRef) -> bool:
        raise NotImplementedError

    def save(self, table: TableRef) -> None:
        (base(table) / "savepoint").write_text(" ".join(item["path"] for item in self.format.live(table)))

    def release(self, table: TableRef) -> None:
        (base(table) / "savepoint").unlink()

    def add(self, table: TableRef, partition: str, data: pa.Table) -> None:
        raise NotImplementedError

    def change(self, table: TableRef, partition: str, change: Change) -> None:
        raise NotImplementedError


def _filled(table: TableRef, append: Callable[[TableRef, str, int, int], object]) -> TableRef:
    for number in range(PARTITIONS * FILES):
        append(table, f"dt={number // FILES}", number * ROWS_EACH, (number + 1) * ROWS_EACH)
    return table


@dataclass(kw_only=True)
class TimelineCase(_ToyCase):
    """Writers add log files; see ``toys.timeline``."""

    format: FilesFormat = field(default_factory=timeline.ToyFormat)

    def create(self, location: Path, *, name: str) -> TableRef:
        return timeline_tables.create(location, name=name)

    def schedule(self, table: TableRef) -> str:
        timeline_tables.schedule(table, "7")
        return "7"

    def abandon(self, table: TableRef) -> str:
        (base(table) / "pending" / "8.json").write_text(json.dumps({"plan_id": None, "epoch": 1}))
        return "8"

    def add(self, table: TableRef, partition: str, data: pa.Table) -> None:
        timeline_tables.write(table, partition, data)

    def change(self, table: TableRef, partition: str, change: Change) -> None:
        for item in timeline.manifest(table)["files"]:
            if item["partition"] == partition:
                before = read(base(table) / item["path"]).slice(0, 1)
                nothing = before.set_column(1, "value", pa.nulls(1, pa.int64()))
                timeline_tables.append_log(table, item["path"], change(before) if change(before) else nothing)

    def forget(self, table: TableRef) -> bool:
        """Return False: the manifests are kept for ever, as Hudi's archive keeps its timeline."""
        return False

    def rows(self, table: TableRef) -> Sequence[str]:
        return timeline_tables.table_rows(table)

    def commits(self, table: TableRef) -> Sequence[tuple[str, int | None]]:
        return [(m["plan_id"], m["epoch"]) for m in timeline.manifests(table) if "plan_id" in m]


@dataclass(kw_only=True)
class LocationsCase(_ToyCase):
    """Writers add files to a partition's directory, or overwrite it in another one; see ``toys.locations``."""

    format: FilesFormat = field(default_factory=locations.LocationsFormat)

    def create(self, location: Path, *, name: str) -> TableRef:
        table = TableRef(name=name, format="locations", location=str(location))
        partitions = {f"dt={number}": f"dt={number}" for number in range(PARTITIONS)}
        for folder in partitions:
            (location / folder).mkdir(parents=True)
        (location / "catalog.json").write_text(
            json.dumps({"made": uuid.uuid4().hex, "partitions": partitions, "commits": []})
        )
        return _filled(table, self.append)

    def add(self, table: TableRef, partition: str, data: pa.Table) -> None:
        folder = base(table) / locations.catalog(table)["partitions"][partition]
        pq.write_table(data, folder / f"part-{uuid.uuid4().hex}.parquet")

    def change(self, table: TableRef, partition: str, change: Change) -> None:
        before = base(table) / locations.catalog(table)["partitions"][partition]
        after = f"written/{uuid.uuid4().hex}/{partition}"
        (base(table) / after).mkdir(parents=True)
        for path in before.glob("*.parquet"):
            pq.write_table(change(read(path)), base(table) / after / path.name)
        locations.alter(table, lambda now: now["partitions"].update({partition: after}))

    def forget(self, table: TableRef) -> bool:
        """Remove the commits from the catalog, as an owner may. Files in previous locations stay, without a record."""
        locations.alter(table, lambda now: now["commits"].clear())
        return True

    def rows(self, table: TableRef) -> Sequence[str]:
        folders = locations.catalog(table)["partitions"].values()
        return sorted(
            row for folder in folders for path in (base(table) / folder).glob("*.parquet") for row in told(read(path))
        )

    def commits(self, table: TableRef) -> Sequence[tuple[str, int | None]]:
        return [(one["plan_id"], one["epoch"]) for one in locations.catalog(table)["commits"]]


@dataclass(kw_only=True)
class VersionsCase(_ToyCase):
    """Writers create the next version, as plans do; see ``toys.versions``."""

    format: FilesFormat = field(default_factory=versions.VersionsFormat)

    def create(self, location: Path, *, name: str) -> TableRef:
        for folder in ("versions", *(f"dt={number}" for number in range(PARTITIONS))):
            (location / folder).mkdir(parents=True)
        table = TableRef(name=name, format=self.format.name, location=str(location))
        first = {"made": uuid.uuid4().hex, "version": 0, "instant": "0", "files": []}
        (location / "versions" / "0.json").write_text(json.dumps(first))
        return _filled(table, self.append)

    def add(self, table: TableRef, partition: str, data: pa.Table) -> None:
        item = self._new(table, partition, data)
        versions.create_version(table, lambda now: {"files": [*now["files"], item]})

    def change(self, table: TableRef, partition: str, change: Change) -> None:
        def changed(now: Mapping[str, Any]) -> dict[str, Any]:
            theirs = [item for item in now["files"] if item["partition"] == partition]
            new = [self._new(table, partition, change(read(base(table) / item["path"]))) for item in theirs]
            return {"files": [item for item in now["files"] if item["partition"] != partition] + new}

        versions.create_version(table, changed)

    def _new(self, table: TableRef, partition: str, data: pa.Table) -> dict[str, Any]:
        path = f"{partition}/{uuid.uuid4().hex}.parquet"
        pq.write_table(data, base(table) / path)
        return item_of(table, partition, path, data.num_rows)

    def forget(self, table: TableRef) -> bool:
        newest = versions.create_version(table, lambda now: {"files": now["files"]})
        versions.expire(table, newest["version"])
        return True

    def rows(self, table: TableRef) -> Sequence[str]:
        files = versions.newest(table)["files"]
        return sorted(row for item in files for row in told(read(base(table) / item["path"])))

    def commits(self, table: TableRef) -> Sequence[tuple[str, int | None]]:
        return [(one["plan_id"], one["epoch"]) for one in versions.versions(table) if "plan_id" in one]


@dataclass(kw_only=True)
class ExpiringCase(VersionsCase):
    """Tables with versions that only their own expiry deletes; see ``toys.expiring``."""

    format: FilesFormat = field(default_factory=expiring.ExpiringFormat)


@dataclass(kw_only=True)
class MinimalCase(VersionsCase):
    """The format that docs/adapters.md explains. Its tables are like those of ``toys.versions``."""

    format: minimal.MinimalFormat = field(default_factory=minimal.MinimalFormat)


CASES = {"timeline": TimelineCase, "locations": LocationsCase, "versions": VersionsCase}
"""The cases by name, for tests that start processes."""

VARIANTS = {**CASES, "expiring": ExpiringCase, "minimal": MinimalCase}
"""The same cases, and two formats that only the tests without an executor use."""

CROSSED = [f"{case}-{database}" for case in CASES for database in ("sqlite", "postgresql")]
"""Each case on each database, for the long run of the contract suite."""

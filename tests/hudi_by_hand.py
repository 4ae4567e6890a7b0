# SPDX-License-Identifier: Apache-2.0
"""Hudi tables of version 6 made by hand, file by file, without a JVM."""

import io
import json
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from lake.formats.hudi import FORMAT
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.timeline.timeline import Timeline
from lake.model import TableRef

T1, T2, T3, T4, T5 = (f"202601010000{n:02}000" for n in range(1, 6))
PROPERTIES = {
    "hoodie.table.name": "t",
    "hoodie.table.type": "MERGE_ON_READ",
    "hoodie.table.version": "6",
    "hoodie.timeline.layout.version": "1",
    "hoodie.table.timeline.timezone": "UTC",
    "hoodie.table.recordkey.fields": "id",
    "hoodie.table.precombine.field": "id",
    "hoodie.table.partition.fields": "dt",
    "hoodie.table.base.file.format": "PARQUET",
    "hoodie.archivelog.folder": "archived",
}
COLUMNS = {"id": "long", "dt": "string"}
OPERATIONS = {
    "type": "record",
    "name": "plan",
    "fields": [
        {
            "name": "operations",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "operation",
                    "fields": [
                        {"name": "partitionPath", "type": "string"},
                        {"name": "fileId", "type": "string"},
                        {"name": "dataFilePath", "type": "string"},
                        {"name": "deltaFilePaths", "type": {"type": "array", "items": "string"}},
                    ],
                },
            },
        }
    ],
}


class ByHand:
    """A merge-on-read table of version 6; where nothing else is said its files are of file group ``f-0`` in ``p``."""

    def __init__(self, base: Path, properties: Mapping[str, str] = PROPERTIES) -> None:
        self.base = base
        (base / ".hoodie").mkdir(parents=True)
        (base / ".hoodie/hoodie.properties").write_text("\n".join(f"{k}={v}" for k, v in properties.items()))

    def base_file(self, instant: str, group: str = "p/f-0") -> str:
        folder, name = self._in(group, f"_0-1-1_{instant}.parquet")
        pq.write_table(pa.table({"id": [1, 2], "dt": ["p", "p"]}), folder / name)
        return name

    def log_file(self, instant: str, version: int, group: str = "p/f-0") -> str:
        folder, name = self._in(group, f"_{instant}.log.{version}_0-1-1", ".")
        (folder / name).write_bytes(b"#HUDI#" * version)
        return name

    def complete(self, time: str, action: str, *names: str, partition: str = "p") -> None:
        stats = [
            {
                "fileId": name.lstrip(".").partition("_")[0],
                "path": f"{partition}/{name}",
                "fileSizeInBytes": (self.base / partition / name).stat().st_size,
            }
            for name in names
        ]
        schema = {"type": "record", "name": "t", "fields": [{"name": n, "type": t} for n, t in COLUMNS.items()]}
        record = {"partitionToWriteStats": {partition: stats}, "extraMetadata": {"schema": json.dumps(schema)}}
        (self.base / f".hoodie/{time}.{action}").write_text(json.dumps(record))

    def request_compaction(self, time: str, base: str, logs: Sequence[str], group: str = "p/f-0") -> None:
        partition, _, file_id = group.rpartition("/")
        operation: Mapping[str, object] = {
            "partitionPath": partition,
            "fileId": file_id,
            "dataFilePath": base,
            "deltaFilePaths": list(logs),
        }
        buffer = io.BytesIO()
        fastavro.writer(buffer, fastavro.parse_schema(OPERATIONS), [{"operations": [operation]}])
        (self.base / f".hoodie/{time}.compaction.requested").write_bytes(buffer.getvalue())

    @property
    def ref(self) -> TableRef:
        return TableRef(name="t", format="hudi", location=str(self.base))

    @property
    def facts(self) -> Mapping[str, str]:
        return FORMAT.describe(self.ref)

    def slices(self, partitions: Collection[str] | None = None) -> list[dict[str, object]]:
        return list(FORMAT.snapshot(self.ref, partitions).slices.to_pylist())

    def _in(self, group: str, rest: str, hidden: str = "") -> tuple[Path, str]:
        partition, _, file_id = group.rpartition("/")
        folder = self.base / partition
        if not folder.exists():
            folder.mkdir(parents=True)
            (folder / ".hoodie_partition_metadata").write_text(f"commitTime={T1}\npartitionDepth=1\n")
        return folder, f"{hidden}{file_id}{rest}"


class Written(ByHand):
    """Commits of which only the timeline tells: what is replayed needs no data files."""

    def commit(self, at: datetime, sizes: dict[str, int], operation: str = "INSERT", **more: object) -> None:
        time = f"{at:%Y%m%d%H%M%S}000"
        stats: dict[str, list[dict[str, object]]] = {}
        for group, size in sizes.items():
            partition, _, file_id = group.rpartition("/")
            path = f"{partition}/{file_id}_0-1-1_{time}.parquet"
            entry = {"fileId": file_id, "path": path, "fileSizeInBytes": size, "numWrites": size // 100}
            stats.setdefault(partition, []).append(entry)
        action = "replacecommit" if "partitionToReplaceFileIds" in more else "commit"
        file = self.base / f".hoodie/{time}.{action}"
        file.write_text(json.dumps({"partitionToWriteStats": stats, "operationType": operation, **more}))
        os.utime(file, (at.timestamp(), at.timestamp()))  # when a commit of this layout completed


_SCHEMA = '{"type": "record", "name": "t", "fields": [{"name": "id", "type": "int"}]}'


def without_java(table: ByHand) -> Any:
    """Return what withdrawals and publications need of a client."""
    storage = TableStorage(str(table.base))
    return SimpleNamespace(
        table=table.ref,
        storage=storage,
        schema=SimpleNamespace(toString=lambda: _SCHEMA),
        read_schema=lambda: _SCHEMA,
        time_zones=SimpleNamespace(now=lambda: datetime.now(UTC)),
        bundle=SimpleNamespace(require_foreign_plans=lambda *_: None),
        read_timeline=lambda: Timeline(storage),
        follow_table_changes=lambda *_, **__: None,
        locked=lambda *_, **__: nullcontext(),
        assert_lock_held=lambda _: None,
        assert_lakefold_lock_held=lambda _: None,
        is_taken_over=lambda _: False,
        remove_file=storage.delete,
        remove_directory=lambda relative: shutil.rmtree(table.base / relative, ignore_errors=True),
        optimistic=False,
        meta=SimpleNamespace(
            reloadActiveTimeline=lambda: None,
            getInstantGenerator=lambda: SimpleNamespace(
                getCompactionRequestedInstant=lambda time: f"{time}.compaction.requested"
            ),
            getActiveTimeline=lambda: SimpleNamespace(
                deletePending=lambda name: (table.base / ".hoodie" / name).unlink()
            ),
        ),
    )

# SPDX-License-Identifier: Apache-2.0
"""Table version 6 without a JVM: which slice a log file belongs to, and when it was written.

The tables are made by hand, file by file; real ones of that version are in the conformance suite.
"""

import io
import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from hudi_templates import ref

from lake.formats.hudi import FORMAT

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
    """A merge-on-read table of version 6 with the partition ``p`` and the file group ``f-0``."""

    def __init__(self, base: Path) -> None:
        self.base = base
        (base / ".hoodie").mkdir(parents=True)
        (base / "p").mkdir()
        (base / "p/.hoodie_partition_metadata").write_text(f"commitTime={T1}\npartitionDepth=1\n")
        (base / ".hoodie/hoodie.properties").write_text("\n".join(f"{k}={v}" for k, v in PROPERTIES.items()))

    def base_file(self, instant: str) -> str:
        name = f"f-0_0-1-1_{instant}.parquet"
        pq.write_table(pa.table({"id": [1, 2], "dt": ["p", "p"]}), self.base / "p" / name)
        return name

    def log_file(self, instant: str, version: int) -> str:
        name = f".f-0_{instant}.log.{version}_0-1-1"
        (self.base / "p" / name).write_bytes(b"#HUDI#" * version)
        return name

    def complete(self, time: str, action: str, *names: str) -> None:
        stats = [
            {"fileId": "f-0", "path": f"p/{name}", "fileSizeInBytes": (self.base / "p" / name).stat().st_size}
            for name in names
        ]
        schema = {"type": "record", "name": "t", "fields": [{"name": n, "type": t} for n, t in COLUMNS.items()]}
        record = {"partitionToWriteStats": {"p": stats}, "extraMetadata": {"schema": json.dumps(schema)}}
        (self.base / f".hoodie/{time}.{action}").write_text(json.dumps(record))

    def request_compaction(self, time: str, base: str, logs: Sequence[str]) -> None:
        operation: Mapping[str, object] = {
            "partitionPath": "p",
            "fileId": "f-0",
            "dataFilePath": base,
            "deltaFilePaths": list(logs),
        }
        buffer = io.BytesIO()
        fastavro.writer(buffer, fastavro.parse_schema(OPERATIONS), [{"operations": [operation]}])
        (self.base / f".hoodie/{time}.compaction.requested").write_bytes(buffer.getvalue())

    def slices(self) -> list[dict[str, object]]:
        return list(FORMAT.snapshot(ref(self.base)).slices.to_pylist())


def test_logs_written_while_a_compaction_is_pending_belong_to_its_slice_and_are_listed(tmp_path: Path) -> None:
    table = ByHand(tmp_path / "t")
    base = table.base_file(T1)
    table.complete(T1, "deltacommit", base)
    older = table.log_file(T1, 1)
    table.complete(T2, "deltacommit", older)
    table.request_compaction(T3, base, [older])
    younger = table.log_file(T3, 1)
    table.complete(T4, "deltacommit", younger)
    (only,) = table.slices()
    assert (only["path"], only["log_files"]) == (f"p/{base}", [older, younger])
    assert only["log_bytes"] == 12
    assert only["busy_reason"] == f"pending compaction {T3}"
    verified = FORMAT.verify(ref(table.base), (), rows=False)
    assert (verified.missing, verified.unowned, verified.files) == ((), (), 3)

    compacted = table.base_file(T3)
    table.complete(T3, "commit", compacted)
    (only,) = table.slices()
    assert (only["path"], only["log_files"], only["busy_reason"]) == (f"p/{compacted}", [younger], None)
    verified = FORMAT.verify(ref(table.base), (), rows=False)
    assert (verified.missing, verified.resurrected, verified.unowned, verified.files) == ((), (), (), 2)


def test_a_log_counts_from_when_it_was_written_since_its_name_has_the_base_files_instant(tmp_path: Path) -> None:
    table = ByHand(tmp_path / "t")
    base = table.base_file(T1)
    table.complete(T1, "deltacommit", base)
    log = table.log_file(T1, 1)
    table.complete(T5, "deltacommit", log)
    written = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
    os.utime(table.base / "p" / log, (written.timestamp(),) * 2)
    os.utime(table.base / f".hoodie/{T1}.deltacommit", (written.timestamp() - 60,) * 2)
    (only,) = table.slices()
    assert only["modified_at"] == written
    (table.base / "p" / log).unlink()
    (table.base / f".hoodie/{T5}.deltacommit").unlink()
    (only,) = table.slices()
    assert only["modified_at"] == datetime.fromtimestamp(written.timestamp() - 60, UTC), "the completed file's own time"


def test_what_a_rollback_leaves_in_a_slice_is_not_unowned_and_a_stray_base_file_is(tmp_path: Path) -> None:
    table = ByHand(tmp_path / "t")
    base = table.base_file(T1)
    table.complete(T1, "deltacommit", base)
    for version in (1, 2):  # the failed write's log file, and the one whose command block takes it back
        table.log_file(T1, version)
    stray = table.base_file(T4)
    verified = FORMAT.verify(ref(table.base), (), rows=False)
    assert verified.unowned == (f"p/{stray}",)
    assert verified.missing == ()

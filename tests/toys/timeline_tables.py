# SPDX-License-Identifier: Apache-2.0
"""Creates tables with a timeline, writes to them as other programs do, and reads them."""

import json
import time
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lake.model import FileSlice, TableRef
from toys.files import base, item_of, rows, told
from toys.timeline import SCHEDULED, ToyFormat, ToyWriter, manifest, publish


def create(location: Path, *, partitions: int = 2, files: int = 3, rows_each: int = 50, name: str = "toy") -> TableRef:
    """A table with ``files`` small files in each partition, all ids distinct."""
    for folder in ("manifests", "pending"):
        (location / folder).mkdir(parents=True)
    table = TableRef(name=name, format="toy", location=str(location))
    (location / "manifests" / "00000000.json").write_text(json.dumps({"number": 0, "files": []}))
    low = 0
    for partition in range(partitions):
        for _ in range(files):
            write(table, f"dt={partition}", rows(low, low + rows_each))
            low += rows_each
    return table


def write(table: TableRef, partition: str, data: pa.Table) -> str:
    """Add one file by one commit, as a foreign writer does. Returns its path."""
    now = manifest(table)
    path = f"{partition}/w{now['number'] + 1}-{uuid.uuid4().hex}.parquet"
    (base(table) / partition).mkdir(exist_ok=True)
    pq.write_table(data, base(table) / path)
    item = {**item_of(table, partition, path, data.num_rows), "logs": [], "log_bytes": 0, "written_at": time.time()}
    publish(table, {"number": now["number"] + 1, "files": [*now["files"], item]})
    return path


def schedule(table: TableRef, instant: str) -> None:
    """Schedule a plan as a foreign writer does that leaves the execution to others."""
    (base(table) / "pending" / f"{instant}.json").write_text(json.dumps(SCHEDULED))


def append_log(table: TableRef, path: str, changes: pa.Table) -> None:
    """Add a log to the slice of ``path`` by one commit, as a foreign writer does."""
    now = manifest(table)
    number = now["number"] + 1
    log = f"{Path(path).stem}.log{number}.parquet"
    pq.write_table(changes, (base(table) / path).with_name(log))
    for item in now["files"]:
        if item["path"] == path:
            item["logs"].append(log)
            item["written_at"] = time.time()
            item["log_bytes"] += (base(table) / path).with_name(log).stat().st_size
    publish(table, {"number": number, "files": now["files"]})


def table_rows(table: TableRef) -> list[str]:
    """Return every row that a reader sees now, without the name of its file, sorted."""
    writer = ToyWriter(ToyFormat(), table)
    found: list[str] = []
    for item in manifest(table)["files"]:
        one = FileSlice(
            partition=item["partition"], file_id="", path=item["path"], bytes=0, log_files=tuple(item["logs"])
        )
        found += told(writer._read(one))
    return sorted(found)

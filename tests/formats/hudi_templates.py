# SPDX-License-Identifier: Apache-2.0
"""Real Hudi tables for the tests of this folder, each built when it is first asked for and kept.

Tests copy a template before they change it (``Templates.copy``).
"""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
from hudi_tables import COMPACT_NOW, METADATA, copy, rows, run_service, small_files, write
from kept_tables import kept

from lake.model import TableRef

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAN_ID = "0193a5a0-0000-7000-8000-000000000001"
COMPACTION_ID = "0193a5a0-0000-7000-8000-000000000002"


def ref(base: Path | str, **changes: Any) -> TableRef:
    """A reference to the table at ``base``."""
    return TableRef(**({"name": "t", "format": "hudi", "location": str(base)} | changes))


def edit_properties(base: Path, changes: Mapping[str, str | None]) -> None:
    """Set keys of ``hoodie.properties``, or remove those whose value is None."""
    file = base / ".hoodie/hoodie.properties"
    kept = [line for line in file.read_text().splitlines() if line.partition("=")[0] not in changes]
    kept += [f"{key}={value}" for key, value in changes.items() if value is not None]
    replace(file, "\n".join(kept).encode())


def replace(file: Path, content: bytes) -> None:
    """Write ``content`` and drop the checksum that Hadoop keeps beside the file."""
    file.write_bytes(content)
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def edit_avro(file: Path, change: Callable[[dict[str, Any]], None], to: Path | None = None) -> None:
    """Change the one record of an Avro container, keeping its schema."""
    reader = fastavro.reader(io.BytesIO(file.read_bytes()))
    record = next(iter(reader))
    change(record)  # type: ignore[arg-type]
    buffer = io.BytesIO()
    fastavro.writer(buffer, reader.writer_schema, [record])  # type: ignore[arg-type]
    replace(to or file, buffer.getvalue())


def timeline_file(base: Path, pattern: str) -> Path:
    """The newest file of the active timeline that matches."""
    return max((base / ".hoodie/timeline").glob(pattern))


def data_files(base: Path) -> dict[str, int]:
    """Base and log files on disk by relative path, with their sizes."""
    found = (p for p in base.rglob("*") if p.is_file() and ".hoodie" not in p.relative_to(base).parts)
    return {
        str(p.relative_to(base)): p.stat().st_size
        for p in found
        if p.suffix != ".crc" and (p.suffix == ".parquet" or ".log." in p.name)
    }


class Templates:
    """Tables by name, each with a method that builds it."""

    def __init__(self, spark: "SparkSession") -> None:
        self.spark = spark

    def get(self, name: str) -> Path:
        """The template called ``name``: a method of this class."""
        return kept(f"template-{name}", name, getattr(self, f"_{name}"), __file__)

    def copy(self, name: str, to: Path) -> Path:
        """A copy of the template that a test may change."""
        return copy(self.get(name), to)

    def _cow(self, base: Path) -> None:
        small_files(self.spark, base, options=METADATA)

    def _plain(self, base: Path) -> None:
        """No metadata table, so that hudi-rs lists the storage itself."""
        options = {"hoodie.datasource.write.hive_style_partitioning": "false"}
        small_files(self.spark, base, commits=2, options=options)

    def _unpartitioned(self, base: Path) -> None:
        small_files(self.spark, base, commits=2, partitioned=False, options=METADATA)

    def _levels(self, base: Path) -> None:
        """Two levels, one with nulls and spaces."""
        from pyspark.sql import functions as f

        third = f.col("id") % 3
        frame = rows(self.spark, 0, 120).withColumn("region", f.when(third != 0, f.concat(f.lit("r "), third)))
        options = METADATA | {
            "hoodie.datasource.write.partitionpath.field": "region,dt",
            "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.ComplexKeyGenerator",
        }
        write(frame, base, options=options)

    def _encoded(self, base: Path) -> None:
        """Partition values with a slash and a colon, percent-encoded in their directories."""
        from pyspark.sql import functions as f

        frame = rows(self.spark, 0, 60).withColumn("dt", f.concat(f.lit("a/b:c "), f.col("id") % 2))
        write(frame, base, options=METADATA | {"hoodie.datasource.write.partitionpath.urlencode": "true"})

    def _bucket(self, base: Path) -> None:
        options = METADATA | {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
        write(rows(self.spark, 0, 60), base, "upsert", options=options)

    def _logs_only(self, base: Path) -> None:
        for version in range(2):
            frame = rows(self.spark, 0, 60, version=version)
            write(frame, base, "upsert", merge_on_read=True, options=METADATA | {"hoodie.index.type": "INMEMORY"})

    def _mor(self, base: Path) -> None:
        """Four slices, all with one or two log files."""
        small_files(self.spark, base, commits=2, merge_on_read=True, options=METADATA)
        write(rows(self.spark, 0, 400, version=9).where("id % 3 = 0"), base, "upsert", merge_on_read=True)
        write(rows(self.spark, 0, 100, version=10).where("id % 5 = 0"), base, "delete", merge_on_read=True)

    def _compaction_pending(self, base: Path) -> None:
        self.copy("mor", base)
        run_service(self.spark, "run_compaction", base, "schedule", **COMPACT_NOW)
        edit_avro(timeline_file(base, "*.compaction.requested"), _stamp(COMPACTION_ID))

    def _compacted(self, base: Path) -> None:
        self.copy("compaction_pending", base)
        run_service(self.spark, "run_compaction", base, "run")

    def _clustering_pending(self, base: Path) -> None:
        self.copy("cow", base)
        run_service(self.spark, "run_clustering", base, "schedule")
        edit_avro(timeline_file(base, "*.clustering.requested"), _stamp(PLAN_ID))

    def _clustered(self, base: Path) -> None:
        self.copy("clustering_pending", base)
        run_service(self.spark, "run_clustering", base, "execute")

    def _archived(self, base: Path) -> None:
        """The clustering of ``clustered`` has left the active timeline and its inputs are cleaned."""
        self.copy("clustered", base)
        options = {
            "hoodie.table.name": "cow",
            "hoodie.clean.automatic": "true",
            "hoodie.clean.commits.retained": "1",
            "hoodie.keep.min.commits": "2",
            "hoodie.keep.max.commits": "3",
        }
        for commit in range(5):
            write(rows(self.spark, 5000 + commit, 5001 + commit), base, "insert", options=options)

    def _saved(self, base: Path) -> None:
        """A savepoint on the third commit, then an upsert that supersedes the first files."""
        self.copy("cow", base)
        self.spark.sql(f"CREATE TABLE saved USING hudi LOCATION '{base}'")
        time = timeline_file(base, "*.commit").name.partition("_")[0]
        self.spark.sql(f"CALL create_savepoint(table => 'saved', commit_time => '{time}')").collect()
        write(rows(self.spark, 0, 50, version=7), base, "upsert", options={"hoodie.table.name": "cow"})
        self.spark.sql("DROP TABLE saved")


def _stamp(plan_id: str) -> Callable[[dict[str, Any]], None]:
    def change(record: dict[str, Any]) -> None:
        record["extraMetadata"] = {"lakefold.plan": plan_id, "lakefold.epoch": "1"}

    return change

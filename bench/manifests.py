# SPDX-License-Identifier: Apache-2.0
"""Compares the planning time of readers after two rewrites of manifests: by lakefold and by ``rewrite_manifests``.

A table gets many fast appends of files in all its partitions. Only its metadata is measured, so the files do not exist.
The times are those of planning a query of one partition and of the whole table, by Iceberg's Java API and by PyIceberg,
each the fastest of several: before the rewrite, after that of lakefold's table service, and after that of Iceberg's own
action on the same table. The peak of memory is that of this process, which selects and compares the manifests; the Java
process is not counted.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Needed to run from a clone without an installation.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from pyiceberg.expressions import AlwaysTrue, EqualTo
from pyiceberg.table import StaticTable

from bench.processes import memory
from bench.ways import ICEBERG, session
from lake.formats.iceberg import FORMAT
from lake.model import CatalogRef, TableRef

_COLUMNS = 12
_DRIVER = "org.xerial:sqlite-jdbc:3.49.1.0"


class Lake:
    """A table ``bench.lake.t`` in a JDBC catalog on SQLite."""

    def __init__(self, folder: Path) -> None:
        key = "spark.sql.catalog.bench"
        settings = {
            "spark.jars.packages": f"{ICEBERG},{_DRIVER}",
            key: "org.apache.iceberg.spark.SparkCatalog",
            f"{key}.type": "jdbc",
            f"{key}.uri": f"jdbc:sqlite:{folder}/catalog.db",
            f"{key}.jdbc.schema-version": "V1",
            f"{key}.warehouse": f"file:{folder}/warehouse",
            f"{key}.cache-enabled": "false",
        }
        self.spark = session(settings)
        FORMAT.configure(settings)
        self.iceberg = self.spark._jvm.org.apache.iceberg
        columns = ", ".join(f"c{number} bigint" for number in range(_COLUMNS))
        self.spark.sql("CREATE NAMESPACE IF NOT EXISTS bench.lake")
        self.spark.sql(f"CREATE TABLE bench.lake.t ({columns}) USING iceberg PARTITIONED BY (c0)")
        self.ref = TableRef(
            name="t",
            format="iceberg",
            location=str(self.java().location()).removeprefix("file:"),
            catalog=CatalogRef(kind="iceberg", name="bench", table="lake.t"),
        )

    def java(self) -> Any:
        return self.iceberg.spark.Spark3Util.loadIcebergTable(self.spark._jsparkSession, "bench.lake.t")

    def append(self, appends: int, files: int, partitions: int) -> None:
        """Make fast appends, as a streaming writer does, in one change of the table's metadata file."""
        java = self.java()
        transaction, mapper = java.newTransaction(), self.iceberg.util.JsonUtil.mapper()
        for append in range(appends):
            update = transaction.newFastAppend()
            for number in range(files):
                partition = (7 * append + 13 * number) % partitions
                name = f"{java.location()}/data/c0={partition}/{append:05d}-{number:05d}.parquet"
                node = mapper.readTree(json.dumps(_file(name, partition)))
                update.appendFile(self.iceberg.ContentFileParser.fromJson(node, java.spec()))
            update.commit()
        transaction.commitTransaction()

    def planning_seconds(self) -> list[float]:
        """How long readers plan: one partition and everything in Java, then both in Python."""
        java, terms = self.java(), self.iceberg.expressions.Expressions
        static = StaticTable.from_metadata(str(java.operations().current().metadataFileLocation()))

        def in_java(condition: Any) -> None:
            tasks = java.newScan().filter(condition).planFiles()
            self.iceberg.relocated.com.google.common.collect.Iterables.size(tasks)
            tasks.close()

        return [
            _fastest(lambda: in_java(terms.equal("c0", 5))),
            _fastest(lambda: in_java(terms.alwaysTrue())),
            _fastest(lambda: list(static.scan(row_filter=EqualTo("c0", 5)).plan_files())),
            _fastest(lambda: list(static.scan(row_filter=AlwaysTrue()).plan_files())),
        ]

    def manifests(self) -> int:
        return int(self.java().currentSnapshot().allManifests(self.java().io()).size())

    def rewrite_by_service(self) -> str:
        with FORMAT.writer(self.ref, lambda: self.spark) as writer:
            return "; ".join(writer.maintain(FORMAT.services, ()))  # type: ignore[attr-defined]

    def rewrite_by_iceberg(self) -> None:
        self.iceberg.spark.actions.SparkActions.get(self.spark._jsparkSession).rewriteManifests(self.java()).execute()


def _file(path: str, partition: int) -> dict[str, Any]:
    """Return a data file with counts and bounds of all columns, as Iceberg's JSON."""
    fields, rows = list(range(1, _COLUMNS + 1)), 10_000
    counts = {"keys": fields, "values": [rows] * _COLUMNS}
    return {
        "spec-id": 0,
        "content": "DATA",
        "file-path": path,
        "file-format": "PARQUET",
        "partition": {"1000": partition},
        "file-size-in-bytes": 1 << 20,
        "record-count": rows,
        "column-sizes": counts,
        "value-counts": counts,
        "null-value-counts": counts,
        "lower-bounds": {"keys": fields, "values": [f"{field:016X}" for field in fields]},
        "upper-bounds": {"keys": fields, "values": [f"{field + partition:016X}" for field in fields]},
    }


def _fastest(work: Callable[[], object], times: int = 5) -> float:
    found = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)


def _print(name: str, lake: Lake, took: float | None) -> None:
    seconds = "".join(f"{1000 * one:>14,.0f}" for one in lake.planning_seconds())
    print(f"{name:28}{lake.manifests():>10,}{'' if took is None else f'{took:.1f}':>9}{seconds}", flush=True)


def main() -> None:
    """Make the table, rewrite its manifests in two ways, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--appends", type=int, default=2000)
    parser.add_argument("--files", type=int, default=25, help="files of an append")
    parser.add_argument("--partitions", type=int, default=100)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lakefold-manifests-") as folder:
        lake = Lake(Path(folder))
        lake.append(arguments.appends, arguments.files, arguments.partitions)
        files = arguments.appends * arguments.files
        print(f"{files:,} files of {arguments.appends:,} fast appends in {arguments.partitions:,} partitions")
        print(f"{'':28}{'manifests':>10}{'rewrite':>9}{'Java, one':>14}{'Java, all':>14}{'Python, one':>14}{'all':>14}")
        print(f"{'':28}{'':>10}{'s':>9}" + f"{'ms':>14}" * 4)
        _print("fast appends", lake, None)
        before = int(lake.java().currentSnapshot().snapshotId())
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
        idle, began = memory("self", "VmRSS"), time.perf_counter()
        line = lake.rewrite_by_service()
        took, peak = time.perf_counter() - began, memory("self", "VmHWM")
        _print("table_services, manifests", lake, took)
        lake.java().manageSnapshots().rollbackTo(before).commit()
        began = time.perf_counter()
        lake.rewrite_by_iceberg()
        _print("rewrite_manifests", lake, time.perf_counter() - began)
        print(f"the service {line}; {(peak - idle) / 2**20:,.0f} MiB of this process above its idle memory")


if __name__ == "__main__":
    main()

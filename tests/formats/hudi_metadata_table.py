# SPDX-License-Identifier: Apache-2.0
"""The records of a Hudi metadata table, in a form in which those of two copies of a table are equal."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TYPES = {1: "partitions", 2: "files", 3: "column_stats", 4: "bloom_filters", 5: "record_index", 6: "partition_stats"}
_BASE_FILE = re.compile(r"[^/_\s']+_[0-9-]+_(\d+)\.parquet")


def metadata_records(spark: Any, base: Path | str) -> Mapping[str, list[str]]:
    """The sorted records of each partition of the metadata table, as text without names, sizes and times of files."""
    spark.catalog.clearCache()
    found: dict[str, list[str]] = {}
    for row in spark.read.format("hudi").load(f"{base}/.hoodie/metadata").collect():
        values = row.asDict(recursive=True)
        kind = _TYPES.get(values["type"], str(values["type"]))
        found.setdefault(kind, []).append(_text(kind, values))
    return {kind: sorted(records) for kind, records in found.items()}


def _text(kind: str, values: dict[str, Any]) -> str:
    # The keys of other partitions are hashes of names.
    key = values["key"] if kind in ("partitions", "files", "record_index") else ""
    own = {
        name: value
        for name, value in values.items()
        if value is not None and not name.startswith("_hoodie") and name not in ("key", "type")
    }
    files = own.get("filesystemMetadata")
    if files:
        own["filesystemMetadata"] = sorted(
            (name, entry["isDeleted"], entry["size"] > 0) for name, entry in files.items() if not entry["isDeleted"]
        )
    index = own.get("recordIndexMetadata")
    if index:
        own["recordIndexMetadata"] = {"partitionName": index["partitionName"], "position": index.get("position")}
    for name in ("ColumnStatsMetadata", "BloomFilterMetadata"):
        if name in own:
            own[name] = {
                k: v for k, v in own[name].items() if k not in ("totalSize", "totalUncompressedSize", "timestamp")
            }
    return _BASE_FILE.sub("FILE", f"{key} {sorted(own.items())}")

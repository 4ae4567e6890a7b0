# SPDX-License-Identifier: Apache-2.0
"""The partitions of a table at its last full scan: filtered by name, and the worst of them."""

from typing import TYPE_CHECKING, Any

from service.former_names import both_names

if TYPE_CHECKING:
    import pyarrow as pa

_WORST_FIRST_KEYS = (("reducible_bytes", "descending"), ("reducible_files", "descending"), ("partition", "ascending"))


def filter_partitions(partitions: "pa.Table", search: str) -> "pa.Table":
    """Return the partitions whose path contains ``search``, regardless of case."""
    import pyarrow.compute as pc

    if not search:
        return partitions
    return partitions.filter(pc.match_substring(partitions["partition"], search, ignore_case=True))


def worst_partitions(partitions: "pa.Table", limit: int) -> "pa.Table":
    """Return the ``limit`` partitions from which plans would read the most bytes, the worst first."""
    import pyarrow.compute as pc

    return partitions.take(pc.select_k_unstable(partitions, k=limit, sort_keys=list(_WORST_FIRST_KEYS)))


def partition_documents(partitions: "pa.Table") -> list[dict[str, Any]]:
    """Return the partitions as JSON. The database has the former names of the fields of their ``lines``."""
    rows: list[dict[str, Any]] = partitions.to_pylist()
    return [row | {"lines": [both_names("decision", line) for line in row["lines"]]} for row in rows]

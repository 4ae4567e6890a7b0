# SPDX-License-Identifier: Apache-2.0
"""The words that a policy's settings may be, each with what it stands for."""

from enum import StrEnum

from lake.plan import AUTO

ENGINES = (AUTO, "stitch", "arrow", "spark")
LAYOUTS = ("linear", "zorder", "hilbert")
COMPRESSIONS = ("uncompressed", "snappy", "gzip", "zstd", "lz4", "brotli")
SORT_FIELDS = ("size", "instant_time")
BALANCED = "balanced"
"""The strategy that every table can have: neighbours in time, outputs filled evenly, most files removed for the bytes.

Any other one is called by the name of a table format, and groups as that format's own service would.
"""


class RewriteFirst(StrEnum):
    """Which kind of plan gets a slice that both want, and goes first where a table needs both."""

    COMPACTION = "compaction"  #: fewer logs to merge on every read come before fewer files
    CLUSTERING = "clustering"  #: clustering merges the logs of small files along; compaction gets what is left


class PartitionFilter(StrEnum):
    """Which partitions are planned."""

    ALL = "all"
    RECENT_DAYS = "recent_days"  #: the newest ``recent_partitions`` by path, after ``skip_latest_partitions``
    DAY_ROLLING = "day_rolling"  #: every 24th partition by path, another one each hour
    SELECTED = "selected"  #: those in ``partition_selected`` and between ``partition_begin`` and ``partition_end``
    REGEX = "regex"  #: those that ``partition_regex`` matches as a whole

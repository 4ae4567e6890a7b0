# SPDX-License-Identifier: Apache-2.0
"""The allowed values of a policy's settings and their meanings."""

from enum import StrEnum

LAYOUTS = ("linear", "zorder", "hilbert")
COMPRESSIONS = ("uncompressed", "snappy", "gzip", "zstd", "lz4", "brotli")
SORT_FIELDS = ("size", "instant_time")
BALANCED = "balanced"
"""The strategy for every table: groups neighbours in time, fills outputs evenly, removes the most files per byte.

Any other strategy has the name of a table format and groups as that format's own service does.
"""


class RewriteFirst(StrEnum):
    """The kind of plan that gets a slice which fits both kinds, and that is planned first if a table needs both."""

    COMPACTION = "compaction"  #: fewer logs to merge on every read take precedence over fewer files
    CLUSTERING = "clustering"  #: clustering also merges the logs of small files; compaction gets the other slices


class PartitionFilter(StrEnum):
    """The filter of the partitions to plan."""

    ALL = "all"
    RECENT_DAYS = "recent_days"  #: the newest ``recent_partitions`` by path, after ``skip_latest_partitions``
    DAY_ROLLING = "day_rolling"  #: every 24th partition by path, another one each hour
    SELECTED = "selected"  #: partitions in ``partition_selected`` and from ``partition_begin`` to ``partition_end``
    REGEX = "regex"  #: partitions whose whole path matches ``partition_regex``

# SPDX-License-Identifier: Apache-2.0
"""The fields of a policy: every setting of planning, rewriting and cleaning, with its default and its meaning.

There are three classes: the sizing of files, which is all that planning needs; other settings of a table; and settings
with one value for the whole service. The classes have no slots, since a class can inherit slots from one parent only.
"""

from dataclasses import dataclass, field, fields
from datetime import timedelta

from lake.plan import AUTO, MIN_ROW_GROUP_BYTES, RewriteOptions, VerificationLevel
from lake.units import GIB, MIB
from planner.policy.enums import BALANCED, PartitionFilter, RewriteFirst


@dataclass(frozen=True, kw_only=True)
class PlanningSettings:
    """The settings that select files, group them and rewrite them; ``meaning`` is the text in docs/configuration.md.

    The defaults apply to unconfigured tables.
    """

    # selection
    small_file_limit_bytes: int = field(
        default=300 * MIB, metadata={"meaning": "a base file strictly below this size is small"}
    )
    target_file_max_bytes: int = field(default=GIB, metadata={"meaning": "the largest size planned for a new file"})
    split_file_limit_bytes: int = field(
        default=0,
        metadata={
            "meaning": "a base file of at least this size is split into files of at most `target_file_max`; at least "
            "twice `target_file_max`; 0: off"
        },
    )
    min_input_files: int = field(default=2, metadata={"meaning": "a group of fewer files than this is left alone"})
    quiet_period: timedelta = field(
        default=timedelta(minutes=15),
        metadata={"meaning": "files modified less than this time ago are left alone; 0: off"},
    )
    partition_filter: PartitionFilter = field(
        default=PartitionFilter.ALL,
        metadata={"meaning": "which partitions are planned: `all`, `recent_days`, `day_rolling`, `selected`, `regex`"},
    )
    recent_partitions: int = field(
        default=2, metadata={"meaning": "for `recent_days`: how many of the newest partitions are planned; 0 means all"}
    )
    skip_latest_partitions: int = field(
        default=0, metadata={"meaning": "how many of the newest partitions are left alone"}
    )
    partition_selected: tuple[str, ...] = field(
        default=(), metadata={"meaning": "for `selected`: a list of partitions"}
    )
    partition_begin: str | None = field(
        default=None, metadata={"meaning": "for `selected`: the first partition of a range, included"}
    )
    partition_end: str | None = field(
        default=None, metadata={"meaning": "for `selected`: the last partition of the range, included"}
    )
    partition_regex: str | None = field(
        default=None, metadata={"meaning": "for `regex`: the expression, which has to match a partition's whole path"}
    )

    # grouping
    strategy: str = field(
        default=BALANCED,
        metadata={
            "meaning": f"`{BALANCED}`: groups that fill their outputs evenly; the name of a format: the same groups as "
            "the format's own service makes"
        },
    )
    max_bytes_per_group: int = field(default=2 * GIB, metadata={"meaning": "the largest number of bytes in a group"})
    max_files_per_group: int = field(
        default=10_000, metadata={"meaning": f"the largest number of files in a group; for `{BALANCED}`"}
    )
    max_num_groups: int = field(default=30, metadata={"meaning": "the largest number of groups in a plan"})
    max_bytes_per_plan: int = field(
        default=60 * GIB, metadata={"meaning": "the largest number of bytes that a plan reads, logs included"}
    )
    reads_per_day: float = field(
        default=24.0,
        metadata={"meaning": "how often a file is read per day: the number of opens that each removed file saves"},
    )
    payback: timedelta = field(
        default=timedelta(days=365),
        metadata={
            "meaning": "a group whose savings within this time are below its cost is left alone; 0: cost does not "
            "matter"
        },
    )
    file_slices_sort_by: tuple[str, ...] = field(
        default=("size",),
        metadata={"meaning": "for a format's own strategy: the order of slices, by `size` or `instant_time`"},
    )
    log_only_slice_size_bytes: int = field(
        default=120 * MIB, metadata={"meaning": "for a format's own strategy: the assumed size of a log-only slice"}
    )

    # compaction: slices with logs (merge-on-read)
    compaction: bool = field(
        default=True, metadata={"meaning": "merge the logs of merge-on-read slices into new base files"}
    )
    compact_log_files: int = field(
        default=5,
        metadata={
            "meaning": "a slice with this many log files is due; any of the seven triggers from here to "
            "`compact_delta_commits` suffices; 0: off"
        },
    )
    compact_log_bytes: int = field(
        default=256 * MIB, metadata={"meaning": "a slice with this many bytes of logs is due; 0: off"}
    )
    compact_log_ratio: float = field(
        default=1.0,
        metadata={"meaning": "a slice with this many bytes of logs for each byte of its base file is due; 0: off"},
    )
    compact_delete_files: int = field(
        default=5,
        metadata={
            "meaning": "a slice to which this many delete files may apply is due; deletion vectors are not counted, "
            "since a file has at most one; 0: off"
        },
    )
    compact_delete_ratio: float = field(
        default=0.3,
        metadata={
            "meaning": "a slice with this share of its base file's rows deleted (such as `30%`) is due, if the format "
            "records deleted rows; 0: off"
        },
    )
    compact_age: timedelta = field(
        default=timedelta(0),
        metadata={"meaning": "a slice whose oldest log was committed this long ago is due; 0: off"},
    )
    compact_delta_commits: int = field(
        default=0,
        metadata={
            "meaning": "every slice with logs is due after this many delta commits since the table's last compaction; "
            "0: off"
        },
    )
    max_slices_per_compaction: int = field(
        default=1_000, metadata={"meaning": "the largest number of slices in a compaction plan"}
    )
    rewrite_first: RewriteFirst = field(
        default=RewriteFirst.COMPACTION,
        metadata={
            "meaning": "the kind of plan that is made first, and that gets a slice which fits both kinds: "
            "`compaction`, `clustering`"
        },
    )

    # rewriting
    engine: str = field(
        default=AUTO,
        metadata={
            "meaning": "the engine that rewrites, if the format has it: `auto`, `stitch`, `hybrid`, `arrow`, `spark`"
        },
    )
    min_row_group_bytes: int = field(
        default=MIN_ROW_GROUP_BYTES,
        metadata={
            "meaning": "`stitch` and `hybrid` copy Parquet row groups of at least this size; `hybrid` merges "
            "consecutive smaller ones"
        },
    )
    compression: str | None = field(
        default=None,
        metadata={
            "meaning": "the compression of new files: `zstd`, `snappy`, `gzip`, `lz4`, `brotli`, `uncompressed`; "
            "unset: that of the table"
        },
    )
    sort_columns: tuple[str, ...] = field(
        default=(), metadata={"meaning": "the columns by which rows of new files are sorted"}
    )
    layout: str = field(
        default="linear", metadata={"meaning": "how `sort_columns` order the rows: `linear`, `zorder`, `hilbert`"}
    )
    verification: VerificationLevel = field(
        default=VerificationLevel.FOOTER,
        metadata={
            "meaning": "the comparison before a commit. `footer`: rows, nulls, minima and maxima; `hash`: every value "
            "too"
        },
    )

    @property
    def rewrite_options(self) -> RewriteOptions:
        """The settings that an executor needs."""
        return RewriteOptions(
            target_file_max_bytes=self.target_file_max_bytes,
            engine=self.engine,
            compression=self.compression,
            sort_columns=self.sort_columns,
            layout=self.layout,
            verification=self.verification,
            min_row_group_bytes=self.min_row_group_bytes,
        )

    @property
    def is_splitting(self) -> bool:
        """True if large files are split."""
        return self.split_file_limit_bytes > 0

    @property
    def needs_all_partitions(self) -> bool:
        """True if the selection of a partition depends on its position among all partitions, not only on its path."""
        by_place = (PartitionFilter.RECENT_DAYS, PartitionFilter.DAY_ROLLING)
        return self.skip_latest_partitions > 0 or self.partition_filter in by_place


@dataclass(frozen=True, kw_only=True)
class TableSettings:
    """Other settings of a table: table services, budgets, scans, objectives."""

    adopt_pending: bool = field(
        default=False,
        metadata={"meaning": "execute clusterings and compactions that other processes scheduled on the table"},
    )
    table_services: tuple[str, ...] = field(
        default=(),
        metadata={
            "meaning": "the table's own services that lakefold runs after cleaning: `clean`, `archive`, `rollback` or "
            "`manifests`, by the table's format"
        },
    )
    table_services_interval: timedelta = field(
        default=timedelta(minutes=30), metadata={"meaning": "the shortest time between two runs of `table_services`"}
    )

    retention: timedelta = field(
        default=timedelta(days=7), metadata={"meaning": "how long replaced files stay before they are deleted"}
    )
    budget_bytes_per_hour: int = field(
        default=0, metadata={"meaning": "bytes that plans of the table may rewrite in any 60 minutes; 0: any number"}
    )
    budget_bytes_per_day: int = field(
        default=0, metadata={"meaning": "bytes that plans of the table may rewrite in any 24 hours; 0: any number"}
    )
    budget_cpu_hours_per_hour: float = field(
        default=0.0, metadata={"meaning": "CPU hours that plans of the table may use in any 60 minutes; 0: any number"}
    )
    budget_cpu_hours_per_day: float = field(
        default=0.0, metadata={"meaning": "CPU hours that plans of the table may use in any 24 hours; 0: any number"}
    )
    run_windows: tuple[str, ...] = field(
        default=(),
        metadata={
            "meaning": "the hours in which plans may start, such as `mon-fri 20:00-06:00`, `sat-sun`; unset: at any "
            "time"
        },
    )
    run_time_zone: str = field(default="UTC", metadata={"meaning": "the time zone of `run_windows`"})
    priority_weight: float = field(
        default=1.0,
        metadata={"meaning": "when plans are ordered, the saving of the table's plans is multiplied by this number"},
    )
    scan_interval: timedelta = field(
        default=timedelta(minutes=5),
        metadata={
            "meaning": "how often a table is scanned; it is also scanned at the start of the service, after a change "
            "of its settings, at the end of its last live plan, and, if it only waits for its `quiet_period`, when "
            "that period ends"
        },
    )
    slo_small_file_share: float = field(
        default=0.0,
        metadata={
            "meaning": "the largest share of files that may be small and reducible, such as `5%`; 0: no objective"
        },
    )
    slo_files_per_gib: float = field(
        default=0.0,
        metadata={
            "meaning": "the largest number of files per GiB; residual small files and their bytes are not counted; "
            "0: no objective"
        },
    )
    slo_oldest_small_file: timedelta = field(
        default=timedelta(0), metadata={"meaning": "how old a reducible small file may get; 0: no objective"}
    )
    slo_goal: float = field(
        default=0.99, metadata={"meaning": "the share of the time in which each of the three objectives has to be met"}
    )
    slo_window: timedelta = field(
        default=timedelta(days=28),
        metadata={"meaning": "the period to which `slo_goal` applies, up to the present: 1 d to 90 d"},
    )

    @property
    def has_objectives(self) -> bool:
        """True if the table has objectives."""
        return any((self.slo_small_file_share, self.slo_files_per_gib, self.slo_oldest_small_file))


@dataclass(frozen=True, kw_only=True)
class GlobalSettings:
    """The settings with one value for the whole service, which can't be set for single tables or requests."""

    sweep_interval: timedelta = field(
        default=timedelta(seconds=15),
        metadata={
            "meaning": "how often uncommitted work of ended plans is withdrawn, and previous locations of relocated "
            "partitions are checked"
        },
    )
    lease: timedelta = field(
        default=timedelta(seconds=60),
        metadata={"meaning": "how long an executor keeps its plan after its last heartbeat"},
    )
    heartbeat: timedelta = field(
        default=timedelta(seconds=15),
        metadata={"meaning": "how often an executor renews its lease"},
    )
    max_attempts: int = field(default=5, metadata={"meaning": "how often a plan is attempted before it fails"})
    backoff: timedelta = field(
        default=timedelta(seconds=30),
        metadata={"meaning": "the wait before the next attempt, doubled after each attempt"},
    )
    backoff_max: timedelta = field(
        default=timedelta(minutes=30), metadata={"meaning": "the longest wait between attempts"}
    )
    max_inflight_per_table: int = field(
        default=1, metadata={"meaning": "the largest number of plans of a table that run at once"}
    )


GLOBAL_FIELDS = frozenset(knob.name for knob in fields(GlobalSettings))


@dataclass(frozen=True, kw_only=True)
class PolicySettings(GlobalSettings, TableSettings, PlanningSettings):
    """All fields of a policy."""

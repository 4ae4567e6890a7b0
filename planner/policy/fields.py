# SPDX-License-Identifier: Apache-2.0
"""The fields of a policy: every setting of planning, rewriting and cleaning, with its default and its meaning.

There are three classes: the sizing of files, which is all that planning needs; other settings of a table; and settings
with one value for the whole service. The classes have no slots, since a class can inherit slots from one parent only.
"""

from dataclasses import dataclass, field, fields
from datetime import timedelta

from lake.plan import AUTO, RewriteOptions, VerificationLevel
from lake.units import GIB, MIB
from planner.policy.enums import BALANCED, PartitionFilter, RewriteFirst


@dataclass(frozen=True, kw_only=True)
class PlanningSettings:
    """The settings that select files, group them and rewrite them; ``meaning`` is the text in docs/configuration.md.

    The defaults apply to unconfigured tables.
    """

    # selection
    small_file_limit_bytes: int = field(default=300 * MIB, metadata={"meaning": "a base file strictly below is small"})
    target_file_max_bytes: int = field(default=GIB, metadata={"meaning": "the largest size planned for a new file"})
    min_input_files: int = field(default=2, metadata={"meaning": "a group of fewer files is left alone"})
    quiet_period: timedelta = field(
        default=timedelta(minutes=15), metadata={"meaning": "files modified more recently are left alone"}
    )
    partition_filter: PartitionFilter = field(
        default=PartitionFilter.ALL, metadata={"meaning": "`all`, `recent_days`, `day_rolling`, `selected`, `regex`"}
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
    partition_regex: str | None = field(default=None, metadata={"meaning": "for `regex`: matches the whole path"})

    # grouping
    strategy: str = field(
        default=BALANCED,
        metadata={
            "meaning": f"`{BALANCED}` fills outputs evenly; a format's name groups as the format's own service does"
        },
    )
    max_bytes_per_group: int = field(default=2 * GIB, metadata={"meaning": "bytes of one group"})
    max_files_per_group: int = field(default=10_000, metadata={"meaning": f"files of one group; for `{BALANCED}`"})
    max_num_groups: int = field(default=30, metadata={"meaning": "groups of one plan"})
    max_bytes_per_plan: int = field(default=60 * GIB, metadata={"meaning": "bytes rewritten and carried by one plan"})
    reads_per_day: float = field(
        default=24.0,
        metadata={"meaning": "how often a file is read per day: the opens that each removed file saves"},
    )
    payback: timedelta = field(
        default=timedelta(days=365),
        metadata={
            "meaning": "a group that does not save its cost within this time is left alone; 0: cost does not matter"
        },
    )
    file_slices_sort_by: tuple[str, ...] = field(
        default=("size",), metadata={"meaning": "for a format's own strategy: `size`, `instant_time`"}
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
            "meaning": "a slice with this many log files is due; any of six triggers suffices; 0 switches a trigger off"
        },
    )
    compact_log_bytes: int = field(
        default=256 * MIB, metadata={"meaning": "a slice with this many bytes of logs is due"}
    )
    compact_log_ratio: float = field(
        default=1.0, metadata={"meaning": "a slice with this many bytes of logs for each byte of its base file is due"}
    )
    compact_delete_ratio: float = field(
        default=0.3,
        metadata={
            "meaning": "a slice with this share (`30%`) of its base file's rows deleted is due, if the format records "
            "it"
        },
    )
    compact_age: timedelta = field(
        default=timedelta(0), metadata={"meaning": "a slice whose oldest log was committed this long ago is due"}
    )
    compact_delta_commits: int = field(
        default=0,
        metadata={
            "meaning": "every slice with logs is due after this many delta commits since the table's last compaction"
        },
    )
    max_slices_per_compaction: int = field(default=1_000, metadata={"meaning": "slices of one compaction plan"})
    rewrite_first: RewriteFirst = field(
        default=RewriteFirst.COMPACTION,
        metadata={
            "meaning": "the kind that is planned first, and that gets a slice which fits both: `compaction`, "
            "`clustering`"
        },
    )

    # rewriting
    engine: str = field(
        default=AUTO,
        metadata={"meaning": "the engine that rewrites, if the format has it: `auto`, `arrow`, `spark`, `stitch`"},
    )
    compression: str | None = field(
        default=None,
        metadata={"meaning": "`zstd`, `snappy`, `gzip`, `lz4`, `brotli`, `uncompressed`; unset: the table's own"},
    )
    sort_columns: tuple[str, ...] = field(
        default=(), metadata={"meaning": "the columns by which rows of new files are sorted"}
    )
    layout: str = field(
        default="linear", metadata={"meaning": "how `sort_columns` order the rows: `linear`, `zorder`, `hilbert`"}
    )
    verification: VerificationLevel = field(
        default=VerificationLevel.FOOTER,
        metadata={"meaning": "verification before a commit: rows, nulls, minima and maxima; `hash` adds every value"},
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
        )

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
        metadata={"meaning": "of `clean`, `archive`, `rollback`: the table's own services, done after cleaning"},
    )
    table_services_interval: timedelta = field(
        default=timedelta(minutes=30), metadata={"meaning": "how often these services run"}
    )

    retention: timedelta = field(default=timedelta(days=7), metadata={"meaning": "how long replaced files stay"})
    budget_bytes_per_hour: int = field(
        default=0, metadata={"meaning": "bytes that plans of the table may rewrite in any 60 minutes; 0: any number"}
    )
    budget_bytes_per_day: int = field(default=0, metadata={"meaning": "the same bytes in any 24 hours"})
    budget_cpu_hours_per_hour: float = field(
        default=0.0, metadata={"meaning": "CPU hours that plans of the table may use in any 60 minutes; 0: any number"}
    )
    budget_cpu_hours_per_day: float = field(default=0.0, metadata={"meaning": "the same CPU hours in any 24 hours"})
    run_windows: tuple[str, ...] = field(
        default=(),
        metadata={"meaning": "when plans may start, such as `mon-fri 20:00-06:00`, `sat-sun`; unset: at any time"},
    )
    run_time_zone: str = field(default="UTC", metadata={"meaning": "the time zone of `run_windows`"})
    priority_weight: float = field(
        default=1.0,
        metadata={"meaning": "how much the table's plans count when plans are ordered; 2 is twice as much"},
    )
    scan_interval: timedelta = field(
        default=timedelta(minutes=5),
        metadata={"meaning": "how often a table is scanned, besides the scan when its last plan completes"},
    )
    slo_small_file_share: float = field(
        default=0.0,
        metadata={
            "meaning": "the largest share of files that may be small and reducible, such as `5%`; 0: no objective"
        },
    )
    slo_files_per_gib: float = field(
        default=0.0,
        metadata={"meaning": "the largest number of files per GiB, without residual files; 0: no objective"},
    )
    slo_oldest_small_file: timedelta = field(
        default=timedelta(0), metadata={"meaning": "how old a reducible small file may get; 0: no objective"}
    )
    slo_goal: float = field(
        default=0.99, metadata={"meaning": "the share of the time in which each of these objectives is to be met"}
    )
    slo_window: timedelta = field(
        default=timedelta(days=28), metadata={"meaning": "the period of `slo_goal`, which ends now: 1 d to 90 d"}
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
        metadata={"meaning": "how often uncommitted work of silent executors is withdrawn"},
    )
    lease: timedelta = field(
        default=timedelta(seconds=60),
        metadata={"meaning": "how long a silent executor keeps its plan"},
    )
    heartbeat: timedelta = field(
        default=timedelta(seconds=15),
        metadata={"meaning": "how often an executor renews its lease"},
    )
    max_attempts: int = field(default=5, metadata={"meaning": "attempts at a plan"})
    backoff: timedelta = field(
        default=timedelta(seconds=30),
        metadata={"meaning": "wait before the next attempt, doubled each time"},
    )
    backoff_max: timedelta = field(
        default=timedelta(minutes=30), metadata={"meaning": "the longest wait between attempts"}
    )
    max_inflight_per_table: int = field(default=1, metadata={"meaning": "plans of one table that run at once"})


GLOBAL_FIELDS = frozenset(knob.name for knob in fields(GlobalSettings))


@dataclass(frozen=True, kw_only=True)
class PolicySettings(GlobalSettings, TableSettings, PlanningSettings):
    """All fields of a policy."""

# SPDX-License-Identifier: Apache-2.0
"""The kinds of tables and installations that chaos goes over, and the settings of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from chaos.clocks import AHEAD_BY_HOURS, RIGHT, Clock, clock_of_writers, clocks_of_daemons, in_words
from service.cli.demo.hudi import LOCK_OPTIONS

#: a write whose heartbeat was silent this long counts as dead: one of a writer that was killed, or stopped for longer
HEARTBEAT_SECONDS = 4.5
#: one lock on both sides; waiting for it must outlast every pause of the schedule
LOCK: Mapping[str, str] = {
    **LOCK_OPTIONS,
    "hoodie.client.heartbeat.interval_in_ms": "1500",
    "hoodie.client.heartbeat.tolerable.misses": "3",
    "hoodie.time.generator.max_expected_clock_skew_ms": "1",
}
BLOOM = {"hoodie.index.bloom.num_entries": "1000"}
_CLEANING: tuple[Mapping[str, str], ...] = (
    {"hoodie.clean.policy": "KEEP_LATEST_COMMITS", "hoodie.clean.commits.retained": "1"},
    {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.fileversions.retained": "1"},
    {"hoodie.clean.policy": "KEEP_LATEST_BY_HOURS", "hoodie.clean.hours.retained": "1"},
)
POLICY: Mapping[str, str | int] = {
    "scan_interval": "1s",
    "sweep_interval": "2s",
    "retention": "8s",
    "lease": "6s",
    "heartbeat": "2s",
    "backoff": "1s",
    "backoff_max": "4s",
    # each kill costs a plan one attempt, and so does each refusal of a wrong clock
    "max_attempts": 1000,
    "compact_log_files": 2,
    "table_services_interval": "5s",
}
DAEMON: Mapping[str, str | int] = {
    "rescue_interval": "2s",
    "clean_interval": "2s",
    "metrics_interval": "2s",
    "leader_ttl": "6s",
}
#: archival as tight as it goes, for the writer and for the service of lakefold
ARCHIVING = {"hoodie.keep.min.commits": "3", "hoodie.keep.max.commits": "4"}
_SERVICES = ("", "", "clean", "archive", "clean,archive", "rollback", "rollback,clean,archive")
#: three or four JVMs share the machine
HEAP = {"spark.driver.memory": "800m", "spark.driver.extraJavaOptions": "-Xms400m -XX:MetaspaceSize=200m"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One kind of table, of database and of concurrency."""

    merge_on_read: bool
    version: int
    postgres: bool
    occ: bool

    def __str__(self) -> str:
        table = f"{'mor' if self.merge_on_read else 'cow'}-v{self.version}"
        return f"{table}-{'postgresql' if self.postgres else 'sqlite'}-{'occ' if self.occ else 'single_writer'}"


CELLS = tuple(
    Cell(merge_on_read=mor, version=version, postgres=postgres, occ=occ)
    for mor in (False, True)
    for version in (9, 6)
    for postgres in (False, True)
    for occ in (True, False)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a seed chooses for a cell.

    ``roles`` are the daemons of the installation; with ``second`` another one with a database of its own is pointed at
    the same table by mistake.
    """

    roles: tuple[str, ...]
    second: bool
    cleaning: Mapping[str, str]
    metadata: bool
    policy: Mapping[str, str | int]
    #: whether times of the timeline are in UTC; else they are LOCAL
    is_utc: bool
    writers_clock: Clock
    #: of the daemons of each installation, in their order
    clocks: tuple[tuple[Clock, ...], ...]

    @classmethod
    def of(cls, cell: Cell, seed: int) -> "Setting":
        """The choice of ``seed``, which goes through the writer's cleaning policies one after another."""
        random = Random(f"setting/{cell}/{seed}")
        second = random.random() < 0.4
        roles = ("all",) if second else random.choice([("all", "all"), ("scheduler", "executor", "executor")])
        services = random.choice(_SERVICES)
        policy = {"verification": random.choice(["footer", "hash"])} | (
            {"table_services": services} if services else {}
        )
        is_utc = random.random() < 0.5
        writers_clock = clock_of_writers(random, is_utc=is_utc)
        counts = (len(roles), 1)
        clocks = tuple(clocks_of_daemons(random, count, one_host=not cell.postgres) for count in counts)
        return cls(
            is_utc=is_utc,
            writers_clock=writers_clock,
            clocks=clocks,
            roles=roles,
            second=second,
            cleaning=_CLEANING[(seed + CELLS.index(cell)) % len(_CLEANING)],
            metadata=random.random() < 0.6,
            policy=policy,
        )

    def __str__(self) -> str:
        return (
            f"{'+'.join(self.roles)}{', a second database' if self.second else ''}, "
            f"{self.cleaning['hoodie.clean.policy']}, metadata table {'on' if self.metadata else 'off'}, "
            f"{dict(self.policy)}, timeline in {'UTC' if self.is_utc else 'the local zone'}, "
            f"{in_words({'writer': self.writers_clock, **self.clocks_by_daemon()})}"
        )

    @property
    def all_right(self) -> bool:
        """Whether every clock and zone is, so that lakefold has no reason to wait."""
        return self.writers_clock.seconds == 0 and all(one.is_right for one in self.clocks_by_daemon().values())

    @property
    def needs_faketime(self) -> bool:
        """Whether a clock has other seconds than the machine's."""
        return any(one.seconds for one in (self.writers_clock, *self.clocks_by_daemon().values()))

    @property
    def clock_of_the_healed_writer(self) -> Clock:
        """What the writer's clock may become at the end of a run: one that is behind is set right."""
        clock = self.writers_clock
        return clock if clock.seconds > 0 else Clock(zone=clock.zone)

    @property
    def clock_of_healed_daemons(self) -> Clock:
        """What makes a lakefold's times the writers': the right clock, and where they are hours ahead, a zone."""
        return AHEAD_BY_HOURS if self.writers_clock.seconds > 3600 else RIGHT

    def clocks_by_daemon(self) -> dict[str, Clock]:
        """The clocks of the daemons that there are, by their names."""
        there = list(zip("ab", (self.roles, ("all",)), self.clocks, strict=True))[: 2 if self.second else 1]
        return {
            f"{name}.{roles[number]}{number}": clock
            for name, roles, clocks in there
            for number, clock in enumerate(clocks)
        }


def writer_options(cell: Cell, setting: Setting) -> dict[str, str]:
    """Hudi options of every write: archival and cleaning as tight as they go."""
    options = {
        "hoodie.table.name": "trips",
        "hoodie.datasource.write.table.type": "MERGE_ON_READ" if cell.merge_on_read else "COPY_ON_WRITE",
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.precombine.field": "ts",
        "hoodie.datasource.write.partitionpath.field": "dt",
        "hoodie.datasource.write.hive_style_partitioning": "true",
        "hoodie.datasource.write.commitmeta.key.prefix": "chaos.",
        "hoodie.write.table.version": str(cell.version),
        "hoodie.write.auto.upgrade": "false",
        "hoodie.table.timeline.timezone": "UTC" if setting.is_utc else "LOCAL",
        "hoodie.parquet.small.file.limit": "0",
        "hoodie.clean.automatic": "true",
        **setting.cleaning,
        **ARCHIVING,
        "hoodie.compact.inline": "false",
        "hoodie.datasource.compaction.async.enable": "false",
        "hoodie.metadata.enable": str(setting.metadata).lower(),
        "hoodie.metadata.streaming.write.enabled": "false",
        "hoodie.metadata.index.column.stats.enable": "false",
        "hoodie.index.type": "SIMPLE",
        "hoodie.embed.timeline.server": "false",
        "hoodie.write.markers.type": "DIRECT",
        **BLOOM,
        **{f"hoodie.{step}.shuffle.parallelism": "1" for step in ("upsert", "insert", "bulkinsert", "delete")},
        "hoodie.simple.index.parallelism": "1",
    }
    if cell.occ:
        options |= {**LOCK, "hoodie.prewrite.cleaner.policy": "ROLLBACK_FAILED_WRITES"}
    return options

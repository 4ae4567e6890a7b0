# SPDX-License-Identifier: Apache-2.0
"""``[database]``, ``[[sources]]``, ``[[tables]]`` and ``[daemon]`` of the configuration."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from lake.formats import FORMATS
from lake.metastore import normalized_uri
from service.control.config.field_types import Duration, SettingsSection, StringMap, flatten
from service.modes import Mode

Access = Literal["catalog", "path"]
SettingValue = str | int | float | bool | tuple[str, ...]


def default_database_url() -> str:
    """Return the URL of the SQLite file in the user's data directory."""
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return f"sqlite:///{data / 'lakefold' / 'lakefold.db'}"


class DatabaseSettings(SettingsSection):
    """``[database]``: the database of plans, as a SQLAlchemy URL, and how long it keeps records."""

    url: SecretStr = Field(
        default_factory=lambda: SecretStr(default_database_url()),
        description="the URL of the database with the plans: `sqlite:////absolute/path.db` or "
        "`postgresql+psycopg://user@host/name`; "
        "without it, an SQLite file in the user's data directory",
    )
    plan_retention: Duration = Field(
        default=timedelta(days=90),
        description="how long ended plans with their groups and events, and answered requests with their idempotency "
        "keys, are kept; 0: for ever",
    )
    audit_retention: Duration = Field(
        default=timedelta(days=365),
        description="how long entries of `lakefold audit` are kept, at most 100,000 of them; 0: for ever",
    )


class SourceSettings(SettingsSection):
    """``[[sources]]``: a table's path, a directory to search, a pattern, a Hive metastore, or a catalog database."""

    path: str | None = Field(
        default=None,
        description="a table, or a directory that is searched for tables, local or `s3a://…`; or a pattern of local "
        "paths with `*`, `?`, `[…]`. A relative path is relative to the configuration file",
    )
    name: str | None = Field(default=None, description="the name of the one table at `path`")
    prefix: str = Field(default="", description="text put before the names of all tables of the source")
    format: str | None = Field(
        default=None,
        description=f"the format of the tables, {' or '.join(f'`{name}`' for name in FORMATS)}; unset: tables of every "
        "format are included",
    )
    metastore: str | None = Field(
        default=None,
        description="the address of a Hive metastore whose tables are included, such as `thrift://host:9083`; several "
        "servers of one metastore are separated by commas",
    )
    catalog: str | None = Field(
        default=None,
        description="the name of a catalog. If `spark.sql.catalog.NAME` under `[spark]` defines it as an Iceberg "
        "catalog, its tables are included; any other catalog needs `database`",
    )
    database: str | None = Field(
        default=None,
        description="with `metastore` or an Iceberg catalog: a pattern for the names of its databases (namespaces), "
        "`*` if unset. With any other catalog, or without `catalog`: the one database whose tables Spark lists; "
        "processes without a Spark session read the list from lakefold's database",
    )
    table: str | None = Field(
        default=None,
        description="with `metastore` or an Iceberg catalog: a pattern for the names of tables, `*` if unset",
    )

    @property
    def database_pattern(self) -> str:
        """The pattern for databases of a metastore, whose names are in lower case."""
        return (self.database or "*").lower()

    @property
    def table_pattern(self) -> str:
        """The pattern for tables of a metastore, whose names are in lower case."""
        return (self.table or "*").lower()

    @property
    def label(self) -> str:
        """The source in messages: its path, the metastore or catalog with its patterns, or the catalog database."""
        if self.metastore is not None:
            return f"{self.metastore} {self.database_pattern}.{self.table_pattern}"
        if self.path is not None:
            return self.path
        if self.database is None or self.table is not None:
            return f"catalog {self.catalog} {self.database or '*'}.{self.table or '*'}"
        return f"database {'.'.join(filter(None, (self.catalog, self.database)))}"

    @model_validator(mode="after")
    def _check_kind(self) -> "SourceSettings":
        given = (self.path, self.metastore, self.database, self.catalog)
        if given.count(None) == len(given) or (self.path is not None and given.count(None) < len(given) - 1):
            raise ValueError("a source has either path, metastore, catalog, or database")
        if self.catalog is not None and self.metastore is not None:
            raise ValueError("catalog must not be set beside metastore")
        if self.table is not None and self.metastore is None and self.catalog is None:
            raise ValueError("table needs metastore or catalog")
        if self.name is not None and (self.prefix or self.path is None):
            raise ValueError("name is for one table by its path; use prefix for several")
        return self

    @field_validator("metastore")
    @classmethod
    def _normalize_metastore(cls, uri: str | None) -> str | None:
        return None if uri is None else normalized_uri(uri)


ResourceGroup = Annotated[str, Field(pattern=r"^[\w.-]{1,50}$")]
Tag = Annotated[str, Field(pattern=r"^[\w.:/@+-]{1,100}$")]


class TableRule(BaseModel):
    """``[[tables]]``: settings of the tables whose name matches; any other key is a policy setting."""

    model_config = ConfigDict(extra="allow", frozen=True, hide_input_in_errors=True)

    match: str = Field(description="required: a shell pattern for table names, with `*`, `?`, `[…]`")
    mode: Mode | None = Field(
        default=None,
        description="`observe` (default): the tables are scanned and explained, never planned · `propose`: they are "
        "planned, and rewritten once a person has approved the plan · `compact`: they are planned and rewritten · "
        "`off`: they are left out of scans and cleaning; already relocated partitions of a Hive table are still swept",
    )
    owner: str | None = Field(
        default=None,
        max_length=200,
        description="the owner of the tables, a word by which lists of tables can be filtered",
    )
    tags: tuple[Tag, ...] = Field(
        default=(),
        description="words by which lists of tables are filtered and reports are grouped; if several rules match, a "
        "table has the tags of all of them",
    )
    resource_group: ResourceGroup | None = Field(
        default=None,
        description="the resource group whose executors take the tables' plans (`[daemon] resource_groups`); without "
        "it `default`",
    )
    concurrency: Literal["single_writer", "occ"] | None = Field(
        default=None,
        description="how the table's writers work; required in modes `propose` and `compact` · `single_writer`: no "
        "other program writes while lakefold works on the table · `occ`: every writer uses optimistic concurrency "
        "with the same lock · not needed, and ignored, for formats with the capability `optimistic commits`",
    )
    access: Access | None = Field(
        default=None,
        description="for Hive tables; required in modes `propose` and `compact` · `catalog`: every reader "
        "and writer gets the location of files from the metastore, and no writer overwrites a partition with rows "
        "selected from that partition while others append to it · `path`: some readers or writers use paths, so the "
        "table is only scanned · tools that use paths: "
        "Flink's streaming and `filesystem` sinks, Spark's `df.write.parquet(path)`, pyarrow, pandas, DuckDB, Polars, "
        "`hdfs dfs -put`, distcp, Sqoop's `--target-dir`, DataX, Kafka Connect; tools that cache locations: Impala "
        "without polled events, Trino and Presto with `hive.metastore-cache-ttl` "
        "([each with its consequence](hive.md#access-by-path)); `init` and `tables explain` name the tools for which "
        "they find evidence",
    )
    sessions_refresh: bool | None = Field(
        default=None,
        description="for unpartitioned Hive tables that Spark created (`USING`); without this setting these tables "
        "are only scanned · `true`: every long-lived session runs `REFRESH TABLE` before it reads or writes the "
        "table",
    )
    on_conflict: Literal["plan_wins", "writer_wins"] | None = Field(
        default=None,
        description="which side wins if a writer changes files that a plan is rewriting: `plan_wins` (default) or "
        "`writer_wins`",
    )
    write_options: StringMap = Field(
        default_factory=dict,
        repr=False,
        description="options of the table's own writer, such as the lock provider; if several rules match, a later "
        "rule overrides only the options that it sets itself",
    )

    @property
    def policy_settings(self) -> dict[str, SettingValue]:
        """The rule's policy settings as written, dotted keys flat."""
        return flatten(self.model_extra or {})


class DaemonSettings(SettingsSection):
    """``[daemon]``: loops, slots and log of ``lakefold serve``."""

    executor_slots: int = Field(default=1, ge=1, le=64, description="how many plans this process runs at once")
    resource_groups: tuple[ResourceGroup, ...] = Field(
        default=(),
        description="the resource groups whose plans this process takes, `default` for tables without one; empty: all",
    )
    request_interval: Duration = Field(
        default=timedelta(seconds=1),
        description="how often the database is polled for requests and for reports of written partitions",
    )
    report_delay: Duration = Field(
        default=timedelta(milliseconds=500),
        description="how long reports of written partitions are collected before these partitions are scanned",
    )
    claim_interval: Duration = Field(
        default=timedelta(seconds=1), description="how often an idle executor polls for a plan"
    )
    rescue_interval: Duration = Field(
        default=timedelta(seconds=15), description="how often expired leases are searched for"
    )
    clean_interval: Duration = Field(default=timedelta(minutes=5), description="how often superseded files are deleted")
    metrics_interval: Duration = Field(
        default=timedelta(seconds=15), description="how often gauges are refreshed from the database"
    )
    discover_interval: Duration = Field(
        default=timedelta(minutes=5),
        description="how often sources are searched for new tables; if a table is missing, a search starts at once",
    )
    leader_ttl: Duration = Field(
        default=timedelta(seconds=30), description="how long a dead process remains leader of a loop"
    )
    log_format: Literal["text", "json"] = Field(default="text", description="the format of the log: `text` or `json`")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="the lowest level that is logged: `debug`, `info`, `warning`, `error`"
    )
    merge_events_file: Path | None = Field(
        default=None,
        description="a file to which each completed plan adds one line of JSON for each of its partitions, as Spark's "
        "Hive auto-merge does to an event log (`AutoMergeSmallFileEvent`)",
    )

    @model_validator(mode="after")
    def _check_positive(self) -> "DaemonSettings":
        for name, value in self:
            if isinstance(value, timedelta) and value <= timedelta(0):
                raise ValueError(f"{name} must be above zero")
        return self

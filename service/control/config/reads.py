# SPDX-License-Identifier: Apache-2.0
"""``[reads]`` of the configuration: where reads of tables are observed."""

from datetime import timedelta

from pydantic import Field, model_validator

from service.control.config.field_types import Duration, SettingsSection


class ReadsSettings(SettingsSection):
    """``[reads]``: logs of queries from which the scheduler counts the reads of each table; off by default."""

    spark_event_logs: tuple[str, ...] = Field(
        default=(),
        description="directories of Spark event logs (`spark.eventLog.dir`), local or mounted, plain or compressed by "
        "`zstd` or `lz4`",
    )
    hdfs_audit_logs: tuple[str, ...] = Field(
        default=(),
        description="paths of HDFS audit logs (`hdfs-audit.log`), local or mounted; rotated files beside a log are "
        "read, too, plain or compressed by gzip",
    )
    hdfs_ignored_users: tuple[str, ...] = Field(
        default=("lakefold",),
        description="users whose opens in HDFS audit logs do not count: the user of lakefold, and those of writers",
    )
    interval: Duration = Field(default=timedelta(minutes=1), description="how often the logs are read")
    window: Duration = Field(
        default=timedelta(days=7), description="the period whose reads determine a table's rate, at most 30 days"
    )

    @model_validator(mode="after")
    def _check(self) -> "ReadsSettings":
        if self.interval <= timedelta(0):
            raise ValueError("interval must be above zero")
        if not timedelta(days=1) <= self.window <= timedelta(days=30):
            raise ValueError("window must be between 1 and 30 days")
        return self

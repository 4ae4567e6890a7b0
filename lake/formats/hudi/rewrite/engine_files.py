# SPDX-License-Identifier: Apache-2.0
"""Base files of a clustering that an engine writes.

Hudi publishes the plan before the engine writes the files, and commits them afterwards. Like files of Hudi's row
writer, they are named by the instant, and each has a marker that is older than the file. So a rollback removes them, a
commit removes the files that it does not name, and late files are found by their names.
"""

import threading
from collections.abc import Sequence
from typing import Any

from lake.engines import EngineOutput, RewriteEngine, slice_paths_in_conflicts
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.files.names import relative_path
from lake.formats.hudi.inputs.plan_engine import WRITERS
from lake.formats.hudi.rewrite.engine_tasks import (
    engine_options,
    engine_tasks,
    find_common_obstacle,
    find_engine_obstacle,
)
from lake.ports import PreparedPlan, ProgressCallback

#: the previous commit in the write status of a new file group's file
_NO_COMMIT = "null"


class EngineWriter:
    """See ``lake.formats.hudi.client.client.FileWriter``: an engine that also writes Hudi's additions to files."""

    def __init__(self, engine: RewriteEngine) -> None:
        self.engine = engine

    def find_common_obstacle(self, client: HudiClient) -> str | None:
        """See ``FileWriter``."""
        return find_common_obstacle(client)

    def find_obstacle(self, client: HudiClient) -> str | None:
        """See ``FileWriter``."""
        return find_engine_obstacle(client, self.engine)

    def write(
        self, client: HudiClient, prepared: PreparedPlan, report: ProgressCallback, cancelled: threading.Event
    ) -> Any:
        """See ``FileWriter``. Raises the errors of ``lake.engines.RewriteEngine.rewrite``."""
        plan, config = prepared.plan, client.write_config
        groups = {index: plan.groups[index] for index in prepared.live_groups}
        tasks = engine_tasks(client, config, groups, prepared.instant)
        with slice_paths_in_conflicts(client.table, plan, tasks):
            options = engine_options(self.engine, plan.options, config)
            files = list(self.engine.rewrite(tasks, options, report, cancelled))
        statuses = client.jvm.java.util.ArrayList()
        for file in sorted(files, key=lambda one: one.group):
            statuses.add(_write_status(client, groups[file.group].partition, file))
        # Hudi fills its indexes from the files themselves.
        return client.spark.sparkContext._jsc.parallelize(statuses, 1)


def find_writers(engines: Sequence[RewriteEngine]) -> dict[str, EngineWriter]:
    """Return the ``engines`` that can write base files, by name."""
    return {engine.name: EngineWriter(engine) for engine in engines if engine.name in WRITERS}


def _write_status(client: HudiClient, partition: str, file: EngineOutput) -> Any:
    """Return the write status that Hudi's row writer would return for a new file."""
    jvm = client.jvm
    name = file.path.rpartition("/")[2]
    file_id = name.partition("_")[0]
    model = jvm.org.apache.hudi.common.model
    stat = model.HoodieWriteStat()
    stat.setPartitionPath(partition)
    stat.setFileId(file_id)
    stat.setPath(relative_path(partition, name))
    stat.setPrevCommit(_NO_COMMIT)
    stat.setNumWrites(file.rows)
    stat.setNumInserts(file.rows)
    stat.setNumDeletes(0)
    stat.setTotalWriteBytes(file.bytes)
    stat.setFileSizeInBytes(file.bytes)
    stat.setTotalWriteErrors(0)
    stat.setRuntimeStats(getattr(model, "HoodieWriteStat$RuntimeStats")())
    status = jvm.org.apache.hudi.client.WriteStatus(False, 0.0)
    status.setFileId(file_id)
    status.setPartitionPath(partition)
    status.setStat(stat)
    status.setTotalRecords(file.rows)
    status.setTotalErrorRecords(0)
    return status

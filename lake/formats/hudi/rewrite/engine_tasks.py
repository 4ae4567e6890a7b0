# SPDX-License-Identifier: Apache-2.0
"""Rewrites by the engines ``arrow`` and ``hybrid``: which plans they may rewrite, and the tasks that they get.

``arrow`` decodes base files and encodes them again; ``hybrid`` does so only with their small row groups. Both need less
CPU time than Hudi's row writer. They have no knowledge of Hudi, so they get only inputs that Hudi's own reader would
merely decode (``input_schema``), and Hudi's parts of a file come from ``files.additions``. The row writer rewrites all
other plans.
"""

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lake.engines import RewriteEngine, RewriteTask, build_task
from lake.formats.hudi.client.client import HudiClient
from lake.formats.hudi.files.additions import BaseFileAdditions
from lake.formats.hudi.files.bloom_filter import BLOOM_FILTER_TYPES, BloomFilterSettings
from lake.formats.hudi.files.names import relative_path
from lake.formats.hudi.rewrite.input_schema import find_schema_difference, find_schema_obstacle
from lake.plan import ClusteringGroup, RewriteOptions
from lake.storage.locations import resolve_path

#: codecs that pyarrow and parquet-java write in the same way
_CODECS = ("gzip", "snappy", "zstd", "uncompressed")
#: settings by which classes of the table's own take part in writing a file
_WRITER_CLASSES = (
    "hoodie.parquet.spark.row.write.support.class",
    "hoodie.parquet.write.config.injector.class",
    "hoodie.io.factory.class",
    "hoodie.storage.class",
)
_DICTIONARIES = "hoodie.parquet.dictionary.enabled"
_ENCRYPTION = "parquet.crypto.factory.class"
#: types that are Hudi's own; a column with the name of such a type counts as a column of it
_OWN_TYPES = ("vector", "variant", "blob")


def find_common_obstacle(client: HudiClient) -> str | None:
    """Return why no engine can rewrite the client's plan; None if that depends on the engine.

    Reads the footers of all inputs. Inputs that can't be read are skipped: the rewrite reports them.
    """
    obstacle = _obstacle_in_plan(client) or _obstacle_in_settings(client, client.probe_config)
    return obstacle or find_schema_obstacle(client) or _obstacle_in_files(client)


def find_engine_obstacle(client: HudiClient, engine: RewriteEngine) -> str | None:
    """Return why ``engine`` can't rewrite the client's plan, which has no common obstacle; None if it can.

    Inputs that can't be read are skipped: the rewrite reports them.
    """
    config, plan = client.probe_config, client.plan
    assert plan is not None
    options = engine_options(engine, plan.options, config)
    tasks = engine_tasks(client, config, dict(enumerate(plan.groups)), "0")
    return next(filter(None, (engine.unsupported_reason(task, options) for task in tasks)), None)


def _obstacle_in_plan(client: HudiClient) -> str | None:
    plan = client.plan
    assert plan is not None
    if not client.bundle.can_commit_files_of_engines:
        return f"it was not tested with Hudi bundle {client.bundle.version}"
    if plan.adopted_instant is not None:
        return "another process planned the rewrite, and Hudi executes it as planned"
    if plan.options.sort_columns:
        return f"it can't sort by {', '.join(plan.options.sort_columns)}; unset sort_columns"
    if any(s.path is None or s.log_files for group in plan.groups for s in group.slices):
        return "logs have to be merged, which is done row by row"
    return None


def _obstacle_in_settings(client: HudiClient, config: Any) -> str | None:
    """Return the setting by which Hudi's new files would differ from the engine's; None if there is none."""
    if not config.populateMetaFields():
        return "the table has no meta columns (hoodie.populate.meta.fields = false)"
    if config.shouldDropPartitionColumns():
        return "files do not have the partition columns (hoodie.datasource.write.drop.partition.columns = true)"
    given = {**client.properties, **client.table.write_options}
    for key in _WRITER_CLASSES:
        if key in given:
            return f"{key} names a class that takes part in writing files"
    if given.get(_DICTIONARIES, "true").strip().lower() == "false":
        return f"{_DICTIONARIES} = false, and the engine writes dictionaries where they save space"
    if client.spark.sparkContext._jsc.hadoopConfiguration().get(_ENCRYPTION) is not None:
        return f"{_ENCRYPTION} is set, by which Hudi's writer may encrypt columns"
    kind = str(config.getBloomFilterType()).upper()
    if kind not in BLOOM_FILTER_TYPES:
        return f"Bloom filters are of type {kind}, it writes {' and '.join(BLOOM_FILTER_TYPES)} only"
    codec = _codec(config)
    if codec not in _CODECS:
        return f"files are compressed with {codec}, it writes {', '.join(_CODECS)}"
    schema = client.reader_schema.toString()
    own = next((name for name in _OWN_TYPES if f'"{name}"' in schema), None)
    return None if own is None else f"the table's schema names {own}, a type of Hudi's own"


def _obstacle_in_files(client: HudiClient) -> str | None:
    for footer in client.input_footers.values():
        if " int96 " in footer.schema:
            return f"{footer.path} has timestamps as INT96"
        for column in footer.undated_columns:
            return (
                f"{footer.path} does not name the Spark that wrote it, and column {column} may have dates before 1582 "
                "or timestamps before 1900"
            )
    first = next(iter(client.input_footers), None)
    return None if first is None else find_schema_difference(client, first)


def engine_options(engine: RewriteEngine, options: RewriteOptions, config: Any) -> RewriteOptions:
    """Return the options of a plan for ``engine``.

    Files that are decoded are compressed as Hudi's writer would. Row groups that are copied keep their codec, and the
    merged ones between them get the same.
    """
    return options if engine.name == "hybrid" else replace(options, compression=_codec(config))


def _codec(config: Any) -> str:
    return str(config.getParquetCompressionCodec() or "uncompressed").lower()


def engine_tasks(
    client: HudiClient, config: Any, groups: Mapping[int, ClusteringGroup], instant: str
) -> list[RewriteTask]:
    """Return a task for each of ``groups``, by index in the plan. Its outputs are new file groups of ``instant``.

    ``config`` is a write configuration of Hudi's.
    """
    bloom_filter = BloomFilterSettings(
        entries=int(config.getBloomFilterNumEntries()),
        false_positive_rate=float(config.getBloomFilterFPP()),
        max_entries=int(config.getDynamicBloomFilterMaxNumEntries()),
        type=str(config.getBloomFilterType()).upper(),
    )
    location, tasks = client.table.location, []
    for index, group in groups.items():
        additions = BaseFileAdditions(
            location=location,
            instant=instant,
            partition=group.partition,
            bloom_filter=bloom_filter,
            spark_version=client.spark.version,
            inflight_file=None if client.inflight_file is None else client.inflight_file.own_file,
        )
        # Hudi's row writer names the file groups of a task in this way, and the record index expects it.
        names = [f"{uuid.uuid4()}-{number}" for number in range(group.output_files)]
        outputs = [resolve_path(location, relative_path(group.partition, name)) for name in names]
        tasks.append(replace(build_task(client.table, index, group, outputs), additions=additions))
    return tasks

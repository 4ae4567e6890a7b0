# SPDX-License-Identifier: Apache-2.0
"""The rules for Hudi tables: each refusal names the rule, the value found and the remedy."""

from collections.abc import Iterator, Mapping

from lake.errors import Rejected, TableRefused
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.lock_settings.mounts import unshared_lock_refusals
from lake.formats.hudi.lock_settings.on_conflict import on_conflict_refusals
from lake.formats.hudi.lock_settings.providers import (
    LOCK_DIRECTORY,
    LOCK_PROVIDER,
    has_lock_file_provider,
    missing_settings,
)
from lake.formats.hudi.read.flink_state import INDEX_TYPE, find_flink_index
from lake.formats.hudi.read.undone_commits import describe_undone_rewrites
from lake.formats.hudi.read.unsafe_commits import describe_unrestored_rewrites
from lake.formats.hudi.timeline import metadata_table, schema_history
from lake.formats.hudi.timeline.timeline import COMMIT_ACTIONS, Timeline, write_stats
from lake.model import Concurrency, TableRef
from lake.storage.locations import is_s3

LAYOUT_OF_VERSION: Mapping[str, str] = {"6": "1", "8": "2", "9": "2"}
"""Supported table versions, each with the layout of its timeline."""
_SUPPORTED_INDEXES = frozenset({"files", "column_stats", "partition_stats", "bloom_filters", "record_index"})
_MERGER_CLASSES_KEY = "hoodie.write.record.merge.custom.implementation.classes"
#: the strategies with a merger in Hudi: by payload class, by event time and by commit time
_BUILTIN_MERGE_STRATEGIES = frozenset(
    {
        "00000000-0000-0000-0000-000000000000",
        "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5",
        "ce9acb64-bde0-424c-9b91-f6ebba25356d",
    }
)
#: indexes in HBase, up to Hudi 1.1, and in the memory of a writer
_INDEXES_ELSEWHERE = frozenset({"HBASE", "INMEMORY"})
_CONCURRENCY_MODE = "hoodie.write.concurrency.mode"


def check_table(table: TableRef) -> None:
    """Raise Rejected for the first rule that ``table`` breaks, Transient if the table can't be reached.

    Raises TableRefused for a rule that concerns the table's state: the state may change while plans wait.
    """
    storage = TableStorage(table.location)
    timeline = Timeline(storage)
    for refusal in _property_refusals(table, timeline.properties):
        raise Rejected(f"{table.name}: {refusal}")
    for refusal in unsafe_state_refusals(storage, timeline):
        raise TableRefused(f"{table.name}: {refusal}")
    for refusal in _writer_refusals(table, storage, timeline):
        raise Rejected(f"{table.name}: {refusal}")


def _property_refusals(table: TableRef, properties: Mapping[str, str]) -> Iterator[str]:
    yield from _layout_refusals(properties)
    yield from _option_refusals(table.write_options, properties)
    yield from _field_refusals(properties)
    yield from _merger_refusals(table.write_options, properties)
    yield from _metadata_table_refusals(table.write_options, properties)


def _writer_refusals(table: TableRef, storage: TableStorage, timeline: Timeline) -> Iterator[str]:
    properties = timeline.properties
    yield from _concurrency_refusals(table)
    if storage.is_local:
        yield from unshared_lock_refusals(storage.base)
    yield from on_conflict_refusals(table)
    yield from _bucket_index_refusals(table.write_options, storage, timeline)
    if properties.get("hoodie.table.type", "").upper() != "MERGE_ON_READ":  # where compactions go on
        flink = find_flink_index(timeline, table.write_options)
        if flink is not None:
            yield flink


def unsafe_state_refusals(storage: TableStorage, timeline: Timeline) -> Iterator[str]:
    """Yield refusals for states that writers can cause at any time; checked again before a plan is published."""
    yield from describe_undone_rewrites(storage, timeline)
    yield from metadata_table.find_faults(storage, timeline)
    yield from describe_unrestored_rewrites(timeline)
    yield from _misleading_column_refusals(storage)


def rewrite_refusals(storage: TableStorage, properties: Mapping[str, str]) -> Iterator[str]:
    """Yield refusals for states that owners can cause at any time and that exclude rewrites, but not deletions."""
    yield from _unsupported_index_refusals(properties)
    yield from _misleading_column_refusals(storage)


def _misleading_column_refusals(storage: TableStorage) -> Iterator[str]:
    for misleading in schema_history.find_misleading_columns(storage):
        yield (
            f"{misleading} (hoodie.schema.on.read.enable, {schema_history.DIRECTORY}): Hudi's rewrites look for "
            "columns by name, and values of older files would be lost; recreate the table, or leave it out"
        )


def _layout_refusals(properties: Mapping[str, str]) -> Iterator[str]:
    version = properties.get("hoodie.table.version", "")
    layout = properties.get("hoodie.timeline.layout.version", "")
    if version not in LAYOUT_OF_VERSION:
        yield (
            f"hoodie.table.version = {version or 'unset'}, only {', '.join(LAYOUT_OF_VERSION)} are supported; upgrade "
            "the table with its own writer (hoodie.write.table.version = 9 with auto upgrade on) and try again"
        )
    elif layout != LAYOUT_OF_VERSION[version]:
        yield (
            f"hoodie.timeline.layout.version = {layout or 'unset'} does not match hoodie.table.version = {version}, "
            f"which has layout {LAYOUT_OF_VERSION[version]}; an upgrade was interrupted: repeat it with the table's "
            "own writer"
        )
    kind = properties.get("hoodie.table.type", "COPY_ON_WRITE").upper()
    if kind not in {"COPY_ON_WRITE", "MERGE_ON_READ"}:
        yield f"hoodie.table.type = {kind} is unknown; COPY_ON_WRITE and MERGE_ON_READ are supported"
    table_format = properties.get("hoodie.table.format", "native")
    if table_format.lower() != "native":
        yield f"hoodie.table.format = {table_format}, only native is supported; leave the table to its format's tools"
    base_format = properties.get("hoodie.table.base.file.format", "PARQUET")
    if base_format.upper() != "PARQUET":
        yield f"hoodie.table.base.file.format = {base_format}, only PARQUET is supported; leave the table out"
    if _is_enabled(properties, "hoodie.table.multiple.base.file.formats.enable"):
        yield "hoodie.table.multiple.base.file.formats.enable = true, only PARQUET is supported; leave the table out"
    bootstrap = properties.get("hoodie.bootstrap.base.path")
    if bootstrap:
        yield (
            f"bootstrap table (hoodie.bootstrap.base.path = {bootstrap}): its rows lie in files of another directory; "
            "rewrite it as a regular table first"
        )
    if _is_enabled(properties, "hoodie.datasource.write.drop.partition.columns"):
        yield (
            "hoodie.datasource.write.drop.partition.columns = true: the data files lack their partition columns and "
            "can't be verified; write the table with false"
        )


def _field_refusals(properties: Mapping[str, str]) -> Iterator[str]:
    ordering = properties.get("hoodie.table.ordering.fields") or properties.get("hoodie.table.precombine.field", "")
    if "," in ordering:
        yield (
            f"hoodie.table.ordering.fields = {ordering}: hudi-rs, which lists the table, supports only one "
            "ordering field; recreate the table with one, or leave it out"
        )
    partitioned_by = properties.get("hoodie.table.partition.fields", "")
    if ":" in partitioned_by:
        yield (
            f"hoodie.table.partition.fields = {partitioned_by}: hudi-rs, which lists the table, does not support "
            "CustomKeyGenerator's fields with their types; recreate the table with another key generator, or leave "
            "it out"
        )


def _merger_refusals(options: Mapping[str, str], properties: Mapping[str, str]) -> Iterator[str]:
    """Refuse a table's own merger without its class: the table's properties name only the strategy, not the class."""
    if properties.get("hoodie.table.type", "").upper() != "MERGE_ON_READ" or options.get(_MERGER_CLASSES_KEY):
        return
    for key in ("hoodie.record.merge.strategy.id", "hoodie.compaction.record.merger.strategy"):
        strategy = properties.get(key, "")
        if strategy and strategy not in _BUILTIN_MERGE_STRATEGIES:
            yield (
                f"{key} = {strategy}: records are merged by a class of the table's own; set write_options "
                f'{_MERGER_CLASSES_KEY} as its writers do, and add the jar with that class to "spark.jars.packages" in '
                "[spark]"
            )
            return


def _option_refusals(options: Mapping[str, str], properties: Mapping[str, str]) -> Iterator[str]:
    wanted = {
        "hoodie.write.auto.upgrade": ("false", "a compaction must not change the table's version"),
        "hoodie.write.table.version": (
            properties["hoodie.table.version"],
            "a compaction must not change the table's version",
        ),
        "hoodie.metadata.auto.delete.partitions": ("false", "indexes of the metadata table would be dropped"),
        "hoodie.table.service.manager.enabled": ("false", "plans would be sent to that manager instead of executed"),
    }
    for key, (value, why) in wanted.items():
        given = options.get(key)
        if given is not None and given.strip().lower() != value:
            yield f"write_options {key} = {given}: {why}; remove the key or set it to {value}"
    index = options.get(INDEX_TYPE, "").strip()
    if index.upper() in _INDEXES_ELSEWHERE:
        yield (
            f"write_options {INDEX_TYPE} = {index}: that index is outside of the table, where no rewrite updates it, "
            "and the writers' next updates would go to replaced file groups; leave the table out, or give its writers "
            "an index in the table, for example BLOOM"
        )


def _metadata_table_refusals(options: Mapping[str, str], properties: Mapping[str, str]) -> Iterator[str]:
    indexes = metadata_table.index_names(properties)
    enabled = options.get("hoodie.metadata.enable")
    if enabled is not None and _is_true(enabled) != ("files" in indexes):
        has = f"has a metadata table ({', '.join(indexes)})" if "files" in indexes else "has no metadata table"
        consequence = "dropped" if "files" in indexes else "created"
        yield (
            f"write_options hoodie.metadata.enable = {enabled}, but the table {has}, which would be {consequence}; "
            "remove the key; the value is taken from the table"
        )
    yield from _unsupported_index_refusals(properties)


def _unsupported_index_refusals(properties: Mapping[str, str]) -> Iterator[str]:
    foreign = [name for name in metadata_table.index_names(properties) if name not in _SUPPORTED_INDEXES]
    if foreign:
        yield (
            f"hoodie.table.metadata.partitions has {', '.join(foreign)}: rewrites are not verified to keep that index; "
            "drop it with its own writer or leave the table out"
        )


def _concurrency_refusals(table: TableRef) -> Iterator[str]:
    options = table.write_options
    mode = options.get(_CONCURRENCY_MODE, "").lower()
    if mode == "non_blocking_concurrency_control":
        yield (
            f"write_options {_CONCURRENCY_MODE} = {mode}: its writers skip the conflict check that keeps a rewrite "
            'safe; use optimistic_concurrency_control on every writer and concurrency = "occ"'
        )
    if table.concurrency is not Concurrency.OCC:
        return
    provider = options.get(LOCK_PROVIDER)
    if not provider:
        yield (
            f'concurrency = "occ" needs the lock that the writers use: set write_options {LOCK_PROVIDER} (and its '
            'settings) as they do, or concurrency = "single_writer" if no writer runs at the same time'
        )
    elif provider.rpartition(".")[2] == "NoopLockProvider":
        yield f"write_options {LOCK_PROVIDER} = {provider} locks nothing; use the provider that all writers share"
    elif provider.rpartition(".")[2] == "InProcessLockProvider":
        yield (
            f"write_options {LOCK_PROVIDER} = {provider} locks within one JVM only, no other writer sees it; use the "
            "provider that all writers share"
        )
    elif has_lock_file_provider(table) and is_s3(lock_directory := options.get(LOCK_DIRECTORY) or table.location):
        yield (
            f"write_options {LOCK_PROVIDER} = {provider} can't lock on S3 ({lock_directory}), where Hudi creates no "
            "file "
            "atomically; use a ZookeeperBasedLockProvider, DynamoDBBasedLockProvider or StorageBasedLockProvider on "
            'every writer, or concurrency = "single_writer" if no writer runs at the same time'
        )
    elif missing := list(missing_settings(table)):
        yield (f"write_options {LOCK_PROVIDER} = {provider} needs {' and '.join(missing)}; set them as the writers do")
    if mode and mode != "optimistic_concurrency_control":
        yield f'write_options {_CONCURRENCY_MODE} = {mode} contradicts concurrency = "occ"; remove the key'


def _bucket_index_refusals(options: Mapping[str, str], storage: TableStorage, timeline: Timeline) -> Iterator[str]:
    for source, settings in (("write_options", options), ("hoodie.properties", timeline.properties)):
        if settings.get("hoodie.index.type", "").upper() == "BUCKET":
            yield f"{source} hoodie.index.type = BUCKET: {_BUCKET_INDEX_REASON}"
    if _has_hashing_metadata(storage):
        yield f"the table has bucket index metadata (.hoodie/.hashing_meta or .bucket_index): {_BUCKET_INDEX_REASON}"
    file_ids = _newest_file_ids(timeline)
    if file_ids and all(_is_bucket_id(file_id) for file_id in file_ids):
        yield f"file ids number buckets ({min(file_ids)}): {_BUCKET_INDEX_REASON}"


_BUCKET_INDEX_REASON = (
    "with a bucket index the file id decides where a key is stored, and merging files breaks it; "
    "leave the table out, its number of buckets sets its file sizes"
)


def _has_hashing_metadata(storage: TableStorage) -> bool:
    names = {info.base_name for info in storage.children(".hoodie")}
    return bool(names & {".hashing_meta", ".bucket_index"})


def _newest_file_ids(timeline: Timeline) -> list[str]:
    """Return the file ids of the newest commit that wrote files, since the table does not record its index type."""
    for instant in reversed(timeline.commits):
        if instant.action in COMMIT_ACTIONS and instant.kind not in {"clustering", "logcompaction"}:
            try:
                metadata = timeline.metadata(instant)
            except FileNotFoundError:
                continue  # archived meanwhile, and so are older commits
            found = [stat["fileId"] for _, stat in write_stats(metadata) if stat.get("fileId")]
            if found:
                return found
    return []


def _is_bucket_id(file_id: str) -> bool:
    # A bucket's file id begins with eight decimal digits instead of a random UUID's head. Fewer than 100,000 buckets
    # are assumed, so a random head matches once in 40,000 times.
    head = file_id.partition("-")[0]
    return len(head) == 8 and head.isdecimal() and int(head) < 100_000


def _is_enabled(properties: Mapping[str, str], key: str) -> bool:
    return _is_true(properties.get(key, "false"))


def _is_true(value: str) -> bool:
    return value.strip().lower() == "true"

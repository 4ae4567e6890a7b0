# SPDX-License-Identifier: Apache-2.0
"""Which tables are refused, with rule, value and remedy in one line."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hudi_tables import FS_LOCK, METADATA, rows, write
from hudi_templates import Templates, edit_avro, edit_properties, ref, timeline_file

from lake.errors import Rejected
from lake.formats.hudi import FORMAT
from lake.formats.hudi.lock_settings.on_conflict import (
    CONFLICT_STRATEGY_KEY,
    WRITER_WINS_OPTIONS,
    conflict_options,
    effective_on_conflict,
)
from lake.model import Concurrency, OnConflict, TableRef

pytestmark = pytest.mark.spark
PROVIDER = "hoodie.write.lock.provider"


def refusal(table: TableRef) -> str:
    with pytest.raises(Rejected) as caught:
        FORMAT.check(table)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["cow", "mor", "plain", "unpartitioned", "levels", "clustered", "logs_only"])
@pytest.mark.crossed
def test_tables_of_version_nine_are_served(templates: Templates, name: str) -> None:
    FORMAT.check(ref(templates.get(name)))


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("hoodie.table.version", "7", "only 6, 8, 9 are supported; upgrade the table"),
        ("hoodie.table.version", "10", "only 6, 8, 9 are supported; upgrade the table"),
        ("hoodie.table.version", None, "upgrade the table"),
        ("hoodie.timeline.layout.version", "1", "an upgrade was interrupted"),
        ("hoodie.table.type", "WRITE_ONLY", "COPY_ON_WRITE and MERGE_ON_READ are supported"),
        ("hoodie.table.format", "iceberg", "its format's tools"),
        ("hoodie.table.base.file.format", "ORC", "only PARQUET is supported"),
        ("hoodie.table.multiple.base.file.formats.enable", "true", "only PARQUET"),
        ("hoodie.bootstrap.base.path", "/elsewhere", "rewrite it as a regular table"),
        ("hoodie.datasource.write.drop.partition.columns", "true", "write the table with false"),
        ("hoodie.index.type", "BUCKET", "leave the table out"),
        ("hoodie.table.metadata.partitions", "files,secondary_index_fare", "drop it with its own writer"),
        ("hoodie.table.metadata.partitions", "files,column_stats", "does not have; have its writer commit once"),
        ("hoodie.table.metadata.partitions.inflight", "column_stats", "or drop the index with its own writer"),
        ("hoodie.table.ordering.fields", "ts,fare", "recreate the table with one"),
        ("hoodie.table.partition.fields", "dt:SIMPLE", "with another key generator"),
    ],
)
def test_a_property_that_is_not_served_is_named_with_its_value_and_a_remedy(
    templates: Templates, tmp_path: Path, key: str, value: str | None, remedy: str
) -> None:
    base = templates.copy("cow", tmp_path / "t")
    edit_properties(base, {key: value})
    text = refusal(ref(base))
    assert key in text
    assert (value or "unset").removeprefix("files,") in text
    assert remedy in text


def test_a_merger_of_the_tables_own_has_to_be_named_as_its_writers_do(templates: Templates, tmp_path: Path) -> None:
    base = templates.copy("mor", tmp_path / "t")
    strategy = "0f5a8e8c-0000-0000-0000-000000000001"
    edit_properties(base, {"hoodie.record.merge.mode": "CUSTOM", "hoodie.record.merge.strategy.id": strategy})
    merger = "hoodie.write.record.merge.custom.implementation.classes"
    text = refusal(ref(base))
    assert strategy in text
    assert f"set write_options {merger} as its writers do" in text
    FORMAT.check(ref(base, write_options={merger: "com.example.OurMerger"}))


def test_a_missing_metadata_table_is_refused_with_the_command_that_rebuilds_it(
    templates: Templates, tmp_path: Path
) -> None:
    base = templates.copy("cow", tmp_path / "t")
    shutil.rmtree(base / ".hoodie/metadata")
    text = refusal(ref(base))
    assert f"hoodie.table.metadata.partitions = files, but {base}/.hoodie/metadata is not a metadata table" in text
    assert "commit once with hoodie.metadata.enable = false" in text
    options = {"hoodie.table.name": "cow", "hoodie.metadata.enable": "false"}
    write(rows(templates.spark, 900, 910), base, "insert", options=options)
    FORMAT.check(ref(base))
    write(rows(templates.spark, 910, 920), base, "insert", options=options | METADATA)
    FORMAT.check(ref(base))
    assert "files" in (base / ".hoodie/hoodie.properties").read_text()


def test_a_metadata_table_that_lacks_a_commit_is_refused(templates: Templates, tmp_path: Path) -> None:
    base = templates.copy("cow", tmp_path / "t")
    past = {"hoodie.metadata.enable": "false", "hoodie.metadata.auto.delete.partitions": "false"}
    write(rows(templates.spark, 900, 910), base, "insert", options=past | {"hoodie.table.name": "cow"})
    text = refusal(ref(base))
    time = timeline_file(base, "*.commit").name.partition("_")[0]
    assert f"the metadata table lacks 1 commits (first: {time})" in text


def test_a_simple_bucket_index_is_recognised_by_the_file_ids_it_writes(templates: Templates) -> None:
    assert "00000000-" in (text := refusal(ref(templates.get("bucket"))))
    assert "bucket index" in text


def test_a_consistent_hashing_index_is_recognised_by_its_metadata(templates: Templates, tmp_path: Path) -> None:
    base = templates.copy("mor", tmp_path / "t")
    (base / ".hoodie/.bucket_index").mkdir()
    assert "bucket index metadata" in refusal(ref(base))


@pytest.mark.parametrize(("name", "value", "word"), [("cow", "false", "dropped"), ("plain", "true", "created")])
def test_a_metadata_table_is_neither_dropped_nor_created_by_an_option(
    templates: Templates, name: str, value: str, word: str
) -> None:
    base = templates.get(name)
    text = refusal(ref(base, write_options={"hoodie.metadata.enable": value}))
    assert f"hoodie.metadata.enable = {value}" in text
    assert f"would be {word}" in text
    FORMAT.check(ref(base, write_options={"hoodie.metadata.enable": "true" if value == "false" else "false"}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hoodie.write.auto.upgrade", "true"),
        ("hoodie.write.table.version", "8"),
        ("hoodie.metadata.auto.delete.partitions", "true"),
        ("hoodie.table.service.manager.enabled", "true"),
        ("hoodie.write.concurrency.mode", "NON_BLOCKING_CONCURRENCY_CONTROL"),
        ("hoodie.index.type", "bucket"),
        ("hoodie.index.type", "FLINK_STATE"),
        ("hoodie.index.type", "HBASE"),
        ("hoodie.index.type", "INMEMORY"),
    ],
)
def test_a_write_option_that_would_harm_the_table_is_refused(templates: Templates, key: str, value: str) -> None:
    text = refusal(ref(templates.get("cow"), write_options={key: value}))
    assert key in text
    assert value.lower() in text.lower()


def test_optimistic_concurrency_needs_the_writers_lock_provider(templates: Templates) -> None:
    base = templates.get("cow")
    assert PROVIDER in (text := refusal(ref(base, concurrency=Concurrency.OCC)))
    assert "single_writer" in text
    in_process = "org.apache.hudi.client.transaction.lock.InProcessLockProvider"
    assert "one JVM" in refusal(ref(base, concurrency=Concurrency.OCC, write_options={PROVIDER: in_process}))
    none = {PROVIDER: "org.apache.hudi.client.transaction.lock.NoopLockProvider"}
    assert "NoopLockProvider locks nothing" in refusal(ref(base, concurrency=Concurrency.OCC, write_options=none))
    single = FS_LOCK | {"hoodie.write.concurrency.mode": "single_writer"}
    assert "contradicts" in refusal(ref(base, concurrency=Concurrency.OCC, write_options=single))
    FORMAT.check(ref(base, concurrency=Concurrency.OCC, write_options=FS_LOCK))


@pytest.mark.parametrize(
    ("provider", "missing"),
    [
        ("lock.ZookeeperBasedLockProvider", ("zookeeper.url", "zookeeper.base_path", "zookeeper.lock_key")),
        ("lock.ZookeeperBasedImplicitBasePathLockProvider", ("zookeeper.url",)),
        ("lock.HiveMetastoreBasedLockProvider", ("hivemetastore.database", "hivemetastore.table")),
    ],
)
def test_a_lock_provider_without_its_settings_is_refused_with_their_names(
    templates: Templates, provider: str, missing: tuple[str, ...]
) -> None:
    base, keys = templates.get("cow"), [f"hoodie.write.lock.{key}" for key in missing]
    text = refusal(ref(base, concurrency=Concurrency.OCC, write_options={PROVIDER: provider}))
    assert f"{provider} needs {' and '.join(keys)}; set them as the writers do" in text
    FORMAT.check(ref(base, concurrency=Concurrency.OCC, write_options={PROVIDER: provider, **dict.fromkeys(keys, "x")}))


def test_on_conflict_and_the_write_options_may_not_contradict_each_other(templates: Templates) -> None:
    def table(on_conflict: OnConflict | None, concurrency: Concurrency = Concurrency.OCC, **options: str) -> TableRef:
        given = {key.replace("__", "."): value for key, value in options.items()}
        return ref(
            templates.get("cow"), concurrency=concurrency, on_conflict=on_conflict, write_options=FS_LOCK | given
        )

    for key in WRITER_WINS_OPTIONS:
        text = refusal(table(OnConflict.WRITER_WINS, **{key.replace(".", "__"): "false"}))
        assert f'write_options {key} = false contradicts on_conflict = "writer_wins"; remove the key' in text
    prefer = {CONFLICT_STRATEGY_KEY.replace(".", "__"): WRITER_WINS_OPTIONS[CONFLICT_STRATEGY_KEY]}
    assert 'contradicts on_conflict = "plan_wins"' in refusal(table(OnConflict.PLAN_WINS, **prefer))
    assert 'needs concurrency = "occ"' in refusal(
        replace(table(OnConflict.WRITER_WINS, Concurrency.SINGLE_WRITER), write_options={})
    )
    stated, named, default = table(OnConflict.WRITER_WINS), table(None, **prefer), table(None)
    for accepted, choice in ((stated, "writer_wins"), (named, "writer_wins"), (default, "plan_wins")):
        FORMAT.check(accepted)
        assert effective_on_conflict(accepted) == choice
    assert conflict_options(stated) == conflict_options(named) == WRITER_WINS_OPTIONS
    assert conflict_options(default) == {}


def test_a_directory_that_is_no_hudi_table_is_named_with_the_missing_file(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    for location in (tmp_path / "bare", tmp_path / "nowhere"):
        assert ".hoodie/hoodie.properties" in (text := refusal(ref(location)))
        assert str(location) in text


@contextmanager
def nobody() -> Iterator[None]:
    """Run as a user without rights: root reads everything, so root steps down for a moment."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("closed", ["", ".hoodie", ".hoodie/timeline"])
def test_a_directory_without_permission_is_named_in_one_line(
    templates: Templates, tmp_path_factory: pytest.TempPathFactory, closed: str
) -> None:
    base = templates.copy("plain", tmp_path_factory.mktemp("closed") / "t")
    parents = [p for p in base.parents if p.name.startswith(("pytest-", "popen-", "closed"))]
    for parent in parents:
        parent.chmod(0o755)
    (base / closed).chmod(0)
    try:
        with nobody():
            text = refusal(ref(base))
            for look in (FORMAT.snapshot, FORMAT.describe):
                with pytest.raises(Rejected, match="permission denied"):
                    look(ref(base))
        assert "permission denied for" in text
        assert f"{base}/{closed}".rstrip("/") in text
    finally:
        (base / closed).chmod(0o755)


def test_tables_are_found_a_few_levels_down_but_not_inside_tables(templates: Templates, tmp_path: Path) -> None:
    cow, mor = templates.copy("cow", tmp_path / "a/b/cow"), templates.copy("mor", tmp_path / "mor")
    edit_properties(mor, {"hoodie.database.name": "trips"})
    shutil.copytree(mor, cow / "inner")
    shutil.copytree(mor, tmp_path / ".trash/mor")
    (tmp_path / "empty").mkdir()
    found = list(FORMAT.discover(str(tmp_path)))
    assert [(t.name, t.format, t.location) for t in found] == [
        ("cow", "hudi", str(cow)),
        ("trips.mor", "hudi", str(mor)),
    ]
    assert [t.location for t in FORMAT.discover(f"file://{tmp_path}/a/")] == [f"file://{cow}"]
    assert list(FORMAT.discover(str(cow))) == found[:1]


def test_a_location_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="no such directory"):
        list(FORMAT.discover(str(tmp_path / "nowhere")))


def test_a_column_of_a_type_that_hudi_rs_does_not_know_is_refused_and_ends_no_process(
    templates: Templates, tmp_path: Path
) -> None:
    base = templates.copy("cow", tmp_path / "t")

    def without_time_zone(record: dict[str, Any]) -> None:
        more = record["extraMetadata"]
        more["schema"] = more["schema"].replace('"timestamp-micros"', '"local-timestamp-micros"')

    edit_avro(timeline_file(base, "*.commit"), without_time_zone)
    with pytest.raises(Rejected, match=r"does not support the type of a column .*; leave the table out"):
        FORMAT.snapshot(ref(base))

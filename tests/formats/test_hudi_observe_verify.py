# SPDX-License-Identifier: Apache-2.0
"""``verify`` and ``describe`` on sound and on damaged tables."""

import json
import os
import re
import shutil
import time
import uuid
from pathlib import Path

import pytest
from hudi_templates import PLAN_ID, Templates, data_files, edit_avro, edit_properties, ref, replace, timeline_file

from lake.errors import Rejected
from lake.formats.hudi import FORMAT
from lake.ports import TableVerification

pytestmark = pytest.mark.spark


def live_files(base: Path) -> dict[str, int]:
    slices = FORMAT.snapshot(ref(base)).slices.to_pylist()
    paths = [row["path"] for row in slices if row["path"]]
    paths += [f"{row['partition']}/{name}" for row in slices for name in row["log_files"]]
    on_disk = data_files(base)
    return {path: on_disk[path] for path in paths}


def found(base: Path, **changes: object) -> TableVerification:
    return FORMAT.verify(ref(base), (), rows=False, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("cow", 600),
        ("clustered", 600),
        ("clustering_pending", 600),
        ("plain", 400),
        ("unpartitioned", 400),
        ("levels", 120),
        ("encoded", 60),
        ("archived", 605),
        ("saved", 600),
        ("mor", 380),
        ("compaction_pending", 380),
        ("compacted", 380),
    ],
)
def test_a_sound_table_shows_no_difference_and_as_many_rows_as_were_written(
    templates: Templates, name: str, rows: int
) -> None:
    base = templates.get(name)
    live = live_files(base)
    assert FORMAT.verify(ref(base), (), rows=True) == TableVerification(
        files=len(live), bytes=sum(live.values()), rows=rows, rows_expected=rows
    )


def test_superseded_files_waiting_for_the_cleaner_are_no_difference(templates: Templates) -> None:
    base = templates.get("clustered")
    commit = FORMAT.find_commit(ref(base), PLAN_ID)
    assert commit is not None
    assert FORMAT.verify(ref(base), commit.superseded, rows=False) == TableVerification(
        files=2, bytes=sum(o.bytes for o in commit.outputs)
    )


@pytest.mark.parametrize("name", ["cow", "plain", "mor"])
def test_a_live_file_that_is_gone_is_missing(templates: Templates, tmp_path: Path, name: str) -> None:
    base = templates.copy(name, tmp_path / "t")
    gone = max(live_files(base))
    (base / gone).unlink()
    assert found(base).missing == (gone,)


def test_rows_of_a_missing_file_are_missing_too(templates: Templates, tmp_path: Path) -> None:
    base = templates.copy("cow", tmp_path / "t")
    (base / max(live_files(base))).unlink()
    result = FORMAT.verify(ref(base), (), rows=True)
    assert (result.rows, result.rows_expected) == (500, 600)


def test_a_log_file_that_is_gone_is_missing(templates: Templates, tmp_path: Path) -> None:
    base = templates.copy("mor", tmp_path / "t")
    gone = next(path for path in live_files(base) if ".log." in path)
    (base / gone).unlink()
    assert found(base).missing == (gone,)


def test_a_file_of_another_size_than_its_commit_wrote_is_named(templates: Templates, tmp_path: Path) -> None:
    base = templates.copy("plain", tmp_path / "t")
    path = min(live_files(base))
    with (base / path).open("ab") as file:
        file.write(b"x")
    assert found(base).wrong_size == (path,)


def test_data_files_without_an_owner_are_listed_and_those_of_a_pending_write_are_not(
    templates: Templates, tmp_path: Path
) -> None:
    base = templates.copy("cow", tmp_path / "t")
    source = base / min(live_files(base))
    committed = source.stem.rpartition("_")[2]
    pending, unknown = "20991231235959999", "20991231235959998"
    (base / f".hoodie/timeline/{pending}.commit.requested").touch()
    names = {time_: f"{uuid.uuid4()}-0_0-1-1_{time_}.parquet" for time_ in (committed, pending, unknown)}
    for name in [*names.values(), "part-0000.parquet"]:
        shutil.copy(source, source.with_name(name))
    (source.parent / "_SUCCESS").touch()
    (source.parent / "notes.txt").touch()
    expected = sorted(f"{source.parent.name}/{n}" for n in (names[committed], names[unknown], "part-0000.parquet"))
    assert found(base).unowned == tuple(expected)


def test_superseded_files_that_are_live_again_are_resurrected(templates: Templates, tmp_path: Path) -> None:
    base = templates.copy("clustered", tmp_path / "t")
    commit = FORMAT.find_commit(ref(base), PLAN_ID)
    assert commit is not None
    edit_avro(
        timeline_file(base, f"{commit.instant}_*.replacecommit"),
        lambda record: record.update(partitionToReplaceFileIds={}),
    )
    result = FORMAT.verify(ref(base), commit.superseded, rows=False)
    assert result.resurrected == tuple(sorted(s.path for s in commit.superseded))
    assert result.unowned == ()


def test_inputs_of_an_undone_commit_are_live_and_its_outputs_unowned(templates: Templates, tmp_path: Path) -> None:
    base = templates.copy("clustered", tmp_path / "t")
    commit = FORMAT.find_commit(ref(base), PLAN_ID)
    assert commit is not None
    for file in (base / ".hoodie/timeline").glob(f"*{commit.instant}*"):
        file.unlink()
    result = FORMAT.verify(ref(base), commit.superseded, rows=False)
    assert result.resurrected == ()
    assert result.unowned == tuple(sorted(o.path for o in commit.outputs))


def test_inputs_that_become_live_again_after_their_clustering_was_archived_are_resurrected(
    templates: Templates, tmp_path: Path
) -> None:
    base = templates.copy("archived", tmp_path / "t")
    before = templates.get("cow")
    # Without the metadata table readers list the storage, as on the table that archived before its files were cleaned.
    shutil.rmtree(base / ".hoodie/metadata")
    edit_properties(base, {"hoodie.table.metadata.partitions": ""})
    for path in data_files(before):
        shutil.copy(before / path, base / path)
    result = FORMAT.verify(ref(base), (), rows=True)
    assert result.resurrected == tuple(sorted(data_files(before)))
    assert (result.rows, result.rows_expected) == (1205, 605)


def test_a_table_that_reads_empty_although_its_commits_wrote_files_is_missing_them_all(
    templates: Templates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = templates.get("cow")
    files = data_files(base)
    monkeypatch.setattr("lake.formats.hudi.audit.verify.list_latest_slices", lambda *_, **__: [])
    assert found(base).missing == tuple(sorted(files))


def test_rows_of_slices_of_logs_only_are_refused_with_a_reason(templates: Templates) -> None:
    base = templates.get("logs_only")
    assert found(base) == TableVerification(files=4, bytes=sum(data_files(base).values()))
    with pytest.raises(Rejected, match="2 file groups have log files only"):
        FORMAT.verify(ref(base), (), rows=True)


def test_describe_prints_type_version_timeline_and_indexes_in_words(templates: Templates, tmp_path: Path) -> None:
    facts = FORMAT.describe(ref(templates.get("clustering_pending")))
    assert facts["type"] == "copy-on-write"
    assert facts["version"].startswith("9 (timeline layout 2")
    assert facts["partitioned by"] == "dt"
    assert facts["record key"] == "id"
    assert facts["timeline"] == "3 commits completed, 1 pending, 0 archived"
    assert facts["pending"].startswith("clustering ")
    assert facts["pending"].partition(", last active")[0].endswith(f" ago (plan {PLAN_ID} of lakefold")
    last = FORMAT.snapshot(ref(templates.get("clustering_pending"))).instant
    assert re.fullmatch(rf"bulk_insert {last}, .+ ago, by another process", facts["last commit"])
    assert facts["services"] == "no clustering or clean on the active timeline"
    assert facts["metadata table"] == "files"
    assert facts["locks"] == facts["savepoints"] == "none"
    assert FORMAT.describe(ref(templates.get("saved")))["savepoints"].endswith(" keeps 6 files")
    assert FORMAT.describe(ref(templates.get("plain")))["metadata table"] == "none"
    indexed = templates.copy("cow", tmp_path / "t")
    edit_properties(indexed, {"hoodie.table.metadata.partitions": "partition_stats,files,column_stats"})
    assert FORMAT.describe(ref(indexed))["metadata table"] == "column_stats, files, partition_stats"


def test_plans_of_other_processes_are_described_as_theirs(templates: Templates, tmp_path: Path) -> None:
    base = templates.copy("compaction_pending", tmp_path / "t")
    requested = timeline_file(base, "*.compaction.requested")
    replace(requested, requested.read_bytes().replace(b"lakefold.plan", b"somebody.plan"))
    facts = FORMAT.describe(ref(base))
    assert facts["pending"].endswith(" ago by another process, not begun")
    assert facts["type"] == "merge-on-read"


def test_dead_work_of_others_is_described_with_the_command_that_takes_it_back(
    templates: Templates, tmp_path: Path
) -> None:
    base = templates.copy("plain", tmp_path / "t")
    for name in ("20260101000000001.commit.requested", "20260101000000001.inflight"):
        (base / ".hoodie/timeline" / name).write_bytes(b"")
    pending = FORMAT.describe(ref(base))["pending"]
    assert re.fullmatch(r"commit 20260101000000001 begun .+ ago by another process, alive .+ ago", pending)
    for file in (base / ".hoodie/timeline").glob("20260101000000001*"):
        os.utime(file, (1e9, 1e9))
    assert "seems dead" in FORMAT.describe(ref(base))["pending"]
    assert FORMAT.describe(ref(base))["pending"].endswith("lakefold tables rollback t 20260101000000001)")


def test_a_lock_left_behind_is_reported_with_its_path_and_age(templates: Templates, tmp_path: Path) -> None:
    base = templates.copy("plain", tmp_path / "t")
    lock = base / ".hoodie/lock"
    lock.touch()
    ten_minutes_ago = time.time() - 600
    os.utime(lock, (ten_minutes_ago, ten_minutes_ago))
    text = FORMAT.describe(ref(base))["locks"]
    assert text.startswith(f"lock file {lock} is 10 min old")
    assert text.endswith(f"rm {lock}")


def test_a_lock_elsewhere_is_found_and_a_released_storage_lock_is_none(templates: Templates, tmp_path: Path) -> None:
    base = templates.copy("plain", tmp_path / "t")
    elsewhere = tmp_path / "locks"
    elsewhere.mkdir()
    (elsewhere / "lock").touch()
    options = {"hoodie.write.lock.filesystem.path": str(elsewhere)}
    assert str(elsewhere / "lock") in FORMAT.describe(ref(base, write_options=options))["locks"]
    storage_lock = base / ".hoodie/.locks/table_lock.json"
    storage_lock.parent.mkdir(exist_ok=True)
    storage_lock.write_text(json.dumps({"expired": True}))
    assert FORMAT.describe(ref(base))["locks"] == "none"
    storage_lock.write_text(json.dumps({"expired": False}))
    assert str(storage_lock) in FORMAT.describe(ref(base))["locks"]

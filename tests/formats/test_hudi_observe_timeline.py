# SPDX-License-Identifier: Apache-2.0
"""The pure reader of the timeline: names, properties, times. Real plans are read in the other modules."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lake.errors import Rejected, Transient
from lake.formats.hudi.names import data_file, log_order
from lake.formats.hudi.storage import Storage, parse_properties, table_properties
from lake.formats.hudi.timeline import InstantState, Timeline, decode, instant_datetime, planned_slices

T1, T2, T3, T4 = (f"202601010000{n:02}000" for n in range(1, 5))


def table(base: Path, *names: str, **properties: str) -> Storage:
    """A directory whose timeline has empty files of these names."""
    timeline = base / ".hoodie/timeline"
    timeline.mkdir(parents=True)
    for name in names:
        (timeline / name).touch()
    lines = [f"{key.replace('__', '.')}={value}" for key, value in properties.items()]
    (base / ".hoodie/hoodie.properties").write_text("\n".join(["#comment", "hoodie.table.name=t", *lines]))
    return Storage(str(base))


def test_instants_are_put_together_from_their_files_sorted_by_time(tmp_path: Path) -> None:
    timeline = Timeline(
        table(
            tmp_path,
            f"{T2}.clustering.requested",
            f"{T2}.clustering.inflight",
            f"{T2}_{T3}.replacecommit",
            f"{T1}.commit.requested",
            f"{T1}.inflight",
            f"{T3}.compaction.requested",
            f"{T4}.deltacommit.requested",
            f"{T4}.deltacommit.inflight",
            f".{T4}.deltacommit.inflight.crc",
            "something.else",
        )
    )
    assert [(i.time, i.kind, i.action, i.state, i.completed_at) for i in timeline.instants] == [
        (T1, "commit", "commit", InstantState.INFLIGHT, None),
        (T2, "clustering", "replacecommit", InstantState.COMPLETED, T3),
        (T3, "compaction", "commit", InstantState.REQUESTED, None),
        (T4, "deltacommit", "deltacommit", InstantState.INFLIGHT, None),
    ]
    assert timeline.newest == T2
    assert [i.time for i in timeline.pending] == [T1, T3, T4]


def test_a_savepoint_shares_the_time_of_its_commit_without_hiding_it(tmp_path: Path) -> None:
    timeline = Timeline(table(tmp_path, f"{T1}_{T2}.commit", f"{T1}.savepoint.inflight", f"{T1}_{T3}.savepoint"))
    commit, savepoint = timeline.find(T1), timeline.find(T1, action="savepoint")
    assert commit is not None
    assert savepoint is not None
    assert (commit.action, savepoint.action) == ("commit", "savepoint")
    assert timeline.find(T2) is None


def test_commits_are_ordered_by_completion_and_the_newest_by_its_own_time(tmp_path: Path) -> None:
    timeline = Timeline(table(tmp_path, f"{T1}_{T4}.commit", f"{T2}_{T3}.commit", f"{T3}_{T4}.clean"))
    assert [i.time for i in timeline.commits] == [T2, T1]
    assert timeline.newest == T2


def test_a_timeline_elsewhere_is_found_through_the_properties(tmp_path: Path) -> None:
    storage = table(tmp_path, hoodie__timeline__path="tl")
    (tmp_path / ".hoodie/tl").mkdir()
    (tmp_path / f".hoodie/tl/{T1}_{T2}.commit").touch()
    assert Timeline(storage).newest == T1


def test_an_empty_timeline_has_no_instant(tmp_path: Path) -> None:
    timeline = Timeline(table(tmp_path))
    assert (timeline.instants, timeline.newest, list(timeline.archived())) == ((), "", [])


def test_times_follow_the_timelines_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "XXX+5")
    time.tzset()
    try:
        assert instant_datetime("20260102030405678", "utc") == datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
        assert instant_datetime("20260102030405678", "LOCAL") == datetime(2026, 1, 2, 8, 4, 5, 678000, UTC)
        assert instant_datetime("20260102030405", "UTC") == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_bootstrap_instant_that_is_no_time_counts_as_the_epoch() -> None:
    assert instant_datetime("00000000000001", "UTC") == datetime(1970, 1, 1, tzinfo=UTC)


def test_file_names_tell_group_instant_and_log_version() -> None:
    base = data_file("a=1/b=2/f1c-0_3-20-31_20260101000001000.parquet")
    log = data_file(".f_1c-0_20260101000002000.log.12_0-1-2")
    change_data = data_file("p/.f1c-0_20260101000002000.log.1_0-1-2-cdc")
    assert base is not None
    assert log is not None
    assert change_data is not None
    assert (base.group, base.instant, base.is_log) == (("a=1/b=2", "f1c-0"), T1, False)
    assert (log.group, log.instant, log.is_log, log.log_version) == (("", "f_1c-0"), T2, True, 12)
    assert (log.is_cdc, change_data.is_cdc) == (False, True)
    assert data_file("p/part-0000.parquet") is None
    assert data_file("p/_SUCCESS") is None


def test_log_files_are_ordered_by_instant_then_version_as_a_number() -> None:
    names = [f".f-0_{t}.log.{v}_0-1-1" for t, v in ((T2, 1), (T1, 10), (T1, 9))]
    assert sorted(names, key=log_order) == [names[2], names[1], names[0]]


def test_plan_paths_become_file_names_whatever_scheme_they_have() -> None:
    clustering = {
        "clusteringPlan": {
            "inputGroups": [
                {
                    "slices": [
                        {
                            "dataFilePath": "file:/x/t/p=1/a.parquet",
                            "deltaFilePaths": ["hdfs://n/t/p=1/.l"],
                            "fileId": "a",
                            "partitionPath": "p=1",
                        },
                        {"dataFilePath": "", "deltaFilePaths": None, "fileId": "b", "partitionPath": ""},
                    ]
                }
            ]
        }
    }
    first, second = planned_slices(clustering)
    assert first.paths == ("p=1/a.parquet", "p=1/.l")
    assert (second.base, second.paths) == (None, ())
    assert list(planned_slices({"operations": None})) == []


def test_json_and_empty_timeline_files_are_understood_and_torn_ones_are_transient() -> None:
    assert decode(b"") is None
    assert decode(json.dumps({"a": 1}).encode()) == {"a": 1}
    for torn in (b"Obj\x01\x02", b"{", b"\x00\xff"):
        with pytest.raises(Transient, match="can't be decoded"):
            decode(torn)


def test_properties_are_read_with_their_escapes() -> None:
    text = "# c\n! c\n\nhoodie.a=b\\=c\\:d\n  x = y \nempty=\n"
    assert parse_properties(text) == {"hoodie.a": "b=c:d", "x": "y", "empty": ""}


def test_the_backup_is_read_while_hudi_replaces_the_properties(tmp_path: Path) -> None:
    storage = table(tmp_path)
    properties = tmp_path / ".hoodie/hoodie.properties"
    properties.rename(properties.with_name("hoodie.properties.backup"))
    assert table_properties(storage)["hoodie.table.name"] == "t"


def test_a_location_is_a_path_or_a_file_uri_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a b").mkdir()
    monkeypatch.chdir(tmp_path)
    bases = {Storage(f"{scheme}{tmp_path}/a b/").base for scheme in ("", "file:", "file://")} | {Storage("a b").base}
    assert bases == {f"{tmp_path}/a b"}
    with pytest.raises(Rejected, match="scheme 's3' is not served"):
        Storage("s3://bucket/t")

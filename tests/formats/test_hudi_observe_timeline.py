# SPDX-License-Identifier: Apache-2.0
"""The pure reader of the timeline: names, properties, times. Real plans are read in the other modules."""

import io
import json
import os
import struct
import time
from datetime import UTC, datetime
from pathlib import Path

import fastavro
import pytest

from lake.errors import Rejected, Transient
from lake.formats.hudi.files.names import log_sort_key, parse_file_name
from lake.formats.hudi.files.storage import TableStorage, parse_properties, read_table_properties
from lake.formats.hudi.read.restores import find_start_without_overlaps
from lake.formats.hudi.timeline.records import decode_record, read_log_records
from lake.formats.hudi.timeline.timeline import InstantState, Timeline, instant_datetime, planned_slices

T1, T2, T3, T4 = (f"202601010000{n:02}000" for n in range(1, 5))


def table(base: Path, *names: str, **properties: str) -> TableStorage:
    """A directory whose timeline has empty files of these names."""
    timeline = base / ".hoodie/timeline"
    timeline.mkdir(parents=True)
    for name in names:
        (timeline / name).touch()
    lines = [f"{key.replace('__', '.')}={value}" for key, value in properties.items()]
    (base / ".hoodie/hoodie.properties").write_text("\n".join(["#comment", "hoodie.table.name=t", *lines]))
    return TableStorage(str(base))


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
    assert timeline.newest_commit_time == T2
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
    assert timeline.newest_commit_time == T2


def test_layout_one_takes_completion_times_from_files(tmp_path: Path) -> None:
    storage = table(tmp_path, hoodie__timeline__layout__version="1", hoodie__table__timeline__timezone="UTC")
    names = [
        f"{T1}.commit",
        f"{T1}.inflight",
        f"{T1}.commit.requested",
        f"{T2}.replacecommit.requested",
        f"{T2}.replacecommit.inflight",
        f"{T3}.compaction.requested",
        f"{T4}.commit",
        f"{T4}.compaction.requested",
        "hoodie.properties.backup",
    ]
    for name in names:
        (tmp_path / ".hoodie" / name).touch()
    completed = datetime(2026, 3, 4, 5, 6, 7, 890000, UTC).timestamp()
    os.utime(tmp_path / f".hoodie/{T1}.commit", (completed, completed))
    os.utime(tmp_path / f".hoodie/{T4}.commit", (completed - 9, completed - 9))
    timeline = Timeline(storage)
    assert [(i.time, i.kind, i.action, i.state) for i in timeline.instants] == [
        (T1, "commit", "commit", InstantState.COMPLETED),
        (T2, "replacecommit", "replacecommit", InstantState.INFLIGHT),
        (T3, "compaction", "commit", InstantState.REQUESTED),
        (T4, "compaction", "commit", InstantState.COMPLETED),
    ]
    assert timeline.instants[0].completed_at == "20260304050607890"
    assert [i.time for i in timeline.commits] == [T1, T4], "the times of files do not survive a copy"
    assert timeline.newest_commit_time == T4


def _log_block(records: list[dict[str, object]], schema: dict[str, object]) -> bytes:
    """A block of Hudi's log format as its archiver writes it."""

    def sized(content: bytes) -> bytes:
        return struct.pack(">i", len(content)) + content

    def encoded(record: dict[str, object]) -> bytes:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), record)
        return buffer.getvalue()

    content = struct.pack(">ii", 3, len(records)) + b"".join(sized(encoded(record)) for record in records)
    header = struct.pack(">ii", 1, 2) + sized(json.dumps(schema).encode())
    body = struct.pack(">ii", 1, 3) + header + struct.pack(">q", len(content)) + content + struct.pack(">i", 0)
    return b"#HUDI#" + struct.pack(">q", len(body) + 8) + body + struct.pack(">q", len(body) + 14)


def test_a_block_of_the_archive_that_a_crash_cut_short_is_passed_over() -> None:
    schema: dict[str, object] = {"type": "record", "name": "r", "fields": [{"name": "n", "type": "int"}]}
    first, second = (_log_block([{"n": n}, {"n": n + 1}], schema) for n in (1, 3))
    assert [r.decode() for r in read_log_records(first + second)] == [{"n": n} for n in range(1, 5)]
    for cut in range(1, len(second)):
        assert [r.decode() for r in read_log_records(first + second[:cut])] == [{"n": 1}, {"n": 2}]
        assert [r.decode() for r in read_log_records(second[:cut] + first)] == [{"n": 1}, {"n": 2}]
    assert list(read_log_records(b"")) == []


def _archived(time: str, kind: str, state: str, **parts: object) -> dict[str, object]:
    return {"commitTime": time, "actionType": kind, "actionState": state, "stateTransitionTime": T4} | parts


def test_the_archive_of_layout_one_puts_an_instant_together_from_records_in_several_files(tmp_path: Path) -> None:
    storage = table(tmp_path, hoodie__timeline__layout__version="1", hoodie__archivelog__folder="old")
    extra = {"name": "extraMetadata", "type": {"type": "map", "values": "string"}}

    def optional(name: str) -> dict[str, object]:
        return {
            "name": name,
            "type": ["null", {"type": "record", "name": f"r{name}", "fields": [extra]}],
            "default": None,
        }

    texts = ("commitTime", "actionType", "actionState", "stateTransitionTime")
    records = ("hoodieRequestedReplaceMetadata", "hoodieReplaceCommitMetadata", "hoodieCommitMetadata")
    fields: list[dict[str, object]] = [{"name": name, "type": ["null", "string"]} for name in texts]
    schema: dict[str, object] = {"type": "record", "name": "entry", "fields": fields + [optional(n) for n in records]}
    (tmp_path / ".hoodie/old").mkdir()
    first = [
        _archived(T1, "commit", "REQUESTED"),
        _archived(T1, "commit", "COMPLETED", hoodieCommitMetadata={"extraMetadata": {"schema": "s"}}),
        _archived(T2, "replacecommit", "REQUESTED", hoodieRequestedReplaceMetadata={"extraMetadata": {"id": "ours"}}),
    ]
    second = [
        _archived(T2, "replacecommit", "INFLIGHT"),
        _archived(T2, "replacecommit", "COMPLETED", hoodieReplaceCommitMetadata={"extraMetadata": {"schema": "s2"}}),
        _archived(T3, "commit", "INFLIGHT"),
    ]
    for number, entries in enumerate((first, second), 1):
        name = f".commits_.archive.{number}_1-0-1"
        (tmp_path / ".hoodie/old" / name).write_bytes(_log_block(entries, schema))
    timeline = Timeline(storage)
    newer, older = timeline.archived()
    assert (newer.time, newer.action, newer.completed_at) == (T2, "replacecommit", T4)
    assert (newer.plan, newer.metadata) == ({"extraMetadata": {"id": "ours"}}, {"extraMetadata": {"schema": "s2"}})
    assert (older.time, older.plan, older.metadata) == (T1, None, {"extraMetadata": {"schema": "s"}})
    assert list(timeline.archived(containing=b"ours")) == [newer]
    assert list(timeline.archived(containing=b"theirs")) == []
    assert [a.time for a in timeline.archived({"commit"})] == [T1]
    assert [(a.time, a.plan, a.metadata) for a in timeline.archived(times={T2}, plans=False, metadata=False)] == [
        (T2, None, None)
    ]


def test_a_timeline_elsewhere_is_found_through_the_properties(tmp_path: Path) -> None:
    storage = table(tmp_path, hoodie__timeline__path="tl")
    (tmp_path / ".hoodie/tl").mkdir()
    (tmp_path / f".hoodie/tl/{T1}_{T2}.commit").touch()
    assert Timeline(storage).newest_commit_time == T1


def test_an_empty_timeline_has_no_instant(tmp_path: Path) -> None:
    timeline = Timeline(table(tmp_path))
    assert (timeline.instants, timeline.newest_commit_time, list(timeline.archived())) == ((), "", [])


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


def test_file_names_contain_group_and_instant() -> None:
    base = parse_file_name("a=1/b=2/f1c-0_3-20-31_20260101000001000.parquet")
    log = parse_file_name(".f_1c-0_20260101000002000.log.12_0-1-2")
    change_data = parse_file_name("p/.f1c-0_20260101000002000.log.1_0-1-2-cdc")
    assert base is not None
    assert log is not None
    assert change_data is not None
    assert (base.group_id, base.instant, base.is_log) == (("a=1/b=2", "f1c-0"), T1, False)
    assert (log.group_id, log.instant, log.is_log) == (("", "f_1c-0"), T2, True)
    assert (log.is_cdc, change_data.is_cdc) == (False, True)
    assert parse_file_name("p/part-0000.parquet") is None
    assert parse_file_name("p/_SUCCESS") is None


def test_log_files_are_ordered_by_instant_then_version_as_a_number() -> None:
    names = [f".f-0_{t}.log.{v}_0-1-1" for t, v in ((T2, 1), (T1, 10), (T1, 9))]
    assert sorted(names, key=log_sort_key) == [names[2], names[1], names[0]]


def test_plan_paths_of_every_scheme_become_file_names() -> None:
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
    assert decode_record(b"") is None
    assert decode_record(json.dumps({"a": 1}).encode()) == {"a": 1}
    for torn in (b"Obj\x01\x02", b"{", b"\x00\xff"):
        with pytest.raises(Transient, match="can't be decoded"):
            decode_record(torn)


def test_properties_are_read_with_their_escapes() -> None:
    text = "# c\n! c\n\nhoodie.a=b\\=c\\:d\n  x = y \nempty=\n"
    assert parse_properties(text) == {"hoodie.a": "b=c:d", "x": "y", "empty": ""}


def test_the_backup_is_read_while_hudi_replaces_the_properties(tmp_path: Path) -> None:
    storage = table(tmp_path)
    properties = tmp_path / ".hoodie/hoodie.properties"
    properties.rename(properties.with_name("hoodie.properties.backup"))
    assert read_table_properties(storage)["hoodie.table.name"] == "t"


@pytest.mark.parametrize("written", ["", "#Updated at 2026-11-29T09:01:05Z\n", "hoodie.table.name=t\nhoodie.table.ver"])
def test_properties_that_a_writer_has_not_yet_written_whole_are_read_from_the_backup(
    tmp_path: Path, written: str
) -> None:
    storage = table(tmp_path, hoodie__table__version="6")
    properties = tmp_path / ".hoodie/hoodie.properties"
    properties.with_name("hoodie.properties.backup").write_text(properties.read_text() + "\n")
    properties.write_text(written)
    assert read_table_properties(storage)["hoodie.table.version"] == "6"


def test_properties_that_an_owner_edited_count_more_than_the_backup_of_a_dead_writer(tmp_path: Path) -> None:
    """The owner's editor wrote no end of the last line, which a writer's unfinished file may lack too."""
    storage = table(tmp_path, hoodie__table__version="6")
    properties = tmp_path / ".hoodie/hoodie.properties"
    backup = properties.with_name("hoodie.properties.backup")
    backup.write_text(properties.read_text() + "\n")
    properties.write_text(properties.read_text().replace("version=6", "version=8"))
    died = properties.stat().st_mtime - 3600
    os.utime(backup, (died, died))
    assert read_table_properties(storage)["hoodie.table.version"] == "8"
    os.utime(properties, (died + 1, died + 1))
    assert read_table_properties(storage)["hoodie.table.version"] == "6", "the writer may have died while it wrote"


def test_properties_without_any_content_are_read_again_later_and_refuse_nothing(tmp_path: Path) -> None:
    storage = table(tmp_path, hoodie__table__version="6")
    (tmp_path / ".hoodie/hoodie.properties").write_text("")
    with pytest.raises(Transient, match=r"lacks hoodie\.table\.name, .*: a writer is replacing the file"):
        read_table_properties(storage)


@pytest.mark.slow
def test_a_location_is_a_path_or_a_file_uri_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a b").mkdir()
    monkeypatch.chdir(tmp_path)
    bases = {TableStorage(f"{scheme}{tmp_path}/a b/").base for scheme in ("", "file:", "file://")} | {
        TableStorage("a b").base
    }
    assert bases == {f"{tmp_path}/a b"}
    with pytest.raises(Rejected, match="scheme 'gs' is not supported"):
        TableStorage("gs://name/t")


OVERLAP = [(10, 60), (30, 40), (70, 80)]
TWO_OVERLAPS = [(10, 60), (30, 90), (50, 55), (70, 80)]
MANY_OVERLAPS = [pair for n in range(10, 110, 10) for pair in ((n, n + 18), (n + 12, n + 15))]


@pytest.mark.parametrize(
    ("commits", "start", "found"),
    [
        ([(10, 20), (30, 40)], 30, None),
        (OVERLAP, 10, 10),
        (OVERLAP, 30, 10),
        (OVERLAP, 70, None),
        (TWO_OVERLAPS, 70, 10),
        (MANY_OVERLAPS, 112, None),
    ],
)
def test_a_clean_waits_for_the_end_of_the_overlaps_before_its_start_unless_they_are_many(
    tmp_path: Path, commits: list[tuple[int, int]], start: int, found: int | None
) -> None:
    """Each commit is given by its request and its completion."""

    def at(second: int) -> str:
        return f"2026010100{second // 60:02}{second % 60:02}000"

    timeline = Timeline(table(tmp_path, *(f"{at(begun)}_{at(done)}.commit" for begun, done in commits)))
    assert find_start_without_overlaps(timeline, at(start)) == (None if found is None else at(found))

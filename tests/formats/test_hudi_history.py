# SPDX-License-Identifier: Apache-2.0
"""What the commits say, added up: archived ones once, however often the archive grows and however much they wrote."""

import json
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hudi_by_hand import PROPERTIES, T1, T2, T3, T4, T5, ByHand
from hudi_templates import ref

from lake.formats.hudi import FORMAT
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.timeline import file_history
from lake.formats.hudi.timeline.archive import ArchivedInstant
from lake.formats.hudi.timeline.file_history import FileHistory, active_history, add_archived
from lake.formats.hudi.timeline.timeline import Timeline
from lake.plan import SupersededVersion

LAYOUT_TWO = PROPERTIES | {"hoodie.table.version": "8", "hoodie.timeline.layout.version": "2"}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Times of the archived commits of which more than the time was read."""
    times: list[str] = []
    archived: Callable[..., Iterator[ArchivedInstant]] = Timeline.archived

    def watched(self: Timeline, actions: Collection[str], **more: Any) -> Iterator[ArchivedInstant]:
        for entry in archived(self, actions, **more):
            if more.get("metadata", True):
                times.append(entry.time)
            yield entry

    monkeypatch.setattr(Timeline, "archived", watched)
    return times


def archive(table: Path, *commits: tuple[str, str, dict[str, list[str]]]) -> None:
    """One file of the archive with these commits: time, name of the base file, replaced file ids by partition."""
    folder = table / ".hoodie/timeline/history"
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for time, name, replaced in commits:
        stat = {"fileId": name.partition("_")[0], "path": f"p/{name}", "fileSizeInBytes": 10}
        record = {"partitionToWriteStats": {"p": [stat]}, "partitionToReplaceFileIds": replaced}
        action = "replacecommit" if replaced else "commit"
        rows.append({"instantTime": time, "completionTime": time, "action": action, "plan": None})
        rows[-1]["metadata"] = json.dumps(record).encode()
    times = [row["instantTime"] for row in rows]
    pq.write_table(pa.Table.from_pylist(rows), folder / f"{min(times)}_{max(times)}_0.parquet")


def look(table: Path) -> FileHistory:
    timeline = Timeline(TableStorage(str(table)))
    return add_archived(timeline, active_history(timeline))


def live(found: FileHistory) -> set[tuple[str, str]]:
    return {
        (group[1], str(e.base.instant))
        for group in found.live_groups()
        if (e := found.expected_slice(group)) and e.base
    }


def test_only_new_commits_of_a_grown_archive_are_read(tmp_path: Path, read: list[str]) -> None:
    table = ByHand(tmp_path / "t", LAYOUT_TWO).base
    archive(table, (T1, f"a_0_{T1}.parquet", {}), (T2, f"b_0_{T2}.parquet", {}))
    before = look(table)
    assert read == [T2, T1]
    archive(table, (T3, f"c_0_{T3}.parquet", {"p": ["a"]}))
    assert live(look(table)) == {("b", T2), ("c", T3)}
    assert read == [T2, T1, T3]
    assert live(before) == {("a", T1), ("b", T2)}, "who looked before keeps what he saw"
    for file in (table / ".hoodie/timeline/history").iterdir():
        file.unlink()
    archive(  # merged by Hudi into one file, in which there is one more
        table,
        (T1, f"a_0_{T1}.parquet", {}),
        (T2, f"b_0_{T2}.parquet", {}),
        (T3, f"c_0_{T3}.parquet", {"p": ["a"]}),
        (T4, f"b_0_{T4}.parquet", {}),
    )
    assert live(look(table)) == {("b", T4), ("c", T3)}
    assert read == [T2, T1, T3, T4]


def test_the_archive_of_a_table_recreated_at_the_same_location_is_read_as_a_whole(
    tmp_path: Path, read: list[str]
) -> None:
    table = ByHand(tmp_path / "t", LAYOUT_TWO).base
    archive(table, (T1, f"a_0_{T1}.parquet", {}))
    look(table)
    for file in (table / ".hoodie/timeline/history").iterdir():
        file.unlink()
    archive(table, (T2, f"b_0_{T2}.parquet", {}), (T5, f"c_0_{T5}.parquet", {}))
    assert live(look(table)) == {("b", T2), ("c", T5)}
    assert read == [T1, T5, T2]


def test_the_sum_of_a_table_with_more_files_than_are_kept_is_read_once(
    tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_history._archived_cache, "_capacity", 1)
    table = ByHand(tmp_path / "t", LAYOUT_TWO).base
    archive(table, (T1, f"a_0_{T1}.parquet", {}), (T2, f"b_0_{T2}.parquet", {}))
    assert live(look(table)) == live(look(table)) == {("a", T1), ("b", T2)}
    assert read == [T2, T1]


def test_a_log_of_layout_one_to_which_an_unfinished_write_has_appended_is_not_damaged(tmp_path: Path) -> None:
    table = ByHand(tmp_path / "t")
    base, log = table.base_file(T1), table.log_file(T1, 1)
    table.complete(T1, "commit", base)
    table.complete(T2, "deltacommit", log)
    file = table.base / "p" / log
    written = file.read_bytes()
    file.write_bytes(written + b"#HUDI# of a write that failed")
    assert FORMAT.snapshot(ref(table.base)).damaged == ()
    file.write_bytes(written[:-1])
    (damage,) = FORMAT.snapshot(ref(table.base)).damaged
    assert damage.path == f"p/{log}"


def test_a_damaged_table_with_continuous_writers_is_still_scanned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ByHand(tmp_path / "t")
    base, lost = table.base_file(T1), table.base_file(T1, "p/f-1")
    table.complete(T1, "commit", base, lost)
    (table.base / "p" / lost).unlink()
    monkeypatch.setattr("lake.formats.hudi.audit.damage.is_timeline_current", lambda _: False)
    (damage,) = FORMAT.snapshot(ref(table.base)).damaged
    assert damage.path == f"p/{lost}"


def test_deletions_of_other_cleaners_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = ByHand(tmp_path / "t")
    base = table.base_file(T1)
    table.complete(T1, "commit", base)
    table.complete(T2, "replacecommit", table.base_file(T2, "p/f-1"))
    clean = {"partitionMetadata": {"p": {"successDeleteFiles": [base]}}}
    (table.base / f".hoodie/{T3}.clean").write_text(json.dumps(clean))
    (table.base / "p" / base).unlink()
    waiting = [SupersededVersion(partition="p", path=f"p/{base}", bytes=10, instant=T2)]
    found = FORMAT.obsolete_deletions(ref(table.base), waiting)
    assert found == {0: f"deleted by the table's own clean {T3}"}
    read: list[str] = []
    monkeypatch.setattr(TableStorage, "read", _watched(TableStorage.read, read))
    assert FORMAT.obsolete_deletions(ref(table.base), waiting) == found
    assert not [path for path in read if path.endswith(".clean")]


def _watched(method: Callable[[TableStorage, str], bytes], seen: list[str]) -> Callable[[TableStorage, str], bytes]:
    def read(self: TableStorage, relative: str) -> bytes:
        seen.append(relative)
        return method(self, relative)

    return read

# SPDX-License-Identifier: Apache-2.0
"""Tables whose archived timeline has lost its newest files: deleted, or not restored with the rest of a backup."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hudi_templates import replace
from hudi_writing import ARCHIVING, FORMAT, Table, delete, ignore, insert

from lake.formats.hudi.pending.late_files import record_path
from lake.formats.hudi.rewrite import execute

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("nothing_unseen")]
VERSIONS = {"6": {"hoodie.write.table.version": "6", "hoodie.write.auto.upgrade": "false"}, "9": {}}


def archived_times(trips: Table) -> set[str]:
    return {entry.time for entry in trips.timeline().archived(plans=False, metadata=False)}


def lose_archive_from(trips: Table, instant: str) -> None:
    """Delete the newest files of the archive, down to the file with ``instant`` or with newer instants."""
    timeline = trips.timeline()
    directory = Path(trips.base) / timeline.archive_directory
    while max(archived_times(trips)) >= instant:
        if timeline.layout == 1:
            max(
                directory.glob(".commits_.archive.*"), key=lambda file: int(file.name.split(".")[3].split("_")[0])
            ).unlink()
            continue
        manifest = directory / f"manifest_{(directory / '_version_').read_text().strip()}"
        listed = json.loads(manifest.read_text())
        listed["files"].remove(max(listed["files"], key=lambda entry: entry["fileName"].split("_")[1]))
        replace(manifest, json.dumps(listed).encode())
    assert archived_times(trips), "older files are left"


def archive_past(trips: Table, instant: str) -> None:
    """Insert until no commit up to ``instant`` is on the active timeline."""
    for number in range(8):
        insert(trips, 1, start=2000 + 2 * number)
        if min(commit.time for commit in trips.timeline().commits) > instant:
            return
    raise AssertionError(trips.timeline().instants)


def sweep(trips: Table, instant: str) -> list[str]:
    """Sweep a minute after the last action on ``instant``; return the deleted files."""
    then = time.time() - 60
    os.utime(Path(trips.base) / record_path(instant), (then, then))
    with trips.writer() as writer:
        return list(writer.remove_straggler_files(FORMAT.instants_with_stragglers(trips.ref)))


@pytest.mark.parametrize("version", VERSIONS)
def test_no_file_of_a_commit_is_deleted_if_the_archive_has_lost_the_commit_and_no_record_shows_it(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    trips = Table(spark, tmp_path / "trips", ARCHIVING | VERSIONS[version])
    insert(trips, 3, start=0)
    monkeypatch.setattr(execute, "record_commit", lambda *_: None)  # the executor is killed right after its commit
    done = trips.run(trips.plan())
    insert(trips, 1)
    delete(trips, done)
    archive_past(trips, done.instant)
    lose_archive_from(trips, done.instant)
    before = trips.rows()
    assert sweep(trips, done.instant) == []
    assert trips.files_of(done.instant) == {output.path for output in done.outputs}
    assert trips.rows() == before


@pytest.mark.parametrize("version", VERSIONS)
def test_the_sweep_records_a_commit_that_its_executor_did_not_record(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    trips = Table(spark, tmp_path / "trips", ARCHIVING | VERSIONS[version])
    insert(trips, 3, start=0)
    monkeypatch.setattr(execute, "record_commit", lambda *_: None)
    done = trips.run(trips.plan())
    record = Path(trips.base) / record_path(done.instant)
    assert not json.loads(record.read_text())["committed"]
    assert sweep(trips, done.instant) == []
    assert json.loads(record.read_text())["committed"]
    assert FORMAT.instants_with_stragglers(trips.ref) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_late_files_of_a_withdrawn_plan_are_deleted_although_the_archive_has_lost_its_newest_file(
    spark: Any, tmp_path: Path, version: str
) -> None:
    trips = Table(spark, tmp_path / "trips", ARCHIVING | VERSIONS[version])
    insert(trips, 3, start=0)
    with trips.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(trips.plan(), 1), ignore)
        late = {output.path: (Path(trips.base) / output.path).read_bytes() for output in rewrite.outputs}
        assert writer.withdraw(rewrite.prepared.plan.plan_id, None) == 1
    instant = rewrite.prepared.instant
    archive_past(trips, instant)
    lose_archive_from(trips, instant)
    before = trips.rows()
    for path, content in late.items():
        (Path(trips.base) / path).write_bytes(content)
    assert len(trips.rows()) == len(before) + 6, "readers take the files for archived ones"
    assert set(sweep(trips, instant)) == late.keys()
    assert trips.rows() == before

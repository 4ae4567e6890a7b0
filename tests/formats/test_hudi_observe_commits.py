# SPDX-License-Identifier: Apache-2.0
"""Looking up our commits and judging superseded files on real timelines."""

import shutil
from pathlib import Path

import pytest
from hudi_templates import COMPACTION_ID, PLAN_ID, Templates, data_files, edit_avro, ref, timeline_file

from lake.formats.hudi import FORMAT
from lake.formats.hudi.files.storage import TableStorage
from lake.formats.hudi.timeline.timeline import PLAN_KEY, Timeline, extra_metadata
from lake.plan import SupersededVersion

pytestmark = pytest.mark.spark


def version(base: Path, path: str, instant: str) -> SupersededVersion:
    return SupersededVersion(partition=path.rpartition("/")[0], path=path, bytes=0, instant=instant)


def test_a_completed_clustering_is_found_by_the_plan_id_in_its_requested_file(templates: Templates) -> None:
    base = templates.get("clustered")
    commit = FORMAT.find_commit(ref(base), PLAN_ID)
    assert commit is not None
    on_disk, inputs = data_files(base), data_files(templates.get("cow"))
    outputs = {path: size for path, size in on_disk.items() if path not in inputs}
    assert {o.path: o.bytes for o in commit.outputs} == outputs
    assert sorted((o.partition, o.rows) for o in commit.outputs) == [("dt=2026-01-01", 300), ("dt=2026-01-02", 300)]
    assert {s.path: s.bytes for s in commit.superseded} == inputs
    assert {s.partition for s in commit.superseded} == {"dt=2026-01-01", "dt=2026-01-02"}
    assert {s.instant for s in commit.superseded} == {commit.instant}
    assert timeline_file(base, "*.replacecommit").name.startswith(commit.instant)


def test_a_completed_compaction_supersedes_base_and_log_files(templates: Templates) -> None:
    base = templates.get("compacted")
    commit = FORMAT.find_commit(ref(base), COMPACTION_ID)
    assert commit is not None
    inputs = data_files(templates.get("mor"))
    assert any(".log." in path for path in inputs)
    assert {s.path: s.bytes for s in commit.superseded} == inputs
    outputs = {path: size for path, size in data_files(base).items() if path not in inputs}
    assert {o.path: o.bytes for o in commit.outputs} == outputs


@pytest.mark.parametrize(("name", "plan_id"), [("clustering_pending", PLAN_ID), ("compaction_pending", COMPACTION_ID)])
def test_a_pending_plan_is_no_commit_but_is_named_as_pending(templates: Templates, name: str, plan_id: str) -> None:
    base = templates.get(name)
    assert FORMAT.find_commit(ref(base), plan_id) is None
    instant = timeline_file(base, "*.requested").name.partition(".")[0]
    assert FORMAT.pending_instants(ref(base)) == {instant: plan_id}
    assert FORMAT.pending_instants(ref(templates.get("cow"))) == {}


def test_an_unknown_plan_id_is_no_commit(templates: Templates) -> None:
    for name in ("clustered", "archived"):
        assert FORMAT.find_commit(ref(templates.get(name)), PLAN_ID[:-1] + "f") is None


def test_an_archived_clustering_is_found_in_the_history(templates: Templates) -> None:
    base = templates.get("archived")
    assert not list((base / ".hoodie/timeline").glob("*.replacecommit"))
    commit = FORMAT.find_commit(ref(base), PLAN_ID)
    before = FORMAT.find_commit(ref(templates.get("clustered")), PLAN_ID)
    assert commit is not None
    assert before is not None
    assert (commit.instant, commit.outputs) == (before.instant, before.outputs)
    # The cleaner removed the inputs meanwhile, so their sizes are not known any more.
    assert [(s.path, s.bytes) for s in commit.superseded] == [(s.path, 0) for s in before.superseded]


def test_a_plan_id_in_the_completed_commit_alone_is_enough(templates: Templates, tmp_path: Path) -> None:
    base = templates.copy("clustered", tmp_path / "t")
    edit_avro(timeline_file(base, "*.clustering.requested"), lambda record: record.update(extraMetadata={}))
    assert FORMAT.find_commit(ref(base), PLAN_ID) is None
    edit_avro(
        timeline_file(base, "*.replacecommit"), lambda record: record["extraMetadata"].update({PLAN_KEY: PLAN_ID})
    )
    commit = FORMAT.find_commit(ref(base), PLAN_ID)
    assert commit is not None
    assert len(commit.superseded) == 6


def test_the_completed_one_of_two_instants_with_one_plan_id_is_the_commit(templates: Templates, tmp_path: Path) -> None:
    base = templates.copy("clustered", tmp_path / "t")
    requested = timeline_file(base, "*.clustering.requested")
    shutil.copy(requested, requested.with_name("20991231235959999.clustering.requested"))
    commit = FORMAT.find_commit(ref(base), PLAN_ID)
    assert commit is not None
    assert requested.name.startswith(commit.instant)


def test_inputs_of_a_completed_clustering_may_be_deleted_and_its_outputs_may_not(templates: Templates) -> None:
    base = templates.get("clustered")
    commit = FORMAT.find_commit(ref(base), PLAN_ID)
    assert commit is not None
    live = version(base, commit.outputs[0].path, commit.instant)
    reasons = FORMAT.deletion_blockers(ref(base), [*commit.superseded, live])
    assert reasons.pop(live.path) == "live: it is in a latest file slice"
    assert reasons == dict.fromkeys(s.path for s in commit.superseded)
    assert FORMAT.deletion_blockers(ref(base), []) == {}


def test_inputs_of_an_archived_clustering_may_be_deleted(templates: Templates) -> None:
    base = templates.get("archived")
    commit = FORMAT.find_commit(ref(base), PLAN_ID)
    assert commit is not None
    assert set(FORMAT.deletion_blockers(ref(base), commit.superseded).values()) == {None}


def test_nothing_goes_whose_replacing_commit_was_rolled_back(templates: Templates, tmp_path: Path) -> None:
    base = templates.copy("clustered", tmp_path / "t")
    commit = FORMAT.find_commit(ref(base), PLAN_ID)
    assert commit is not None
    for file in (base / ".hoodie/timeline").glob(f"*{commit.instant}*"):
        file.unlink()
    reasons = set(FORMAT.deletion_blockers(ref(base), commit.superseded).values())
    assert reasons == {f"instant {commit.instant} that replaced it is not completed (rolled back or restored)"}


def test_log_files_of_a_live_slice_may_not_go(templates: Templates) -> None:
    base = templates.get("mor")
    instant = timeline_file(base, "*.deltacommit").name.partition("_")[0]
    files = [version(base, path, instant) for path in data_files(base)]
    assert set(FORMAT.deletion_blockers(ref(base), files).values()) == {"live: it is in a latest file slice"}


def test_inputs_of_a_pending_plan_may_not_go_even_if_no_longer_live(templates: Templates, tmp_path: Path) -> None:
    base = templates.copy("clustered", tmp_path / "t")
    commit = FORMAT.find_commit(ref(base), PLAN_ID)
    assert commit is not None
    requested = timeline_file(base, "*.clustering.requested")
    shutil.copy(requested, requested.with_name("20991231235959999.clustering.requested"))
    reasons = FORMAT.deletion_blockers(ref(base), commit.superseded)
    assert set(reasons.values()) == {"needed by pending clustering 20991231235959999"}


def test_files_kept_by_a_savepoint_may_not_go(templates: Templates) -> None:
    base = templates.get("saved")
    timeline = Timeline(TableStorage(str(base)))
    ((savepoint, kept),) = timeline.savepoints().items()
    assert kept == frozenset(data_files(templates.get("cow")))
    updated = timeline.newest_commit_time
    live = set(FORMAT.snapshot(ref(base)).slices["path"].to_pylist())
    older = sorted(set(data_files(base)) - live)
    assert len(older) == 2
    reasons = FORMAT.deletion_blockers(ref(base), [version(base, path, updated) for path in older])
    assert set(reasons.values()) == {f"kept by savepoint {savepoint}"}


def test_the_archived_timeline_gives_plans_metadata_and_cleans(templates: Templates) -> None:
    timeline = Timeline(TableStorage(str(templates.get("archived"))))
    everything = list(timeline.archived())
    times = [a.time for a in everything]
    assert times == sorted(times, reverse=True)
    (clustering,) = timeline.archived({"replacecommit"})
    assert extra_metadata(clustering.plan) == {PLAN_KEY: PLAN_ID, "lakefold.epoch": "1"}
    assert (clustering.metadata or {})["operationType"] == "CLUSTER"
    assert [a.time for a in timeline.archived(times={clustering.time})] == [clustering.time]
    assert list(timeline.archived(containing=b"no such plan")) == []
    cleaned = [a for a in everything if a.action == "clean"]
    assert len(cleaned) + len(timeline.read_cleans()) >= 1

# SPDX-License-Identifier: Apache-2.0
"""Planted defects: each makes the test of the broken obligation fail."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from toys import expiring, locations, timeline_tables, versions
from toys.bench import Bench
from toys.cases import ExpiringCase, VersionsCase
from toys.files import FilesWriter
from toys.timeline import ToyWriter

from contract.capabilities import EXERCISES
from contract.port import PortContract
from contract.run import RunContract
from contract.test_contract_staged import (
    test_an_attempt_withdrawn_during_its_commit_does_not_take_effect as withdrawn_under_way,
)
from lake.errors import Conflict
from lake.plan import StagedWork, SupersededVersion
from lake.ports import Capability, DeletionResult
from service.control.store import superseded_files
from service.control.store.models import SupersededRow

PORT, RUN = PortContract(), RunContract()
WRITERS = {"toy": ToyWriter, "locations": locations.LocationsWriter, "versions": versions.VersionsWriter}


@contextmanager
def red(saying: str) -> Iterator[None]:
    """Check that the block fails with a message that contains ``saying``."""
    with pytest.raises((AssertionError, pytest.fail.Exception), match=saying):
        yield


def writer_of(bench: Bench) -> Any:
    return WRITERS[bench.format.name]


@pytest.mark.parametrize("bench", ["locations-sqlite", "versions-sqlite"], indirect=True)
def test_staging_that_is_not_journalled_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    writer = writer_of(bench)
    prepare = writer.prepare

    def silent(one: Any, *arguments: Any) -> Any:
        with patch.object(one, "journal", lambda staged: None):
            return prepare(one, *arguments)

    monkeypatch.setattr(writer, "prepare", silent)
    with red("told once"):
        PORT.test_a_staging_directory_is_recorded_before_its_first_file_exists(bench.case, bench.table)
    with red(r"\.parquet"):
        RUN.test_the_successor_of_an_executor_killed_at_any_point_commits_the_plan_once(bench, "before_commit")


@pytest.mark.parametrize("bench", ["locations-sqlite", "versions-sqlite"], indirect=True)
def test_staging_that_is_journalled_once_it_exists_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    writer = writer_of(bench)
    prepare, rewrite = writer.prepare, writer.rewrite
    late: list[StagedWork] = []

    def prepare_first(one: Any, *arguments: Any) -> Any:
        with patch.object(one, "journal", late.append):
            return prepare(one, *arguments)

    def then_told(one: Any, *arguments: Any) -> Any:
        done = rewrite(one, *arguments)
        one.journal(late.pop())
        return done

    monkeypatch.setattr(writer, "prepare", prepare_first)
    monkeypatch.setattr(writer, "rewrite", then_told)
    with red("told before"):
        PORT.test_a_staging_directory_is_recorded_before_its_first_file_exists(bench.case, bench.table)


@pytest.mark.parametrize("bench", ["timeline-sqlite", "locations-sqlite", "versions-sqlite"], indirect=True)
def test_a_deletion_by_a_suspended_process_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    never = property(lambda writer: lambda: None, lambda writer, fence: None)
    monkeypatch.setattr(FilesWriter, "fence", never, raising=False)
    with red(r"\(\[6\], 5\)"):
        RUN.test_a_cleaner_suspended_while_another_one_deleted_leaves_the_new_files_at_the_paths(bench)


@pytest.mark.parametrize("bench", ["timeline-sqlite", "locations-sqlite", "versions-sqlite"], indirect=True)
def test_a_deletion_that_compares_paths_only_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(SupersededVersion, "difference", lambda version, *found: None)
    with red(r"set\(\) == \{0\}"):
        PORT.test_a_path_that_holds_another_file_now_stays_with_a_reason(bench.case, bench.table)


@pytest.mark.parametrize("bench", ["timeline-sqlite", "locations-sqlite", "versions-sqlite"], indirect=True)
def test_a_commit_without_its_epoch_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    writer = writer_of(bench)
    commit = writer.commit
    monkeypatch.setattr(
        writer, "commit", lambda one, done: commit(one, replace(done, prepared=replace(done.prepared, epoch=None)))
    )
    with red(r"\(\'p\', None\)"):
        PORT.test_a_commit_replaces_the_inputs_and_names_its_plan_and_epoch(bench.case, bench.table)


@pytest.mark.parametrize("bench", ["versions-sqlite"], indirect=True)
def test_an_order_by_the_text_of_commits_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    waiting = superseded_files._undeleted
    monkeypatch.setattr(
        superseded_files, "_undeleted", lambda table: waiting(table).order_by(None).order_by(SupersededRow.instant)
    )
    with red("At index 0 diff"):
        RUN.test_files_are_deleted_in_the_order_of_replacement_for_any_names_of_commits(bench, monkeypatch)


@pytest.mark.parametrize("write", ["append", "update"])
@pytest.mark.parametrize("bench", ["locations-sqlite"], indirect=True)
def test_evidence_that_is_not_compared_is_found(bench: Bench, write: str, monkeypatch: pytest.MonkeyPatch):
    look = locations.LocationsWriter.look

    def as_it_was(writer: Any, partitions: Any) -> Any:
        return partitions if isinstance(partitions, dict) else look(writer, partitions)

    monkeypatch.setattr(locations.LocationsWriter, "look", as_it_was)
    with red("'id'" if write == "append" else "not True or"):
        PORT.test_a_writer_that_commits_in_between_loses_no_row(bench.case, bench.table, write)


@pytest.mark.parametrize("bench", ["versions-sqlite"], indirect=True)
def test_a_withdrawal_that_does_not_prevent_a_suspended_executors_commit_is_found(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    create = versions.create_version

    def unless_withdrawn(table: Any, change: Any, **named: Any) -> Any:
        document = change(versions.newest(table))
        return document if "withdrawn" in document else create(table, change, **named)

    monkeypatch.setattr(versions, "create_version", unless_withdrawn)
    with red("DID NOT RAISE"):
        withdrawn_under_way(bench)


@pytest.mark.parametrize("bench", ["locations-sqlite"], indirect=True)
def test_a_commit_that_takes_longer_than_its_declared_time_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(locations.time, "monotonic", lambda: 0.0)
    with red("DID NOT RAISE"):
        withdrawn_under_way(bench)


@pytest.mark.parametrize("bench", ["timeline-sqlite"], indirect=True)
def test_names_that_a_recreated_table_uses_again_are_found(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(timeline_tables.uuid, "uuid4", lambda: uuid.UUID(int=0))
    with red("DID NOT RAISE"):
        PORT.test_work_for_a_table_does_nothing_to_a_table_recreated_at_its_location(
            bench.case, bench.add_table("again")
        )
    bench.table = bench.add_table("and again")
    with red("COMPLETED"):
        RUN.test_a_recreated_table_gets_no_plans_and_no_deletions_of_its_predecessor(bench)


@pytest.mark.parametrize("bench", ["locations-sqlite", "versions-sqlite"], indirect=True)
def test_a_search_for_abandoned_files_that_reads_the_log_alone_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(type(bench.format), "needed", lambda format_, table: set())
    with red("forgotten, but not left"):
        PORT.test_a_commit_that_its_table_no_longer_has_does_not_count_as_abandoned(bench.case, bench.table, False)


@pytest.mark.parametrize("bench", ["versions-sqlite"], indirect=True)
def test_a_search_for_abandoned_files_that_ignores_savepoints_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        type(bench.format), "needed", lambda format_, table: {item["path"] for item in format_.live(table)}
    )
    with red("forgotten, but not left"):
        PORT.test_a_commit_that_its_table_no_longer_has_does_not_count_as_abandoned(bench.case, bench.table, True)


@pytest.mark.parametrize("bench", ["versions-sqlite"], indirect=True)
def test_a_commit_that_ignores_a_pruned_withdrawal_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        versions,
        "versions_since",
        lambda table, version, newest: [one for one in versions.versions(table) if one["version"] > version],
    )
    with red("DID NOT RAISE"):
        PORT.test_a_withdrawn_plan_is_not_committed_after_the_record_of_its_withdrawal_was_pruned(
            bench.case, bench.table
        )


@pytest.mark.parametrize("bench", ["locations-sqlite", "versions-sqlite"], indirect=True)
def test_staging_under_a_prefix_that_others_write_to_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    writer = writer_of(bench)
    prepare = writer.prepare

    def anywhere(one: Any, *arguments: Any) -> Any:
        with patch.object(one, "journal", lambda staged, told=one.journal: told(replace(staged, paths=("dt=",)))):
            return prepare(one, *arguments)

    monkeypatch.setattr(writer, "prepare", anywhere)
    with red("a prefix is lakefold's alone"):
        PORT.test_a_withdrawn_plan_leaves_nothing_and_can_not_be_committed(bench.case, bench.table, True, False)


@pytest.mark.parametrize("bench", ["timeline-sqlite"], indirect=True)
def test_a_time_of_writing_that_leaves_out_deltas_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(timeline_tables, "time", SimpleNamespace(time=lambda: 0.0))
    with red("modified_at counts deltas"):
        EXERCISES[Capability.COMPACTION](bench.case, bench.table)


@pytest.mark.parametrize("claims", ["gone", "left"])
def test_an_expiry_that_reports_deletions_it_did_not_make_is_found(
    tmp_path: Path, claims: str, monkeypatch: pytest.MonkeyPatch
):
    delete = expiring.ExpiringWriter.delete

    def untrue(writer: Any, versions: Any) -> DeletionResult:
        delete(writer, versions)
        return DeletionResult(
            retained=dict.fromkeys(range(len(versions)) if claims == "left" else (), "its own expiry")
        )

    case = ExpiringCase()
    table = case.create(tmp_path / "t", name="t")
    monkeypatch.setattr(expiring.ExpiringWriter, "delete", untrue)
    with red("dict_keys"):
        EXERCISES[Capability.OWN_EXPIRY](case, table)


def test_a_commit_that_ignores_a_faster_writer_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    create = versions.create_version

    def blind(table: Any, change: Any, **options: Any) -> Any:
        try:
            return create(table, change, **options)
        except Conflict:
            before = versions.versions(table)[-2]
            return create(table, lambda now: change({**before, "version": now["version"]}), **options)

    case = VersionsCase()
    table = case.create(tmp_path / "t", name="t")
    monkeypatch.setattr(versions, "create_version", blind)
    with red("DID NOT RAISE"):
        EXERCISES[Capability.OPTIMISTIC_COMMITS](case, table)

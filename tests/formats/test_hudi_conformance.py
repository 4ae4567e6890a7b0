# SPDX-License-Identifier: Apache-2.0
"""Tables of every version, rewritten and cleaned by us, are what Hudi's own services would have left."""

from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from conformance import ARCHIVED, RUNS, TABLE_VERSIONS, Case, Seen, Service, look
from hudi_tables import copy, rows, write
from hudi_writing import FORMAT, QUICK_LOCK, Table, ignore
from support import BUNDLE, SOAK, passed_in_its_own_process, record_figure

from lake.errors import Conflict, Rejected
from lake.formats.hudi.jvm import bundle
from lake.formats.hudi.jvm.bundle import RELEASE_LINES, bundle_of
from lake.formats.hudi.lock_settings.on_conflict import WRITER_WINS_OPTIONS
from lake.formats.hudi.rewrite import execute
from lake.plan import Commit

pytestmark = [pytest.mark.spark, pytest.mark.soak]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One template, our rewrite of a copy of it and Hudi's own of another one; ``cleaned`` after ours was cleaned."""

    case: Case
    service: Service
    template: Path
    table: Table
    commit: Commit
    before: Seen
    after: Seen
    by_hudi: Seen
    our_schemas: set[str]
    hudis_schemas: set[str]
    freed: int
    cleaned: Seen


def _name(run: tuple[Case, Service]) -> str:
    return f"{run[0]}-{run[1].name}"


def _schemas(table: Table, instant: str) -> set[str]:
    schemas = (str(pq.ParquetFile(table.base / path).schema) for path in table.files_of(instant))
    return {schema.partition("\n")[2] for schema in schemas}  # the first line has an address in memory


@pytest.fixture(scope="module", params=RUNS, ids=_name)
def run(request: pytest.FixtureRequest, spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Everything that costs time, once a kind of table and service."""
    case, service = request.param
    template, root = case.template(spark), tmp_path_factory.mktemp(_name(request.param))
    ours, hudis = (Table(spark, copy(template, root / name), QUICK_LOCK) for name in ("ours", "hudis"))
    before = look(ours)
    commit = ours.run(service.plan(ours))
    after = look(ours)
    service.by_hudi(hudis, case)
    our_schemas, hudis_schemas = _schemas(ours, commit.instant), _schemas(hudis, hudis.timeline().newest_commit_time)
    with ours.writer() as writer:
        freed = writer.delete(commit.superseded).bytes_freed
    return Run(
        case=case,
        service=service,
        template=template,
        table=ours,
        commit=commit,
        before=before,
        after=after,
        by_hudi=look(hudis),
        our_schemas=our_schemas,
        hudis_schemas=hudis_schemas,
        freed=freed,
        cleaned=look(ours),
    )


def test_the_session_has_the_bundle_of_this_run(spark: Any) -> None:
    assert bundle_of(spark).version == BUNDLE


def test_the_table_is_of_its_version_with_every_index(run: Run) -> None:
    layout = 1 if run.case.version == 6 else 2
    assert run.before.version == f"{run.case.version}, layout {layout}"
    assert run.before.indexes == run.case.indexes
    assert run.before.invalid == []


def test_a_rewrite_keeps_rows_types_record_keys_and_commit_times_as_hudis_own_does(run: Run) -> None:
    assert run.after.spark_rows == run.before.spark_rows
    assert run.after.spark_schema == run.before.spark_schema
    assert run.by_hudi.spark_rows == run.after.spark_rows
    assert run.by_hudi.spark_schema == run.after.spark_schema


def test_every_row_names_the_file_it_is_in_as_after_hudis_own(run: Run) -> None:
    assert (run.by_hudi.misplaced, run.after.misplaced, run.cleaned.misplaced) == (0, 0, 0)


def test_data_files_have_the_schema_that_hudis_own_would_have(run: Run) -> None:
    assert run.our_schemas == run.hudis_schemas


def test_spark_and_hudi_rs_agree(run: Run) -> None:
    for seen in (run.before, run.after, run.cleaned):
        assert seen.hudi_rs_rows.total() == seen.spark_rows.total()
        assert seen.hudi_rs_rows == run.before.hudi_rs_rows
        assert seen.hudi_rs_schema == run.before.hudi_rs_schema


def test_version_and_indexes_stay_and_hudis_validation_finds_nothing(run: Run) -> None:
    for seen in (run.after, run.cleaned):
        assert (seen.version, seen.indexes) == (run.before.version, run.before.indexes)
        assert seen.invalid == []


def test_cleaning_deletes_exactly_the_files_that_the_rewrite_replaced(run: Run) -> None:
    assert run.freed == sum(version.bytes for version in run.commit.superseded) > 0
    assert set(run.table.data_files()) == {output.path for output in run.commit.outputs}
    assert run.cleaned.spark_rows == run.before.spark_rows


def test_the_commit_is_found_and_the_table_equals_its_commits(run: Run) -> None:
    found = FORMAT.find_commit(run.table.ref, run.commit.plan_id)
    assert found is not None
    assert (found.instant, set(found.outputs)) == (run.commit.instant, set(run.commit.outputs))
    assert FORMAT.pending_instants(run.table.ref) == {}
    verified = FORMAT.verify(run.table.ref, run.commit.superseded, rows=True)
    assert (verified.missing, verified.wrong_size, verified.resurrected, verified.unowned) == ((), (), (), ())
    assert verified.rows == verified.rows_expected == run.before.spark_rows.total()


def test_a_withdrawn_plan_leaves_no_file_and_no_instant(run: Run, spark: Any, tmp_path: Path) -> None:
    table = Table(spark, copy(run.template, tmp_path / "t"))
    files = table.data_files()
    plan = run.service.plan(table)
    with table.writer() as writer:
        requested = writer.prepare(plan, 1)
        assert FORMAT.pending_instants(table.ref) == {requested.instant: plan.plan_id}
        assert set(FORMAT.snapshot(table.ref).slices["busy_reason"].to_pylist()) != {None}
        assert writer.withdraw(plan.plan_id, None) == 1
        written = writer.rewrite(writer.prepare(plan, 2), ignore)
        assert len(table.data_files()) == len(files) + len(written.outputs)
        assert writer.withdraw(plan.plan_id, [written.prepared.instant]) == 1
    assert table.data_files() == files
    assert not table.timeline().pending
    assert look(table).spark_rows == run.before.spark_rows


@pytest.mark.parametrize("run", ARCHIVED, ids=_name, indirect=True)
@pytest.mark.usefixtures("nothing_unseen")
@pytest.mark.shown_by(
    "tests/formats/test_hudi_guards.py::test_trap_archiving_after_a_partial_clean_restores_no_superseded_file"
)
def test_an_archived_commit_is_found_and_archiving_after_a_partial_clean_restores_no_row(
    run: Run, spark: Any, tmp_path: Path
) -> None:
    quick = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3", "hoodie.clean.commits.retained": "1"}
    table = Table(spark, copy(run.template, tmp_path / "t"), QUICK_LOCK | quick)
    first, second = (table.run(table.plan(f"0198-day-{day}", partitions=[f"dt=2026-01-0{day}"])) for day in (1, 2))
    with table.writer() as writer:
        writer.delete(first.superseded)
    for number in range(5):
        more = rows(spark, 1000 + number * 2, 1002 + number * 2).coalesce(1)
        write(more, table.base, "insert", merge_on_read=run.case.merge_on_read, options=run.case.options | quick)
    assert table.timeline().find(first.instant) is None, "the archiver has been at work"
    assert table.timeline().find(second.instant) is not None, "a commit whose replaced files exist stays active"
    for commit in (first, second):
        found = FORMAT.find_commit(table.ref, commit.plan_id)
        assert found is not None
        assert (found.instant, set(found.outputs)) == (commit.instant, set(commit.outputs))
        assert {version.path for version in found.superseded} == {version.path for version in commit.superseded}
    seen = look(table)
    assert seen.spark_rows.total() == seen.hudi_rs_rows.total() == run.before.spark_rows.total() + 10
    assert run.before.spark_rows <= seen.spark_rows
    verified = FORMAT.verify(table.ref, second.superseded, rows=True)
    assert (verified.missing, verified.resurrected, verified.unowned) == ((), (), ())
    with table.writer() as writer:
        assert writer.delete(second.superseded).bytes_freed == sum(version.bytes for version in second.superseded)
    assert look(table).spark_rows == seen.spark_rows


@pytest.mark.parametrize("run", RUNS[-1:], ids=_name, indirect=True)
@pytest.mark.shown_by(
    "tests/formats/test_hudi_guards.py::test_trap_under_prefer_writer_an_upsert_into_the_plan_wins_and_nothing_is_lost"
)
def test_hudis_own_conflict_resolution_lets_the_writer_win_if_both_sides_configure_it(
    run: Run, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(spark, copy(run.template, tmp_path / "t"), QUICK_LOCK | WRITER_WINS_OPTIONS)
    monkeypatch.setattr(execute, "check_clustering_inputs", lambda *_: None)
    plan = table.plan()
    with table.writer() as writer:
        rewrite = writer.rewrite(writer.prepare(plan, 1), ignore)
        table.upsert(0, 60, 9, "id % 10 = 3", **run.case.options)
        rows_now = table.rows()
        with pytest.raises(Conflict, match="a writer was faster while committing"):
            writer.commit(rewrite)
        assert writer.withdraw(plan.plan_id, None) == 1
    assert table.rows() == rows_now


def test_a_release_line_that_lakefold_does_not_know_is_refused_by_its_number(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "RELEASE_LINES", [line for line in RELEASE_LINES if line is not type(bundle_of(spark))])
    with pytest.raises(Rejected, match=rf"Hudi bundle {BUNDLE} is not known, only .*; set \"spark.jars.packages\" in"):
        bundle._detect_bundle(spark._jvm)


def test_a_table_version_that_a_bundle_does_not_know_is_refused_with_the_bundle_that_does(spark: Any) -> None:
    old = next(line for line in RELEASE_LINES if line.line == "1.0")(spark, "1.0.2")
    old.check_table_version("trips", 8)
    expected = r"trips: table version 9 needs Hudi bundle 1.1 or newer, this session has 1.0.2; set \"spark.jars.pack"
    with pytest.raises(Rejected, match=expected):
        old.check_table_version("trips", 9)
    with pytest.raises(Rejected, match=r"trips: running the table's own services needs Hudi bundle 1.1 or newer, this"):
        old.require_foreign_plans("trips", "running the table's own services")
    with pytest.raises(Rejected, match="table version 7 is not supported, only 6, 8, 9"):
        bundle_of(spark).check_table_version("trips", 7)


if SOAK and RELEASE_LINES[0].release == BUNDLE:

    @pytest.mark.timeout(3600)
    @pytest.mark.parametrize("release", [line.release for line in RELEASE_LINES[1:]])
    def test_the_other_bundles_pass_this_suite_each_in_a_process_of_its_own(release: str) -> None:
        passed = passed_in_its_own_process(__file__, LAKEFOLD_TEST_BUNDLE=release, LAKEFOLD_SOAK="")
        tests = [signature(test).parameters for name, test in globals().items() if name.startswith("test_")]
        with_run = sum("run" in parameters for parameters in tests)
        kinds = 2 * len(TABLE_VERSIONS[release])
        line = next(line for line in RELEASE_LINES if line.release == release)
        # Compaction is for merge-on-read only, and the engine arrow for slices without logs.
        runs = kinds + kinds // 2 * (2 if line.can_begin_without_writing else 1)
        # Of those with a run one has clusterings only and one a single case; this test is not run there.
        expected = (with_run - 2) * runs + kinds + 1 + (len(tests) - with_run - 1)
        assert passed == expected
        record_figure(f"conformance on Hudi bundle {release}", f"{passed} passed")

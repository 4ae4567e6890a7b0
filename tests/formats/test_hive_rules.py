# SPDX-License-Identifier: Apache-2.0
"""The hazards of moving a partition's location in one call, each by the number of its rule.

The rules are those of docs/decisions/0013-moving-a-partition.md.
"""

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from contract.attempts import attempt, run
from contract.plans import plan_all
from databases import sqlite_at
from harness import Installation
from hive_case import DATABASE, HiveCase, Owner, table_name
from hive_metastore import MetastoreServer
from toys.bench import Bench
from waiting import wait_for

from executors.outcome import RunResult
from lake.errors import Conflict, Integrity, Rejected, TableRefused
from lake.formats.hive.commit import commit_record
from lake.formats.hive.directories import directory_index
from lake.metastore import MetastoreClient, MetastorePartition, StorageDescriptor
from lake.metastore.thrift import I32, string_list
from lake.model import TableRef
from lake.plan import Commit, Plan
from service.control.store.views import StoreSettings

pytestmark = pytest.mark.slow


@pytest.fixture
def case(metastore: MetastoreServer) -> HiveCase:
    return HiveCase(uri=metastore.uri)


@pytest.fixture
def table(case: HiveCase, tmp_path: Path) -> TableRef:
    return case.create(tmp_path / "lake" / "t", name="t")


def altered(case: HiveCase, table: TableRef, partition: str, location: str = "", **parameters: str) -> None:
    """What ``ALTER TABLE … PARTITION … SET LOCATION``, or one of its properties, does."""
    before = case.partitions(table)[partition]
    storage = before.storage.with_location(location) if location else before.storage
    with Owner(case.uri) as owner:
        owner.alter_partitions(
            DATABASE, table_name(table), [before.with_changes(storage, {**before.parameters, **parameters})]
        )


def of_two_files(plan: Plan) -> Plan:
    """The plan without the last file of each group, which so has to come along."""
    return replace(plan, groups=tuple(replace(group, slices=group.slices[:2]) for group in plan.groups))


def counts(partition: MetastorePartition) -> Mapping[str, str]:
    names = ("COLUMN_STATS_ACCURATE", "numFiles", "numRows", "rawDataSize", "totalSize")
    return {name: value for name, value in partition.parameters.items() if name in names}


def test_a_file_that_is_not_rewritten_is_copied_unchanged_and_superseded_at_its_former_path(
    case: HiveCase, table: TableRef
):
    rows, files = case.rows(table), dict(case.stored(table))
    plan = of_two_files(plan_all(case.format, table, "p", partitions=["dt=0"]))
    (kept,) = {path for path in files if path.startswith("dt=0/")} - {str(one.path) for one in plan.groups[0].slices}
    commit = run(case, plan)
    place = case.places(table)["dt=0"]
    assert os.path.samefile(Path(table.location) / kept, place / os.path.basename(kept))
    assert (len(commit.outputs), len(list(place.iterdir()))) == (1, 2)
    assert {one.path for one in commit.superseded} == {path for path in files if path.startswith("dt=0/")}
    with case.format.writer(table, case.spark, case.engines) as writer:
        writer.delete(commit.superseded)
    assert case.rows(table) == rows
    assert (Path(table.location) / "dt=0").is_dir(), "an owner who drops the partition and adds it finds its directory"


def test_rule_1_a_version_is_not_deleted_while_a_partition_is_read_from_it_or_from_below_it(
    case: HiveCase, table: TableRef
):
    run(case, plan_all(case.format, table, "p"))
    version = case.places(table)["dt=0"]
    later = run(case, plan_all(case.format, table, "q"))
    of_the_version = [one for one in later.superseded if one.partition == "dt=0"]
    stored = dict(case.stored(table))
    for location in (version, version / "below"):
        altered(case, table, "dt=1", f"file:{location}")
        reasons = case.format.deletion_blockers(table, later.superseded)
        assert [reasons[one.path] is not None for one in later.superseded if one.partition == "dt=0"] == [True]
        with case.format.writer(table, case.spark, case.engines) as writer, pytest.raises(Conflict):
            writer.delete(of_the_version)
        assert case.stored(table) == stored
    altered(case, table, "dt=0", f"file:{version}")
    closed = case.format.obsolete_deletions(table, later.superseded)
    assert [later.superseded[index].partition for index in closed] == ["dt=0"]


def test_rule_1_a_suspended_executors_commit_after_its_withdrawal_is_complete_and_names_its_plan(
    case: HiveCase, table: TableRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows, gate = case.rows(table), tmp_path / "gate"
    monkeypatch.setenv("LAKEFOLD_FAILPOINTS", f"in_commit=wait:{gate}")
    plan = plan_all(case.format, table, "p")
    with attempt(case, plan) as sleeper, attempt(case, plan, 2) as successor, ThreadPoolExecutor(1) as pool:
        late = pool.submit(sleeper.committed)
        wait_for(gate.with_name("gate.reached").exists, "no commit began")
        successor.journal = sleeper.journal
        assert successor.discarded(None) == 0
        assert case.format.remaining_staged(table, sleeper.journal) == set()
        gate.touch()
        commit = late.result()
        assert (case.rows(table), case.commits(table)) == (rows, [("p", 1)])
        found = case.format.find_commit(table, "p")
        assert found is not None
        assert (found.epoch, found.instant) == (1, commit.instant)


@pytest.mark.parametrize("point", ["before_commit", "in_commit"])
def test_a_table_that_a_scan_would_refuse_now_is_not_committed(
    case: HiveCase, table: TableRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
):
    """Its owner changes the table while the plan runs, before the commit or right before the metastore's call."""

    def make_bucketed() -> None:
        with Owner(case.uri) as owner:
            found = owner.table(DATABASE, table_name(table))
            assert found is not None
            bucketed = StorageDescriptor(found.storage.raw | {6: (I32, 4), 8: string_list(["id"])})
            owner.alter_table(DATABASE, found.name, found.with_changes(bucketed, found.parameters))

    rows, gate = case.rows(table), tmp_path / "gate"
    with attempt(case, plan_all(case.format, table, "p")) as one, ThreadPoolExecutor(1) as pool:
        rewrite = one.rewritten()
        if point == "in_commit":
            monkeypatch.setenv("LAKEFOLD_FAILPOINTS", f"in_commit=wait:{gate}")
            late = pool.submit(one.writer.commit, rewrite)
            wait_for(gate.with_name("gate.reached").exists, "no commit began")
            make_bucketed()
            gate.touch()
        else:
            make_bucketed()
            late = pool.submit(one.writer.commit, rewrite)
        with pytest.raises(TableRefused, match="it has 4 buckets but must have none"):
            late.result()
        assert (one.discarded(None), case.rows(table), case.commits(table)) == (1, rows, [])


def test_a_plan_that_meets_a_refused_state_of_its_table_is_cancelled_and_not_failed(case: HiveCase, tmp_path: Path):
    """Scans left the files of the failed plan alone after the owner had followed the message."""
    bench = Bench(tmp_path, sqlite_at(tmp_path), StoreSettings(), case)

    def discovered(value: str) -> None:
        with Owner(case.uri) as owner:
            found = owner.table(DATABASE, table_name(bench.table))
            assert found is not None
            properties = {**found.parameters, "discover.partitions": value}
            owner.alter_table(DATABASE, found.name, found.with_changes(found.storage, properties))

    plan = bench.request()
    discovered("true")
    outcome = bench.run()
    assert (outcome.result, outcome.reason, bench.state(plan)) == (RunResult.CANCELLED, "TableRefused", "cancelled")
    discovered("false")
    bench.request()
    assert bench.run().result is RunResult.COMPLETED
    bench.store.close()


def test_rule_1_a_version_whose_commit_was_begun_and_never_made_goes_after_days(case: HiveCase, table: TableRef):
    rows, files = case.rows(table), dict(case.stored(table))
    with attempt(case, plan_all(case.format, table, "p")) as one:
        rewrite = one.rewritten()
        (version,) = (staged.token for staged in one.journal)
        written = Commit(plan_id="p", instant=version, epoch=1, outputs=rewrite.outputs, superseded=())
        commit_record.write_record(table, commit_record.CommitRecord(commit=written, partitions=("dt=0", "dt=1")))
        assert (one.discarded(None), case.format.find_commit(table, "p")) == (0, None)
        document = Path(table.location, ".lakefold", version, "commit.json")
        then = time.time() - timedelta(days=6, minutes=1).total_seconds()
        os.utime(document, (then, then))
        assert case.format.remaining_staged(table, one.journal) == {version}
        assert (one.discarded(None), case.rows(table), case.stored(table)) == (1, rows, files)


@pytest.mark.parametrize("where", [".", "..", "dt=0/below"])
def test_rule_7_a_table_in_whose_directory_another_one_lies_is_refused_and_nothing_of_it_is_deleted(
    case: HiveCase, table: TableRef, where: str
):
    commit = run(case, plan_all(case.format, table, "p"))
    stored, other = dict(case.stored(table)), f"other{os.getpid()}"
    with Owner(case.uri) as owner:
        owner.make_table(other, (Path(table.location) / where).resolve())
    directory_index.clear_directory_caches()
    try:
        with pytest.raises(Rejected, match=f"that of table {DATABASE}.{other}"):
            case.format.check(table)
        kept = case.format.deletion_blockers(table, commit.superseded)
        assert all(other in str(reason) for reason in kept.values())
        with case.format.writer(table, case.spark, case.engines) as writer, pytest.raises(Conflict, match=other):
            writer.delete(commit.superseded)
        assert case.stored(table) == stored
    finally:
        with Owner(case.uri) as owner:
            owner.drop_table(other)
    case.format.check(table)
    assert set(case.format.deletion_blockers(table, commit.superseded).values()) == {None}


def test_rule_9_files_of_a_late_task_are_not_read_and_unknown_files_are_not_committed(case: HiveCase, table: TableRef):
    rows, some = case.rows(table), next(Path(table.location).rglob("*.parquet"))
    with attempt(case, plan_all(case.format, table, "p")) as one:
        rewrite = one.rewritten()
        stranger = Path(table.location) / ".lakefold" / rewrite.prepared.instant / "dt=0" / "part-stranger.parquet"
        shutil.copy(some, stranger)
        with pytest.raises(Integrity, match="exactly the files written"):
            one.writer.commit(rewrite)
        assert (one.discarded(None), case.rows(table)) == (1, rows)
    with attempt(case, plan_all(case.format, table, "p"), 2) as one:
        rewrite = one.rewritten()
        late = Path(table.location) / rewrite.outputs[0].path
        one.writer.commit(rewrite)
        shutil.copy(some, late)
        assert case.rows(table) == rows
        assert case.format.remaining_staged(table, one.journal) == set(), "it is a commit's"


def test_rule_10_one_changed_file_leaves_out_every_group_of_its_partition(case: HiveCase, table: TableRef):
    plan = plan_all(case.format, table, "p")
    (first, *others), (second, *_) = plan.groups[0].slices, plan.groups[1].slices
    assert second.partition == "dt=1"
    halves = (replace(plan.groups[0], slices=(first,)), replace(plan.groups[0], slices=tuple(others)), plan.groups[1])
    shutil.copyfile(Path(table.location) / str(second.path), Path(table.location) / str(first.path))
    with attempt(case, replace(plan, groups=halves)) as one:
        prepared = one.prepared()
        assert (prepared.live_groups, [left.group for left in prepared.skipped]) == ((2,), [0, 1])
        one.discarded(None)


def test_rule_10_a_partition_that_is_dropped_before_the_commit_is_left_out_and_the_others_are_moved(
    case: HiveCase, table: TableRef
):
    with attempt(case, plan_all(case.format, table, "p")) as one:
        rewrite = one.rewritten()
        with Owner(case.uri) as owner:
            owner.drop(table_name(table), "0")
        rows = case.rows(table)
        commit = one.writer.commit(rewrite)
    (left,) = commit.skipped
    assert (left.group, left.reason) == (
        0,
        "partition dt=0 changed before the commit: it is no longer in the metastore",
    )
    assert {output.partition for output in commit.outputs} == {"dt=1"}
    assert {version.partition for version in commit.superseded} == {"dt=1"}
    assert (case.rows(table), case.commits(table)) == (rows, [("p", 1)])
    version = Path(table.location, ".lakefold", commit.instant)
    assert not (version / "dt=0").exists()


def test_rule_10_a_call_that_fails_for_a_dropped_partition_is_made_again_without_it(
    case: HiveCase, table: TableRef, monkeypatch: pytest.MonkeyPatch
):
    call, calls = MetastoreClient.alter_partitions, []

    def dropped_before(
        self: MetastoreClient, database: str, name: str, partitions: Sequence[MetastorePartition]
    ) -> None:
        calls.append(sorted(one.values[0] for one in partitions))
        if len(calls) == 1:
            with Owner(case.uri) as owner:
                owner.drop(name, "1")
        call(self, database, name, partitions)

    monkeypatch.setattr(MetastoreClient, "alter_partitions", dropped_before)
    with attempt(case, plan_all(case.format, table, "p")) as one:
        commit = one.committed()
    assert calls == [["0", "1"], ["0"]]
    assert [left.group for left in commit.skipped] == [1]
    assert (set(case.places(table)), case.commits(table)) == ({"dt=0"}, [("p", 1)])
    found = case.format.find_commit(table, "p")
    assert found is not None
    assert found.superseded == commit.superseded


def test_rule_10_files_added_before_the_commit_are_copied_and_superseded_with_the_rest(case: HiveCase, table: TableRef):
    with attempt(case, plan_all(case.format, table, "p")) as one:
        rewrite = one.rewritten()
        assert case.append(table, "dt=0", 10_000, 10_010)
        rows, files = case.rows(table), {path for path in case.stored(table) if path.startswith("dt=0/")}
        commit = one.writer.commit(rewrite)
    assert (case.rows(table), commit.skipped) == (rows, ())
    assert {one.path for one in commit.superseded if one.partition == "dt=0"} == files
    assert len(list(case.places(table)["dt=0"].iterdir())) == 2


def test_rule_10_files_added_right_before_the_call_are_copied_and_delay_it_for_a_bounded_time(
    case: HiveCase, table: TableRef, monkeypatch: pytest.MonkeyPatch
):
    written, write = list[Path](), commit_record.write_record

    def added_to(ref: TableRef, record: commit_record.CommitRecord) -> None:
        write(ref, record)
        before = set(Path(table.location, "dt=0").iterdir())
        case.append(table, "dt=0", 10_000 + 10 * len(written), 10_010 + 10 * len(written))
        written.extend(set(Path(table.location, "dt=0").iterdir()) - before)

    monkeypatch.setattr(commit_record, "write_record", added_to)
    with attempt(case, plan_all(case.format, table, "p", partitions=["dt=0"])) as one:
        commit = one.committed()
    late = written.pop()
    assert len(written) == 5
    assert {path.name for path in written} < {path.name for path in case.places(table)["dt=0"].iterdir()}
    assert {os.path.basename(version.path) for version in commit.superseded} >= {path.name for path in written}
    assert late.name not in {path.name for path in case.places(table)["dt=0"].iterdir()}
    assert late.name not in {os.path.basename(version.path) for version in commit.superseded}


def test_rule_10_a_partition_that_is_overwritten_once_all_is_ready_for_the_call_is_left_out(
    case: HiveCase, table: TableRef, monkeypatch: pytest.MonkeyPatch
):
    rows, write = list[str](), commit_record.write_record

    def overwritten_after(ref: TableRef, record: commit_record.CommitRecord) -> None:
        write(ref, record)
        if not rows:
            case.update(table, "dt=0")
            rows.extend(case.rows(table))

    monkeypatch.setattr(commit_record, "write_record", overwritten_after)
    with attempt(case, plan_all(case.format, table, "p")) as one:
        commit = one.committed()
    assert ([move.partition for move in commit.relocations], len(commit.skipped)) == (["dt=1"], 1)
    assert (case.places(table)["dt=0"], case.rows(table)) == (Path(table.location, "dt=0"), rows)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ({"owner.says": "keep"}, "its properties changed"),
        ({"location": "file:/elsewhere"}, "it was moved to /elsewhere"),
    ],
)
def test_rule_11_changes_by_the_owner_meanwhile_are_not_overwritten(
    case: HiveCase, table: TableRef, what: dict[str, str], reason: str
):
    with attempt(case, plan_all(case.format, table, "p", partitions=["dt=0"])) as one:
        rewrite = one.rewritten()
        altered(case, table, "dt=0", **what)
        before = case.partitions(table)["dt=0"]
        with pytest.raises(Conflict, match=reason):
            one.writer.commit(rewrite)
        one.discarded(None)
    assert case.partitions(table)["dt=0"] == before


def test_rule_11_statistics_that_writers_set_meanwhile_stay_and_keep_no_commit_away(case: HiveCase, table: TableRef):
    """Those of Hive's metastore, of Spark, Impala and Trino; counts of rows are dropped."""
    found = {
        "numFilesErasureCoded": "0",
        "STATS_GENERATED": "TASK",
        "STATS_GENERATED_VIA_STATS_TASK": "workaround for potential lack of HIVE-12730",
        "spark.sql.statistics.totalSize": "9",
        "impala_intermediate_stats_num_chunks": "1",
        "impala.lastComputeStatsTime": "9",
        "impala.events.catalogVersion": "9",
    }
    with attempt(case, plan_all(case.format, table, "p", partitions=["dt=0"])) as one:
        rewrite = one.rewritten()
        altered(case, table, "dt=0", **found, numRows="9")
        assert one.writer.commit(rewrite).skipped == ()
    after = case.partitions(table)["dt=0"].parameters
    assert found.items() <= after.items()
    assert "numRows" not in after


def test_rule_11_a_commit_changes_only_a_partitions_location_and_lakefolds_properties(case: HiveCase, table: TableRef):
    altered(case, table, "dt=0", **{"owner.says": "keep"})
    before = case.partitions(table)["dt=0"]
    run(case, plan_all(case.format, table, "p"))
    after = case.partitions(table)["dt=0"]
    assert after.parameters["owner.says"] == "keep"
    assert after.storage.with_location(before.storage.location) == before.storage
    assert (after.created_at, after.values) == (before.created_at, before.values)


@pytest.mark.parametrize("what", [{"location": "file:/elsewhere"}, {"owner.says": "keep"}])
def test_rule_11_a_change_that_meets_the_commit_in_the_metastore_is_noticed_afterwards(
    case: HiveCase, table: TableRef, monkeypatch: pytest.MonkeyPatch, what: dict[str, str]
):
    call = MetastoreClient.alter_partitions

    def met(self: MetastoreClient, database: str, name: str, partitions: Sequence[MetastorePartition]) -> None:
        call(self, database, name, partitions)
        monkeypatch.undo()
        altered(case, table, "dt=0", **what)

    monkeypatch.setattr(MetastoreClient, "alter_partitions", met)
    with (
        attempt(case, plan_all(case.format, table, "p", partitions=["dt=0"])) as one,
        pytest.raises(Integrity, match=r"one of the two may have undone the other: .*partition dt=0") as raised,
    ):
        one.committed()
    assert raised.value.partitions.keys() == {"dt=0"}
    assert case.format.find_commit(table, "p") is not None


@pytest.mark.parametrize("partitions", [["dt=0"], ["dt=0", "dt=1"]])
def test_rule_11_a_partition_that_is_written_back_right_after_the_commits_call_halts_nothing_and_is_moved_again(
    case: HiveCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: list[str]
):
    """Hive writes back the entry that it read when the INSERT began, with new counts."""
    bench = Bench(tmp_path, sqlite_at(tmp_path), StoreSettings(), case)
    plan, call = bench.request(), MetastoreClient.alter_partitions
    rows, before = case.rows(bench.table), case.partitions(bench.table)

    def met(self: MetastoreClient, database: str, name: str, updated: Sequence[MetastorePartition]) -> None:
        call(self, database, name, updated)
        monkeypatch.undo()
        counts = {"numFiles": "9", "numRows": "9", "COLUMN_STATS_ACCURATE": '{"BASIC_STATS":"true"}'}
        entries = [before[one] for one in partitions]
        call(self, database, name, [one.with_changes(one.storage, {**one.parameters, **counts}) for one in entries])

    monkeypatch.setattr(MetastoreClient, "alter_partitions", met)
    assert bench.run().result is RunResult.COMPLETED
    bench.sweep()
    state = bench.store.table_state(plan.table.name)
    assert (state.halted_reason, state.halted_partitions) == (None, {})
    moved = {one.partition for one in bench.store.relocated_partitions(bench.table)}
    assert (
        moved == {"dt=0", "dt=1"} == {name for name, at in case.places(bench.table).items() if ".lakefold" in str(at)}
    )
    assert case.rows(bench.table) == rows
    assert all("numRows" not in one.parameters for one in case.partitions(bench.table).values())
    bench.store.close()


def test_rule_11_a_commit_that_met_another_change_is_recorded_and_only_the_changed_partition_is_halted(
    case: HiveCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    bench = Bench(tmp_path, sqlite_at(tmp_path), StoreSettings(), case)
    plan, call = bench.request(), MetastoreClient.alter_partitions

    def met(self: MetastoreClient, database: str, name: str, partitions: Sequence[MetastorePartition]) -> None:
        call(self, database, name, partitions)
        monkeypatch.undo()
        altered(case, bench.table, "dt=1", **{"owner.says": "keep"})

    monkeypatch.setattr(MetastoreClient, "alter_partitions", met)
    assert bench.run().result is RunResult.COMPLETED
    state = bench.store.table_state(plan.table.name)
    assert (state.halted, state.halted_partitions.keys()) == (False, {"dt=1"})
    assert "the properties of partition dt=1 changed" in str(state.halted_partitions["dt=1"])
    bench.store.close()


def test_rule_11_each_partition_that_met_another_change_is_halted_with_its_own_reason(
    case: HiveCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    bench = Bench(tmp_path, sqlite_at(tmp_path), StoreSettings(), case)
    bench.request()
    call = MetastoreClient.alter_partitions

    def met(self: MetastoreClient, database: str, name: str, partitions: Sequence[MetastorePartition]) -> None:
        call(self, database, name, partitions)
        monkeypatch.undo()
        for one in ("dt=0", "dt=1"):
            altered(case, bench.table, one, **{"owner.says": "keep"})

    monkeypatch.setattr(MetastoreClient, "alter_partitions", met)
    assert bench.run().result is RunResult.COMPLETED
    halts = bench.store.halted_partitions(bench.table)
    assert halts.keys() == {"dt=0", "dt=1"}
    for name, why in halts.items():
        assert f"the properties of partition {name} changed; " in why
        assert why.endswith(f"lakefold resume {bench.table.name}")
    bench.store.close()


@pytest.mark.parametrize("is_added_again", [False, True])
def test_rule_11_a_partition_that_is_dropped_right_after_its_commit_halts_nothing(
    case: HiveCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_added_again: bool
):
    """The call is refused for one that was dropped before: so the drop came later, and undoes nothing else."""
    bench = Bench(tmp_path, sqlite_at(tmp_path), StoreSettings(), case)
    plan, call = bench.request(), MetastoreClient.alter_partitions
    made = case.partitions(bench.table)["dt=1"].created_at
    wait_for(lambda: time.time() > made + 1, "time stands still")

    def met(self: MetastoreClient, database: str, name: str, partitions: Sequence[MetastorePartition]) -> None:
        call(self, database, name, partitions)
        monkeypatch.undo()
        with Owner(case.uri) as owner:
            owner.drop(table_name(bench.table), "1")
            if is_added_again:
                owner.add(table_name(bench.table), "1", Path(bench.table.location) / "dt=1")

    monkeypatch.setattr(MetastoreClient, "alter_partitions", met)
    assert bench.run().result is RunResult.COMPLETED
    state = bench.store.table_state(plan.table.name)
    assert (state.halted_reason, state.halted_partitions) == (None, {})
    bench.sweep()
    state = bench.store.table_state(plan.table.name)
    assert (state.halted_reason, state.halted_partitions) == (None, {})
    assert "dt=0" in {one.partition for one in bench.store.relocated_partitions(bench.table)}
    bench.store.close()


def test_rule_12_counts_that_readers_trust_are_true_or_gone_after_a_commit(case: HiveCase, table: TableRef):
    trusted = {"COLUMN_STATS_ACCURATE": '{"BASIC_STATS":"true"}', "numRows": "7", "rawDataSize": "7", "numFiles": "7"}
    altered(case, table, "dt=0", **trusted)
    commit = run(case, plan_all(case.format, table, "p"))
    (output,) = [one for one in commit.outputs if one.partition == "dt=0"]
    assert counts(case.partitions(table)["dt=0"]) == {"numFiles": "1", "totalSize": str(output.bytes)}


def test_rule_14_a_table_is_planned_only_where_a_rule_declares_access_by_the_catalog(
    case: HiveCase, table: TableRef, tmp_path: Path
):
    assert table.catalog is not None
    name = table.catalog.table
    home = Installation(home=tmp_path, url=sqlite_at(tmp_path))
    source = f'[database]\nurl = "{home.url}"\n[[sources]]\nmetastore = "{case.uri}"\ntable = "{table_name(table)}"\n'
    policy = '[defaults]\nquiet_period = "0s"\n[[tables]]\nmatch = "*"\nmode = "compact"\n'
    for said, why in (("", "which no rule confirms"), ('access = "path"\n', 'which access = "path" denies')):
        home.config.write_text(source + policy + said)
        checked = json.loads(home.run("config", "check", "--json", expect=None).stdout)
        refused = home.run("plans", "request", name, expect=None)
        for text in (checked["refused"][name], refused.stderr):
            assert why in text
            assert 'If none of this happens, set access = "catalog" in a rule of lakefold.toml' in text
        assert home.json("tables", "explain", name)[0]["reason"] == "chosen"
        assert home.json("plans", "list") == []
    home.config.write_text(source + policy + 'access = "catalog"\n')
    assert json.loads(home.run("config", "check", "--json").stdout)["refused"] == {}
    home.run("plans", "request", name)
    assert [plan["state"] for plan in home.json("plans", "list")] == ["requested"]

# SPDX-License-Identifier: Apache-2.0
"""The contract of ``TableFormat`` and ``TableWriter``, without executors and database.

To test a format, subclass ``PortContract`` with a fixture ``case`` (``contract.case.Case``).
"""

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hdfs_paths import place, remove_tree

from contract.attempts import attempt, found_again, live, others_writing, run, staged_on
from contract.case import Case
from contract.forgotten import Forgotten
from contract.plans import plan_all
from lake.capabilities import HasIdentity, HasTimeline, recreated_reason, with_identity
from lake.errors import Conflict, LakefoldError, Transient
from lake.model import SLICES_SCHEMA, TableRef
from lake.plan import StagedWork
from lake.ports import Capability, Rewrite


class WholeTables(Forgotten):
    """The obligations of every format to planner, executors and cleaner, on tables with and without partitions."""

    @pytest.fixture
    def table(self, case: Case, tmp_path: Path) -> TableRef:
        return case.create(tmp_path / "lake" / "t", name="t")

    # Observing.

    def test_a_snapshot_lists_the_files_of_readers_with_partition_size_and_time(self, case: Case, table: TableRef):
        case.format.check(table)
        snapshot = case.format.snapshot(table)
        assert snapshot.slices.schema.equals(SLICES_SCHEMA)
        assert (snapshot.table, snapshot.damaged, snapshot.taken_at.utcoffset() is not None) == (table, (), True)
        listed = snapshot.slices.to_pylist()
        assert Counter(row["partition"] for row in listed) == dict.fromkeys(case.parts, 6 // len(case.parts))
        assert {row["path"]: row["bytes"] for row in listed} == case.stored(table)
        assert len({(row["partition"], row["file_id"]) for row in listed}) == len(listed)
        assert {row["busy_reason"] for row in listed} == {None}
        told = [row["rows"] for row in listed]
        assert None in told or sum(told) == len(case.rows(table))
        only = case.format.snapshot(table, [case.parts[-1]]).slices.to_pylist()
        assert {row["path"] for row in only} == {row["path"] for row in listed if row["partition"] == case.parts[-1]}
        found = list(found_again(case, table))
        assert [(one.format, one.location) for one in found] == [(table.format, table.location)]
        assert all(isinstance(text, str) for fact in case.format.describe(table).items() for text in fact)

    def test_a_writers_commit_is_in_the_next_snapshot_as_the_newest(self, case: Case, table: TableRef):
        before = live(case, table)
        assert case.append(table, case.parts[-1], 10_000, 10_010)
        rows = case.format.snapshot(table).slices.to_pylist()
        (new,) = [row for row in rows if row["path"] not in before]
        assert new["modified_at"] == max(row["modified_at"] for row in rows)
        orders = [row["written_order"] for row in rows]
        assert set(orders) == {None} or new["written_order"] == max(orders)

    def test_a_location_without_a_table_is_refused_by_an_outcome(self, case: Case, table: TableRef, tmp_path: Path):
        nowhere = replace(table, location=str(tmp_path / "nowhere"))
        for ask in (case.format.check, case.format.snapshot, lambda ref: case.format.find_commit(ref, "p")):
            with pytest.raises(LakefoldError):
                ask(nowhere)

    def test_a_table_keeps_its_identity_and_does_not_count_as_another_one(
        self, case: Case, table: TableRef, tmp_path: Path
    ):
        one = with_identity(case.format, table)
        other = with_identity(case.format, case.create(tmp_path / "lake" / "u", name="t"))
        if not isinstance(case.format, HasIdentity):
            assert (one.identity, other.identity) == (None, None)
            return
        assert recreated_reason(one, other.identity) is not None
        commit = run(case, plan_all(case.format, one, "p", partitions=[case.parts[0]]))
        assert with_identity(case.format, table) == one
        rows, stored = case.rows(table), dict(case.stored(table))
        mistaken = replace(one, identity=other.identity)
        with attempt(case, plan_all(case.format, mistaken, "q")) as late:
            with pytest.raises(Conflict):
                late.committed()
            late.discarded(None)
        with pytest.raises(Conflict), case.format.writer(mistaken, case.spark, case.engines) as writer:
            writer.delete(commit.superseded)
        assert (case.rows(table), case.stored(table)) == (rows, stored)

    def test_work_for_a_table_does_nothing_to_a_table_recreated_at_its_location(self, case: Case, table: TableRef):
        one = with_identity(case.format, table)
        commit = run(case, plan_all(case.format, one, "p", partitions=[case.parts[0]]))
        plan = plan_all(case.format, one, "q", partitions=[case.parts[-1]])
        with attempt(case, plan) as late:
            rewrite = late.rewritten()
            remove_tree(table.location)
            case.create(place(table.location), name="t")
            rows, stored = case.rows(table), dict(case.stored(table))
            with pytest.raises(LakefoldError):
                late.writer.commit(rewrite)
            late.discarded(None)
        with attempt(case, plan, 2) as again, pytest.raises(Conflict):
            again.committed()
        with case.format.writer(one, case.spark, case.engines) as writer, suppress(Conflict):
            assert writer.delete(commit.superseded).bytes_freed == 0
        assert (case.rows(table), case.stored(table), case.commits(table)) == (rows, stored, [])

    # A plan's way to its commit.

    def test_a_staging_directory_is_recorded_before_its_first_file_exists(self, case: Case, table: TableRef):
        before = dict(case.stored(table))
        with attempt(case, plan_all(case.format, table, "p")) as one:
            rewrite = one.rewritten()
            assert [staged.token for staged in one.journal] == [rewrite.prepared.instant], "told once"
            assert one.stored_then == before, "told before"
            new = case.stored(table).keys() - before.keys()
            assert new == {output.path for output in rewrite.outputs}
            assert staged_on(case, table, one.journal) == {rewrite.prepared.instant}
            paths = one.journal[0].paths
            assert isinstance(case.format, HasTimeline) or all(path.startswith(paths) for path in new)

    def test_nothing_is_staged_where_the_journal_fails(self, case: Case, table: TableRef):
        before, journal = dict(case.stored(table)), []

        def fails(staged: StagedWork) -> None:
            journal.append(staged)
            raise Transient("the database went away")

        with attempt(case, plan_all(case.format, table, "p")) as one:
            one.writer.journal = fails
            with pytest.raises(Transient):
                one.prepared()
        assert (case.stored(table), staged_on(case, table, journal)) == (before, set())

    def test_until_its_commit_readers_see_nothing_of_a_rewrite(self, case: Case, table: TableRef):
        rows, files = case.rows(table), live(case, table)
        with attempt(case, plan_all(case.format, table, "p")) as one:
            prepared = one.prepared()
            assert (case.rows(table), live(case, table)) == (rows, files)
            one.writer.rewrite(prepared, lambda progress: None)
            assert (case.rows(table), live(case, table)) == (rows, files)
            assert case.format.find_commit(table, "p") is None
            one.discarded(None)

    def test_a_commit_replaces_the_inputs_and_names_its_plan_and_epoch(self, case: Case, table: TableRef):
        rows, before = case.rows(table), live(case, table)
        plan = plan_all(case.format, table, "p")
        with attempt(case, plan, 3) as one:
            commit = one.committed()
        assert (commit.plan_id, commit.epoch) == ("p", 3)
        assert (case.rows(table), case.commits(table)) == (rows, [("p", 3)])
        assert live(case, table) == {output.path: output.bytes for output in commit.outputs}
        assert Counter(output.partition for output in commit.outputs) == dict.fromkeys(case.parts, 1)
        assert sum(output.rows for output in commit.outputs) == len(rows)
        assert {version.path: version.bytes for version in commit.superseded} == before
        assert staged_on(case, table, one.journal) == set()

    def test_the_table_shows_its_commits_to_every_process_at_any_time(self, case: Case, table: TableRef):
        commit = run(case, plan_all(case.format, table, "p", partitions=[case.parts[0]]), 2)
        other = run(case, plan_all(case.format, table, "q", partitions=[case.parts[-1]]))
        later = run(case, plan_all(case.format, table, "r"))
        for wanted in (commit, other, later):
            found = case.format.find_commit(table, wanted.plan_id)
            assert found is not None
            assert (found.instant, found.epoch) == (wanted.instant, wanted.epoch)
            assert set(found.outputs) == set(wanted.outputs)
            assert {v.path for v in found.superseded} == {v.path for v in wanted.superseded}
        landed = case.format.recent_commits(table, ["p", "r", "nobody's"])
        assert {plan_id: one.instant for plan_id, one in landed.items()} == {"p": commit.instant, "r": later.instant}
        assert case.format.find_commit(table, "nobody's") is None

    def test_a_verified_table_equals_its_commits_and_a_lost_file_is_named(self, case: Case, table: TableRef):
        commit = run(case, plan_all(case.format, table, "p"))
        found = case.format.verify(table, commit.superseded, rows=False)
        assert (found.files, found.bytes) == (len(case.parts), sum(output.bytes for output in commit.outputs))
        assert (found.missing, found.wrong_size, found.resurrected, found.unowned) == ((), (), (), ())
        superseded = {version.path for version in commit.superseded}
        assert set(case.format.verify(table, (), rows=False).unowned) <= superseded

    # Withdrawing.

    @pytest.mark.crossed(2)
    @pytest.mark.parametrize("written", [False, True])
    @pytest.mark.parametrize("known", [False, True])
    def test_a_withdrawn_plan_leaves_nothing_and_can_not_be_committed(
        self, case: Case, table: TableRef, written: bool, known: bool
    ):
        rows, before = case.rows(table), dict(case.stored(table))
        with attempt(case, plan_all(case.format, table, "p")) as sleeper, attempt(case, sleeper.plan, 2) as one:
            rewrite = sleeper.rewritten() if written else Rewrite(prepared=sleeper.prepared(), outputs=())
            one.journal = sleeper.journal
            with others_writing(case, sleeper.plan, one.journal) as theirs:
                assert one.discarded((rewrite.prepared.instant,) if known else None) <= 1
                assert (case.stored(table), staged_on(case, table, one.journal)) == ({**before, **theirs}, set())
                assert one.discarded(None) == 0, "again"
            if written:
                with pytest.raises(LakefoldError):
                    sleeper.writer.commit(rewrite)
            assert (case.rows(table), case.commits(table)) == (rows, [])
            assert one.committed().epoch == 2
        assert (case.rows(table), case.commits(table)) == (rows, [("p", 2)])

    # Writers.

    def test_a_plan_none_of_whose_groups_is_left_stages_nothing(self, case: Case, table: TableRef):
        plan = plan_all(case.format, table, "p", partitions=[case.parts[0]])
        assert case.update(table, case.parts[0])
        with attempt(case, plan) as one:
            with pytest.raises(Conflict):
                one.prepared()
            assert staged_on(case, table, one.journal) == set()

    @pytest.mark.crossed(2)
    @pytest.mark.parametrize("write", ["append", "update", "delete"])
    def test_a_writer_that_commits_in_between_loses_no_row(self, case: Case, table: TableRef, write: str):
        with attempt(case, plan_all(case.format, table, "p")) as one:
            rewrite = one.rewritten()
            before, arguments = case.rows(table), (10_000, 10_010) if write == "append" else ()
            wrote = getattr(case, write)(table, case.parts[0], *arguments)
            rows = case.rows(table)
            assert (rows != before) == wrote
            try:
                commit = one.writer.commit(rewrite)
            except Conflict:
                one.discarded(None)
                assert case.commits(table) == []
            else:
                left_out = case.parts[0] not in {output.partition for output in commit.outputs}
                assert left_out or not wrote or write == "append"
                assert left_out == (0 in {left.group for left in commit.skipped})
        assert case.rows(table) == rows
        found = case.format.verify(table, (), rows=False)
        assert (found.missing, found.wrong_size) == ((), ())

    @pytest.mark.parametrize("how", ["torn", "gone"])
    def test_an_input_that_can_not_be_read_keeps_its_group_out_of_the_commit(
        self, case: Case, table: TableRef, how: str
    ):
        plan = plan_all(case.format, table, "p")
        path = place(table.location) / str(plan.groups[0].slices[1].path)
        if how == "gone":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-100])
        named: Any = ()
        with attempt(case, plan) as one:
            try:
                prepared = one.prepared()
                if 0 in prepared.live_groups:
                    one.writer.rewrite(prepared, lambda progress: None)
                    raise AssertionError("it was read")
                named = prepared.skipped
            except Conflict as conflict:
                named = conflict.args[1]
            one.discarded(None)
        assert {left.group for left in named} == {0}
        quarantined = {name for left in named for name in left.quarantine}
        assert quarantined <= {str(item.path) for item in plan.groups[0].slices}, "as the planner knows them"

    # Deleting.

    def test_superseded_files_are_deleted_once_and_readers_see_no_difference(self, case: Case, table: TableRef):
        rows = case.rows(table)
        commit = run(case, plan_all(case.format, table, "p"))
        asked = case.format.deletion_blockers(table, commit.superseded)
        assert asked == dict.fromkeys(version.path for version in commit.superseded)
        assert case.format.obsolete_deletions(table, commit.superseded) == {}
        with case.format.writer(table, case.spark, case.engines) as writer:
            deletion = writer.delete(commit.superseded)
            left = {version for index, version in enumerate(commit.superseded) if index in deletion.retained}
            assert not left or Capability.OWN_EXPIRY in case.format.capabilities
            assert deletion.bytes_freed == sum(version.bytes for version in commit.superseded if version not in left)
            assert set(case.stored(table)) == {file.path for file in (*commit.outputs, *left)}
            assert writer.delete(commit.superseded).bytes_freed == 0, "they count as deleted"
        assert case.rows(table) == rows
        found = case.format.verify(table, (), rows=False)
        assert (found.missing, found.unowned) == ((), ())

    def test_a_live_file_is_never_deleted_nor_anything_with_it(self, case: Case, table: TableRef):
        rows = case.rows(table)
        commit = run(case, plan_all(case.format, table, "p"))
        output, one = commit.outputs[0], commit.superseded[0]
        alive = replace(one, path=output.path, bytes=output.bytes, partition=output.partition, modified_at=None)
        assert case.format.deletion_blockers(table, [alive])[output.path] is not None
        stored = dict(case.stored(table))
        with case.format.writer(table, case.spark, case.engines) as writer, pytest.raises(Conflict):
            writer.delete((*commit.superseded, alive))
        assert (case.stored(table), case.rows(table)) == (stored, rows)

    def test_a_path_that_holds_another_file_now_stays_with_a_reason(self, case: Case, table: TableRef):
        if Capability.OWN_EXPIRY in case.format.capabilities:
            return  # it deletes by the lists of its versions, and names are used once
        commit = run(case, plan_all(case.format, table, "p"))
        path = place(table.location) / commit.superseded[0].path
        path.write_bytes(b"a writer uses the name again")
        with case.format.writer(table, case.spark, case.engines) as writer:
            deletion = writer.delete(commit.superseded)
        assert set(deletion.retained) == {0}
        assert path.read_bytes() == b"a writer uses the name again"
        assert deletion.bytes_freed == sum(version.bytes for version in commit.superseded[1:])

    def test_the_deletion_is_fenced_right_before_it_begins(self, case: Case, table: TableRef):
        commit = run(case, plan_all(case.format, table, "p"))
        stored = dict(case.stored(table))

        def meanwhile() -> None:
            assert case.stored(table) == stored
            raise Conflict("another process was there meanwhile")

        with case.format.writer(table, case.spark, case.engines) as writer:
            writer.fence = meanwhile  # type: ignore[attr-defined]
            with pytest.raises(Conflict, match="meanwhile"):
                writer.delete(commit.superseded)
        assert case.stored(table) == stored


class PortContract(WholeTables):
    """The same, and the tests that need partitions."""

    def test_a_withdrawal_touches_no_commit_and_no_other_plan(self, case: Case, table: TableRef):
        rows = case.rows(table)
        with (
            attempt(case, plan_all(case.format, table, "p", partitions=["dt=0"])) as one,
            attempt(case, plan_all(case.format, table, "q", partitions=["dt=1"])) as other,
        ):
            theirs = other.rewritten()
            commit = one.committed()
            stored = dict(case.stored(table))
            assert (one.discarded(None), one.discarded((commit.instant, *(s.token for s in one.journal)))) == (0, 0)
            assert case.stored(table) == stored
            other.writer.commit(theirs)
        assert case.rows(table) == rows
        assert sorted(case.commits(table)) == [("p", 1), ("q", 1)]

    def test_groups_that_changed_since_the_planning_are_left_out_and_the_others_commit(
        self, case: Case, table: TableRef
    ):
        plan = plan_all(case.format, table, "p")
        assert case.update(table, "dt=0")
        rows = case.rows(table)
        with attempt(case, plan) as one:
            prepared = one.prepared()
            assert prepared.live_groups == (1,)
            assert [(left.group, bool(left.reason)) for left in prepared.skipped] == [(0, True)]
            commit = one.writer.commit(one.writer.rewrite(prepared, lambda progress: None))
        assert {output.partition for output in commit.outputs} == {"dt=1"}
        assert case.rows(table) == rows

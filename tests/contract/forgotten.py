# SPDX-License-Identifier: Apache-2.0
"""The contract of the port on tables whose commits expire; formats without expiry skip these tests."""

import pytest
from hdfs_paths import place

from contract.attempts import attempt, staged_on
from contract.case import Case
from contract.plans import plan_all
from lake.errors import LakefoldError
from lake.model import TableRef
from lake.ports import Capability


class Forgotten:
    """Expired commits of plans are neither denied, nor do their files remain."""

    @pytest.mark.parametrize("replaced", [False, True])
    def test_a_commit_that_its_table_no_longer_has_does_not_count_as_abandoned(
        self, case: Case, table: TableRef, replaced: bool
    ):
        if not case.forget(table):
            return
        with attempt(case, plan_all(case.format, table, "p")) as one:
            commit = one.committed()
            if replaced:  # except for the saved state, or a part of it
                saved = Capability.SAVEPOINTS in case.format.capabilities
                if saved:
                    case.save(table)  # type: ignore[attr-defined]
                for part in case.parts if saved else case.parts[:-1]:
                    case.update(table, part)
            case.forget(table)
            rows, stored = case.rows(table), dict(case.stored(table))
            assert stored.keys() >= {output.path for output in commit.outputs if not replaced}
            found = case.format.find_commit(table, "p")
            assert found is None or found.instant == commit.instant
            assert staged_on(case, table, one.journal) == set(), "forgotten, but not left"
            assert (one.discarded(None), one.discarded(tuple(s.token for s in one.journal))) == (0, 0)
        assert (case.rows(table), case.stored(table)) == (rows, stored)

    def test_a_withdrawn_plan_is_not_committed_after_the_record_of_its_withdrawal_was_pruned(
        self, case: Case, table: TableRef
    ):
        if not case.forget(table):
            return
        rows = case.rows(table)
        with attempt(case, plan_all(case.format, table, "p")) as sleeper, attempt(case, sleeper.plan, 2) as one:
            rewrite = sleeper.rewritten()
            written = {place(table.location) / output.path: b"" for output in rewrite.outputs}
            written = {path: path.read_bytes() for path in written}
            one.journal = sleeper.journal
            assert one.discarded(None) == 1
            case.forget(table)
            # If only the withdrawal prevents the commit, a task on another host may have written again.
            for path, content in written.items() if not sleeper.writer.max_commit_duration else ():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            with pytest.raises(LakefoldError):
                sleeper.writer.commit(rewrite)
        assert (case.rows(table), case.commits(table)) == (rows, [])

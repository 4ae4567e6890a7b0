# SPDX-License-Identifier: Apache-2.0
"""Attempts at plans, step by step, and the work that they leave on a table of any format."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath

import pytest
from hdfs_paths import place, remove_tree

from contract.case import Case
from lake.capabilities import FindsStaged, ListedInCatalog, ListedInMetastore, pending_instants
from lake.errors import Conflict
from lake.model import TableRef
from lake.plan import Commit, Plan, StagedWork
from lake.ports import PreparedPlan, Rewrite, TableWriter


class Attempt:
    """One attempt at a plan, step by step. ``journal`` has the stagings that the database would record."""

    def __init__(self, case: Case, plan: Plan, writer: TableWriter, epoch: int = 1) -> None:
        self.case, self.plan, self.writer, self.epoch = case, plan, writer, epoch
        self.journal: list[StagedWork] = []
        #: the data files in storage when the journal was called
        self.stored_then: dict[str, int] = {}
        writer.journal = self._told

    def _told(self, staged: StagedWork) -> None:
        self.journal.append(staged)
        self.stored_then = dict(self.case.stored(self.plan.table))

    def prepared(self) -> PreparedPlan:
        return self.writer.prepare(self.plan, self.epoch)

    def rewritten(self) -> Rewrite:
        return self.writer.rewrite(self.prepared(), lambda progress: None)

    def committed(self) -> Commit:
        return self.writer.commit(self.rewritten())

    def discarded(self, tokens: tuple[str, ...] | None) -> int:
        return self.writer.withdraw(self.plan.plan_id, tokens, staged=tuple(self.journal), epoch=self.epoch)

    def refused(self, rewrite: Rewrite) -> None:
        """The commit of ``rewrite`` is a conflict, the table has no commit, and a withdrawal removes the new files."""
        with pytest.raises(Conflict):
            self.writer.commit(rewrite)
        assert self.case.format.find_commit(self.plan.table, self.plan.plan_id) is None
        stored = set(self.case.stored(self.plan.table))
        assert self.discarded(None) == 1
        assert stored - set(self.case.stored(self.plan.table)) == {output.path for output in rewrite.outputs}


@contextmanager
def attempt(case: Case, plan: Plan, epoch: int = 1) -> Iterator[Attempt]:
    """Open a writer for one attempt."""
    with case.format.writer(plan.table, case.spark, case.engines) as writer:
        yield Attempt(case, plan, writer, epoch)


def run(case: Case, plan: Plan, epoch: int = 1) -> Commit:
    """Run one attempt from its preparation to its commit."""
    with attempt(case, plan, epoch) as one:
        return one.committed()


def staged_on(case: Case, table: TableRef, staged: list[StagedWork]) -> set[str]:
    """Return the tokens of uncommitted work on a table, as the table shows them or by the journal's paths."""
    left = case.format.remaining_staged(table, staged) if isinstance(case.format, FindsStaged) else ()
    return {*pending_instants(case.format, table), *left}


@contextmanager
def others_writing(case: Case, plan: Plan, staged: list[StagedWork]) -> Iterator[dict[str, int]]:
    """Create uncommitted files of other writers' jobs beside the inputs of ``plan``; yields their paths and bytes."""
    before, base = case.stored(plan.table), place(plan.table.location)
    paths = [PurePosixPath(str(group.slices[0].path)) for group in plan.groups]
    theirs = [str(path.with_name("_temporary") / "0" / path.name) for path in paths]
    for path, theirs_of_it in zip(paths, theirs, strict=True):
        (base / theirs_of_it).parent.mkdir(parents=True)
        (base / theirs_of_it).write_bytes((base / str(path)).read_bytes())
    assert not any(path.startswith(one.paths) for one in staged for path in theirs), "a prefix is lakefold's alone"
    yield {path: size for path, size in case.stored(plan.table).items() if path not in before}
    for path in theirs:
        assert (base / path).exists(), "theirs stays"
        remove_tree(str((base / path).parent.parent))


def live(case: Case, table: TableRef) -> dict[str, int]:
    """Return the base files that the format lists, with their bytes."""
    rows = case.format.snapshot(table).slices.to_pylist()
    return {row["path"]: row["bytes"] for row in rows if row["path"]}


def found_again(case: Case, table: TableRef) -> Iterator[TableRef]:
    """Return the tables that the format finds in the table's catalog or, without a catalog, at its location."""
    if table.catalog is None:
        return case.format.discover(table.location)
    database, _, name = table.catalog.table.rpartition(".")
    if isinstance(case.format, ListedInCatalog):
        return case.format.discover_in_catalog(table.catalog.name, database, name)
    assert isinstance(case.format, ListedInMetastore)
    return case.format.discover_in_metastore(table.catalog.name, database, name)

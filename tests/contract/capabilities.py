# SPDX-License-Identifier: Apache-2.0
"""The contract of each ``Capability``: a format that declares it supports it, and its use on other formats is refused.

To test a format, subclass ``CapabilityContract`` with a fixture ``case``. For some capabilities the case needs one more
method, an action of other programs on the table; the test of the capability names it.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow.parquet as pq
import pytest

from contract.attempts import attempt, live, run
from contract.case import Case
from contract.plans import plan_all
from lake.capabilities import (
    MIN_ORPHAN_AGE,
    WRITER_PROTOCOLS,
    FindsOrphans,
    FindsResurrected,
    FindsStaged,
    HasTimeline,
    OrphanSearch,
    capabilities_of,
    pending_actions,
    require_capability,
)
from lake.errors import Conflict, Rejected
from lake.formats import FORMATS
from lake.model import TableRef
from lake.plan import PlanKind
from lake.ports import Capability, TableFormat, TableWriter
from planner.policy.compatibility import unsupported_settings
from planner.policy.policy import SizingPolicy

OF_FORMAT = {
    Capability.ADOPTION: HasTimeline,
    Capability.ROLL_BACK: HasTimeline,
    Capability.REPAIR: FindsResurrected,
    Capability.ORPHAN_REMOVAL: FindsOrphans,
}
"""The protocols of a format that a protocol of its writer needs."""


def check_capabilities(format_: TableFormat, writer: TableWriter) -> None:
    """Check that the capabilities follow from the writer, and that the format implements the protocols they need."""
    assert format_.capabilities == capabilities_of(type(writer), *format_.capabilities - WRITER_PROTOCOLS.keys())
    lacking = [one for one, part in OF_FORMAT.items() if one in format_.capabilities and not isinstance(format_, part)]
    assert lacking == []
    assert bool(format_.services) == (Capability.TABLE_SERVICES in format_.capabilities)


def _compaction(case: Any, table: TableRef) -> None:
    """A writer's updates are in logs beside the base files until a plan merges them."""
    written = _last_written(case, table)
    case.update(table, "dt=0")
    rows, plan = case.rows(table), plan_all(case.format, table, "p")
    groups = tuple(replace(g, slices=(s,)) for g in plan.groups for s in g.slices if s.log_files)
    assert {group.partition for group in groups} == {"dt=0"}
    assert all(group.slices[0].log_bytes > 0 for group in groups)
    now = _last_written(case, table)
    younger = {name for name in now.keys() & written.keys() if now[name] > written[name]}
    assert younger == {slice_.file_id for group in groups for slice_ in group.slices}, "modified_at counts deltas"
    run(case, replace(plan, kind=PlanKind.COMPACTION, groups=groups))
    slices = case.format.snapshot(table).slices.to_pylist()
    assert [row["log_files"] for row in slices] == [[]] * len(slices)
    assert case.rows(table) == rows


def _last_written(case: Any, table: TableRef) -> dict[str, datetime]:
    """Return the time of the last write to each slice, by its file id."""
    return {row["file_id"]: row["modified_at"] for row in case.format.snapshot(table).slices.to_pylist()}


def _adoption(case: Any, table: TableRef) -> None:
    """``case.schedule(table)``: another process schedules a rewrite of all slices; returns its token."""
    token, rows = case.schedule(table), case.rows(table)
    (entry,) = pending_actions(case.format, table)
    assert (entry.instant, entry.is_begun, entry.plan_id, entry.refusal) == (token, False, None, None)
    plan = replace(plan_all(case.format, table, "p"), adopted_instant=token, kind=entry.kind, groups=entry.groups)
    with attempt(case, plan) as one:
        one.rewritten()
        assert [begun.is_begun for begun in pending_actions(case.format, table)] == [True]
        one.writer.abort_adopted(token, "p")
        assert [(back.instant, back.is_begun) for back in pending_actions(case.format, table)] == [(token, False)]
    assert run(case, plan, 2).instant == token
    assert (list(pending_actions(case.format, table)), case.rows(table)) == ([], rows)


def _table_services(case: Any, table: TableRef) -> None:
    rows, commit = case.rows(table), run(case, plan_all(case.format, table, "p"))
    stored = case.stored(table)
    with case.format.writer(table, case.spark, case.engines) as writer:
        told = writer.maintain(case.format.services, commit.superseded)
    assert all(isinstance(line, str) for line in told)
    assert (case.rows(table), case.stored(table)) == (rows, stored), "what is retained stays"


def _roll_back(case: Any, table: TableRef) -> None:
    """``case.abandon(table)``: another process begins a write and dies; returns its token."""
    token, rows = case.abandon(table), case.rows(table)
    (entry,) = pending_actions(case.format, table)
    assert (entry.instant, entry.is_begun, entry.is_abandoned) == (token, True, True)
    with case.format.writer(table, case.spark, case.engines) as writer:
        assert isinstance(writer.roll_back(token), str)
    assert (list(pending_actions(case.format, table)), case.rows(table)) == ([], rows)


def _savepoints(case: Any, table: TableRef) -> None:
    """``case.save(table)`` and ``case.release(table)``: the owner saves the present state, and releases it."""
    case.save(table)
    commit = run(case, plan_all(case.format, table, "p"))
    assert None not in case.format.deletion_blockers(table, commit.superseded).values()
    stored = case.stored(table)
    with case.format.writer(table, case.spark, case.engines) as writer:
        with pytest.raises(Conflict):
            writer.delete(commit.superseded)
        assert case.stored(table) == stored
        case.release(table)
        assert set(case.format.deletion_blockers(table, commit.superseded).values()) == {None}
        assert writer.delete(commit.superseded).bytes_freed > 0


def _merged_reads(case: Any, table: TableRef) -> None:
    case.update(table, "dt=0")
    case.delete(table, "dt=0")
    rows = len(case.rows(table))
    with attempt(case, plan_all(case.format, table, "p")) as one:
        rewrite = one.rewritten()
        read = Counter[str]()
        for partition in ("dt=0", "dt=1"):
            for batch in one.writer.read_inputs(rewrite.prepared, partition):
                read[partition] += batch.num_rows
        written = Counter[str]()
        for output in rewrite.outputs:
            written[output.partition] += output.rows
        assert (read, read.total()) == (written, rows)
        one.discarded(None)


def _repair(case: Any, table: TableRef) -> None:
    run(case, plan_all(case.format, table, "p"))
    stored = case.stored(table)
    assert list(case.format.find_resurrected(table)) == []
    with case.format.writer(table, case.spark, case.engines) as writer:
        assert list(writer.remove_resurrected()) == []
    assert case.stored(table) == stored


def _orphan_removal(case: Any, table: TableRef) -> None:
    run(case, plan_all(case.format, table, "p"))
    stored, search = case.stored(table), OrphanSearch(older_than=MIN_ORPHAN_AGE, tracked=tuple)
    assert list(case.format.find_orphans(table, search)) == []
    with case.format.writer(table, case.spark, case.engines) as writer:
        assert list(writer.remove_orphans((), search)) == []
    assert case.stored(table) == stored


def _own_expiry(case: Any, table: TableRef) -> None:
    """Files that a plan replaced are deleted, or left to the table's expiry, which finally deletes all of them."""
    first, rows = run(case, plan_all(case.format, table, "p")), case.rows(table)
    second = run(case, plan_all(case.format, table, "q"))
    replaced = (*first.superseded, *second.superseded)
    with case.format.writer(table, case.spark, case.engines) as writer:
        deletion = writer.delete(replaced)
    there = case.stored(table)
    assert deletion.retained.keys() == {index for index, version in enumerate(replaced) if version.path in there}
    assert all(deletion.retained.values()), "with a reason"
    assert deletion.bytes_freed == sum(v.bytes for index, v in enumerate(replaced) if index not in deletion.retained)
    assert not case.format.verify(table, (), rows=False).unowned, "what is left is the table's"
    assert case.forget(table)
    assert (set(case.stored(table)), case.rows(table)) == ({output.path for output in second.outputs}, rows)


def _table_lock(case: Any, table: TableRef) -> None:
    with case.format.writer(table, case.spark, case.engines) as writer:
        assert not writer.max_commit_duration, "a holder keeps the lock until its commit has ended"


def _optimistic_commits(case: Any, table: TableRef) -> None:
    """A writer without any settings for lakefold commits before a plan, and then after one."""
    with attempt(case, plan_all(case.format, table, "p")) as one:
        rewrite = one.rewritten()
        assert case.delete(table, "dt=0")
        rows = case.rows(table)
        with pytest.raises(Conflict):
            one.writer.commit(rewrite)
        one.discarded(None)
    assert case.rows(table) == rows
    run(case, plan_all(case.format, table, "q"))
    assert case.delete(table, "dt=0")
    assert set(case.rows(table)) < set(rows), "what it changed is what the commit left"


def _native_groups(case: Any, table: TableRef) -> None:
    assert list(unsupported_settings(SizingPolicy(strategy=case.format.name), case.format)) == []


def _sorting(case: Any, table: TableRef) -> None:
    commit = run(case, plan_all(case.format, table, "p", sort_columns=("id",)))
    for output in commit.outputs:
        ids = pq.read_table(Path(table.location) / output.path, partitioning=None)["id"].to_pylist()
        assert ids == sorted(ids)


EXERCISES: Mapping[Capability, Callable[[Any, TableRef], None]] = MappingProxyType(
    {
        Capability.COMPACTION: _compaction,
        Capability.ADOPTION: _adoption,
        Capability.TABLE_SERVICES: _table_services,
        Capability.ROLL_BACK: _roll_back,
        Capability.SAVEPOINTS: _savepoints,
        Capability.MERGED_READS: _merged_reads,
        Capability.REPAIR: _repair,
        Capability.ORPHAN_REMOVAL: _orphan_removal,
        Capability.OWN_EXPIRY: _own_expiry,
        Capability.TABLE_LOCK: _table_lock,
        Capability.OPTIMISTIC_COMMITS: _optimistic_commits,
        Capability.NATIVE_GROUPS: _native_groups,
        Capability.SORTING: _sorting,
    }
)
"""What is done with a table of a format that declares the capability."""


def _strategy(format_: TableFormat) -> str:
    """The strategy named after the format; of a format without one, the strategy of another format is refused."""
    return format_.name if format_.name in FORMATS else FORMATS[0]


SETTINGS: Mapping[Capability, Callable[[TableFormat], dict[str, Any]]] = MappingProxyType(
    {
        Capability.NATIVE_GROUPS: lambda format_: {"strategy": _strategy(format_)},
        Capability.SORTING: lambda format_: {"sort_columns": ("id",)},
        Capability.TABLE_SERVICES: lambda format_: {"table_services": format_.services or ("clean",)},
        Capability.ADOPTION: lambda format_: {"adopt_pending": True},
    }
)
"""What a policy sets that only tables with the capability can honour."""


class CapabilityContract:
    """The tests of every format's capabilities."""

    @pytest.fixture
    def table(self, case: Case, tmp_path: Path) -> TableRef:
        return case.create(tmp_path / "lake" / "t", name="t")

    def test_a_format_has_the_protocols_of_exactly_its_declared_capabilities(self, case: Case, table: TableRef):
        check_capabilities(case.format, case.format.writer(table, case.spark, case.engines))

    def test_staged_work_is_found_on_the_table_or_in_the_journal(self, case: Case):
        assert isinstance(case.format, (HasTimeline, FindsStaged))

    @pytest.mark.parametrize("capability", Capability)
    def test_a_format_supports_its_declared_capabilities_and_is_refused_the_others(
        self, case: Case, table: TableRef, capability: Capability
    ):
        if capability in case.format.capabilities:
            require_capability(case.format, table, capability)
            refused = (
                pytest.raises(Rejected, match=case.lacks[capability]) if capability in case.lacks else nullcontext()
            )
            with refused:
                EXERCISES[capability](case, table)
            assert live(case, table), "it is a table still"
        else:
            with pytest.raises(Rejected, match=rf"^t: {case.format.name} tables have no "):
                require_capability(case.format, table, capability)

    @pytest.mark.parametrize("capability", SETTINGS)
    def test_a_setting_that_it_can_not_honour_is_refused_with_that_reason(self, case: Case, capability: Capability):
        lines = list(unsupported_settings(SizingPolicy(**SETTINGS[capability](case.format)), case.format))
        assert [f"{case.format.name} tables" in line for line in lines] == [True] * len(lines)
        assert len(lines) == (0 if capability in case.format.capabilities else 1)

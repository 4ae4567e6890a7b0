# SPDX-License-Identifier: Apache-2.0
"""The inputs of planning besides locks and the requested scope: read once for a scan, and carried through it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lake.model import Snapshot
from lake.plan import DeclinedPlan, FailedPlan
from planner.budgets import PlanSizeLimit, plan_size_limit, table_budget
from planner.cost import CostInputs
from planner.rates import fit_rates
from service.control.config.table_settings import ConfiguredTable
from service.control.store.views import TableState

if TYPE_CHECKING:
    from service.control.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningInputs:
    """A table at one snapshot, and everything that the database adds to its planning, except locks.

    ``table`` has the observed rate of reads. ``quarantined`` are the paths of quarantined files. ``replaced_files`` are
    quarantined paths that have another file now, with the size of the quarantined file. ``size_limit`` is the size up
    to which groups and plans fit into the budgets. If plans need approval, ``declined`` are the plans that are not
    proposed again.
    """

    table: ConfiguredTable
    snapshot: Snapshot
    cost_inputs: CostInputs
    size_limit: PlanSizeLimit | None
    quarantined: Sequence[str]
    replaced_files: Mapping[str, int]
    failed: Sequence[FailedPlan]
    declined: Sequence[DeclinedPlan]
    needs_approval: bool


def read_planning_inputs(
    store: "Store", table: ConfiguredTable, state: TableState | None, snapshot: Snapshot, *, is_requested: bool = False
) -> PlanningInputs:
    """Read the inputs for planning ``table`` at ``snapshot``.

    ``table`` has the observed rate of reads, if there is one. In mode ``propose``, plans need approval unless a person
    requested them (``is_requested``). ``state`` is None for a table that is not registered.
    """
    replaced = _replaced_quarantined_files(state, snapshot) if state else {}
    needs_approval = table.mode == "propose" and not is_requested
    failed = store.failed_plans(table.name, table.settings_digest)
    declined = store.declined_plans(table.name, table.settings_digest) if needs_approval else ()
    cost_inputs, budget = table_cost_inputs(store, table), table_budget(table.policy)
    return PlanningInputs(
        table=table,
        snapshot=snapshot,
        cost_inputs=cost_inputs,
        size_limit=plan_size_limit(budget, table.work_budget, cost_inputs.rates),
        quarantined=tuple(path for path in state.quarantined if path not in replaced) if state else (),
        replaced_files=replaced,
        failed=failed,
        declined=declined,
        needs_approval=needs_approval,
    )


def _replaced_quarantined_files(state: TableState, snapshot: Snapshot) -> dict[str, int]:
    """Return the quarantined paths that have another file now, each with the size of the quarantined file."""
    known = state.quarantined_bytes
    if not known:
        return {}
    slices = snapshot.slices
    there = slices.filter(pc.is_in(slices["path"], value_set=pa.array(sorted(known), pa.string())))
    found = zip(there["path"].to_pylist(), there["bytes"].to_pylist(), strict=True)
    return {path: known[path] for path, size in found if size != known[path]}


def table_cost_inputs(store: "Store", table: ConfiguredTable) -> CostInputs:
    """Return the cost inputs of ``table``: the history of its format and engine, the prices, its retention."""
    engine = table.policy.engine
    return CostInputs(
        rates=fit_rates(engine, store.cpu_history(table.ref.format, engine)),
        prices=table.prices,
        retention=table.policy.retention,
        are_reads_observed=table.has_observed_reads,
    )

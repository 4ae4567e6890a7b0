# SPDX-License-Identifier: Apache-2.0
"""The inputs of cost estimates for a table's plans: this installation's history, prices, and the retention of files."""

from typing import TYPE_CHECKING

from planner.cost import CostInputs, fit_rates
from service.control.config.table_settings import ConfiguredTable

if TYPE_CHECKING:
    from service.control.store import Store


def table_cost_inputs(store: "Store", table: ConfiguredTable) -> CostInputs:
    """Return the cost inputs of ``table``: the history of its format and engine, the prices, its retention."""
    engine = table.policy.engine
    return CostInputs(
        rates=fit_rates(engine, store.cpu_history(table.ref.format, engine)),
        prices=table.prices,
        retention=table.policy.retention,
        are_reads_observed=table.has_observed_reads,
    )

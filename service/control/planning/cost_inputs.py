# SPDX-License-Identifier: Apache-2.0
"""What plans of a table are appraised by: this installation's own history, prices, and how long files stay stored."""

from typing import TYPE_CHECKING

from planner.cost import CostInputs, fit_rates
from service.control.config.tables import ConfiguredTable

if TYPE_CHECKING:
    from service.control.store import Store


def table_cost_inputs(store: "Store", table: ConfiguredTable) -> CostInputs:
    """The terms of ``table``: the history of its format and engine, the prices, its retention."""
    engine = table.policy.engine
    return CostInputs(
        rates=fit_rates(engine, store.cpu_history(table.ref.format, engine)),
        prices=table.prices,
        retention=table.policy.retention,
    )

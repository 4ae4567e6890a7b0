# SPDX-License-Identifier: Apache-2.0
"""What plans of a table are appraised by: this installation's own history, prices, and how long files stay stored."""

from typing import TYPE_CHECKING

from planner.cost import Terms, rates
from service.config.tables import ConfiguredTable

if TYPE_CHECKING:
    from service.store import Store


def terms_of(store: "Store", table: ConfiguredTable) -> Terms:
    """The terms of ``table``: the history of its format and engine, the prices, its retention."""
    engine = table.policy.engine
    return Terms(
        rates=rates(engine, store.work_done(table.ref.format, engine)),
        prices=table.prices,
        retention=table.policy.retention,
    )

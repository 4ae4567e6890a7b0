# SPDX-License-Identifier: Apache-2.0
"""What plans took: the history that predictions are made from."""

from collections.abc import Mapping, Sequence

from sqlalchemy import select

from lake.plan import Step
from service.store.base import StorePart
from service.store.models import PlanRow

#: completed plans that tell how long the next one takes
_NEWEST = 100


def cpu_milliseconds(spent: Mapping[str, int], rewrite_cpu_ms: int | None, cores: float) -> int:
    """CPU time of a plan: of its rewriting what was measured, of steps that nobody measured their time on ``cores``.

    Starting Spark is not part of it: it says nothing of the next plan.
    """
    measured = (Step.START,) if rewrite_cpu_ms is None else (Step.START, Step.REWRITE)
    return (rewrite_cpu_ms or 0) + round(cores * sum(took for step, took in spent.items() if step not in measured))


class Work(StorePart):
    """What completed plans took."""

    def work_done(self, format_name: str, engine: str) -> Sequence[tuple[int, float]]:
        """Bytes and CPU seconds of the newest completed plans of a format that were for this ``engine``."""
        query = (
            select(PlanRow.input_bytes, PlanRow.used_cpu_ms)
            .where(PlanRow.format == format_name, PlanRow.engine == engine, PlanRow.used_cpu_ms.is_not(None))
            .order_by(PlanRow.finalized_at_ms.desc())
            .limit(_NEWEST)
        )
        with self._database.read() as connection:
            return [(row.input_bytes, row.used_cpu_ms / 1000) for row in connection.execute(query)]

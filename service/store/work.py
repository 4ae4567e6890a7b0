# SPDX-License-Identifier: Apache-2.0
"""What plans took: the history that predictions are made from."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Row, select

from lake.plan import Step
from service.store.base import StorePart
from service.store.models import PlanRow

#: completed plans that tell how long the next one takes
_HISTORY_PLANS = 100


def attempt_cpu_ms(
    step_milliseconds: Mapping[str, int], rewrite_cpu_ms: int | None, cores: float, *, completed: bool = True
) -> int:
    """CPU time of an attempt: what was measured of its rewriting, of other steps their time on ``cores``.

    Unless it ``completed`` the plan, tasks that ran at its end may have told nothing: then the time of the rewriting
    counts where that is more. Starting Spark is not part of it: it says nothing of the next plan.
    """
    rewriting = cores * step_milliseconds.get(Step.REWRITE, 0)
    if rewrite_cpu_ms is not None:
        rewriting = rewrite_cpu_ms if completed else max(rewrite_cpu_ms, rewriting)
    others = sum(took for step, took in step_milliseconds.items() if step not in (Step.START, Step.REWRITE))
    return round(rewriting + cores * others)


def add_step_time(step_milliseconds: Mapping[str, int], step: Step, milliseconds: int) -> Mapping[str, int]:
    """What the steps of an attempt took, with so much more of ``step``."""
    return {**step_milliseconds, step.value: step_milliseconds.get(step, 0) + milliseconds}


def step_times_until_heartbeat(row: Row[Any]) -> Mapping[str, int]:
    """What the steps of an attempt took whose executor is silent: it was at the last one until its last heartbeat."""
    steps = list(Step)
    underway = steps[0] if row.step is None else steps[min(steps.index(Step(row.step)) + 1, len(steps) - 1)]
    known = row.step_at_ms is not None  # unless an earlier lakefold had begun the attempt
    since = row.step_at_ms if known else row.claimed_at_ms + sum(row.milliseconds.values())
    return add_step_time(row.milliseconds, underway, max(0, row.heartbeat_at_ms - since))


class CpuHistory(StorePart):
    """What completed plans took."""

    def cpu_history(self, format_name: str, engine: str) -> Sequence[tuple[int, float]]:
        """Bytes and CPU seconds of the newest completed plans of a format that were for this ``engine``."""
        query = (
            select(PlanRow.input_bytes, PlanRow.used_cpu_ms)
            .where(PlanRow.format == format_name, PlanRow.engine == engine, PlanRow.used_cpu_ms.is_not(None))
            .order_by(PlanRow.finalized_at_ms.desc())
            .limit(_HISTORY_PLANS)
        )
        with self._database.read() as connection:
            return [(row.input_bytes, row.used_cpu_ms / 1000) for row in connection.execute(query)]

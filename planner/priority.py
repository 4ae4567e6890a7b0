# SPDX-License-Identifier: Apache-2.0
"""The order in which plans start, by the ratio of benefit to cost and by waiting time."""

import math
from collections.abc import Iterable
from datetime import timedelta

#: the limit for plans without benefit or without cost; it bounds how long a plan can be overtaken
MAX_DOUBLINGS = 20


def priority_offset(benefit_cost_ratio: float, weight: float, ageing: timedelta) -> timedelta:
    """Return by how much a plan's position in the queue is earlier than its creation; negative: later.

    ``benefit_cost_ratio`` is the share of its cost that a plan saves per day. Each doubling counts as ``ageing``: a
    plan that has waited longer by more than ``ageing`` precedes a plan that saves twice as much. Apart from
    ``objective_urgency``, the order of two plans never changes while they wait, and a plan is never overtaken by plans
    created more than 2 × MAX_DOUBLINGS × ``ageing`` later.
    """
    value = benefit_cost_ratio * weight
    doublings = math.log2(value) if value > 0 else -MAX_DOUBLINGS
    return ageing * min(max(doublings, -MAX_DOUBLINGS), MAX_DOUBLINGS)


def objective_urgency(budgets_left: Iterable[float], ageing: timedelta) -> timedelta:
    """Return the additional offset for plans of a table that misses objectives.

    ``budgets_left`` are the shares left of these objectives' error budgets. The offset puts a plan before every plan
    created at the same moment for a table that meets its objectives. It grows by up to MAX_DOUBLINGS × ``ageing`` with
    the spent share of the error budget. With this offset a plan is never overtaken by plans created more than
    5 × MAX_DOUBLINGS × ``ageing`` later.
    """
    spent = (1 - min(max(left, 0), 1) for left in budgets_left)
    return ageing * max((MAX_DOUBLINGS * (2 + share) for share in spent), default=0)

# SPDX-License-Identifier: Apache-2.0
"""The order in which plans start: what they save for what they cost, and how long they have waited."""

import math
from collections.abc import Iterable
from datetime import timedelta

#: what nothing saves or nothing costs counts as; it bounds how long a plan can be overtaken
MAX_DOUBLINGS = 20


def priority_offset(benefit_cost_ratio: float, weight: float, ageing: timedelta) -> timedelta:
    """How much earlier a plan counts as made than it was, or later where it is negative.

    ``benefit_cost_ratio`` is the share of its cost that it saves each day; each doubling counts as ``ageing``, and so a plan that
    has waited so much longer than another goes before it though it saves half as much. But for ``urgency`` the order of
    two plans never changes while they wait, and none is overtaken by one that is made later than 2 × MOST_DOUBLINGS ×
    ``ageing`` after it.
    """
    value = benefit_cost_ratio * weight
    doublings = math.log2(value) if value > 0 else -MAX_DOUBLINGS
    return ageing * min(max(doublings, -MAX_DOUBLINGS), MAX_DOUBLINGS)


def objective_urgency(budgets_left: Iterable[float], ageing: timedelta) -> timedelta:
    """How much earlier still the plans of a table count as made that misses objectives of whose error budgets these
    shares are left.

    So much that a plan goes before whatever is made in the same moment for a table that misses nothing, and earlier by
    up to MOST_DOUBLINGS × ``ageing`` the more of a budget is spent. With it none is overtaken by a plan that is made
    later than 5 × MOST_DOUBLINGS × ``ageing`` after it.
    """
    spent = (1 - min(max(left, 0), 1) for left in budgets_left)
    return ageing * max((MAX_DOUBLINGS * (2 + share) for share in spent), default=0)

# SPDX-License-Identifier: Apache-2.0
"""Former names of commands' and requests' words, accepted for one release, each with the present name."""

from collections.abc import Mapping
from types import MappingProxyType

#: values of ``sort`` for tables
FORMER_ORDERS: Mapping[str, str] = MappingProxyType(
    {
        "worst": "attention",
        "median": "median_bytes",
        "rewrite": "rewrite_bytes",
        "plan": "last_plan",
        "scanned": "last_scan",
        "budget": "error_budget",
    }
)
#: values of ``state`` for tables
FORMER_STATES: Mapping[str, str] = MappingProxyType({"missed": "objective_missed"})
#: values of ``lakefold tables resolve --take``, which is called ``--keep`` now
FORMER_LOCATIONS: Mapping[str, str] = MappingProxyType({"old": "previous", "new": "current"})


def present_order(sort: str) -> str:
    """Return ``sort`` with the present name of its order; a leading ``-`` stays."""
    word = sort.removeprefix("-")
    return sort.replace(word, FORMER_ORDERS.get(word, word)) if word else sort

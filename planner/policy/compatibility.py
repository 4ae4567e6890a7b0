# SPDX-License-Identifier: Apache-2.0
"""The compatibility of a policy with a table's format: one line for each setting that the format does not support."""

from collections.abc import Iterator

from lake.ports import Capability, FormatFeatures
from planner.policy.enums import BALANCED
from planner.policy.policy import SizingPolicy


def unsupported_settings(policy: SizingPolicy, features: FormatFeatures) -> Iterator[str]:
    """Yield a line for each setting that the format does not support: value, rule, and the setting to change."""
    tables, can = f"{features.name} tables", features.capabilities
    own = features.name if Capability.NATIVE_GROUPS in can else None
    if policy.strategy not in (BALANCED, own):
        known = " or ".join(filter(None, (BALANCED, own)))
        yield f"strategy is {policy.strategy!r} but must be {known} for {tables}; set strategy"
    if policy.sort_columns and Capability.SORTING not in can:
        given = ",".join(policy.sort_columns)
        yield f"sort_columns is {given!r} but rewrites of {tables} can't order rows; unset sort_columns and layout"
    if not set(policy.table_services) <= set(features.services):
        given = ",".join(policy.table_services)
        known = f"must list some of {', '.join(features.services)}" if features.services else "must be empty"
        yield f"table_services is {given!r} but {known} for {tables}; set table_services"
    if policy.adopt_pending and Capability.ADOPTION not in can:
        yield f"adopt_pending is true but {tables} have no plans of other processes; set adopt_pending = false"

# SPDX-License-Identifier: Apache-2.0
"""Settings that a table's format can't honour are refused with the setting to change."""

from dataclasses import dataclass
from typing import Any

import pytest

from lake.formats import FORMATS, load_format
from lake.ports import Capability
from planner.policy.compatibility import unsupported_settings
from planner.policy.policy import SizingPolicy


@dataclass(frozen=True)
class Format:
    name: str = "plain"
    capabilities: frozenset[Capability] = frozenset()
    services: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("settings", "capability", "line"),
    [
        (
            {"strategy": "hudi"},
            None,
            "strategy is 'hudi' but must be balanced for plain tables; set strategy",
        ),
        (
            {"sort_columns": "a,b", "layout": "zorder"},
            Capability.SORTING,
            "sort_columns is 'a,b' but rewrites of plain tables can't order rows; unset sort_columns and layout",
        ),
        (
            {"table_services": "sweep"},
            Capability.TABLE_SERVICES,
            "table_services is 'sweep' but must be empty for plain tables; set table_services",
        ),
        (
            {"adopt_pending": True},
            Capability.ADOPTION,
            "adopt_pending is true but plain tables have no plans of other processes; set adopt_pending = false",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_setting_is_refused_without_the_capability_it_needs(
    settings: dict[str, Any], capability: Capability | None, line: str
) -> None:
    policy = SizingPolicy.from_settings(settings)
    assert list(unsupported_settings(policy, Format())) == [line]
    if capability is not None:
        assert (
            list(unsupported_settings(policy, Format(capabilities=frozenset({capability}), services=("sweep",)))) == []
        )


def test_a_service_that_the_format_lacks_is_refused_with_the_formats_services() -> None:
    policy = SizingPolicy.from_settings({"table_services": "clean, vacuum"})
    (line,) = unsupported_settings(policy, load_format("hudi"))
    assert line == (
        "table_services is 'clean,vacuum' but must list some of clean, archive, rollback for hudi tables; set "
        "table_services"
    )


@pytest.mark.parametrize("name", FORMATS)
def test_a_strategy_of_a_formats_name_is_offered_by_its_capability(name: str) -> None:
    found = load_format(name)
    refused = list(unsupported_settings(SizingPolicy(strategy=name), found))
    assert bool(refused) == (Capability.NATIVE_GROUPS not in found.capabilities)
    assert list(unsupported_settings(SizingPolicy(strategy=name), Format(capabilities=frozenset(Capability)))) != []

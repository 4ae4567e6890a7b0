# SPDX-License-Identifier: Apache-2.0
"""``[cost]`` and ``[work]`` of the configuration: the prices of plans' work, and the order of plans."""

from datetime import timedelta
from typing import Annotated

from pydantic import BeforeValidator, Field, field_validator, model_validator

from lake.formats import load_formats
from lake.ports import Capability
from lake.units import parse_bytes
from service.control.config.field_types import Duration, SettingsSection

Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(ge=0)]
#: the objective that orders plans by their savings for their cost
OBJECTIVE_BENEFIT = "benefit"


class CostSettings(SettingsSection):
    """``[cost]``: prices in any one currency, and the cores that a plan keeps busy."""

    cores_per_plan: float = Field(
        default=1.0,
        gt=0,
        description="the number of cores that a plan uses in steps without measured CPU time (all steps except "
        "rewriting): the duration of these steps is multiplied by this number",
    )
    cpu_hour: float = Field(
        default=0.0, ge=0, description="the price of a CPU hour; if it is set, plans show their cost in money"
    )
    request_1000: float = Field(
        default=0.0, ge=0, description="the price of a thousand requests to storage; needs `cpu_hour`"
    )
    gib_month: float = Field(default=0.0, ge=0, description="the price of a GiB stored for a month; needs `cpu_hour`")
    currency: str = Field(default="", max_length=8, description="the currency of the prices, such as `EUR`")

    @model_validator(mode="after")
    def _check_prices(self) -> "CostSettings":
        if not self.cpu_hour and (self.request_1000 or self.gib_month):
            raise ValueError("request_1000 and gib_month need cpu_hour, or rewriting would seem to cost nothing")
        return self


class WorkSettings(SettingsSection):
    """``[work]``: the order of plans, and the budget of the plans of all tables together."""

    objective: str = Field(
        default=OBJECTIVE_BENEFIT,
        description="`benefit`: the plan with the largest saving per cost runs first; the name of a format that has a "
        "planner of its own: the oldest plan runs first, as in that planner",
    )
    ageing: Duration = Field(
        default=timedelta(hours=1),
        gt=timedelta(0),
        description="a plan that has waited this long counts as if its saving per cost were doubled",
    )

    bytes_per_hour: Bytes = Field(
        default=0, description="bytes that all plans may rewrite in any 60 minutes; 0: any number"
    )
    bytes_per_day: Bytes = Field(
        default=0, description="bytes that all plans may rewrite in any 24 hours; 0: any number"
    )
    cpu_hours_per_hour: float = Field(
        default=0.0, ge=0, description="CPU hours that all plans may use in any 60 minutes; 0: any number"
    )
    cpu_hours_per_day: float = Field(
        default=0.0, ge=0, description="CPU hours that all plans may use in any 24 hours; 0: any number"
    )

    @field_validator("objective")
    @classmethod
    def _check_objective(cls, word: str) -> str:
        known = [
            OBJECTIVE_BENEFIT,
            *(one.name for one in load_formats() if Capability.NATIVE_GROUPS in one.capabilities),
        ]
        if word not in known:
            raise ValueError(f"must be {' or '.join(known)}")
        return word

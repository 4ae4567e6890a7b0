# SPDX-License-Identifier: Apache-2.0
"""The filter of plans in a page's address; an empty field of a form does not filter."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Depends, Query
from pydantic import model_validator

from service.control.store import PlanFilter
from service.server.api.filters import PlanSelection
from service.server.api.request_types import TableName


class _AddressSelection(PlanSelection):
    table: TableName | None = None
    name: TableName | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_empty_fields(cls, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if value != ""}


def _filter_from_address(selection: Annotated[_AddressSelection, Query()]) -> PlanFilter:
    return selection.plan_filter()


AddressPlanFilter = Annotated[PlanFilter, Depends(_filter_from_address)]


def plan_filter_query(fields: Mapping[str, str]) -> dict[str, str]:
    """Return the filter fields of a URL's query unchanged; '' for missing fields."""
    return {name: fields.get(name, "") for name in PlanSelection.model_fields}

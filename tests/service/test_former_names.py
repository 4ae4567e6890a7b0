# SPDX-License-Identifier: Apache-2.0
"""Former names of JSON fields: documents have both names; the OpenAPI schema and the page of the API say so."""

import json
from pathlib import Path

import pytest

from service.former_names import FORMER_FIELDS, both_names, present_order
from service.server.http.openapi import PAGE

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("document", FORMER_FIELDS)
def test_a_document_of_this_or_of_an_earlier_release_gets_both_names(document: str):
    for former, present in FORMER_FIELDS[document].items():
        assert both_names(document, {"x": 0, present: 1}) == {"x": 0, present: 1, former: 1}
        assert both_names(document, {"x": 0, former: 1}) == {"x": 0, present: 1, former: 1}
        assert both_names(document, {present: 2, former: 1}) == {present: 2, former: 2}, "the present name decides"
    assert not FORMER_FIELDS[document].keys() & FORMER_FIELDS[document].values()


def test_the_page_of_the_api_lists_each_former_field():
    page = (ROOT / "docs/api.md").read_text()
    _, _, section = page.partition("## Former names\n")
    for document, names in FORMER_FIELDS.items():
        row = next((line for line in section.splitlines() if line.startswith(f"| {document} |")), "")
        assert row == f"| {document} | " + ", ".join(f"`{old}` → `{new}`" for old, new in names.items()) + " |"


def test_the_schema_marks_each_former_field_of_an_answer_as_deprecated():
    schemas = json.loads(PAGE.read_text())["components"]["schemas"]
    plan = schemas["Plan"]["properties"]
    assert plan["worth"] == {"deprecated": True, "description": "Use `cost_benefit`."}
    assert plan["cost_benefit"]["properties"]["predicted"]["properties"]["saved_a_day"]["deprecated"]
    status = schemas["Status"]["properties"]
    assert status["nobody_runs_plans"]["deprecated"]
    assert "deprecated" not in status["no_executor_reason"]
    assert status["work"]["properties"]["budget"]["additionalProperties"]["properties"]["left"]["deprecated"]
    assert status["attention"]["items"]["properties"]["contested"]["deprecated"]


def test_orders_keep_their_direction():
    assert [present_order(word) for word in ("worst", "-plan", "-files", "-", "")] == [
        "attention",
        "-last_plan",
        "-files",
        "-",
        "",
    ]

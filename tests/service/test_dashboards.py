# SPDX-License-Identifier: Apache-2.0
"""The dashboards are documents that Grafana takes as they are, and they ask only for metrics that exist."""

import itertools
import json
import re

import pytest
from monitoring import DASHBOARDS, PANELS, ROOT, in_words, metrics_in, queries, rules

from service.server.observability.metric_specs import SPECS

#: units of Grafana that the panels use
UNITS = {"short", "bytes", "Bps", "ops", "s", "percentunit"}
#: variables that Grafana itself has
GIVEN = {"__all", "__range", "__rate_interval"}


def test_the_page_on_deploying_names_each_dashboard():
    page = (ROOT / "deploy" / "README.md").read_text()
    (named,) = re.findall(r"dashboards: ([a-z, ]+);", page)
    assert sorted(named.split(", ")) == sorted(DASHBOARDS)
    assert f"{in_words(len(DASHBOARDS))} dashboards" in page


@pytest.mark.parametrize("name", DASHBOARDS)
def test_each_panel_is_below_the_title_of_a_row(name):
    first = min(DASHBOARDS[name]["panels"], key=lambda panel: (panel["gridPos"]["y"], panel["gridPos"]["x"]))
    assert first["type"] == "row"
    assert all(panel["title"] for panel in DASHBOARDS[name]["panels"])


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_has_an_address_and_lets_one_choose_source_installation_and_table(name):
    board = DASHBOARDS[name]
    assert board["uid"] == f"lakefold-{name}"
    assert "id" not in board, "Grafana gives the number; one of ours could belong to another dashboard"
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert {"job", "table"} < set(variables)
    used = set(re.findall(r"\$\{?(\w+)", json.dumps([board["panels"], board["templating"]])))
    assert used - GIVEN == set(variables), "none is missing, none asked for in vain"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_have_numbers_of_their_own_and_do_not_overlap(name):
    panels = DASHBOARDS[name]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in itertools.combinations([panel["gridPos"] for panel in panels], 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


@pytest.mark.parametrize(("where", "panel"), PANELS, ids=[where for where, _ in PANELS])
def test_a_panel_has_a_description_a_unit_and_the_chosen_source(where, panel):
    assert panel["type"] in ("stat", "timeseries", "table", "bargauge", "heatmap")
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
    for target in panel["targets"]:
        assert 'job="$job"' in target["expr"], "one installation at a time"


def test_every_metric_in_the_dashboards_is_registered():
    named = metrics_in("\n".join(query for board in DASHBOARDS.values() for _, query in queries(board)))
    assert len(named) > 30
    assert named <= set(SPECS)


def test_headlines_and_alerts_count_files_that_are_worth_a_plan_and_not_all_small_ones():
    for name in ("overview", "table"):
        stats = [panel for panel in DASHBOARDS[name]["panels"] if panel["type"] == "stat"]
        figures = "\n".join(target["expr"] for panel in stats for target in panel["targets"])
        assert "lakefold_table_reducible_" in figures
        assert "lakefold_table_small_" not in figures
    assert not [rule for rule in rules() if "lakefold_table_small_" in rule["expr"]]

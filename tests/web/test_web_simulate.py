# SPDX-License-Identifier: Apache-2.0
"""The page that draws what a writer makes of a scenario, batch by batch."""

import re
import tomllib
from html import unescape
from urllib.parse import quote

import pytest
from web_pages import read

from lake.units import format_bytes
from service.text import format_percent, plural


def test_a_shipped_scenario_is_drawn_batch_by_batch_and_can_be_changed(page):
    found = read(page, "/simulate?example=hudi-cow")
    names = re.findall(r"<title>(file [^<]*)</title>", page.get("/simulate?example=hudi-cow").text)
    assert names == [
        "file 1: 96,000,000 bytes, small",
        "file 1: 110,600,000 bytes, large",
        "file 1: 110,600,000 bytes, large",
        "file 2: 3,700,000 bytes, small",
        "file 1: 110,600,000 bytes, large",
        "file 2: 125,828,983 bytes, large",
        "file 3: 66,371,017 bytes, small",
    ]
    assert "105 MiB, 120 MiB, 63.3 MiB" in found.words
    assert 'row_bytes = 175 [settings] "hoodie.parquet.max.file.size"' in found.words
    changed = "writer = 'hive'\n[[batches]]\noperation = 'insert'\nrows = 5\ntasks = 5\n"
    assert "5 × 1.0 KiB" in read(page, f"/simulate?scenario={quote(changed)}").words
    many = changed.replace("5", "300")
    assert "300 small files: 307,200 bytes" in page.get(f"/simulate?scenario={quote(many)}").text
    assert "logs of file 1: 307,000,000 bytes" in page.get("/simulate?example=hudi-mor").text


@pytest.mark.parametrize(
    ("scenario", "says"),
    [
        ("writer = ", "The scenario is not valid TOML"),
        ("writer = 'hive'", "no batch"),
        ("writer = 'hive'\n[[batches]]\noperation = 'insert'\nrows = 9000\ntasks = 9000", "more than 5,000 files"),
    ],
)
def test_a_scenario_that_is_wrong_is_shown_again_with_the_reason(page, scenario, says):
    answer = page.get("/simulate", params={"scenario": scenario})
    assert answer.status_code == 200
    assert says in answer.text
    assert "aria-invalid" in answer.text


def points_of(path):
    """The points of a line, each as x and y."""
    return [tuple(map(float, point.split())) for point in re.split("[ML]", path)[1:]]


def test_the_chart_of_a_replay_has_the_figures_of_the_api_on_every_day(page):
    query = "days=4&set=min_input_files=2,8"
    found = page.get(f"/v1/tables/sales.returns/replay?{query}").json()
    html = page.get(f"/replay?table=sales.returns&{query}").text
    policies, days = found["policies"], len(found["policies"][0]["by_day"])
    assert days > 2
    titles = re.findall(r'<rect class="band"[^>]*><title>[^<]*? UTC: ([^<]*)</title>', html)
    expected = [
        ", ".join(f"{policy['name']} {plural(policy['by_day'][day]['files'], 'file')}" for policy in policies)
        for day in range(days)
    ]
    assert titles == expected * 2, "the chart for wide windows, and the one for narrow windows"
    dates = re.findall(r'<text class="axis middle"[^>]*>(\d+ \w{3})</text>', html)
    # A midnight near an edge has no mark: its text would extend beyond the picture.
    assert len(set(dates)) >= 2, "several days have a mark"
    words = read(page, f"/replay?table=sales.returns&{query}").words
    for day in range(days):
        counts = " ".join(f"{policy['by_day'][day]['files']:,}" for policy in policies)
        assert f"UTC {counts} " in words, "the table below the chart"
    for chart in re.findall(r'<svg class="chart lines.*?</svg>', html, re.DOTALL):
        marks = re.findall(r'<text class="axis end" x="\S+" y="(\S+)">(\d+)</text>', chart)
        assert [int(text) for _, text in marks] == [200, 400, 600, 800]
        (low, first), (high, last) = ((float(y), int(text)) for y, text in (marks[0], marks[-1]))
        lines = re.findall(r'<path class="\w+" d="([^"]+)"><title>([^:<]+):', chart)
        assert sorted(name for _, name in lines) == sorted(policy["name"] for policy in policies)
        for path, name in lines:
            drawn = [first + (y + 4 - low) / (high - low) * (last - first) for _, y in points_of(path)]
            days_of = next(policy["by_day"] for policy in policies if policy["name"] == name)
            assert drawn == pytest.approx([day["files"] for day in days_of], abs=1)


def test_the_table_beside_a_replay_has_the_figures_of_the_api_and_names_them(page):
    query = "days=4&set=min_input_files=2,8"
    found = page.get(f"/v1/tables/sales.returns/replay?{query}").json()
    words = read(page, f"/replay?table=sales.returns&{query}").words
    assert "Files at the end of each day, UTC" in words, "the chart"
    assert "Policy Files on average Small" in words, "the table"
    for policy in found["policies"]:
        note = "recommended" if policy["name"] == found["recommended"]["name"] else "Pareto-optimal"
        a_day = format_bytes(round(policy["rewritten_bytes_per_day"]))
        cells = (f"{policy['files']:,.0f}", format_percent(policy["small_share"]), a_day)
        assert re.search(rf"{re.escape(policy['name'])} ?({note} )?{re.escape(' '.join(cells))} ", words), policy[
            "name"
        ]


def test_lines_of_a_replay_that_cover_each_other_are_named_and_the_legend_has_only_lines_that_are_drawn(page):
    words = read(page, "/replay?table=sales.returns&days=4&set=min_input_files=2,8").words
    assert "no compaction recommended: configured min_input_files=8 Files at the end of each day" in words
    assert "Equal lines: configured, min_input_files=8." in words
    alone = read(page, "/replay?table=sales.returns&days=4").words
    assert "Equal lines" not in alone
    assert "no compaction recommended: configured Files at the end" in alone


@pytest.mark.parametrize("example", ["hudi-cow", "hudi-mor"])
def test_the_chart_of_a_simulation_has_the_figures_of_the_api(page, example):
    html = page.get(f"/simulate?example={example}").text
    scenario = re.search(r"<textarea[^>]*>\n(.*?)</textarea>", html, re.DOTALL)
    steps = page.post("/v1/simulate", json=tomllib.loads(unescape(scenario[1]))).json()["steps"]
    totals = re.findall(r'<text class="value"[^>]*>([^<]*)</text>', html)
    assert totals == [format_bytes(step["bytes"] + step["log_bytes"]) for step in steps]
    expected = []
    for step in steps:
        for file in step["layout"]:
            expected.append(("small" if file["small"] else "large", file["bytes"]))
            expected += [("logs", sum(file["logs"]))] if file["logs"] else []
    boxes = re.findall(r'<rect class="(\w+)"[^>]*><title>[^<]*?: ([\d,]+) bytes', html)
    assert [(kind, int(size.replace(",", ""))) for kind, size in boxes] == expected
    heights = [float(height) for height in re.findall(r'<rect class="(?:small|large|logs)"[^>]* height="(\S+)"', html)]
    scale = max(heights) / max(size for _, size in expected)
    assert heights == pytest.approx([max(size * scale, 1) for _, size in expected], abs=1.1)

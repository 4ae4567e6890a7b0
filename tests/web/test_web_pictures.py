# SPDX-License-Identifier: Apache-2.0
"""The figures on the pictures: each is the store's, and the API has it, too."""

import html
import re
from datetime import UTC, datetime, timedelta

import pytest
from web_pages import read

from lake.units import format_bytes
from service.server.web.formatting import format_count
from service.server.web.time_axis import TimeAxis, round_ceiling
from service.server.web.time_chart import Series, time_chart
from service.text import format_percent, parse_timestamp

NOW = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)


def picture_tables(text, caption):
    """The rows of the tables with this caption, each cell as its text."""
    found = []
    for table in re.findall(r"<table[^>]*>(.*?)</table>", text, re.DOTALL):
        if re.search(rf"<caption[^>]*>{caption}", table):
            rows = re.findall(r"<tr[^>]*>(.*?)</tr>", table, re.DOTALL)
            cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
            found += [[html.unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in row] for row in cells[1:]]
    return found


@pytest.mark.parametrize("days", [7, 30])
def test_tiles_and_charts_of_the_first_page_have_the_figures_of_the_trend(page, lake, days):
    trend = page.get("/v1/trend").json()
    (change,) = (entry for entry in trend["trends"] if entry["days"] == days)
    since = parse_timestamp(change["since"])
    points = [point for point in trend["points"] if parse_timestamp(point["at"]) >= since]
    stored = lake[0].store.trend(None)
    assert [point["files"] for point in trend["points"][:-1]] == [point.files for point in stored]

    shown = read(page, f"/?days={days}")
    tiles = re.search(r"Files ([\d.]+ k) ([\d.]+ k) on (\d+ \w+) Files: ", shown.words)
    assert tiles is not None, shown.words[:2000]
    assert tiles.groups() == (
        format_count(change["files"]),
        format_count(change["files_before"]),
        f"{since.day} {since:%b}",
    )
    assert f"Reducible files {format_percent(change['reducible_share'])} " in shown.words
    for name in ("rewritten", "freed"):
        moved = change[f"{name}_bytes"]
        assert f"{name.capitalize()} {format_bytes(moved)} since {since.day} {since:%b}" in shown.words
        assert f'title="{moved:,} bytes since {since.day} {since:%b}"' in page.get(f"/?days={days}").text

    text = page.get(f"/?days={days}").text
    rows = picture_tables(text, "Files over time")
    assert [row[1:] for row in reversed(rows)] == [
        [format_count(point["files"]), format_count(point["reducible_files"])] for point in points
    ]
    rows = picture_tables(text, "Bytes rewritten and freed")
    assert [row[1:] for row in reversed(rows)] == [
        [format_bytes(point[f"{name}_bytes"] - points[0][f"{name}_bytes"]) for name in ("rewritten", "freed")]
        for point in points
    ]


def test_a_chart_over_time_ends_at_its_figures_and_names_every_moment():
    moments = [NOW - timedelta(hours=hours) for hours in (48, 24, 0)]
    points = list(zip(moments, (40.0, 100.0, 20.0), strict=True))
    chart = time_chart("Files", [Series(name="files", key="first", points=points, format=lambda n: f"{n:.0f}")])
    for one in chart.charts:
        top, middle = one.y_ticks[-1].at, one.y_ticks[1].at
        assert [tick.text for tick in one.y_ticks] == ["25", "50", "75", "100"]
        assert one.base - middle == pytest.approx(middle - top)
        start, step, end = re.findall(r"[MV ]([\d.]+)(?=H|$)", one.paths[0].line)
        heights = [(one.base - float(y)) / (one.base - top) for y in (start, step, end)]
        assert heights == pytest.approx([0.4, 1.0, 0.2], abs=0.01)
        assert [band.text[:16] for band in one.bands] == [f"{moment:%Y-%m-%d %H:%M}" for moment in moments]
        assert sum(band.width for band in one.bands) == pytest.approx(one.right - one.left)
    assert [texts for _, texts in chart.rows] == [("20",), ("100",), ("40",)]
    assert time_chart("Files", [Series(name="files", key="first", points=points[:1], format=str)]) is None


@pytest.mark.parametrize(
    ("span", "first", "distance"),
    [
        (timedelta(hours=24), "12:00", timedelta(hours=3)),
        (timedelta(days=7), "15 Nov", timedelta(hours=12)),
        (timedelta(days=30), "26 Oct", timedelta(days=7)),
    ],
)
def test_the_marks_of_time_are_round_and_apart(span, first, distance):
    axis = TimeAxis(begin=NOW - span, end=NOW, left=60, right=960)
    ticks = axis.ticks()
    assert ticks[0].text == first
    assert ticks[1].at - ticks[0].at == pytest.approx(distance / span * 900)
    assert ticks[1].at - ticks[0].at >= 55


@pytest.mark.parametrize(
    ("value", "binary", "most"),
    [(0, False, 1), (1, False, 1), (73_400, False, 100_000), (24, False, 25), (3 << 30, True, 5 << 30)],
)
def test_an_axis_ends_at_a_round_figure(value, binary, most):
    assert round_ceiling(value, binary) == most

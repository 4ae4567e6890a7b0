# SPDX-License-Identifier: Apache-2.0
"""The figures on the pictures: each is the store's, and the API has it, too."""

import html
import math
import re
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import pyarrow as pa
import pytest
from api_toys import client_of
from starlette.datastructures import URL
from store_plans import sql
from web_lake import completed, register, scan, sizes
from web_pages import read

from lake.model import HISTOGRAM_EDGES_BYTES, SizeHistogram
from lake.units import format_bytes, format_elapsed
from planner.slo.model import Objective, ObjectiveEvaluation
from service.control.store import TrendPoint
from service.server.web.calendars import date_and_key, partition_calendar
from service.server.web.charts import axis_text, bucket_name
from service.server.web.formatting import format_count
from service.server.web.gantt import OUTCOMES, executor_day
from service.server.web.rendering import static_file
from service.server.web.size_history import LEVELS, count_level, size_history
from service.server.web.time_axis import TimeAxis, axis_marks, round_ceiling
from service.server.web.time_chart import Series, time_chart
from service.server.web.trend import trend_panel
from service.text import format_percent, parse_timestamp

LONG = "and-half-of-another-continent"
MIB, SPAN = 1 << 20, timedelta(hours=4)
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


@pytest.mark.parametrize("name", ["sales.orders", "events.clicks", "logs.app"])
def test_the_histogram_before_and_now_is_that_of_two_scans_in_the_api(page, name):
    """The first scan was only on the page, and the last good one of a table whose scans fail not in the list."""
    document = page.get(f"/v1/tables/{name}").json()
    listed = {entry["table"]: entry for entry in page.get("/v1/tables").json()["items"]}
    assert (listed[name]["last_good_scan"], listed[name]["first_scan"]) == (
        document["last_good_scan"],
        document["first_scan"],
    )
    now, before = document["last_good_scan"]["histogram"], document["first_scan"]["histogram"]
    shown = read(page, f"/tables/{name}").words
    for index, (files, earlier) in enumerate(zip(now, before, strict=True)):
        if files or earlier:
            both = (
                f" {earlier:,}" if document["first_scan"]["taken_at"] < document["last_good_scan"]["taken_at"] else ""
            )
            assert f"{bucket_name(index)}{both} {files:,} " in shown


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


def test_files_over_time_change_evenly_between_two_points():
    """Of an hour with one plan the chart showed the files of its begin up to now, and a fall at its end."""
    points = [
        TrendPoint(at=at, files=files, bytes=1, small_files=0, reducible_files=0, rewritten_bytes=0, freed_bytes=0)
        for at, files in ((NOW - timedelta(hours=1), 4), (NOW, 2))
    ]
    files, _ = trend_panel(points, 7, URL("http://127.0.0.1/")).charts
    assert all("L" in one.paths[0].line and "H" not in one.paths[0].line for one in files.charts)


@pytest.mark.parametrize(
    ("span", "first", "distance"),
    [
        (timedelta(seconds=4), "09:29:57", timedelta(seconds=1)),
        (timedelta(minutes=3), "09:27:15", timedelta(seconds=15)),
        (timedelta(minutes=10), "09:21", timedelta(minutes=1)),
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
    [
        (0, False, 1),
        (1, False, 1),
        (73_400, False, 80_000),
        (24, False, 25),
        (768, False, 800),
        (3 << 30, True, 3 << 30),
        (23 << 30, True, 25 << 30),
        (int(1.2 * 2**30), True, 2 << 30),
        (1001 << 20, True, 1 << 30),
    ],
)
def test_an_axis_ends_at_a_round_figure(value, binary, most):
    assert round_ceiling(value, binary) == most


@pytest.mark.parametrize(
    ("top", "is_whole", "marks"),
    [
        (1.0, False, (0.25, 0.5, 0.75, 1)),
        (1.0, True, (1,)),
        (2.0, True, (1, 2)),
        (5.0, True, (1, 2, 3, 4, 5)),
        (10.0, True, (2, 4, 6, 8, 10)),
        (100.0, True, (25, 50, 75, 100)),
        (3.0, True, (1, 2, 3)),
        (15.0, True, (5, 10, 15)),
        (250.0, True, (50, 100, 150, 200, 250)),
        (600.0, True, (200, 400, 600)),
        (15_000.0, True, (5_000, 10_000, 15_000)),
        (4e6, True, (1e6, 2e6, 3e6, 4e6)),
        (60.0 * (1 << 30), True, tuple(n * 20.0 * (1 << 30) for n in range(1, 4))),
        (800.0, True, (200, 400, 600, 800)),
        (50.0 * (1 << 30), True, tuple(n * 10.0 * (1 << 30) for n in range(1, 6))),
    ],
)
def test_the_marks_of_an_axis_are_even_and_whole_where_figures_are(top, is_whole, marks):
    assert axis_marks(top, is_whole) == pytest.approx(marks)


@pytest.mark.parametrize(
    ("text", "short"),
    [("50.0 GiB", "50 GiB"), ("12.5 GiB", "12.5 GiB"), ("2.50 M", "2.5 M"), ("1.25 M", "1.25 M"), ("5.00 M", "5 M")],
)
def test_the_figures_of_an_axis_have_no_zeros_at_the_end(text, short):
    assert axis_text(text) == short


def test_the_heat_map_has_the_sizes_of_the_stored_scans(page):
    scans = page.get("/v1/tables/sales.orders/scans").json()["items"]
    rows = picture_tables(page.get("/tables/sales.orders").text, "Files by size over time")
    first, newest = rows[-1], rows[0]
    assert newest[1] == f"{scans[0]['files']:,}"
    assert newest[2] == ", ".join(
        f"{bucket_name(index)}: {count:,}" for index, count in enumerate(scans[0]["histogram"]) if count
    )
    assert first[1] == f"{scans[-1]['files']:,}", "the oldest stored scan is the first one"
    assert {row[1] for row in rows} <= {f"{one['files']:,}" for one in scans}
    columns = re.search(r'aria-label="File sizes over time: ([^"]+)"', page.get("/tables/sales.orders").text)
    assert f"{scans[0]['files']:,} files, {scans[0]['small_files']:,} small" in columns[1]


def test_a_column_shows_the_last_scan_until_then_and_the_first_scan_stands_apart():
    made = [
        scan("t", sizes(files, 4 * MIB), ago=timedelta(hours=hours))
        for files, hours in ((900, 500), (50, 40), (40, 1), (10, 0))
    ]
    history = size_history(list(reversed(made[1:])), made[0], 300 * MIB)
    assert [(column.files, column.is_first_scan) for column in history.columns] == [
        (made[0].files, True),
        *[(made[1].files, False)] * 46,
        (made[2].files, False),
        (made[3].files, False),
    ]
    assert [row.scanned_at for row in history.rows] == [one.taken_at for one in reversed(made)]
    for one in history.maps:
        assert [band.text.count("first scan") for band in one.bands] == [1, *[0] * 48]
        assert one.bands[0].x == one.left
        assert one.bands[-1].x + one.bands[-1].width == pytest.approx(one.right)
        assert one.top <= min(tick.at for tick in one.y_ticks)
        assert one.limit_y is None or one.top <= one.limit_y <= one.base
    assert size_history([made[0]], None, 300 * MIB) is None


@pytest.mark.parametrize(
    ("files", "level"), [(0, 0), (1, 1), (9, 1), (10, 2), (999, 3), (1000, 4), (99_999, 5), (100_000, 6), (10**9, 6)]
)
def test_each_colour_of_the_heat_map_is_ten_times_as_many_files(files, level):
    assert count_level(files) == level


def test_a_heat_map_of_two_scans_ends_at_the_newest_one():
    """Each of two columns was half of the width, so that the axis went on for days after the newest scan."""
    made = [scan("t", sizes(files, 4 * MIB), ago=timedelta(hours=hours)) for files, hours in ((900, 70), (50, 0))]
    history = size_history(list(reversed(made)), None, 300 * MIB)
    for one in history.maps:
        newest = one.bands[-1].x
        assert newest > one.right - 0.03 * (one.right - one.left)
        marks = [tick.at for tick in one.x_ticks]
        assert one.left < marks[0] < marks[-1] <= newest


def test_a_file_is_counted_by_the_histogram_where_the_heat_map_draws_it():
    edge = HISTOGRAM_EDGES_BYTES.index(4 * MIB)
    counts = SizeHistogram.of(pa.array([4 * MIB, 4 * MIB + 1], pa.int64()), MIB).counts
    assert (counts[edge], counts[edge + 1]) == (1, 1)


def test_savings_and_cpu_time_of_a_tables_plans_add_up(fresh):
    register(fresh.store, "a.b", "compact", scan("a.b", sizes(400, MIB), ago=timedelta()))
    plans = [completed(fresh.store, "a.b", f"dt={number}", files=40) for number in range(2)]
    for plan, days in zip(plans, (4, 1), strict=True):
        sql(
            fresh.store.url,
            "UPDATE plan SET finalized_at_ms = finalized_at_ms - :ms WHERE id = :id",
            ms=days * 86_400_000,
            id=plan.plan_id,
        )
    with client_of(fresh) as client:
        found = client.get("/v1/tables/a.b/savings").json()
        documents = [client.get(f"/v1/plans/{plan.plan_id}").json()["cost_benefit"] for plan in plans]
        rates = [one["predicted"]["cpu_seconds_saved_per_day"] for one in documents]
        spent = [one["actual"]["cpu_seconds"] for one in documents]
        assert found["cpu_seconds_saved_per_day"] == pytest.approx(sum(rates))
        first, second, now = found["points"]
        assert [first["cpu_seconds_saved"], second["cpu_seconds_saved"]] == pytest.approx([0, 3 * rates[0]], rel=1e-3)
        assert now["cpu_seconds_saved"] == pytest.approx(4 * rates[0] + rates[1], rel=1e-3)
        assert [first["cpu_seconds_spent"], now["cpu_seconds_spent"]] == pytest.approx([spent[0], sum(spent)])
        assert now["files_removed"] == sum(one["actual"]["files_saved"] for one in documents)

        words = read(client, "/tables/a.b").words
        assert f"Plans took {format_elapsed(sum(spent))} of CPU" in words
        assert f"readers have saved about {format_elapsed(now['cpu_seconds_saved'])}" in words
        rows = picture_tables(client.get("/tables/a.b").text, "CPU time saved and spent")
        assert [row[1:] for row in rows] == [
            [
                format_elapsed(point[f"cpu_seconds_{name}"]) if point[f"cpu_seconds_{name}"] else "0 s"
                for name in ("saved", "spent")
            ]
            for point in (now, second, first)
        ]
        register(fresh.store, "a.c", "compact", scan("a.c", sizes(4, MIB), ago=timedelta()))
        assert client.get("/v1/tables/a.c/savings").json()["points"] == []
        assert "Savings and CPU time" not in client.get("/tables/a.c").text


def test_the_day_of_an_executor_has_a_bar_for_each_attempt(page, lake):
    found = page.get("/v1/attempts").json()
    store = lake[0].store
    stored = store.attempts(timedelta(days=1)).attempts
    assert [(one["plan_id"], one["executor"]) for one in found["items"]] == [
        (one.plan_id, one.executor) for one in stored
    ]
    text = page.get("/processes").text
    rows = picture_tables(text, "Attempts at plans")
    assert sorted((row[2], row[5]) for row in rows) == sorted(
        (one["plan_id"][-8:], OUTCOMES[one["outcome"]][0]) for one in found["items"]
    )
    for kind in ("wide", "narrow"):
        (svg,) = re.findall(rf'<svg class="chart gantt {kind}".*?</svg>', text, re.DOTALL)
        links = re.findall(
            r'<a href="/plans/([^"]+)" aria-label="plan \w+ of [^"]+: [^"]+ from [\d-]+ [\d:]+ UTC">', svg
        )
        assert sorted(links) == sorted(one["plan_id"] for one in found["items"])
    assert f"{len(rows)} attempts at plans since" in read(page, "/processes").words


def test_the_day_of_an_executor_is_drawn_once_for_each_reading_of_the_database(page, lake, monkeypatch):
    context, drawn = lake[0], []
    attempts = type(context.store).attempts
    monkeypatch.setattr(type(context.store), "attempts", lambda *given: drawn.append(1) or attempts(*given))
    monkeypatch.setattr("service.control.lake_cache._FRESH_SECONDS", 60.0)
    context.lake_cache.refresh()
    first, second = (page.get("/processes").text for _ in range(2))
    assert (len(drawn), first.count('class="chart gantt')) == (1, 2)
    assert second.count("<title>plan ") == first.count("<title>plan ") > 0
    context.lake_cache.refresh()
    page.get("/processes")
    assert len(drawn) == 2


def attempt(begin, end, outcome="completed", executor="host-1/4711/1/a.2", number=0):
    return {
        "plan_id": f"{number:036}",
        "table": "a.b",
        "executor": executor,
        "began_at": NOW - timedelta(hours=begin),
        "ended_at": None if end is None else NOW - timedelta(hours=end),
        "outcome": outcome,
    }


def test_bars_of_one_time_are_below_each_other_and_each_is_as_long_as_its_attempt():
    items = [
        attempt(23, 20, number=1),
        attempt(22, 21, "failed", number=2),
        attempt(19, 18, "requested", number=3),
        attempt(5, 2, "inflight", executor="host-2/9/1/a.2", number=4),
        attempt(2, None, "inflight", number=5),
    ]
    day = executor_day({"since": NOW - timedelta(days=1), "until": NOW, "items": items})
    assert day.since == NOW.replace(minute=0) - timedelta(hours=23), "the full hour before the first attempt"
    for one in day.charts:
        first, second = one.rows
        assert (first.label, second.label) == ("host-1/4711", "host-2/9")
        bars = {bar.line.plan_id[-1]: bar for bar in (*first.bars, *second.bars)}
        hour = (one.right - one.left) / 23.5
        assert [round(bars[name].width / hour, 3) for name in "12345"] == [3, 1, 1, 3, 2]
        assert bars["1"].y == bars["3"].y == bars["5"].y < bars["2"].y < second.top <= bars["4"].y
        assert [bars[name].line.outcome for name in "12345"] == [
            "completed",
            "failed",
            "to be tried again",
            "taken over",
            "running",
        ]
    assert {kind for kind, _ in day.legend} == {"done", "failed", "again", "running"}
    assert executor_day({"since": NOW, "until": NOW, "items": []}) is None


def test_the_timeline_of_an_objective_ends_at_its_budget_and_shows_when_it_was_missed(fresh):
    held = {"goal": 0.99, "window": timedelta(days=28), "valid_for": timedelta(days=9)}
    missed = ObjectiveEvaluation(objective=Objective.SMALL_FILE_SHARE, value=0.61, bound=0.05, **held)
    register(fresh.store, "a.b", "compact")
    found = scan("a.b", sizes(300, 20 * MIB), ago=timedelta())
    fresh.store.record_scan(found, None, [missed])
    back = "UPDATE table_objective SET judged_at_ms = judged_at_ms - :ms, changed_at_ms = changed_at_ms - :ms"
    sql(fresh.store.url, back, ms=4 * 3_600_000)
    fresh.store.record_scan(found, None, [replace(missed, value=0.01)])
    fresh.store.record_scan(found, None, [missed])
    with client_of(fresh) as client:
        (one,) = client.get("/v1/tables/a.b/objectives").json()["items"]
        history = one["history"]
        assert history[-1]["budget_left"] == pytest.approx(one["budget_left"], abs=1e-3)
        times = [parse_timestamp(point["at"]) for point in history]
        missed_hours = sum(
            point["missed_share"] * ((after - at) / timedelta(hours=1))
            for point, at, after in zip(history, times, times[1:], strict=False)
        )
        assert missed_hours == pytest.approx(4, abs=0.01)
        later = [point["missed_share"] for point, at in zip(history, times, strict=True) if at - times[0] > 0.3 * SPAN]
        assert later[:-3] == pytest.approx([1.0] * len(later[:-3]))
        assert history[0]["budget_left"] == 1
        fall = [point["budget_left"] for point in history]
        assert fall == sorted(fall, reverse=True)
        text = client.get("/tables/a.b").text
        rows = picture_tables(text, "Error budget of small_file_share")
        assert [row[1:] for row in reversed(rows)] == [
            [f"{100 * point[name]:.0f} %" for name in ("budget_left", "missed_share")] for point in history
        ]


def test_partitions_are_a_calendar_by_their_dates_and_a_matrix_with_their_keys(page):
    text = page.get("/tables/sales.orders").text
    names = re.findall(r'<div class="month"><p class="small-print">([^<]+)</p>', text)
    assert (names[0], names[-1], len(names)) == ("January 2026", "November 2026", 11)
    first = re.search(r'<li class="d(\d)"><a class="h0" href="[^"]+" title="dt=2026-01-01[^"]+"><span [^>]+>1<', text)
    assert first is not None
    assert int(first[1]) == date(2026, 1, 1).isoweekday()
    partitions = page.get("/v1/tables/events.clicks/partitions?limit=1000").json()["items"]
    text = page.get("/tables/events.clicks").text
    (matrix,) = re.findall(r'<table class="strip matrix[ a-z]*".*?</table>', text, re.DOTALL)
    assert re.findall(r'<th scope="col">([^<]+)', matrix) == ["Date", *(f"{hour:02}" for hour in range(24))]
    titles = re.findall(r'title="([^"]+)"', matrix)
    assert titles == [
        f"{one['partition']}: {one['files']} files, "
        f"{format_percent(one['reducible_files'] / one['files'])} reducible, {format_bytes(one['bytes'])}"
        for one in partitions[:400]
    ]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("dt=2026-11-21", (date(2026, 11, 21), "")),
        ("20261121/eu", (date(2026, 11, 21), "eu")),
        ("region=eu/2026/11/21", (date(2026, 11, 21), "region=eu")),
        ("year=2026/month=11/day=21/h=3", (date(2026, 11, 21), "h=3")),
        ("dt=2026-13-21", None),
        ("region=eu", None),
        ("", None),
        ("2026/11", None),
    ],
)
def test_a_partition_has_the_date_of_its_directories(path, found):
    assert date_and_key(path) == found


def test_partitions_without_dates_or_with_too_many_keys_stay_a_strip():
    days = [f"dt=2026-11-{day:02}" for day in range(1, 11)]
    assert partition_calendar(["a", "b"], str) is None
    assert partition_calendar([*days, "other"], str) is None
    assert partition_calendar([f"{day}/id={n}-of-many" for day in days for n in range(40)], str) is None
    assert partition_calendar(["dt=1990-01-01", "dt=2026-01-01"], str) is None
    long = partition_calendar([f"region={name}-{LONG}/{day}" for name in ("asia", "europe") for day in days], str)
    assert [calendar.key for calendar in long.calendars] == [f"region={name}-{LONG}" for name in ("asia", "europe")]
    assert [len(month.days) for calendar in long.calendars for month in calendar.months] == [10, 10]
    short = partition_calendar(
        [f"{day}/{name}" for day in days for name in ("de", "fr") if (day[-1] + name) != "1fr"], str
    )
    assert short.keys == ("de", "fr")
    assert short.rows[0].entries == ("dt=2026-11-01/de", None)


def test_the_calendar_of_deletions_has_the_bytes_of_each_day(page):
    found = page.get("/v1/cleaning").json()["items"]
    today = datetime.now(UTC).date()
    sums = {}
    for one in found:
        day = max(date.fromisoformat(one["day"]), today)
        sums[day] = sums.get(day, 0) + one["bytes"]
    text = page.get("/cleaning").text
    drawn = re.findall(r'<span class="swatch c(\d)"></span><b title="([\d,]+) bytes">([^<]+)</b>', text)
    assert [(title, size) for _, title, size in drawn] == [
        (f"{sums[day]:,}", format_bytes(sums[day])) for day in sorted(sums)
    ]
    assert max(int(level) for level, _, _ in drawn) == 6
    assert [int(level) for level, _, _ in drawn] == [
        math.ceil(6 * sums[day] / max(sums.values())) for day in sorted(sums)
    ]


def luminance(colour):
    """The relative luminance of WCAG 2.2 of a colour such as ``#102030``."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    """The contrast of WCAG 2.2 between two colours."""
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_colour_of_the_heat_map_contrasts_with_the_page_and_its_neighbours(theme):
    """The palest colour was yellow on white, and dark blue on black."""
    styles = static_file("lakefold.css")[0].decode()
    pairs = re.findall(r"--(paper|count-\d): light-dark\((#\w{6}), (#\w{6})\);", styles)
    colours = {name: pair[theme] for name, *pair in pairs}
    levels = [colours[f"count-{level}"] for level in range(1, LEVELS + 1)]
    assert all(contrast(colour, colours["paper"]) >= 3 for colour in levels)
    assert all(contrast(one, other) >= 1.25 for one, other in pairwise(levels))
    from_paper = [contrast(colour, colours["paper"]) for colour in levels]
    assert from_paper == sorted(from_paper), "more files, more contrast"

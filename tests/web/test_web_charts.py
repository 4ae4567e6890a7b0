# SPDX-License-Identifier: Apache-2.0
"""The geometry of the page's pictures, and figures in words."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.model import HISTOGRAM_EDGES_BYTES, SizeHistogram
from service.control.store import ScanRecord
from service.server.web.charts import (
    bucket_name,
    heat_level,
    histogram_chart,
    spans,
    sparkline,
    trend_chart,
)
from service.server.web.formatting import format_count, shell_command
from service.server.web.table_page import scan_lines
from service.text import format_percent

MIB = 1 << 20
BUCKETS = len(HISTOGRAM_EDGES_BYTES) + 1
LIMITS = {"small_file_limit": 256 * MIB, "target_file_max": 1 << 30}
COUNTS = st.lists(st.integers(0, 10_000_000), min_size=BUCKETS, max_size=BUCKETS)


def counts(**files: int) -> list[int]:
    """A histogram with ``k32=5``: five files in the bucket up to 32 KiB."""
    units = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
    result = [0] * BUCKETS
    for name, number in files.items():
        result[HISTOGRAM_EDGES_BYTES.index(int(name[1:]) * units[name[0]])] = number
    return result


def drawn(now, before=None, width=960, height=300):
    chart = histogram_chart(now, before, LIMITS, width=width, height=height)
    assert chart is not None
    return chart


def test_a_table_without_files_has_no_histogram():
    assert histogram_chart([0] * BUCKETS, None, LIMITS, width=960, height=300) is None


def test_a_limit_on_an_edge_is_drawn_between_the_two_buckets_it_divides():
    chart = drawn(counts(m256=4, m512=4))
    small, large = (bar for bar in chart.bars if bar.files)
    limit = next(mark for mark in chart.limit_lines if mark.name == "small_file_limit")
    assert (small.small, large.small) == (True, False)
    assert small.x + small.width < limit.x < large.x


def test_a_limit_between_two_edges_is_drawn_inside_its_bucket_at_its_logarithm():
    chart = histogram_chart(counts(m256=1, m512=1), None, {"small_file_limit": 300 * MIB}, width=960, height=300)
    inside = next(bar for bar in chart.bars if bar.name == bucket_name(HISTOGRAM_EDGES_BYTES.index(512 * MIB)))
    assert inside.x < chart.limit_lines[0].x < inside.x + inside.width / 3


def test_one_file_is_still_seen_beside_ten_million():
    chart = drawn(counts(k32=10_000_000, g1=1))
    assert min(bar.height for bar in chart.bars if bar.files) >= 1.5


def test_numbers_of_before_and_now_that_would_touch_are_not_both_written():
    same = next(bar for bar in drawn(counts(m1=100), counts(m1=101)).bars if bar.files)
    apart = next(bar for bar in drawn(counts(m1=4), counts(m1=400)).bars if bar.files)
    assert (same.label_y is None) != (same.before_label_y is None)
    assert None not in (apart.label_y, apart.before_label_y)


@pytest.mark.parametrize("earlier", range(60, 400, 7))
def test_the_number_of_a_bar_keeps_clear_of_the_outline_of_before(earlier):
    """A text of 12 px whose base is 5 px above its bar reaches 14 px above it."""
    chart = drawn(counts(m512=67), counts(m2=5171, m512=earlier))
    bar = next(bar for bar in chart.bars if bar.files)
    outline = chart.base - (earlier / 5171) ** 0.5 * (chart.base - 48)
    assert not bar.label_y - 11 < outline < bar.label_y + 3


@given(now=COUNTS, before=st.none() | COUNTS, width=st.sampled_from([360.0, 960.0]))
@pytest.mark.slow
def test_for_any_sizes_everything_is_inside_the_picture(now, before, width):
    chart = histogram_chart(now, before, LIMITS, width=width, height=250)
    if chart is None:
        assert not any(now)
        assert not before or not any(before)
        return
    for bar in chart.bars:
        assert chart.left <= bar.x <= bar.x + bar.width <= chart.right + 0.01
        assert 0 < bar.y <= chart.base
        assert bar.label_y is None or bar.label_y > 10
    assert all(chart.left <= mark.x <= chart.right for mark in chart.limit_lines)
    assert all(chart.left <= tick.at <= chart.right + 0.01 for tick in chart.x_ticks)
    assert sum(bar.files for bar in chart.bars) == sum(now)


@given(now=COUNTS, width=st.sampled_from([360.0, 960.0]))
@pytest.mark.slow
def test_numbers_of_bars_beside_each_other_never_touch(now, width):
    chart = histogram_chart(now, None, LIMITS, width=width, height=250)
    if chart is None:
        return
    numbers = [(bar.label_x, 7.0 * len(format_count(bar.files))) for bar in chart.bars if bar.label_y is not None]
    assert numbers, "the largest number is always there"
    for (x, wide), (next_x, next_wide) in pairwise(numbers):
        assert next_x - x >= (wide + next_wide) / 2


@given(now=COUNTS)
@pytest.mark.slow
def test_labels_of_the_axes_never_touch(now):
    chart = histogram_chart(now, None, LIMITS, width=360, height=250)
    if chart is None:
        return
    across, up = [tick.at for tick in chart.x_ticks], sorted(tick.at for tick in chart.y_ticks)
    assert all(right - left >= 40 for left, right in pairwise(across))
    assert all(lower - upper >= 12 for upper, lower in pairwise(up))


def test_in_a_column_of_small_histograms_every_size_has_its_place():
    one, other = (sparkline(tuple(counts(**files)), None, 256 * MIB) for files in ({"m1": 5}, {"m1": 5000, "g1": 3}))
    assert one.small.split("v")[0] == other.small.split("v")[0]
    assert one.large == ""
    assert other.large != ""


def test_a_trend_ends_where_the_figure_is_now_and_needs_three_points():
    start = datetime(2026, 11, 1, tzinfo=UTC)
    chart = trend_chart([(start, 100.0), (start, 80.0), (start + timedelta(hours=1), 50.0)], width=100, height=42)
    assert (chart.end_x, chart.end_y) == (94.0, 23.0)
    assert trend_chart([(start, 100.0), (start + timedelta(hours=1), 5.0)], width=100, height=42) is None
    assert trend_chart([(start, 1.0)] * 3, width=100, height=42) is None


def test_steps_follow_each_other_and_the_shortest_is_seen():
    ask, rewrite = spans([("ask", 0.001), ("rewrite", 100.0)])
    assert ask.length == 0.4
    assert rewrite.start == pytest.approx(0.0, abs=0.01)
    assert rewrite.start + rewrite.length <= 100.0


@pytest.mark.parametrize(("share", "step"), [(None, 0), (0.0, 0), (0.001, 1), (0.25, 1), (0.26, 2), (0.9, 4), (1.0, 4)])
def test_heat_rises_in_quarters_and_no_small_file_is_no_heat(share, step):
    assert heat_level(share) == step


@pytest.mark.parametrize(
    ("index", "name"),
    [(0, "up to 1.0 KiB"), (5, "16.0 – 32.0 KiB"), (10, "512 KiB – 1.0 MiB"), (25, "above 16.0 GiB")],
)
def test_a_bucket_is_called_by_its_sizes(index, name):
    assert bucket_name(index) == name


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (9_999, "9,999"),
        (10_000, "10.0 k"),
        (123_456, "123 k"),
        (999_499, "999 k"),
        (999_500, "1.00 M"),
        (1_240_000, "1.24 M"),
        (7_100_000_000, "7.10 G"),
        (-1_240_000, "-1.24 M"),
    ],
)
def test_large_counts_keep_three_figures(number, text):
    assert format_count(number) == text


@pytest.mark.parametrize(
    ("share", "text"), [(None, "–"), (0.0, "0 %"), (0.004, "< 1 %"), (0.07, "7 %"), (0.996, "> 99 %"), (1.0, "100 %")]
)
def test_a_share_between_none_and_all_is_never_rounded_to_either(share, text):
    assert format_percent(share) == text


@pytest.mark.parametrize(("sizes", "median"), [([], None), ([7], 7), ([900, 5, 7], 7), ([900, 5, 7, 10], 8)])
def test_the_median_is_the_size_of_the_middle_file_or_the_mean_of_two(sizes, median):
    assert SizeHistogram.of(pa.array(sizes, pa.int64()), 100).median_bytes == median


def test_a_command_to_copy_holds_hostile_names_as_one_word():
    assert shell_command("lakefold", "tables", "explain", "a; rm -rf /") == "lakefold tables explain 'a; rm -rf /'"


def test_scans_in_a_row_that_found_the_same_are_one_line():
    start = datetime(2026, 11, 1, tzinfo=UTC)
    found = [("a", 9), ("a", 9), ("a", 5), ("b", 5)]
    scans = [
        ScanRecord(table="t", taken_at=start + timedelta(minutes=n), instant=instant, files=files)
        for n, (instant, files) in enumerate(found)
    ]
    lines = list(scan_lines(reversed(scans)))
    assert [(line.scan.instant, line.scan.files, line.times, line.since.minute) for line in lines] == [
        ("b", 5, 1, 3),
        ("a", 5, 1, 2),
        ("a", 9, 2, 0),
    ]

# SPDX-License-Identifier: Apache-2.0
"""The page that draws what a writer makes of a scenario, batch by batch."""

import re
from urllib.parse import quote

import pytest
from web_pages import read


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
        ("writer = ", "the scenario is not valid TOML"),
        ("writer = 'hive'", "no batch"),
        ("writer = 'hive'\n[[batches]]\noperation = 'insert'\nrows = 9000\ntasks = 9000", "more than 5,000 files"),
    ],
)
def test_a_scenario_that_is_wrong_is_shown_again_with_the_reason(page, scenario, says):
    answer = page.get("/simulate", params={"scenario": scenario})
    assert answer.status_code == 200
    assert says in answer.text
    assert "aria-invalid" in answer.text

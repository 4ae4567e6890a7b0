# SPDX-License-Identifier: Apache-2.0
"""The document behind "how is the lake?": what is worth a plan is told from what is only small."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from databases import store_at

from lake.model import TableRef
from service import documents
from service.documents.lake_cache import read_lake
from service.store import ScanRecord

NOW = datetime.now(UTC).replace(microsecond=0)
FOUND = ScanRecord(
    table="t", taken_at=NOW, files=100, small_files=100, small_bytes=1000, reducible_files=95, reducible_bytes=950
)


@pytest.fixture
def store(tmp_path):
    opened = store_at(tmp_path)
    yield opened
    opened.close()


def scanned(store, name, mode, *scans):
    store.register(TableRef(name=name, format="hudi", location=f"/lake/{name}"), mode)
    for number, scan in enumerate(scans):
        store.record_scan(replace(scan, table=name, taken_at=NOW + timedelta(minutes=number)))


def status(store):
    return documents.status(read_lake(store))


def test_small_files_that_no_plan_is_worth_do_not_make_success_look_like_failure(store):
    after = replace(FOUND, files=6, small_files=6, reducible_files=0, reducible_bytes=0)
    scanned(store, "t", "compact", FOUND, after)
    found = status(store)
    assert found["layout"]["compact"].items() >= {
        "reducible_files": 0, "residual_files": 6, "reducible_share": 0.0, "reducible_share_before": 0.95,
    }.items()  # fmt: skip
    assert "reducible files 95 % → 0 % ·" in documents.answer_line(found)


def test_tables_that_are_only_observed_are_counted_by_themselves_and_those_that_are_off_not_at_all(store):
    scanned(store, "a", "compact", replace(FOUND, files=200, reducible_files=1))
    scanned(store, "b", "observe", FOUND)
    scanned(store, "c", "off", FOUND)
    found = status(store)
    assert [found["layout"][mode]["reducible_files"] for mode in ("compact", "observe")] == [1, 95]
    line = documents.answer_line(found)
    assert "reducible files < 1 % → < 1 %, 950 B to rewrite · 1 observed table: reducible files 95 %, 950 B" in line


def test_of_scans_before_the_upgrade_nothing_is_claimed(store):
    unknown = replace(FOUND, reducible_files=None, reducible_bytes=None)
    scanned(store, "t", "compact", unknown)
    assert status(store)["layout"]["compact"]["reducible_share"] is None
    assert "reducible files unknown" in documents.answer_line(status(store))
    scanned(store, "t", "compact", unknown, FOUND)
    assert "reducible files 95 %, 950 B to rewrite" in documents.answer_line(status(store))

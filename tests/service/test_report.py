# SPDX-License-Identifier: Apache-2.0
"""Tags of tables, and the report of tables and savings by owner, tag or database."""

import json
from datetime import UTC, datetime

import pytest
from api_toys import client_of, context_at
from store_plans import finish

from lake.model import TableRef
from service.control.config.table_settings import configure_table
from service.control.serializers import table_settings
from service.control.store import ScanRecord

pytestmark = pytest.mark.usefixtures("clean_environment")

RULES = """
[[tables]]
match = "sales.*"
owner = "desk"
tags = ["pii"]
[[tables]]
match = "*.orders"
tags = ["core", "pii"]
"""
NAMES = ("sales.orders", "sales.items", "ops.orders", "loose")


@pytest.fixture
def lake(tmp_path, run):
    """Four scanned tables of two labels; one plan of ``sales.orders`` is completed."""
    context = context_at(tmp_path, rules=RULES)
    for number, name in enumerate(NAMES):
        ref = TableRef(name=name, format="hudi", location=f"/lake/{name}")
        table = configure_table(context.config, ref)
        context.store.register_table(ref, table.mode, table.owner, table.tags)
        scan = ScanRecord(table=name, taken_at=datetime.now(UTC), files=10 + number, bytes=1000, reducible_files=5)
        context.store.record_scan(scan)
    yield context, run
    context.store.close()


def report(run, *words: str) -> dict:
    code, out, err = run("report", *words, "--json")
    assert (code, err) == (0, "")
    return {one["group"]: one for one in map(json.loads, out.splitlines())}


def test_rules_add_up_the_tags_of_a_table_and_later_owners_win(lake):
    context, _ = lake
    found = configure_table(context.config, TableRef(name="sales.orders", format="hudi", location="/x"))
    assert (found.owner, found.tags) == ("desk", ("core", "pii"))
    rows = {row["setting"]: row for row in table_settings(found)}
    assert (rows["tags"]["value"], "#2" in rows["tags"]["origin"]) == ("core, pii", True)


def test_a_report_adds_up_tables_by_owner_tag_and_database(lake):
    _, run = lake
    by_owner = report(run)
    assert {group: (one["tables"], one["files"]) for group, one in by_owner.items()} == {"desk": (2, 21), None: (2, 25)}
    by_tag = report(run, "--by", "tag")
    assert {group: one["tables"] for group, one in by_tag.items()} == {"pii": 3, "core": 2, None: 1}
    by_database = report(run, "--by", "database", "--tag", "core")
    assert {group: one["files"] for group, one in by_database.items()} == {"sales": 10, "ops": 12}
    code, text, _ = run("report", "--by", "tag")
    assert (code, "FILES REMOVED" in text, "(none)" in text) == (0, True, True)


def test_an_unknown_grouping_names_the_known_ones(lake):
    code, _, err = lake[1]("report", "--by", "team")
    assert (code, "--by 'team' is not one of owner, tag, database" in err) == (2, True)


@pytest.mark.parametrize("tag", ["two words", "", "a,b", "x" * 101])
def test_a_tag_is_one_word(tmp_path, run, tag):
    (tmp_path / "lakefold.toml").write_text(f'[[tables]]\nmatch = "*"\ntags = ["{tag}"]\n')
    code, _, err = run("config", "check", "--config", str(tmp_path / "lakefold.toml"))
    assert code != 0
    assert "tags" in err


def test_savings_of_completed_plans_count_for_each_label_of_their_table(lake):
    context, run = lake
    ref = TableRef(name="sales.orders", format="hudi", location="/lake/sales.orders")
    context.store.register_table(ref, "compact", "desk", ("core", "pii"))
    finish(context.store, "dt=1", "20260101000100000", ref)
    for by, groups in (("owner", ["desk"]), ("tag", ["core", "pii"])):
        found = report(run, "--by", by)
        saving = [group for group, one in found.items() if one["plans_completed"]]
        assert saving == groups
        assert all(found[group]["files_removed"] == 1 for group in groups)
        assert all(found[group]["rewritten_bytes"] > 0 for group in groups)


def test_page_and_api_show_the_report_of_the_command(lake):
    context, run = lake
    with client_of(context) as client:
        items = client.get("/v1/report", params={"by": "tag", "owner": "desk"}).json()["items"]
        assert {one["group"]: one for one in items} == report(run, "--by", "tag", "--owner", "desk")
        page = client.get("/report", params={"by": "tag"}).text
        assert 'href="/?tag=core"' in page
        assert "Report by tag" in page
        tables = client.get("/", params={"tag": "core"}).text
        assert "core, pii" in tables
        assert "sales.<wbr>items" not in tables
        assert client.get("/report", params={"by": "team"}).status_code == 422


def test_a_filter_by_tag_finds_tables_before_and_after_their_first_scan(tmp_path, run):
    from hudi_by_hand import PROPERTIES, ByHand

    for name in ("orders", "items"):
        ByHand(
            tmp_path / "lake/sales" / name, PROPERTIES | {"hoodie.table.name": name, "hoodie.database.name": "sales"}
        )
    context = context_at(tmp_path, rules='[[sources]]\npath = "lake"\n' + RULES)
    assert [json.loads(line)["table"] for line in run("tables", "list", "--tag", "core", "--json")[1].splitlines()] == [
        "sales.orders"
    ]
    context.store.close()

# SPDX-License-Identifier: Apache-2.0
"""What the pages of tables say: which is worst, what became of each, its objectives, and its partitions."""

import re
from dataclasses import replace
from datetime import timedelta
from urllib.parse import parse_qs, unquote

import pytest
from api_toys import client_of, context_at
from sqlalchemy import update
from web_lake import HOSTILE, register, scan, sizes, table
from web_pages import read

from planner.slo.model import Objective, ObjectiveEvaluation
from service.control.store.models import ObjectiveRow
from service.server.web.rendering import table_path

MIB, HOUR = 1 << 20, timedelta(hours=1)


def test_tables_are_listed_worst_first_below_the_problems_that_need_a_person(page):
    found = read(page, "/")
    names = [a["href"].removeprefix("/tables/") for a in found.all("a") if a.get("href", "").startswith("/tables/")]
    assert names[0] == "crm.contacts", "halted"
    worst = [entry["table"] for entry in page.get("/v1/tables").json()["items"]]
    assert list(map(unquote, names[-len(worst) :])) == worst, "most to rewrite first, as in the CLI"
    assert (
        "3 rows fewer than were read in dt=2026-11-09. Find the cause before you resume it: "
        "lakefold verify crm.contacts --rows the plan, meaning and remedy" in found.words
    )
    assert "crm.contacts has a plan that failed" not in found.words, "that it is halted says so"
    assert f"{HOSTILE} has a plan that failed" in found.words
    assert page.get("/docs/runbook.md#tablehalted").status_code == 200
    assert re.search(r"logs\.app could not be scanned: /data/lake/logs/app/.*\(\d+ min ago\)", found.words)


def test_filters_are_in_the_url_and_in_the_links_to_more(page):
    found = read(page, "/?name=CONT&state=halted")
    assert "No tables match." not in found.words
    assert [a["value"] for a in found.all("input") if a.get("name") == "name"] == ["CONT"]
    assert "1 of 10 tables" in found.words
    assert "No tables match." in read(page, "/?name=nothing-is-called-so").words


def test_objectives_are_on_the_tables_page_the_list_status_and_api(fresh):
    held = {"goal": 0.99, "window": timedelta(days=28), "valid_for": timedelta(days=9)}
    missed = ObjectiveEvaluation(objective=Objective.SMALL_FILE_SHARE, value=0.61, bound=0.05, **held)
    met = ObjectiveEvaluation(objective=Objective.OLDEST_SMALL_FILE, value=600, bound=7200, **held)
    for name in ("a.b", "a.c"):
        register(fresh.store, name, "compact")
    found = scan("a.b", sizes(300, 20 * MIB), ago=timedelta())
    fresh.store.record_scan(found, None, [missed, met])
    with fresh.store._database.write() as connection:
        times = (ObjectiveRow.judged_at_ms, ObjectiveRow.changed_at_ms)
        connection.execute(update(ObjectiveRow).values({time: time - 4 * 3_600_000 for time in times}))
    fresh.store.record_scan(found, None, [missed, met])
    problem = "small_file_share is 61 % (at most 5 %), 40 % of its error budget is left and burns fast"
    with client_of(fresh) as client:
        words = read(client, "/tables/a.b").words
        assert f"This table misses its objectives: {problem}." in words
        assert "oldest_small_file is 10 min (at most 2 h) metsince 4 h ago" in words
        assert "4 hof 6.72 h in 28 d (goal 99 %) 40 %" in words
        assert "40 %burns fast 100, 66.7, 5.56" in words
        assert f"a.b misses its objectives: {problem}." in read(client, "/").words
        assert "a.c" not in read(client, "/?state=objective_missed").words.split("Tables", 1)[1]
        assert "Objectives" not in read(client, "/tables/a.c").words
        first, second = client.get("/v1/tables/a.b").json()["objectives"]
        assert (first["objective"], first["met"], first["burn_pace"], second["burn_pace"]) == (
            "small_file_share",
            False,
            "fast",
            None,
        )
        assert first["budget_left"] == pytest.approx(0.405, abs=0.01)
        assert [one["table"] for one in client.get("/v1/tables?state=objective_missed").json()["items"]] == ["a.b"]
        assert [one["table"] for one in client.get("/v1/tables?sort=error_budget").json()["items"]] == ["a.b", "a.c"]
        for former, present in (("state=missed", "state=objective_missed"), ("sort=-budget", "sort=-error_budget")):
            old, new = client.get(f"/v1/tables?{former}"), client.get(f"/v1/tables?{present}")
            assert old.json() == new.json()
            assert old.headers["Deprecation"].startswith("@1")
            assert 'rel="deprecation"' in old.headers["Link"]
            assert "Deprecation" not in new.headers
        (entry,) = client.get("/v1/status").json()["attention"]
        assert (entry["table"], entry["error_budget_problems"]) == ("a.b", problem)
    fresh.store.record_scan(found, None, [replace(missed, goal=0.999), met])
    with client_of(fresh) as client:
        words = read(client, "/tables/a.b").words
        assert "its error budget is used up" in words
        assert "(goal 99.9 %)" in words


def test_halted_partitions_are_named_on_the_first_page_and_on_that_of_their_table(tmp_path):
    fresh = context_at(tmp_path)
    register(fresh.store, "a.b", "compact", scan("a.b", sizes(9, MIB), ago=HOUR))
    for number in range(6):
        fresh.store.halt_partition(table("a.b"), f"dt={number}", "both overwritten")
    with client_of(fresh) as client:
        for address in ("/", "/tables/a.b"):
            words = read(client, address).words
            assert re.search(r"partition dt=0 was halted .+: both overwritten\. Other partitions continue\.", words)
            assert "lakefold tables explain a.b --partition dt=0" in words
            assert ("1 more partition halted: lakefold tables show a.b" in words, "dt=5" in words) == (True, False)
        assert "Resume table" in read(client, "/tables/a.b").words
        found = client.get("/v1/tables/a.b").json()["halted_partitions"]
        assert [(one["partition"], one["halted_reason"]) for one in found][-1] == ("dt=5", "both overwritten")
        assert client.get("/docs/runbook.md#partitionhalted").status_code == 200


def test_each_column_orders_the_list_and_the_other_way_round_when_it_does_already(page):
    found = read(page, "/?name=s.&state=compact")
    links = {a["href"] for a in found.all("a") if "sort=" in a.get("href", "")}
    assert links == {
        f"/?name=s.&state=compact&sort={order}"
        for order in (
            "name",
            "state",
            "-files",
            "-reducible",
            "median_bytes",
            "-bytes",
            "rewrite_bytes",
            "-last_plan",
            "-last_scan",
        )
    }
    sorted_ = read(page, "/?sort=-files")
    assert [cell["aria-sort"] for cell in sorted_.all("th") if "aria-sort" in cell] == ["descending"]
    assert "/?sort=files" in {a.get("href") for a in sorted_.all("a")}
    large, small = (
        [place for place, a in enumerate(sorted_.all("a")) if a.get("href") == f"/tables/{name}"]
        for name in ("events.clicks", "finance.ledger")
    )
    assert large < small
    assert read(page, "/?sort=sideways", 422).all("h1")


def test_databases_add_up_and_lead_to_their_tables(page):
    found = read(page, "/databases?state=compact")
    assert "sales 1" in " ".join(found.words.split())
    assert "/?database=sales&state=compact" in {a.get("href") for a in found.all("a")}
    assert "2 of 10 tables of sales" in read(page, "/?database=sales").words


def test_tables_after_the_fiftieth_are_on_the_next_page(fresh):
    for n in range(51):
        register(
            fresh.store, f"a.t{n:02}", "compact", scan(f"a.t{n:02}", sizes(9, MIB), ago=HOUR, reducible_bytes=99 - n)
        )
    with client_of(fresh) as client:
        assert "a.t50" not in read(client, "/?name=a.").words
        last = read(client, "/?name=a.&page=2")
        assert "a.t50" in last.words
        assert [a["href"] for a in last.all("a") if a.get("rel") == "prev"] == ["/?name=a."]


def test_each_partition_is_a_cell_that_links_the_reasons_of_its_files(page):
    found = read(page, "/tables/sales.orders")
    cells = [a for a in found.all("a") if a.get("class", "") in {f"h{step}" for step in range(5)}]
    assert len(cells) == 325
    assert (cells[0]["class"], cells[-1]["class"]) == ("h0", "h4")
    assert cells[-1]["title"] == "dt=2026-11-21: 40 files, 85 % reducible, 320 MiB"
    explained = read(page, cells[-1]["href"])
    assert "group 1 of this plan (for example) 34 34.0 MiB" in explained.words
    assert "above limit 8.0 MiB ≥ 1.0 MiB (for example) small_file_limit 6 6.0 MiB" in explained.words
    assert "No such partition at the last scan." in read(page, "/tables/sales.orders?partition=dt=1999-01-01").words


def test_a_table_with_many_partitions_shows_them_page_by_page(page):
    first = read(page, "/tables/events.clicks")
    assert "504 partitions, 1 to 400 shown" in first.words
    later = next(a["href"] for a in first.all("a") if "start=400" in a.get("href", ""))
    rest = read(page, later)
    assert "504 partitions, 401 to 504 shown" in rest.words
    assert all("start=400" in a["href"] for a in rest.all("a") if "partition=" in a.get("href", ""))


def test_a_table_without_a_scan_is_shown_as_such_and_one_in_mode_off_announces_no_scan(tmp_path):
    rules = (
        '[[tables]]\nmatch = "*"\nmode = "compact"\nconcurrency = "occ"\n[[tables]]\nmatch = "old.*"\nmode = "off"\n'
    )
    context = context_at(tmp_path, rules=rules)
    for name, mode in (("new.a", "compact"), ("old.a", "off")):
        register(context.store, name, mode)
    with client_of(context) as client:
        assert "Not scanned yet The scheduler scans a new table within" in read(client, "/tables/new.a").words
        words = read(client, "/tables/old.a").words
    context.store.close()
    assert "Not scanned Its mode is off." in words
    assert "Off (mode off): lakefold neither scans this table nor changes it." in words


@pytest.mark.parametrize("path", ["/", table_path("sales.orders")])
def test_changes_of_a_week_and_a_month_are_drawn_and_have_figures(page, path):
    week, month = (read(page, f"{path}?days={days}&q=s") for days in (7, 30))
    for shown, other in ((week, 30), (month, 7)):
        assert "Over time 7 days, 30 days, since 2" in shown.words
        links = [link["href"] for link in shown.all("a") if "#over-time" in link["href"]]
        assert {"days": [str(other)], "q": ["s"]} in [parse_qs(link.split("#")[0].removeprefix("?")) for link in links]
    drawn = re.findall(r'<svg class="trend".*?aria-label="([^"]+)"', page.get(f"{path}?days=30").text)
    moved, share, size = r"[\d.,]+( k)? → [\d.,]+( k)?", r"\d+ % → \d+ %", r"[\d.]+ GiB"
    count, day = r"[\d.,]+(?: k)?", r"\d+ \w{3}"
    told = [
        f"Reducible files: {share}",
        f"Small files: {share}",
        f"Files: {moved}",
        f"Rewritten: {size}",
        f"Freed: {size}",
    ]
    if path == "/":
        told = [rf"Files: {count}, {count} on {day}", rf"Reducible files: \d+ %, {count} files; \d+ % on {day}"]
        told += [rf"{name}: {size}, since {day}" for name in ("Rewritten", "Freed")]
    assert all(map(re.fullmatch, told, drawn[: len(told)])), drawn
    text = page.get(f"{path}?days=30").text
    charts = re.findall(r'<svg class="chart timed (wide|narrow)".*?aria-label="([^"]+)"', text)
    assert [kind for kind, _ in charts][:4] == ["wide", "narrow"] * 2
    assert re.match(rf"Files over time: files {count} at first, {count} now; reducible files {count} at", charts[0][1])
    assert re.match(rf"Bytes rewritten and freed: rewritten 0 B at first, {size} now; freed 0 B at first", charts[2][1])


def test_a_lakefold_of_this_hour_shows_no_trend(fresh):
    register(fresh.store, "a.b", "compact", scan("a.b", sizes(12, 4 << 20), ago=timedelta()))
    with client_of(fresh) as client:
        for path in ("/", table_path("a.b")):
            assert "Over time" not in client.get(path).text


def listed_partitions(page, path):
    shown = read(page, path)
    rows = re.findall(r'<th scope="row" class="name"><a href="[^"]+">(.+?)</a>', page.get(path).text)
    return shown, [row.replace("<wbr>", "") for row in rows]


def test_the_worst_partitions_are_listed_beside_the_strip_and_any_can_be_found(page):
    path = table_path("sales.orders")
    shown, rows = listed_partitions(page, path)
    assert "The worst 20 of 34 with reducible files" in shown.words
    assert rows == [f"dt=2026-11-{day:02}" for day in range(21, 1, -1)]
    shown, rows = listed_partitions(page, f"{path}?search=DT%3D2026-02-1&start=0")
    assert ("10 found" in shown.words, sorted(rows)) == (True, [f"dt=2026-02-{day}" for day in range(10, 20)])
    assert f"{path}?partition=dt%3D2026-02-10&search=DT%3D2026-02-1#explain" in [a.get("href") for a in shown.all("a")]
    shown, rows = listed_partitions(page, f"{path}?search=2027")
    assert ("No partition matches." in shown.words, rows) == (True, [])
    shown, _ = listed_partitions(page, f"{table_path('events.clicks')}?find=h%3D01&from=400")
    assert "21 found, the worst 20" in shown.words
    assert {"type": "hidden", "name": "start", "value": "400"} in shown.all("input"), "the strip stays where it is"


@pytest.mark.parametrize("odd", ["%", "(", '"><script>'])
def test_a_search_term_is_only_text(page, odd):
    answer = page.get(table_path("sales.orders"), params={"find": odd})
    assert answer.status_code == 200
    assert "No partition matches." in answer.text
    assert "><script>" not in answer.text.split("Partition contains")[1].split("</form>")[0]

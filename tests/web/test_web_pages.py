# SPDX-License-Identifier: Apache-2.0
"""What the pages say in every state, and what they never do: leave a string unescaped, load from elsewhere."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import parse_qs, quote

import pytest
from api_toys import add_token, client_of, context_at
from sqlalchemy import update
from web_lake import HOSTILE, add_plan, claim_of, messages, register, scan, sizes

import service.web
from lake.plan import Progress
from planner.objectives import Judgement, Objective
from service.documents.lake_cache import LakeCache, read_lake
from service.store import ProcessFacts
from service.store.models import ObjectiveRow
from service.text import size
from service.web.rendering import own_path, table_path
from service.wiring import make_store

MIB, HOUR = 1 << 20, timedelta(hours=1)
SHIPPED = [path for path in Path(service.web.__file__).parent.rglob("*") if path.suffix in (".html", ".css", ".js")]
PATHS = [
    "/", "/plans", "/processes", "/cleaning", "/settings", "/login", "/settings?table=sales.orders",
    "/notifications", "/audit", "/pause", "/simulate", "/simulate?example=hudi-mor",
    "/replay?table=sales.orders", "/replay?table=sales.returns&days=4", "/plans?proposed=true",
    "/bulk/approve?proposed=true", "/nowhere/else",
]  # fmt: skip


class Page(HTMLParser):
    """Every element with its attributes, and the text that a wide window shows."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.text, self.narrow = [], "", 0
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "span" and (self.narrow or "narrow-only" in dict(attrs).get("class", "").split()):
            self.narrow += 1
        if tag not in ("span", "b", "a", "wbr", "code", "data"):
            self.text += " "

    def handle_endtag(self, tag):
        self.narrow -= tag == "span" and self.narrow > 0

    def handle_data(self, data):
        self.text += data if not self.narrow else ""

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def read(client, path, status=200):
    answer = client.get(path)
    assert answer.status_code == status, answer.text[:2000]
    parsed = Page(answer.text)
    parsed.words = " ".join(parsed.text.split())
    return parsed


def every_page(plans):
    tables = ["sales.orders", "events.clicks", "crm.contacts", "logs.app", "web.sessions", "archive.2019", HOSTILE]
    tables.append("sales.returns")
    paths = [*PATHS[:-1], "/plans?state=failed", "/plans?table=sales.orders"]
    return [*paths, *(table_path(name) for name in tables), *(f"/plans/{plan_id}" for plan_id in plans.values())]


def test_the_first_line_answers_how_the_lake_is(page):
    words = read(page, "/").words
    assert re.search(
        r"[\d,.]+ files removed 50\.7 GiB rewritten reducible files \d+ % → \d+ %, [\d.]+ GiB to rewrite "
        r"1 observed table: reducible files > 99 %, 48\.0 GiB to rewrite 1 running, 2 waiting 1 to approve "
        r"backlog [\d.]+ GiB ≈ \d+ (s|min) 1 halted",
        words,
    ), words[:600]


def test_a_proposal_shows_what_it_costs_saves_and_does_to_each_partition(page, lake):
    words = read(page, f"/plans/{lake[1]['proposed']}").words
    assert "Waits for approval. It was proposed" in words
    assert "pays back after" in words
    assert "Partition Files Expected Size Each" in words
    assert "dt=0 192 1 1.5 GiB 8.0 MiB → 1.5 GiB" in words


def test_the_backlog_is_one_figure_in_status_metrics_and_on_the_page(page, lake):
    status = page.get("/v1/status").json()
    plans = page.get("/v1/plans?proposed=false").json()["items"]
    assert status["backlog_bytes"] == sum(p["input_bytes"] for p in plans if p["state"] in ("requested", "inflight"))
    lake[0].metrics.stored.publish(read_lake(lake[0].store))
    families = {family.name: family.samples for family in lake[0].metrics.registry.collect()}
    assert status["backlog_bytes"] == sum(sample.value for sample in families["lakefold_plan_backlog_bytes"])
    assert f"backlog {size(status['backlog_bytes'])} ≈ " in read(page, "/").words


def test_tables_are_listed_worst_first_and_what_needs_a_person_is_said_above(page):
    found = read(page, "/")
    names = [a["href"].removeprefix("/tables/") for a in found.all("a") if a.get("href", "").startswith("/tables/")]
    listed = list(dict.fromkeys(names))
    assert listed[:3] == ["crm.contacts", "logs.app", "events.clicks"]
    assert listed.index("sales.orders") < listed.index("web.sessions")
    assert (
        "3 rows fewer than were read in dt=2026-11-09. Look into it before it is resumed: "
        "lakefold verify crm.contacts --rows the plan, what it means and what to do" in found.words
    )
    assert "crm.contacts has a plan that failed" not in found.words, "that it is halted says so"
    assert f"{HOSTILE} has a plan that failed" in found.words
    assert page.get("/docs/runbook.md#tablehalted").status_code == 200
    assert re.search(r"logs\.app could not be scanned \d+ min ago: /data/lake/logs/app/", found.words)


def test_every_figure_has_its_raw_bytes_in_a_title(page):
    found = read(page, "/")
    assert all(re.fullmatch(r"[\d,]+ (bytes|files|log files|partitions)", d["title"]) for d in found.all("data"))
    assert len(found.all("data")) > 15


def test_filters_are_in_the_url_and_in_the_links_to_more(page):
    found = read(page, "/?name=CONT&state=halted")
    assert "No tables match." not in found.words
    assert [a["value"] for a in found.all("input") if a.get("name") == "name"] == ["CONT"]
    assert "1 of 10 tables" in found.words
    assert "No tables match." in read(page, "/?name=nothing-is-called-so").words


def test_a_plan_says_what_happened_at_each_attempt_and_what_to_type(page, lake):
    found = read(page, f"/plans/{lake[1]['retried']}")
    assert "the lock of the table was not free for 60 s" in found.words
    assert "Connection reset by peer: /data/lake/finance/ledger" in found.words
    assert "dt=2026-11-06/5.parquet changed since the plan was made" in found.words
    assert f"lakefold plans cancel {lake[1]['retried']}" in found.words
    failed = read(page, f"/plans/{lake[1]['failed']}").words
    assert f"lakefold plans retry {lake[1]['failed']}" in failed
    assert "lakefold plans cancel" not in failed


def test_starting_spark_is_a_step_and_each_event_says_how_long_after_the_one_before_it_was(page, lake):
    words = read(page, f"/plans/{lake[1]['completed']}").words
    assert "startstarts Spark, unless it is running 6.4 s prepare" in words
    begun = r"[\d-]{10} [\d:]{8} UTC"
    history = rf"{begun} \+\S+ m?s completed.+ {begun} \+\S+ m?s inflight.+ {begun} requestedplanned"
    assert re.search(history, words.split("What happened")[1])


def test_a_plan_that_a_writer_cancelled_reads_as_routine(fresh):
    register(fresh.store, "a.b", "compact")
    plan = add_plan(fresh.store, "a.b", "dt=1")
    fresh.store.cancel(claim_of(fresh.store, plan), "a writer changed dt=1/7.parquet", actor="host-1")
    with client_of(fresh) as client:
        words = read(client, f"/plans/{plan.plan_id}").words
    why = "a writer changed dt=1/7.parquet. Nothing was lost; the next scan plans again what is still worth it."
    assert f"Cancelled: {why}" in words


def test_objectives_are_told_by_the_page_of_their_table_the_list_status_and_api(fresh):
    held = {"goal": 0.99, "window": timedelta(days=28), "holds": timedelta(days=9)}
    missed = Judgement(objective=Objective.SMALL_FILE_SHARE, value=0.61, bound=0.05, **held)
    met = Judgement(objective=Objective.OLDEST_SMALL_FILE, value=600, bound=7200, **held)
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
        assert "goal 99 % of 28 d" in words
        assert "40 %burns fast 100, 66.7, 5.56" in words
        assert f"a.b misses its objectives: {problem}." in read(client, "/").words
        assert "a.c" not in read(client, "/?state=missed").words.split("Tables", 1)[1]
        assert "Objectives" not in read(client, "/tables/a.c").words
        first, second = client.get("/v1/tables/a.b").json()["objectives"]
        assert (first["objective"], first["met"], first["pace"], second["pace"]) == (
            "small_file_share",
            False,
            "fast",
            None,
        )
        assert first["budget_left"] == pytest.approx(0.405, abs=0.01)
        assert [one["table"] for one in client.get("/v1/tables?state=missed").json()["items"]] == ["a.b"]
        assert [one["table"] for one in client.get("/v1/tables?sort=budget").json()["items"]] == ["a.b", "a.c"]
        (entry,) = client.get("/v1/status").json()["attention"]
        assert (entry["table"], entry["error_budgets"]) == ("a.b", problem)
    fresh.store.record_scan(found, None, [replace(missed, goal=0.999), met])
    with client_of(fresh) as client:
        words = read(client, "/tables/a.b").words
        assert "its error budget is used up" in words
        assert "goal 99.9 % of 28 d" in words


def test_plans_are_found_by_part_of_a_table_error_and_time_and_one_by_any_part_of_its_id(page, lake):
    found, failed = "/plans?state=failed&name=CONTACTS&error=integrity", lake[1]["failed"]
    for more, there in (("&since=30d", True), ("&until=30d", False), ("&since=30d&name=orders", False)):
        links = [a.get("href") for a in read(page, found + more).all("a")]
        assert (f"/plans/{failed}" in links) == there, more
    for part in (failed[:14], failed[5:], failed[-8:]):
        assert f"{failed}" in read(page, f"/plans/{part}").words


def test_a_plan_shows_what_was_predicted_beside_what_happened(page, lake):
    waits, done = (read(page, f"/plans/{lake[1][state]}").words for state in ("requested", "completed"))
    assert "of CPU a day" in waits
    assert "(by the constants)" in waits
    assert "EUR; pays back after" in done
    assert "of CPU (off by" in done
    assert "of CPU (off by" not in waits


def test_a_running_plan_shows_its_bytes_and_where_more_come_from(page, lake):
    found = read(page, f"/plans/{lake[1]['inflight']}")
    assert "23.2 GiB of 37.5 GiB" in found.words
    assert found.all("progress")[0]["max"] == str(6 * 800 * 8 * MIB)
    followed = [attributes["data-progress"] for _, attributes in found.elements if "data-progress" in attributes]
    assert followed == [f"/v1/plans/{lake[1]['inflight']}/progress"]


def test_a_running_plan_leads_to_the_spark_ui_of_its_executor_and_nowhere_else(page, lake, fresh):
    plan_id = lake[1]["inflight"]
    links = [a for a in read(page, f"/plans/{plan_id}").all("a") if a["href"] == "http://host-1.example.org:4040"]
    assert links == [{"href": "http://host-1.example.org:4040", "rel": "noreferrer"}]
    assert page.get(f"/v1/plans/{plan_id}").json()["spark_ui"] == "http://host-1.example.org:4040"
    register(fresh.store, "a.b", "compact")
    plan = add_plan(fresh.store, "a.b", "dt=1")
    claim = claim_of(fresh.store, plan)
    fresh.store.heartbeat(claim, Progress(bytes_done=0, bytes_total=1, spark_ui="javascript:alert(1)"))
    with client_of(fresh) as client:
        assert "javascript:" not in client.get(f"/plans/{plan.plan_id}").text


def test_plans_have_a_tab_for_each_state_with_its_count(page):
    found = read(page, "/plans")
    assert "all10 to approve1 requested3 inflight1 completed3 failed2 cancelled1" in found.words
    assert [a["href"] for a in found.all("a") if "state=failed" in a.get("href", "")] == ["/plans?state=failed"]
    assert "No plan is" not in read(page, "/plans?state=cancelled").words


def test_plans_go_on_behind_the_last_one(fresh):
    register(fresh.store, "a.b", "compact")
    plans = [add_plan(fresh.store, "a.b", f"dt={n}").plan_id for n in range(60)]
    with client_of(fresh) as client:
        first = read(client, "/plans?table=a.b&state=requested")
        more = next(a["href"] for a in first.all("a") if a.get("rel") == "next")
        assert "table=a.b" in more
        assert "state=requested" in more
        rest = read(client, more)
        seen = [a["href"].rpartition("/")[2] for p in (first, rest) for a in p.all("a") if "/plans/" in a["href"]]
        assert seen == list(reversed(plans))


def test_each_column_orders_the_list_and_the_other_way_round_when_it_does_already(page):
    found = read(page, "/?name=s.&state=compact")
    links = {a["href"] for a in found.all("a") if "sort=" in a.get("href", "")}
    assert links == {
        f"/?name=s.&state=compact&sort={order}"
        for order in ("name", "state", "-files", "-reducible", "median", "-bytes", "-rewrite", "-plan", "-scanned")
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


def test_tables_go_on_behind_the_fiftieth(fresh):
    for n in range(51):
        register(
            fresh.store, f"a.t{n:02}", "compact", scan(f"a.t{n:02}", sizes(9, MIB), ago=HOUR, reducible_bytes=99 - n)
        )
    with client_of(fresh) as client:
        assert "a.t50" not in read(client, "/?name=a.").words
        last = read(client, "/?name=a.&page=2")
        assert "a.t50" in last.words
        assert [a["href"] for a in last.all("a") if a.get("rel") == "prev"] == ["/?name=a."]


def test_what_is_deleted_tomorrow_is_said_first(page):
    words = read(page, "/cleaning").words
    assert re.search(
        r"Cleaning [\d.]+ GiB \([\d,]+ files\) will be deleted tomorrow; 50\.7 GiB are awaiting deletion in total\.",
        words,
    )


def test_settings_say_where_each_value_came_from(page):
    words = read(page, "/settings?table=sales.orders").words
    assert 'mode compact lakefold.toml [[tables]] #1 match "*"' in words
    assert "small_file_limit 300 MiB default" in words


def test_an_empty_database_says_how_to_begin(fresh):
    with client_of(fresh) as client:
        words = read(client, "/").words
        assert "No table yet" in words
        assert '[[sources]] path = "/data/lake"' in words
        assert "No scheduler is running." in words
        assert "No plans yet" in read(client, "/plans").words
        assert "Nothing to delete" in read(client, "/cleaning").words


def test_each_partition_is_a_cell_and_leads_to_why_its_files_are_planned_or_left(page):
    found = read(page, "/tables/sales.orders")
    cells = [a for a in found.all("a") if a.get("class", "") in {f"h{step}" for step in range(5)}]
    assert len(cells) == 325
    assert (cells[0]["class"], cells[-1]["class"]) == ("h0", "h4")
    assert cells[-1]["title"] == "dt=2026-11-21: 40 files, 85 % reducible, 320 MiB"
    explained = read(page, cells[-1]["href"])
    assert "group 1 of this plan … 34 34.0 MiB" in explained.words
    assert "above limit 8.0 MiB ≥ 1.0 MiB … small_file_limit 6 6.0 MiB" in explained.words
    assert "No such partition at the last scan." in read(page, "/tables/sales.orders?partition=dt=1999-01-01").words


def test_a_table_with_many_partitions_shows_them_page_by_page(page):
    first = read(page, "/tables/events.clicks")
    assert "504, 1 to 400 shown" in first.words
    later = next(a["href"] for a in first.all("a") if "from=400" in a.get("href", ""))
    rest = read(page, later)
    assert "504, 401 to 504 shown" in rest.words
    assert all("from=400" in a["href"] for a in rest.all("a") if "partition=" in a.get("href", ""))


def test_a_table_that_was_not_scanned_says_so_and_one_in_mode_off_promises_no_scan(tmp_path):
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


def test_without_a_database_there_is_an_honest_page_for_everybody(tmp_path):
    context = context_at(tmp_path)
    register(context.store, "a.b", "compact")
    token = add_token(context.store, "write")
    context.store.close()
    for file in tmp_path.glob("lakefold.db*"):
        file.unlink()
    (tmp_path / "lakefold.db").mkdir()
    with client_of(context) as client:
        client.headers["Accept"] = "text/html"
        for cookies in ({}, {"lakefold_token": token}):
            client.cookies.update(cookies)
            for path in ("/", "/plans", "/tables/a.b", "/cleaning"):
                found = read(client, path, 503)
                assert "The database can't be used" in found.words
                assert "lakefold db check" in found.words
        assert client.get("/v1/plans").headers["Content-Type"] == "application/problem+json"


def test_what_does_not_exist_is_a_page_with_its_status(page):
    for path in ("/tables/sales.order", "/plans/ffffffff", "/requests/none"):
        assert "Not found" in read(page, path, 404).words
    page.headers["Accept"] = "text/html"
    assert "there is nothing at /nowhere" in read(page, "/nowhere", 404).words
    assert page.get("/v1/nowhere").headers["Content-Type"] == "application/problem+json"
    assert "No such" not in read(page, "/plans?state=sideways", 422).words


HOSTILE_QUERIES = [
    "/?name={}",
    "/plans?table={}",
    "/login?next={}",
    "/tables/sales.orders?partition={0}&key={0}&value={0}",
    "/simulate?scenario={}",
    "/replay?table=sales.orders&set={}",
]


def test_a_wrong_filter_is_told_in_our_words_alone(page):
    words = read(page, "/plans?since=yesterday", 422).words
    assert "since: 'yesterday' is not a time; write 2026-03-01" in words


def test_a_proposal_waits_for_approval_and_for_no_executor(page, lake):
    words = read(page, f"/plans/{lake[1]['proposed']}").words
    assert re.search(r"Waits for approval\. It was proposed (just now|\S+ \S+ ago); no executor takes it", words)
    assert "waitingwaiting for approval" in words


@pytest.mark.parametrize("which", range(42))
def test_no_string_is_ever_markup(page, lake, which):
    paths = every_page(lake[1]) + [query.format(quote(HOSTILE)) for query in HOSTILE_QUERIES]
    assert len(paths) == 42
    answer = page.get(paths[which])
    found = Page(answer.text)
    assert [s.get("src", "").partition("?")[0] for s in found.all("script")] == ["/static/lakefold.js"]
    assert "alert('x')" not in answer.text
    for _, attributes in found.elements:
        assert not {name for name in attributes if name.startswith("on") or name == "style"}


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_forbids_what_the_page_does_not_need(page, path):
    policy = page.get(path).headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert page.get(path).headers["X-Content-Type-Options"] == "nosniff"


def test_nothing_we_ship_names_another_host_or_needs_an_inline_script_or_style():
    assert len(SHIPPED) > 10
    for path in SHIPPED:
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|src=\"//|url\(|@import|\sstyle=|\son[a-z]+=\"|<style|javascript:", text), path


def test_static_files_are_kept_for_ever_and_nothing_else_is_served(page):
    address = next(s["href"] for s in read(page, "/").all("link") if s["rel"] == "stylesheet")
    answer = page.get(address)
    assert "immutable" in answer.headers["Cache-Control"]
    assert answer.headers["Content-Type"].startswith("text/css")
    for name in ("../pages.py", "..%2Fpages.py", "%2e%2e%2fpages.py", "none.css"):
        assert page.get(f"/static/{name}").status_code == 404


def test_messages_that_were_given_up_are_said_on_the_first_page_and_listed_with_buttons(page):
    first = read(page, "/")
    assert "2 notifications could not be delivered. The receiver missed these events." in first.words
    assert {"action": "/notifications/retry", "method": "post"} in first.all("form")
    dead = read(page, "/notifications?state=dead")
    assert re.search(r"disk full sales\.orders deadanswered 410 Gone 1 \d+ (?:s|min) ago Send again Forget", dead.words)
    forms = [form for form in dead.all("form") if form["action"] == "/notifications/retry"]
    assert len(forms) == 3, "one a message, and one for all of them"
    assert "delivered" in read(page, "/notifications").words
    waiting = read(page, "/notifications?state=waiting")
    assert [form["action"] for form in waiting.all("form")] == ["/notifications/retry"]
    assert "notifications?state=lost" not in read(page, "/notifications?state=lost", 422).words


def test_messages_go_on_behind_the_fiftieth(fresh):
    messages(fresh.store.url, *map(str, range(60)))
    with client_of(fresh) as client:
        assert "could not be delivered" not in read(client, "/").words
        first = read(client, "/notifications?state=waiting")
        more = next(a["href"] for a in first.all("a") if a.get("rel") == "next")
        rest = read(client, more)
    assert [page.words.count("clean.failing") for page in (first, rest)] == [50, 10]
    assert "Newest" in rest.words


def test_without_a_webhook_the_page_says_how_to_get_one(fresh):
    with client_of(fresh) as client:
        assert "No webhook is configured." in read(client, "/notifications").words


def test_a_pause_of_everything_is_said_on_every_page_with_who_when_and_why(fresh):
    register(fresh.store, "a.b", "compact")
    paths = ["/", "/plans", "/cleaning", "/settings", "/notifications", "/pause", "/login", "/tables/a.b"]
    with client_of(fresh) as client:
        assert not [path for path in paths if "lakefold was paused" in read(client, path).words]
        fresh.store.pause(None, "ada@host-2", f"new metastore {HOSTILE}")
        for path in paths:
            found = read(client, path)
            said = re.escape(f"by ada@host-2: new metastore {HOSTILE}. Running plans finish")
            assert re.search(rf"lakefold was paused \d+ s ago {said}", found.words), path
            assert [form["action"] for form in found.all("form") if form["action"] == "/resume"] == ["/resume"]
            assert next(i["value"] for i in found.all("input") if i.get("name") == "next") == path
        fresh.store.resume(None, "ada@host-2")
        assert "lakefold was paused" not in read(client, "/").words


def test_who_may_not_read_is_not_told_of_a_pause(tmp_path):
    context = context_at(tmp_path, address="0.0.0.0")
    context.store.pause(None, "ada", "secret plans")
    with client_of(context, host="lakefold.example") as client:
        assert "secret plans" not in read(client, "/login").text
    context.store.close()


@pytest.mark.slow
def test_landmarks_skip_link_captions_and_one_heading_are_on_every_page(page, lake):
    for path in every_page(lake[1]):
        found = read(page, path)
        assert len(found.all("h1")) == 1, path
        assert [len(found.all(tag)) for tag in ("header", "main", "footer")] == [1, 1, 1], path
        assert found.all("a")[0] == {"class": "skip", "href": "#main"}
        assert len(found.all("table")) == len(found.all("caption")), path
        pictures = [s for s in found.all("svg") if s.get("role") == "img"]
        assert all(picture["aria-label"] for picture in pictures), path


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_the_chosen_theme_is_there_before_any_script_runs(page, theme):
    page.cookies.set("lakefold_theme", theme)
    assert read(page, "/").all("html")[0]["data-theme"] == theme


def test_a_theme_nobody_knows_is_none(page):
    page.cookies.set("lakefold_theme", "pink")
    assert "data-theme" not in read(page, "/").all("html")[0]


@pytest.mark.parametrize("path", ["//evil.example", "https://evil.example", "/\\evil.example", "evil", "", "/a\r\nb"])
def test_signing_in_never_leads_elsewhere(path):
    assert own_path(path) == "/"


def test_a_running_plan_shows_its_speed_what_is_left_and_its_heartbeat(page, lake):
    words = read(page, f"/plans/{lake[1]['inflight']}").words
    assert re.search(r"[\d.]+ MiB/s, about \d[\d.smh ]* left, heartbeat [\d.]+ \w+ ago", words)


def test_processes_are_listed_with_what_they_run_and_what_waits_since_nobody_does(fresh):
    store, minute = fresh.store, timedelta(minutes=1)
    register(store, "a.b", "compact")
    plan = add_plan(store, "a.b", "dt=1")
    with client_of(fresh) as client:
        words = read(client, "/processes").words
        assert "No scheduler is running." in words
        assert "1 plan waits: no executor is running; lakefold worker starts one." in words
        assert "no executor is running" in read(client, f"/plans/{plan.plan_id}").words
        assert "1 plan waits: no executor is running" in read(client, "/").words
    facts = ProcessFacts(name="host-1/17/a/b.1", role="all", host="host-1", version="0.1.0", slots=2)
    store.beat(replace(facts, spark="running", spark_ui="javascript:alert(1)"), minute)
    store.beat(replace(facts, name="host-1/18/a/b.1", role="executor", spark="broken", problem="no jars"), minute)
    store.beat(replace(facts, name="host-2/9/a/b.1"), timedelta(seconds=-1))
    store.acquire_leader("scan", facts.name, minute)
    claim_of(store, plan, facts.name)
    fresh.lake_cache.changed()
    with client_of(fresh) as client:
        found = read(client, "/processes")
        assert "no executor is running" not in found.words
        assert "host-1/18 can't use Spark: no jars" in found.words
        assert "No scheduler" not in found.words
        titles = "Process State Runs Spark Leads Seen Since Version"
        assert titles in found.words
        ages = r"(just now|\S+ \S+ ago)"
        assert re.search(rf"host-1/17 ?all alive 1 of 2 ?\w+ a\.b running scan {ages} {ages} 0\.1\.0", found.words)
        assert re.search(r"host-1/18 ?executor alive 0 of 2 broken", found.words)
        assert re.search(r"host-2/9 ?all silent", found.words)
        assert f"/plans/{plan.plan_id}" in [link.get("href") for link in found.all("a")]
        assert not [link for link in found.all("a") if "javascript" in link.get("href", "")]


@pytest.mark.parametrize("path", ["/", table_path("sales.orders")])
def test_what_changed_in_a_week_and_in_a_month_is_drawn_and_told_in_figures(page, path):
    week, month = (read(page, f"{path}?days={days}&q=s") for days in (7, 30))
    for shown, other in ((week, 30), (month, 7)):
        assert "Over time 7 days, 30 days, since 2" in shown.words
        links = [link["href"] for link in shown.all("a") if "#over-time" in link["href"]]
        assert {"days": [str(other)], "q": ["s"]} in [parse_qs(link.split("#")[0].removeprefix("?")) for link in links]
    drawn = re.findall(r'<svg class="trend".*?aria-label="([^"]+)"', page.get(f"{path}?days=30").text)
    moved, share, size = r"[\d.,]+( k)? → [\d.,]+( k)?", r"\d+ % → \d+ %", r"[\d.]+ GiB"
    told = [
        f"Reducible files: {share}", f"Small files: {share}", f"Files: {moved}", f"Rewritten: {size}", f"Freed: {size}"
    ]  # fmt: skip
    assert all(map(re.fullmatch, told, drawn[:5])), drawn


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
    shown, rows = listed_partitions(page, f"{path}?find=DT%3D2026-02-1&from=0")
    assert ("10 found" in shown.words, sorted(rows)) == (True, [f"dt=2026-02-{day}" for day in range(10, 20)])
    assert f"{path}?partition=dt%3D2026-02-10&find=DT%3D2026-02-1#explain" in [a.get("href") for a in shown.all("a")]
    shown, rows = listed_partitions(page, f"{path}?find=2027")
    assert ("No partition matches." in shown.words, rows) == (True, [])
    shown, _ = listed_partitions(page, f"{table_path('events.clicks')}?find=h%3D01&from=400")
    assert "21 found, the worst 20" in shown.words
    assert {"type": "hidden", "name": "from", "value": "400"} in shown.all("input"), "the strip stays where it is"


@pytest.mark.parametrize("odd", ["%", "(", '"><script>'])
def test_whatever_is_searched_for_is_only_text(page, odd):
    answer = page.get(table_path("sales.orders"), params={"find": odd})
    assert answer.status_code == 200
    assert "No partition matches." in answer.text
    assert "><script>" not in answer.text.split("Partition contains")[1].split("</form>")[0]


def test_a_shipped_scenario_is_drawn_batch_by_batch_and_can_be_changed(page):
    found = read(page, "/simulate?example=hudi-cow")
    names = re.findall(r"<title>(file [^<]*)</title>", page.get("/simulate?example=hudi-cow").text)
    assert names == [
        "file 1: 96,000,000 bytes, small", "file 1: 110,600,000 bytes, large", "file 1: 110,600,000 bytes, large",
        "file 2: 3,700,000 bytes, small", "file 1: 110,600,000 bytes, large", "file 2: 125,828,983 bytes, large",
        "file 3: 66,371,017 bytes, small",
    ]  # fmt: skip
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
        ("writer = ", "the scenario is no TOML"),
        ("writer = 'hive'", "no batches"),
        ("writer = 'hive'\n[[batches]]\noperation = 'insert'\nrows = 9000\ntasks = 9000", "more than 5,000 files"),
    ],
)
def test_a_scenario_that_is_wrong_is_shown_again_with_the_reason(page, scenario, says):
    answer = page.get("/simulate", params={"scenario": scenario})
    assert answer.status_code == 200
    assert says in answer.text
    assert "aria-invalid" in answer.text


def test_a_plan_outside_the_hours_of_its_table_says_so_on_its_page_and_on_the_first(tmp_path):
    elsewhen = f"{datetime.now(UTC) + timedelta(days=3):%a} 12:00-12:01".lower()
    rules = f'[[tables]]\nmatch = "*"\nmode = "compact"\nconcurrency = "single_writer"\nrun_windows = ["{elsewhen}"]\n'
    found = context_at(tmp_path, rules=rules)
    found.store.close()
    store = make_store(found.config)
    context = replace(found, store=store, lake_cache=LakeCache(store))
    register(context.store, "sales.orders", "compact")
    plan = add_plan(context.store, "sales.orders", "dt=1")
    with client_of(context) as browser:
        words = read(browser, f"/plans/{plan.plan_id}").words
        assert "it waits for the hours of sales.orders (run_windows), the next at " in words
        assert f"1 plan held back; plan {plan.plan_id} waits for the hours of sales.orders" in read(browser, "/").words
    context.store.close()

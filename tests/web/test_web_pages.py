# SPDX-License-Identifier: Apache-2.0
"""What the pages about the whole lake and about lakefold itself say in every state."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest
import time_machine
from api_toys import add_token, client_of, context_at
from store_plans import sql
from web_lake import HOSTILE, add_plan, claim_of, messages, register
from web_pages import every_page, read

from service.control.lake_cache import read_lake_state
from service.control.store import ProcessFacts
from service.server.web.formatting import as_sentence
from service.text import format_size


def test_the_first_line_answers_how_the_lake_is(page):
    words = read(page, "/").words
    assert re.search(
        r"[\d,.]+ files fewer 50\.7 GiB rewritten [\d.]+ [KMG]?i?B freed reducible files \d+ % → \d+ %, "
        r"[\d.]+ GiB to rewrite "
        r"1 observed table: reducible files > 99 %, 48\.0 GiB to rewrite 1 running, 2 waiting 1 to approve "
        r"backlog [\d.]+ GiB ≈ \d+ (s|min) 1 halted",
        words,
    ), words[:600]


def test_the_backlog_is_one_figure_in_status_metrics_and_on_the_page(page, lake):
    status = page.get("/v1/status").json()
    plans = page.get("/v1/plans?proposed=false").json()["items"]
    assert status["backlog_bytes"] == sum(p["input_bytes"] for p in plans if p["state"] in ("requested", "inflight"))
    lake[0].metrics.stored.publish(read_lake_state(lake[0].store))
    families = {family.name: family.samples for family in lake[0].metrics.registry.collect()}
    assert status["backlog_bytes"] == sum(sample.value for sample in families["lakefold_plan_backlog_bytes"])
    assert f"backlog {format_size(status['backlog_bytes'])} ≈ " in read(page, "/").words


def test_every_figure_has_its_raw_bytes_in_a_title(page):
    found = read(page, "/")
    assert all(re.fullmatch(r"[\d,]+ (bytes|files|log files|partitions)", d["title"]) for d in found.all("data"))
    assert len(found.all("data")) > 15


def test_deletions_of_the_next_day_are_stated_first(page):
    words = read(page, "/cleaning").words
    assert re.search(
        r"Cleaning [\d.]+ GiB \([\d,]+ files\) will be deleted tomorrow; 50\.7 GiB are awaiting deletion in total\.",
        words,
    )


def test_settings_name_the_origin_of_each_value(page):
    words = read(page, "/settings?table=sales.orders").words
    assert 'mode compact lakefold.toml [[tables]] #1 match "*"' in words
    assert "small_file_limit 300 MiB default" in words


def test_set_settings_are_first_and_any_is_found_by_name_value_or_origin(page):
    everything = page.get("/v1/settings?table=sales.orders").json()["items"]
    changed = [one["setting"] for one in everything if one["origin"] != "default"]
    words = read(page, "/settings?table=sales.orders").words
    assert f"Changed {len(changed)} of {len(everything)} settings" in words
    assert f"Default {len(everything) - len(changed)} settings" in words
    first, later = words.split(" Changed ", 1)[1].split(" Default ", 1)
    assert all(f"{name} " in first for name in changed)
    assert "small_file_limit 300 MiB default" in later
    for search, there in (("SMALL_FILE_L", True), ("300 mib", True), ("#1 match", False), ("frobs", False)):
        words = read(page, f"/settings?table=sales.orders&search={quote(search)}").words
        assert ("small_file_limit 300 MiB" in words) == there, search
    assert "mode compact lakefold.toml" in read(page, "/settings?table=sales.orders&search=%231%20match").words
    nothing = read(page, "/settings?search=frobs").words
    assert "No setting of the service matches." in nothing
    assert "No changed setting" not in nothing
    assert "No changed setting matches." in read(page, "/settings?table=sales.orders&search=row_group").words


def test_the_navigation_of_every_page_links_audit_simulation_and_notifications(page):
    html = page.get("/audit").text
    navigation, rest = html.split("</nav>", 1)
    for path in ("/audit", "/simulate", "/notifications"):
        assert f'href="{path}"' in navigation
        assert f'href="{path}"' not in rest.split("<footer>")[1]
    assert '<a href="/audit" aria-current="page">' in navigation


@pytest.mark.parametrize("path", ["/databases", "/report"])
def test_without_tables_no_page_states_that_none_match(fresh, path):
    with client_of(fresh) as client:
        assert "No tables yet." in read(client, path).words
        assert "No tables match. Show all" in read(client, f"{path}?name=none").words


def test_settings_are_grouped_by_the_sections_of_the_configuration(page):
    text = page.get("/settings").text
    groups = re.findall(r'<h3 class="spaced">([^<]+)</h3>', text)
    assert {"Daemon", "Cost", "Notifications", "OpenID Connect", "HTTP"} <= set(groups)
    for group, setting in (("Notifications", "notify.events"), ("Cost", "cost.currency")):
        (section,) = re.findall(rf'aria-label="{group}, default".*?</table>', text, re.DOTALL)
        assert setting in section.replace("<wbr>", "")


def test_the_page_of_an_empty_database_explains_how_to_begin(fresh):
    with client_of(fresh) as client:
        words = read(client, "/").words
        assert "No table yet" in words
        assert '[[sources]] path = "/data/lake"' in words
        assert "No scheduler is running." in words
        assert "No plans yet" in read(client, "/plans").words
        assert "Nothing to delete" in read(client, "/cleaning").words


def test_without_a_database_every_caller_gets_a_page_with_the_reason(tmp_path):
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


def test_an_unknown_address_is_a_page_with_its_status(page):
    for path in ("/tables/sales.order", "/plans/ffffffff", "/requests/none"):
        assert "Not found" in read(page, path, 404).words
    page.headers["Accept"] = "text/html"
    assert "There is nothing at /nowhere" in read(page, "/nowhere", 404).words
    assert page.get("/v1/nowhere").headers["Content-Type"] == "application/problem+json"
    assert "No such" not in read(page, "/plans?state=sideways", 422).words


def test_a_wrong_filter_is_an_error_in_lakefolds_words(page):
    words = read(page, "/plans?since=yesterday", 422).words
    assert "since: 'yesterday' is not a time; write 2026-03-01" in words


def test_dead_messages_are_reported_on_the_first_page_and_listed_with_buttons(page):
    first = read(page, "/")
    assert "2 notifications could not be delivered. The receiver missed these events." in first.words
    assert {"action": "/notifications/retry", "method": "post"} in first.all("form")
    dead = read(page, "/notifications?state=dead")
    assert re.search(r"disk full sales\.orders deadanswered 410 Gone 1 \d+ (?:s|min) ago Send again Delete", dead.words)
    forms = [form for form in dead.all("form") if form["action"] == "/notifications/retry"]
    assert len(forms) == 3, "one a message, and one for all of them"
    assert "delivered" in read(page, "/notifications").words
    waiting = read(page, "/notifications?state=waiting")
    assert [form["action"] for form in waiting.all("form")] == ["/notifications/retry"]
    assert "notifications?state=lost" not in read(page, "/notifications?state=lost", 422).words


def test_messages_after_the_fiftieth_are_on_the_next_page(fresh):
    messages(fresh.store.url, *map(str, range(60)))
    with client_of(fresh) as client:
        assert "could not be delivered" not in read(client, "/").words
        first = read(client, "/notifications?state=waiting")
        more = next(a["href"] for a in first.all("a") if a.get("rel") == "next")
        rest = read(client, more)
    assert [page.words.count("clean.failing") for page in (first, rest)] == [50, 10]
    assert "Newest" in rest.words


def test_without_a_webhook_the_page_explains_how_to_configure_one(fresh):
    with client_of(fresh) as client:
        assert "No webhook and no channel is configured." in read(client, "/notifications").words


def test_a_global_pause_is_on_every_page_with_actor_time_and_reason(fresh):
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
def test_the_chosen_theme_is_applied_before_any_script_runs(page, theme):
    page.cookies.set("lakefold_theme", theme)
    assert read(page, "/").all("html")[0]["data-theme"] == theme


def test_an_unknown_theme_is_ignored(page):
    page.cookies.set("lakefold_theme", "pink")
    assert "data-theme" not in read(page, "/").all("html")[0]


def test_processes_are_listed_with_their_plans_and_plans_that_wait_without_an_executor(fresh):
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
    store.register_process(replace(facts, spark="running", spark_ui="javascript:alert(1)"), minute)
    store.register_process(
        replace(facts, name="host-1/18/a/b.1", role="executor", spark="broken", problem="no jars"), minute
    )
    store.register_process(replace(facts, name="host-2/9/a/b.1"), timedelta(seconds=-1))
    store.acquire_leader("scan", facts.name, minute)
    claim_of(store, plan, facts.name)
    fresh.lake_cache.invalidate()
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


def test_tables_without_a_notice_of_their_own_are_linked(fresh):
    for number in range(30):
        register(fresh.store, f"a.t{number:02}", "compact")
        fresh.store.pause(f"a.t{number:02}", "ada@host-2", "is moved")
    with client_of(fresh) as client:
        found = read(client, "/")
    assert "22 more tables with problems, 12 of them are: a.t08, a.t09," in found.words
    assert {"/tables/a.t08", "/tables/a.t19"} <= {link["href"] for link in found.all("a")}


def test_the_reason_on_the_page_of_a_problem_is_a_sentence(page):
    assert "No table 'none'; " in read(page, "/tables/none", 404).words


def test_continuing_problems_precede_failed_plans_newest_first(fresh):
    for number in range(10):
        name = f"a.t{number}"
        register(fresh.store, name, "compact")
        fresh.store.fail(claim_of(fresh.store, add_plan(fresh.store, name)), "no space left on device")
    days = "86400000 * (20 - CAST(substr(table_name, 4) AS INTEGER))"
    sql(fresh.store.url, f"UPDATE plan SET finalized_at_ms = finalized_at_ms - {days}")
    register(fresh.store, "b.paused", "compact")
    fresh.store.pause("b.paused", "ada@host-2", "is moved")
    with client_of(fresh) as client:
        words = read(client, "/").words
    subjects = re.findall(r"(b\.paused|a\.t\d) (?:was paused|has a plan that failed \d+ d ago)", words)
    assert subjects == ["b.paused", "a.t9", "a.t8", "a.t7", "a.t6", "a.t5", "a.t4", "a.t3"]
    assert "3 more tables with problems: a.t2, a.t1, a.t0" in words


def test_a_silent_process_has_one_age_on_its_page(fresh):
    minute = timedelta(minutes=1)
    facts = ProcessFacts(name="host-1/17/a/b.1", role="all", host="host-1", version="0.1.0", slots=2)
    fresh.store.register_process(facts, timedelta(seconds=-1))
    with client_of(fresh) as client, time_machine.travel(datetime.now(UTC) + minute, tick=False):
        words = read(client, "/processes").words
    said, listed = (
        re.search(pattern, words)[1] for pattern in (r"last seen (\d+ \w+) ago", r"silent .*? (\d+ \w+) ago")
    )
    assert said == listed


def test_a_search_that_finds_no_setting_of_the_service_names_the_settings_of_tables(page):
    words = read(page, "/settings?search=QUIET").words
    assert "quiet_period: a setting of tables; enter a table to see the value." in words
    assert "No setting of the service matches." in words
    assert "No changed setting" not in words
    assert "of tables; enter" not in read(page, "/settings?search=quiet&table=sales.orders").words
    assert "min_row_group 8.0 MiB" in read(page, "/settings?table=sales.orders&search=row_group").words


def test_a_wrong_parameter_of_an_address_is_shown_with_its_value(page):
    page.headers["Accept"] = "text/html"
    words = read(page, "/?page=zero", 422).words
    assert "page: Input should be a valid integer, unable to parse string as an integer, but is 'zero'." in words


@pytest.mark.parametrize(
    ("detail", "sentence"),
    [
        ("no table 'none'; 3 tables known", "No table 'none'; 3 tables known."),
        ("frobs is not a setting", "frobs is not a setting."),
        ("there is nothing at /nowhere", "There is nothing at /nowhere"),
        ("the scenario has no batch; add at least one", "The scenario has no batch; add at least one."),
        ("/data/lake: not a Hudi table", "/data/lake: not a Hudi table."),
        ("", ""),
    ],
)
def test_a_reason_becomes_a_sentence_and_names_stay_as_they_are(detail, sentence):
    assert as_sentence(detail) == sentence

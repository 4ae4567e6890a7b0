# SPDX-License-Identifier: Apache-2.0
"""What the pages of plans say: what each costs and does, how it goes, why it waits, and how it is found."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from api_toys import client_of, context_at
from web_lake import add_plan, claim_of, register
from web_pages import read

from lake.plan import RewriteProgress
from lake.units import format_duration, format_elapsed
from service.control.lake_cache import LakeCache
from service.control.wiring import create_store
from service.server.web.charts import sparkline

MIB = 1 << 20


def test_a_proposal_shows_its_cost_saving_and_effect_on_each_partition(page, lake):
    words = read(page, f"/plans/{lake[1]['proposed']}").words
    assert "Waits for approval. It was proposed" in words
    assert "pays back after" in words
    assert "Partition Files Expected Size Each" in words
    assert "dt=0 192 2 1.5 GiB 8.0 MiB → 768 MiB" in words


def test_a_proposal_lists_cost_saving_and_payback_and_explains_decline_and_cancel(page, lake):
    plan = page.get(f"/v1/plans/{lake[1]['proposed']}").json()
    predicted = plan["cost_benefit"]["predicted"]
    costs, saves = (format_elapsed(predicted[name]) for name in ("cpu_seconds", "cpu_seconds_saved_per_day"))
    back = format_duration(predicted["payback_days"] * 86_400)
    words = read(page, f"/plans/{lake[1]['proposed']}").words
    price, saved = (f"{predicted[name]:.3g} EUR" for name in ("cost", "savings_per_day"))
    assert f"Costs {costs} {price} Saves a day {saves} {saved} Pays back after {back}" in words
    meaning = "Decline: {} never runs, and its files are not proposed again until the files or the settings"
    assert meaning.format("the plan") in words
    assert "Cancel: the plan ends, and the next scan proposes its files again." in words
    listed = read(page, "/plans?proposed=true").words
    assert f"{costs}{price} {saves}{saved} after {back}" in listed
    assert meaning.format("a plan") in listed
    running = read(page, f"/plans/{lake[1]['inflight']}").words
    assert "Cancel: the plan ends before its commit" in running
    assert "Decline:" not in running


def test_a_live_plan_shows_the_sizes_of_its_files_before_and_after(page, lake):
    plan = page.get(f"/v1/plans/{lake[1]['proposed']}").json()
    sizes = page.get(f"/v1/plans/{lake[1]['proposed']}/sizes").json()
    assert (sizes["files_before"], sum(sizes["before"])) == (plan["input_files"], plan["input_files"])
    assert (sizes["files_after"], sum(sizes["after"])) == (plan["output_files"], plan["output_files"])
    assert sizes["before"][13] == plan["input_files"], "all of 8 MiB"
    assert sizes["after"][20] == plan["output_files"], "all of 768 MiB"
    shown = read(page, f"/plans/{lake[1]['proposed']}").words
    assert f"4.0 – 8.0 MiB {plan['input_files']:,} 0" in shown
    assert f"512 MiB – 1.0 GiB 0 {plan['output_files']}" in shown
    assert "File sizes before and after" not in page.get(f"/plans/{lake[1]['completed']}").text


def test_each_proposal_in_the_list_has_its_file_sizes_before_and_after_on_one_scale(page, lake):
    sizes = page.get(f"/v1/plans/{lake[1]['proposed']}/sizes").json()
    text = page.get("/plans?proposed=true").text
    pictures = re.findall(r'<span class="sparks">(.*?)</span>', text, re.DOTALL)
    assert len(pictures) == len(page.get("/v1/plans?proposed=true").json()["items"]) == 1
    before, after = re.findall(r"<svg.*?</svg>", pictures[0], re.DOTALL)
    assert f'aria-label="before: {sizes["files_before"]:,} files"' in before
    assert f'aria-label="expected: {sizes["files_after"]} file' in after
    limit = 300 << 20
    most = max(*sizes["before"], *sizes["after"])
    for svg, when in ((before, "before"), (after, "after")):
        drawn = sparkline(tuple(sizes[when]), None, limit, most=most)
        assert [path for path in (drawn.small, drawn.large) if path] == re.findall(
            r'<path class="\w+" d="([^"]+)"', svg
        )
    assert 'class="large"' not in before, "all files are below the limit"
    assert 'class="large"' in after


def test_two_small_histograms_of_one_scale_have_bars_of_comparable_heights():
    many, few = (1, 100, *[0] * 23), (0, 0, 4, *[0] * 22)
    alone, beside = (sparkline(few, None, 1, most=most).large for most in (0, 100))
    heights = [float(re.search(r"v-([\d.]+)", path)[1]) for path in (alone, beside)]
    assert heights[1] == pytest.approx(heights[0] / 5, abs=0.1), "the square root of 4 in 100"
    assert sparkline(many, None, 1, most=100).large == sparkline(many, None, 1).large


def test_names_of_processes_are_short_and_whole_in_their_title(fresh):
    register(fresh.store, "a.b", "compact")
    plan = add_plan(fresh.store, "a.b", "dt=1")
    claim_of(fresh.store, plan, "host-1/4711/1/a.2")
    with client_of(fresh) as client:
        html = client.get(f"/plans/{plan.plan_id}").text
    assert re.findall(r'title="(host-1/4711/1/a.2)">([^<]+)<', html) == [("host-1/4711/1/a.2", "host-1/4711")] * 2
    assert ">host-1/4711/1/a.2" not in html


def test_a_plan_shows_the_result_of_each_attempt_and_the_commands(page, lake):
    found = read(page, f"/plans/{lake[1]['retried']}")
    assert "the lock of the table was not free for 60 s" in found.words
    assert "Connection reset by peer: /data/lake/finance/ledger" in found.words
    assert "dt=2026-11-06/5.parquet changed since the plan was made" in found.words
    assert f"lakefold plans cancel {lake[1]['retried']}" in found.words
    failed = read(page, f"/plans/{lake[1]['failed']}").words
    assert f"lakefold plans retry {lake[1]['failed']}" in failed
    assert "lakefold plans cancel" not in failed


def test_starting_spark_is_a_step_and_each_event_has_the_time_since_the_previous_one(page, lake):
    words = read(page, f"/plans/{lake[1]['completed']}").words
    assert "startstarts Spark, unless it is running 6.4 s prepare" in words
    begun = r"[\d-]{10} [\d:]{8} UTC"
    history = rf"{begun} \+\S+ m?s completed.+ {begun} \+\S+ m?s inflight.+ {begun} requestedplanned"
    assert re.search(history, words.split("History")[1])


def test_a_plan_that_a_writer_cancelled_reads_as_routine(fresh):
    register(fresh.store, "a.b", "compact")
    plan = add_plan(fresh.store, "a.b", "dt=1")
    fresh.store.cancel(claim_of(fresh.store, plan), "a writer changed dt=1/7.parquet", actor="host-1")
    with client_of(fresh) as client:
        words = read(client, f"/plans/{plan.plan_id}").words
    why = "a writer changed dt=1/7.parquet. Nothing was lost; the next scan plans the worthwhile files again."
    assert f"Cancelled: {why}" in words


def test_plans_are_found_by_part_of_a_table_error_and_time_and_one_by_any_part_of_its_id(page, lake):
    found, failed = "/plans?state=failed&name=CONTACTS&error=integrity", lake[1]["failed"]
    for more, there in (("&since=30d", True), ("&until=30d", False), ("&since=30d&name=orders", False)):
        links = [a.get("href") for a in read(page, found + more).all("a")]
        assert (f"/plans/{failed}" in links) == there, more
    for part in (failed[:14], failed[5:], failed[-8:]):
        assert f"{failed}" in read(page, f"/plans/{part}").words


def test_a_plan_shows_its_prediction_beside_its_result(page, lake):
    waits, done = (read(page, f"/plans/{lake[1][state]}").words for state in ("requested", "completed"))
    assert "of CPU a day" in waits
    assert "(default estimate)" in waits
    assert "EUR; pays back after" in done
    assert re.search(r"of CPU \(predicted \d+ × as much\)", done)
    assert "of CPU (predicted" not in waits


def test_a_running_plan_shows_its_bytes_and_follows_its_progress(page, lake):
    found = read(page, f"/plans/{lake[1]['inflight']}")
    assert "23.2 GiB of 37.5 GiB" in found.words
    assert found.all("progress")[0]["max"] == str(6 * 800 * 8 * MIB)
    followed = [attributes["data-progress"] for _, attributes in found.elements if "data-progress" in attributes]
    assert followed == [f"/v1/plans/{lake[1]['inflight']}/progress"]


def test_a_running_plan_links_the_spark_ui_of_its_executor_and_nothing_else(page, lake, fresh):
    plan_id = lake[1]["inflight"]
    links = [a for a in read(page, f"/plans/{plan_id}").all("a") if a["href"] == "http://host-1.example.org:4040"]
    assert links == [{"href": "http://host-1.example.org:4040", "rel": "noreferrer"}]
    assert page.get(f"/v1/plans/{plan_id}").json()["spark_ui"] == "http://host-1.example.org:4040"
    register(fresh.store, "a.b", "compact")
    plan = add_plan(fresh.store, "a.b", "dt=1")
    claim = claim_of(fresh.store, plan)
    fresh.store.heartbeat(claim, RewriteProgress(bytes_done=0, bytes_total=1, spark_ui="javascript:alert(1)"))
    with client_of(fresh) as client:
        assert "javascript:" not in client.get(f"/plans/{plan.plan_id}").text


def test_plans_have_a_tab_for_each_state_with_its_count(page):
    found = read(page, "/plans")
    assert "all10 to approve1 requested3 inflight1 completed3 failed2 cancelled1" in found.words
    assert [a["href"] for a in found.all("a") if "state=failed" in a.get("href", "")] == ["/plans?state=failed"]
    assert "No plan is" not in read(page, "/plans?state=cancelled").words


def test_plans_after_the_last_one_are_on_the_next_page(fresh):
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


def test_a_proposal_waits_for_approval_and_for_no_executor(page, lake):
    words = read(page, f"/plans/{lake[1]['proposed']}").words
    assert re.search(r"Waits for approval\. It was proposed (just now|\S+ \S+ ago); no executor takes it", words)
    assert "waitingwaiting for approval" in words


def test_a_running_plan_shows_its_speed_remaining_time_and_heartbeat(page, lake):
    words = read(page, f"/plans/{lake[1]['inflight']}").words
    assert re.search(r"[\d.]+ MiB/s, about \d[\d.smh ]* left, heartbeat [\d.]+ \w+ ago", words)


def test_a_plan_outside_its_tables_hours_has_that_reason_on_its_page_and_on_the_first(tmp_path):
    elsewhen = f"{datetime.now(UTC) + timedelta(days=3):%a} 12:00-12:01".lower()
    rules = f'[[tables]]\nmatch = "*"\nmode = "compact"\nconcurrency = "single_writer"\nrun_windows = ["{elsewhen}"]\n'
    found = context_at(tmp_path, rules=rules)
    found.store.close()
    store = create_store(found.config)
    context = replace(found, store=store, lake_cache=LakeCache(store))
    register(context.store, "sales.orders", "compact")
    plan = add_plan(context.store, "sales.orders", "dt=1")
    with client_of(context) as browser:
        words = read(browser, f"/plans/{plan.plan_id}").words
        assert "it waits for the hours of sales.orders (run_windows), the next at " in words
        assert f"1 plan held back; plan {plan.plan_id} waits for the hours of sales.orders" in read(browser, "/").words
    context.store.close()

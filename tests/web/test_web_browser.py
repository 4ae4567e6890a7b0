# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: both themes, both widths, by keyboard, without JavaScript, and while things move."""

import itertools
import re
from datetime import timedelta
from urllib.parse import quote

import crowded_lake
import pytest
from api_toys import add_token, context_at
from axe_playwright_python.sync_playwright import Axe
from browser import THEMES, WIDTHS, broken, chromium, opened, screenshot, served
from crowded_lake import NAMES, PARTITION, asked, crowd, queue
from playwright.sync_api import expect
from store_plans import commit_of, figures_of
from support import SOAK
from web_lake import HOSTILE, add_plan, claim_of, messages, register, scan, seven_day_lead, sizes

from lake.plan import RewriteProgress
from service.server.web.rendering import table_path

MIB = 1 << 20
NOW, HOUR = timedelta(), timedelta(hours=1)


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def address(lake):
    with served(lake[0]) as url:
        yield url


@pytest.fixture(scope="module")
def crowded(tmp_path_factory):
    """The address of a service with many tables and long names, and its pages."""
    context = context_at(tmp_path_factory.mktemp("crowded"), rules=crowded_lake.RULES)
    plans = {name: plan.plan_id for name, plan in crowd(context.store).items()}
    requests = asked(context.store)
    queue(context.store)
    seven_day_lead(context.store)
    with served(context) as url:
        yield url, crowded_pages_of(plans, requests)
    context.store.close()


#: pages that look like another one to axe
PLAIN = {
    "overview-trends": "/?days=30",
    "table-trends": f"{table_path('sales.orders')}?days=30",
    "plans-wrong": "/plans?since=yesterday",
    "nowhere": "/nowhere/else",
}


def pages_of(plans):
    """Every kind of page in every state that looks different: a name for its picture and its path."""
    return {
        "overview": "/",
        "overview-none-found": "/?name=nothing",
        "overview-sorted": "/?sort=-files&state=compact",
        "databases": "/databases",
        "table": table_path("sales.orders"),
        "table-logs": table_path("events.clicks"),
        "table-halted": table_path("crm.contacts"),
        "table-failing": table_path("logs.app"),
        "table-observed": table_path("web.sessions"),
        "table-not-scanned": table_path("archive.2019"),
        "table-hostile": table_path(HOSTILE),
        "table-proposed": table_path("sales.returns"),
        "plans": "/plans",
        "plans-proposed": "/plans?proposed=true",
        "plans-failed": "/plans?state=failed",
        "plans-found": "/plans?state=failed&name=contacts&error=integrity&since=30d",
        "plans-retry": "/bulk/retry?state=failed",
        "plans-cancel": "/bulk/cancel?state=requested",
        "plans-approve": "/bulk/approve?proposed=true",
        "plans-decline": "/bulk/decline?proposed=true",
        **{f"plan-{name}": f"/plans/{plan_id}" for name, plan_id in plans.items()},
        "replay": "/replay?table=sales.returns&days=4&set=min_input_files=2,8",
        "replay-wrong": "/replay?table=sales.returns&set=frobs%3D3",
        "report": "/report?by=database",
        "history": "/history?table=sales.returns",
        "partition": f"{table_path('events.clicks')}?partition={quote('dt=2026-11-04/h=05', safe='')}",
        "processes": "/processes",
        "cleaning": "/cleaning",
        "simulate": "/simulate?example=hudi-mor",
        "settings": "/settings",
        "settings-table": "/settings?table=sales.orders",
        "table-settings-wrong": "/tables/sales.orders?key=small_file_limit&value=lots&key=frobs&value=3#request",
        "notifications": "/notifications",
        "audit": "/audit",
        "pause": "/pause",
        "login": "/login",
        "problem": "/tables/none",
    }


def crowded_pages_of(plans, requests):
    """Every kind of page that names are on, in the lake of long ones."""
    return {
        "overview": "/",
        "overview-second": "/?page=2",
        "overview-owner": "/?owner=team-1-data-platform-and-insights&sort=owner",
        "databases": "/databases",
        **{f"table-{state}": table_path(name) for state, name in NAMES.items()},
        "table-explained": f"{table_path(NAMES['solid'])}?partition={quote(PARTITION.format(4), safe='')}",
        "plans": "/plans",
        "plans-table": f"/plans?table={NAMES['solid']}",
        "plans-failed": "/plans?state=failed",
        "plans-inflight": "/plans?state=inflight",
        "plans-retry": "/bulk/retry?state=failed",
        "plans-cancel": "/bulk/cancel?state=requested",
        **{f"plan-{name}": f"/plans/{plan_id}" for name, plan_id in plans.items()},
        **{name: f"/requests/{request_id}" for name, request_id in requests.items()},
        "processes": "/processes",
        "cleaning": "/cleaning",
        "settings-table": f"/settings?table={NAMES['solid']}",
        "audit": "/audit",
        "problem": f"/tables/none_{NAMES['solid']}",
    }


#: themes and widths; in the short run half of the pages are paired off between two of them
SIGHTS = list(itertools.product(THEMES, WIDTHS)) if SOAK else [("light", 1400), ("dark", 400)]


@pytest.mark.soak
@pytest.mark.parametrize(("theme", "width"), SIGHTS)
def test_on_no_page_axe_finds_anything_serious(browser, address, lake, theme, width):
    axe, found = Axe(), {}

    def look(page, name, path):
        page.goto(path)
        if SOAK:
            screenshot(page, f"{name}-{theme}-{width}")
        violations = axe.run(page, options={"resultTypes": ["violations"]}).response["violations"]
        bad = [v for v in violations if v["impact"] in ("serious", "critical")]
        found.update({name: [(v["id"], v["help"], v["nodes"][0]["html"][:200]) for v in bad]} if bad else {})

    with opened(browser, address, color_scheme=theme, viewport={"width": width, "height": 900}) as page:
        pages = list(pages_of(lake[1]).items())
        for name, path in pages if SOAK else pages[SIGHTS.index((theme, width)) :: 2 * len(SIGHTS)]:
            look(page, name, path)
        lake[0].store.pause(None, "ada@host-2", "the metastore moves to another machine, back at noon")
        try:
            look(page, "paused", "/")
        finally:
            lake[0].store.resume(None, "ada@host-2")
    assert not found


@pytest.mark.parametrize("which", ["lake", "crowded"])
@pytest.mark.crossed(first="crowded")
def test_every_page_fits_every_window_and_breaks_no_name(browser, address, lake, crowded, which):
    pages = pages_of(lake[1]) | PLAIN if which == "lake" else crowded[1]
    found = {}
    with opened(browser, address if which == "lake" else crowded[0], forgive="status of 4") as page:
        for name, path in pages.items():
            page.goto(path)
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                if wrong := broken(page):
                    found[name, width] = wrong
                if SOAK:
                    for theme in THEMES:
                        page.emulate_media(color_scheme=theme)
                        screenshot(page, f"{which}-{name}-{theme}-{width}")
    assert not found


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_the_theme_follows_the_system_until_one_is_chosen_and_then_stays(browser, address):
    with opened(browser, address, color_scheme="light") as page:
        page.goto("/")
        light = background(page)
        page.emulate_media(color_scheme="dark")
        dark = background(page)
        assert light != dark
        page.get_by_role("button", name="Light theme").click()
        assert background(page) == light
        page.goto("/plans")
        assert background(page) == light
        page.get_by_role("button", name="Dark theme").click()
        assert background(page) == dark


def test_a_keyboard_reaches_everything_and_the_focus_is_seen(browser, address):
    with opened(browser, address) as page:
        page.goto("/")
        page.keyboard.press("Tab")
        skip = page.get_by_role("link", name="Skip to the content")
        expect(skip).to_be_focused()
        expect(skip).to_be_in_viewport()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('main') !== null")
        seen = set()
        for _ in range(80):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement === document.body"):
                break
            seen.add(page.evaluate("document.activeElement.textContent.trim()"))
            outlined = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outlined != "none", page.evaluate("document.activeElement.outerHTML.slice(0, 300)")
        assert {"crm.contacts", "sales.orders", "inventory.stock"} <= seen


def test_a_time_is_in_utc_and_shows_the_local_time_on_hover(browser, address, lake):
    with opened(browser, address, timezone_id="Asia/Tokyo", locale="en-GB") as page:
        page.goto(f"/plans/{lake[1]['completed']}")
        time = page.locator(".history time").first
        expect(time).to_have_text(re.compile(r"^\d{4}-\d\d-\d\d [\d:]{8} UTC$"))
        time.hover()
        expect(time).to_have_attribute("title", re.compile(r" ago · \d\d/\d\d/\d{4}, [\d:]{8} here$"))


def test_arrow_keys_walk_along_the_partitions_and_enter_explains_one(browser, address):
    with opened(browser, address) as page:
        page.goto(table_path("sales.orders"))
        cells = page.locator(".strip a")
        assert cells.evaluate_all("all => all.filter(cell => cell.tabIndex === 0).length") == 1
        cells.first.focus()
        page.keyboard.press("ArrowRight")
        expect(cells.nth(1)).to_be_focused()
        page.keyboard.press("End")
        expect(cells.last).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="dt=2026-11-21")).to_be_in_viewport()
        assert "partition=dt%3D2026-11-21" in page.url


def test_without_javascript_everything_can_be_read_and_requested(browser, fresh):
    register(
        fresh.store, "a.b", "compact", scan("a.b", sizes(50, MIB), ago=HOUR, reducible_files=50, reducible_bytes=MIB)
    )
    token = add_token(fresh.store, "write")
    with served(fresh) as url, opened(browser, url, java_script_enabled=False) as page:
        page.goto("/")
        page.get_by_role("link", name="a.b").click()
        expect(page.get_by_role("heading", name="a.b")).to_be_visible()
        expect(page.get_by_role("img", name="Files by size: now 50 files")).to_be_visible()
        assert page.get_by_role("button", name="Copy").count() == 0
        page.get_by_role("button", name="Pause table").click()
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_label("Reason for a pause").fill("is moved")
        page.get_by_role("button", name="Pause table").click()
        expect(page.get_by_text("by token write: is moved. Running plans finish")).to_be_visible()
        assert fresh.store.table_state("a.b").paused
        page.get_by_role("button", name="Resume table").click()
        assert not fresh.store.table_state("a.b").paused

        page.get_by_text("Other settings for this request only").click()
        page.get_by_label("small_file_limit").fill("lots")
        page.get_by_role("button", name="Dry run").click()
        expect(page.get_by_role("alert")).to_contain_text("small_file_limit: 'lots'")
        page.get_by_label("small_file_limit").fill("64MiB")
        page.get_by_label("Another setting").fill("max_num_groups")
        page.get_by_label("Its value").fill("3")
        page.get_by_role("button", name="Dry run").click()
        expect(page.get_by_role("heading", name="Dry run")).to_be_visible()
        [request] = fresh.store.open_requests()
        assert request.overrides == {"small_file_limit": "64MiB", "max_num_groups": "3"}

        page.get_by_role("link", name="Pause everything").click()
        page.get_by_label("Reason").fill("new metastore")
        page.get_by_role("button", name="Yes, pause everything").click()
        expect(page.get_by_role("status").get_by_text("by token write: new metastore.")).to_be_visible()
        page.get_by_role("link", name="Plans", exact=True).click()
        page.get_by_role("button", name="Resume everything").click()
        expect(page.get_by_role("heading", name="Plans", exact=True)).to_be_visible()
        assert fresh.store.service_pause() is None

        [number] = messages(fresh.store.url, "disk full")
        fresh.store.mark_notification_failed(number, "answered 410 Gone", None)
        fresh.lake_cache.invalidate()
        page.goto("/")
        page.get_by_role("link", name="1 notification could not be delivered.").click()
        page.get_by_role("button", name="Send again", exact=True).click()
        expect(page.get_by_role("row", name="disk full")).to_contain_text("waiting")


def test_live_parts_move_by_themselves_until_a_person_pauses_them(browser, fresh):
    register(fresh.store, "a.b", "compact", scan("a.b", sizes(500, MIB), ago=HOUR))
    with served(fresh) as url, opened(browser, url) as page:
        page.goto("/tables/a.b")
        page.evaluate("window.same = true")
        files = page.locator(".facts dd").first
        expect(files).to_have_text("500")
        head, began = page.locator("header").bounding_box(), page.locator("footer time").text_content()
        fresh.store.record_scan(scan("a.b", sizes(7, 700 * MIB), ago=NOW))
        expect(files).to_contain_text("7")
        expect(page.get_by_role("img", name="now 7 files")).to_be_visible()
        assert page.evaluate("window.same"), "the page was loaded anew"
        expect(page.locator("footer time")).not_to_have_text(began)
        assert page.locator("header").bounding_box() == head, "an update moves nothing"
        page.get_by_role("button", name="Pause updates").click()
        fresh.store.record_scan(scan("a.b", sizes(9, 700 * MIB), ago=NOW))
        page.wait_for_timeout(6000)
        expect(files).to_contain_text("7")
        page.get_by_role("button", name="Resume updates").click()
        expect(files).to_contain_text("9")


def test_the_page_shows_written_bytes_of_a_running_plan_and_its_end_without_a_reload(browser, fresh):
    register(fresh.store, "a.b", "compact")
    plan = add_plan(fresh.store, "a.b", "dt=1", files=10)
    claim = claim_of(fresh.store, plan)
    with served(fresh) as url, opened(browser, url, forgive="ERR_FAILED") as page:
        page.goto(f"/plans/{plan.plan_id}")
        expect(page.get_by_text("0 B of 80.0 MiB")).to_be_visible()
        # The page itself can't be asked again: what comes now comes as an event.
        page.route(f"{url}/plans/*", lambda route: route.abort())
        fresh.store.heartbeat(claim, RewriteProgress(bytes_done=30 * MIB, bytes_total=80 * MIB))
        expect(page.get_by_text("30.0 MiB of 80.0 MiB")).to_be_visible()
        assert page.locator("progress").evaluate("bar => bar.value / bar.max") == 30 / 80
        page.unroute(f"{url}/plans/*")
        fresh.store.complete(claim, commit_of(plan), figures_of(plan), {})
        expect(page.locator(".title .state")).to_have_text("completed")


def test_print_is_light_and_shows_the_histogram_without_buttons(browser, address):
    with opened(browser, address, color_scheme="dark") as page:
        page.goto(table_path("sales.orders"))
        page.emulate_media(media="print", color_scheme="dark")
        assert background(page) == "rgb(255, 255, 255)"
        expect(page.get_by_role("img", name="Files by size")).to_be_visible()
        expect(page.get_by_role("button", name="Dry run")).to_be_hidden()

# SPDX-License-Identifier: Apache-2.0
"""As a new user would: the real daemon, a real Hudi table, a real browser; plans asked for in three ways."""

import re

import httpx
import pytest
from api_toys import add_token
from browser import chromium, opened, screenshot
from harness import Installation, stop_group
from hudi_tables import rows, table_rows, write
from playwright.sync_api import expect
from store_plans import sql
from waiting import wait_for

from lake.plan import PlanState
from service.control.store import Store

pytestmark = pytest.mark.spark

TABLE, PARTITIONS, FILES = "shop.trips", 3, 12


@pytest.fixture
def daemon(spark, tmp_path):
    """A paused table of small files and ``lakefold serve`` on it: its address, installation and store."""
    base = tmp_path / "lake" / "trips"
    write(rows(spark, 0, 1200, partitions=PARTITIONS).repartition(FILES // PARTITIONS), base, files=FILES // PARTITIONS)
    url = f"sqlite:///{tmp_path}/lakefold.db"
    installation = Installation(
        home=tmp_path,
        url=url,
        tables={TABLE: base},
        policy={"scan_interval": "1h", "small_file_limit": "1MiB", "heartbeat": "200ms"},
        spark={"spark.ui.enabled": "true", "spark.ui.port": "0"},
        daemon={"claim_interval": "200ms", "request_interval": "200ms", "metrics_interval": "1s"},
    )
    installation.run("pause", TABLE)
    log = tmp_path / "serve.log"
    process = installation.start("serve", log=log)
    store = Store(url)
    try:
        listening = wait_for(lambda: re.search(r"listening on (\S+)", log.read_text()), "the daemon up", 120)
        wait_for(lambda: store.last_scan(TABLE, ok=True), "the first scan", 120)
        yield listening.group(1), installation, store, base
    finally:
        stop_group(process)
        store.close()


def completed(store):
    return len(store.plans(table=TABLE, state=PlanState.COMPLETED))


@pytest.mark.shown_by("tests/service/test_docs.py::test_commands_on_the_pages_work_as_written")
def test_plans_requested_on_the_page_the_command_line_and_over_http_move_the_histogram(daemon, spark):
    address, installation, store, base = daemon
    before = table_rows(spark, base)
    token = add_token(store, "write", "ada")
    with chromium() as browser, opened(browser, address, viewport={"width": 1200, "height": 900}) as page:
        page.goto("/")
        page.get_by_role("rowheader").get_by_role("link", name=TABLE).click()
        expect(page.get_by_role("img", name=f"Files by size: now {FILES} files, {FILES} below")).to_be_visible()
        screenshot(page, "hudi-before")

        page.get_by_role("button", name="Resume table").click()
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("button", name="Resume table").click()
        page.get_by_label("Partition", exact=True).fill("dt=2026-01-01")
        page.get_by_role("button", name="Dry run").click()
        expect(page.get_by_text(f"would create 1 plan: {FILES // PARTITIONS} files → 1")).to_be_visible()
        assert not store.plans(table=TABLE)
        page.get_by_role("button", name="Create this plan").click()
        page.locator("main li a").click()
        page.evaluate("window.same = true")
        expect(page.locator(".title .state")).to_have_text("completed", timeout=240_000)
        assert page.evaluate("window.same"), "the page was watched without being loaded anew"
        expect(page.get_by_role("row", name="rewrite new files written")).to_contain_text("s")
        screenshot(page, "hudi-plan")

        installation.run("plans", "request", TABLE, "--partition", "dt=2026-01-02", "--wait")
        answer = httpx.post(
            f"{address}/v1/requests?wait=30",
            json={"table": TABLE, "partitions": ["dt=2026-01-03"]},
            headers={"Authorization": f"Bearer {token}"},
            timeout=60,
        )
        assert answer.status_code in (200, 202), answer.text
        page.goto(f"/plans?table={TABLE}")
        expect(page.locator("tbody .good")).to_have_count(3, timeout=240_000)
        assert completed(store) == 3
        seen = [row.spark_ui for row in sql(installation.url, "SELECT spark_ui FROM plan")]
        assert all(re.fullmatch(r"http://[\w.-]+:\d+", address) for address in seen), seen

        page.goto(f"/tables/{TABLE}")
        page.get_by_role("button", name="Dry run").click()
        expect(page.get_by_text("nothing to do")).to_be_visible()
        page.goto(f"/tables/{TABLE}")
        moved = re.compile(rf"now {PARTITIONS} files, \d below 1.0 MiB; before, {FILES} files")
        expect(page.get_by_role("img", name=moved)).to_be_visible()
        screenshot(page, "hudi-after")
        page.goto("/cleaning")
        expect(page.get_by_text(f"{FILES}", exact=True).first).to_be_visible()
    assert table_rows(spark, base) == before

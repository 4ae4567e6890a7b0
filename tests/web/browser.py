# SPDX-License-Identifier: Apache-2.0
"""Debian's Chromium, driven by Playwright, and the application on a port of the loopback."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright
from support import needs_server

from service.server.api.context import Context
from service.server.http.app import create_app
from service.server.http.server import HttpServer

#: where the long run keeps a picture of every page
SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
WIDTHS = (400, 900, 1400)
THEMES = ("light", "dark")
#: what happens at all happens within this, on a busy machine too
_PATIENCE_MS = 30_000


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; skips the test where there is none."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        needs_server("no Chromium here; bash tests/servers.sh installs Debian's")
    # A sandbox needs privileges that root in a container has not.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def served(context: Context) -> Iterator[str]:
    """The application on a free port, as the daemon serves it; its address."""
    with HttpServer(context.config.http.model_copy(update={"port": 0}), create_app(context)) as server:
        yield server.url


@contextmanager
def opened(browser: Browser, address: str, forgive: str = "status of 404", **options: object) -> Iterator[Page]:
    """A new window without history.

    What it asks of another host fails, and what it writes to the console as an error unless ``forgive`` is part of it.
    """
    context = browser.new_context(base_url=address, **options)
    context.set_default_timeout(_PATIENCE_MS)
    expect.set_options(timeout=_PATIENCE_MS)
    faults: list[str] = []
    page = context.new_page()
    page.on("request", lambda r: None if r.url.startswith(address) else faults.append(f"asked {r.url}"))
    page.on("pageerror", lambda error: faults.append(f"script: {error}"))
    page.on("console", lambda m: faults.append(m.text) if m.type == "error" and forgive not in m.text else None)
    try:
        yield page
        assert not faults, faults
    finally:
        context.close()


#: what is cut off, broken or left behind: regions to scroll in, words of names and headings that go on in the next
#: line, legends without their picture, texts of a picture that touch each other or leave the page
_BROKEN = """() => {
  const wrong = [...document.querySelectorAll(".scroll")]
    .filter(region => region.scrollWidth > region.clientWidth).map(region => `${region.ariaLabel} is cut off`);
  const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode, range = document.createRange();
    range.selectNodeContents(text);
    const named = text.parentElement.closest("table .name, h1, .state, button, th");
    if (named && /^[\\w.=/]+$/.test(text.data.trim()) && range.getClientRects().length > 1) wrong.push(text.data);
  }
  for (const legend of document.querySelectorAll(".legend")) {
    const pictures = [...legend.parentElement.querySelectorAll("svg, .strip")];
    if (legend.checkVisibility() && !pictures.some(one => one.checkVisibility())) wrong.push("a legend of nothing");
  }
  for (const picture of document.querySelectorAll("svg.chart")) {
    const drawn = [...picture.querySelectorAll("text")].filter(one => one.checkVisibility() && one.textContent.trim());
    const boxes = drawn.map(one => [one.textContent.trim(), one.getBoundingClientRect()]);
    boxes.forEach(([name, box], index) => {
      if (box.left < 0 || box.right > innerWidth) wrong.push(`${name} leaves the page`);
      for (const [other, next] of boxes.slice(index + 1)) {
        const high = Math.min(box.bottom, next.bottom) - Math.max(box.top, next.top);
        const wide = Math.min(box.right, next.right) - Math.max(box.left, next.left);
        if (high > 6 && wide > -2) wrong.push(`${name} touches ${other}`);
      }
    });
  }
  if (document.documentElement.scrollWidth > innerWidth) wrong.push("the page is wider than the window");
  return wrong;
}"""


def broken(page: Page) -> list[str]:
    """What of the page does not fit the window as it is now."""
    return list(page.evaluate(_BROKEN))


def screenshot(page: Page, name: str) -> None:
    """Keep the whole page as test output."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)

# SPDX-License-Identifier: Apache-2.0
"""What the pages never do: leave a string unescaped, load from elsewhere, lead elsewhere, tell strangers."""

import re
from pathlib import Path
from urllib.parse import quote

import pytest
from api_toys import client_of, context_at
from web_lake import HOSTILE
from web_pages import PATHS, Page, every_page, read

import service.server.web
from service.server.web.rendering import safe_local_path

SHIPPED = [
    path for path in Path(service.server.web.__file__).parent.rglob("*") if path.suffix in (".html", ".css", ".js")
]
HOSTILE_QUERIES = [
    "/?name={}",
    "/plans?table={}",
    "/login?next={}",
    "/tables/sales.orders?partition={0}&key={0}&value={0}",
    "/simulate?scenario={}",
    "/replay?table=sales.orders&set={}",
]


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
def test_every_answer_forbids_resources_that_the_page_does_not_need(page, path):
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


def test_a_pause_is_hidden_from_callers_without_read_access(tmp_path):
    context = context_at(tmp_path, address="0.0.0.0")
    context.store.pause(None, "ada", "secret plans")
    with client_of(context, host="lakefold.example") as client:
        assert "secret plans" not in read(client, "/login").text
    context.store.close()


@pytest.mark.parametrize("path", ["//evil.example", "https://evil.example", "/\\evil.example", "evil", "", "/a\r\nb"])
def test_signing_in_never_redirects_to_another_site(path):
    assert safe_local_path(path) == "/"

# SPDX-License-Identifier: Apache-2.0
"""The pages that there are, and one of them as its reader sees it."""

from collections.abc import Mapping
from html.parser import HTMLParser

from fastapi.testclient import TestClient
from web_lake import HOSTILE

from service.server.web.rendering import table_path

#: what a browser sends with a form of our own pages
SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}
PATHS = [
    "/",
    "/plans",
    "/processes",
    "/cleaning",
    "/settings",
    "/login",
    "/settings?table=sales.orders",
    "/notifications",
    "/audit",
    "/pause",
    "/simulate",
    "/simulate?example=hudi-mor",
    "/replay?table=sales.orders",
    "/replay?table=sales.returns&days=4",
    "/plans?proposed=true",
    "/bulk/approve?proposed=true",
    "/nowhere/else",
]


class Page(HTMLParser):
    """Every element with its attributes, and the text that a wide window shows."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.narrow = "", 0
        self.feed(html)

    @property
    def words(self) -> str:
        """The text with one space between any two words."""
        return " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "span" and (self.narrow or "narrow-only" in (dict(attrs).get("class") or "").split()):
            self.narrow += 1
        if tag not in ("span", "b", "a", "wbr", "code", "data"):
            self.text += " "

    def handle_endtag(self, tag: str) -> None:
        self.narrow -= tag == "span" and self.narrow > 0

    def handle_data(self, data: str) -> None:
        self.text += data if not self.narrow else ""

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of each element of this name."""
        return [attributes for name, attributes in self.elements if name == tag]


def read(client: TestClient, path: str, status: int = 200) -> Page:
    """The page at ``path``, which answers with ``status``."""
    answer = client.get(path)
    assert answer.status_code == status, answer.text[:2000]
    return Page(answer.text)


def every_page(plans: Mapping[str, str]) -> list[str]:
    """The paths of all pages of the lake whose plans these are, those of its tables and plans among them."""
    tables = ["sales.orders", "events.clicks", "crm.contacts", "logs.app", "web.sessions", "archive.2019", HOSTILE]
    tables.append("sales.returns")
    paths = [*PATHS[:-1], "/plans?state=failed", "/plans?table=sales.orders"]
    return [*paths, *(table_path(name) for name in tables), *(f"/plans/{plan_id}" for plan_id in plans.values())]

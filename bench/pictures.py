# SPDX-License-Identifier: Apache-2.0
"""The generator of README's pictures in ``docs/images``: the current page, on the lake of the page's tests."""

import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":  # needed to run from a clone without an installation
    root = Path(__file__).resolve().parent.parent
    sys.path[:0] = [str(root / folder) for folder in ("tests/web", "tests/service", "tests/store", "tests", "")]

from api_toys import context_at
from browser import chromium, opened, served
from web_lake import RULES, fill, seven_day_lead

IMAGES = Path(__file__).resolve().parent.parent / "docs/images"
SIZE = {"width": 1200, "height": 1010}


def main() -> None:
    """Take the pictures again."""
    with tempfile.TemporaryDirectory() as home, chromium() as browser:
        context = context_at(Path(home), rules=RULES)
        plans = fill(context.store, f"sqlite:///{home}/lakefold.db")
        seven_day_lead(context.store)
        paths = {"page-table": "/tables/sales.orders", "page-plan": f"/plans/{plans['inflight'].plan_id}"}
        with served(context) as address, opened(browser, address, viewport=SIZE, color_scheme="light") as page:
            for name, path in paths.items():
                page.goto(path)
                page.screenshot(path=IMAGES / f"{name}.png")
        context.store.close()


if __name__ == "__main__":
    main()
